//! Embeddings: one vector per text, made of the last layer's hidden states.

use qbert_tasks::Encoded;
use qbert_tasks::classify::encode;

use crate::error::{Error, Result};
use crate::predict::indexed;
use crate::session::Session;
use crate::state::Output;
use crate::vectors::Vectors;

/// The shortest vector that normalization scales to length 1, as in PyTorch's `normalize`.
const LEAST_NORM: f64 = 1e-12;

/// How the hidden states of a text become one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Pooling {
    /// The mean over all tokens, including `[CLS]` and `[SEP]`. Most sentence encoders are trained with it.
    #[default]
    Mean,
    /// The hidden state of the first token, `[CLS]`.
    First,
    /// The output of the model's pooler: the first token through a linear layer and tanh.
    Pooler,
}

/// Settings of [`Session::embed`]. A bare [`Pooling`] serves as well.
///
/// ```
/// use qbert_runtime::{EmbedOptions, Pooling};
///
/// let options = EmbedOptions::default().pooling(Pooling::First).normalize(true);
/// assert_eq!(options.pooling, Pooling::First);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct EmbedOptions {
    /// How the hidden states of a text become one vector. The mean by default.
    pub pooling: Pooling,
    /// Whether vectors are scaled to length 1, so that their dot product is the cosine similarity. Off by default.
    pub normalize: bool,
}

impl EmbedOptions {
    /// Sets how the hidden states of a text become one vector.
    ///
    /// ```
    /// # use qbert_runtime::{EmbedOptions, Pooling};
    /// assert_eq!(EmbedOptions::default().pooling(Pooling::First), Pooling::First.into());
    /// ```
    #[must_use]
    pub fn pooling(mut self, pooling: Pooling) -> Self {
        self.pooling = pooling;
        self
    }

    /// Sets whether vectors are scaled to length 1.
    ///
    /// ```
    /// # use qbert_runtime::EmbedOptions;
    /// assert!(EmbedOptions::default().normalize(true).normalize);
    /// ```
    #[must_use]
    pub fn normalize(mut self, normalize: bool) -> Self {
        self.normalize = normalize;
        self
    }
}

impl From<Pooling> for EmbedOptions {
    fn from(pooling: Pooling) -> Self {
        Self { pooling, ..Self::default() }
    }
}

/// The embeddings of texts.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Embeddings {
    /// One vector per text, in order.
    pub vectors: Vectors,
    /// For each text, the number of pieces cut off because it is longer than the model allows.
    pub removed: Vec<usize>,
}

impl Session {
    /// Turns each text into a vector, in order. Works with every head; texts that are too long are cut.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// use qbert_runtime::{EmbedOptions, Pooling};
    ///
    /// # let session = tiny::classifier();
    /// let plain = session.embed(&["the owl", "two owls"], Pooling::Mean)?;
    /// assert_eq!(plain.vectors.shape(), [2, session.config().hidden_size]);
    ///
    /// // Cosine similarity:
    /// let vectors = session.embed(&["the owl", "two owls"], EmbedOptions::default().normalize(true))?.vectors;
    /// let cosine: f32 = vectors[0].iter().zip(&vectors[1]).map(|(x, y)| x * y).sum();
    /// assert!(cosine <= 1.001);
    /// # Ok::<(), qbert_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Item`] for a text that cannot be encoded, [`Error::NoPooler`] for [`Pooling::Pooler`] if the file has no
    /// pooler.
    pub fn embed<S: AsRef<str> + Sync>(&self, texts: &[S], options: impl Into<EmbedOptions>) -> Result<Embeddings> {
        let options = options.into();
        let encoded = self.encode_texts(texts)?;
        let scope = options.scope();
        let mut vectors = Vectors::with_capacity(encoded.len(), self.config().hidden_size);
        let mut has_pooler = true;
        self.forward_each(&encoded, scope, |output, sequence| {
            let vector = vectors.push_zeros();
            has_pooler &= pool(output, sequence, options.pooling, vector);
            if options.normalize {
                normalize(vector);
            }
        })?;
        if !has_pooler {
            return Err(Error::NoPooler { path: self.model().path().to_owned() });
        }
        Ok(Embeddings { vectors, removed: encoded.into_iter().map(|encoded| encoded.removed).collect() })
    }

    /// Encodes single texts on all threads.
    pub(crate) fn encode_texts<S: AsRef<str> + Sync>(&self, texts: &[S]) -> Result<Vec<Encoded>> {
        indexed(self.map_each(texts.iter().collect(), |text| {
            let encoded = encode(self.tokenizer(), text.as_ref(), None, self.max_len())?;
            self.check_sequence(&encoded)?;
            Ok(encoded)
        }))
    }
}

/// Writes the vector of a sequence; `false` if it needs a pooler and the model has none.
pub(crate) fn pool(output: &Output<'_>, sequence: usize, pooling: Pooling, vector: &mut [f32]) -> bool {
    let hidden = output.hidden_of(sequence);
    match pooling {
        Pooling::Mean => mean(hidden, vector),
        Pooling::First => vector.copy_from_slice(&hidden[..vector.len()]),
        Pooling::Pooler if output.pooled().is_empty() => return false,
        Pooling::Pooler => vector.copy_from_slice(output.pooled_of(sequence)),
    }
    true
}

/// The sum over rows in their order, then one division.
fn mean(rows: &[f32], vector: &mut [f32]) {
    let count = rows.len() / vector.len();
    for row in rows.chunks_exact(vector.len()) {
        vector.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
    }
    vector.iter_mut().for_each(|sum| *sum /= count as f32);
}

pub(crate) fn normalize(vector: &mut [f32]) {
    let squares: f64 = vector.iter().map(|&value| f64::from(value) * f64::from(value)).sum();
    let norm = squares.sqrt().max(LEAST_NORM);
    vector.iter_mut().for_each(|value| *value = (f64::from(*value) / norm) as f32);
}

#[cfg(test)]
mod tests {
    use super::{mean, normalize};

    #[test]
    fn the_mean_counts_every_row() {
        let mut vector = [0.0; 2];
        mean(&[1.0, 2.0, 3.0, 4.0, 8.0, 0.0], &mut vector);
        assert_eq!(vector, [4.0, 2.0]);
    }

    #[test]
    fn normalized_vectors_have_length_one_and_zeros_stay() {
        let mut vector = [3.0, 4.0];
        normalize(&mut vector);
        assert_eq!(vector, [0.6, 0.8]);
        let mut zeros = [0.0; 3];
        normalize(&mut zeros);
        assert_eq!(zeros, [0.0; 3]);
    }
}
