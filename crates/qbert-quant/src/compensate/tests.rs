use super::*;
use crate::bits::BitWidth;
use crate::matrix::Layout;
use crate::range::{RangeMethod, Scratch};

/// Numbers that look random, about normal.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f32 {
        let mut sum = 0.0;
        for _ in 0..12 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            sum += (self.0 >> 40) as f32 / (1u32 << 24) as f32;
        }
        sum - 6.0
    }

    fn take(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.next()).collect()
    }
}

/// Inputs that depend on each other: a few causes, a little of their own.
fn inputs(numbers: &mut Numbers, tokens: usize, size: usize) -> Vec<f32> {
    let mixing = numbers.take(3 * size);
    (0..tokens)
        .flat_map(|_| {
            let causes = numbers.take(3);
            let own = numbers.take(size);
            let of = |input: usize| (0..3).map(|cause| causes[cause] * mixing[cause * size + input]).sum::<f32>();
            (0..size).map(|input| of(input) + 0.3 * own[input] + 0.5).collect::<Vec<f32>>()
        })
        .collect()
}

fn moments(inputs: &[f32], size: usize) -> Vec<f32> {
    let mut moments = vec![0.0; size * size];
    for x in inputs.chunks(size) {
        for a in 0..size {
            for b in 0..size {
                moments[a * size + b] += x[a] * x[b];
            }
        }
    }
    moments
}

/// The squared error of the product with all inputs.
fn product_error(inputs: &[f32], size: usize, weights: &[f32], rounded: &[f32]) -> f64 {
    let mut sum = 0.0;
    for x in inputs.chunks(size) {
        for (w, q) in weights.chunks(size).zip(rounded.chunks(size)) {
            let error: f64 = (0..size).map(|i| f64::from(x[i]) * f64::from(w[i] - q[i])).sum();
            sum += error * error;
        }
    }
    sum
}

fn fitted(weights: &[f32], rows: usize, cols: usize, groups: usize, bits: u8) -> QuantParams {
    let layout = Layout::new(rows, cols, Axis::Rows, groups).unwrap();
    let bits = BitWidth::new(bits).unwrap();
    QuantParams::fit(weights, layout, bits, RangeMethod::Mse, &mut Scratch::default()).unwrap()
}

#[test]
fn independent_inputs_of_one_size_are_rounded_to_the_nearest_code() {
    let (rows, cols) = (19, 7);
    let weights = Numbers(3).take(rows * cols);
    let params = fitted(&weights, rows, cols, 19, 3);
    let mut identity = vec![0.0; cols * cols];
    (0..cols).for_each(|i| identity[i * cols + i] = 2.0);
    for moments in [identity, vec![0.0; cols * cols]] {
        let moments = InputMoments::factor(cols, &moments).unwrap();
        let (mut compensated, mut nearest) = (weights.clone(), vec![0.0; weights.len()]);
        params.compensate_rows(0..rows, &moments, &mut compensated).unwrap();
        params.fake_quantize(&weights, &mut nearest).unwrap();
        assert_eq!(compensated, nearest);
    }
}

#[test]
fn two_equal_inputs_share_their_error() {
    // Codes are 0 and 1. Two inputs that are always equal: only the sum of the weights counts, 0.4 + 0.4 is nearer to 1.
    let layout = Layout::new(1, 2, Axis::Rows, 1).unwrap();
    let range = crate::range::Range::new(0.0, 1.0).unwrap();
    let params = QuantParams::from_ranges(layout, BitWidth::new(1).unwrap(), vec![range]).unwrap();
    let moments = InputMoments::factor(2, &[1.0, 1.0, 1.0, 1.0]).unwrap();
    let mut weights = [0.4, 0.4];
    params.compensate_rows(0..1, &moments, &mut weights).unwrap();
    assert_eq!(weights.iter().sum::<f32>(), 1.0);
}

#[test]
fn the_product_changes_less_and_codes_follow_from_the_result() {
    let (rows, cols, tokens) = (33, 24, 200);
    for bits in [1, 2, 3, 4, 8] {
        let mut numbers = Numbers(u64::from(bits));
        let (x, weights) = (inputs(&mut numbers, tokens, cols), numbers.take(rows * cols));
        let params = fitted(&weights, rows, cols, 11, bits);
        let moments = InputMoments::factor(cols, &moments(&x, cols)).unwrap();
        let (mut compensated, mut nearest) = (weights.clone(), vec![0.0; weights.len()]);
        params.fake_quantize(&weights, &mut nearest).unwrap();
        // In two parts, as threads would.
        params.compensate_rows(0..20, &moments, &mut compensated[..20 * cols]).unwrap();
        params.compensate_rows(20..rows, &moments, &mut compensated[20 * cols..]).unwrap();
        let error = |rounded: &[f32]| product_error(&x, cols, &weights, rounded);
        assert!(error(&compensated) < 0.5 * error(&nearest), "{bits} bits: {}", error(&compensated) / error(&nearest));
        let mut again = vec![0.0; weights.len()];
        params.fake_quantize(&compensated, &mut again).unwrap();
        assert_eq!(again, compensated, "{bits} bits");
        let mut loose = compensated.clone();
        params.loosen_rows(0..rows, &weights, &mut loose).unwrap();
        params.fake_quantize(&loose, &mut again).unwrap();
        assert_eq!(again, compensated, "{bits} bits: codes stay");
        let kept = loose.iter().zip(&weights).filter(|(loose, weight)| loose == weight).count();
        let same = nearest.iter().zip(&compensated).filter(|(a, b)| a == b).count();
        assert!(kept > same / 2 && loose != compensated, "{bits} bits: {kept} of {same} weights went back");
    }
}

/// Inputs that nearly move together, and one weight far outside its range: pushing all others to the ends of theirs fits these
/// inputs a little better, and new ones worse.
#[test]
fn a_row_that_cannot_be_made_up_for_has_its_nearest_codes() {
    let (cols, tokens, far) = (64, 80, 5);
    let mut numbers = Numbers(9);
    let mut weights = numbers.take(2 * cols);
    weights.iter_mut().for_each(|weight| *weight = weight.clamp(-3.0, 3.0));
    let range = crate::range::Range::new(-3.0, 3.0).unwrap();
    let layout = Layout::new(2, cols, Axis::Rows, 2).unwrap();
    let params = QuantParams::from_ranges(layout, BitWidth::new(4).unwrap(), vec![range; 2]).unwrap();
    weights[far] = 200.0;
    let x: Vec<f32> = (0..tokens)
        .flat_map(|_| {
            let (common, own) = (numbers.next(), numbers.take(cols));
            own.into_iter().map(move |own| common + 0.1 * own)
        })
        .collect();
    let moments = InputMoments::factor(cols, &moments(&x, cols)).unwrap();
    let (mut compensated, mut nearest) = (weights.clone(), vec![0.0; weights.len()]);
    params.compensate_rows(0..2, &moments, &mut compensated).unwrap();
    params.fake_quantize(&weights, &mut nearest).unwrap();
    assert_eq!(compensated[..cols], nearest[..cols]);
    assert_ne!(compensated[cols..], nearest[cols..], "the other row is compensated");
}

/// The best of all 4^5 choices of codes is not much better than what the one way through finds.
#[test]
fn few_inputs_are_rounded_nearly_as_well_as_can_be() {
    let (cols, tokens) = (5, 40);
    let (mut found, mut best, mut plain) = (0.0, 0.0, 0.0);
    for seed in 0..40 {
        let mut numbers = Numbers(seed);
        let (x, weights) = (inputs(&mut numbers, tokens, cols), numbers.take(cols));
        let params = fitted(&weights, 1, cols, 1, 2);
        let affine = params.affines()[0];
        let factored = InputMoments::factor(cols, &moments(&x, cols)).unwrap();
        let error = |rounded: &[f32]| product_error(&x, cols, &weights, rounded);
        let mut rounded = weights.clone();
        params.compensate_rows(0..1, &factored, &mut rounded).unwrap();
        found += error(&rounded);
        plain += error(&weights.iter().map(|&w| affine.round_trip(w)).collect::<Vec<f32>>());
        let all = (0..1 << (2 * cols)).map(|codes: usize| {
            let value = |input: usize| affine.value((codes >> (2 * input) & 3) as u8);
            error(&(0..cols).map(value).collect::<Vec<f32>>())
        });
        best += all.fold(f64::INFINITY, f64::min);
    }
    assert!(best <= found && found < 1.6 * best && found < 0.85 * plain, "{best} {found} {plain}");
}

#[test]
fn what_does_not_fit_is_refused() {
    assert!(matches!(InputMoments::factor(2, &[1.0; 3]), Err(Error::Length { expected: 4, found: 3, .. })));
    assert!(matches!(InputMoments::factor(1, &[f32::NAN]), Err(Error::BadValue { index: 0, .. })));
    assert!(matches!(InputMoments::factor(2, &[1.0, 0.0, 0.0, -1.0]), Err(Error::BadValue { index: 3, .. })));
    let weights = Numbers(1).take(6);
    let params = fitted(&weights, 2, 3, 1, 2);
    let two = InputMoments::factor(2, &[1.0; 4]).unwrap();
    assert!(matches!(params.compensate_rows(0..2, &two, &mut weights.clone()), Err(Error::Length { .. })));
    let three = InputMoments::factor(3, &[0.5; 9]).unwrap();
    assert!(params.compensate_rows(1..3, &three, &mut weights.clone()).is_err());
    let mut bad = weights;
    bad[4] = f32::INFINITY;
    assert!(matches!(params.compensate_rows(0..2, &three, &mut bad), Err(Error::BadValue { index: 4, .. })));
}
