//! Who gets how many bits by rank: the paper's metrics and plans, and sizes as limits.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

use proptest::prelude::*;
use qbert_quant::allocate::{assign, counts_within};
use qbert_quant::{
    Error, GroupSpec, LayerSensitivity, Metric, ModelShape, Plan, Precision, Preset, RangeMethod, Ranking, SizeBudget,
    TransformerDimensions, Widths,
};

fn bits(number: i32) -> Precision {
    Precision::from_number(number).unwrap()
}

fn widths(numbers: &[i32]) -> Widths {
    Widths::new(numbers.iter().map(|&number| bits(number)).collect()).unwrap()
}

fn numbers(assigned: &[Precision]) -> Vec<u8> {
    assigned.iter().map(|width| width.number() as u8).collect()
}

/// Layers with these means and no deviation.
fn ranking(means: &[f64]) -> Ranking {
    let layers: Vec<LayerSensitivity> = means
        .iter()
        .map(|&mean| LayerSensitivity { mean, std: 0.0, trace: None, ..LayerSensitivity::default() })
        .collect();
    Ranking::new(&layers, Metric::Mean).unwrap()
}

#[test]
fn metrics_are_the_papers_hawqs_and_hawq_v2s() {
    let layers = [
        LayerSensitivity { mean: -3.0, std: 0.5, trace: Some(0.25), ..LayerSensitivity::default() },
        LayerSensitivity { mean: 1.0, std: 3.0, trace: Some(-1.0), ..LayerSensitivity::default() },
        LayerSensitivity { mean: 2.0, std: 1.5, trace: Some(0.0), ..LayerSensitivity::default() },
    ];
    assert_eq!(layers.map(|layer| layer.omega()), [3.5, 4.0, 3.5]);
    let order = |metric| Ranking::new(&layers, metric).unwrap().order().to_vec();
    // Layers 0 and 2 are equally sensitive by omega: the earlier one comes first.
    assert_eq!(order(Metric::Omega), [1, 0, 2]);
    assert_eq!(order(Metric::Mean), [0, 2, 1]);
    assert_eq!(order(Metric::Trace), [1, 0, 2]);
    assert_eq!(Ranking::new(&layers, Metric::Trace).unwrap().values(), [0.25, 1.0, 0.0]);
    assert_eq!(Ranking::new(&layers, Metric::Omega).unwrap().reversed().order(), [2, 0, 1]);
    for metric in Metric::ALL {
        assert_eq!(metric.to_string().parse(), Ok(metric));
    }
}

#[test]
fn numbers_that_cannot_be_ranked_are_refused_by_layer() {
    let good = LayerSensitivity { mean: 1.0, std: 0.0, trace: Some(1.0), ..LayerSensitivity::default() };
    let refused = |bad: LayerSensitivity, metric| Ranking::new(&[good, bad], metric).unwrap_err().to_string();
    assert_eq!(refused(LayerSensitivity { mean: f64::NAN, ..good }, Metric::Omega), "layer 1: mean is NaN");
    assert_eq!(refused(LayerSensitivity { std: f64::INFINITY, ..good }, Metric::Omega), "layer 1: std is inf");
    assert_eq!(refused(LayerSensitivity { std: -0.5, ..good }, Metric::Omega), "layer 1: std is -0.5");
    assert_eq!(refused(LayerSensitivity { trace: None, ..good }, Metric::Trace), "layer 1: there is no trace");
    let huge = LayerSensitivity { mean: f64::MAX, std: f64::MAX, trace: None, ..LayerSensitivity::default() };
    assert_eq!(refused(huge, Metric::Omega), "layer 1: omega is inf");
    // What a metric does not use need not be there.
    assert!(Ranking::new(&[LayerSensitivity { std: f64::NAN, trace: None, ..good }], Metric::Mean).is_ok());
}

#[test]
fn the_first_of_the_ranking_get_the_highest_width() {
    let ranking = ranking(&[1.0, 5.0, 3.0, 3.0, 0.0, 4.0]);
    let assigned = |numbers_of: &[i32], higher: &[usize]| {
        assign(&ranking, &widths(numbers_of), higher).map(|assigned| numbers(&assigned))
    };
    assert_eq!(assigned(&[2, 3], &[3]).unwrap(), [2, 3, 3, 2, 2, 3]);
    assert_eq!(assigned(&[2, 3], &[0]).unwrap(), [2; 6]);
    assert_eq!(assigned(&[2, 4], &[6]).unwrap(), [4; 6]);
    assert_eq!(assigned(&[2, 3, 4], &[2, 1]).unwrap(), [2, 4, 3, 2, 2, 3]);
    assert_eq!(assigned(&[2, 3, 32], &[0, 2]).unwrap(), [2, 32, 2, 2, 2, 32]);
    assert_eq!(assigned(&[2, 3], &[7]), Err(Error::TooManyHigh { high: 7, layers: 6 }));
    assert_eq!(assigned(&[2, 3, 4], &[usize::MAX, 2]), Err(Error::TooManyHigh { high: usize::MAX, layers: 6 }));
    assert!(matches!(assigned(&[2, 3, 4], &[2]), Err(Error::HighCounts { given: 1, .. })));
    let reversed = assign(&ranking.clone().reversed(), &widths(&[2, 3]), &[2]).unwrap();
    assert_eq!(numbers(&reversed), [3, 2, 2, 2, 3, 2]);
    for wrong in [&[2][..], &[], &[3, 2], &[2, 2], &[2, 3, 3]] {
        let wrong: Vec<Precision> = wrong.iter().map(|&number| bits(number)).collect();
        assert_eq!(Widths::new(wrong.clone()), Err(Error::Widths { widths: wrong }));
    }
}

fn bert_base() -> ModelShape {
    ModelShape::transformer(&TransformerDimensions {
        vocabulary: 30_522,
        positions: 512,
        types: 2,
        embedding: 768,
        hidden: 768,
        intermediate: 3072,
        layers: 12,
        heads: 12,
        uncounted: 0,
    })
}

#[test]
fn published_plans_follow_from_a_ranking() {
    for preset in Preset::ALL {
        let published = preset.plan(12).unwrap();
        let widths_of: Vec<Precision> = published.layers().iter().map(|layer| layer.query.bits).collect();
        let high = *widths_of.iter().max().unwrap();
        // A ranking that puts the layers of the higher width first, as the paper's must have done.
        let ranking = ranking(&widths_of.iter().map(|&width| width.number()).collect::<Vec<_>>());
        let count = widths_of.iter().filter(|&&width| width == high).count();
        let pair = Widths::new(vec![bits(2), high]).unwrap();
        let build = |ranking: &Ranking| {
            let assigned = assign(ranking, &pair, &[count]).unwrap();
            let plan = Plan::uniform(12, bits(2), GroupSpec::Count(128), RangeMethod::Mse);
            let layers = assigned.iter().enumerate();
            layers.fold(plan, |plan, (layer, &width)| plan.with_layer_bits(layer, width).unwrap())
        };
        assert_eq!(build(&ranking), published, "{preset}");
        // Turned round it has the same size, and where both widths are equally frequent it is the exchange of both.
        let reversed = build(&ranking.reversed());
        let size = |plan: &Plan| bert_base().paper_size(plan).unwrap();
        assert_eq!(size(&reversed), size(&published), "{preset}");
        if count == 6 {
            assert_eq!(reversed, published.reverse(bits(2), high), "{preset}");
        }
    }
}

#[test]
fn as_many_layers_as_fit_are_raised() {
    let ranking = ranking(&[1.0, 5.0, 3.0, 3.0, 0.0, 4.0]);
    let pair = widths(&[2, 3]);
    let within = |limit: u64| counts_within(&ranking, &pair, &[20, 30], SizeBudget { limit, fixed: 7 });
    assert_eq!(within(126), Err(Error::OverBudget { limit: 126, smallest: 127 }));
    assert_eq!(within(127), Ok(vec![0]));
    assert_eq!(within(136), Ok(vec![0]));
    assert_eq!(within(137), Ok(vec![1]));
    assert_eq!(within(186), Ok(vec![5]));
    assert_eq!(within(187), Ok(vec![6]));
    assert_eq!(within(u64::MAX), Ok(vec![6]));
    assert!(matches!(
        counts_within(&ranking, &pair, &[20], SizeBudget { limit: 1, fixed: 0 }),
        Err(Error::Length { .. })
    ));
}

#[test]
fn with_three_widths_four_times_the_sensitivity_is_worth_a_bit() {
    let three = widths(&[2, 3, 4]);
    let within = |means: &[f64], steps: u64| {
        let limit = 20 * means.len() as u64 + 10 * steps;
        let ranking = ranking(means);
        let counts = counts_within(&ranking, &three, &[20, 30, 40], SizeBudget { limit, fixed: 0 }).unwrap();
        numbers(&assign(&ranking, &three, &counts).unwrap())
    };
    // Nearly alike: everybody gets the first raise before anybody the second.
    assert_eq!(within(&[1.0, 2.0, 1.5], 3), [3, 3, 3]);
    assert_eq!(within(&[1.0, 2.0, 1.5], 4), [3, 4, 3]);
    // More than four times as sensitive: the second raise comes first. Exactly four times: it does not.
    assert_eq!(within(&[1.0, 4.1], 2), [2, 4]);
    assert_eq!(within(&[1.0, 4.0], 2), [3, 3]);
    assert_eq!(within(&[0.0, 0.0], 3), [4, 3]);
    // A step that does not fit ends the rise of its layer, and smaller steps of others go on.
    let uneven = widths(&[2, 8, 32]);
    let ranking = ranking(&[1.0, 1e30]);
    let counts = counts_within(&ranking, &uneven, &[20, 80, 320], SizeBudget { limit: 200, fixed: 0 });
    assert_eq!(counts, Ok(vec![2, 0]));
}

proptest! {
    #[test]
    fn raising_by_size_keeps_the_limit_and_the_order(
        means in prop::collection::vec(prop_oneof![0.0..10.0, 0.0..1e6, Just(1.0)], 1..14),
        numbers in prop::sample::subsequence(vec![1_i32, 2, 3, 4, 6, 8, 32], 2..5),
        part in 0.0..1.2,
        per_bit in 1_u64..1000,
    ) {
        let (ranking, offered) = (ranking(&means), widths(&numbers));
        let bytes: Vec<u64> = numbers.iter().map(|&number| per_bit * number as u64).collect();
        let layers = means.len() as u64;
        let limit = layers * bytes[0] + (part * (layers * (bytes[bytes.len() - 1] - bytes[0])) as f64) as u64;
        let counts = counts_within(&ranking, &offered, &bytes, SizeBudget { limit, fixed: 0 }).unwrap();
        let assigned = assign(&ranking, &offered, &counts).unwrap();
        let total: u64 = assigned.iter().map(|width| per_bit * width.number() as u64).sum();
        prop_assert!(total <= limit);
        // The more sensitive, the more bits, and nothing that would still fit is left lying.
        let in_order: Vec<Precision> = ranking.order().iter().map(|&layer| assigned[layer]).collect();
        prop_assert!(in_order.is_sorted_by(|one, other| one >= other));
        for width in assigned {
            let next = numbers.iter().find(|&&number| bits(number) > width);
            if let Some(&next) = next {
                prop_assert!(total + per_bit * (next as u64 - width.number() as u64) > limit);
            }
        }
    }
}
