//! A packed model, opened: what a program keeps for as long as it answers.

use std::path::Path;

use qbert_kernels::{Compute, Threads};
use qbert_model::packed::PackedTokenizer;
use qbert_model::{Config, Head, PackedModel};
use qbert_quant::Plan;
use qbert_tasks::{Tokenizer, VocabOptions};

use crate::encoder::{Encoder, Scope, Tokens};
use crate::error::{Error, Result};
use crate::state::{Output, StatePool};
use crate::weights::Weights;

/// How a session works.
#[derive(Debug, Clone)]
pub struct SessionOptions {
    /// Threads that work on one request, the calling one included. Several requests at once share the helpers: while one
    /// has them, the others work on their own threads.
    pub threads: usize,
    /// The longest sequence in tokens, special ones included; as long as the model takes if `None`, and 384 at the most
    /// for questions. Longer texts are cut, or seen through windows.
    pub max_len: Option<usize>,
}

impl Default for SessionOptions {
    /// As many threads as there are cores.
    fn default() -> Self {
        Self { threads: Threads::available(), max_len: None }
    }
}

/// An opened model. `Send + Sync`: share one between threads.
#[derive(Debug)]
pub struct Session {
    encoder: Encoder,
    tokenizer: Tokenizer,
    max_len: usize,
    states: StatePool,
}

impl Session {
    /// Opens and checks the packed model at `path`; its weights are used from the file's memory map.
    ///
    /// # Errors
    /// When the file cannot be read, is no packed model or is damaged; when the options make no sense.
    pub fn open(path: impl AsRef<Path>, options: SessionOptions) -> Result<Self> {
        Self::new(PackedModel::open(path.as_ref())?, options)
    }

    /// The same from bytes in memory; `name` stands for them in errors.
    ///
    /// # Errors
    /// As [`Session::open`].
    pub fn from_bytes(name: &str, bytes: Vec<u8>, options: SessionOptions) -> Result<Self> {
        Self::new(PackedModel::from_bytes(name, bytes)?, options)
    }

    /// The same from a model that is already open.
    ///
    /// # Errors
    /// A tokenizer that does not fit the model; options that make no sense.
    pub fn new(model: PackedModel, options: SessionOptions) -> Result<Self> {
        Self::with_compute(model, Compute::detect(options.threads)?, options.max_len)
    }

    /// The same with kernels and threads that are there already: to share them between models, or to choose the
    /// instruction set. `max_len` as in [`SessionOptions`].
    ///
    /// # Errors
    /// As [`Session::new`].
    pub fn with_compute(model: PackedModel, compute: Compute, max_len: Option<usize>) -> Result<Self> {
        let positions = model.config().max_positions;
        let max_len = max_len.unwrap_or(positions);
        if max_len == 0 || max_len > positions {
            return Err(Error::MaxLen { max_len, positions });
        }
        let tokenizer = tokenizer(&model)?;
        if tokenizer.vocab_size() > model.config().vocab_size {
            let (tokenizer, vocabulary) = (tokenizer.vocab_size(), model.config().vocab_size);
            return Err(Error::Vocabulary { path: model.path().to_owned(), tokenizer, model: vocabulary });
        }
        let weights = Weights::new(&model, &compute)?;
        let encoder = Encoder { model, weights, compute };
        Ok(Self { encoder, tokenizer, max_len, states: StatePool::default() })
    }

    /// Hidden states and scores of token ids. Takes no memory once it has seen requests of this size.
    ///
    /// # Errors
    /// [`Error::Tokens`] when ids, segments or offsets do not fit together or the model.
    pub fn forward(&self, tokens: Tokens<'_>, scope: Scope) -> Result<Output<'_>> {
        self.encoder.check(&tokens)?;
        let mut state = self.states.take(self.config());
        self.encoder.run(&tokens, scope, &mut state);
        Ok(Output::new(state, &self.states))
    }

    /// The packed model.
    pub fn model(&self) -> &PackedModel {
        &self.encoder.model
    }

    /// The model's numbers.
    pub fn config(&self) -> &Config {
        self.model().config()
    }

    /// What the model is for.
    pub fn head(&self) -> Head {
        self.model().head()
    }

    /// A classifier's labels, in the order of its scores; empty for other heads.
    pub fn labels(&self) -> &[String] {
        self.model().labels()
    }

    /// What is quantized how.
    pub fn plan(&self) -> &Plan {
        self.model().plan()
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The longest sequence in tokens.
    pub fn max_len(&self) -> usize {
        self.max_len
    }

    /// Kernels and threads.
    pub fn compute(&self) -> &Compute {
        &self.encoder.compute
    }
}

fn tokenizer(model: &PackedModel) -> Result<Tokenizer> {
    let name = format!("{}: the tokenizer inside", model.path().display());
    Ok(match model.tokenizer() {
        PackedTokenizer::Json(text) => Tokenizer::from_json(&name, text)?,
        PackedTokenizer::Vocabulary { text, options } => {
            let options = VocabOptions::from_config(&name, options.as_bytes())?;
            Tokenizer::from_vocab(&name, text, options)?
        }
    })
}
