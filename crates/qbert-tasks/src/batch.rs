//! A batch without padding: all tokens in a row, and the offsets of the sequences.
//!
//! Texts differ widely in length. A framework that pads computes on the padding (three quarters of a random SST-2
//! batch). Here the sequences of a batch are concatenated: every row of every matrix is a real token, and only
//! attention looks at the offsets.

use std::ops::Range;
use std::sync::Arc;

/// What a model should predict.
#[derive(Debug, Clone, PartialEq)]
pub enum Targets {
    /// Nothing: prediction only.
    None,
    /// One label per sequence.
    Sequences(Vec<u32>),
    /// Any number of labels per sequence, ascending.
    LabelSets(Vec<Vec<u32>>),
    /// A value per sequence.
    Values(Vec<f32>),
    /// A vector per sequence: as near as can be to another model's.
    Vectors {
        /// How many there are.
        count: usize,
        /// What is known of some of them, if it is to be learned.
        pairs: Vec<LabelledPair>,
    },
    /// One label per token; `None` for tokens without one (special tokens, later pieces of a word).
    Tokens(Vec<Option<u32>>),
    /// First and last token of the answer, counted from the start of each sequence.
    Spans(Vec<(u32, u32)>),
}

/// Two sequences of a batch that belong together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LabelledPair {
    /// The place of the first.
    pub first: usize,
    /// The place of the second.
    pub second: usize,
    /// How similar they are, on a scale of which only the order counts; `None` if they are just meant to be near each other.
    pub score: Option<f64>,
}

impl Targets {
    /// The number of terms in the mean loss: sequences, labelled tokens or spans.
    pub fn terms(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Sequences(labels) => labels.len(),
            Self::LabelSets(sets) => sets.len(),
            Self::Values(values) => values.len(),
            Self::Vectors { count, .. } => *count,
            Self::Tokens(labels) => labels.iter().flatten().count(),
            Self::Spans(spans) => spans.len(),
        }
    }
}

/// Sequences laid end to end.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// Token ids of all sequences.
    pub input_ids: Vec<u32>,
    /// Token type of each token.
    pub segments: Vec<u8>,
    /// The start of each sequence, then the number of tokens: one entry more than there are sequences.
    pub offsets: Vec<usize>,
    /// What to predict.
    pub targets: Targets,
    /// What it is a part of; `None` for a batch of its own.
    pub part: Option<PartOf>,
}

/// A batch that is one of the parts of a larger one, each some sequences in a row. Others compute the other parts.
#[derive(Debug, Clone, PartialEq)]
pub struct PartOf {
    /// The larger batch.
    pub whole: Arc<Batch>,
    /// The first sequence of each part, then the number of sequences: one entry more than there are parts.
    pub bounds: Arc<[usize]>,
    /// The number of this part.
    pub own: usize,
}

impl PartOf {
    /// The first token of each part, then the number of tokens.
    pub fn tokens(&self) -> Vec<usize> {
        self.bounds.iter().map(|&sequence| self.whole.offsets[sequence]).collect()
    }
}

impl Targets {
    /// Those of some sequences, which have these tokens.
    fn of(&self, sequences: Range<usize>, tokens: Range<usize>) -> Self {
        match self {
            Self::None => Self::None,
            Self::Sequences(labels) => Self::Sequences(labels[sequences].to_vec()),
            Self::LabelSets(sets) => Self::LabelSets(sets[sequences].to_vec()),
            Self::Values(values) => Self::Values(values[sequences].to_vec()),
            // Both texts of a pair may be in different parts, so only the whole knows pairs.
            Self::Vectors { .. } => Self::Vectors { count: sequences.len(), pairs: Vec::new() },
            Self::Tokens(labels) => Self::Tokens(labels[tokens].to_vec()),
            Self::Spans(spans) => Self::Spans(spans[sequences].to_vec()),
        }
    }
}

impl Batch {
    /// An empty batch to push sequences onto.
    pub fn new() -> Self {
        Self { input_ids: Vec::new(), segments: Vec::new(), offsets: vec![0], targets: Targets::None, part: None }
    }

    /// Part `own` of so many, about equal in tokens; `None` if there are fewer sequences than parts.
    pub fn part(whole: &Arc<Self>, parts: usize, own: usize) -> Option<Self> {
        let sequences = whole.sequences();
        if sequences < parts {
            return None;
        }
        let mut bounds = vec![0];
        for number in 1..parts {
            let wanted = whole.tokens() * number / parts;
            let (before, after) = (bounds[number - 1] + 1, sequences - (parts - number));
            let at = whole.offsets.partition_point(|&offset| offset < wanted);
            // The nearer of the two sequences that begin around the wanted token.
            let is_nearer =
                at > 0 && wanted - whole.offsets[at - 1] < whole.offsets[at.min(sequences)].abs_diff(wanted);
            bounds.push((at - usize::from(is_nearer)).clamp(before, after));
        }
        bounds.push(sequences);
        let bounds: Arc<[usize]> = bounds.into();
        let range = bounds[own]..bounds[own + 1];
        let tokens = whole.offsets[range.start]..whole.offsets[range.end];
        Some(Self {
            input_ids: whole.input_ids[tokens.clone()].to_vec(),
            segments: whole.segments[tokens.clone()].to_vec(),
            offsets: whole.offsets[range.start..=range.end].iter().map(|offset| offset - tokens.start).collect(),
            targets: whole.targets.of(range, tokens),
            part: Some(PartOf { whole: Arc::clone(whole), bounds, own }),
        })
    }

    /// The batch that it is a part of, or itself.
    pub fn whole(&self) -> &Self {
        self.part.as_ref().map_or(self, |part| &part.whole)
    }

    /// Sequences of the whole before its own.
    pub fn first_sequence(&self) -> usize {
        self.part.as_ref().map_or(0, |part| part.bounds[part.own])
    }

    /// Tokens of the whole before its own.
    pub fn first_token(&self) -> usize {
        self.part.as_ref().map_or(0, |part| part.whole.offsets[part.bounds[part.own]])
    }

    /// Appends a sequence; the caller sets `targets`.
    pub fn push(&mut self, input_ids: &[u32], segments: &[u8]) {
        debug_assert_eq!(input_ids.len(), segments.len());
        self.input_ids.extend_from_slice(input_ids);
        self.segments.extend_from_slice(segments);
        self.offsets.push(self.input_ids.len());
    }

    /// Number of tokens in all sequences.
    pub fn tokens(&self) -> usize {
        self.input_ids.len()
    }

    /// Number of sequences.
    pub fn sequences(&self) -> usize {
        self.offsets.len() - 1
    }

    /// The tokens of one sequence.
    pub fn sequence(&self, index: usize) -> Range<usize> {
        self.offsets[index]..self.offsets[index + 1]
    }

    /// All sequences' tokens in order.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.offsets.windows(2).map(|pair| pair[0]..pair[1])
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(lengths: &[usize]) -> Arc<Batch> {
        let mut batch = Batch::new();
        for (index, &length) in lengths.iter().enumerate() {
            batch.push(&vec![index as u32; length], &vec![0; length]);
        }
        batch.targets = Targets::Sequences((0..lengths.len() as u32).collect());
        Arc::new(batch)
    }

    #[test]
    fn parts_are_the_whole_in_order_and_none_is_empty() {
        for lengths in [&[3, 9, 2, 2, 40, 1, 1][..], &[1; 7], &[100, 1, 1, 1], &[1, 1, 1, 100]] {
            let whole = batch(lengths);
            for parts in 1..=4 {
                let own: Vec<Batch> = (0..parts).map(|own| Batch::part(&whole, parts, own).unwrap()).collect();
                assert!(own.iter().all(|part| part.sequences() > 0 && part.whole() == &*whole));
                let ids: Vec<u32> = own.iter().flat_map(|part| part.input_ids.clone()).collect();
                assert_eq!(ids, whole.input_ids);
                let mut first = 0;
                for part in &own {
                    assert_eq!(part.first_token(), first);
                    first += part.tokens();
                    assert_eq!(part.targets.terms(), part.sequences());
                }
                let bounds = own[0].part.clone().unwrap().tokens();
                assert_eq!((bounds[0], bounds[parts]), (0, whole.tokens()));
            }
        }
        assert_eq!(Batch::part(&batch(&[5, 5]), 3, 0), None);
    }

    #[test]
    fn parts_have_about_as_many_tokens() {
        let whole = batch(&[10, 30, 20, 20, 10, 30, 40]);
        let tokens = |own| Batch::part(&whole, 2, own).unwrap().tokens();
        assert_eq!([tokens(0), tokens(1)], [80, 80]);
    }
}
