//! Which interval `[q0, qmax]` a group of values is quantized on (paper, App. A).
//!
//! The paper allows \[min, max\] or a sub-interval "to get rid of outliers" and leaves open which. There are three
//! methods: min/max, which reproduces the paper's tables; a central percentile; and the
//! sub-interval with the least squared error (`mse`, the default elsewhere in the project).
//!
//! All methods look at values only through `&[f32]`; [`crate::groups`] decides which
//! values share a range.

mod mse;

use crate::bits::BitWidth;
use crate::error::Error;
use crate::shorten::shorten;
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

pub use mse::{refine, squared_error};

/// A quantization range: two finite numbers, `low <= high`, neither larger than [`Range::LIMIT`] in size.
///
/// Negative zero is stored as positive zero, so that equal ranges have equal bits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Range {
    low: f32,
    high: f32,
}

impl Range {
    /// The largest size of an end, a quarter of `f32::MAX` (about 8.5e37): below it no difference, step or
    /// value that [`crate::quantizer`] computes can overflow.
    pub const LIMIT: f32 = f32::MAX / 4.0;

    /// Checks the two ends.
    ///
    /// # Errors
    /// [`Error::Range`] when an end is NaN, infinite or larger than [`Range::LIMIT`], or `low > high`.
    pub fn new(low: f32, high: f32) -> Result<Self, Error> {
        if low.abs() <= Self::LIMIT && high.abs() <= Self::LIMIT && low <= high {
            // Adding positive zero turns negative zero into positive zero and changes nothing else.
            Ok(Self { low: low + 0.0, high: high + 0.0 })
        } else {
            Err(Error::Range { low, high })
        }
    }

    /// The smallest and the largest of the values.
    ///
    /// # Errors
    /// [`Error::NoValues`] for an empty slice, [`Error::BadValue`] for a value that is NaN, infinite or
    /// larger than [`Range::LIMIT`].
    pub fn min_max(values: &[f32]) -> Result<Self, Error> {
        if values.is_empty() {
            return Err(Error::NoValues);
        }
        let (mut low, mut high, mut good) = (f32::INFINITY, f32::NEG_INFINITY, true);
        for &value in values {
            low = if value < low { value } else { low };
            high = if value > high { value } else { high };
            good &= value.abs() <= Self::LIMIT;
        }
        if good {
            return Self::new(low, high);
        }
        let holds = |value: &f32| value.abs() <= Self::LIMIT;
        let bad = values.iter().position(|value| !holds(value)).unwrap_or(0);
        Err(Error::BadValue { index: bad, value: values[bad] })
    }

    /// The lower end, `q0`: the value of code 0.
    pub fn low(&self) -> f32 {
        self.low
    }

    /// The upper end, `qmax`: the value of the largest code, up to rounding.
    pub fn high(&self) -> f32 {
        self.high
    }

    /// The range with its ends rounded to the nearest bf16, half to even. Rounding again changes nothing.
    #[must_use]
    pub fn to_bf16(self) -> Self {
        Self { low: nearest_bf16(self.low), high: nearest_bf16(self.high) }
    }

    /// Whether the clamp leaves `value` as it is: `low <= value <= high`. This is the straight-through
    /// mask (§3.1, App. A): the gradient of the quantizer is 1 here and 0 elsewhere.
    ///
    /// It is decided on the range and not on the rounded step, so that both ends pass always, and with
    /// them the smallest and the largest value of a min/max range. NaN does not pass.
    #[inline]
    pub fn contains(&self, value: f32) -> bool {
        self.low <= value && value <= self.high
    }

    /// Sets to zero the gradients of the values that the clamp moved; see [`Range::contains`].
    ///
    /// # Errors
    /// [`Error::Length`] when the two slices differ in length.
    pub fn straight_through(&self, values: &[f32], gradients: &mut [f32]) -> Result<(), Error> {
        check_length("gradients", values.len(), gradients.len())?;
        for (gradient, &value) in gradients.iter_mut().zip(values) {
            *gradient = if self.contains(value) { *gradient } else { 0.0 };
        }
        Ok(())
    }
}

/// The nearest f32 whose lower 16 bits are 0. An end that would leave [`Range::LIMIT`] is cut instead.
fn nearest_bf16(value: f32) -> f32 {
    let bits = value.to_bits();
    let rounded = f32::from_bits(bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000);
    if rounded.abs() <= Range::LIMIT { rounded } else { f32::from_bits(bits & 0xffff_0000) }
}

/// Which weights the gradient of the quantizer reaches. Straight-through estimation takes the rounding as the
/// identity and leaves open how far outside the range that goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mask {
    /// Those within the range ([`Range::contains`]), as the paper has it.
    #[default]
    Clamp,
    /// Those that are no further from the range than rounding could have moved them, half a step.
    HalfStep,
    /// All.
    None,
}

impl Mask {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Clamp, Self::HalfStep, Self::None];

    /// The text form: `clamp`, `half-step`, `none`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Clamp => "clamp",
            Self::HalfStep => "half-step",
            Self::None => "none",
        }
    }

    /// How far beyond the range, in steps, a weight still gets a gradient.
    pub(crate) fn margin(self) -> f32 {
        match self {
            Self::Clamp => 0.0,
            Self::HalfStep => 0.5,
            Self::None => f32::INFINITY,
        }
    }
}

pub(crate) fn check_length(what: &'static str, expected: usize, found: usize) -> Result<(), Error> {
    if expected == found { Ok(()) } else { Err(Error::Length { what, expected, found }) }
}

/// A percentage `p` with `0 < p <= 100`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Percent(f64);

impl Percent {
    /// Checks that `0 < percent <= 100`; `None` otherwise.
    pub fn new(percent: f64) -> Option<Self> {
        (percent > 0.0 && percent <= 100.0).then_some(Self(percent))
    }

    /// The percentage.
    pub fn get(self) -> f64 {
        self.0
    }
}

/// How the range of a group is found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RangeMethod {
    /// The smallest and the largest value. Text form: `min-max`.
    MinMax,
    /// The central `p` percent. Text form: `percentile:99.9`.
    ///
    /// With `t = (1 - p/100) / 2` the ends are the quantiles `t` and `1 - t`. The quantile `t` of `n`
    /// sorted values is found by linear interpolation between order statistics: at position `(n - 1)·t`,
    /// with `i` its whole part and `f` the rest, it is `x[i] + f·(x[i+1] - x[i])`, computed in f64 and
    /// rounded once to f32.
    Percentile(Percent),
    /// The sub-interval of \[min, max\] with the least squared error of the uniform `k`-bit quantizer.
    /// Text form: `mse`.
    Mse,
}

impl RangeMethod {
    /// The range of `values` for codes of width `bits`.
    ///
    /// Every result lies within the smallest and largest value. `mse` never has a larger squared error
    /// than `min-max`, measured with the f32 quantizer itself ([`squared_error`]). For up to 65,536 values
    /// it works on each value; beyond, on runs of sorted values that are narrow against \[min, max\]
    /// and hold few values. At one bit (and up to 65,536 values) it is the exact optimum, the two means
    /// of the best split; at more bits it is the best of many local optima.
    ///
    /// # Errors
    /// As [`Range::min_max`].
    pub fn fit(&self, values: &[f32], bits: BitWidth, scratch: &mut Scratch) -> Result<Range, Error> {
        let full = Range::min_max(values)?;
        match self {
            Self::MinMax => Ok(full),
            Self::Percentile(percent) => percentile(values, *percent, &mut scratch.keys),
            Self::Mse => mse::search(values, full, bits, scratch),
        }
    }
}

impl fmt::Display for RangeMethod {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MinMax => formatter.write_str("min-max"),
            Self::Percentile(percent) => write!(formatter, "percentile:{}", percent.0),
            Self::Mse => formatter.write_str("mse"),
        }
    }
}

impl FromStr for RangeMethod {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let percentile = |text: &str| {
            let percent = text.strip_prefix("percentile:")?.parse().ok()?;
            Percent::new(percent).map(Self::Percentile)
        };
        match text {
            "min-max" => Ok(Self::MinMax),
            "mse" => Ok(Self::Mse),
            other => percentile(other).ok_or_else(|| Error::RangeMethod { text: shorten(text).into_owned() }),
        }
    }
}

impl Serialize for RangeMethod {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Memory that the search for ranges reuses from call to call. One for each thread.
#[derive(Debug, Default)]
pub struct Scratch {
    /// The values as whole numbers of the same order.
    keys: Vec<i32>,
    /// What the least-squares search works on.
    atoms: mse::Atoms,
    /// The values of a group that does not lie together in memory.
    pub(crate) gathered: Vec<f32>,
}

/// Maps a float to a whole number such that order is kept; the same map leads back.
fn key_of_bits(bits: i32) -> i32 {
    bits ^ (((bits >> 31) as u32) >> 1) as i32
}

fn fill_keys(values: &[f32], keys: &mut Vec<i32>) {
    keys.clear();
    keys.extend(values.iter().map(|value| key_of_bits(value.to_bits() as i32)));
}

fn value_of_key(key: i32) -> f32 {
    f32::from_bits(key_of_bits(key) as u32)
}

fn percentile(values: &[f32], percent: Percent, keys: &mut Vec<i32>) -> Result<Range, Error> {
    fill_keys(values, keys);
    let tail = (1.0 - percent.0 / 100.0) / 2.0;
    let low = quantile(keys, tail);
    let high = quantile(keys, 1.0 - tail);
    // Rounding may cross the ends over when p is next to nothing.
    Range::new(low.min(high), high.max(low))
}

fn quantile(keys: &mut [i32], fraction: f64) -> f32 {
    let position = (keys.len() - 1) as f64 * fraction;
    let index = (position as usize).min(keys.len() - 1);
    let (_, &mut key, above) = keys.select_nth_unstable(index);
    let here = f64::from(value_of_key(key));
    let next = above.iter().min().map_or(here, |&key| f64::from(value_of_key(key)));
    (here + (position - index as f64) * (next - here)) as f32
}

#[cfg(test)]
mod tests;
