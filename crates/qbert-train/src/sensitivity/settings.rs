//! The settings of an analysis, and the part of the work that a process does.

use qbert_hessian::Stop;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The method that finds the largest eigenvalue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// Multiply and normalize, as the paper's Alg. 1: one vector of memory per layer.
    Power,
    /// The same answer in fewer products, with both ends of the spectrum: two vectors of memory per layer.
    Lanczos,
}

/// Everything that decides the results, apart from model and data.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Independent samples of the data, each with its own starting vectors.
    pub runs: usize,
    /// Share of the data in the sample of a run.
    pub fraction: f64,
    /// Most sequences in the sample of a run; `None` for no limit, as in the paper.
    pub max_examples: Option<usize>,
    /// How eigenvalues are found.
    pub method: Method,
    /// When an iteration stops.
    pub stop: Stop,
    /// Random vectors for the trace of every run and layer; 0 for no trace.
    pub trace: usize,
    /// Seed of samples and starting vectors.
    pub seed: u64,
}

impl Default for Settings {
    /// Ten runs as in the paper, but on at most 256 sequences each: its tenth of the data takes many hours on a CPU.
    fn default() -> Self {
        Self {
            runs: 10,
            fraction: 0.1,
            max_examples: Some(256),
            method: Method::Lanczos,
            stop: Stop { iterations: 50, tolerance: 1e-2 },
            trace: 0,
            seed: 1,
        }
    }
}

impl Settings {
    /// Refuses settings that make no sense; errors call them `analysis.runs` and so on.
    pub fn check(&self) -> Result<()> {
        let refuse = |name, value: String, rule| Err(Error::Setting { name, value, rule });
        if self.runs == 0 {
            return refuse("`analysis.runs`", self.runs.to_string(), "it must be at least 1");
        }
        if !(self.fraction > 0.0 && self.fraction <= 1.0) {
            return refuse("`analysis.fraction`", self.fraction.to_string(), "it must be above 0 and at most 1");
        }
        if self.max_examples == Some(0) {
            return refuse("`analysis.max_examples`", "0".to_owned(), "it must be at least 1");
        }
        if self.stop.iterations == 0 {
            return refuse("`analysis.stop.iterations`", "0".to_owned(), "it must be at least 1");
        }
        if !(self.stop.tolerance > 0.0 && self.stop.tolerance < 1.0) {
            return refuse("`analysis.stop.tolerance`", self.stop.tolerance.to_string(), "it must be between 0 and 1");
        }
        Ok(())
    }

    /// The sequences in the sample of a run, and how many `fraction` alone would give.
    pub fn examples(&self, sequences: usize) -> (usize, usize) {
        sample_size(self.fraction, self.max_examples, sequences)
    }
}

/// The sequences in a sample of a data set, and how many the fraction alone would give.
pub(crate) fn sample_size(fraction: f64, most: Option<usize>, sequences: usize) -> (usize, usize) {
    let asked = ((sequences as f64 * fraction).round() as usize).clamp(1, sequences.max(1));
    (most.map_or(asked, |most| most.min(asked)), asked)
}

/// One of several processes that share an analysis; parts are counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// Which part.
    pub part: usize,
    /// Of how many.
    pub of: usize,
}

impl Shard {
    /// The whole work.
    pub const WHOLE: Self = Self { part: 1, of: 1 };

    /// This part of `units` units: neighbours, because layers of one run share their passes over the data.
    pub fn share(self, units: usize) -> std::ops::Range<usize> {
        units * (self.part - 1) / self.of..units * self.part / self.of
    }
}

impl std::str::FromStr for Shard {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parsed = text.split_once('/').and_then(|(part, of)| Some((part.parse().ok()?, of.parse().ok()?)));
        match parsed {
            Some((part, of)) if (1..=of).contains(&part) => Ok(Self { part, of }),
            _ => Err(Error::Setting {
                name: "`analysis.shard`",
                value: text.to_owned(),
                rule: "write part/parts, counted from 1: 1/4 to 4/4",
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_disjoint_and_complete() {
        for units in [0, 1, 5, 60, 61] {
            for of in [1, 2, 3, 7, 80] {
                let all: Vec<usize> = (1..=of).flat_map(|part| Shard { part, of }.share(units)).collect();
                assert_eq!(all, (0..units).collect::<Vec<_>>(), "{units} units over {of}");
            }
        }
    }

    #[test]
    fn shards_are_read_or_refused() {
        assert_eq!("2/3".parse::<Shard>().ok(), Some(Shard { part: 2, of: 3 }));
        for wrong in ["0/3", "4/3", "1", "a/b", "1/0", "-1/2", ""] {
            let error = wrong.parse::<Shard>().unwrap_err();
            assert!(error.to_string().contains("`analysis.shard`"), "{error}");
        }
    }

    #[test]
    fn a_run_takes_its_share_and_no_more_than_its_limit() {
        let settings = |fraction, max_examples| Settings { fraction, max_examples, ..Settings::default() };
        assert_eq!(settings(0.1, None).examples(67_349), (6_735, 6_735));
        assert_eq!(settings(0.1, Some(256)).examples(67_349), (256, 6_735));
        assert_eq!(settings(0.1, Some(256)).examples(3), (1, 1));
        assert_eq!(settings(1.0, None).examples(3), (3, 3));
    }
}
