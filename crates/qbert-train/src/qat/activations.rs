//! Ranges of activations: learned from batches by moving averages, then frozen and stored (paper, Tab. 1: 8 bits).
//!
//! A static range costs nothing at inference: no tensor has to be scanned before it is quantized. It is the moving average
//! of the batches' own ranges, corrected for its start like Adam's moments, so that one batch is enough to begin with. While
//! ranges are learned, every batch is quantized with the average that already includes it.
//!
//! Not for weights, whose ranges follow from the weights themselves.

use qbert_kernels::{Compute, MatRef, ROW_CHUNK};
use qbert_quant::{ActivationParams, BitWidth, Range, RangeMethod, Scratch};
use qbert_tasks::batch::PartOf;
use serde::{Deserialize, Serialize};

use super::map;
use crate::bert::{ActivationQuantizer, ActivationTensor};
use crate::error::{Error, Result};
use crate::optimizer::power;
use crate::team::Team;

type QuantResult<T> = std::result::Result<T, qbert_quant::Error>;

const TENSORS: usize = ActivationTensor::ALL.len();

/// The share of an average that remains from one batch to the next: a time constant of twenty batches.
const DECAY: f64 = 0.95;

/// The most values that the sorting methods use, in whole rows spread evenly over the batch.
const MOST_SORTED: usize = 1 << 16;

/// How every activation tensor of a model is quantized.
#[derive(Debug, Clone, PartialEq)]
pub struct ActivationRanges {
    layers: Vec<[ActivationParams; TENSORS]>,
}

impl ActivationRanges {
    /// Ranges of a model of this many layers. Until they are set, everything but probabilities is quantized to zero.
    pub fn new(layers: usize) -> Self {
        let mut own = [ActivationParams::ZERO; TENSORS];
        own[ActivationTensor::Probabilities as usize] = ActivationParams::PROBABILITIES;
        Self { layers: vec![own; layers] }
    }

    /// The number of layers.
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// How one tensor is quantized.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn get(&self, layer: usize, tensor: ActivationTensor) -> ActivationParams {
        self.layers[layer][tensor as usize]
    }

    /// Sets how one tensor is quantized; probabilities keep what they have.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn set(&mut self, layer: usize, tensor: ActivationTensor, params: ActivationParams) {
        if tensor.is_learned() {
            self.layers[layer][tensor as usize] = params;
        }
    }

    /// Every tensor under its name in files, `layer.0.input` first.
    pub fn iter(&self) -> impl Iterator<Item = (String, ActivationParams)> {
        let name = |layer: usize, tensor: ActivationTensor| format!("layer.{layer}.{}", tensor.name());
        let layers = self.layers.iter().enumerate();
        layers.flat_map(move |(layer, own)| ActivationTensor::ALL.map(|t| (name(layer, t), own[t as usize])))
    }
}

/// Frozen ranges do not depend on the tensor's values.
impl ActivationQuantizer for &ActivationRanges {
    fn params(&mut self, _: &Compute, layer: usize, tensor: ActivationTensor, _: MatRef<'_>) -> ActivationParams {
        self.get(layer, tensor)
    }
}

/// A moving average of ranges, not yet corrected for its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct Average {
    low: f64,
    high: f64,
    batches: u32,
}

impl Average {
    fn add(&mut self, range: Range) {
        let average = |old: f64, new: f64| DECAY * old + (1.0 - DECAY) * new;
        // A range of an activation always holds 0.
        self.low = average(self.low, f64::from(range.low().min(0.0)));
        self.high = average(self.high, f64::from(range.high().max(0.0)));
        self.batches = self.batches.saturating_add(1);
    }

    fn params(&self) -> ActivationParams {
        let weight = 1.0 - power(DECAY, self.batches as usize);
        // An average of legal ranges is one; rounding can only bring it nearer to zero than a range's limit.
        let limited = |end: f64| ((end / weight) as f32).clamp(-Range::LIMIT, Range::LIMIT);
        Range::new(limited(self.low), limited(self.high)).map_or(ActivationParams::ZERO, ActivationParams::from_range)
    }
}

/// Learns ranges from the batches that go through the model.
#[derive(Debug)]
pub struct RangeLearner {
    method: RangeMethod,
    averages: Vec<[Average; TENSORS]>,
    ranges: ActivationRanges,
    frozen: bool,
    problem: Option<Error>,
    /// What the batch is a part of whose activations are seen next.
    part: Option<PartOf>,
}

/// What was learned, to store it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Learned {
    averages: Vec<[Average; TENSORS]>,
}

impl RangeLearner {
    /// A learner without any batches yet, which finds the range of a batch by `method`.
    pub fn new(layers: usize, method: RangeMethod) -> Self {
        let averages = vec![[Average::default(); TENSORS]; layers];
        Self { method, averages, ranges: ActivationRanges::new(layers), frozen: false, problem: None, part: None }
    }

    /// The present ranges.
    pub fn ranges(&self) -> &ActivationRanges {
        &self.ranges
    }

    /// Tells what the next batch is a part of: its range is that of the whole batch.
    pub(crate) fn set_part(&mut self, part: Option<PartOf>) {
        self.part = part;
    }

    /// Sets whether further batches leave the ranges alone.
    pub fn set_frozen(&mut self, frozen: bool) {
        self.frozen = frozen;
    }

    /// What was learned, to store it.
    pub fn learned(&self) -> Learned {
        Learned { averages: self.averages.clone() }
    }

    /// Continues from stored ranges.
    ///
    /// # Errors
    /// Ranges of a model with another number of layers.
    pub fn restore(&mut self, learned: Learned) -> Result<()> {
        if learned.averages.len() != self.averages.len() {
            let (found, expected) = (learned.averages.len(), self.averages.len());
            let problem = format!("activation ranges of {found} layers for a model of {expected}");
            return Err(Error::Batch { problem });
        }
        for (layer, averages) in learned.averages.iter().enumerate() {
            for tensor in ActivationTensor::ALL {
                let average = averages[tensor as usize];
                let params = if average.batches == 0 { ActivationParams::ZERO } else { average.params() };
                self.ranges.set(layer, tensor, params);
            }
        }
        self.averages = learned.averages;
        Ok(())
    }

    /// Takes ranges that were learned elsewhere, and freezes them.
    pub fn freeze_at(&mut self, ranges: ActivationRanges) {
        self.ranges = ranges;
        self.frozen = true;
    }

    /// Reports the first tensor since the last call whose values no range can hold.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.problem.take().map_or(Ok(()), Err)
    }
}

impl ActivationQuantizer for RangeLearner {
    fn params(
        &mut self,
        compute: &Compute,
        layer: usize,
        tensor: ActivationTensor,
        values: MatRef<'_>,
    ) -> ActivationParams {
        if !self.frozen {
            match observe(compute, Team::of_part(compute, self.part.as_ref()), self.method, values) {
                Ok(range) => {
                    let average = &mut self.averages[layer][tensor as usize];
                    average.add(range);
                    self.ranges.set(layer, tensor, average.params());
                }
                Err(source) => {
                    let name = format!("layer.{layer}.{}", tensor.name());
                    self.problem.get_or_insert(Error::Activation { name, source: Box::new(source) });
                }
            }
        }
        self.ranges.get(layer, tensor)
    }
}

/// The range of one batch, of which a team's ranks have the parts.
fn observe(compute: &Compute, team: Option<Team<'_>>, method: RangeMethod, values: MatRef<'_>) -> QuantResult<Range> {
    if method == RangeMethod::MinMax {
        let own = min_max(compute, values);
        let Some(team) = team else { return own };
        let ends = own.as_ref().map_or(Vec::new(), |own| vec![f64::from(own.low()), f64::from(own.high())]);
        // Who has found what is no number reports it and ends the job.
        let all = team.numbers(&ends).into_iter().filter_map(|ends| <[f64; 2]>::try_from(ends).ok());
        return all.fold(own, |range, [low, high]| union(range?, Range::new(low as f32, high as f32)?));
    }
    let whole = team.map_or(values.rows(), |team| team.tokens());
    let rows = (MOST_SORTED / values.cols().max(1)).clamp(1, whole.max(1));
    let stride = whole.div_ceil(rows).max(1);
    let sample: Vec<f32> = match team {
        None => (0..values.rows()).step_by(stride).flat_map(|row| values.row(row)).copied().collect(),
        Some(team) => team.taken_rows(|row| values.row(row), values.cols(), |index| index.is_multiple_of(stride)),
    };
    method.fit(&sample, BitWidth::EIGHT, &mut Scratch::default())
}

fn min_max(compute: &Compute, values: MatRef<'_>) -> QuantResult<Range> {
    let tasks = values.rows().div_ceil(ROW_CHUNK);
    let parts = map(compute, tasks, |task| {
        let rows = task * ROW_CHUNK..((task + 1) * ROW_CHUNK).min(values.rows());
        rows.map(|row| Range::min_max(values.row(row))).reduce(|a, b| union(a?, b?))
    });
    parts.into_iter().flatten().reduce(|a, b| union(a?, b?)).unwrap_or(Err(qbert_quant::Error::NoValues))
}

fn union(a: Range, b: Range) -> QuantResult<Range> {
    Range::new(a.low().min(b.low()), a.high().max(b.high()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learner(method: RangeMethod) -> RangeLearner {
        RangeLearner::new(2, method)
    }

    fn see(learner: &mut RangeLearner, values: &[f32]) -> ActivationParams {
        let compute = Compute::detect(1).unwrap();
        learner.params(&compute, 1, ActivationTensor::Inner, MatRef::new(values, values.len() / 2, 2))
    }

    #[test]
    fn the_first_batch_is_its_own_average_and_later_ones_move_it() {
        let mut learner = learner(RangeMethod::MinMax);
        let first = see(&mut learner, &[-1.0, 0.5, 3.0, 0.0]);
        assert_eq!(first, ActivationParams::from_range(Range::new(-1.0, 3.0).unwrap()));
        let second = see(&mut learner, &[-2.0, 0.0]);
        // Weights 0.95·0.05 and 0.05 of 0.0975, zero is always part of a range.
        let expected = -(0.95 + 2.0) / 1.95;
        assert!((f64::from(second.extent().0) - expected).abs() < 0.02, "{second:?}");
        assert!((f64::from(second.extent().1) - 0.95 * 3.0 / 1.95).abs() < 0.02, "{second:?}");
        learner.set_frozen(true);
        assert_eq!(see(&mut learner, &[-50.0, 50.0]), second);
        let mut other = RangeLearner::new(2, RangeMethod::MinMax);
        other.restore(learner.learned()).unwrap();
        assert_eq!(other.ranges(), learner.ranges());
        let text = serde_json::to_string(&learner.learned()).unwrap();
        assert_eq!(serde_json::from_str::<Learned>(&text).unwrap(), learner.learned());
    }

    #[test]
    fn nothing_is_learned_from_what_is_no_number_and_it_is_said() {
        let mut learner = learner(RangeMethod::MinMax);
        let before = see(&mut learner, &[1.0, 2.0]);
        assert_eq!(see(&mut learner, &[1.0, f32::NAN]), before);
        let error = learner.check().unwrap_err().to_string();
        assert!(error.starts_with("activation layer.1.inner: value NaN"), "{error}");
        learner.check().unwrap();
    }

    #[test]
    fn an_activation_that_is_always_zero_is_quantized_to_zero() {
        let mut learner = learner(RangeMethod::Mse);
        let params = see(&mut learner, &[0.0; 8]);
        assert_eq!(params, ActivationParams::ZERO);
        assert_eq!(params.round_trip(0.3), 0.0);
    }

    #[test]
    fn ranges_of_large_tensors_do_not_depend_on_threads() {
        let mut values = vec![0.0; 3 * 64 * 70];
        crate::random::Stream::new(1, "test", 0).fill_normal(&mut values, 1.0);
        let matrix = MatRef::new(&values, 3 * 70, 64);
        for method in ["min-max", "percentile:99.9", "mse"].map(|name| name.parse().unwrap()) {
            let ranges =
                [1, 2, 3].map(|threads| observe(&Compute::detect(threads).unwrap(), None, method, matrix).unwrap());
            assert!(ranges.iter().all(|range| *range == ranges[0]), "{method}");
        }
        assert_eq!(min_max(&Compute::detect(2).unwrap(), matrix).unwrap(), Range::min_max(&values).unwrap());
    }
}
