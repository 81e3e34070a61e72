//! Embeddings: one vector per text, made of the last layer's hidden states.

use qbert_kernels::unit_length;
use qbert_model::{Embedder, Pooling};
use qbert_tasks::Encoded;
use qbert_tasks::classify::encode;

use crate::encoder::{Scope, Tokens};
use crate::error::{Error, Result};
use crate::predict::indexed;
use crate::session::Session;
use crate::state::Output;
use crate::vectors::Vectors;

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
    /// Numbers of a vector that are kept, from the first, before it is scaled: for models that are trained so that the first
    /// numbers alone are useful (Matryoshka). All by default.
    pub dimensions: Option<usize>,
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

    /// Sets how many numbers of a vector are kept. `None` keeps all.
    ///
    /// ```
    /// # use qbert_runtime::EmbedOptions;
    /// assert_eq!(EmbedOptions::default().dimensions(64).dimensions, Some(64));
    /// ```
    #[must_use]
    pub fn dimensions(mut self, dimensions: impl Into<Option<usize>>) -> Self {
        self.dimensions = dimensions.into();
        self
    }

    /// The first token and the pooler need no other token of the last layer.
    pub(crate) fn scope(self) -> Scope {
        match self.pooling {
            Pooling::First | Pooling::Pooler => Scope::Scores,
            _ => Scope::Hidden,
        }
    }

    /// The length of a vector of this model.
    pub(crate) fn width(self, session: &Session) -> Result<usize> {
        let width = session.config().hidden_size;
        match self.dimensions {
            None => Ok(width),
            Some(kept) if (1..=width).contains(&kept) => Ok(kept),
            Some(dimensions) => Err(Error::Dimensions { dimensions, width }),
        }
    }

    /// Writes the vector of a sequence, as long as [`EmbedOptions::width`] says. `whole` is scratch memory.
    pub(crate) fn write(
        self,
        session: &Session,
        (output, sequence): (&Output<'_>, usize),
        whole: &mut Vec<f32>,
        vector: &mut [f32],
    ) -> Result<()> {
        let hidden = output.hidden_of(sequence);
        whole.resize(output.width(), 0.0);
        match self.pooling.of_tokens() {
            Some(pooling) => pooling.forward(hidden, whole),
            None if output.pooled().is_empty() => {
                return Err(Error::NoPooler { path: session.model().path().to_owned() });
            }
            None => whole.copy_from_slice(output.pooled_of(sequence)),
        }
        vector.copy_from_slice(&whole[..vector.len()]);
        if self.normalize {
            unit_length(vector);
        }
        Ok(())
    }
}

impl From<&Embedder> for EmbedOptions {
    /// What the model's own settings say.
    fn from(own: &Embedder) -> Self {
        Self { pooling: own.pooling, normalize: own.normalize, dimensions: own.dimensions }
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
    /// pooler, [`Error::Dimensions`] for more numbers than a vector has.
    pub fn embed<S: AsRef<str> + Sync>(&self, texts: &[S], options: impl Into<EmbedOptions>) -> Result<Embeddings> {
        let options = options.into();
        let encoded = self.encode_texts(texts)?;
        let mut vectors = Vectors::with_capacity(encoded.len(), options.width(self)?);
        let (mut whole, mut failure) = (Vec::new(), None);
        self.forward_each(&encoded, options.scope(), |output, sequence| {
            let written = options.write(self, (output, sequence), &mut whole, vectors.push_zeros());
            failure = failure.take().or(written.err());
        })?;
        match failure {
            Some(error) => Err(error),
            None => Ok(Embeddings { vectors, removed: encoded.into_iter().map(|encoded| encoded.removed).collect() }),
        }
    }

    /// The vectors of token ids, as the model's file says.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// use qbert_runtime::Tokens;
    ///
    /// # let session = tiny::classifier();
    /// let vectors = session.vectors(Tokens { ids: &[2, 5, 3], segments: &[0; 3], offsets: &[0, 3] })?;
    /// assert_eq!(vectors.len(), 1);
    /// # Ok::<(), qbert_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Session::forward`] and [`Session::embed`].
    pub fn vectors(&self, tokens: Tokens<'_>) -> Result<Vectors> {
        let options = EmbedOptions::from(&self.embedder());
        let output = self.forward(tokens, options.scope())?;
        let mut vectors = Vectors::with_capacity(output.sequences(), options.width(self)?);
        let mut whole = Vec::new();
        for sequence in 0..output.sequences() {
            options.write(self, (&output, sequence), &mut whole, vectors.push_zeros())?;
        }
        Ok(vectors)
    }

    /// How the model turns texts into vectors: as its file says, or by the mean of all tokens where it says nothing.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// use qbert_runtime::Pooling;
    ///
    /// # let session = tiny::classifier();
    /// let own = session.embedder();
    /// assert_eq!(own.pooling, Pooling::Mean);
    /// let vectors = session.embed(&["the owl"], &own)?.vectors;
    /// # assert_eq!(vectors.len(), 1);
    /// # Ok::<(), qbert_runtime::Error>(())
    /// ```
    pub fn embedder(&self) -> Embedder {
        self.config().embedder.clone().unwrap_or_default()
    }

    /// Turns each text into a vector as the model's file says, with a prompt in front: the one of this name, or the default
    /// one where there is any.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// # let session = tiny::classifier();
    /// let vectors = session.embed_as(None, &["the owl", "two owls"])?.vectors;
    /// assert_eq!(vectors.len(), 2);
    /// assert!(session.embed_as(Some("query"), &["the owl"]).is_err(), "this model has no prompts");
    /// # Ok::<(), qbert_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Session::embed`]; [`Error::Prompt`] for a prompt that the model does not have.
    pub fn embed_as<S: AsRef<str> + Sync>(&self, prompt: Option<&str>, texts: &[S]) -> Result<Embeddings> {
        let own = self.embedder();
        match self.prompt(prompt)? {
            "" => self.embed(texts, &own),
            prompt => {
                let texts: Vec<String> = texts.iter().map(|text| format!("{prompt}{}", text.as_ref())).collect();
                self.embed(&texts, &own)
            }
        }
    }

    /// What stands before a text for this purpose: the model's prompt of this name, or its default one, or nothing.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// # let session = tiny::classifier();
    /// assert_eq!(session.prompt(None)?, "");
    /// # Ok::<(), qbert_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Prompt`] for a name that the model does not have.
    pub fn prompt(&self, name: Option<&str>) -> Result<&str> {
        let Some(own) = &self.config().embedder else {
            return match name {
                None => Ok(""),
                Some(name) => Err(Error::Prompt { name: name.to_owned(), known: Vec::new() }),
            };
        };
        own.prompt(name).map_err(|known| Error::Prompt { name: name.unwrap_or_default().to_owned(), known })
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
