//! A data set encoded for a model: batches in, predictions and metrics out.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::batch::{Batch, LabelledPair, Targets};
use crate::embed::{EmbedAim, EmbedData, TextPair};
use crate::encoded::Encoded;
use crate::kinds::{Dataset, Encoding, Evaluation, Output, Predictions};
use crate::{Error, Labels, Result, Tokenizer};

/// A data set turned into sequences.
#[derive(Debug)]
pub struct Features {
    dataset: Arc<Dataset>,
    sequences: Vec<Encoded>,
    encoding: Encoding,
}

impl Features {
    /// Encodes every example to sequences of at most `max_len` tokens.
    ///
    /// # Errors
    /// [`Error::MaxLen`] when the length is too small for the kind of task.
    pub fn new(dataset: impl Into<Arc<Dataset>>, tokenizer: &Tokenizer, max_len: usize) -> Result<Self> {
        let dataset = dataset.into();
        let (sequences, encoding) = Encoding::new(&dataset, tokenizer, max_len)?;
        Ok(Self { dataset, sequences, encoding })
    }

    /// The data set.
    pub fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    /// The number of sequences, which exceeds the number of examples if long ones are split into windows.
    pub fn len(&self) -> usize {
        self.sequences.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }

    /// The length of a sequence in tokens.
    pub fn length(&self, index: usize) -> usize {
        self.sequences[index].len()
    }

    /// What the head must compute for this data.
    pub fn output(&self) -> Output {
        self.dataset.output()
    }

    /// The metric in tables: `accuracy`, or `f1` for entities and answers.
    pub fn metric(&self) -> &'static str {
        self.dataset.metric()
    }

    /// Decodes a model's scores: for each sequence, in order, its rows of `outputs` scores (see [`Output::rows`]).
    ///
    /// # Errors
    /// [`Error::Length`] when the scores do not fit the sequences.
    pub fn predict(&self, scores: &[Vec<f32>], outputs: usize) -> Result<Predictions> {
        if scores.len() != self.len() {
            let what = "scored sequences".to_owned();
            return Err(Error::Length { what, expected: self.len(), found: scores.len() });
        }
        self.encoding.predict(&self.dataset, scores, outputs)
    }

    /// Scores predictions against the labels of the data.
    ///
    /// # Errors
    /// Data without labels, predictions for another kind of task.
    pub fn score(&self, predictions: &Predictions, labels: &Labels) -> Result<Evaluation> {
        predictions.score(&self.dataset, labels)
    }

    /// A batch of these sequences, with their targets if `targets` is true.
    ///
    /// # Errors
    /// [`Error::Unlabelled`] for targets of an example without a label.
    pub fn batch(&self, indices: &[usize], targets: bool) -> Result<Batch> {
        let mut batch = Batch::new();
        for &index in indices {
            let sequence = &self.sequences[index];
            batch.push(&sequence.input_ids, &sequence.segments);
        }
        if targets {
            batch.targets = self.encoding.targets(indices)?;
        }
        Ok(batch)
    }

    /// Whether the data has pairs of texts.
    pub fn has_pairs(&self) -> bool {
        self.text_pairs().is_some()
    }

    /// The sequences that belong in one batch if pairs are learned: the two of every pair, all others alone. `None` if the
    /// data has no pairs.
    pub fn pairs_together(&self) -> Option<Vec<Vec<usize>>> {
        let pairs = self.text_pairs()?;
        let mut is_paired = vec![false; self.len()];
        for pair in pairs {
            is_paired[pair.first] = true;
            is_paired[pair.second] = true;
        }
        let alone = (0..self.len()).filter(|&index| !is_paired[index]).map(|index| vec![index]);
        Some(pairs.iter().map(|pair| vec![pair.first, pair.second]).chain(alone).collect())
    }

    /// A batch of these sequences with vectors as targets, and the pairs of which it has both texts.
    ///
    /// # Errors
    /// As [`Features::batch`].
    pub fn batch_with_pairs(&self, indices: &[usize]) -> Result<Batch> {
        let mut batch = self.batch(indices, true)?;
        if let (Targets::Vectors { pairs, .. }, Some(known)) = (&mut batch.targets, self.text_pairs()) {
            let places: HashMap<usize, usize> =
                indices.iter().enumerate().map(|(place, &index)| (index, place)).collect();
            // Texts of pairs stand in the order of the pairs, so a text leads to its pair.
            for (place, index) in indices.iter().enumerate() {
                let own = known.binary_search_by_key(index, |pair| pair.first).ok().map(|own| known[own]);
                if let Some((pair, &second)) = own.and_then(|pair| Some((pair, places.get(&pair.second)?))) {
                    pairs.push(LabelledPair { first: place, second, score: pair.score });
                }
            }
        }
        Ok(batch)
    }

    /// The pairs of a data set of texts, if it has any.
    fn text_pairs(&self) -> Option<&[TextPair]> {
        match &*self.dataset {
            Dataset::Embed(EmbedData { aim: EmbedAim::Pairs(pairs), .. }) => Some(pairs),
            _ => None,
        }
    }

    /// The first batches of `size` sequences in the order of the data, without targets, at most `most`.
    pub fn first_batches(&self, size: usize, most: usize) -> impl Iterator<Item = Result<Batch>> {
        let ranges = batch_ranges(self.len(), size).take(most);
        ranges.map(|range| self.batch(&range.collect::<Vec<_>>(), false))
    }

    /// All indices in batches of about `tokens` tokens, for evaluation, where the order does not matter.
    pub fn evaluation_batches(&self, tokens: usize) -> Vec<Vec<usize>> {
        self.batches_of((0..self.len()).collect(), tokens)
    }

    /// These indices in batches of about `tokens` tokens, with sequences of similar length together.
    pub fn batches_of(&self, mut order: Vec<usize>, tokens: usize) -> Vec<Vec<usize>> {
        order.sort_by_key(|&index| (std::cmp::Reverse(self.length(index)), index));
        let mut batches: Vec<Vec<usize>> = Vec::new();
        let mut room = 0;
        for index in order {
            let length = self.length(index);
            if batches.is_empty() || room < length {
                batches.push(Vec::new());
                room = tokens.max(length);
            }
            room -= length;
            if let Some(batch) = batches.last_mut() {
                batch.push(index);
            }
        }
        batches
    }
}

/// Splits `count` items into batches of `size`; the last one may be smaller.
pub fn batch_ranges(count: usize, size: usize) -> impl Iterator<Item = Range<usize>> {
    (0..count).step_by(size.max(1)).map(move |start| start..(start + size).min(count))
}
