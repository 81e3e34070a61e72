//! Named entities: one tag for each word, entities from the tags.

mod decode;
mod encode;
mod read;
mod score;
mod style;
mod words;

pub use decode::{Entity, TagDecoder, WordTag, entities};
pub use encode::{NerWindow, WordPosition, encode, encode_all};
pub(crate) use read::read;
pub(crate) use score::score;
pub use score::{EntityReport, EntitySpan, counts, report, spans};
pub use style::TagStyle;
pub(crate) use words::is_ideograph;
pub use words::{Ideographs, Word, split_words};

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::batch::Targets;
use crate::kinds::{Examples, InputShape, Output, Profile, Recipe};
use crate::qa::QaOptions;
use crate::stats::{self, DataStatistics, ExampleLengths};
use crate::{Labels, Result, Tokenizer};

/// The metric in tables: F1 over entities.
pub(crate) const METRIC: &str = "f1";

pub(crate) const PROFILE: Profile = Profile {
    examples: "sentences",
    sequence: "sentence",
    sequences: "sentences",
    purpose: "finding entities",
    hub_task: "token-classification",
    default_max_len: 128,
    input: InputShape::Text,
    output: Output::Token,
    has_columns: false,
    has_labels: true,
    recipe: Recipe { epochs: 5, quantization_epochs: 3, batch: 32, learning_rate: 3e-4 },
};

/// One sentence of words, with one tag each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NerSentence {
    /// The words as they stand in the file.
    pub words: Vec<String>,
    /// One label id per word: IOB2 whatever marks the file uses, plain tags as they are.
    pub tags: Option<Vec<usize>>,
}

/// How the tags of a file mark the beginning of an entity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TagScheme {
    /// `B-` only between two neighbours of the same type (the original CoNLL-2003 files).
    Iob1,
    /// Every entity begins with `B-`.
    Iob2,
    /// IOB2 with a mark for last and single words (`E-`/`S-`, or `L-`/`U-`).
    Iobes,
    /// Some entities begin with `B-` and some, away from a neighbour of their type, with `I-`: read as `conlleval`
    /// does, an entity begins wherever its type does.
    Mixed,
    /// No tag says where an entity begins: parts of speech, or the bare types of entities.
    Plain,
}

/// Sentences of a NER task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NerData {
    /// In the order of the files.
    pub sentences: Vec<NerSentence>,
    /// `None` only for unlabelled data read without given labels.
    pub labels: Option<Labels>,
    /// The tags in the files, those with marks as IOB2.
    pub found: BTreeSet<String>,
    /// What the first file's tags follow; `None` without tags.
    pub scheme: Option<TagScheme>,
    /// Number of `-DOCSTART-` lines.
    pub documents: usize,
}

impl NerData {
    pub(crate) fn first(&self, count: usize) -> Self {
        let sentences = self.sentences.iter().take(count).cloned().collect();
        Self {
            sentences,
            labels: self.labels.clone(),
            found: self.found.clone(),
            scheme: self.scheme,
            documents: self.documents,
        }
    }
}

impl Examples for NerData {
    fn len(&self) -> usize {
        self.sentences.len()
    }

    fn labels(&self) -> Option<&Labels> {
        self.labels.as_ref()
    }

    fn found(&self) -> Option<(&BTreeSet<String>, usize)> {
        Some((&self.found, read::listed(&self.found).map_or(0, |labels| labels.len())))
    }

    fn count(&self, statistics: &mut DataStatistics) {
        let words = self.sentences.iter().map(|sentence| sentence.words.len()).sum();
        let ids = self.sentences.iter().filter_map(|sentence| sentence.tags.as_ref()).flatten().copied();
        statistics.labels = stats::label_counts(self.labels.as_ref(), ids);
        statistics.unlabelled = words - statistics.labels.iter().map(|label| label.count).sum::<usize>();
        statistics.words = Some(words);
        statistics.scheme = self.scheme;
    }

    fn lengths(&self, tokenizer: &Tokenizer, options: &QaOptions) -> Result<Vec<ExampleLengths>> {
        self.sentences.iter().map(|sentence| lengths(tokenizer, sentence, options.max_len)).collect()
    }
}

fn lengths(tokenizer: &Tokenizer, sentence: &NerSentence, max_len: usize) -> Result<ExampleLengths> {
    let windows = encode(tokenizer, &sentence.words, None, 0, max_len)?;
    let sequences: Vec<usize> = windows.iter().map(|window| window.encoded.len()).collect();
    let removed: usize = windows.iter().map(|window| window.encoded.removed).sum();
    // Windows overlap, so the whole length is counted from the words.
    let whole = match sequences.as_slice() {
        [one] => one + removed,
        _ => {
            let pieces = sentence.words.iter().map(|word| tokenizer.pieces(word).map(|pieces| pieces.len().max(1)));
            2 + pieces.sum::<Result<usize>>()?
        }
    };
    Ok(ExampleLengths { whole, truncated: removed > 0, sequences })
}

/// The tags of these windows, for the loss.
pub(crate) fn targets(windows: &[NerWindow], indices: &[usize]) -> Targets {
    let labels = indices.iter().flat_map(|&index| &windows[index].labels);
    Targets::Tokens(labels.map(|label| label.map(|label| label as u32)).collect())
}

/// The tag of each word, from the scores of every window.
pub(crate) fn predict(
    data: &NerData,
    windows: &[NerWindow],
    scores: &[Vec<f32>],
    outputs: usize,
) -> Result<Vec<Vec<usize>>> {
    let mut decoder = TagDecoder::new(data.sentences.iter().map(|sentence| sentence.words.len()), outputs);
    for (window, scores) in windows.iter().zip(scores) {
        decoder.push(window, scores);
    }
    Ok(decoder.finish()?.into_iter().map(|tags| tags.into_iter().map(|word| word.tag).collect()).collect())
}
