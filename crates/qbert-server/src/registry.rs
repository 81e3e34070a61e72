//! The models by name. A reload opens a file anew and swaps it in; requests in flight keep the model they began with.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use qbert_runtime::{EmbedOptions, Head, Pooling, Problem, Session, SessionOptions, Task};

use crate::error::{ApiError, ApiResult, ServeError};
use crate::settings::{ModelSource, Settings};

/// An open model.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) name: String,
    /// Another one after every reload: batches never mix two versions.
    pub(crate) generation: u64,
    pub(crate) session: Session,
    /// Seconds since 1970.
    pub(crate) loaded_at: u64,
    pooling: Option<Pooling>,
}

impl Model {
    /// How this model's embeddings are made: as its file says, where neither the server's settings nor the request say
    /// otherwise. The one place to ask.
    pub(crate) fn embed_options(&self, normalize: bool, dimensions: Option<usize>) -> EmbedOptions {
        let mut options = EmbedOptions::from(&self.session.embedder()).normalize(normalize);
        options.pooling = self.pooling.unwrap_or(options.pooling);
        options.dimensions = dimensions.or(options.dimensions);
        options
    }

    /// The numbers in a vector where a request does not ask for fewer.
    pub(crate) fn embedding_width(&self) -> usize {
        self.embed_options(true, None).dimensions.unwrap_or(self.session.config().hidden_size)
    }

    /// Whether it was trained on pairs of texts.
    pub(crate) fn takes_pairs(&self) -> bool {
        self.scores_pairs() || matches!(self.session.task(), Some(Task::Mnli | Task::Pair))
    }

    /// Whether it gives one value for each pair of texts, as rerankers do.
    pub(crate) fn scores_pairs(&self) -> bool {
        let pairs = self.session.task().is_none_or(|task| task == Task::ScorePair);
        self.session.head() == Head::SequenceClassification && self.session.problem() == Problem::Regression && pairs
    }
}

#[derive(Debug)]
struct Slot {
    source: ModelSource,
    current: RwLock<Option<Arc<Model>>>,
}

/// All models of a server.
#[derive(Debug)]
pub(crate) struct Registry {
    slots: Vec<Slot>,
    options: SessionOptions,
    pooling: Option<Pooling>,
    generations: AtomicU64,
}

impl Registry {
    pub(crate) fn new(settings: &Settings) -> Self {
        let slot = |source: &ModelSource| Slot { source: source.clone(), current: RwLock::new(None) };
        Self {
            slots: settings.models.iter().map(slot).collect(),
            // Every worker computes a batch of its own, so a batch gets one thread.
            options: SessionOptions::default().threads(1).max_len(settings.max_len),
            pooling: settings.pooling,
            generations: AtomicU64::new(0),
        }
    }

    /// Opens every model. Reads files, so not for the threads that serve.
    pub(crate) fn load(&self) -> Result<(), ServeError> {
        self.slots.iter().try_for_each(|slot| self.open(slot))
    }

    /// Opens every model anew. One that cannot be opened stays as it was, and the log says why.
    pub(crate) fn reload(&self) {
        for slot in &self.slots {
            if let Err(error) = self.open(slot) {
                let hint = error.hint().unwrap_or_default();
                tracing::error!(model = slot.source.name, %error, hint, "not reloaded: the old model stays");
            }
        }
    }

    fn open(&self, slot: &Slot) -> Result<(), ServeError> {
        let begun = Instant::now();
        let session = Session::open(&slot.source.path, self.options.clone())?;
        if self.pooling == Some(Pooling::Pooler) {
            let probe = session.prepare_embedding("", Pooling::Pooler)?;
            session.compute_together(&[(&probe, 0)])?;
        }
        let model = Model {
            name: slot.source.name.clone(),
            generation: self.generations.fetch_add(1, Ordering::Relaxed),
            session,
            loaded_at: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
            pooling: self.pooling,
        };
        let model = Arc::new(model);
        *slot.current.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&model));
        // Only now: who reads this line may expect the next request to see the new model.
        tracing::info!(
            model = model.name,
            bytes = model.session.model().file_len(),
            milliseconds = begun.elapsed().as_millis() as u64,
            "model loaded"
        );
        Ok(())
    }

    /// The model of this name, or the first one.
    pub(crate) fn get(&self, name: Option<&str>) -> ApiResult<Arc<Model>> {
        let slot = match name {
            None => self.slots.first(),
            Some(name) => self.slots.iter().find(|slot| slot.source.name == name),
        };
        let Some(slot) = slot else {
            let (given, names) = (name.unwrap_or_default(), self.names().join(", "));
            let shown: String = given.chars().take(100).collect();
            let message = format!("there is no model {shown:?} here");
            return Err(ApiError::new(StatusCode::NOT_FOUND, "unknown_model", message, format!("use one of: {names}")));
        };
        let current = slot.current.read().unwrap_or_else(PoisonError::into_inner);
        current.clone().ok_or_else(|| ApiError::unavailable("the model is being loaded"))
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        self.slots.iter().map(|slot| slot.source.name.as_str()).collect()
    }

    /// All models that are loaded, in order.
    pub(crate) fn loaded(&self) -> Vec<Arc<Model>> {
        self.slots
            .iter()
            .filter_map(|slot| slot.current.read().unwrap_or_else(PoisonError::into_inner).clone())
            .collect()
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.loaded().len() == self.slots.len()
    }
}
