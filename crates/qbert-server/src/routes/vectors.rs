//! Embeddings and tokens, in text-embeddings-inference's shapes.

use axum::response::Response;
use qbert_runtime::{Outcome, cosine};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Chosen;
use super::shapes::{Others, Refusals, Texts, some};
use crate::app::Question;
use crate::body::{JsonBody, json};
use crate::error::{ApiError, ApiResult};
use crate::registry::Model;

/// A request to `/embed`.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct EmbedRequest {
    inputs: Texts,
    /// Whether vectors get length 1, which is the default.
    normalize: Option<bool>,
    /// The first so many numbers of each vector, for models trained for that.
    #[schema(minimum = 1)]
    dimensions: Option<usize>,
    /// The name of one of the model's prompts, which goes before every text; the model's default prompt if not given.
    prompt_name: Option<String>,
    /// Whether a text that is too long is cut (the default) or refused.
    truncate: Option<bool>,
    /// The model; the first one if not given.
    model: Option<String>,
}

/// One vector per text.
#[utoipa::path(post, path = "/embed", tag = "embeddings", request_body = EmbedRequest,
    responses((status = 200, description = "One vector per text", body = Vec<Vec<f32>>), Refusals))]
pub(crate) async fn embed(chosen: Chosen, JsonBody(request): JsonBody<EmbedRequest>) -> ApiResult<Response> {
    let model = chosen.model(request.model.as_deref())?;
    let texts = request.inputs.into_vec()?;
    let wanted = Wanted {
        normalize: request.normalize.unwrap_or(true),
        dimensions: request.dimensions,
        truncate: request.truncate.unwrap_or(true),
        prompt: request.prompt_name,
    };
    let (vectors, _) = embed_texts(&chosen, &model, texts, wanted).await?;
    Ok(json(&vectors))
}

/// How vectors should be.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub(super) normalize: bool,
    pub(super) dimensions: Option<usize>,
    pub(super) truncate: bool,
    pub(super) prompt: Option<String>,
}

impl Default for Wanted {
    fn default() -> Self {
        Self { normalize: true, dimensions: None, truncate: true, prompt: None }
    }
}

/// The vectors of texts, and the tokens they cost.
pub(super) async fn embed_texts(
    chosen: &Chosen,
    model: &std::sync::Arc<Model>,
    texts: Vec<String>,
    wanted: Wanted,
) -> ApiResult<(Vec<Vec<f32>>, usize)> {
    let options = model.embed_options(wanted.normalize, wanted.dimensions);
    let prompt = model.session.prompt(wanted.prompt.as_deref())?;
    let question =
        |text: String| Question::Embed(if prompt.is_empty() { text } else { format!("{prompt}{text}") }, options);
    let answered = chosen.app.answer(model, texts.into_iter().map(question).collect(), wanted.truncate).await?;
    let tokens = answered.tokens;
    Ok((answered.vectors()?, tokens))
}

/// A request to `/embed_all`.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct EmbedAllRequest {
    inputs: Texts,
    /// Whether a text that is too long is cut (the default) or refused.
    truncate: Option<bool>,
    /// The model; the first one if not given.
    model: Option<String>,
}

/// One vector per token, special tokens included.
#[utoipa::path(post, path = "/embed_all", tag = "embeddings", request_body = EmbedAllRequest,
    responses((status = 200, description = "A list of vectors per text", body = Vec<Vec<Vec<f32>>>), Refusals))]
pub(crate) async fn embed_all(chosen: Chosen, JsonBody(request): JsonBody<EmbedAllRequest>) -> ApiResult<Response> {
    let model = chosen.model(request.model.as_deref())?;
    let questions = request.inputs.into_vec()?.into_iter().map(Question::HiddenStates).collect();
    let answered = chosen.app.answer(&model, questions, request.truncate.unwrap_or(true)).await?;
    let rows = answered.outcomes.iter().map(|outcome| match outcome {
        Outcome::HiddenStates(states) => Ok(states.vectors.rows().collect::<Vec<&[f32]>>()),
        _ => Err(ApiError::internal("an outcome of another kind")),
    });
    Ok(json(&rows.collect::<ApiResult<Vec<_>>>()?))
}

/// A sentence and those to compare it with.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct Compared {
    pub(super) source_sentence: String,
    pub(super) sentences: Vec<String>,
    #[serde(flatten)]
    #[schema(ignore)]
    _others: Others,
}

/// A request to `/similarity`.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct SimilarityRequest {
    inputs: Compared,
    /// The model; the first one if not given.
    model: Option<String>,
}

/// Cosines of a sentence's vector with those of others.
#[utoipa::path(post, path = "/similarity", tag = "embeddings", request_body = SimilarityRequest,
    responses((status = 200, description = "One number between -1 and 1 per sentence", body = Vec<f32>), Refusals))]
pub(crate) async fn similarity(chosen: Chosen, JsonBody(request): JsonBody<SimilarityRequest>) -> ApiResult<Response> {
    let model = chosen.model(request.model.as_deref())?;
    Ok(json(&cosines(&chosen, &model, request.inputs).await?))
}

pub(super) async fn cosines(chosen: &Chosen, model: &std::sync::Arc<Model>, inputs: Compared) -> ApiResult<Vec<f32>> {
    let mut texts = some(inputs.sentences)?;
    texts.insert(0, inputs.source_sentence);
    let (vectors, _) = embed_texts(chosen, model, texts, Wanted::default()).await?;
    let Some((source, others)) = vectors.split_first() else { return Ok(Vec::new()) };
    Ok(others.iter().map(|other| cosine(source, other) as f32).collect())
}

/// A request to `/tokenize`.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct TokenizeRequest {
    inputs: Texts,
    /// Whether the tokens round the text are listed too, which is the default.
    add_special_tokens: Option<bool>,
    /// The model; the first one if not given.
    model: Option<String>,
}

/// A token.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TokenShape {
    id: u32,
    text: String,
    /// Whether it stands for no part of the text.
    special: bool,
    /// Its first character in the text, counted in Unicode code points.
    start: Option<usize>,
    /// The end of its characters.
    stop: Option<usize>,
}

/// The tokens of texts.
#[utoipa::path(post, path = "/tokenize", tag = "embeddings", request_body = TokenizeRequest,
    responses((status = 200, description = "A list of tokens per text", body = Vec<Vec<TokenShape>>), Refusals))]
pub(crate) async fn tokenize(chosen: Chosen, JsonBody(request): JsonBody<TokenizeRequest>) -> ApiResult<Response> {
    let model = chosen.model(request.model.as_deref())?;
    let texts = request.inputs.into_vec()?;
    if texts.len() > chosen.app.settings().max_items {
        return Err(ApiError::new(
            axum::http::StatusCode::UNPROCESSABLE_ENTITY,
            "too_many_items",
            format!("{} texts in one request", texts.len()),
            "send fewer at once",
        ));
    }
    let special = request.add_special_tokens.unwrap_or(true);
    // It takes a place like any other request: tokenizing is work too.
    let _admission = chosen.app.batcher().admit()?;
    let work = move || texts.iter().map(|text| tokens_of(&model, text, special)).collect::<ApiResult<Vec<_>>>();
    let tokens = tokio::task::spawn_blocking(work).await;
    Ok(json(&tokens.unwrap_or_else(|_| Err(ApiError::internal("tokenizing failed")))?))
}

fn tokens_of(model: &Model, text: &str, special: bool) -> ApiResult<Vec<TokenShape>> {
    let tokenizer = model.session.tokenizer();
    let pieces = tokenizer.pieces(text).map_err(qbert_runtime::Error::from)?;
    let name = |id| tokenizer.token(id).unwrap_or_default();
    let mut characters = Characters { text, bytes: 0, count: 0 };
    let piece = |(&id, &(start, end)): (&u32, &(usize, usize))| {
        let (start, stop) = (Some(characters.before(start)), Some(characters.before(end)));
        TokenShape { id, text: name(id), special: false, start, stop }
    };
    let own: Vec<TokenShape> = pieces.ids.iter().zip(&pieces.offsets).map(piece).collect();
    if !special {
        return Ok(own);
    }
    let round = |id| TokenShape { id, text: name(id), special: true, start: None, stop: None };
    let ids = tokenizer.special();
    Ok(std::iter::once(round(ids.cls)).chain(own).chain([round(ids.sep)]).collect())
}

/// Counts characters before bytes that mostly ascend.
struct Characters<'a> {
    text: &'a str,
    bytes: usize,
    count: usize,
}

impl Characters<'_> {
    fn before(&mut self, byte: usize) -> usize {
        if byte < self.bytes {
            (self.bytes, self.count) = (0, 0);
        }
        self.count += self.text.get(self.bytes..byte).map_or(0, |part| part.chars().count());
        self.bytes = byte;
        self.count
    }
}
