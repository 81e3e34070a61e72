//! Which output neurons of a matrix share a quantization range (paper, §3.3 and Tab. 2).
//!
//! A [`GroupSpec`] is what a plan says ("128", "head", "neuron"); [`Groups`] is the result for a matrix with a
//! given number of output neurons. Groups are always contiguous. They follow attention heads only when
//! the plan says "head": 128 groups of 768 neurons are 6 neurons each, and 64 neurons of a head are not a
//! multiple of 6, so such groups run over head borders.

use crate::bits::{BitWidth, Precision};
use crate::error::Error;
use crate::product::TableWidth;
use crate::shorten::shorten;
use serde::{Serialize, Serializer};
use std::fmt;
use std::ops;
use std::str::FromStr;

/// How the output neurons of a matrix are grouped, before the matrix is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupSpec {
    /// This many groups; 1 is the paper's layer-wise quantization (`DirectQ`), 128 its usual choice.
    /// Text form: the number.
    Count(usize),
    /// One group for each attention head. Text form: `head`.
    PerHead,
    /// One group for each output neuron. Text form: `neuron`.
    PerNeuron,
    /// One group for each row of an embedding table, whose neurons are its columns. Text form: `row`.
    PerRow,
}

impl GroupSpec {
    /// The paper's usual number of groups.
    pub const DEFAULT_COUNT: usize = 128;

    /// The default grouping of matrices with at least `neurons` output neurons: [`Self::DEFAULT_COUNT`] groups, or one
    /// per neuron in a model that is too small for that.
    pub fn default_for(neurons: usize) -> Self {
        Self::Count(Self::DEFAULT_COUNT.min(neurons))
    }

    /// The default grouping of an embedding table with codes of this width and so many columns: a range for each row at
    /// low widths, where it loses less (docs/results/recipe.md), otherwise groups of columns as the paper has them.
    pub fn default_for_table(width: TableWidth, columns: usize) -> Self {
        match width {
            TableWidth { bits: Precision::Bits(bits), product: None } if bits < BitWidth::EIGHT => Self::PerRow,
            _ => Self::default_for(columns),
        }
    }
}

impl fmt::Display for GroupSpec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => count.fmt(formatter),
            Self::PerHead => "head".fmt(formatter),
            Self::PerNeuron => "neuron".fmt(formatter),
            Self::PerRow => "row".fmt(formatter),
        }
    }
}

impl FromStr for GroupSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "head" => Ok(Self::PerHead),
            "neuron" => Ok(Self::PerNeuron),
            "row" => Ok(Self::PerRow),
            number => match number.parse::<usize>() {
                Ok(0) => Err(Error::ZeroGroups),
                Ok(count) => Ok(Self::Count(count)),
                Err(_) => Err(Error::GroupSpec { text: shorten(text).into_owned() }),
            },
        }
    }
}

impl Serialize for GroupSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Count(count) => serializer.serialize_u64(*count as u64),
            other => serializer.collect_str(other),
        }
    }
}

/// A split of `0..neurons` into contiguous groups whose sizes differ by at most one.
///
/// With `neurons = count · base + extra`, the first `extra` groups have `base + 1` neurons and the others
/// `base`. So the two numbers determine the split, and a file need store no more than them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Groups {
    neurons: usize,
    count: usize,
}

impl Groups {
    /// Splits `neurons` output neurons into `count` groups.
    ///
    /// # Errors
    /// [`Error::ZeroGroups`] when `count` is 0, [`Error::TooManyGroups`] when a group would be empty.
    pub fn new(neurons: usize, count: usize) -> Result<Self, Error> {
        if count == 0 {
            Err(Error::ZeroGroups)
        } else if count > neurons {
            Err(Error::TooManyGroups { groups: count, neurons })
        } else {
            Ok(Self { neurons, count })
        }
    }

    /// Settles a [`GroupSpec`] for a matrix of `neurons` output neurons in a model of `heads` heads.
    ///
    /// # Errors
    /// As [`Groups::new`]; [`Error::RowGroups`] for groups that are rows and not neurons.
    pub fn resolve(spec: GroupSpec, neurons: usize, heads: usize) -> Result<Self, Error> {
        let count = match spec {
            GroupSpec::Count(count) => count,
            GroupSpec::PerHead => heads,
            GroupSpec::PerNeuron => neurons,
            GroupSpec::PerRow => return Err(Error::RowGroups),
        };
        Self::new(neurons, count)
    }

    /// The number of output neurons that are split.
    pub fn neurons(&self) -> usize {
        self.neurons
    }

    /// The number of groups, at least 1.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The neurons of one group; empty for a group that does not exist.
    pub fn span(&self, group: usize) -> ops::Range<usize> {
        let (base, extra) = (self.neurons / self.count, self.neurons % self.count);
        let start = |index: usize| {
            let index = index.min(self.count);
            index * base + index.min(extra)
        };
        start(group)..start(group.saturating_add(1))
    }

    /// The group a neuron belongs to; neurons past the end count to the last group.
    pub fn group_of(&self, neuron: usize) -> usize {
        let (base, extra) = (self.neurons / self.count, self.neurons % self.count);
        let in_larger = extra * (base + 1);
        let group = if neuron < in_larger { neuron / (base + 1) } else { extra + (neuron - in_larger) / base };
        group.min(self.count - 1)
    }

    /// The groups' spans, in order: together they are `0..neurons`.
    pub fn iter(&self) -> impl Iterator<Item = ops::Range<usize>> + use<> {
        let groups = *self;
        (0..groups.count).map(move |group| groups.span(group))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_papers_groupings() {
        let groups = Groups::resolve(GroupSpec::Count(128), 768, 12).unwrap();
        assert!(groups.iter().all(|span| span.len() == 6));
        let heads = Groups::resolve(GroupSpec::PerHead, 768, 12).unwrap();
        assert_eq!((heads.count(), heads.span(1)), (12, 64..128));
        let neurons = Groups::resolve(GroupSpec::PerNeuron, 768, 12).unwrap();
        assert_eq!((neurons.count(), neurons.span(767)), (768, 767..768));
        assert_eq!(Groups::resolve(GroupSpec::Count(1), 768, 12).unwrap().span(0), 0..768);
    }

    #[test]
    fn a_small_model_has_one_group_per_neuron_by_default() {
        assert_eq!(GroupSpec::default_for(768), GroupSpec::Count(128));
        assert_eq!(GroupSpec::default_for(48), GroupSpec::Count(48));
    }

    #[test]
    fn the_first_groups_are_the_larger_ones() {
        let spans: Vec<_> = Groups::new(10, 4).unwrap().iter().collect();
        assert_eq!(spans, [0..3, 3..6, 6..8, 8..10]);
        assert!(Groups::new(10, 4).unwrap().span(4).is_empty());
    }

    #[test]
    fn impossible_groups_are_refused_with_both_numbers() {
        assert!(matches!(Groups::new(8, 0), Err(Error::ZeroGroups)));
        assert!(matches!(Groups::new(8, 9), Err(Error::TooManyGroups { groups: 9, neurons: 8 })));
        assert!(matches!(Groups::resolve(GroupSpec::PerHead, 8, 0), Err(Error::ZeroGroups)));
        assert!(matches!(Groups::resolve(GroupSpec::PerNeuron, 0, 4), Err(Error::ZeroGroups)));
        assert!(matches!(Groups::resolve(GroupSpec::PerRow, 8, 4), Err(Error::RowGroups)));
        for text in ["0", "-1", "heads", "", "12.5"] {
            assert!(text.parse::<GroupSpec>().is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn groups_cover_every_neuron_exactly_once(neurons in 1_usize..2000, count in 1_usize..2000) {
            prop_assume!(count <= neurons);
            let groups = Groups::new(neurons, count).unwrap();
            let mut next = 0;
            for (index, span) in groups.iter().enumerate() {
                prop_assert_eq!(span.start, next);
                prop_assert!(span.len() == neurons / count || span.len() == neurons / count + 1);
                for neuron in span.clone() {
                    prop_assert_eq!(groups.group_of(neuron), index);
                }
                next = span.end;
            }
            prop_assert_eq!(next, neurons);
        }

        #[test]
        fn the_text_form_reads_back(count in 1_usize..5000) {
            for spec in [GroupSpec::Count(count), GroupSpec::PerHead, GroupSpec::PerNeuron, GroupSpec::PerRow] {
                prop_assert_eq!(spec.to_string().parse::<GroupSpec>().unwrap(), spec);
            }
        }
    }
}
