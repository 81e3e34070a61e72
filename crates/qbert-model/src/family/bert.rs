//! BERT: [Devlin et al. 2019](https://arxiv.org/abs/1810.04805), in the names of `transformers`.

use super::{
    Activation, AttentionPattern, BiasKeys, ConfigKeys, EmbeddingProjection, Family, FeedForward, HeadClass,
    HeadClasses, HeadDropout, LayerNames, LayerPath, LayerSharing, NormPlacement, OptionalKey, Pooler,
    PoolerActivation, Positions, RelativeBias, SublayerDropout, SublayerRate, TensorNames,
};

const POOLER: Pooler = Pooler {
    module: "pooler.dense",
    activation: PoolerActivation::Tanh,
    in_head: false,
    input_dropout: false,
    ..Pooler::PLAIN
};
const DROPOUT: HeadDropout = HeadDropout { key: "classifier_dropout", default: None };

/// The names of a layer, which several families kept.
pub(super) const LAYER: LayerNames = LayerNames {
    query: "attention.self.query",
    key: "attention.self.key",
    value: "attention.self.value",
    fused_attention: None,
    attention_output: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    intermediate: "intermediate.dense",
    output: "output.dense",
    output_norm: "output.LayerNorm",
};

/// The keys and defaults, which several families kept.
pub(super) const KEYS: ConfigKeys = ConfigKeys {
    vocabulary: "vocab_size",
    hidden: "hidden_size",
    layers: "num_hidden_layers",
    heads: "num_attention_heads",
    intermediate: "intermediate_size",
    positions: "max_position_embeddings",
    token_types: OptionalKey::new("type_vocab_size", 2),
    norm_epsilon: OptionalKey::new("layer_norm_eps", 1e-12),
    hidden_dropout: OptionalKey::new("hidden_dropout_prob", 0.1),
    attention_dropout: OptionalKey::new("attention_probs_dropout_prob", 0.1),
    inner_dropout: OptionalKey::fixed(0.0),
    initializer_range: OptionalKey::new("initializer_range", 0.02),
    activation: "hidden_act",
    default_activation: Activation::Gelu,
};

/// Settings that BERT and its relatives must not have.
pub(super) const FIXED: &[(&str, &[&str])] = &[("position_embedding_type", &["absolute"])];
pub(super) const REFUSED: &[&str] = &["is_decoder", "add_cross_attention"];

/// BERT, and every model that was trained from it without changing its architecture (MiniLM, for one).
pub static BERT: Family = Family {
    model_type: "bert",
    title: "BERT",
    file_prefix: "bert.",
    tensors: TensorNames {
        word: "embeddings.word_embeddings",
        tied_word: "cls.predictions.decoder",
        position: Some("embeddings.position_embeddings"),
        token_type: Some("embeddings.token_type_embeddings"),
        embedding_norm: "embeddings.LayerNorm",
        projection: None,
        relative_bias: None,
        final_norm: None,
        layers: LayerPath::List("encoder.layer"),
        layer: LAYER,
    },
    // Checkpoints converted from TensorFlow keep the names that it gave γ and β.
    older_endings: &[("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")],
    heads: HeadClasses {
        encoder: HeadClass { architecture: "BertModel", pooler: Some(POOLER), output: None, dropout: None },
        sequence_classification: HeadClass {
            architecture: "BertForSequenceClassification",
            pooler: Some(POOLER),
            output: Some("classifier"),
            dropout: Some(DROPOUT),
        },
        token_classification: HeadClass {
            architecture: "BertForTokenClassification",
            pooler: None,
            output: Some("classifier"),
            dropout: Some(DROPOUT),
        },
        question_answering: HeadClass {
            architecture: "BertForQuestionAnswering",
            pooler: None,
            output: Some("qa_outputs"),
            dropout: None,
        },
    },
    keys: KEYS,
    fixed: FIXED,
    refused: REFUSED,
    positions: Positions::Learned,
    projection: EmbeddingProjection::None,
    sharing: LayerSharing::None,
    relative_bias: RelativeBias::None,
    norm_placement: NormPlacement::AfterResidual,
    attention: AttentionPattern::Global,
    feed_forward: FeedForward::Plain,
    biases: BiasKeys::ALWAYS,
    sublayer_dropout: SublayerDropout { attention: SublayerRate::Hidden, feed_forward: SublayerRate::Hidden },
    tested_on: &["all-MiniLM-L6-v2", "gte-small"],
};
