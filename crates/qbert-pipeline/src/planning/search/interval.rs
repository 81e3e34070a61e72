//! How far a measured drop can be trusted: its interval, from the examples on which both models differ.

use qbert_documents::MeasuredDrop;
use qbert_tasks::Evaluation;

use crate::comparison::metric_change;

/// How sure an interval's end is if no confidence is asked for: both ends together miss one case in twenty.
pub(crate) const USUAL_END: f64 = 0.975;

/// The drop of a model's metric from that in full precision, with an interval whose ends are each this sure.
///
/// The error is that of the paired difference. To its variance comes that of one example more that changes: where the
/// models answer everything alike, the examples do not tell how rarely they would differ, and a small set must not look
/// certain. (Agresti and Min's interval for matched pairs adds as much.)
pub(crate) fn measured_drop(full: &Evaluation, own: &Evaluation, sure: f64) -> MeasuredDrop {
    let change = metric_change(full, own);
    let one_more = 100.0 / full.outcomes.len().max(1) as f64;
    let standard_error = change.standard_error.map_or(100.0, |error| (error * error + one_more * one_more).sqrt());
    let drop = -change.change;
    with_ends(MeasuredDrop { value: own.value, drop, standard_error, low: drop, high: drop }, sure)
}

/// The same measurement with an interval whose ends are each this sure.
pub(crate) fn with_ends(measured: MeasuredDrop, sure: f64) -> MeasuredDrop {
    let away = normal_quantile(sure) * measured.standard_error;
    MeasuredDrop { low: measured.drop - away, high: measured.drop + away, ..measured }
}

/// The point that a standard normal number stays below with this probability, by halving.
fn normal_quantile(probability: f64) -> f64 {
    let (mut low, mut high) = (-10.0, 10.0);
    for _ in 0..80 {
        let middle = f64::midpoint(low, high);
        let below = 0.5 * libm::erfc(-middle / std::f64::consts::SQRT_2);
        if below < probability {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_tables() {
        for (probability, expected) in [(0.5, 0.0), (0.9, 1.281_551_6), (0.95, 1.644_853_6), (0.975, 1.959_964)] {
            assert!((normal_quantile(probability) - expected).abs() < 1e-6, "{probability}");
        }
    }

    #[test]
    fn surer_ends_are_further_away() {
        let measured = MeasuredDrop { value: 90.0, drop: 0.5, standard_error: 0.2, low: 0.0, high: 0.0 };
        let (usual, sure) = (with_ends(measured, USUAL_END), with_ends(measured, 0.999));
        assert!((usual.high - 0.892).abs() < 1e-3 && (usual.low - 0.108).abs() < 1e-3, "{usual:?}");
        assert!(sure.high > usual.high && sure.low < usual.low && sure.drop == 0.5);
    }
}
