//! Which output of a trained head a label of the data stands for.
//!
//! A head that calls its outputs as the data calls its labels is matched by name. Nothing else is guessed, because a wrong
//! order gives wrong answers without any sign of it: names of the data against `LABEL_0`, `LABEL_1`, … of a head that
//! was never named, and bare numbers against names, need a list or a mapping from the user. Two numberings are
//! conventions rather than guesses: the `n` of a data set is the `LABEL_n` of `transformers`, and the paper's tasks
//! say what their numbers mean ([`Task::default_labels`]).
//!
//! Every job that reads data for a trained head does so with [`LabelSource::Head`](crate::LabelSource::Head).

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::{Dataset, Error, Labels, Result, Task};

/// The labels of a trained head, and what the user says about those of the data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeadLabels {
    /// The model, for errors.
    pub model: PathBuf,
    /// What the head calls its outputs, in their order.
    pub own: Labels,
    /// The labels that the user gave, if any.
    pub given: Option<Labels>,
}

/// The labels in data files.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FoundLabels<'a> {
    /// Every label that occurs, as it stands in the files.
    pub(crate) raw: &'a BTreeSet<String>,
    /// How many labels a head for this data has.
    pub(crate) count: usize,
}

impl FoundLabels<'_> {
    fn all(&self, is: impl Fn(&str) -> bool) -> bool {
        self.raw.iter().all(|raw| is(raw))
    }

    fn are_numbers_below(&self, count: usize) -> bool {
        self.all(|raw| number(raw).is_some_and(|number| number < count))
    }
}

/// A whole number as a list of labels counts: `0`, `1`, but not `01` or `+1`.
fn number(raw: &str) -> Option<usize> {
    raw.parse::<usize>().ok().filter(|number| number.to_string() == raw)
}

impl HeadLabels {
    /// The labels to read a data set with, in the order of the head's outputs, whatever it was read with.
    ///
    /// # Errors
    /// [`Error::UnclearLabels`] where nothing says which output a label stands for, [`Error::OtherLabels`] where the head is
    /// for other labels.
    pub fn for_dataset(&self, task: Task, dataset: &Dataset) -> Result<Labels> {
        let none = BTreeSet::new();
        let (raw, count) = dataset.examples().found().unwrap_or((&none, 0));
        self.for_data(task, FoundLabels { raw, count })
    }

    /// The labels to read this data with, in the order of the head's outputs.
    ///
    /// # Errors
    /// [`Error::UnclearLabels`] where nothing says which output a label stands for, [`Error::OtherLabels`] where the head is
    /// for other labels.
    pub(crate) fn for_data(&self, task: Task, found: FoundLabels<'_>) -> Result<Labels> {
        let labels = if self.own.are_placeholders() {
            self.of_unnamed_outputs(task, found)?
        } else {
            self.of_named_outputs(task, found)?
        };
        // The meaning of a task's own numbers is no news.
        let defined = self.given.is_none() && task.default_labels().is_some() && !self.own.are_placeholders();
        let differs = |raw: &String| {
            let output = self.own.name(labels.id(raw)?)?;
            (output.to_lowercase() != raw.to_lowercase()).then(|| (raw.clone(), output.to_owned()))
        };
        let mapping = found.raw.iter().filter(|_| !defined).filter_map(differs).collect();
        Ok(labels.with_mapping(mapping))
    }

    fn of_unnamed_outputs(&self, task: Task, found: FoundLabels<'_>) -> Result<Labels> {
        let own = &self.own;
        if let Some(given) = &self.given {
            return match own.for_data_of(given) {
                Some(labels) => Ok(labels),
                // The list that the user gave is in the order of the outputs.
                None if given.len() == own.len() => Ok(given.clone()),
                None => Err(self.other("those asked for", given.names())),
            };
        }
        if found.all(|raw| own.names().iter().any(|name| name == raw)) {
            return Ok(own.clone().with_ids([]));
        }
        let defined = task.default_labels();
        let count = defined.as_ref().map_or(found.count, Labels::len);
        if found.are_numbers_below(own.len()) {
            return match defined {
                None => Ok(own.clone().with_ids((0..own.len()).map(|id| (id.to_string(), id)))),
                Some(labels) if labels.len() == own.len() => Ok(labels),
                Some(labels) => Err(self.other(&format!("those of the task {task}"), labels.names())),
            };
        }
        if count == own.len() { Err(self.unclear(found)) } else { Err(self.other_than_found(found)) }
    }

    fn of_named_outputs(&self, task: Task, found: FoundLabels<'_>) -> Result<Labels> {
        let own = &self.own;
        let expected = match &self.given {
            Some(given) => Some((given.clone(), "those asked for".to_owned())),
            None => task.default_labels().map(|labels| (labels, format!("those of the task {task}"))),
        };
        if let Some((expected, whose)) = expected {
            return own.for_data_of(&expected).ok_or_else(|| self.other(&whose, expected.names()));
        }
        let known = |raw: &str| own.id_in_any_case(raw);
        let ids = found.raw.iter().filter_map(|raw| Some((raw.clone(), known(raw)?)));
        let labels = own.clone().with_ids(ids.collect::<Vec<_>>());
        if found.all(|raw| known(raw).is_none()) && !found.raw.is_empty() {
            let unclear = found.are_numbers_below(own.len()) && found.count == own.len();
            return if unclear { Err(self.unclear(found)) } else { Err(self.other_than_found(found)) };
        }
        // A single unknown label is the reader's to report, which knows its line.
        Ok(labels)
    }

    fn unclear(&self, found: FoundLabels<'_>) -> Error {
        Error::UnclearLabels {
            model: self.model.clone(),
            data: found.raw.iter().cloned().collect(),
            outputs: self.own.names().to_vec(),
        }
    }

    fn other(&self, whose: &str, labels: &[String]) -> Error {
        Error::OtherLabels {
            model: self.model.clone(),
            outputs: self.own.names().to_vec(),
            whose: whose.to_owned(),
            labels: labels.to_vec(),
        }
    }

    fn other_than_found(&self, found: FoundLabels<'_>) -> Error {
        let labels: Vec<String> = found.raw.iter().cloned().collect();
        self.other("those in the data", &labels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(task: Task, own: &[&str], given: Option<&[&str]>, data: &[&str]) -> Result<Labels> {
        let list = |names: &[&str]| Labels::new(names.iter().copied()).unwrap();
        let head = HeadLabels { model: PathBuf::from("tuned"), own: list(own), given: given.map(list) };
        let raw: BTreeSet<String> = data.iter().map(|&raw| raw.to_owned()).collect();
        head.for_data(task, FoundLabels { raw: &raw, count: raw.len() })
    }

    fn ids(labels: &Labels, data: &[&str]) -> Vec<Option<usize>> {
        data.iter().map(|raw| labels.id(raw)).collect()
    }

    const NAMED: [&str; 3] = ["negative", "neutral", "positive"];
    const UNNAMED: [&str; 3] = ["LABEL_0", "LABEL_1", "LABEL_2"];

    /// SST-2 files say `1` for positive, whatever a head calls its outputs and in whatever order.
    #[test]
    fn a_head_with_another_order_is_read_by_name() {
        let head = ["POSITIVE", "neutral", "NEGATIVE"];
        let labels = read(Task::Sst2, &head, None, &["0", "1"]).unwrap();
        assert_eq!(labels.names(), head);
        let data = ["0", "1", "negative", "positive", "POSITIVE", "neutral", "2"];
        assert_eq!(ids(&labels, &data), [Some(2), Some(0), Some(2), Some(0), Some(0), Some(1), None]);
        assert!(labels.mapping().is_empty(), "the task defines its numbers");
        let other = read(Task::Sst2, &["dry", "icy"], None, &["0", "1"]).unwrap_err();
        assert!(matches!(other, Error::OtherLabels { .. }), "{other}");
    }

    #[test]
    fn names_against_label_n_need_an_order() {
        for own in [&UNNAMED, &NAMED] {
            assert_eq!(ids(&read(Task::Classify, own, None, own).unwrap(), own), [Some(0), Some(1), Some(2)]);
        }
        let error = read(Task::Classify, &UNNAMED, None, &NAMED).unwrap_err();
        let text = format!("{error}; {}", error.hint().unwrap());
        for part in ["tuned", "LABEL_0, LABEL_1, LABEL_2", "negative, neutral, positive", "`read.labels`"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        // With an order it is the user's.
        let order = ["positive", "negative", "neutral"];
        let labels = read(Task::Classify, &UNNAMED, Some(&order), &NAMED).unwrap();
        assert_eq!(
            (labels.names(), ids(&labels, &NAMED)),
            (&order.map(str::to_owned)[..], vec![Some(1), Some(2), Some(0)])
        );
        assert_eq!(labels.mapping()[0], ("negative".to_owned(), "LABEL_1".to_owned()));
        // The names of a task are names too, and another number of labels is another task's head.
        let unclear =
            |task, own: &[&str], data: &[&str]| matches!(read(task, own, None, data), Err(Error::UnclearLabels { .. }));
        assert!(unclear(Task::Mnli, &UNNAMED, &["contradiction", "entailment", "neutral"]));
        assert!(unclear(Task::Mnli, &UNNAMED, &["neutral"]));
        assert!(!unclear(Task::Classify, &UNNAMED[..2], &NAMED));
    }

    #[test]
    fn numbers_are_label_n_but_not_somebodys_names() {
        let labels = read(Task::Classify, &UNNAMED, None, &["0", "2"]).unwrap();
        assert_eq!(
            (labels.names()[2].as_str(), ids(&labels, &["0", "2", "3"])),
            ("LABEL_2", vec![Some(0), Some(2), None])
        );
        assert_eq!(labels.mapping(), [("0", "LABEL_0"), ("2", "LABEL_2")].map(|(a, b)| (a.to_owned(), b.to_owned())));
        // GLUE says what its numbers mean.
        let labels = read(Task::Sst2, &UNNAMED[..2], None, &["0", "1"]).unwrap();
        assert_eq!((labels.names()[1].as_str(), ids(&labels, &["1"])), ("positive", vec![Some(1)]));

        let error = read(Task::Classify, &NAMED, None, &["0", "1", "2"]).unwrap_err();
        assert!(matches!(error, Error::UnclearLabels { .. }), "{error}");
        let labels =
            read(Task::Classify, &NAMED, Some(&["positive", "neutral", "negative"]), &["0", "1", "2"]).unwrap();
        assert_eq!(ids(&labels, &["0", "1", "2"]), [Some(2), Some(1), Some(0)]);
        assert_eq!(labels.mapping()[0], ("0".to_owned(), "positive".to_owned()));
        // A head that calls its outputs by the same numbers is matched by name.
        let labels = read(Task::Classify, &["1", "2", "0"], None, &["0", "1"]).unwrap();
        assert_eq!(ids(&labels, &["0", "1", "2"]), [Some(2), Some(0), Some(1)]);
        for data in [&["1", "2", "3", "4", "5"][..], &["-1", "0", "1"]] {
            assert!(read(Task::Classify, &UNNAMED, None, data).is_err(), "{data:?}");
        }
    }

    #[test]
    fn a_mapping_says_it_all() {
        let pairs: Vec<(String, String)> =
            [("1", "1 star"), ("2", "2 stars")].map(|(a, b)| (a.to_owned(), b.to_owned())).into();
        let given = Labels::renamed(&pairs).unwrap();
        let own = Labels::new(["2 stars", "1 star"]).unwrap();
        let head = HeadLabels { model: PathBuf::new(), own, given: Some(given) };
        let raw = BTreeSet::from(["1".to_owned(), "2".to_owned()]);
        let labels = head.for_data(Task::Classify, FoundLabels { raw: &raw, count: 2 }).unwrap();
        assert_eq!(ids(&labels, &["1", "2", "0"]), [Some(1), Some(0), None]);
        assert_eq!(labels.mapping(), pairs);
    }
}
