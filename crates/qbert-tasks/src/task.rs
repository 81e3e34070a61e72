//! The tasks a user can name.
//!
//! `sst2`, `mnli`, `conll03` and `squad` are the paper's four (§4); `classify`, `pair`, `ner` and `qa` are the same
//! kinds of work on a user's own files. They differ only in how files are read and which labels are assumed;
//! everything after the reader goes by [`Kind`].

use std::fmt;
use std::str::FromStr;

use qbert_quant::nearest;
use serde::{Deserialize, Serialize};

use crate::{Error, Kind, Labels};

/// A task by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// GLUE SST-2: sentiment of one sentence, `sentence<TAB>label`.
    Sst2,
    /// GLUE MNLI: entailment between two sentences.
    Mnli,
    /// CoNLL-2003 named entities, four columns.
    Conll03,
    /// SQuAD v1.1: an answer span in a paragraph.
    Squad,
    /// A user's own single-text classification file.
    Classify,
    /// A user's own sentence-pair classification file.
    Pair,
    /// A user's own file of texts with any number of labels each.
    Multilabel,
    /// A user's own file of texts with a value each.
    Score,
    /// A user's own file of pairs of texts with a value each.
    ScorePair,
    /// Texts to turn into vectors, and what the vectors are judged by.
    Embed,
    /// A user's own CoNLL-style columns, any entity types.
    Ner,
    /// A user's own file in SQuAD's JSON layout.
    Qa,
}

impl Task {
    /// Every task, in the order of help texts.
    pub const ALL: [Task; 12] = [
        Task::Sst2,
        Task::Mnli,
        Task::Conll03,
        Task::Squad,
        Task::Classify,
        Task::Pair,
        Task::Multilabel,
        Task::Score,
        Task::ScorePair,
        Task::Embed,
        Task::Ner,
        Task::Qa,
    ];

    /// The name on the command line and in files.
    pub fn name(self) -> &'static str {
        match self {
            Task::Sst2 => "sst2",
            Task::Mnli => "mnli",
            Task::Conll03 => "conll03",
            Task::Squad => "squad",
            Task::Classify => "classify",
            Task::Pair => "pair",
            Task::Multilabel => "multilabel",
            Task::Score => "score",
            Task::ScorePair => "score-pair",
            Task::Embed => "embed",
            Task::Ner => "ner",
            Task::Qa => "qa",
        }
    }

    /// The kind of work this task is.
    pub fn kind(self) -> Kind {
        match self {
            Task::Sst2 | Task::Classify => Kind::Classify,
            Task::Mnli | Task::Pair => Kind::Pair,
            Task::Multilabel => Kind::MultiLabel,
            Task::Score => Kind::Score,
            Task::ScorePair => Kind::ScorePair,
            Task::Embed => Kind::Embed,
            Task::Conll03 | Task::Ner => Kind::Ner,
            Task::Squad | Task::Qa => Kind::Qa,
        }
    }

    /// The labels that the task defines; `None` if they come from the user's data or there are none.
    ///
    /// - `sst2`: `negative`, `positive` (0 and 1 in the file).
    /// - `mnli`: `entailment`, `neutral`, `contradiction`, the order of GLUE's own label ids. Checkpoints trained
    ///   elsewhere may use another order (some have contradiction first): read data with their labels instead.
    /// - `conll03`: `O`, then `B-`/`I-` of PER, ORG, LOC, MISC, the order of the common copies of the data set.
    pub fn default_labels(self) -> Option<Labels> {
        let names: &[&str] = match self {
            Task::Sst2 => &["negative", "positive"],
            Task::Mnli => &["entailment", "neutral", "contradiction"],
            Task::Conll03 => &["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC"],
            Task::Squad
            | Task::Classify
            | Task::Pair
            | Task::Multilabel
            | Task::Score
            | Task::ScorePair
            | Task::Embed
            | Task::Ner
            | Task::Qa => return None,
        };
        Some(Labels::from_fixed(names))
    }

    /// The longest sequence if the user does not choose, as [`crate::Profile::default_max_len`].
    pub fn default_max_len(self) -> usize {
        self.kind().profile().default_max_len
    }
}

impl fmt::Display for Task {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for Task {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Task::ALL.into_iter().find(|task| task.name() == name).ok_or_else(|| Error::UnknownTask {
            name: name.to_owned(),
            nearest: nearest(name, Task::ALL.map(Task::name)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_back_and_serializes_as_itself() {
        for task in Task::ALL {
            assert_eq!(task.name().parse::<Task>().unwrap(), task);
            assert_eq!(serde_json::to_value(task).unwrap(), task.name());
        }
    }

    #[test]
    fn a_near_miss_is_suggested() {
        let error = "sst-2".parse::<Task>().unwrap_err();
        assert_eq!(error.to_string(), "there is no task named \"sst-2\"");
        assert!(error.hint().unwrap().starts_with("did you mean \"sst2\"?"));
    }

    #[test]
    fn given_order_of_the_fixed_labels() {
        assert_eq!(Task::Mnli.default_labels().unwrap().names(), ["entailment", "neutral", "contradiction"]);
        assert_eq!(Task::Conll03.default_labels().unwrap().len(), 9);
        assert!(Task::Pair.default_labels().is_none());
    }
}
