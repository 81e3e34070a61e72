//! `train.jsonl`: one line per step, summed up into a curve that a page can hold.

use serde::Deserialize;

use crate::data::{CurvePoint, EpochMetric};
use crate::error::{Error, Result};

/// A curve has at most this many points; more steps than that are summed up in groups of equal size.
pub const CURVE_POINTS: usize = 400;

/// What a log holds.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TrainingLog {
    /// Steps in the log.
    pub steps: usize,
    /// Steps whose loss was not a number.
    pub lost: usize,
    /// The curve.
    pub curve: Vec<CurvePoint>,
    /// Metrics after epochs, from lines that have a `dev`: `{"epoch":1,"dev":{"metric":"accuracy","value":88.1}}`.
    pub evaluations: Vec<EpochMetric>,
}

#[derive(Deserialize)]
struct Line {
    step: Option<f64>,
    epoch: Option<f64>,
    loss: Option<f64>,
    rate: Option<f64>,
    dev: Option<Dev>,
}

#[derive(Deserialize)]
struct Dev {
    value: Option<f64>,
}

/// Reads the log of a training run. Lines of neither kind are passed over, so that a log may say more than we show.
pub fn training(text: &str, file: &str) -> Result<TrainingLog> {
    let mut log = TrainingLog::default();
    let mut steps: Vec<CurvePoint> = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |source| Error::Line { file: file.to_owned(), line: index + 1, source };
        let line: Line = serde_json::from_str(line).map_err(wrong)?;
        if let (Some(epoch), Some(value)) = (line.epoch, line.dev.and_then(|dev| dev.value)) {
            log.evaluations.push(EpochMetric { epoch, value });
            continue;
        }
        let Some(step) = line.step else { continue };
        log.steps += 1;
        let epoch = line.epoch.unwrap_or(f64::NAN);
        let rate = line.rate.unwrap_or(f64::NAN);
        match line.loss.filter(|loss| loss.is_finite()) {
            Some(loss) => steps.push(CurvePoint { step, epoch, loss, low: loss, high: loss, rate }),
            None => log.lost += 1,
        }
    }
    let group = steps.len().div_ceil(CURVE_POINTS).max(1);
    log.curve = steps.chunks(group).filter_map(sum_up).collect();
    Ok(log)
}

fn sum_up(steps: &[CurvePoint]) -> Option<CurvePoint> {
    let (first, last) = (steps.first()?, steps.last()?);
    let count = steps.len() as f64;
    Some(CurvePoint {
        step: (first.step + last.step) / 2.0,
        epoch: last.epoch,
        loss: steps.iter().map(|point| point.loss).sum::<f64>() / count,
        low: steps.iter().map(|point| point.low).fold(f64::INFINITY, f64::min),
        high: steps.iter().map(|point| point.high).fold(f64::NEG_INFINITY, f64::max),
        rate: steps.iter().map(|point| point.rate).sum::<f64>() / count,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(steps: usize) -> String {
        (1..=steps)
            .map(|i| format!("{{\"step\":{i},\"epoch\":{},\"loss\":{i},\"rate\":0.5}}\n", i as f64 / 10.0))
            .collect()
    }

    #[test]
    fn short_logs_are_kept_and_long_ones_summed_up_without_losing_the_extremes() {
        let short = training(&log(5), "t").unwrap();
        assert_eq!((short.steps, short.curve.len()), (5, 5));
        assert_eq!(short.curve[2].loss.to_bits(), 3.0f64.to_bits());
        let long = training(&log(6315), "t").unwrap();
        assert_eq!(long.steps, 6315);
        assert!(long.curve.len() <= CURVE_POINTS && long.curve.len() > CURVE_POINTS / 2, "{}", long.curve.len());
        assert!((long.curve[0].low - 1.0).abs() < 1e-12);
        assert!((long.curve.last().unwrap().high - 6315.0).abs() < 1e-12);
        assert!(long.curve.windows(2).all(|pair| pair[0].step < pair[1].step));
    }

    #[test]
    fn lost_steps_and_evaluations_are_counted_apart() {
        let text = "{\"step\":1,\"epoch\":0.5,\"loss\":null,\"rate\":0.1}\n\n\
                    {\"step\":2,\"epoch\":1.0,\"loss\":0.5,\"rate\":0.1}\n\
                    {\"epoch\":1,\"dev\":{\"metric\":\"accuracy\",\"value\":88.5}}\n{\"other\":true}\n";
        let log = training(text, "t").unwrap();
        assert_eq!((log.steps, log.lost, log.curve.len()), (2, 1, 1));
        assert_eq!(log.evaluations, [EpochMetric { epoch: 1.0, value: 88.5 }]);
    }

    #[test]
    fn a_broken_line_is_named() {
        let error = training("{\"step\":1}\n{\"step\":2,", "run/train.jsonl").unwrap_err();
        assert!(error.to_string().starts_with("run/train.jsonl:2: "), "{error}");
        assert!(error.hint().unwrap().contains("resume the run"));
    }
}
