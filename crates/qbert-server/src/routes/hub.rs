//! `POST /`: what the Hugging Face hub's own clients (`InferenceClient`) ask, answered according to the model's head.

use axum::response::Response;
use qbert_runtime::{Head, Input, Prediction};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Chosen;
use super::native::QuestionShape;
use super::shapes::{Classified, Labelled, Refusals, Texts, labelled, wrong_route};
use super::vectors::{Compared, Wanted, cosines, embed_texts};
use crate::app::Question;
use crate::body::{JsonBody, json};
use crate::error::{ApiError, ApiResult};

/// The inputs of any task.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "expected texts, or an object with question and context, or with source_sentence and sentences"
)]
pub(crate) enum HubInputs {
    Texts(Classified),
    Question(QuestionShape),
    Compared(Compared),
}

/// Settings of the tasks that can be changed.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct HubParameters {
    /// Labels: only the best so many.
    #[schema(minimum = 1)]
    top_k: Option<usize>,
    /// Embeddings: the name of one of the model's prompts.
    prompt_name: Option<String>,
    /// Embeddings: whether vectors get length 1.
    normalize: Option<bool>,
    /// Whether a text that is too long is cut (the default) or refused.
    truncate: Option<bool>,
}

/// A request to `/`.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct HubRequest {
    inputs: HubInputs,
    parameters: Option<HubParameters>,
    /// The model; the first one if not given.
    model: Option<String>,
}

/// An entity in the hub's shape.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HubEntity {
    entity_group: String,
    score: f64,
    word: String,
    start: usize,
    end: usize,
}

/// An answer in the hub's shape.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HubAnswer {
    answer: String,
    score: f64,
    start: usize,
    end: usize,
}

/// What the model's head gives.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum HubResponse {
    /// Of a classifier: labels per text, best first.
    Labels(Vec<Vec<Labelled>>),
    /// Of a model for entities, asked with one text.
    Entities(Vec<HubEntity>),
    /// The same, asked with several.
    EntitiesOfEach(Vec<Vec<HubEntity>>),
    /// Of a model for questions.
    Answer(HubAnswer),
    /// Of a model without a head.
    Vectors(Vec<Vec<f32>>),
    /// The same, asked with sentences to compare.
    Cosines(Vec<f32>),
}

/// The model's own task, as the Hugging Face hub's clients ask for it.
#[utoipa::path(post, path = "/", tag = "answers", request_body = HubRequest,
    responses((status = 200, description = "What the model's head gives", body = HubResponse), Refusals))]
pub(crate) async fn answer(chosen: Chosen, JsonBody(request): JsonBody<HubRequest>) -> ApiResult<Response> {
    let model = chosen.model(request.model.as_deref())?;
    let parameters = request.parameters.unwrap_or_default();
    let truncate = parameters.truncate.unwrap_or(true);
    if parameters.top_k == Some(0) {
        return Err(ApiError::invalid("top_k is 0", "ask for at least 1"));
    }
    let response = match (model.session.head(), request.inputs) {
        (Head::QuestionAnswering, HubInputs::Question(own)) => {
            let question = Question::Predict(Input::question(own.question, own.context));
            let answered = chosen.app.answer(&model, vec![question], true).await?;
            HubResponse::Answer(best_answer(answered.predictions()?)?)
        }
        (_, HubInputs::Compared(compared)) => HubResponse::Cosines(cosines(&chosen, &model, compared).await?),
        (Head::None, HubInputs::Texts(texts)) => {
            let texts = plain(texts)?.into_vec()?;
            let normalize = parameters.normalize.unwrap_or(true);
            let wanted = Wanted { normalize, truncate, prompt: parameters.prompt_name, ..Wanted::default() };
            HubResponse::Vectors(embed_texts(&chosen, &model, texts, wanted).await?.0)
        }
        (Head::SequenceClassification, HubInputs::Texts(texts)) => {
            let (inputs, _) = texts.into_inputs(&model)?;
            let questions = inputs.into_iter().map(Question::Predict).collect();
            let predictions = chosen.app.answer(&model, questions, truncate).await?.predictions()?;
            let labels = predictions.into_iter().map(|own| {
                let mut labels = labelled(&model, own, false)?;
                labels.truncate(parameters.top_k.unwrap_or(usize::MAX));
                Ok(labels)
            });
            HubResponse::Labels(labels.collect::<ApiResult<_>>()?)
        }
        (Head::TokenClassification, HubInputs::Texts(texts)) => {
            let texts = plain(texts)?;
            let is_list = matches!(texts, Texts::Many(_));
            let questions = texts.into_vec()?.into_iter().map(|text| Question::Predict(Input::text(text))).collect();
            let predictions = chosen.app.answer(&model, questions, true).await?.predictions()?;
            let mut each: Vec<Vec<HubEntity>> = predictions.into_iter().map(entities).collect();
            if is_list {
                HubResponse::EntitiesOfEach(each)
            } else {
                HubResponse::Entities(each.pop().unwrap_or_default())
            }
        }
        (Head::QuestionAnswering, HubInputs::Texts(_)) => {
            return Err(wrong_route("the model answers questions", "give an object with question and context"));
        }
        (_, HubInputs::Question(_)) => {
            return Err(wrong_route("the model answers no questions", "/info says what it is for"));
        }
    };
    Ok(json(&response))
}

fn plain(texts: Classified) -> ApiResult<Texts> {
    match texts {
        Classified::Text(text) => Ok(Texts::One(text)),
        Classified::Texts(texts) => Ok(Texts::Many(texts)),
        Classified::Lists(_) => Err(ApiError::invalid("a list of lists", "give a text or a list of texts")),
    }
}

fn entities(prediction: Prediction) -> Vec<HubEntity> {
    let Prediction::Tagging(found) = prediction else { return Vec::new() };
    let one = |entity: qbert_runtime::Entity| HubEntity {
        entity_group: entity.kind,
        score: entity.probability,
        word: entity.text,
        start: entity.characters.start,
        end: entity.characters.end,
    };
    found.entities.into_iter().map(one).collect()
}

fn best_answer(predictions: Vec<Prediction>) -> ApiResult<HubAnswer> {
    let Some(Prediction::Answers(found)) = predictions.into_iter().next() else {
        return Err(ApiError::internal("an answer of another kind"));
    };
    Ok(found.answers.into_iter().next().map_or_else(
        || HubAnswer { answer: String::new(), score: 0.0, start: 0, end: 0 },
        |best| HubAnswer {
            answer: best.text,
            score: best.probability,
            start: best.characters.start,
            end: best.characters.end,
        },
    ))
}
