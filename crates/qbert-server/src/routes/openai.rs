//! OpenAI's embeddings, and reranking as Cohere's and Jina's clients ask for it.

use axum::response::Response;
use base64::Engine as _;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Chosen;
use super::native::rank;
use super::shapes::{OpenAiRefusals, sigmoid, some};
use super::vectors::{Wanted, embed_texts};
use crate::body::{JsonBody, json};
use crate::error::{ApiError, ApiResult};

/// A text, a list of texts, or token ids, which are refused: they are another tokenizer's.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a text or a list of texts")]
pub(crate) enum OpenAiInput {
    Text(String),
    Texts(Vec<String>),
}

/// How vectors are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Encoding {
    /// Lists of numbers.
    #[default]
    Float,
    /// Base64 of little-endian f32.
    Base64,
}

/// A request to `/v1/embeddings`.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct EmbeddingsRequest {
    input: OpenAiInput,
    /// The model; the first one if not given.
    model: Option<String>,
    #[serde(default)]
    encoding_format: Encoding,
    /// The first so many numbers of each vector, for models trained for that.
    #[schema(minimum = 1)]
    dimensions: Option<usize>,
}

/// A vector in either form.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum VectorShape {
    Numbers(Vec<f32>),
    Base64(String),
}

/// A vector and which text it belongs to.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EmbeddingShape {
    #[schema(example = "embedding")]
    object: &'static str,
    index: usize,
    embedding: VectorShape,
}

/// What a request cost.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// An answer of `/v1/embeddings`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EmbeddingsResponse {
    #[schema(example = "list")]
    object: &'static str,
    data: Vec<EmbeddingShape>,
    model: String,
    usage: Usage,
}

/// Vectors of length 1, as OpenAI's clients ask for them.
#[utoipa::path(post, path = "/v1/embeddings", tag = "OpenAI", request_body = EmbeddingsRequest,
    responses((status = 200, description = "One vector per text", body = EmbeddingsResponse), OpenAiRefusals))]
pub(crate) async fn embeddings(chosen: Chosen, JsonBody(request): JsonBody<EmbeddingsRequest>) -> ApiResult<Response> {
    let model = chosen.model(request.model.as_deref())?;
    let texts = match request.input {
        OpenAiInput::Text(text) => vec![text],
        OpenAiInput::Texts(texts) => some(texts)?,
    };
    let wanted = Wanted { dimensions: request.dimensions, ..Wanted::default() };
    let (vectors, tokens) = embed_texts(&chosen, &model, texts, wanted).await?;
    let written = |vector: Vec<f32>| match request.encoding_format {
        Encoding::Float => VectorShape::Numbers(vector),
        Encoding::Base64 => {
            let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
            VectorShape::Base64(base64::engine::general_purpose::STANDARD.encode(bytes))
        }
    };
    let one = |(index, vector)| EmbeddingShape { object: "embedding", index, embedding: written(vector) };
    Ok(json(&EmbeddingsResponse {
        object: "list",
        data: vectors.into_iter().enumerate().map(one).collect(),
        model: model.name.clone(),
        usage: Usage { prompt_tokens: tokens, total_tokens: tokens },
    }))
}

/// A document as a text or as an object with a text.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a text or an object with a text")]
pub(crate) enum Document {
    Text(String),
    Object { text: String },
}

impl Document {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) | Self::Object { text } => text,
        }
    }
}

/// A request to `/v1/rerank`.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct RerankRequest {
    /// The model; the first one if not given.
    model: Option<String>,
    query: String,
    documents: Vec<Document>,
    /// Only the best so many.
    #[schema(minimum = 1)]
    top_n: Option<usize>,
    /// Whether the answer repeats the documents.
    #[serde(default)]
    return_documents: bool,
}

/// A document in its rank.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RankedDocument {
    /// Its index in the request.
    index: usize,
    /// Between 0 and 1.
    relevance_score: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<DocumentShape>,
}

/// A document that is repeated.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DocumentShape {
    text: String,
}

/// An answer of `/v1/rerank`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DocumentRanking)]
pub(crate) struct RerankResponse {
    model: String,
    results: Vec<RankedDocument>,
    usage: Usage,
}

/// How well each document answers a query, best first, as Cohere's and Jina's clients ask for it.
#[utoipa::path(post, path = "/v1/rerank", tag = "OpenAI", request_body = RerankRequest,
    responses((status = 200, description = "Documents, best first", body = RerankResponse), OpenAiRefusals))]
pub(crate) async fn rerank(chosen: Chosen, JsonBody(request): JsonBody<RerankRequest>) -> ApiResult<Response> {
    let model = chosen.model(request.model.as_deref())?;
    if request.top_n == Some(0) {
        return Err(ApiError::invalid("top_n is 0", "ask for at least 1"));
    }
    let texts: Vec<String> = some(request.documents)?.into_iter().map(Document::into_text).collect();
    let (ranking, tokens) = rank(&chosen, &model, &request.query, &texts, true).await?;
    let one = |(index, value): (usize, f32)| RankedDocument {
        index,
        relevance_score: sigmoid(value),
        document: texts
            .get(index)
            .filter(|_| request.return_documents)
            .map(|text| DocumentShape { text: text.clone() }),
    };
    let most = request.top_n.unwrap_or(usize::MAX);
    Ok(json(&RerankResponse {
        model: model.name.clone(),
        results: ranking.into_iter().take(most).map(one).collect(),
        usage: Usage { prompt_tokens: tokens, total_tokens: tokens },
    }))
}
