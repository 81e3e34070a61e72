//! The ordered list of a task's labels, which says what each output of a head means.
//!
//! The order is part of a trained model and must not depend on the order of the examples, so labels found in data are
//! sorted. The paper's tasks use [`crate::Task::default_labels`]; a trained head has its own, in `id2label` of the
//! checkpoint ([`Labels::new`]).

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use qbert_quant::nearest;
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// An ordered list of distinct label names. A label's id is its position in the list.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct Labels {
    names: Vec<String>,
    ids: HashMap<String, usize>,
    /// Whether a number in the data may be an id: only if no name is a number, and no other list says what numbers
    /// mean.
    numbers_are_ids: bool,
    /// Labels of the data and what the head calls the outputs they stand for, where the two differ.
    mapping: Vec<(String, String)>,
}

/// Records of settings have it, so it must not depend on the order of a hash map.
impl fmt::Debug for Labels {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("Labels");
        shown.field("names", &self.names).field("numbers_are_ids", &self.numbers_are_ids);
        if !self.mapping.is_empty() {
            shown.field("mapping", &self.mapping);
        }
        shown.finish()
    }
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

    /// Labels of data that go by another name: each pair has a label as it stands in the data, and its name.
    ///
    /// # Errors
    /// [`Error::BadLabels`] when the list is empty, a name is empty, or a label of the data has two names.
    pub fn renamed(pairs: &[(String, String)]) -> Result<Self> {
        let mut names: Vec<&String> = Vec::new();
        for (_, name) in pairs {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let mut labels = Self::new(names.into_iter().cloned())?;
        let mut seen = BTreeSet::new();
        for (raw, name) in pairs {
            if raw.is_empty() || !seen.insert(raw) {
                let problem = if raw.is_empty() { "has no name" } else { "is repeated" };
                return Err(Error::BadLabels { problem: format!("the label {raw:?} of the data {problem}") });
            }
            if let Some(id) = labels.names.iter().position(|known| known == name) {
                labels.ids.insert(raw.clone(), id);
            }
        }
        labels.numbers_are_ids = false;
        Ok(labels)
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
        Self { names, ids, numbers_are_ids, mapping: Vec::new() }
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
    pub(crate) fn for_data_of(&self, expected: &Self) -> Option<Self> {
        if self.names == expected.names {
            return Some(expected.clone());
        }
        let mut labels = self.clone();
        let mut own = Vec::with_capacity(expected.len());
        for (number, name) in expected.names.iter().enumerate() {
            let id = self.id_in_any_case(name)?;
            own.push(id);
            if expected.numbers_are_ids && self.numbers_are_ids {
                labels.ids.insert(number.to_string(), id);
            }
        }
        labels.ids.extend(expected.ids.iter().map(|(raw, &id)| (raw.clone(), own[id])));
        labels.numbers_are_ids = false;
        Some(labels)
    }

    /// The id of a name, whatever its case; the name as it is written comes first.
    pub(crate) fn id_in_any_case(&self, name: &str) -> Option<usize> {
        let alike = || self.names.iter().position(|own| own.to_lowercase() == name.to_lowercase());
        self.names.iter().position(|own| own == name).or_else(alike)
    }

    /// These names, where labels of the data stand for ids; a number that is not listed is no id.
    pub(crate) fn with_ids(mut self, ids: impl IntoIterator<Item = (String, usize)>) -> Self {
        self.ids.extend(ids);
        self.numbers_are_ids = false;
        self
    }

    /// Notes what a head calls the outputs that labels of the data stand for.
    pub(crate) fn with_mapping(mut self, mapping: Vec<(String, String)>) -> Self {
        self.mapping = mapping;
        self
    }

    /// Labels of the data, each with the name of the head's output that it stands for; only those that differ, so that it
    /// is empty where every label is called as in the data.
    pub fn mapping(&self) -> &[(String, String)] {
        &self.mapping
    }

    /// Labels of the data that go by another name here, in the order of their code points.
    pub fn other_names(&self) -> Vec<(&str, &str)> {
        let others = self.ids.iter().filter(|(raw, id)| self.names[**id] != **raw);
        let mut others: Vec<(&str, &str)> = others.map(|(raw, &id)| (raw.as_str(), self.names[id].as_str())).collect();
        others.sort_unstable();
        others
    }

    /// Whether data with these raw labels reads the same with other labels: the same names in the same order, the same id
    /// for each label of the data, and a mapping to report in both cases or in none.
    pub(crate) fn reads_as(&self, other: &Self, raw: &BTreeSet<String>) -> bool {
        let same_id = |raw: &String| self.id(raw) == other.id(raw);
        self.names == other.names && self.mapping.is_empty() == other.mapping.is_empty() && raw.iter().all(same_id)
    }

    /// The name most similar to an unknown one.
    pub fn nearest(&self, raw: &str) -> Option<String> {
        nearest(raw, &self.names)
    }

    /// Whether these are the `LABEL_0`, `LABEL_1`, … of a checkpoint whose labels were never named. They say
    /// nothing about the data ([`crate::HeadLabels`]).
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

    #[test]
    fn labels_of_data_can_have_other_names() {
        let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(raw, name)| ((*raw).to_owned(), (*name).to_owned())).collect()
        };
        let labels = Labels::renamed(&pairs(&[("0", "bad"), ("1", "good"), ("2", "good")])).unwrap();
        assert_eq!(labels.names(), ["bad", "good"]);
        assert_eq!(["0", "1", "2", "good", "3"].map(|raw| labels.id(raw)), [Some(0), Some(1), Some(1), Some(1), None]);
        let swapped = Labels::renamed(&pairs(&[("a", "b"), ("b", "a")])).unwrap();
        assert_eq!(["a", "b"].map(|raw| labels_name(&swapped, raw)), ["b", "a"]);
        for bad in [&[("0", "a"), ("0", "b")][..], &[("", "a")], &[("0", "")], &[]] {
            assert!(Labels::renamed(&pairs(bad)).is_err(), "{bad:?}");
        }
    }

    fn labels_name(labels: &Labels, raw: &str) -> String {
        labels.id(raw).and_then(|id| labels.name(id)).unwrap().to_owned()
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
