//! From measured sensitivities to widths: which layer gets how many bits (paper, §3.2, Eq. 2, App. C.1).
//!
//! Three ways, from the paper's to the general one:
//!
//! - [`assign`]: layers in the order of their sensitivity, so many at each higher width. With two widths this is
//!   the paper's mixed precision ("2/3 MP"); along [`Ranking::reversed`] it is its ablation "MP-rev".
//! - [`counts_within`]: the same, with as many layers at higher widths as a size allows.
//! - [`budget::within`]: every matrix (or module, or layer) chooses a width of its own; the sum of sensitivity times
//!   measured squared quantization error is minimal among all choices that fit a size. It needs the weights, the
//!   other two do not.
//!
//! Nothing here reads weights or files: it is arithmetic on measured numbers. Plans that need no
//! sensitivities are made by [`crate::Plan`] and [`crate::preset`].

mod agreement;
pub mod budget;
pub mod knapsack;

use crate::bits::Precision;
use crate::error::Error;
use crate::nearest::nearest;
use serde::{Serialize, Serializer};
use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;

pub use agreement::rank_correlation;

/// What was measured of one encoder layer: top eigenvalues `λ` of its Hessian over several runs (§3.2), perhaps the
/// trace, and perhaps what quantizing its matrices one at a time does. Eigenvalues that are not known are NaN.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LayerSensitivity {
    /// The mean of `λ` over the runs; negative where the model has not converged.
    pub mean: f64,
    /// The standard deviation of `λ` over the runs.
    pub std: f64,
    /// The trace of the layer's Hessian divided by its number of parameters, if it was estimated.
    pub trace: Option<f64>,
    /// The divergence of the answers with one matrix at a time at the lowest width, summed up, if it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub divergence: Option<f64>,
    /// The squared error of the weights at the lowest width, if it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<f64>,
}

impl Default for LayerSensitivity {
    /// Nothing is known.
    fn default() -> Self {
        Self { mean: f64::NAN, std: f64::NAN, trace: None, divergence: None, error: None }
    }
}

impl LayerSensitivity {
    /// `Ω = |mean(λ)| + std(λ)`, Eq. 2.
    pub fn omega(&self) -> f64 {
        self.mean.abs() + self.std
    }

    /// Whether quantizing its matrices one at a time was measured.
    fn is_measured(&self) -> bool {
        self.divergence.is_some()
    }
}

/// Which number stands for the sensitivity of a layer. All of them are sizes: the sign of the curvature is dropped,
/// as Eq. 2 does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Metric {
    /// `Ω = |mean(λ)| + std(λ)`, the paper's (Eq. 2). Text form: `omega`.
    #[default]
    Omega,
    /// `|mean(λ)|`, as HAWQ does; the paper shows why that is not enough. Text form: `mean`.
    Mean,
    /// The size of the average Hessian trace. Text form: `trace`.
    Trace,
    /// The size of the average Hessian trace times the squared error of the weights, as HAWQ-V2 does. Text form:
    /// `trace-error`.
    TraceError,
    /// The measured divergence of the answers. Text form: `kl`.
    Divergence,
}

impl Metric {
    /// All metrics, the default first.
    pub const ALL: [Self; 5] = [Self::Omega, Self::Mean, Self::Trace, Self::TraceError, Self::Divergence];

    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Omega => "omega",
            Self::Mean => "mean",
            Self::Trace => "trace",
            Self::TraceError => "trace-error",
            Self::Divergence => "kl",
        }
    }

    /// The sensitivity of a layer by this metric.
    ///
    /// # Errors
    /// [`Error::Sensitivity`] when a number it needs is absent, not finite, or a negative deviation; `layer` is only
    /// for the message.
    pub fn of(self, sensitivity: &LayerSensitivity, layer: usize) -> Result<f64, Error> {
        let finite = |what: &'static str, value: f64| {
            if value.is_finite() { Ok(value) } else { Err(Error::Sensitivity { layer, what, value: Some(value) }) }
        };
        let deviation = || match finite("std", sensitivity.std)? {
            negative if negative < 0.0 => Err(Error::Sensitivity { layer, what: "std", value: Some(negative) }),
            deviation => Ok(deviation),
        };
        let given = |what: &'static str, value: Option<f64>| {
            finite(what, value.ok_or(Error::Sensitivity { layer, what, value: None })?)
        };
        let mean = || given("mean", Some(sensitivity.mean).filter(|mean| !mean.is_nan() || !sensitivity.is_measured()));
        match self {
            Self::Omega => finite("omega", mean()?.abs() + deviation()?),
            Self::Mean => Ok(mean()?.abs()),
            Self::Trace => Ok(given("trace", sensitivity.trace)?.abs()),
            Self::TraceError => {
                finite("trace", given("trace", sensitivity.trace)?.abs() * given("error", sensitivity.error)?)
            }
            Self::Divergence => Ok(given("divergence", sensitivity.divergence)?.abs()),
        }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Metric {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|metric| metric.name() == text).ok_or_else(|| Error::Word {
            text: text.to_owned(),
            what: "metric",
            known: "omega, mean, trace, trace-error or kl",
            nearest: nearest(text, Self::ALL.map(Self::name)),
        })
    }
}

impl Serialize for Metric {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// Two or more widths to choose from, each higher than the one before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Widths(Vec<Precision>);

impl Widths {
    /// Checks that there are at least two widths and that they rise.
    ///
    /// # Errors
    /// [`Error::Widths`] otherwise.
    pub fn new(widths: Vec<Precision>) -> Result<Self, Error> {
        if widths.len() < 2 || !widths.is_sorted_by(|low, high| low < high) {
            return Err(Error::Widths { widths });
        }
        Ok(Self(widths))
    }

    /// The widths, lowest first.
    pub fn as_slice(&self) -> &[Precision] {
        &self.0
    }

    /// The lowest width.
    pub fn lowest(&self) -> Precision {
        self.0[0]
    }

    /// All widths but the lowest, lowest first.
    pub fn higher(&self) -> &[Precision] {
        &self.0[1..]
    }
}

/// The layers of a model in the order of their sensitivity.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranking {
    /// Most sensitive first.
    order: Vec<usize>,
    /// Sensitivity by layer.
    values: Vec<f64>,
}

impl Ranking {
    /// Sorts the layers by `metric`, the most sensitive first. Of equally sensitive layers the earlier one, nearer
    /// to the embedding, comes first.
    ///
    /// # Errors
    /// As [`Metric::of`].
    pub fn new(layers: &[LayerSensitivity], metric: Metric) -> Result<Self, Error> {
        let values: Result<Vec<f64>, Error> =
            layers.iter().enumerate().map(|(layer, measured)| metric.of(measured, layer)).collect();
        let values = values?;
        let mut order: Vec<usize> = (0..values.len()).collect();
        // All values are finite and not negative, and the sort is stable.
        order.sort_by(|&one, &other| values[other].total_cmp(&values[one]));
        Ok(Self { order, values })
    }

    /// The layers from first to last in the ranking.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// The sensitivity of each layer, by the layer's number.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// The same layers from last to first: what [`assign`] does along it is the paper's MP-rev (App. C.1), with the
    /// lower widths for the sensitive layers and as many layers at each width as before, so that the size stays.
    #[must_use]
    pub fn reversed(mut self) -> Self {
        self.order.reverse();
        self
    }
}

/// The width of each layer when `higher[i]` layers get the `i`-th of the higher widths: the layers ranked first get
/// the highest width, the next ones the width below, and what is left the lowest.
///
/// # Errors
/// [`Error::HighCounts`] when there is not one count for each higher width; [`Error::TooManyHigh`] when the counts
/// add up to more layers than there are.
pub fn assign(ranking: &Ranking, widths: &Widths, higher: &[usize]) -> Result<Vec<Precision>, Error> {
    if higher.len() != widths.higher().len() {
        return Err(Error::HighCounts { given: higher.len(), higher: widths.higher().to_vec() });
    }
    let layers = ranking.order.len();
    let wanted = higher.iter().fold(0_usize, |sum, &count| sum.saturating_add(count));
    if wanted > layers {
        return Err(Error::TooManyHigh { high: wanted, layers });
    }
    let mut assigned = vec![widths.lowest(); layers];
    let from_the_top = widths.higher().iter().zip(higher).rev();
    let ranked = from_the_top.flat_map(|(&width, &count)| std::iter::repeat_n(width, count));
    for (&layer, width) in ranking.order.iter().zip(ranked) {
        assigned[layer] = width;
    }
    Ok(assigned)
}

/// A size limit, and the part of it that is taken whatever widths are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeBudget {
    /// The limit for everything together, in bytes.
    pub limit: u64,
    /// Bytes of everything that has no choice of width.
    pub fixed: u64,
}

impl SizeBudget {
    fn holds(self, bytes: u64) -> bool {
        let all = self.fixed.saturating_add(bytes);
        // The largest number stands for every sum that would overflow.
        all <= self.limit && all < u64::MAX
    }

    /// Checks that the smallest possible choice fits.
    ///
    /// # Errors
    /// [`Error::OverBudget`] with the limit and the smallest size, [`SizeBudget::fixed`] included.
    pub fn check(self, smallest: u64) -> Result<(), Error> {
        if self.holds(smallest) {
            return Ok(());
        }
        Err(Error::OverBudget { limit: self.limit, smallest: self.fixed.saturating_add(smallest) })
    }
}

/// How many layers get each higher width when no more than `budget` may be taken; for [`assign`].
///
/// All layers start at the lowest width and are raised step by step to the next one. The order of the steps is by
/// what they promise: a squared error falls to about a quarter with each bit, so raising a layer of sensitivity `s`
/// from `a` to `b` bits gains `s·(4^-a - 4^-b) / (b - a)` per bit. With two widths this is the ranking itself: as
/// many of the first layers are raised as fit. With more, a layer gets its second raise before another gets its first
/// when it is (for neighbouring widths) more than four times as sensitive. Equal promises go to the lower width
/// first, then by rank. A step that does not fit ends the rise of its layer.
///
/// `layer_bytes` has the bytes of one layer at each width; all layers are alike.
///
/// # Errors
/// [`Error::Length`] when there is not one size for each width; [`Error::OverBudget`] with the smallest possible size.
pub fn counts_within(
    ranking: &Ranking,
    widths: &Widths,
    layer_bytes: &[u64],
    budget: SizeBudget,
) -> Result<Vec<usize>, Error> {
    crate::range::check_length("sizes of a layer", widths.0.len(), layer_bytes.len())?;
    let layers = ranking.values.len();
    let mut taken = layer_bytes[0].saturating_mul(layers as u64);
    budget.check(taken)?;
    let mut level = vec![0_usize; layers];
    for (layer, from) in raises(ranking, widths) {
        if level[layer] != from {
            continue;
        }
        let after = (taken - layer_bytes[from]).saturating_add(layer_bytes[from + 1]);
        if budget.holds(after) {
            (level[layer], taken) = (from + 1, after);
        }
    }
    Ok((1..widths.0.len()).map(|width| level.iter().filter(|&&level| level == width).count()).collect())
}

/// How the squared error of rounding scales with the width: with the square of the step.
fn error_scale(width: Precision) -> f64 {
    let levels = width.width().map_or(f64::from(u32::MAX) + 1.0, |width| f64::from(width.levels()));
    1.0 / (levels * levels)
}

/// Every step of every layer, `(layer, level it starts from)`, the most promising first.
fn raises(ranking: &Ranking, widths: &Widths) -> Vec<(usize, usize)> {
    let gain = |from: usize| {
        let [low, high] = [widths.0[from], widths.0[from + 1]];
        (error_scale(low) - error_scale(high)) / (high.number() - low.number())
    };
    let gains: Vec<f64> = (0..widths.higher().len()).map(gain).collect();
    // By level and then by rank, so that the stable sort settles equal promises.
    let mut steps: Vec<(usize, usize)> =
        (0..gains.len()).flat_map(|from| ranking.order.iter().map(move |&layer| (layer, from))).collect();
    let promise = |&(layer, from): &(usize, usize)| (ranking.values[layer] * gains[from]).to_bits();
    // Numbers that are not negative are ordered as their bits are.
    steps.sort_by_key(|step| Reverse(promise(step)));
    steps
}
