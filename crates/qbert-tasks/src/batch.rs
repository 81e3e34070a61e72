//! A batch without padding: all tokens in a row, and the offsets of the sequences.
//!
//! Texts differ widely in length. A framework that pads computes on the padding (three quarters of a random SST-2
//! batch). Here the sequences of a batch are concatenated: every row of every matrix is a real token, and only
//! attention looks at the offsets.

use std::ops::Range;

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
    /// A vector per sequence, this many: as near as can be to another model's.
    Vectors(usize),
    /// One label per token; `None` for tokens without one (special tokens, later pieces of a word).
    Tokens(Vec<Option<u32>>),
    /// First and last token of the answer, counted from the start of each sequence.
    Spans(Vec<(u32, u32)>),
}

impl Targets {
    /// The number of terms in the mean loss: sequences, labelled tokens or spans.
    pub fn terms(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Sequences(labels) => labels.len(),
            Self::LabelSets(sets) => sets.len(),
            Self::Values(values) => values.len(),
            Self::Vectors(count) => *count,
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
}

impl Batch {
    /// An empty batch to push sequences onto.
    pub fn new() -> Self {
        Self { input_ids: Vec::new(), segments: Vec::new(), offsets: vec![0], targets: Targets::None }
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
