//! Texts that become vectors: nothing to learn from but the texts, and four ways to judge the vectors.
//!
//! What a data set can be judged by follows from its files ([`EmbedAim`]): pairs of texts with a similarity (STS), queries with
//! their relevant documents (BEIR's layout), texts with classes (a linear probe), or nothing. Training needs none of it: the
//! texts of any data set will do.

mod probe;
mod read;
mod retrieval;
mod score;

pub use probe::{Probe, ProbeReport, fit_probe};
pub(crate) use read::read;
pub use retrieval::{Relevant, RetrievalReport};
pub(crate) use score::score;
pub use score::{SimilarityReport, cosine};

use serde::{Deserialize, Serialize};

use crate::encoded::Encoded;
use crate::kinds::{Examples, InputShape, Output, Profile, Recipe};
use crate::qa::QaOptions;
use crate::stats::{DataStatistics, ExampleLengths};
use crate::{Labels, Result, Tokenizer, classify};

/// What the outputs of a model of vectors are called, together.
pub const OUTPUT_NAME: &str = "vector";

pub(crate) const PROFILE: Profile = Profile {
    examples: "texts",
    sequence: "text",
    sequences: "texts",
    purpose: "turning texts into vectors",
    hub_task: "sentence-similarity",
    default_max_len: 256,
    input: InputShape::Text,
    output: Output::Vector,
    has_labels: false,
    recipe: Recipe { epochs: 1, quantization_epochs: 1, batch: 64, learning_rate: 3e-4 },
    ..classify::TEXTS
};

/// What stands before texts, by their purpose; nothing by default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Prompts {
    /// Before the queries of a search.
    pub query: String,
    /// Before the documents of a search.
    pub document: String,
    /// Before all other texts.
    pub other: String,
}

/// Texts, and what their vectors are judged by.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbedData {
    /// All texts, with their prompts.
    pub texts: Vec<String>,
    /// What their vectors are judged by.
    pub aim: EmbedAim,
}

/// What vectors are judged by. Numbers are places in [`EmbedData::texts`].
#[derive(Debug, Clone, PartialEq)]
pub enum EmbedAim {
    /// Nothing: texts to learn from.
    None,
    /// How similar two texts are.
    Pairs(Vec<TextPair>),
    /// Which documents answer a query.
    Retrieval {
        /// The queries, each with its relevant documents.
        queries: Vec<Query>,
        /// The documents.
        documents: Vec<usize>,
    },
    /// The class of every text.
    Classes {
        /// One per text.
        of_text: Vec<usize>,
        /// Their names.
        names: Labels,
    },
}

/// Two texts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TextPair {
    /// The first.
    pub first: usize,
    /// The second.
    pub second: usize,
    /// How similar people find them, on any scale.
    pub score: Option<f64>,
}

/// A query.
#[derive(Debug, Clone, PartialEq)]
pub struct Query {
    /// Its text.
    pub text: usize,
    /// The document that is the query itself, where the corpus has it; it is never an answer.
    pub itself: Option<usize>,
    /// What answers it, with grades above 0.
    pub relevant: Vec<Relevant>,
}

impl EmbedAim {
    /// The figure in tables.
    pub(crate) fn metric(&self) -> &'static str {
        match self {
            Self::None | Self::Pairs(_) => "spearman",
            Self::Retrieval { .. } => "ndcg@10",
            Self::Classes { .. } => "accuracy",
        }
    }
}

impl EmbedData {
    /// The first examples. Of a search, that is the first queries over all documents.
    pub(crate) fn first(&self, count: usize) -> Self {
        let texts = |count: usize| self.texts.iter().take(count).cloned().collect();
        match &self.aim {
            EmbedAim::None => Self { texts: texts(count), aim: EmbedAim::None },
            EmbedAim::Classes { of_text, names } => {
                let of_text = of_text.iter().take(count).copied().collect();
                Self { texts: texts(count), aim: EmbedAim::Classes { of_text, names: names.clone() } }
            }
            EmbedAim::Pairs(pairs) => {
                let kept: Vec<TextPair> = pairs.iter().take(count).copied().collect();
                let last = kept.iter().map(|pair| pair.first.max(pair.second) + 1).max().unwrap_or(0);
                Self { texts: texts(last), aim: EmbedAim::Pairs(kept) }
            }
            EmbedAim::Retrieval { queries, documents } => {
                let queries = queries.iter().take(count).cloned().collect();
                Self { texts: self.texts.clone(), aim: EmbedAim::Retrieval { queries, documents: documents.clone() } }
            }
        }
    }

    pub(crate) fn encode(&self, tokenizer: &Tokenizer, max_len: usize) -> Result<Vec<Encoded>> {
        self.texts.iter().map(|text| classify::encode(tokenizer, text, None, max_len)).collect()
    }
}

impl Examples for EmbedData {
    fn len(&self) -> usize {
        match &self.aim {
            EmbedAim::None | EmbedAim::Classes { .. } => self.texts.len(),
            EmbedAim::Pairs(pairs) => pairs.len(),
            EmbedAim::Retrieval { queries, .. } => queries.len(),
        }
    }

    fn count(&self, statistics: &mut DataStatistics) {
        if let EmbedAim::Pairs(pairs) = &self.aim {
            statistics.unlabelled = pairs.iter().filter(|pair| pair.score.is_none()).count();
        }
    }

    fn lengths(&self, tokenizer: &Tokenizer, options: &QaOptions) -> Result<Vec<ExampleLengths>> {
        let one = |encoded: Encoded| {
            let (length, removed) = (encoded.len(), encoded.removed);
            ExampleLengths { whole: length + removed, truncated: removed > 0, sequences: vec![length] }
        };
        Ok(self.encode(tokenizer, options.max_len)?.into_iter().map(one).collect())
    }
}
