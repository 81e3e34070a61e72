//! An open model: what a program keeps while it answers requests.

use std::path::Path;

use qbert_kernels::{Compute, Threads};
use qbert_model::packed::PackedTokenizer;
use qbert_model::{Config, Head, PackedModel};
use qbert_quant::Plan;
use qbert_tasks::{Encoded, Task, Tokenizer, VocabOptions};

use crate::encoder::{Encoder, Scope, Tokens};
use crate::error::{Error, Result};
use crate::options::SessionOptions;
use crate::state::{Output, StatePool};
use crate::weights::Weights;

/// The number of tokens in one forward pass: enough for full speed, and little memory.
const BATCH_TOKENS: usize = 2048;

/// An open model. It is `Send + Sync`: share one session between threads.
#[derive(Debug)]
pub struct Session {
    encoder: Encoder,
    tokenizer: Tokenizer,
    /// What the model was trained for, if its file says so.
    task: Option<Task>,
    max_len: usize,
    max_input_bytes: usize,
    states: StatePool,
}

impl Session {
    /// Opens and checks the packed model at `path`.
    ///
    /// The file is read into memory, or mapped if it is large or the [options](SessionOptions::storage) say so. To replace
    /// a mapped model while it is in use, write the new file beside it and rename it over the old one. If something writes
    /// into the mapped file itself, every further call is an [`Error::Model`] that says so.
    ///
    /// ```no_run
    /// use qbert_runtime::{Session, SessionOptions};
    ///
    /// let session = Session::open("model.qbert", SessionOptions::default())?;
    /// # Ok::<(), qbert_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the file cannot be read, is not a packed model or is damaged, or if the options do not fit the model.
    pub fn open(path: impl AsRef<Path>, options: SessionOptions) -> Result<Self> {
        Self::new(PackedModel::open_in(options.storage, path.as_ref())?, options)
    }

    /// Opens a packed model from memory, for example from `include_bytes!`. Error messages refer to it as `name`.
    ///
    /// ```no_run
    /// use qbert_runtime::{Session, SessionOptions};
    ///
    /// let bytes = std::fs::read("model.qbert")?;
    /// let session = Session::from_bytes("model.qbert", bytes, SessionOptions::default())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// See [`Session::open`].
    pub fn from_bytes(name: &str, bytes: Vec<u8>, options: SessionOptions) -> Result<Self> {
        Self::new(PackedModel::from_bytes(name, bytes)?, options)
    }

    /// Makes a session of a packed model that is already open.
    ///
    /// ```no_run
    /// use qbert_runtime::{PackedModel, Session, SessionOptions};
    ///
    /// let model = PackedModel::open("model.qbert".as_ref())?;
    /// model.verify()?;
    /// let session = Session::new(model, SessionOptions::default())?;
    /// # Ok::<(), qbert_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the tokenizer in the file or the options do not fit the model.
    pub fn new(model: PackedModel, options: SessionOptions) -> Result<Self> {
        let compute = options.to_compute()?;
        let positions = model.config().max_positions;
        let own = model.config().embedder.as_ref().and_then(|own| own.max_length).unwrap_or(positions);
        let max_len = options.max_len.unwrap_or(own.min(positions));
        if max_len == 0 || max_len > positions {
            return Err(Error::MaxLen { max_len, positions });
        }
        let tokenizer = tokenizer(&model)?;
        if tokenizer.vocab_size() > model.config().vocab_size {
            let (tokenizer, vocabulary) = (tokenizer.vocab_size(), model.config().vocab_size);
            return Err(Error::Vocabulary { path: model.path().to_owned(), tokenizer, model: vocabulary });
        }
        let weights = Weights::new(&model, &compute)?;
        let task = model.task().parse().ok();
        let states = StatePool::new(compute.threads().count().max(Threads::available()));
        let encoder = Encoder { model, weights, compute };
        let max_input_bytes = options.max_input_bytes;
        Ok(Self { encoder, tokenizer, task, max_len, max_input_bytes, states })
    }

    /// Computes hidden states and scores of token ids. Allocates nothing once it has seen requests of this size.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// use qbert_runtime::{Scope, Tokens};
    ///
    /// # let session = tiny::classifier();
    /// let special = session.tokenizer().special();
    /// let pieces = session.tokenizer().pieces("the owl")?;
    /// let ids = [&[special.cls], &pieces.ids[..], &[special.sep]].concat();
    /// let tokens = Tokens { ids: &ids, segments: &vec![0; ids.len()], offsets: &[0, ids.len()] };
    ///
    /// let output = session.forward(tokens, Scope::All)?;
    /// assert_eq!(output.hidden().len(), ids.len() * output.width());
    /// assert_eq!(output.logits().len(), session.labels().len());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Tokens`] if ids, segments and offsets do not fit together or do not fit the model; [`Error::Model`] if the
    /// model is mapped and something wrote into its file.
    pub fn forward(&self, tokens: Tokens<'_>, scope: Scope) -> Result<Output<'_>> {
        self.encoder.check(&tokens)?;
        self.forward_checked(tokens, scope)
    }

    fn forward_checked(&self, tokens: Tokens<'_>, scope: Scope) -> Result<Output<'_>> {
        self.model().check_unchanged()?;
        let mut state = self.states.take(self.config());
        self.encoder.run(&tokens, scope, &mut state);
        let output = Output::new(state, &self.states);
        // A write during the computation may have reached any of its weights.
        self.model().check_unchanged()?;
        Ok(output)
    }

    /// Refuses a sequence that the model cannot compute, before it joins others in a batch.
    pub(crate) fn check_sequence(&self, sequence: &Encoded) -> Result<()> {
        let offsets = [0, sequence.len()];
        self.encoder.check(&Tokens { ids: &sequence.input_ids, segments: &sequence.segments, offsets: &offsets })
    }

    /// Computes sequences that passed [`Session::check_sequence`], in batches, and hands each one to `take` in order:
    /// the output of its batch and its number there.
    ///
    /// # Errors
    /// Only that of [`PackedModel::check_unchanged`].
    pub(crate) fn forward_each<'a>(
        &self,
        sequences: impl IntoIterator<Item = &'a Encoded>,
        scope: Scope,
        mut take: impl FnMut(&Output<'_>, usize),
    ) -> Result<()> {
        let (mut ids, mut segments, mut offsets) = (Vec::new(), Vec::new(), vec![0]);
        let mut sequences = sequences.into_iter().peekable();
        while let Some(sequence) = sequences.next() {
            ids.extend_from_slice(&sequence.input_ids);
            segments.extend_from_slice(&sequence.segments);
            offsets.push(ids.len());
            if sequences.peek().is_some_and(|next| ids.len() + next.len() <= BATCH_TOKENS) {
                continue;
            }
            let output = self.forward_checked(Tokens { ids: &ids, segments: &segments, offsets: &offsets }, scope)?;
            (0..output.sequences()).for_each(|sequence| take(&output, sequence));
            ids.clear();
            segments.clear();
            offsets.truncate(1);
        }
        Ok(())
    }

    /// The packed model.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// # let session = tiny::classifier();
    /// println!("{} has {} bytes", session.model().path().display(), session.model().file_len());
    /// ```
    pub fn model(&self) -> &PackedModel {
        &self.encoder.model
    }

    /// The model's dimensions.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// # let session = tiny::classifier();
    /// let config = session.config();
    /// println!("{} layers, hidden size {}", config.layers, config.hidden_size);
    /// # assert_eq!(config.layers, 2);
    /// ```
    pub fn config(&self) -> &Config {
        self.model().config()
    }

    /// The model's head: labels of texts, labels of tokens, answers, or none.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// use qbert_runtime::Head;
    ///
    /// # let session = tiny::classifier();
    /// assert_eq!(session.head(), Head::SequenceClassification);
    /// ```
    pub fn head(&self) -> Head {
        self.model().head()
    }

    /// The task that the model was trained for, if its file names a known one.
    ///
    /// It tells models of pairs from models of single texts, which have the same head: see [`Session::check`].
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// use qbert_runtime::Task;
    ///
    /// # let session = tiny::session_for(qbert_model::Head::SequenceClassification, "sst2");
    /// assert_eq!(session.task(), Some(Task::Sst2));
    /// ```
    pub fn task(&self) -> Option<Task> {
        self.task
    }

    /// The labels of a classifier in the order of its scores. Empty for other heads.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// # let session = tiny::classifier();
    /// assert_eq!(session.labels(), ["no", "yes"]);
    /// ```
    pub fn labels(&self) -> &[String] {
        self.model().labels()
    }

    /// The bit plan: how each part of the model is quantized.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// # let session = tiny::classifier();
    /// println!("{:?}", session.plan());
    /// ```
    pub fn plan(&self) -> &Plan {
        self.model().plan()
    }

    /// The model's tokenizer.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// # let session = tiny::classifier();
    /// let pieces = session.tokenizer().pieces("the owls")?;
    /// assert_eq!(pieces.offsets, [(0, 3), (4, 7), (7, 8)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The longest sequence in tokens, including special tokens.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// # let session = tiny::classifier();
    /// assert_eq!(session.max_len(), session.config().max_positions);
    /// ```
    pub fn max_len(&self) -> usize {
        self.max_len
    }

    /// Refuses texts that are together longer than [`SessionOptions::max_input_bytes`].
    pub(crate) fn check_bytes(&self, bytes: usize) -> Result<()> {
        let limit = self.max_input_bytes;
        if bytes > limit { Err(Error::InputTooLong { bytes, limit }) } else { Ok(()) }
    }

    /// The instruction set and threads that the session computes with.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// # let session = tiny::classifier();
    /// let compute = session.compute();
    /// println!("{} on {} threads", compute.kernels().name(), compute.threads().count());
    /// ```
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
