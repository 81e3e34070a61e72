//! The ordered list of a task's labels, which says what each output of a head means.
//!
//! The order is part of a trained model and must not depend on the order of the examples, so labels found in data are
//! sorted. The paper's tasks use [`crate::Task::default_labels`]; a trained head has its own, in `id2label` of the
//! checkpoint ([`Labels::new`]).

use std::collections::{BTreeSet, HashMap};

use qbert_quant::nearest;
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// An ordered list of distinct label names. A label's id is its position in the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct Labels {
    names: Vec<String>,
    ids: HashMap<String, usize>,
    /// Whether a number in the data may be an id: only if no name is a number, and no other list says what numbers
    /// mean.
    numbers_are_ids: bool,
}

impl Labels {
    /// Labels with these names; the order is the order of the ids.
    ///
    /// # Errors
    /// [`Error::BadLabels`] when the list is empty, or a name is empty or repeated.
    pub fn new<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Result<Self> {
        let names: Vec<String> = names.into_iter().map(Into::into).collect();
        let bad = |problem: String| Err(Error::BadLabels { problem });
        if names.is_empty() {
            return bad("the list of labels is empty".to_owned());
        }
        let mut seen = BTreeSet::new();
        for name in &names {
            if name.is_empty() {
                return bad("a label has no name".to_owned());
            }
            if !seen.insert(name.as_str()) {
                return bad(format!("the label {name:?} is repeated"));
            }
        }
        Ok(Self::indexed(names))
    }

    /// The labels found in data, in a fixed order: by value if all are whole numbers, else by code point.
    ///
    /// # Errors
    /// As [`Labels::new`].
    pub fn found_in<S: AsRef<str>>(raw: impl IntoIterator<Item = S>) -> Result<Self> {
        let distinct: BTreeSet<String> = raw.into_iter().map(|name| name.as_ref().to_owned()).collect();
        let mut names: Vec<String> = distinct.into_iter().collect();
        if names.iter().all(|name| name.parse::<i64>().is_ok()) {
            names.sort_by_key(|name| name.parse::<i64>().unwrap_or_default());
        }
        Self::new(names)
    }

    /// The tags for a set of entity types: `O` first, then `B-` and `I-` of each type in code point order, both
    /// even if the data has only one (a type whose entities have one word today may have longer ones tomorrow).
    pub fn for_entity_types<S: AsRef<str>>(types: impl IntoIterator<Item = S>) -> Self {
        let distinct: BTreeSet<String> = types.into_iter().map(|name| name.as_ref().to_owned()).collect();
        let mut names = vec!["O".to_owned()];
        for kind in distinct {
            names.push(format!("B-{kind}"));
            names.push(format!("I-{kind}"));
        }
        Self::indexed(names)
    }

    /// For lists in this crate, which are known to be distinct.
    pub(crate) fn from_fixed(names: &[&str]) -> Self {
        Self::indexed(names.iter().map(|&name| name.to_owned()).collect())
    }

    fn indexed(names: Vec<String>) -> Self {
        let ids = names.iter().cloned().enumerate().map(|(id, name)| (name, id)).collect();
        let numbers_are_ids = names.iter().all(|name| name.parse::<i64>().is_err());
        Self { names, ids, numbers_are_ids }
    }

    /// How many labels there are.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Never true for a list made by this type's constructors.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The names in the order of their ids.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The name of an id.
    pub fn name(&self, id: usize) -> Option<&str> {
        self.names.get(id).map(String::as_str)
    }

    /// The names of these ids.
    ///
    /// # Errors
    /// [`Error::LabelId`] for an id that is no label.
    pub(crate) fn names_of(&self, ids: &[usize]) -> Result<Vec<&str>> {
        let name = |&id: &usize| self.name(id).ok_or(Error::LabelId { id, count: self.len() });
        ids.iter().map(name).collect()
    }

    /// The id of a label in data, which is a name or, if no name is a number, an id (SST-2 files have `1` for
    /// `positive`).
    pub fn id(&self, raw: &str) -> Option<usize> {
        if let Some(&id) = self.ids.get(raw) {
            return Some(id);
        }
        let number = raw.parse::<usize>().ok().filter(|_| self.numbers_are_ids)?;
        (number < self.len()).then_some(number)
    }

    /// These labels of a trained head, for data labelled with `expected`: names match in any order and case, numbers
    /// count in the order of `expected`. `None` if one of `expected` is missing here.
    pub fn for_data_of(&self, expected: &Self) -> Option<Self> {
        if self.names == expected.names {
            return Some(self.clone());
        }
        let mut labels = self.clone();
        for (number, name) in expected.names.iter().enumerate() {
            let alike = || self.names.iter().position(|own| own.to_lowercase() == name.to_lowercase());
            let id = self.ids.get(name).copied().or_else(alike)?;
            labels.ids.insert(name.clone(), id);
            if expected.numbers_are_ids && self.numbers_are_ids {
                labels.ids.insert(number.to_string(), id);
            }
        }
        labels.numbers_are_ids = false;
        Some(labels)
    }

    /// The name most similar to an unknown one.
    pub fn nearest(&self, raw: &str) -> Option<String> {
        nearest(raw, &self.names)
    }

    /// Whether these are the `LABEL_0`, `LABEL_1`, … of a checkpoint whose labels were never named. They say
    /// nothing about the data, so callers use the labels found there.
    pub fn are_placeholders(&self) -> bool {
        self.names.iter().enumerate().all(|(id, name)| *name == format!("LABEL_{id}"))
    }
}

impl TryFrom<Vec<String>> for Labels {
    type Error = Error;

    fn try_from(names: Vec<String>) -> Result<Self> {
        Self::new(names)
    }
}

impl From<Labels> for Vec<String> {
    fn from(labels: Labels) -> Self {
        labels.names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn found_labels_do_not_depend_on_the_order_of_the_data() {
        assert_eq!(Labels::found_in(["b", "a", "b"]).unwrap().names(), ["a", "b"]);
        assert_eq!(Labels::found_in(["10", "9", "-1"]).unwrap().names(), ["-1", "9", "10"]);
        assert_eq!(Labels::found_in(["10", "9", "x"]).unwrap().names(), ["10", "9", "x"]);
    }

    #[test]
    fn numbers_stand_for_ids_only_beside_names() {
        let named = Labels::new(["negative", "positive"]).unwrap();
        assert_eq!(
            (named.id("1"), named.id("positive"), named.id("2"), named.id("-1")),
            (Some(1), Some(1), None, None)
        );
        let numbered = Labels::new(["1", "2"]).unwrap();
        assert_eq!((numbered.id("1"), numbered.id("0")), (Some(0), None));
    }

    /// SST-2 files say `1` for positive, whatever a head calls its outputs and in whatever order.
    #[test]
    fn a_head_with_another_order_is_read_by_name() {
        let task = Labels::new(["negative", "positive"]).unwrap();
        let head = Labels::new(["POSITIVE", "neutral", "NEGATIVE"]).unwrap();
        let read = head.for_data_of(&task).unwrap();
        assert_eq!(read.names(), head.names());
        let ids = ["0", "1", "negative", "positive", "POSITIVE", "neutral", "2"].map(|raw| read.id(raw));
        assert_eq!(ids, [Some(2), Some(0), Some(2), Some(0), Some(0), Some(1), None]);
        assert_eq!(Labels::new(["dry", "icy"]).unwrap().for_data_of(&task), None);
        assert_eq!(task.for_data_of(&task), Some(task));
    }

    #[test]
    fn bad_lists_are_refused() {
        assert!(Labels::new(Vec::<String>::new()).is_err());
        assert!(Labels::new(["a", ""]).is_err());
        let twice = Labels::new(["a", "b", "a"]).unwrap_err();
        assert_eq!(twice.to_string(), "invalid list of labels: the label \"a\" is repeated");
        assert!(serde_json::from_str::<Labels>(r#"["a","a"]"#).is_err());
    }

    #[test]
    fn entity_types_get_both_tags() {
        let labels = Labels::for_entity_types(["TOOL", "BIRD"]);
        assert_eq!(labels.names(), ["O", "B-BIRD", "I-BIRD", "B-TOOL", "I-TOOL"]);
        assert!(Labels::new(["LABEL_0", "LABEL_1"]).unwrap().are_placeholders() && !labels.are_placeholders());
    }
}
