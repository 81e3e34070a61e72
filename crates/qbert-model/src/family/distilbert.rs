//! DistilBERT: [Sanh et al. 2019](https://arxiv.org/abs/1910.01108).
//!
//! BERT with half the layers, without token types and without a pooler; its classifier has a layer of its own.

use super::{
    Activation, AttentionPattern, BiasKeys, ConfigKeys, EmbeddingProjection, Family, FeedForward, HeadClass,
    HeadClasses, HeadDropout, LayerNames, LayerPath, LayerSharing, NormPlacement, OptionalKey, Pooler,
    PoolerActivation, Positions, RelativeBias, SublayerDropout, SublayerRate, TensorNames,
};

/// DistilBERT.
pub static DISTILBERT: Family = Family {
    model_type: "distilbert",
    title: "DistilBERT",
    file_prefix: "distilbert.",
    tensors: TensorNames {
        word: "embeddings.word_embeddings",
        tied_word: "vocab_projector",
        position: Some("embeddings.position_embeddings"),
        token_type: None,
        embedding_norm: "embeddings.LayerNorm",
        projection: None,
        relative_bias: None,
        final_norm: None,
        layers: LayerPath::List("transformer.layer"),
        layer: LayerNames {
            query: "attention.q_lin",
            key: "attention.k_lin",
            value: "attention.v_lin",
            fused_attention: None,
            attention_output: "attention.out_lin",
            attention_norm: "sa_layer_norm",
            intermediate: "ffn.lin1",
            output: "ffn.lin2",
            output_norm: "output_layer_norm",
        },
    },
    older_endings: &[],
    heads: HeadClasses {
        encoder: HeadClass { architecture: "DistilBertModel", pooler: None, output: None, dropout: None },
        sequence_classification: HeadClass {
            architecture: "DistilBertForSequenceClassification",
            pooler: Some(Pooler {
                module: "pre_classifier",
                activation: PoolerActivation::Of(Activation::Relu),
                in_head: true,
                input_dropout: false,
                ..Pooler::PLAIN
            }),
            output: Some("classifier"),
            dropout: Some(HeadDropout { key: "seq_classif_dropout", default: Some(0.2) }),
        },
        token_classification: HeadClass {
            architecture: "DistilBertForTokenClassification",
            pooler: None,
            output: Some("classifier"),
            dropout: Some(HeadDropout { key: "dropout", default: Some(0.1) }),
        },
        question_answering: HeadClass {
            architecture: "DistilBertForQuestionAnswering",
            pooler: None,
            output: Some("qa_outputs"),
            dropout: Some(HeadDropout { key: "qa_dropout", default: Some(0.1) }),
        },
    },
    keys: ConfigKeys {
        vocabulary: "vocab_size",
        hidden: "dim",
        layers: "n_layers",
        heads: "n_heads",
        intermediate: "hidden_dim",
        positions: "max_position_embeddings",
        token_types: OptionalKey::fixed(0),
        norm_epsilon: OptionalKey::fixed(1e-12),
        hidden_dropout: OptionalKey::new("dropout", 0.1),
        attention_dropout: OptionalKey::new("attention_dropout", 0.1),
        inner_dropout: OptionalKey::fixed(0.0),
        initializer_range: OptionalKey::new("initializer_range", 0.02),
        activation: "activation",
        default_activation: Activation::Gelu,
    },
    fixed: &[],
    refused: &[],
    positions: Positions::Learned,
    projection: EmbeddingProjection::None,
    sharing: LayerSharing::None,
    relative_bias: RelativeBias::None,
    norm_placement: NormPlacement::AfterResidual,
    attention: AttentionPattern::Global,
    feed_forward: FeedForward::Plain,
    biases: BiasKeys::ALWAYS,
    sublayer_dropout: SublayerDropout { attention: SublayerRate::None, feed_forward: SublayerRate::Hidden },
    tested_on: &[],
};
