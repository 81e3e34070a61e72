//! What every route shares: settings, models, the queue; and the one way from texts to outcomes.

use std::sync::Arc;
use std::time::Instant;

use axum::http::StatusCode;
use qbert_runtime::{EmbedOptions, Input, Outcome, Prediction, Prepared};

use crate::auth::ApiKeys;
use crate::batcher::Batcher;
use crate::error::{ApiError, ApiResult, ServeError};
use crate::metrics::{Metrics, Stage};
use crate::registry::{Model, Registry};
use crate::settings::Settings;

/// More bytes than this are tokenized away from the threads that serve connections.
const INLINE_BYTES: usize = 8 << 10;
/// Vectors of all tokens are large, so a request for them may have this part of the tokens of others.
const HIDDEN_STATES_SHARE: usize = 16;

/// A question to a model.
#[derive(Debug)]
pub(crate) enum Question {
    /// Whatever the model was trained for.
    Predict(Input),
    /// The vector of a text.
    Embed(String, EmbedOptions),
    /// The vectors of a text's tokens.
    HiddenStates(String),
}

impl Question {
    fn bytes(&self) -> usize {
        match self {
            Self::Embed(text, _) | Self::HiddenStates(text) => text.len(),
            Self::Predict(Input::Text { text }) => text.len(),
            Self::Predict(Input::Pair { text, text2 }) => text.len() + text2.len(),
            Self::Predict(Input::Question { question, context }) => question.len() + context.len(),
            Self::Predict(Input::Words { words }) => words.iter().map(String::len).sum(),
            Self::Predict(_) => INLINE_BYTES,
        }
    }

    fn prepare(self, model: &Model) -> qbert_runtime::Result<Prepared> {
        match self {
            Self::Predict(input) => model.session.prepare(input),
            Self::Embed(text, options) => model.session.prepare_embedding(&text, options),
            Self::HiddenStates(text) => model.session.prepare_hidden_states(&text),
        }
    }
}

/// Outcomes in the order of the questions, and what they cost.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) outcomes: Vec<Outcome>,
    pub(crate) tokens: usize,
}

impl Answered {
    pub(crate) fn vectors(self) -> ApiResult<Vec<Vec<f32>>> {
        let vector = |outcome| match outcome {
            Outcome::Embedding(vector) => Ok(vector),
            _ => Err(ApiError::internal("an outcome of another kind")),
        };
        self.outcomes.into_iter().map(vector).collect()
    }

    pub(crate) fn predictions(self) -> ApiResult<Vec<Prediction>> {
        let prediction = |outcome| match outcome {
            Outcome::Prediction(prediction) => Ok(prediction),
            _ => Err(ApiError::internal("an outcome of another kind")),
        };
        self.outcomes.into_iter().map(prediction).collect()
    }
}

/// What every route shares. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct App {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    settings: Settings,
    registry: Registry,
    batcher: Batcher,
    metrics: Arc<Metrics>,
    keys: ApiKeys,
    started: Instant,
}

impl App {
    /// Checks the settings and starts the workers; loads nothing yet.
    pub(crate) fn new(settings: Settings) -> Result<Self, ServeError> {
        settings.check()?;
        let metrics = Arc::new(Metrics::new());
        let inner = Inner {
            registry: Registry::new(&settings),
            keys: ApiKeys::new(settings.api_key_file.clone())?,
            batcher: Batcher::start(&settings, Arc::clone(&metrics))?,
            metrics,
            settings,
            started: Instant::now(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.inner.registry
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    pub(crate) fn keys(&self) -> &ApiKeys {
        &self.inner.keys
    }

    pub(crate) fn batcher(&self) -> &Batcher {
        &self.inner.batcher
    }

    pub(crate) fn uptime_seconds(&self) -> f64 {
        self.inner.started.elapsed().as_secs_f64()
    }

    /// Opens models and keys anew.
    pub(crate) fn reload(&self) {
        self.inner.registry.reload();
        if let Err(error) = self.inner.keys.reload() {
            tracing::error!(%error, "the API keys are not reloaded: the old ones stay");
        }
    }

    /// Answers questions: limits, tokens, queue, computation. If `truncate` is false, a text that the model would cut is an
    /// error instead.
    pub(crate) async fn answer(
        &self,
        model: &Arc<Model>,
        questions: Vec<Question>,
        truncate: bool,
    ) -> ApiResult<Answered> {
        let settings = self.settings();
        if questions.len() > settings.max_items {
            let message = format!("{} texts in one request; at most {} are taken", questions.len(), settings.max_items);
            return Err(ApiError::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "too_many_items",
                message,
                "send fewer at once",
            ));
        }
        let within = tokio::time::timeout(settings.timeout, self.answer_in_time(model, questions, truncate));
        within.await.unwrap_or_else(|_| {
            let message = format!("no answer within {} s", settings.timeout.as_secs_f64());
            let hint = "send less at once, or ask when the server has less to do";
            Err(ApiError::new(StatusCode::GATEWAY_TIMEOUT, "timeout", message, hint))
        })
    }

    async fn answer_in_time(
        &self,
        model: &Arc<Model>,
        questions: Vec<Question>,
        truncate: bool,
    ) -> ApiResult<Answered> {
        let admission = self.batcher().admit()?;
        let begun = Instant::now();
        let all_tokens = matches!(questions.first(), Some(Question::HiddenStates(_)));
        let prepared = if questions.iter().map(Question::bytes).sum::<usize>() <= INLINE_BYTES {
            prepare(model, questions)?
        } else {
            let model = Arc::clone(model);
            let prepared = tokio::task::spawn_blocking(move || prepare(&model, questions)).await;
            prepared.unwrap_or_else(|_| Err(ApiError::internal("tokenizing failed")))?
        };
        self.metrics().stage(Stage::Tokenize, begun.elapsed());
        if !truncate && let Some(index) = prepared.iter().position(|item| item.removed() > 0) {
            let message =
                format!("input {index} has more tokens than the {} that the model takes", model.session.max_len());
            let hint = "shorten it, or leave `truncate` out to have it cut";
            return Err(too_many_tokens(message, hint));
        }
        let share = if all_tokens { HIDDEN_STATES_SHARE } else { 1 };
        let (tokens, most) = (
            prepared.iter().flat_map(Prepared::tokens).sum::<usize>(),
            self.settings().max_request_tokens.div_ceil(share),
        );
        if tokens > most {
            let message = format!("{tokens} tokens in one request; at most {most} are taken");
            return Err(too_many_tokens(message, "send fewer or shorter texts at once"));
        }
        let texts = prepared.len();
        let queued = Instant::now();
        let outcomes = self.batcher().compute(Arc::clone(model), prepared).await?;
        self.metrics().stage(Stage::Answer, queued.elapsed());
        self.metrics().answered(&model.name, texts, tokens);
        drop(admission);
        Ok(Answered { outcomes, tokens })
    }
}

fn too_many_tokens(message: String, hint: &str) -> ApiError {
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "too_many_tokens", message, hint)
}

fn prepare(model: &Model, questions: Vec<Question>) -> ApiResult<Vec<Prepared>> {
    let alone = questions.len() == 1;
    let one = |(index, question): (usize, Question)| {
        question.prepare(model).map_err(|error| {
            let error = ApiError::from(error);
            if alone { error } else { ApiError { message: format!("input {index}: {}", error.message), ..error } }
        })
    };
    questions.into_iter().enumerate().map(one).collect()
}
