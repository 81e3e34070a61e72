//! ModernBERT: [Warner et al. 2024](https://arxiv.org/abs/2412.13663).
//!
//! Norms in front of the sublayers, rotary positions, attention that is local in most layers, a gated feed-forward
//! network, and no biases. Query, key and value are one matrix in files.

use super::{
    Activation, AttentionPattern, BiasKeys, ConfigKeys, EmbeddingProjection, Family, FeedForward, HeadClass,
    HeadClasses, HeadDropout, LayerNames, LayerPath, LayerSharing, NormPlacement, OptionalKey, Pooler,
    PoolerActivation, PoolerReads, Positions, RelativeBias, RotaryKeys, SublayerDropout, SublayerRate, TensorNames,
    WindowKeys,
};

/// The prediction head of masked language modelling, which every head keeps.
const POOLER: Pooler = Pooler {
    module: "head.dense",
    activation: PoolerActivation::Of(Activation::Gelu),
    activation_key: Some("classifier_activation"),
    norm: Some("head.norm"),
    in_head: true,
    input_dropout: false,
    reads: PoolerReads::EveryToken,
};
const DROPOUT: HeadDropout = HeadDropout { key: "classifier_dropout", default: Some(0.0) };

/// ModernBERT.
pub static MODERNBERT: Family = Family {
    model_type: "modernbert",
    title: "ModernBERT",
    file_prefix: "model.",
    tensors: TensorNames {
        word: "embeddings.tok_embeddings",
        tied_word: "decoder",
        position: None,
        token_type: None,
        embedding_norm: "embeddings.norm",
        projection: None,
        relative_bias: None,
        final_norm: Some("final_norm"),
        layers: LayerPath::List("layers"),
        layer: LayerNames {
            query: "attn.Wqkv.query",
            key: "attn.Wqkv.key",
            value: "attn.Wqkv.value",
            fused_attention: Some("attn.Wqkv"),
            attention_output: "attn.Wo",
            attention_norm: "attn_norm",
            intermediate: "mlp.Wi",
            output: "mlp.Wo",
            output_norm: "mlp_norm",
        },
    },
    older_endings: &[],
    heads: HeadClasses {
        encoder: HeadClass { architecture: "ModernBertModel", pooler: None, output: None, dropout: None },
        sequence_classification: HeadClass {
            architecture: "ModernBertForSequenceClassification",
            pooler: Some(Pooler { reads: PoolerReads::AsConfigured("classifier_pooling"), ..POOLER }),
            output: Some("classifier"),
            dropout: Some(DROPOUT),
        },
        token_classification: HeadClass {
            architecture: "ModernBertForTokenClassification",
            pooler: Some(POOLER),
            output: Some("classifier"),
            dropout: Some(DROPOUT),
        },
        question_answering: HeadClass {
            architecture: "ModernBertForQuestionAnswering",
            pooler: Some(POOLER),
            output: Some("classifier"),
            dropout: Some(DROPOUT),
        },
    },
    keys: ConfigKeys {
        vocabulary: "vocab_size",
        hidden: "hidden_size",
        layers: "num_hidden_layers",
        heads: "num_attention_heads",
        intermediate: "intermediate_size",
        positions: "max_position_embeddings",
        token_types: OptionalKey::fixed(0),
        norm_epsilon: OptionalKey::new("norm_eps", 1e-5),
        hidden_dropout: OptionalKey::new("embedding_dropout", 0.0),
        attention_dropout: OptionalKey::new("attention_dropout", 0.0),
        inner_dropout: OptionalKey::new("mlp_dropout", 0.0),
        initializer_range: OptionalKey::new("initializer_range", 0.02),
        activation: "hidden_activation",
        default_activation: Activation::Gelu,
    },
    fixed: &[],
    refused: &["is_decoder", "add_cross_attention"],
    positions: Positions::Rotary(RotaryKeys {
        by_kind: "rope_parameters",
        theta: "rope_theta",
        rule: "rope_type",
        global: OptionalKey::new("global_rope_theta", 160_000.0),
        local: OptionalKey::new("local_rope_theta", 10_000.0),
    }),
    projection: EmbeddingProjection::None,
    sharing: LayerSharing::None,
    relative_bias: RelativeBias::None,
    norm_placement: NormPlacement::BeforeSublayer,
    attention: AttentionPattern::Alternating(WindowKeys {
        kinds: "layer_types",
        global: "full_attention",
        local: "sliding_attention",
        every: OptionalKey::new("global_attn_every_n_layers", 3),
        width: OptionalKey::new("local_attention", 128),
    }),
    feed_forward: FeedForward::Gated,
    biases: BiasKeys {
        attention: OptionalKey::new("attention_bias", false),
        feed_forward: OptionalKey::new("mlp_bias", false),
        norms: OptionalKey::new("norm_bias", false),
        pooler: OptionalKey::new("classifier_bias", false),
    },
    sublayer_dropout: SublayerDropout { attention: SublayerRate::Attention, feed_forward: SublayerRate::None },
    tested_on: &[],
};
