//! The outcome of every example, so that two models can be compared on the same examples.
//!
//! The error of a difference between two figures is much smaller than their own errors suggest, since both models find
//! the same examples hard. It follows from how much each example contributes to a figure: [`Outcomes::influences`]. In
//! files, outcomes are readable text, a few characters per example.

use std::fmt::{self, Write as _};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The outcome of every example, in the order of the data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcomes {
    /// Whether the label was right: `1101`.
    Right(List<Right>),
    /// The entities: `2` if both of two entities were found and nothing else, `1/3/2` if one of three found was right
    /// and there are two.
    Entities(List<EntityCounts>),
    /// The true value and the predicted one: `2.5:2.31`.
    Values(List<ValuePair>),
    /// The overlap of the answer with the best gold answer, from 0 to 1: `1 0.6667 0`.
    Overlap(List<Overlap>),
}

impl Outcomes {
    /// How many examples there are.
    pub fn len(&self) -> usize {
        match self {
            Self::Right(all) => all.0.len(),
            Self::Entities(all) => all.0.len(),
            Self::Values(all) => all.0.len(),
            Self::Overlap(all) => all.0.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The resulting figure in percent: accuracy, F1 of entities or labels, the correlation of values, or the F1 of answers.
    pub fn value(&self) -> f64 {
        match self {
            Self::Right(all) => 100.0 * mean(&all.numbers()),
            Self::Entities(all) => 100.0 * entity_f1(&all.0),
            Self::Values(all) => 100.0 * pearson(&all.0),
            Self::Overlap(all) => 100.0 * mean(&all.numbers()),
        }
    }

    /// How much each example moves the figure, in points times the number of examples; the sum is 0.
    ///
    /// For a mean this is the example's value minus the mean. Entity F1 is a ratio of sums, which is linearized. The
    /// sampling variance of the figure is the variance of these numbers divided by their count; that of a difference of
    /// figures is the same of the differences of these numbers.
    pub fn influences(&self) -> Vec<f64> {
        let of_mean = |values: Vec<f64>| {
            let mean = mean(&values);
            values.into_iter().map(|value| 100.0 * (value - mean)).collect()
        };
        match self {
            Self::Right(all) => of_mean(all.numbers()),
            Self::Overlap(all) => of_mean(all.numbers()),
            Self::Values(all) => {
                // A correlation is the mean of products of standardized values, linearized.
                let r = pearson(&all.0);
                let influence = |(x, y): (f64, f64)| 100.0 * (x * y - r * (x * x + y * y) / 2.0);
                standardized(&all.0).into_iter().map(influence).collect()
            }
            Self::Entities(all) => {
                let (f1, whole) = (entity_f1(&all.0), all.0.iter().map(EntityCounts::both).sum::<f64>());
                let scale = if whole == 0.0 { 0.0 } else { 100.0 * all.0.len() as f64 / whole };
                let influence = |own: &EntityCounts| scale * (2.0 * own.correct as f64 - f1 * own.both());
                all.0.iter().map(influence).collect()
            }
        }
    }
}

/// Both values of every pair in standard deviations from their mean; 0 where all are equal.
fn standardized(pairs: &[ValuePair]) -> Vec<(f64, f64)> {
    let side = |of: fn(&ValuePair) -> f64| {
        let values: Vec<f64> = pairs.iter().map(of).collect();
        let center = mean(&values);
        let deviation = mean(&values.iter().map(|value| (value - center).powi(2)).collect::<Vec<_>>()).sqrt();
        let scale = if deviation > 0.0 { 1.0 / deviation } else { 0.0 };
        values.into_iter().map(move |value| (value - center) * scale).collect::<Vec<f64>>()
    };
    side(|pair| pair.gold).into_iter().zip(side(|pair| pair.found)).collect()
}

/// Pearson's correlation; 0 where one side is constant.
pub(crate) fn pearson(pairs: &[ValuePair]) -> f64 {
    mean(&standardized(pairs).into_iter().map(|(x, y)| x * y).collect::<Vec<_>>())
}

/// A true value and the predicted one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ValuePair {
    /// The true value.
    pub gold: f64,
    /// The predicted one.
    pub found: f64,
}

impl fmt::Display for ValuePair {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.gold, self.found)
    }
}

impl FromStr for ValuePair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse::<f64>().ok().filter(|value| value.is_finite());
        let pair = text.split_once(':').and_then(|(gold, found)| number(gold).zip(number(found)));
        pair.map(|(gold, found)| Self { gold, found }).ok_or_else(|| format!("{text:?} is no pair of values"))
    }
}

impl Outcome for ValuePair {
    const BETWEEN: &'static str = " ";
}

/// The squared standard error of a sum of figures, from the sum of their influences.
pub fn squared_error(influences: &[f64]) -> f64 {
    let count = influences.len() as f64;
    let mean = mean(influences);
    let squares: f64 = influences.iter().map(|value| (value - mean).powi(2)).sum();
    // A single example says nothing about the variance.
    if influences.len() < 2 { f64::INFINITY } else { squares / (count - 1.0) / count }
}

fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

fn entity_f1(counts: &[EntityCounts]) -> f64 {
    let whole: f64 = counts.iter().map(EntityCounts::both).sum();
    let correct: f64 = counts.iter().map(|own| own.correct as f64).sum();
    if whole == 0.0 { 0.0 } else { 2.0 * correct / whole }
}

/// Outcomes of one kind; text in files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String", bound = "T: Outcome")]
pub struct List<T>(pub Vec<T>);

/// One example's outcome as text.
pub trait Outcome: Copy + fmt::Display + FromStr<Err = String> {
    /// The separator.
    const BETWEEN: &'static str;
}

impl<T: Outcome> From<List<T>> for String {
    fn from(list: List<T>) -> Self {
        let mut text = String::new();
        for (index, outcome) in list.0.into_iter().enumerate() {
            let between = if index == 0 { "" } else { T::BETWEEN };
            let _ = write!(text, "{between}{outcome}");
        }
        text
    }
}

impl<T: Outcome> TryFrom<String> for List<T> {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let read = |(index, own): (usize, &str)| own.parse().map_err(|error| format!("outcome {index}: {error}"));
        let parts: Vec<&str> = match T::BETWEEN {
            "" => text.split_inclusive(|_: char| true).collect(),
            _ if text.is_empty() => Vec::new(),
            between => text.split(between).collect(),
        };
        Ok(Self(parts.into_iter().enumerate().map(read).collect::<Result<Vec<T>, String>>()?))
    }
}

impl<T: Copy + Into<f64>> List<T> {
    fn numbers(&self) -> Vec<f64> {
        self.0.iter().map(|&outcome| outcome.into()).collect()
    }
}

/// Whether a label was right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Right(pub bool);

impl Outcome for Right {
    const BETWEEN: &'static str = "";
}

impl fmt::Display for Right {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.0 { "1" } else { "0" })
    }
}

impl FromStr for Right {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "1" => Ok(Self(true)),
            "0" => Ok(Self(false)),
            other => Err(format!("{other:?} is neither 0 nor 1")),
        }
    }
}

impl From<Right> for f64 {
    fn from(right: Right) -> Self {
        Self::from(u8::from(right.0))
    }
}

/// The entities of a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntityCounts {
    /// Found and right.
    pub correct: usize,
    /// Found.
    pub predicted: usize,
    /// There to be found.
    pub gold: usize,
}

impl EntityCounts {
    fn both(&self) -> f64 {
        (self.predicted + self.gold) as f64
    }
}

impl Outcome for EntityCounts {
    const BETWEEN: &'static str = " ";
}

impl fmt::Display for EntityCounts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { correct, predicted, gold } = self;
        if correct == predicted && predicted == gold {
            write!(formatter, "{gold}")
        } else {
            write!(formatter, "{correct}/{predicted}/{gold}")
        }
    }
}

impl FromStr for EntityCounts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is neither a count nor correct/predicted/gold");
        let counts = text.split('/').map(str::parse).collect::<Result<Vec<usize>, _>>().map_err(|_| bad())?;
        let (correct, predicted, gold) = match counts[..] {
            [all] => (all, all, all),
            [correct, predicted, gold] if correct <= predicted.min(gold) => (correct, predicted, gold),
            _ => return Err(bad()),
        };
        Ok(Self { correct, predicted, gold })
    }
}

/// The overlap of two answers, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Overlap(pub f64);

impl Outcome for Overlap {
    const BETWEEN: &'static str = " ";
}

impl fmt::Display for Overlap {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Four digits are more than any comparison needs; the exact figure is kept elsewhere.
        write!(formatter, "{}", (self.0 * 1e4).round() / 1e4)
    }
}

impl FromStr for Overlap {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let value = text.parse::<f64>().ok().filter(|value| (0.0..=1.0).contains(value));
        value.map(Self).ok_or_else(|| format!("{text:?} is no number from 0 to 1"))
    }
}

impl From<Overlap> for f64 {
    fn from(overlap: Overlap) -> Self {
        overlap.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Outcomes {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn text_comes_back_as_it_was() {
        for text in [
            r#"{"right":"1101"}"#,
            r#"{"entities":"2 0 1/3/2 0/0/1"}"#,
            r#"{"overlap":"1 0.6667 0"}"#,
            r#"{"right":""}"#,
            r#"{"entities":""}"#,
        ] {
            assert_eq!(serde_json::to_string(&read(text)).unwrap(), text);
        }
        assert!(read(r#"{"overlap":""}"#).is_empty());
    }

    #[test]
    fn bad_text_is_refused_with_its_place() {
        for (text, problem) in [
            (r#"{"right":"1x"}"#, "outcome 1: \"x\" is neither 0 nor 1"),
            (r#"{"entities":"2 3/2/2"}"#, "outcome 1: \"3/2/2\" is neither a count nor correct/predicted/gold"),
            (r#"{"entities":"1/2"}"#, "outcome 0: \"1/2\""),
            (r#"{"overlap":"1 2"}"#, "outcome 1: \"2\" is no number from 0 to 1"),
        ] {
            let error = serde_json::from_str::<Outcomes>(text).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }

    /// Of a share, the error is the binomial one, but for the count less one.
    #[test]
    fn the_error_of_a_share_is_the_binomial_one() {
        let outcomes = read(r#"{"right":"1110111011"}"#);
        assert!((outcomes.value() - 80.0).abs() < 1e-9);
        let expected = 1e4 * 0.8 * 0.2 / 9.0;
        assert!((squared_error(&outcomes.influences()) - expected).abs() < 1e-9);
    }

    /// Sentences drawn again and again, with both models' outcomes: the spread of the differences is the error.
    #[test]
    fn paired_errors_are_those_of_sentences_drawn_anew() {
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let mut counts = [Vec::new(), Vec::new()];
        for _ in 0..400 {
            let gold = random(4);
            let hard = random(3) == 0;
            for own in &mut counts {
                let wrong = if hard { random(gold + 1) } else { 0 };
                let extra = usize::from(random(10) == 0);
                own.push(EntityCounts { correct: gold - wrong, predicted: gold - wrong + extra, gold });
            }
        }
        let influences = counts.clone().map(|own| Outcomes::Entities(List(own)).influences());
        let between: Vec<f64> = influences[0].iter().zip(&influences[1]).map(|(a, b)| a - b).collect();
        assert!(between.iter().sum::<f64>().abs() < 1e-6);
        let drawn: Vec<f64> = (0..2000)
            .map(|_| {
                let places: Vec<usize> = (0..400).map(|_| random(400)).collect();
                let f1 = |own: &[EntityCounts]| {
                    entity_f1(&places.iter().map(|&place| own[place]).collect::<Vec<EntityCounts>>())
                };
                100.0 * (f1(&counts[0]) - f1(&counts[1]))
            })
            .collect();
        let spread = squared_error(&drawn) * drawn.len() as f64;
        let ratio = squared_error(&between).sqrt() / spread.sqrt();
        assert!((0.95..1.05).contains(&ratio), "{ratio}");
        let unpaired = squared_error(&influences[0]) + squared_error(&influences[1]);
        assert!(squared_error(&between) < unpaired, "what both find hard does not count twice");
    }
}
