//! Forms that several routes share.

use qbert_runtime::{Input, LabelScore, Prediction};
use serde::{Deserialize, Serialize};
use utoipa::{IntoResponses, ToSchema};

use crate::error::{ApiError, ApiResult, ErrorBody, OpenAiErrorBody};
use crate::registry::Model;

/// Further fields of an object, which do not count. With this an object is only read from an object: without it, serde also takes
/// a list of the fields' values, and a list of two texts would be a question and its context.
pub(crate) type Others = std::collections::BTreeMap<String, serde::de::IgnoredAny>;

/// A text or a list of texts.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a text or a list of texts")]
pub(crate) enum Texts {
    One(String),
    Many(Vec<String>),
}

impl Texts {
    pub(crate) fn into_vec(self) -> ApiResult<Vec<String>> {
        match self {
            Self::One(text) => Ok(vec![text]),
            Self::Many(texts) => some(texts),
        }
    }
}

/// A list that is not empty.
pub(crate) fn some<T>(list: Vec<T>) -> ApiResult<Vec<T>> {
    if list.is_empty() {
        return Err(ApiError::invalid("an empty list", "give at least one text"));
    }
    Ok(list)
}

/// What a classifier can be asked: a text; a list of texts; a list of lists, each of one text or of a pair.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a text, a list of texts, or a list of lists of one text or two")]
pub(crate) enum Classified {
    Text(String),
    Texts(Vec<String>),
    Lists(Vec<Vec<String>>),
}

impl Classified {
    /// The inputs, and whether the answer is a list of answers.
    pub(crate) fn into_inputs(self, model: &Model) -> ApiResult<(Vec<Input>, bool)> {
        match self {
            Self::Text(text) => Ok((vec![Input::text(text)], false)),
            // Two texts are a pair for models of pairs, as in text-embeddings-inference.
            Self::Texts(texts) if model.takes_pairs() => match <[String; 2]>::try_from(texts) {
                Ok([text, text2]) => Ok((vec![Input::pair(text, text2)], false)),
                Err(_) => Err(ApiError::invalid(
                    "a list of texts for a model of pairs",
                    r#"give pairs: [["a", "b"], ["c", "d"]]"#,
                )),
            },
            Self::Texts(texts) => Ok((some(texts)?.into_iter().map(Input::text).collect(), true)),
            Self::Lists(lists) => {
                let input = |(index, list): (usize, Vec<String>)| {
                    let mut texts = list.into_iter();
                    match (texts.next(), texts.next(), texts.next()) {
                        (Some(text), None, None) => Ok(Input::text(text)),
                        (Some(text), Some(text2), None) => Ok(Input::pair(text, text2)),
                        _ => Err(ApiError::invalid(
                            format!("input {index} is not one text or two"),
                            r#"give ["a"] or ["a", "b"]"#,
                        )),
                    }
                };
                Ok((some(lists)?.into_iter().enumerate().map(input).collect::<ApiResult<_>>()?, true))
            }
        }
    }
}

/// A label and how much the model believes in it, as text-embeddings-inference writes it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Labelled {
    /// A probability; the raw score if `raw_scores` is set; the value itself for models of values.
    pub(crate) score: f64,
    pub(crate) label: String,
}

/// A classifier's answer with the best label first.
pub(crate) fn labelled(model: &Model, prediction: Prediction, raw: bool) -> ApiResult<Vec<Labelled>> {
    let all = |scores: Vec<LabelScore>| {
        let one = |LabelScore { label, probability, logit, .. }| Labelled {
            score: if raw { f64::from(logit) } else { probability },
            label,
        };
        let mut labels: Vec<Labelled> = scores.into_iter().map(one).collect();
        // Stable: equal scores keep the model's order.
        labels.sort_by(|a, b| b.score.total_cmp(&a.score));
        labels
    };
    Ok(match prediction {
        Prediction::Classification(found) => all(found.scores),
        Prediction::LabelSet(found) => all(found.scores),
        Prediction::Score(found) => {
            let label = model.session.labels().first().cloned().unwrap_or_else(|| "score".to_owned());
            vec![Labelled { score: f64::from(found.score), label }]
        }
        Prediction::Tagging(_) => {
            return Err(wrong_route("the model finds entities", "ask /entities"));
        }
        Prediction::Answers(_) => {
            return Err(wrong_route("the model answers questions", "ask /answer"));
        }
        _ => return Err(ApiError::internal("an answer of a new kind")),
    })
}

pub(crate) fn wrong_route(message: &str, hint: &str) -> ApiError {
    ApiError::new(axum::http::StatusCode::UNPROCESSABLE_ENTITY, "wrong_task", message, hint)
}

/// 1 / (1 + e⁻ˣ)
pub(crate) fn sigmoid(value: f32) -> f64 {
    1.0 / (1.0 + (-f64::from(value)).exp())
}

/// What every route outside `/v1` may answer instead.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "describes responses")]
pub(crate) enum Refusals {
    /// The body is no JSON
    #[response(status = 400)]
    Malformed(ErrorBody),
    /// No valid API key
    #[response(status = 401)]
    Unauthorized(ErrorBody),
    /// No such model or route
    #[response(status = 404)]
    Unknown(ErrorBody),
    /// The body came too slowly
    #[response(status = 408)]
    Slow(ErrorBody),
    /// The body is too large
    #[response(status = 413)]
    TooLarge(ErrorBody),
    /// The body is not declared as JSON
    #[response(status = 415)]
    MediaType(ErrorBody),
    /// The request has the wrong form, too many items or tokens, or is not what the model is for
    #[response(status = 422)]
    Invalid(ErrorBody),
    /// The queue is full; `Retry-After` says when to ask again
    #[response(status = 429)]
    Overloaded(ErrorBody),
    /// Models are being loaded, or the server is shutting down
    #[response(status = 503)]
    Unavailable(ErrorBody),
    /// No answer within the time limit
    #[response(status = 504)]
    Timeout(ErrorBody),
}

/// What every route under `/v1` may answer instead, in OpenAI's shape.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "describes responses")]
pub(crate) enum OpenAiRefusals {
    /// The body is no JSON
    #[response(status = 400)]
    Malformed(OpenAiErrorBody),
    /// No valid API key
    #[response(status = 401)]
    Unauthorized(OpenAiErrorBody),
    /// No such model or route
    #[response(status = 404)]
    Unknown(OpenAiErrorBody),
    /// The body came too slowly
    #[response(status = 408)]
    Slow(OpenAiErrorBody),
    /// The body is too large
    #[response(status = 413)]
    TooLarge(OpenAiErrorBody),
    /// The body is not declared as JSON
    #[response(status = 415)]
    MediaType(OpenAiErrorBody),
    /// The request has the wrong form, too many items or tokens, or is not what the model is for
    #[response(status = 422)]
    Invalid(OpenAiErrorBody),
    /// The queue is full; `Retry-After` says when to ask again
    #[response(status = 429)]
    Overloaded(OpenAiErrorBody),
    /// Models are being loaded, or the server is shutting down
    #[response(status = 503)]
    Unavailable(OpenAiErrorBody),
    /// No answer within the time limit
    #[response(status = 504)]
    Timeout(OpenAiErrorBody),
}
