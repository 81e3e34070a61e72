//! Whole matrices: codes, fake quantization, gradients and the per-row view, against the definition
//! applied element by element.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

use proptest::prelude::*;
use qbert_quant::{
    Affine, Axis, BitWidth, Error, GroupSpec, Layout, Mask, Percent, QuantParams, QuantizedMatrix, Range, RangeMethod,
    Scratch,
};

#[derive(Clone, Debug)]
struct Sample {
    layout: Layout,
    bits: BitWidth,
    method: RangeMethod,
    values: Vec<f32>,
}

fn sample() -> impl Strategy<Value = Sample> {
    let shape = (1_usize..9, 1_usize..9, 0_u8..3, 1_usize..9, 1_u8..=8, 0_u8..3);
    shape.prop_flat_map(|(rows, cols, axis, groups, bits, method)| {
        let layout = match axis {
            0 => Layout::new(rows, cols, Axis::Rows, groups.min(rows)).unwrap(),
            1 => Layout::new(rows, cols, Axis::Columns, groups.min(cols)).unwrap(),
            _ => Layout::resolve(rows, cols, Axis::Columns, GroupSpec::PerRow, 1).unwrap(),
        };
        let method = match method {
            0 => RangeMethod::MinMax,
            1 => RangeMethod::Mse,
            _ => RangeMethod::Percentile(Percent::new(90.0).unwrap()),
        };
        let values = prop::collection::vec(-2.0_f32..2.0, rows * cols);
        values.prop_map(move |values| Sample { layout, bits: BitWidth::new(bits).unwrap(), method, values })
    })
}

fn fit(sample: &Sample) -> QuantParams {
    QuantParams::fit(&sample.values, sample.layout, sample.bits, sample.method, &mut Scratch::default()).unwrap()
}

/// The group of an element, straight from the definition.
fn group_of(layout: &Layout, index: usize) -> usize {
    let neuron = match layout.axis() {
        Axis::Rows | Axis::TableRows => index / layout.cols(),
        Axis::Columns => index % layout.cols(),
    };
    layout.groups().group_of(neuron)
}

fn bits_of(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

proptest! {
    #[test]
    fn errors_of_groups_add_up_to_that_of_the_matrix(sample in sample()) {
        let Sample { layout, bits, method, values } = &sample;
        let mut fake = vec![0.0; values.len()];
        fit(&sample).fake_quantize(values, &mut fake).unwrap();
        let squares = values.iter().zip(&fake).map(|(value, fake)| (f64::from(*value) - f64::from(*fake)).powi(2));
        let expected: f64 = squares.sum();
        let mut scratch = Scratch::default();
        let groups = 0..layout.groups().count();
        let found: f64 = groups.map(|g| layout.group_error(values, g, *bits, *method, &mut scratch).unwrap()).sum();
        prop_assert!((found - expected).abs() <= 1e-12 * expected, "{found} {expected}");
        let missing = layout.group_error(values, layout.groups().count(), *bits, *method, &mut scratch);
        prop_assert!(matches!(missing, Err(Error::Length { what: "groups", .. })), "a group that is not there");
    }

    #[test]
    fn every_path_agrees_with_the_definition(sample in sample()) {
        let Sample { layout, values, .. } = &sample;
        let params = fit(&sample);
        let affine = |index: usize| params.affines()[group_of(layout, index)];
        let expected_codes: Vec<u8> = values.iter().enumerate().map(|(index, &value)| affine(index).code(value)).collect();
        let expected: Vec<f32> = values.iter().enumerate().map(|(index, &value)| affine(index).round_trip(value)).collect();

        let quantized = QuantizedMatrix::quantize(values, &params).unwrap();
        prop_assert_eq!(quantized.codes(), &expected_codes);
        prop_assert_eq!(bits_of(&quantized.dequantize()), bits_of(&expected));
        let mut fake = vec![f32::NAN; values.len()];
        params.fake_quantize(values, &mut fake).unwrap();
        prop_assert_eq!(bits_of(&fake), bits_of(&expected));

        let mut gradients = vec![3.0; values.len()];
        params.straight_through(Mask::Clamp, values, &mut gradients).unwrap();
        for (index, gradient) in gradients.iter().enumerate() {
            let inside = params.ranges()[group_of(layout, index)].contains(values[index]);
            prop_assert_eq!(*gradient, if inside { 3.0 } else { 0.0 });
        }
        for mask in [Mask::HalfStep, Mask::None] {
            let mut wider = vec![3.0; values.len()];
            params.straight_through(mask, values, &mut wider).unwrap();
            for (index, gradient) in wider.iter().enumerate() {
                let (range, step) = (params.ranges()[group_of(layout, index)], affine(index).step());
                let margin = if mask == Mask::None { f32::INFINITY } else { 0.5 * step };
                let value = values[index];
                let inside = range.low() - margin <= value && value <= range.high() + margin;
                prop_assert_eq!(*gradient, if inside { 3.0 } else { 0.0 });
            }
        }
        // Rounding the ends of rows may leave the extreme values outside.
        if sample.method == RangeMethod::MinMax && layout.axis() != Axis::TableRows {
            prop_assert!(gradients.iter().all(|&gradient| gradient == 3.0));
        }
    }

    #[test]
    fn work_split_by_rows_and_groups_gives_the_same(sample in sample(), at in 0_usize..9) {
        let Sample { layout, bits, method, values } = &sample;
        let params = fit(&sample);
        let ranges = (0..layout.groups().count())
            .map(|group| layout.fit_group(values, group, *bits, *method, &mut Scratch::default()).unwrap())
            .collect();
        prop_assert_eq!(&QuantParams::from_ranges(*layout, *bits, ranges).unwrap(), &params);

        let at = at.min(layout.rows());
        let (top, bottom) = values.split_at(at * layout.cols());
        let whole = QuantizedMatrix::quantize(values, &params).unwrap();
        let mut fake = vec![0.0; values.len()];
        let mut codes = vec![0; values.len()];
        let mut back = vec![0.0; values.len()];
        for (rows, part) in [(0..at, top), (at..layout.rows(), bottom)] {
            let span = rows.start * layout.cols()..rows.end * layout.cols();
            params.fake_quantize_rows(rows.clone(), part, &mut fake[span.clone()]).unwrap();
            params.quantize_rows(rows.clone(), part, &mut codes[span.clone()]).unwrap();
            whole.dequantize_rows(rows, &mut back[span]).unwrap();
        }
        prop_assert_eq!(whole.codes(), &codes);
        prop_assert_eq!(bits_of(&whole.dequantize()), bits_of(&fake));
        prop_assert_eq!(bits_of(&whole.dequantize()), bits_of(&back));
    }

    #[test]
    fn stored_parts_come_back_and_row_params_give_every_value(sample in sample()) {
        let layout = sample.layout;
        let whole = QuantizedMatrix::quantize(&sample.values, &fit(&sample)).unwrap();
        if layout.axis() == Axis::TableRows {
            // What is stored of these are ranges, which give the same quantizers again.
            let again = QuantParams::from_ranges(layout, sample.bits, whole.row_ranges().to_vec()).unwrap();
            prop_assert_eq!(again.affines(), whole.affines());
            prop_assert!(whole.row_ranges().iter().all(|range| range.to_bf16() == *range));
            return Ok(());
        }
        let stored: Vec<Affine> = whole.affines().iter()
            .map(|affine| Affine::new(affine.low(), affine.step(), affine.bits()).unwrap())
            .collect();
        let read = QuantizedMatrix::from_parts(layout, sample.bits, stored, whole.codes().to_vec()).unwrap();
        prop_assert_eq!(&read, &whole);

        let params = whole.row_params();
        let mut sums = vec![0; params.len()];
        for (index, &code) in whole.codes().iter().enumerate() {
            let neuron = if layout.axis().is_by_row() { index / layout.cols() } else { index % layout.cols() };
            sums[neuron] += u32::from(code);
            let value = params[neuron].step * f32::from(code) + params[neuron].low;
            prop_assert_eq!(value.to_bits(), whole.dequantize()[index].to_bits());
        }
        prop_assert_eq!(params.iter().map(|row| row.code_sum).collect::<Vec<_>>(), sums);
    }
}

#[test]
fn columns_are_grouped_as_the_embedding_of_the_paper() {
    // Two groups of two columns: each keeps its own range although rows mix them.
    let values = [0.0, 1.0, 10.0, 40.0, 0.5, 0.25, 20.0, 30.0];
    let layout = Layout::resolve(2, 4, Axis::Columns, GroupSpec::PerHead, 2).unwrap();
    let params =
        QuantParams::fit(&values, layout, BitWidth::ONE, RangeMethod::MinMax, &mut Scratch::default()).unwrap();
    assert_eq!(params.ranges(), [Range::new(0.0, 1.0).unwrap(), Range::new(10.0, 40.0).unwrap()]);
    let whole = QuantizedMatrix::quantize(&values, &params).unwrap();
    assert_eq!(whole.dequantize(), [0.0, 1.0, 10.0, 40.0, 0.0, 0.0, 10.0, 40.0]);
}

#[test]
fn refining_follows_the_values() {
    let values: Vec<f32> = (0_u8..64).map(|index| f32::from(index).sin()).collect();
    let moved: Vec<f32> = values.iter().map(|value| value * 1.1 + 0.05).collect();
    let layout = Layout::new(8, 8, Axis::Rows, 4).unwrap();
    let bits = BitWidth::new(3).unwrap();
    let mut scratch = Scratch::default();
    let error = |params: &QuantParams| {
        let mut fake = vec![0.0; moved.len()];
        params.fake_quantize(&moved, &mut fake).unwrap();
        fake.iter().zip(&moved).map(|(fake, value)| f64::from(fake - value).powi(2)).sum::<f64>()
    };
    let old = QuantParams::fit(&values, layout, bits, RangeMethod::Mse, &mut scratch).unwrap();
    let mut new = old.clone();
    new.refine(&moved, &mut scratch).unwrap();
    assert!(error(&new) < error(&old) * 0.7, "{} against {}", error(&new), error(&old));
}

#[test]
fn bad_matrices_are_refused_with_the_place() {
    let mut scratch = Scratch::default();
    let bits = BitWidth::new(2).unwrap();
    for (axis, index) in [(Axis::Rows, 5), (Axis::Columns, 4), (Axis::Columns, 5)] {
        let layout = Layout::new(2, 3, axis, 2).unwrap();
        let mut values = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
        let params = QuantParams::fit(&values, layout, bits, RangeMethod::MinMax, &mut scratch).unwrap();
        values[index] = f32::NAN;
        let found = QuantParams::fit(&values, layout, bits, RangeMethod::MinMax, &mut scratch).unwrap_err();
        assert!(matches!(found, Error::BadValue { index: at, .. } if at == index), "{axis:?}: {found:?}");
        assert!(matches!(params.fake_quantize(&values, &mut [0.0; 6]), Err(Error::BadValue { .. })));
        assert!(QuantizedMatrix::quantize(&values, &params).is_err());
        assert!(matches!(params.fake_quantize(&values[..4], &mut [0.0; 6]), Err(Error::Length { .. })));
        assert!(matches!(
            params.fake_quantize_rows(1..3, &values, &mut [0.0; 6]),
            Err(Error::Rows { start: 1, end: 3, rows: 2 })
        ));
        assert!(matches!(
            layout.fit_group(&values, 2, bits, RangeMethod::Mse, &mut scratch),
            Err(Error::Length { .. })
        ));
        assert!(QuantParams::from_ranges(layout, bits, vec![]).is_err());
    }
    assert!(matches!(Layout::new(0, 4, Axis::Rows, 1), Err(Error::Shape { .. })));
    assert!(matches!(Layout::new(usize::MAX, 4, Axis::Rows, 1), Err(Error::Shape { .. })));
    assert!(matches!(Layout::new(4, 4, Axis::Rows, 5), Err(Error::TooManyGroups { groups: 5, neurons: 4 })));
}

#[test]
fn stored_parts_that_do_not_fit_are_refused() {
    let layout = Layout::new(2, 2, Axis::Rows, 1).unwrap();
    let bits = BitWidth::new(2).unwrap();
    let affine = Affine::new(0.0, 1.0, bits).unwrap();
    let wide = Affine::new(0.0, 1.0, BitWidth::EIGHT).unwrap();
    assert!(QuantizedMatrix::from_parts(layout, bits, vec![affine], vec![0, 1, 2, 3]).is_ok());
    let too_large = QuantizedMatrix::from_parts(layout, bits, vec![affine], vec![0, 1, 2, 4]);
    assert_eq!(too_large.unwrap_err(), Error::Code { index: 3, code: 4, bits });
    let ternary = Affine::new(0.0, 1.0, BitWidth::TERNARY).unwrap();
    assert!(QuantizedMatrix::from_parts(layout, BitWidth::TERNARY, vec![ternary], vec![0, 1, 2, 1]).is_ok());
    let too_large = QuantizedMatrix::from_parts(layout, BitWidth::TERNARY, vec![ternary], vec![0, 1, 2, 3]);
    assert_eq!(too_large.unwrap_err(), Error::Code { index: 3, code: 3, bits: BitWidth::TERNARY });
    assert!(QuantizedMatrix::from_parts(layout, bits, vec![affine], vec![0; 3]).is_err());
    assert!(QuantizedMatrix::from_parts(layout, bits, vec![], vec![0; 4]).is_err());
    assert!(QuantizedMatrix::from_parts(layout, bits, vec![wide], vec![0; 4]).is_err());
}
