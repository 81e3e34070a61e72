//! What a reader returns: examples with their labels, in the order of the files.
//!
//! Plain data without behaviour beyond counting. Label ids index [`Labels`]; a missing label is `None`, which only
//! readers that were told not to require labels produce.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Labels, Task};

/// One text, or a pair, with its label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassifyExample {
    /// The id column's value, or the line number.
    pub id: String,
    /// The (first) text.
    pub text: String,
    /// The second text of a pair.
    pub text2: Option<String>,
    /// The label's id.
    pub label: Option<usize>,
}

/// Examples of a classification or pair task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassifyData {
    /// In the order of the files.
    pub examples: Vec<ClassifyExample>,
    /// `None` only for unlabelled data read without given labels.
    pub labels: Option<Labels>,
    /// Rows left out because their annotators did not agree (MNLI's `-`).
    pub skipped: usize,
}

/// One sentence of words, with one tag each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NerSentence {
    /// The words as they stand in the file.
    pub words: Vec<String>,
    /// One label id per word, IOB2 whatever the file uses.
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
}

/// Sentences of a NER task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NerData {
    /// In the order of the files.
    pub sentences: Vec<NerSentence>,
    /// `None` only for unlabelled data read without given labels.
    pub labels: Option<Labels>,
    /// What the first file's tags follow; `None` without tags.
    pub scheme: Option<TagScheme>,
    /// Number of `-DOCSTART-` lines.
    pub documents: usize,
}

/// An answer as it stands in the context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QaAnswer {
    /// The text, equal to the context's at `start`.
    pub text: String,
    /// Where it begins, in Unicode code points of the context (as SQuAD counts).
    pub start: usize,
}

/// One question about one paragraph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QaExample {
    /// The question's id.
    pub id: String,
    /// The article's title; empty where the file has none.
    pub title: String,
    /// The paragraph, shared between its questions.
    pub context: Arc<str>,
    /// The question.
    pub question: String,
    /// The accepted answers; empty only where answers were not required.
    pub answers: Vec<QaAnswer>,
}

/// Questions of a QA task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QaData {
    /// In the order of the files.
    pub examples: Vec<QaExample>,
    /// Questions left out because the file marks them `is_impossible` (SQuAD 2.0) and answers were required.
    pub skipped: usize,
}

/// A task's examples, whatever kind they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dataset {
    /// Of `sst2`, `mnli`, `classify`, `pair`.
    Classify(ClassifyData),
    /// Of `conll03`, `ner`.
    Ner(NerData),
    /// Of `squad`, `qa`.
    Qa(QaData),
}

impl Dataset {
    /// How many examples (texts, sentences, questions) there are.
    pub fn len(&self) -> usize {
        match self {
            Dataset::Classify(data) => data.examples.len(),
            Dataset::Ner(data) => data.sentences.len(),
            Dataset::Qa(data) => data.examples.len(),
        }
    }

    /// Whether there is none; the readers refuse such files.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The labels, for kinds that have any.
    pub fn labels(&self) -> Option<&Labels> {
        match self {
            Dataset::Classify(data) => data.labels.as_ref(),
            Dataset::Ner(data) => data.labels.as_ref(),
            Dataset::Qa(_) => None,
        }
    }

    /// Keeps the first `count` examples, in file order (`--max-train`).
    pub fn truncate(&mut self, count: usize) {
        match self {
            Dataset::Classify(data) => data.examples.truncate(count),
            Dataset::Ner(data) => data.sentences.truncate(count),
            Dataset::Qa(data) => data.examples.truncate(count),
        }
    }

    /// What the examples of a task are called, for messages.
    pub fn noun(task: Task) -> &'static str {
        match task.kind() {
            crate::Kind::Classify => "texts",
            crate::Kind::Pair => "pairs",
            crate::Kind::Ner => "sentences",
            crate::Kind::Qa => "questions",
        }
    }
}
