//! The paper's statements compared with what was measured: differences, their standard errors, and a verdict for each.
//!
//! A difference has a standard error from the choice of dev examples and, where a row has several, of seeds. Both models
//! see the same examples, so the error is computed from the difference on each example; if a run did not keep those, the
//! two figures' own errors are combined, which overestimates it. Differences above two standard errors count.

use std::fmt;

use qbert_tasks::Task;
use qbert_train::qat::method::Method;

use super::collect::{Collected, Sample, StandardError, Variant};
use crate::paper::Printed;
use crate::rows::method_name;
use qbert_pipeline::Result;

/// A statement of the paper about a sum of figures that it says is above zero.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    pub(super) text: &'static str,
    pub(super) table: Printed,
    terms: &'static [(f64, &'static str)],
}

/// The statements, in the order of the tables.
pub(super) const CLAIMS: [Claim; 11] = [
    Claim {
        text: "Q-BERT beats DirectQ at 4 bits",
        table: Printed::Main,
        terms: &[(1.0, "q-bert:4"), (-1.0, "directq:4")],
    },
    Claim {
        text: "Q-BERT beats DirectQ at 3 bits",
        table: Printed::Main,
        terms: &[(1.0, "q-bert:3"), (-1.0, "directq:3")],
    },
    Claim {
        text: "Q-BERT beats DirectQ at 2 bits",
        table: Printed::Main,
        terms: &[(1.0, "q-bert:2"), (-1.0, "directq:2")],
    },
    Claim {
        text: "it does so by more at 3 bits than at 4",
        table: Printed::Main,
        terms: &[(1.0, "q-bert:3"), (-1.0, "directq:3"), (-1.0, "q-bert:4"), (1.0, "directq:4")],
    },
    Claim {
        text: "2/3 MP beats 2 bits everywhere",
        table: Printed::Main,
        terms: &[(1.0, "q-bert:2/3"), (-1.0, "q-bert:2")],
    },
    Claim {
        text: "a group per head beats one group, at 4 bits",
        table: Printed::Groups,
        terms: &[(1.0, "q-bert:4,groups=head"), (-1.0, "directq:4")],
    },
    Claim {
        text: "128 groups beat one per head, at 4 bits",
        table: Printed::Groups,
        terms: &[(1.0, "q-bert:4"), (-1.0, "q-bert:4,groups=head")],
    },
    Claim {
        text: "a group per neuron beats 128, at 4 bits",
        table: Printed::Groups,
        terms: &[(1.0, "q-bert:4,groups=neuron"), (-1.0, "q-bert:4")],
    },
    Claim {
        text: "4 bits cost less in the word than in the position embedding",
        table: Printed::EmbeddingWidths,
        terms: &[
            (1.0, "q-bert:8,embedding=4/8,embedding-groups=1"),
            (-1.0, "q-bert:8,embedding=8/4,embedding-groups=1"),
        ],
    },
    Claim {
        text: "a bit less costs less in self-attention than in the feed-forward network",
        table: Printed::ModuleWidths,
        terms: &[(1.0, "q-bert:2/3,attention=1/2"), (-1.0, "q-bert:2/3,feed-forward=1/2")],
    },
    Claim {
        text: "MP beats MP-rev at the same size",
        table: Printed::Reverse,
        terms: &[(1.0, "q-bert:2/3"), (-1.0, "q-bert:2/3-rev")],
    },
];

impl Claim {
    /// The same sum of the paper's figures.
    pub(super) fn printed(&self, task: Task, metric: &str) -> Result<Option<f64>> {
        let rows = self.table.rows()?;
        let mut sum = 0.0;
        for &(sign, name) in self.terms {
            let method: Method = name.parse()?;
            let figure = rows.iter().find(|row| row.method == method).and_then(|row| row.figure(task, metric));
            let Some(figure) = figure else { return Ok(None) };
            sum += sign * figure;
        }
        Ok(Some(sum))
    }

    /// What was measured in a variant.
    pub(super) fn measured(&self, collected: &Collected, variant: Variant) -> Result<Difference> {
        let terms = self.terms.iter().map(|&(sign, name)| Ok((sign, name.parse::<Method>()?)));
        let terms = terms.collect::<Result<Vec<(f64, Method)>>>()?;
        let named: Vec<(f64, String, Variant)> =
            terms.iter().map(|(sign, method)| (*sign, method_name(method, None), variant)).collect();
        Ok(difference(collected, &named))
    }
}

/// A sum of figures with signs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Difference {
    /// A run is missing.
    NotRun,
    /// The runs had different budgets, so it says nothing.
    Budgets,
    /// All runs lost nearly everything, so it says nothing.
    Lost,
    /// It is known.
    Known {
        /// In points.
        value: f64,
        /// Its standard error.
        error: StandardError,
        /// Runs of each figure, the least of them.
        runs: usize,
    },
}

/// What a difference says of the claim that it is above zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    Holds,
    WithinNoise,
    DoesNotHold,
}

impl Verdict {
    /// The word, for a statement of the paper.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::WithinNoise => "within noise",
            Self::DoesNotHold => "does not hold",
        }
    }

    /// The word, for something that was tried.
    pub(super) fn effect(self) -> &'static str {
        match self {
            Self::Holds => "helps",
            Self::WithinNoise => "within noise",
            Self::DoesNotHold => "hurts",
        }
    }
}

/// A row that is so many points below full precision has not learned its task; two such rows cannot be compared.
pub(super) const LOST: f64 = 30.0;

/// A difference must be this many standard errors from zero.
pub(super) const ERRORS: f64 = 2.0;

impl Difference {
    /// What it says; `None` when it is not known.
    pub(super) fn verdict(self) -> Option<Verdict> {
        let Self::Known { value, error, .. } = self else { return None };
        Some(match value {
            value if value >= ERRORS * error.value && value > 0.0 => Verdict::Holds,
            value if value <= -ERRORS * error.value && value < 0.0 => Verdict::DoesNotHold,
            _ => Verdict::WithinNoise,
        })
    }

    /// The number with a word.
    pub(super) fn with(self, word: impl Fn(Verdict) -> &'static str) -> String {
        self.verdict().map_or_else(|| self.to_string(), |verdict| format!("{self} {}", word(verdict)))
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRun => formatter.write_str("not run"),
            Self::Budgets => formatter.write_str("budgets differ"),
            Self::Lost => formatter.write_str("nothing learned"),
            Self::Known { value, error, runs } => {
                write!(formatter, "{value:+.2} {error}")?;
                if *runs > 1 { write!(formatter, " (n={runs})") } else { Ok(()) }
            }
        }
    }
}

/// The sum of figures, each of a method (by its name in files) in a variant.
pub(super) fn difference(collected: &Collected, terms: &[(f64, String, Variant)]) -> Difference {
    let metric = collected.metric();
    let (mut sum, mut runs) = (0.0, usize::MAX);
    let mut samples: Vec<(f64, Sample)> = Vec::new();
    let mut budgets: Option<Vec<usize>> = None;
    let mut lost = true;
    for (sign, name, variant) in terms {
        let Some(sample) = collected.sample(name, *variant) else { return Difference::NotRun };
        let Some(mean) = sample.mean(metric) else { return Difference::NotRun };
        if *budgets.get_or_insert_with(|| sample.budgets.clone()) != sample.budgets {
            return Difference::Budgets;
        }
        lost &= collected.full(metric) - mean >= LOST;
        sum += sign * mean;
        runs = runs.min(sample.len());
        samples.push((*sign, sample));
    }
    if lost {
        return Difference::Lost;
    }
    let error = StandardError::of(metric, &samples);
    error.map_or(Difference::NotRun, |error| Difference::Known { value: sum, error, runs })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_claim_is_what_the_papers_own_figures_say() {
        for claim in CLAIMS {
            for (task, metric) in [(Task::Sst2, "accuracy"), (Task::Mnli, "accuracy"), (Task::Conll03, "f1")] {
                let printed = claim.printed(task, metric).unwrap().unwrap();
                assert!(printed > 0.0, "{} on {task}: {printed}", claim.text);
            }
        }
    }

    #[test]
    fn two_standard_errors_decide() {
        let known = |value, error, runs| {
            let error = StandardError { value: error, paired: runs == 1 };
            Difference::Known { value, error, runs }
        };
        let verdict = |value, error| known(value, error, 1).verdict();
        assert_eq!(verdict(2.0, 1.0), Some(Verdict::Holds));
        assert_eq!(verdict(1.9, 1.0), Some(Verdict::WithinNoise));
        assert_eq!(verdict(-2.0, 1.0), Some(Verdict::DoesNotHold));
        assert_eq!(verdict(0.0, 0.0), Some(Verdict::WithinNoise));
        assert_eq!(Difference::Budgets.verdict(), None);
        assert_eq!(Difference::Lost.verdict(), None);
        assert_eq!(known(-0.5, 1.25, 3).to_string(), "-0.50 ± 1.25* (n=3)");
        assert_eq!(known(0.5, 1.25, 1).to_string(), "+0.50 ± 1.25");
    }
}
