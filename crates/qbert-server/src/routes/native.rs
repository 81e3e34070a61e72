//! Labels, rankings, entities and answers.
//!
//! `/predict` and `/rerank` are text-embeddings-inference's. `/entities` and `/answer` are ours: what `qbert predict --json`
//! prints, one per input, with offsets in Unicode code points.

use axum::response::Response;
use qbert_runtime::{Head, Input, Prediction};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Chosen;
use super::shapes::{Classified, Labelled, Others, Refusals, labelled, sigmoid, some, wrong_route};
use crate::app::Question;
use crate::body::{JsonBody, json};
use crate::error::{ApiError, ApiResult};
use crate::registry::Model;

/// A request to `/predict`.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct PredictRequest {
    inputs: Classified,
    /// Scores before softmax or sigmoid.
    #[serde(default)]
    raw_scores: bool,
    /// Whether a text that is too long is cut (the default) or refused.
    truncate: Option<bool>,
    /// The model; the first one if not given.
    model: Option<String>,
}

/// An answer of `/predict`: the labels of one input, or a list of them.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum PredictResponse {
    One(Vec<Labelled>),
    Many(Vec<Vec<Labelled>>),
}

/// Labels of texts or pairs of texts, best first.
#[utoipa::path(post, path = "/predict", tag = "answers", request_body = PredictRequest,
    responses((status = 200, description = "Labels, best first", body = PredictResponse), Refusals))]
pub(crate) async fn predict(chosen: Chosen, JsonBody(request): JsonBody<PredictRequest>) -> ApiResult<Response> {
    let model = chosen.model(request.model.as_deref())?;
    match model.session.head() {
        Head::TokenClassification => return Err(wrong_route("the model finds entities", "ask /entities")),
        Head::QuestionAnswering => return Err(wrong_route("the model answers questions", "ask /answer")),
        Head::None => return Err(wrong_route("the model has no labels", "ask /embed")),
        Head::SequenceClassification => {}
    }
    let (inputs, is_list) = request.inputs.into_inputs(&model)?;
    let questions = inputs.into_iter().map(Question::Predict).collect();
    let answered = chosen.app.answer(&model, questions, request.truncate.unwrap_or(true)).await?;
    let predictions = answered.predictions()?.into_iter();
    let mut labels = predictions.map(|own| labelled(&model, own, request.raw_scores)).collect::<ApiResult<Vec<_>>>()?;
    Ok(json(&if is_list {
        PredictResponse::Many(labels)
    } else {
        PredictResponse::One(labels.pop().unwrap_or_default())
    }))
}

/// A request to `/rerank`.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct RerankRequest {
    query: String,
    texts: Vec<String>,
    /// Values as the model gives them, without the sigmoid.
    #[serde(default)]
    raw_scores: bool,
    /// Whether the answer repeats the texts.
    #[serde(default)]
    return_text: bool,
    /// Whether a text that is too long is cut (the default) or refused.
    truncate: Option<bool>,
    /// The model; the first one if not given.
    model: Option<String>,
}

/// A text in its rank.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Rank {
    /// Its index in the request.
    index: usize,
    score: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

/// How well each text answers a query, best first.
#[utoipa::path(post, path = "/rerank", tag = "answers", request_body = RerankRequest,
    responses((status = 200, description = "The texts by score, best first", body = Vec<Rank>), Refusals))]
pub(crate) async fn rerank(chosen: Chosen, JsonBody(request): JsonBody<RerankRequest>) -> ApiResult<Response> {
    let model = chosen.model(request.model.as_deref())?;
    let texts = some(request.texts)?;
    let truncate = request.truncate.unwrap_or(true);
    let (ranking, _) = rank(&chosen, &model, &request.query, &texts, truncate).await?;
    let one = |(index, value): (usize, f32)| Rank {
        index,
        score: if request.raw_scores { f64::from(value) } else { sigmoid(value) },
        text: texts.get(index).filter(|_| request.return_text).cloned(),
    };
    Ok(json(&ranking.into_iter().map(one).collect::<Vec<_>>()))
}

/// Texts by the model's value of each with the query, and the tokens they cost.
pub(super) async fn rank(
    chosen: &Chosen,
    model: &std::sync::Arc<Model>,
    query: &str,
    texts: &[String],
    truncate: bool,
) -> ApiResult<(Vec<(usize, f32)>, usize)> {
    if !model.scores_pairs() {
        let hint = "use a model that gives a value to pairs of texts (task score-pair), or /similarity for embeddings";
        return Err(wrong_route("the model is no reranker", hint));
    }
    let questions = texts.iter().map(|text| Question::Predict(Input::pair(query, text))).collect();
    let answered = chosen.app.answer(model, questions, truncate).await?;
    let tokens = answered.tokens;
    let value = |prediction| match prediction {
        Prediction::Score(found) => Ok(found.score),
        _ => Err(ApiError::internal("an answer of another kind")),
    };
    let values = answered.predictions()?.into_iter().map(value).collect::<ApiResult<Vec<f32>>>()?;
    let mut ranking: Vec<(usize, f32)> = values.into_iter().enumerate().collect();
    ranking.sort_by(|a, b| b.1.total_cmp(&a.1));
    Ok((ranking, tokens))
}

/// A text, a list of texts, or a list of sentences that are split into words.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a text, a list of texts, or a list of lists of words")]
pub(crate) enum Tagged {
    Text(String),
    Texts(Vec<String>),
    Words(Vec<Vec<String>>),
}

/// A request to `/entities`.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct EntitiesRequest {
    inputs: Tagged,
    /// The model; the first one if not given.
    model: Option<String>,
}

/// From `start` up to but not including `end`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Span {
    start: usize,
    end: usize,
}

/// An entity.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EntityShape {
    #[schema(example = "LOC")]
    kind: String,
    text: String,
    words: Span,
    /// In Unicode code points.
    characters: Span,
    probability: f64,
}

/// The entities of one input, and the tag of each word.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TaggingShape {
    entities: Vec<EntityShape>,
    words: Vec<String>,
    tags: Vec<String>,
    probabilities: Vec<f64>,
    /// Word pieces that no window had room for.
    removed: usize,
}

/// Entities in texts of any length, with their places.
#[utoipa::path(post, path = "/entities", tag = "answers", request_body = EntitiesRequest,
    responses((status = 200, description = "One per input", body = Vec<TaggingShape>), Refusals))]
pub(crate) async fn entities(chosen: Chosen, JsonBody(request): JsonBody<EntitiesRequest>) -> ApiResult<Response> {
    let model = chosen.model(request.model.as_deref())?;
    if model.session.head() != Head::TokenClassification {
        return Err(wrong_route("the model finds no entities", "use a model with a token classification head"));
    }
    let inputs = match request.inputs {
        Tagged::Text(text) => vec![Input::text(text)],
        Tagged::Texts(texts) => some(texts)?.into_iter().map(Input::text).collect(),
        Tagged::Words(sentences) => some(sentences)?.into_iter().map(Input::words).collect(),
    };
    let answered = chosen.app.answer(&model, inputs.into_iter().map(Question::Predict).collect(), true).await?;
    Ok(json(&answered.predictions()?))
}

/// A question and the text that has the answer.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct QuestionShape {
    pub(super) question: String,
    pub(super) context: String,
    #[serde(flatten)]
    #[schema(ignore)]
    _others: Others,
}

/// One question, or a list of them.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected an object with question and context, or a list of them")]
pub(crate) enum Questions {
    One(QuestionShape),
    Many(Vec<QuestionShape>),
}

/// A request to `/answer`.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct AnswerRequest {
    inputs: Questions,
    /// The model; the first one if not given.
    model: Option<String>,
}

/// An answer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AnswerShape {
    text: String,
    /// Its place in the context, in Unicode code points.
    characters: Span,
    /// Its place in the context, in bytes of UTF-8.
    bytes: Span,
    score: f64,
    probability: f64,
}

/// The answers to one question, best first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AnswersShape {
    answers: Vec<AnswerShape>,
    /// Word pieces of the question that were cut off.
    removed: usize,
}

/// Answers to questions about contexts of any length, with their places.
#[utoipa::path(post, path = "/answer", tag = "answers", request_body = AnswerRequest,
    responses((status = 200, description = "One per question", body = Vec<AnswersShape>), Refusals))]
pub(crate) async fn answer(chosen: Chosen, JsonBody(request): JsonBody<AnswerRequest>) -> ApiResult<Response> {
    let model = chosen.model(request.model.as_deref())?;
    if model.session.head() != Head::QuestionAnswering {
        return Err(wrong_route("the model answers no questions", "use a model with a question answering head"));
    }
    let questions = match request.inputs {
        Questions::One(question) => vec![question],
        Questions::Many(questions) => some(questions)?,
    };
    let question = |own: QuestionShape| Question::Predict(Input::question(own.question, own.context));
    let answered = chosen.app.answer(&model, questions.into_iter().map(question).collect(), true).await?;
    Ok(json(&answered.predictions()?))
}
