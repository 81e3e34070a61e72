//! ALBERT: [Lan et al. 2020](https://arxiv.org/abs/1909.11942).
//!
//! BERT whose layers share their weights, and whose embeddings are narrower than the encoder.

use super::bert::{FIXED, KEYS, REFUSED};
use super::{
    Activation, AttentionPattern, BiasKeys, ConfigKeys, EmbeddingProjection, Family, FeedForward, HeadClass,
    HeadClasses, HeadDropout, LayerNames, LayerPath, LayerSharing, NormPlacement, OptionalKey, Pooler,
    PoolerActivation, Positions, RelativeBias, SublayerDropout, SublayerRate, TensorNames,
};

const POOLER: Pooler = Pooler {
    module: "pooler",
    activation: PoolerActivation::Tanh,
    in_head: false,
    input_dropout: false,
    ..Pooler::PLAIN
};
const DROPOUT: HeadDropout = HeadDropout { key: "classifier_dropout_prob", default: Some(0.1) };

/// ALBERT.
pub static ALBERT: Family = Family {
    model_type: "albert",
    title: "ALBERT",
    file_prefix: "albert.",
    tensors: TensorNames {
        word: "embeddings.word_embeddings",
        tied_word: "predictions.decoder",
        position: Some("embeddings.position_embeddings"),
        token_type: Some("embeddings.token_type_embeddings"),
        embedding_norm: "embeddings.LayerNorm",
        projection: Some("encoder.embedding_hidden_mapping_in"),
        relative_bias: None,
        final_norm: None,
        layers: LayerPath::Groups { groups: "encoder.albert_layer_groups", members: "albert_layers" },
        layer: LayerNames {
            query: "attention.query",
            key: "attention.key",
            value: "attention.value",
            fused_attention: None,
            attention_output: "attention.dense",
            attention_norm: "attention.LayerNorm",
            intermediate: "ffn",
            output: "ffn_output",
            output_norm: "full_layer_layer_norm",
        },
    },
    older_endings: &[],
    heads: HeadClasses {
        encoder: HeadClass { architecture: "AlbertModel", pooler: Some(POOLER), output: None, dropout: None },
        sequence_classification: HeadClass {
            architecture: "AlbertForSequenceClassification",
            pooler: Some(POOLER),
            output: Some("classifier"),
            dropout: Some(DROPOUT),
        },
        token_classification: HeadClass {
            architecture: "AlbertForTokenClassification",
            pooler: None,
            output: Some("classifier"),
            dropout: Some(DROPOUT),
        },
        question_answering: HeadClass {
            architecture: "AlbertForQuestionAnswering",
            pooler: None,
            output: Some("qa_outputs"),
            dropout: None,
        },
    },
    keys: ConfigKeys {
        hidden_dropout: OptionalKey::new("hidden_dropout_prob", 0.0),
        attention_dropout: OptionalKey::new("attention_probs_dropout_prob", 0.0),
        default_activation: Activation::GeluTanh,
        ..KEYS
    },
    fixed: FIXED,
    refused: REFUSED,
    positions: Positions::Learned,
    projection: EmbeddingProjection::Always(OptionalKey::new("embedding_size", 128)),
    sharing: LayerSharing::Groups {
        groups: OptionalKey::new("num_hidden_groups", 1),
        members: OptionalKey::new("inner_group_num", 1),
    },
    relative_bias: RelativeBias::None,
    norm_placement: NormPlacement::AfterResidual,
    attention: AttentionPattern::Global,
    feed_forward: FeedForward::Plain,
    biases: BiasKeys::ALWAYS,
    sublayer_dropout: SublayerDropout { attention: SublayerRate::Hidden, feed_forward: SublayerRate::None },
    tested_on: &[],
};
