//! From a data set to what the engine eats: sequences with their targets, and back from scores to answers.

use std::ops::Range;

use qbert_model::Head;
use qbert_tasks::features::ner::NerWindow;
use qbert_tasks::features::qa::{QaOptions, QaWindow};
use qbert_tasks::features::{Encoded, classify, ner, qa};
use qbert_tasks::{Dataset, Kind, Tokenizer};

use crate::batch::{Batch, Targets};
use crate::error::{Error, Result};

/// The head that a kind of task needs.
pub fn head_of(kind: Kind) -> Head {
    match kind {
        Kind::Classify | Kind::Pair => Head::SequenceClassification,
        Kind::Ner => Head::TokenClassification,
        Kind::Qa => Head::QuestionAnswering,
    }
}

/// What a head's scores belong to, beyond the sequences themselves.
#[derive(Debug)]
enum Source {
    Classify(Vec<Option<usize>>),
    Ner(Vec<NerWindow>),
    Qa(Vec<QaWindow>),
}

/// A data set turned into sequences.
#[derive(Debug)]
pub struct Features {
    dataset: Dataset,
    sequences: Vec<Encoded>,
    source: Source,
}

impl Features {
    /// Encodes every example; `qa.max_len` is the longest sequence for every kind of task.
    pub fn new(dataset: Dataset, tokenizer: &Tokenizer, options: &QaOptions) -> Result<Self> {
        let max_len = options.max_len;
        let (sequences, source) = match &dataset {
            Dataset::Classify(data) => {
                let features = classify::encode_all(tokenizer, &data.examples, max_len)?;
                let labels = features.iter().map(|feature| feature.label).collect();
                (features.into_iter().map(|feature| feature.encoded).collect(), Source::Classify(labels))
            }
            Dataset::Ner(data) => {
                let windows = ner::encode_all(tokenizer, &data.sentences, max_len)?;
                (windows.iter().map(|window| window.encoded.clone()).collect(), Source::Ner(windows))
            }
            Dataset::Qa(data) => {
                let windows = qa::encode_all(tokenizer, &data.examples, options)?;
                (windows.iter().map(|window| window.encoded.clone()).collect(), Source::Qa(windows))
            }
        };
        Ok(Self { dataset, sequences, source })
    }

    /// The data set.
    pub fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    /// Number of sequences; more than examples where long ones are windowed.
    pub fn len(&self) -> usize {
        self.sequences.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }

    /// Length of a sequence in tokens.
    pub fn length(&self, index: usize) -> usize {
        self.sequences[index].len()
    }

    /// The windows of named entity recognition.
    pub fn ner_windows(&self) -> &[NerWindow] {
        if let Source::Ner(windows) = &self.source { windows } else { &[] }
    }

    /// The windows of question answering.
    pub fn qa_windows(&self) -> &[QaWindow] {
        if let Source::Qa(windows) = &self.source { windows } else { &[] }
    }

    /// These sequences as a batch, with their targets where `targets` asks for them.
    pub fn batch(&self, indices: &[usize], targets: bool) -> Result<Batch> {
        let mut batch = Batch::new();
        for &index in indices {
            let sequence = &self.sequences[index];
            batch.push(&sequence.input_ids, &sequence.segments);
        }
        if targets {
            batch.targets = self.targets(indices)?;
        }
        Ok(batch)
    }

    fn targets(&self, indices: &[usize]) -> Result<Targets> {
        let unlabelled = |index: usize| Error::Batch { problem: format!("example {index} has no label to learn from") };
        Ok(match &self.source {
            Source::Classify(labels) => Targets::Sequences(
                indices
                    .iter()
                    .map(|&i| labels[i].map(|label| label as u32).ok_or_else(|| unlabelled(i)))
                    .collect::<Result<_>>()?,
            ),
            Source::Ner(windows) => Targets::Tokens(
                indices
                    .iter()
                    .flat_map(|&i| windows[i].labels.iter().map(|label| label.map(|label| label as u32)))
                    .collect(),
            ),
            Source::Qa(windows) => Targets::Spans(
                indices
                    .iter()
                    .map(|&i| windows[i].answer.map(|(a, b)| (a as u32, b as u32)).ok_or_else(|| unlabelled(i)))
                    .collect::<Result<_>>()?,
            ),
        })
    }

    /// The first batches of `size` sequences in the order of the data, without targets, `most` at the most.
    pub fn first_batches(&self, size: usize, most: usize) -> impl Iterator<Item = Result<Batch>> {
        let ranges = batch_ranges(self.len(), size).take(most);
        ranges.map(|range| self.batch(&range.collect::<Vec<_>>(), false))
    }

    /// All indices in batches of roughly `tokens` tokens each: for evaluation, where the order does not matter.
    pub fn evaluation_batches(&self, tokens: usize) -> Vec<Vec<usize>> {
        self.batches_of((0..self.len()).collect(), tokens)
    }

    /// These indices in batches of roughly `tokens` tokens each, sequences of like length together.
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

/// Cuts `count` items into batches of `size`, the last one possibly smaller.
pub fn batch_ranges(count: usize, size: usize) -> impl Iterator<Item = Range<usize>> {
    (0..count).step_by(size.max(1)).map(move |start| start..(start + size).min(count))
}
