//! KServe's V2 inference protocol with its binary extension, as Triton's clients speak it.
//!
//! Inputs are BYTES tensors of one text per row: `text`, and `text2` for pairs; `question` and `context` for answers. Outputs
//! depend on the model's head; the model's metadata names them.

use std::collections::VecDeque;

use axum::body::Bytes;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use qbert_runtime::{Head, Input, Prediction};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::Chosen;
use super::models::is_value;
use super::shapes::Refusals;
use super::status::Health;
use super::vectors::{Wanted, embed_texts};
use crate::app::{App, Question};
use crate::body::{json, parse, read};
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::registry::Model;

const HEADER_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");
const NAMES: &str = "inputs are BYTES tensors of shape [n] or [n, 1]; GET /v2/models/NAME lists their names";

/// What the server is.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ServerMetadata {
    name: &'static str,
    version: &'static str,
    extensions: Vec<&'static str>,
}

/// What the server is, for KServe's clients.
#[utoipa::path(get, path = "/v2", tag = "KServe",
    responses((status = 200, description = "Name, version, extensions", body = ServerMetadata), Refusals))]
pub(crate) async fn server() -> Response {
    json(&ServerMetadata { name: "qbert", version: env!("CARGO_PKG_VERSION"), extensions: vec!["binary_tensor_data"] })
}

/// That the server lives.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Live {
    live: bool,
}

/// Whether the server lives. Needs no API key.
#[utoipa::path(get, path = "/v2/health/live", tag = "KServe", security(()),
    responses((status = 200, description = "It lives", body = Live)))]
pub(crate) async fn live() -> Response {
    json(&Live { live: true })
}

/// Whether all models are loaded. Needs no API key.
#[utoipa::path(get, path = "/v2/health/ready", tag = "KServe", security(()),
    responses((status = 200, description = "Ready", body = Health),
              (status = 503, description = "Models are being loaded", body = ErrorBody)))]
#[expect(dead_code, reason = "describes the route; status::health answers it")]
pub(crate) fn ready() {}

/// A tensor of a model.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TensorMetadata {
    name: &'static str,
    #[schema(example = "BYTES")]
    datatype: &'static str,
    /// -1 is any number.
    shape: Vec<i64>,
}

/// What a model takes and gives.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelMetadata {
    name: String,
    versions: Vec<&'static str>,
    platform: &'static str,
    inputs: Vec<TensorMetadata>,
    outputs: Vec<TensorMetadata>,
}

/// What a model takes and gives.
#[utoipa::path(get, path = "/v2/models/{model}", tag = "KServe", params(("model" = String, Path, description = "Its name")),
    responses((status = 200, description = "Tensors", body = ModelMetadata), Refusals))]
pub(crate) async fn model(State(app): State<App>, Path(name): Path<String>) -> ApiResult<Response> {
    let model = app.registry().get(Some(&name))?;
    let text = |name| TensorMetadata { name, datatype: "BYTES", shape: vec![-1] };
    let labels = i64::try_from(model.session.labels().len()).unwrap_or(0);
    let (inputs, outputs) = match model.session.head() {
        Head::None => {
            let width = i64::try_from(model.embedding_width()).unwrap_or(0);
            let vectors = TensorMetadata { name: "embedding", datatype: "FP32", shape: vec![-1, width] };
            (vec![text("text")], vec![vectors])
        }
        Head::SequenceClassification => {
            let mut inputs = vec![text("text")];
            inputs.extend(model.takes_pairs().then(|| text("text2")));
            let outputs = if is_value(&model) {
                vec![TensorMetadata { name: "score", datatype: "FP32", shape: vec![-1] }]
            } else {
                let scores = TensorMetadata { name: "probabilities", datatype: "FP32", shape: vec![-1, labels] };
                vec![text("label"), scores]
            };
            (inputs, outputs)
        }
        Head::TokenClassification => (vec![text("text")], vec![text("entities")]),
        Head::QuestionAnswering => (vec![text("question"), text("context")], vec![text("answers")]),
    };
    Ok(json(&ModelMetadata { name, versions: vec!["1"], platform: "qbert", inputs, outputs }))
}

/// That a model is ready.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelReady {
    name: String,
    ready: bool,
}

/// Whether a model is loaded.
#[utoipa::path(get, path = "/v2/models/{model}/ready", tag = "KServe",
    params(("model" = String, Path, description = "Its name")),
    responses((status = 200, description = "It is", body = ModelReady), Refusals))]
pub(crate) async fn model_ready(State(app): State<App>, Path(name): Path<String>) -> ApiResult<Response> {
    app.registry().get(Some(&name))?;
    Ok(json(&ModelReady { name, ready: true }))
}

/// What a client says about a tensor or a request.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct Parameters {
    /// The tensor follows the JSON, in so many bytes.
    binary_data_size: Option<usize>,
    /// The output should follow the JSON.
    binary_data: Option<bool>,
    /// All outputs should follow the JSON.
    binary_data_output: Option<bool>,
}

/// An input tensor of texts.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct TensorIn {
    name: String,
    #[schema(example = "BYTES")]
    datatype: String,
    shape: Vec<u64>,
    /// The texts, possibly in lists of one.
    #[schema(value_type = Option<Vec<String>>)]
    data: Option<Value>,
    parameters: Option<Parameters>,
}

/// An output that is asked for.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct OutputWanted {
    name: String,
    parameters: Option<Parameters>,
}

/// A request for inference.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct InferRequest {
    id: Option<String>,
    inputs: Vec<TensorIn>,
    outputs: Option<Vec<OutputWanted>>,
    parameters: Option<Parameters>,
}

/// The size of a tensor that follows the JSON.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BinarySize {
    binary_data_size: usize,
}

/// An output tensor.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TensorOut {
    name: &'static str,
    datatype: &'static str,
    shape: Vec<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<serde_json::Value>>)]
    data: Option<Values>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<BinarySize>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Values {
    Numbers(Vec<f32>),
    Texts(Vec<String>),
}

/// A response of inference.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct InferResponse {
    model_name: String,
    model_version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    outputs: Vec<TensorOut>,
}

/// The model's answers as tensors.
#[utoipa::path(post, path = "/v2/models/{model}/infer", tag = "KServe",
    params(("model" = String, Path, description = "Its name")), request_body = InferRequest,
    responses((status = 200, description = "Tensors", body = InferResponse), Refusals))]
pub(crate) async fn infer(
    chosen: Chosen,
    State(app): State<App>,
    Path(name): Path<String>,
    request: Request,
) -> ApiResult<Response> {
    let (headers, body) = (request.headers().clone(), request.into_body());
    let bytes = read(&app, &headers, body).await?;
    let model = app.registry().get(Some(&name))?;
    let (head, binary) = split(&headers, &bytes)?;
    let InferRequest { id, inputs, outputs, parameters } = parse(head)?;
    let columns = columns(inputs, binary)?;
    let tensors = compute(&chosen, &model, columns).await?;
    let all_binary = parameters.and_then(|own| own.binary_data_output).unwrap_or(false);
    let wanted = |name: &str| match &outputs {
        None => Some(all_binary),
        Some(outputs) => outputs
            .iter()
            .find(|output| output.name == name)
            .map(|output| output.parameters.as_ref().and_then(|own| own.binary_data).unwrap_or(all_binary)),
    };
    if let Some(unknown) = outputs.iter().flatten().find(|output| tensors.iter().all(|own| own.name != output.name)) {
        let names: Vec<&str> = tensors.iter().map(|own| own.name).collect();
        let shown: String = unknown.name.chars().take(100).collect();
        return Err(ApiError::invalid(format!("no output {shown:?}"), format!("the outputs are {}", names.join(", "))));
    }
    let mut tail = Vec::new();
    let mut written = Vec::new();
    for Tensor { name, shape, values } in tensors {
        let Some(is_binary) = wanted(name) else { continue };
        let datatype = if matches!(values, Values::Numbers(_)) { "FP32" } else { "BYTES" };
        let (data, parameters) = if is_binary {
            let before = tail.len();
            append(&mut tail, &values);
            (None, Some(BinarySize { binary_data_size: tail.len() - before }))
        } else {
            (Some(values), None)
        };
        written.push(TensorOut { name, datatype, shape, data, parameters });
    }
    let response = InferResponse { model_name: model.name.clone(), model_version: "1", id, outputs: written };
    if tail.is_empty() {
        return Ok(json(&response));
    }
    let mut bytes = serde_json::to_vec(&response).map_err(|_| ApiError::internal("an answer that is no JSON"))?;
    let length = HeaderValue::from(bytes.len());
    bytes.extend_from_slice(&tail);
    let kind = HeaderValue::from_static("application/octet-stream");
    Ok(([(header::CONTENT_TYPE, kind), (HEADER_LENGTH, length)], bytes).into_response())
}

/// The JSON and the tensors after it.
fn split<'a>(headers: &HeaderMap, bytes: &'a Bytes) -> ApiResult<(&'a [u8], &'a [u8])> {
    let Some(length) = headers.get(HEADER_LENGTH) else { return Ok((bytes, &[])) };
    let length = length.to_str().ok().and_then(|text| text.parse::<usize>().ok());
    let parts = length.and_then(|length| bytes.split_at_checked(length));
    parts.ok_or_else(|| {
        ApiError::malformed(
            "Inference-Header-Content-Length is no length within the body",
            "give the bytes of the JSON",
        )
    })
}

/// The texts of each input.
fn columns(inputs: Vec<TensorIn>, mut binary: &[u8]) -> ApiResult<Vec<(String, Vec<String>)>> {
    let mut columns = Vec::new();
    for TensorIn { name, datatype, shape, data, parameters } in inputs {
        let shown: String = name.chars().take(100).collect();
        let wrong = |problem: &str| ApiError::invalid(format!("input {shown:?}: {problem}"), NAMES);
        if datatype != "BYTES" {
            return Err(wrong("not BYTES"));
        }
        let ([rows] | [rows, 1]) = shape[..] else { return Err(wrong("not of shape [n] or [n, 1]")) };
        let texts = match (parameters.and_then(|own| own.binary_data_size), data) {
            (Some(size), None) => {
                let (own, rest) = binary.split_at_checked(size).ok_or_else(|| wrong("its bytes are missing"))?;
                binary = rest;
                binary_texts(own).ok_or_else(|| wrong("its bytes are not texts in UTF-8 with their lengths"))?
            }
            (None, Some(data)) => flat(data).ok_or_else(|| wrong("its data is not a list of texts"))?,
            _ => return Err(wrong("it needs either data or binary_data_size")),
        };
        if texts.len() as u64 != rows {
            return Err(wrong("its shape has another number of texts"));
        }
        columns.push((name, texts));
    }
    Ok(columns)
}

/// Texts with four bytes of length before each.
fn binary_texts(mut bytes: &[u8]) -> Option<Vec<String>> {
    let mut texts = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let (text, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        texts.push(std::str::from_utf8(text).ok()?.to_owned());
        bytes = rest;
    }
    Some(texts)
}

fn flat(data: Value) -> Option<Vec<String>> {
    let Value::Array(rows) = data else { return None };
    let text = |row| match row {
        Value::String(text) => Some(text),
        Value::Array(mut one) if one.len() == 1 => match one.pop() {
            Some(Value::String(text)) => Some(text),
            _ => None,
        },
        _ => None,
    };
    rows.into_iter().map(text).collect()
}

struct Tensor {
    name: &'static str,
    shape: Vec<usize>,
    values: Values,
}

async fn compute(
    chosen: &Chosen,
    model: &std::sync::Arc<Model>,
    columns: Vec<(String, Vec<String>)>,
) -> ApiResult<Vec<Tensor>> {
    let expected: &[&str] = match (model.session.head(), columns.len()) {
        (Head::QuestionAnswering, _) => &["question", "context"],
        (Head::SequenceClassification, 2) => &["text", "text2"],
        _ => &["text"],
    };
    let mut sorted: VecDeque<Vec<String>> = VecDeque::new();
    let mut columns = columns;
    for name in expected {
        let Some(place) = columns.iter().position(|(own, _)| own == name) else {
            return Err(ApiError::invalid(format!("no input {name:?}"), NAMES));
        };
        sorted.push_back(columns.swap_remove(place).1);
    }
    if let Some((name, _)) = columns.first() {
        let shown: String = name.chars().take(100).collect();
        return Err(ApiError::invalid(format!("an input {shown:?} that the model does not take"), NAMES));
    }
    let (first, second) = (sorted.pop_front().unwrap_or_default(), sorted.pop_front());
    let rows = first.len();
    if rows == 0 {
        return Err(ApiError::invalid("no texts", "give at least one"));
    }
    if second.as_ref().is_some_and(|second| second.len() != rows) {
        return Err(ApiError::invalid("inputs of different lengths", "give both the same number of texts"));
    }
    if model.session.head() == Head::None {
        let wanted = Wanted::default();
        let (vectors, _) = embed_texts(chosen, model, first, wanted).await?;
        let shape = vec![rows, model.embedding_width()];
        return Ok(vec![Tensor { name: "embedding", shape, values: Values::Numbers(vectors.concat()) }]);
    }
    let is_question = model.session.head() == Head::QuestionAnswering;
    let inputs: Vec<Input> = match second {
        Some(second) if is_question => {
            first.into_iter().zip(second).map(|(own, context)| Input::question(own, context)).collect()
        }
        Some(second) => first.into_iter().zip(second).map(Input::from).collect(),
        None => first.into_iter().map(Input::text).collect(),
    };
    let answered = chosen.app.answer(model, inputs.into_iter().map(Question::Predict).collect(), true).await?;
    tensors(answered.predictions()?)
}

/// Predictions of one kind as tensors.
fn tensors(predictions: Vec<Prediction>) -> ApiResult<Vec<Tensor>> {
    let rows = predictions.len();
    let (mut labels, mut numbers, mut texts) = (Vec::new(), Vec::new(), Vec::new());
    let mut name = "entities";
    for prediction in predictions {
        match prediction {
            Prediction::Classification(found) => {
                labels.push(found.label);
                numbers.extend(found.scores.iter().map(|score| score.probability as f32));
            }
            Prediction::LabelSet(found) => {
                labels.push(as_json(&found.labels));
                numbers.extend(found.scores.iter().map(|score| score.probability as f32));
            }
            Prediction::Score(found) => numbers.push(found.score),
            Prediction::Tagging(found) => texts.push(as_json(&found.entities)),
            Prediction::Answers(found) => {
                name = "answers";
                texts.push(as_json(&found.answers));
            }
            _ => return Err(ApiError::internal("an answer of a new kind")),
        }
    }
    if !texts.is_empty() {
        return Ok(vec![Tensor { name, shape: vec![rows], values: Values::Texts(texts) }]);
    }
    if labels.is_empty() {
        return Ok(vec![Tensor { name: "score", shape: vec![rows], values: Values::Numbers(numbers) }]);
    }
    let shape = vec![rows, numbers.len() / rows.max(1)];
    Ok(vec![
        Tensor { name: "label", shape: vec![rows], values: Values::Texts(labels) },
        Tensor { name: "probabilities", shape, values: Values::Numbers(numbers) },
    ])
}

/// A text that is JSON: what has no tensor of its own.
fn as_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn append(bytes: &mut Vec<u8>, values: &Values) {
    match values {
        Values::Numbers(numbers) => bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes())),
        Values::Texts(texts) => {
            for text in texts {
                bytes.extend_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
                bytes.extend_from_slice(text.as_bytes());
            }
        }
    }
}
