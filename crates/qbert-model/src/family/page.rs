//! The page of supported families in the documentation, made from their descriptions.

use std::fmt::Write as _;

use super::{
    AttentionPattern, EmbeddingProjection, Family, FeedForward, LayerSharing, NormPlacement, PoolerActivation,
    PoolerReads, Positions, RelativeBias,
};
use crate::head::Head;

/// What is known about the family that is asked for most and is not here.
const NOT_YET: &str = "
## Not supported yet

DeBERTa-v3 (`deberta-v2`) is refused. What it needs, as far as is known:

- Disentangled attention. A score is the sum of content to content, content to position `Q_c·K_rᵀ` and position to content
  `K_c·Q_rᵀ`, divided by `√(3·D)`. `Q_r` and `K_r` are the products of a table of relative positions, the same for all layers, with
  the layer's own query and key matrices (`share_att_key`). Both terms are gathered by distance, so they cost O(n · buckets) products
  and O(n²) look-ups, and the softmax must take a term per pair, not per distance as `DistanceBias` does.
- Distances go into logarithmic buckets (`position_buckets`, `max_relative_positions`) with a rule of their own; the table has a
  LayerNorm (`norm_rel_ebd`).
- In integers: `Q_r` and `K_r` can be codes like queries and keys, with ranges of their own; the three terms have three scales, so they meet in
  f32 before the softmax.
- The derivatives: the table's rows get gradients from every layer, through both terms; Hessian-vector products likewise.
- No table of absolute positions (`position_biased_input: false`) and no token types in most checkpoints, embeddings of another width
  in some (`embedding_size`), a pooler called `ContextPooler` with GELU, and a `spm.model` (Unigram) tokenizer.
- `conv_kernel_size` above 0 adds a convolution after the first layer: refuse it by name.
";

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
            | family | token types | positions | embeddings | layers | norms | attention | feed-forward network | classifier of texts |\n\
            |---|---|---|---|---|---|---|---|---|\n";
        for family in Self::ALL {
            let types = if family.tensors.token_type.is_some() { "yes" } else { "no" };
            let cells = [types, family.positions_text(), family.embeddings_text(), family.layers_text()];
            let (norms, network) = (family.norms_text(), family.feed_forward_text());
            let (attention, head) = (family.attention_text(), family.head_text());
            let cells = cells.join(" | ");
            let _ = writeln!(text, "| {} | {cells} | {norms} | {attention} | {network} | {head} |", family.title);
        }
        text += "\nThe feed-forward activation of every family may be ";
        let names: Vec<String> = super::ACTIVATIONS.iter().map(|(name, _)| format!("`{name}`")).collect();
        let (last, others) = names.split_last().map_or(("", &[][..]), |(last, others)| (last.as_str(), others));
        let _ = writeln!(text, "{} or {last}.", others.join(", "));
        text += NOT_YET;
        text
    }

    fn positions_text(&self) -> &'static str {
        match self.positions {
            Positions::Learned => "learned, from 0",
            Positions::LearnedAfterPadding(_) => "learned, counted after the padding token's row",
            Positions::Rotary(_) => "rotary, with a base of its own for local attention",
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

    fn norms_text(&self) -> &'static str {
        match self.norm_placement {
            NormPlacement::AfterResidual => "after each sublayer",
            NormPlacement::BeforeSublayer => "in front of each sublayer, and after the last layer",
        }
    }

    fn attention_text(&self) -> &'static str {
        match (self.attention, self.relative_bias) {
            (AttentionPattern::Global, RelativeBias::None) => "global",
            (AttentionPattern::Global, RelativeBias::Buckets { .. }) => {
                "global, with a bias by distance that all layers share"
            }
            (AttentionPattern::Alternating(_), _) => "global and local by turns; local attention costs O(n · window)",
        }
    }

    fn feed_forward_text(&self) -> &'static str {
        match self.feed_forward {
            FeedForward::Plain => "plain",
            FeedForward::Gated => "gated",
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
            let norm = if pooler.norm.is_some() { " and a norm" } else { "" };
            let reads = match pooler.reads {
                PoolerReads::AsConfigured(_) => " on the first token or the mean",
                PoolerReads::FirstToken | PoolerReads::EveryToken => "",
            };
            format!("{of} with {function}{norm}{reads}, then a linear layer")
        })
    }
}
