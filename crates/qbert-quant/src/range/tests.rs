//! Tests of the range methods: exact cases, and the `mse` search against brute force.

use super::*;
use proptest::prelude::*;

fn bits(width: u8) -> BitWidth {
    BitWidth::new(width).unwrap()
}

fn fit(method: RangeMethod, values: &[f32], width: u8) -> Range {
    method.fit(values, bits(width), &mut Scratch::default()).unwrap()
}

fn mse(values: &[f32], width: u8) -> Range {
    fit(RangeMethod::Mse, values, width)
}

fn percent(value: f64) -> RangeMethod {
    RangeMethod::Percentile(Percent::new(value).unwrap())
}

/// Reproducible numbers in (-1, 1), roughly bell-shaped.
fn bell(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut uniform = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1_u64 << 24) as f32
    };
    (0..count).map(|_| (uniform() + uniform() + uniform() + uniform()) / 2.0 - 1.0).collect()
}

#[test]
fn ranges_are_checked() {
    assert!(Range::new(1.0, 0.0).is_err());
    assert!(Range::new(f32::NAN, 0.0).is_err());
    assert!(Range::new(0.0, f32::INFINITY).is_err());
    assert!(Range::new(0.0, f32::MAX).is_err());
    let zero = Range::new(-0.0, -0.0).unwrap();
    assert!(zero.low().is_sign_positive() && zero.high().is_sign_positive());
}

#[test]
fn every_method_refuses_bad_values_by_index() {
    for method in [RangeMethod::MinMax, percent(99.0), RangeMethod::Mse] {
        let mut scratch = Scratch::default();
        assert!(matches!(method.fit(&[], bits(2), &mut scratch), Err(Error::NoValues)));
        for bad in [f32::NAN, f32::INFINITY, -3e38] {
            let error = method.fit(&[0.0, 1.0, bad], bits(2), &mut scratch).unwrap_err();
            assert!(matches!(error, Error::BadValue { index: 2, .. }), "{error:?}");
        }
    }
}

#[test]
fn percentiles_interpolate_between_order_statistics() {
    // 0, 1, …, 10 in another order: the quantile t is at 10·t.
    let values = [3.0, 10.0, 0.0, 7.0, 1.0, 9.0, 2.0, 8.0, 4.0, 6.0, 5.0];
    assert_eq!(fit(percent(100.0), &values, 8), Range::new(0.0, 10.0).unwrap());
    assert_eq!(fit(percent(80.0), &values, 8), Range::new(1.0, 9.0).unwrap());
    assert_eq!(fit(percent(75.0), &values, 8), Range::new(1.25, 8.75).unwrap());
    assert_eq!(fit(percent(99.0), &[4.0], 8), Range::new(4.0, 4.0).unwrap());
}

#[test]
fn text_forms_read_back_and_others_are_refused() {
    for text in ["min-max", "mse", "percentile:99.9", "percentile:100", "percentile:0.5"] {
        assert_eq!(text.parse::<RangeMethod>().unwrap().to_string(), text);
    }
    for text in ["minmax", "MSE", "percentile", "percentile:", "percentile:0", "percentile:101", "percentile:nan", ""] {
        assert!(matches!(text.parse::<RangeMethod>(), Err(Error::RangeMethod { .. })), "{text}");
    }
}

#[test]
fn equal_values_give_a_range_of_one_point() {
    for method in [RangeMethod::MinMax, percent(99.0), RangeMethod::Mse] {
        assert_eq!(fit(method, &[0.25; 9], 3), Range::new(0.25, 0.25).unwrap());
    }
}

#[test]
fn straight_through_stops_only_what_the_clamp_moved() {
    let range = Range::new(-1.0, 0.1).unwrap();
    let values = [-1.0, -1.000_001, 0.1, 0.100_001, 0.0, f32::NAN];
    let mut gradients = [2.0; 6];
    range.straight_through(&values, &mut gradients).unwrap();
    assert_eq!(gradients, [2.0, 0.0, 2.0, 0.0, 2.0, 0.0]);
    assert!(range.straight_through(&values, &mut [0.0]).is_err());
}

#[test]
fn uniform_quantizers_of_a_bell_curve_match_the_known_optimum() {
    // Max (1960), Table II: step of the best uniform quantizer of a unit normal distribution, and its error.
    struct Case {
        width: u8,
        step: f64,
        error: f64,
    }
    let cases = [
        Case { width: 2, step: 0.9957, error: 0.1188 },
        Case { width: 3, step: 0.5860, error: 0.03744 },
        Case { width: 4, step: 0.3352, error: 0.01154 },
        Case { width: 5, step: 0.1881, error: 0.003_495 },
    ];
    // The quantiles of the normal distribution, so that no sampling noise is in the way.
    let values: Vec<f32> =
        (0..20_000).map(|index| normal_quantile((f64::from(index) + 0.5) / 20_000.0) as f32).collect();
    for case in cases {
        let range = mse(&values, case.width);
        let step = f64::from(range.high() - range.low()) / f64::from(bits(case.width).max_code());
        let error = squared_error(&values, range, bits(case.width)) / values.len() as f64;
        assert!((step / case.step - 1.0).abs() < 0.01, "{} bits: step {step}", case.width);
        assert!((error / case.error - 1.0).abs() < 0.01, "{} bits: error {error}", case.width);
    }
}

/// Inverts the distribution function by bisection; its values come from the series around 0.
fn normal_quantile(probability: f64) -> f64 {
    let distribution = |x: f64| {
        let (mut term, mut sum) = (x, x);
        for k in 1..200 {
            term *= x * x / f64::from(2 * k + 1);
            sum += term;
        }
        0.5 + sum * (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt()
    };
    let (mut low, mut high) = (-6.0, 6.0);
    for _ in 0..50 {
        let middle = (low + high) / 2.0;
        if distribution(middle) < probability { low = middle } else { high = middle }
    }
    low
}

#[test]
fn outliers_do_not_hide_the_rest() {
    let mut values = bell(4608, 1);
    values[17] = 1e4;
    values[99] = -3e3;
    // At 4 bits the two outliers outweigh everything, so the range keeps them; clipped data must still win
    // as soon as the outliers are mild.
    let range = mse(&values, 4);
    assert!(
        squared_error(&values, range, bits(4)) <= squared_error(&values, Range::min_max(&values).unwrap(), bits(4))
    );
    values[17] = 4.0;
    values[99] = -3.0;
    let range = mse(&values, 4);
    assert!(range.high() < 1.5 && range.low() > -1.5, "{range:?}");
}

#[test]
fn many_values_are_merged_without_harm() {
    let values = bell(150_000, 5);
    let sample: Vec<f32> = values.iter().copied().step_by(3).collect();
    for width in [1, 2, 4, 8] {
        let merged = squared_error(&values, mse(&values, width), bits(width));
        let from_sample = squared_error(&values, mse(&sample, width), bits(width));
        assert!(merged <= from_sample * 1.000_1, "{width} bits: {merged} > {from_sample}");
        assert!(merged <= squared_error(&values, Range::min_max(&values).unwrap(), bits(width)));
    }
}

#[test]
fn refining_the_found_range_changes_nothing_much_and_moved_values_are_followed() {
    let values = bell(4608, 9);
    let moved: Vec<f32> = values.iter().map(|value| value * 1.02 + 0.003).collect();
    for width in [1, 2, 3, 4, 8] {
        let found = mse(&values, width);
        let again = refine(found, &values, bits(width)).unwrap();
        let (first, second) = (squared_error(&values, found, bits(width)), squared_error(&values, again, bits(width)));
        assert!(second <= first);
        let followed = squared_error(&moved, refine(found, &moved, bits(width)).unwrap(), bits(width));
        let searched = squared_error(&moved, mse(&moved, width), bits(width));
        assert!(followed <= searched * 1.02, "{width} bits: {followed} against {searched}");
    }
}

/// The least error of splitting sorted values in two, each part at its mean.
fn two_means_error(values: &[f32]) -> f64 {
    let mut sorted: Vec<f64> = values.iter().copied().map(f64::from).collect();
    sorted.sort_by(f64::total_cmp);
    let spread = |part: &[f64]| {
        let mean = part.iter().sum::<f64>() / part.len() as f64;
        part.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>()
    };
    let splits = 1..sorted.len();
    splits.map(|at| spread(&sorted[..at]) + spread(&sorted[at..])).fold(f64::INFINITY, f64::min)
}

/// The least error over a square grid of ends.
fn grid_error(values: &[f32], width: u8, side: u16) -> f64 {
    let full = Range::min_max(values).unwrap();
    let end = |step: u16| full.low() + (full.high() - full.low()) * f32::from(step) / f32::from(side);
    let mut least = f64::INFINITY;
    for low in 0..side {
        for high in low + 1..=side {
            let range = Range::new(end(low), end(high).max(end(low))).unwrap();
            least = least.min(squared_error(values, range, bits(width)));
        }
    }
    least
}

fn values(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<f32>> {
    let value = prop_oneof![4 => -1.0_f32..1.0, 1 => -10.0_f32..10.0, 1 => Just(0.5_f32)];
    (prop::collection::vec(value, count), prop_oneof![Just(0.0_f32), -100.0_f32..100.0])
        .prop_map(|(values, offset)| values.into_iter().map(|value| value + offset).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn mse_is_never_worse_than_min_max_and_stays_inside(values in values(1..300), width in 1_u8..=8) {
        let full = Range::min_max(&values).unwrap();
        let found = mse(&values, width);
        prop_assert!(found.low() >= full.low() && found.high() <= full.high());
        let error = squared_error(&values, found, bits(width));
        prop_assert!(error <= squared_error(&values, full, bits(width)));
    }

    #[test]
    fn one_bit_is_exactly_two_means(values in values(2..60)) {
        let error = squared_error(&values, mse(&values, 1), bits(1));
        let exact = two_means_error(&values);
        let largest = f64::from(values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs())));
        let rounding = values.len() as f64 * largest * 1e-6 * (exact.sqrt() + largest * 1e-6);
        prop_assert!(error <= exact + rounding, "{error} > {exact}");
    }

    #[test]
    fn few_values_are_quantized_as_well_as_by_brute_force(values in values(2..12), width in 2_u8..=4) {
        let error = squared_error(&values, mse(&values, width), bits(width));
        let brute = grid_error(&values, width, 64);
        let full = Range::min_max(&values).unwrap();
        let slack = (f64::from(full.high()) - f64::from(full.low())).powi(2) * 1e-6;
        prop_assert!(error <= brute * 1.001 + slack, "{error} > {brute}");
    }

    #[test]
    fn refining_never_makes_a_range_worse(values in values(2..200), width in 1_u8..=8, low in 0.0_f32..0.5, high in 0.5_f32..1.0) {
        let full = Range::min_max(&values).unwrap();
        let end = |part: f32| (full.low() + part * (full.high() - full.low())).clamp(full.low(), full.high());
        let start = Range::new(end(low), end(high).max(end(low))).unwrap();
        prop_assume!(start.low() < start.high());
        let refined = refine(start, &values, bits(width)).unwrap();
        prop_assert!(refined.low() >= full.low() && refined.high() <= full.high());
        prop_assert!(squared_error(&values, refined, bits(width)) <= squared_error(&values, start, bits(width)));
    }
}
