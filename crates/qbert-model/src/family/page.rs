//! The page of supported families in the documentation, made from their descriptions.

use std::fmt::Write as _;

use super::{EmbeddingProjection, Family, LayerSharing, PoolerActivation, Positions, RelativeBias};
use crate::head::Head;

impl Family {
    /// `docs/reference/families.md`: what can be done with the models of each family, and what makes it differ.
    pub fn page() -> String {
        let mut text = "# Supported families\n\n\
            Made from `qbert_model::family` by `cargo run -p qbert-model --example families`; do not edit.\n\n\
            A checkpoint's family is the `model_type` of its `config.json`. Every family goes the whole way: checkpoints in and\n\
            out, fine-tuning, analysis with exact Hessian products, quantization-aware training, packing, and the integer\n\
            runtime, with every head. Each is tested against `transformers` with tiny random models\n\
            (`reference/train/families.py`), and a packed model answers what training evaluated, to the last bit.\n\n\
            | family | `model_type` | checkpoint | fine-tune | analyze | quantize | runtime | real weights tested |\n\
            |---|---|---|---|---|---|---|---|\n"
            .to_owned();
        for family in Self::ALL {
            let tested = if family.tested_on.is_empty() { "–".to_owned() } else { family.tested_on.join(", ") };
            let (title, model_type) = (family.title, family.model_type);
            let _ = writeln!(text, "| {title} | `{model_type}` | yes | yes | yes | yes | yes | {tested} |");
        }
        text += "\n## What makes them differ\n\n\
            | family | token types | positions | embeddings | layers | attention scores | classifier of texts |\n\
            |---|---|---|---|---|---|---|\n";
        for family in Self::ALL {
            let types = if family.tensors.token_type.is_some() { "yes" } else { "no" };
            let cells = [types, family.positions_text(), family.embeddings_text(), family.layers_text()];
            let (bias, head) = (family.bias_text(), family.head_text());
            let _ = writeln!(text, "| {} | {} | {bias} | {head} |", family.title, cells.join(" | "));
        }
        text += "\nThe feed-forward activation of every family may be ";
        let names: Vec<String> = super::ACTIVATIONS.iter().map(|(name, _)| format!("`{name}`")).collect();
        let (last, others) = names.split_last().map_or(("", &[][..]), |(last, others)| (last.as_str(), others));
        let _ = writeln!(text, "{} or {last}.", others.join(", "));
        text
    }

    fn positions_text(&self) -> &'static str {
        match self.positions {
            Positions::Learned => "learned, from 0",
            Positions::LearnedAfterPadding(_) => "learned, counted after the padding token's row",
        }
    }

    fn embeddings_text(&self) -> &'static str {
        match self.projection {
            EmbeddingProjection::None => "of the encoder's width",
            EmbeddingProjection::IfNeeded(_) => "projected, where they are narrower",
            EmbeddingProjection::Always(_) => "projected",
        }
    }

    fn layers_text(&self) -> &'static str {
        match self.sharing {
            LayerSharing::None => "weights of their own",
            LayerSharing::Groups { .. } => "weights shared by groups, stored once",
        }
    }

    fn bias_text(&self) -> &'static str {
        match self.relative_bias {
            RelativeBias::None => "plain",
            RelativeBias::Buckets { .. } => "with a bias by distance, shared by all layers",
        }
    }

    fn head_text(&self) -> String {
        let pooler = self.class(Head::SequenceClassification).pooler;
        pooler.map_or("a linear layer".to_owned(), |pooler| {
            let function = match pooler.activation {
                PoolerActivation::Tanh => "tanh".to_owned(),
                PoolerActivation::Of(activation) => format!("{activation:?}").to_lowercase(),
            };
            let of = if pooler.in_head { "its own layer" } else { "the pooler" };
            format!("{of} with {function}, then a linear layer")
        })
    }
}
