//! Documents in the order of how well they fit a query, and how similar texts are.

use qbert_model::{Embedder, Head, Problem};
use qbert_tasks::Kind;
use qbert_tasks::embed::cosine;
use serde::Serialize;

use crate::error::Result;
use crate::input::Input;
use crate::predict::{Prediction, indexed};
use crate::session::Session;
use crate::vectors::Vectors;

/// A document and how well it fits.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Ranked {
    /// Its place in the list of documents.
    pub index: usize,
    /// A reranker's score, or the cosine similarity of the vectors. Only scores of the same model can be compared.
    pub score: f32,
}

impl Session {
    /// Whether the model is a reranker: it reads two texts together and gives them a score.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// # let session = tiny::classifier();
    /// assert!(!session.is_reranker());
    /// ```
    pub fn is_reranker(&self) -> bool {
        let reads_texts_alone = self.task().is_some_and(|task| task.kind() == Kind::Score);
        self.head() == Head::SequenceClassification && self.problem() == Problem::Regression && !reads_texts_alone
    }

    /// The documents by how well they fit the query, the best first; equal ones in their order.
    ///
    /// A [reranker](Session::is_reranker) reads the query with each document. Any other model compares vectors, with its
    /// prompts for queries and documents if it has any.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// # let session = tiny::classifier();
    /// let ranked = session.rank("the owl", &["two owls", "the owl"])?;
    /// assert_eq!(ranked[0].index, 1);
    /// # Ok::<(), qbert_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Item`](crate::Error::Item) for a document that cannot be computed.
    pub fn rank<S: AsRef<str> + Sync>(&self, query: &str, documents: &[S]) -> Result<Vec<Ranked>> {
        let scores = if self.is_reranker() {
            let pairs = documents.iter().map(|document| Input::pair(query, document.as_ref()));
            let score = |prediction| match prediction {
                Prediction::Score(found) => found.score,
                _ => f32::NAN,
            };
            indexed(self.predict_each(pairs))?.into_iter().map(score).collect()
        } else {
            let query = self.embed_as(self.query_prompt(), &[query])?.vectors;
            let documents = self.embed_as(self.document_prompt(), documents)?.vectors;
            documents.rows().map(|row| cosine(&query[0], row) as f32).collect::<Vec<f32>>()
        };
        Ok(in_order(&scores))
    }

    /// The cosine similarity of each text of one list with each of the other: a row per text of `first`.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// # let session = tiny::classifier();
    /// let found = session.similarity(&["the owl", "two owls"], &["the owl"])?;
    /// assert_eq!(found.shape(), [2, 1]);
    /// assert!((found[0][0] - 1.0).abs() < 1e-5);
    /// # Ok::<(), qbert_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Session::embed`].
    pub fn similarity<S: AsRef<str> + Sync, T: AsRef<str> + Sync>(&self, first: &[S], second: &[T]) -> Result<Vectors> {
        let (first, second) = (self.embed_as(None, first)?.vectors, self.embed_as(None, second)?.vectors);
        let mut found = Vectors::with_capacity(first.len(), second.len());
        for row in &first {
            let similarities: Vec<f32> = second.rows().map(|other| cosine(row, other) as f32).collect();
            found.extend(&similarities);
        }
        Ok(found)
    }

    /// The name of the model's prompt for queries, if it has one.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// # let session = tiny::classifier();
    /// assert_eq!(session.query_prompt(), None);
    /// ```
    pub fn query_prompt(&self) -> Option<&'static str> {
        self.purpose(Embedder::QUERY_PROMPTS)
    }

    /// The name of the model's prompt for documents, if it has one.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// # let session = tiny::classifier();
    /// assert_eq!(session.document_prompt(), None);
    /// ```
    pub fn document_prompt(&self) -> Option<&'static str> {
        self.purpose(Embedder::DOCUMENT_PROMPTS)
    }

    fn purpose(&self, names: &[&'static str]) -> Option<&'static str> {
        let own = self.config().embedder.as_ref()?;
        names.iter().copied().find(|&name| own.prompts.contains_key(name))
    }
}

/// The largest score first; equal ones in their order.
fn in_order(scores: &[f32]) -> Vec<Ranked> {
    let mut ranked: Vec<Ranked> = scores.iter().enumerate().map(|(index, &score)| Ranked { index, score }).collect();
    ranked.sort_by(|a, b| b.score.total_cmp(&a.score));
    ranked
}
