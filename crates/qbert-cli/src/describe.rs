//! What checkpoints and packed models have in common when they are shown.

use std::fmt::Write as _;

use qbert_model::{Config, Head, Problem};

use super::one_line;

/// The model's numbers and what it is for.
#[derive(Debug, serde::Serialize)]
pub(super) struct Described {
    /// `model_type` of the configuration.
    model_type: &'static str,
    /// What people call the family.
    family: &'static str,
    /// The activation of the feed-forward network.
    activation: String,
    layers: usize,
    /// Layers with weights of their own.
    distinct_layers: usize,
    hidden_size: usize,
    heads: usize,
    intermediate_size: usize,
    max_positions: usize,
    vocab_size: usize,
    head: Head,
    /// What the outputs of a head on whole texts mean.
    problem: Problem,
    labels: Vec<String>,
    /// What the head is, if it is not supported.
    #[serde(skip_serializing_if = "Option::is_none")]
    unsupported_head: Option<String>,
}

impl Described {
    pub(super) fn new(config: &Config, head: Head, labels: Vec<String>) -> Self {
        Self {
            model_type: config.family.model_type,
            family: config.family.title,
            activation: format!("{:?}", config.activation).to_lowercase(),
            layers: config.layers,
            distinct_layers: config.distinct_layers(),
            hidden_size: config.hidden_size,
            heads: config.heads,
            intermediate_size: config.intermediate_size,
            max_positions: config.max_positions,
            vocab_size: config.vocab_size,
            head,
            problem: config.problem(head, labels.len()),
            labels,
            unsupported_head: None,
        }
    }

    /// The same of a model whose head is not supported.
    pub(super) fn with_unsupported_head(mut self, what: Option<&str>) -> Self {
        self.unsupported_head = what.map(str::to_owned);
        self
    }

    fn label_list(&self) -> String {
        self.labels.iter().map(|label| one_line(label)).collect::<Vec<_>>().join(", ")
    }

    /// Encoder, tokens and head, a line each.
    pub(super) fn lines(&self) -> String {
        let mut text = String::new();
        let (layers, hidden, wide, heads) = (self.layers, self.hidden_size, self.intermediate_size, self.heads);
        let head = match self.head {
            Head::None if self.unsupported_head.is_some() => {
                format!("not supported: {}", self.unsupported_head.as_deref().unwrap_or_default())
            }
            Head::None => "none (fine-tune it for a task first)".to_owned(),
            Head::QuestionAnswering => "question answering".to_owned(),
            Head::SequenceClassification => match self.problem {
                Problem::SingleLabel => format!("sequence classification: {}", self.label_list()),
                Problem::MultiLabel => format!("any number of labels per text: {}", self.label_list()),
                Problem::Regression => "a value per text".to_owned(),
            },
            Head::TokenClassification => format!("token classification: {}", self.label_list()),
        };
        let shared = match self.distinct_layers {
            distinct if distinct == layers => String::new(),
            distinct => format!(" that share the weights of {distinct}"),
        };
        let (family, model_type, activation) = (self.family, self.model_type, &self.activation);
        let _ = writeln!(text, "  family      {family} (`{model_type}`), {activation}");
        let _ = writeln!(
            text,
            "  encoder     {layers} layers{shared}, hidden {hidden}, feed-forward {wide}, {heads} heads"
        );
        let _ = writeln!(text, "  tokens      vocabulary {}, up to {} positions", self.vocab_size, self.max_positions);
        let _ = writeln!(text, "  head        {head}");
        text
    }
}
