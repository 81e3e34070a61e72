//! Which models there are and what they are.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use qbert_runtime::{Head, Problem};
use serde::Serialize;
use utoipa::ToSchema;

use super::Chosen;
use super::shapes::{OpenAiRefusals, Refusals};
use crate::app::App;
use crate::body::json;
use crate::error::ApiResult;
use crate::registry::Model;

/// A model in OpenAI's shape.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelShape {
    id: String,
    #[schema(example = "model")]
    object: &'static str,
    /// When it was loaded, in seconds since 1970.
    created: u64,
    owned_by: &'static str,
}

/// All models in OpenAI's shape.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelList {
    #[schema(example = "list")]
    object: &'static str,
    data: Vec<ModelShape>,
}

fn shape(model: &Arc<Model>) -> ModelShape {
    ModelShape { id: model.name.clone(), object: "model", created: model.loaded_at, owned_by: "qbert" }
}

/// All models, as OpenAI's clients list them.
#[utoipa::path(get, path = "/v1/models", tag = "OpenAI",
    responses((status = 200, description = "The models", body = ModelList), OpenAiRefusals))]
pub(crate) async fn list(State(app): State<App>) -> Response {
    json(&ModelList { object: "list", data: app.registry().loaded().iter().map(shape).collect() })
}

/// One model, as OpenAI's clients ask for it.
#[utoipa::path(get, path = "/v1/models/{model}", tag = "OpenAI", params(("model" = String, Path, description = "Its name")),
    responses((status = 200, description = "The model", body = ModelShape), OpenAiRefusals))]
pub(crate) async fn one(State(app): State<App>, Path(name): Path<String>) -> ApiResult<Response> {
    Ok(json(&shape(&app.registry().get(Some(&name))?)))
}

/// What a model is for, in the shape of text-embeddings-inference.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ModelType {
    Embedding { pooling: &'static str },
    Classifier { id2label: BTreeMap<String, String>, label2id: BTreeMap<String, usize> },
    Reranker { id2label: BTreeMap<String, String>, label2id: BTreeMap<String, usize> },
    TokenClassifier { id2label: BTreeMap<String, String>, label2id: BTreeMap<String, usize> },
    QuestionAnswering {},
}

/// A model's card and the server's limits.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Info {
    /// The model's name.
    model_id: String,
    /// The SHA-256 of the weights it was made from, if its file says so.
    model_sha: Option<String>,
    /// The bits of its weights and activations.
    model_dtype: String,
    model_type: ModelType,
    /// The task it was trained for, if its file says so.
    task: Option<&'static str>,
    family: String,
    layers: usize,
    hidden_size: usize,
    vocabulary: usize,
    file_bytes: usize,
    /// Where the model came from, as its file says.
    provenance: BTreeMap<String, String>,
    /// The instruction set it computes with.
    kernels: String,
    /// Names of all models of this server.
    models: Vec<String>,
    max_input_length: usize,
    max_concurrent_requests: usize,
    max_batch_tokens: usize,
    max_batch_requests: Option<usize>,
    max_client_batch_size: usize,
    max_request_tokens: usize,
    max_body_bytes: usize,
    auto_truncate: bool,
    tokenization_workers: usize,
    threads: usize,
    /// Whether requests need an API key.
    api_key_required: bool,
    /// Whether inputs are pairs of texts.
    takes_pairs: bool,
    uptime_seconds: f64,
    version: &'static str,
    sha: Option<String>,
    docker_label: Option<String>,
}

fn kind_of(model: &Model) -> ModelType {
    let labels = model.session.labels();
    let id2label = labels.iter().enumerate().map(|(id, label)| (id.to_string(), label.clone())).collect();
    let label2id = labels.iter().enumerate().map(|(id, label)| (label.clone(), id)).collect();
    match model.session.head() {
        Head::None => ModelType::Embedding { pooling: model.embed_options(true, None).pooling.name() },
        Head::TokenClassification => ModelType::TokenClassifier { id2label, label2id },
        Head::QuestionAnswering => ModelType::QuestionAnswering {},
        Head::SequenceClassification if model.scores_pairs() => ModelType::Reranker { id2label, label2id },
        Head::SequenceClassification => ModelType::Classifier { id2label, label2id },
    }
}

/// Bits of the weights, as `2-4 bits, activations 8`.
fn widths(model: &Model) -> String {
    let plan = model.session.plan();
    let mut all: Vec<String> = plan.sites().map(|(_, site)| site.bits.to_string()).collect();
    all.sort_by_key(|text| text.parse::<f32>().map_or(0, |bits| (10.0 * bits) as u32));
    all.dedup();
    format!("weights of {} bits, activations of {}", all.join(", "), plan.activation().bits)
}

/// What a model is: size, labels, limits.
#[utoipa::path(get, path = "/info", tag = "server",
    responses((status = 200, description = "The first model, or that of the path", body = Info), Refusals))]
pub(crate) async fn info(chosen: Chosen) -> ApiResult<Response> {
    let model = chosen.model(None)?;
    let (session, settings) = (&model.session, chosen.app.settings());
    // The plan is long, and a command may hold paths of the machine it ran on.
    let mut provenance = session.model().provenance().clone();
    provenance.retain(|key, _| key != "plan" && key != "command");
    let config = session.config();
    Ok(json(&Info {
        model_id: model.name.clone(),
        model_sha: provenance.iter().find(|(key, _)| key.contains("sha256")).map(|(_, sha)| sha.clone()),
        model_dtype: widths(&model),
        model_type: kind_of(&model),
        task: session.task().map(|task| task.name()),
        family: config.family.title.to_owned(),
        layers: config.layers,
        hidden_size: config.hidden_size,
        vocabulary: config.vocab_size,
        file_bytes: session.model().file_len(),
        provenance,
        kernels: session.compute().kernels().to_string(),
        models: chosen.app.registry().names().into_iter().map(str::to_owned).collect(),
        max_input_length: session.max_len(),
        max_concurrent_requests: settings.max_queue,
        max_batch_tokens: settings.max_batch_tokens,
        max_batch_requests: None,
        max_client_batch_size: settings.max_items,
        max_request_tokens: settings.max_request_tokens,
        max_body_bytes: settings.max_body_bytes,
        auto_truncate: true,
        tokenization_workers: settings.threads,
        threads: settings.threads,
        api_key_required: settings.api_key_file.is_some(),
        takes_pairs: model.takes_pairs(),
        uptime_seconds: chosen.app.uptime_seconds(),
        version: env!("CARGO_PKG_VERSION"),
        sha: None,
        docker_label: None,
    }))
}

/// Whether a model gives a value instead of labels.
#[must_use]
pub(super) fn is_value(model: &Model) -> bool {
    model.session.problem() == Problem::Regression
}
