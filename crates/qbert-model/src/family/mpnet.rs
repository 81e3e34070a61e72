//! MPNet: [Song et al. 2020](https://arxiv.org/abs/2004.09297).
//!
//! BERT without token types, with positions that are counted after the padding token's row, and with a relative bias
//! that all layers add to their attention scores.

use super::bert::{FIXED, KEYS, REFUSED};
use super::{
    AttentionPattern, BiasKeys, ConfigKeys, EmbeddingProjection, Family, FeedForward, HeadClass, HeadClasses,
    HeadDropout, LayerNames, LayerPath, LayerSharing, NormPlacement, OptionalKey, Pooler, PoolerActivation, Positions,
    RelativeBias, SublayerDropout, SublayerRate, TensorNames,
};

const POOLER: Pooler = Pooler {
    module: "pooler.dense",
    activation: PoolerActivation::Tanh,
    in_head: false,
    input_dropout: false,
    ..Pooler::PLAIN
};
const DROPOUT: HeadDropout = HeadDropout { key: "hidden_dropout_prob", default: None };

/// MPNet.
pub static MPNET: Family = Family {
    model_type: "mpnet",
    title: "MPNet",
    file_prefix: "mpnet.",
    tensors: TensorNames {
        word: "embeddings.word_embeddings",
        tied_word: "lm_head.decoder",
        position: Some("embeddings.position_embeddings"),
        token_type: None,
        embedding_norm: "embeddings.LayerNorm",
        projection: None,
        relative_bias: Some("encoder.relative_attention_bias"),
        final_norm: None,
        layers: LayerPath::List("encoder.layer"),
        layer: LayerNames {
            query: "attention.attn.q",
            key: "attention.attn.k",
            value: "attention.attn.v",
            fused_attention: None,
            attention_output: "attention.attn.o",
            attention_norm: "attention.LayerNorm",
            intermediate: "intermediate.dense",
            output: "output.dense",
            output_norm: "output.LayerNorm",
        },
    },
    older_endings: &[],
    heads: HeadClasses {
        encoder: HeadClass { architecture: "MPNetModel", pooler: Some(POOLER), output: None, dropout: None },
        sequence_classification: HeadClass {
            architecture: "MPNetForSequenceClassification",
            pooler: Some(Pooler {
                module: "classifier.dense",
                activation: PoolerActivation::Tanh,
                in_head: true,
                input_dropout: true,
                ..Pooler::PLAIN
            }),
            output: Some("classifier.out_proj"),
            dropout: Some(DROPOUT),
        },
        token_classification: HeadClass {
            architecture: "MPNetForTokenClassification",
            pooler: None,
            output: Some("classifier"),
            dropout: Some(DROPOUT),
        },
        question_answering: HeadClass {
            architecture: "MPNetForQuestionAnswering",
            pooler: None,
            output: Some("qa_outputs"),
            dropout: None,
        },
    },
    keys: ConfigKeys { token_types: OptionalKey::fixed(0), ..KEYS },
    // `transformers` computes 32 buckets whatever the file says.
    fixed: &[FIXED[0], ("relative_attention_num_buckets", &["32"])],
    refused: REFUSED,
    positions: Positions::LearnedAfterPadding(OptionalKey::fixed(1)),
    projection: EmbeddingProjection::None,
    sharing: LayerSharing::None,
    relative_bias: RelativeBias::Buckets { count: 32, farthest: 128 },
    norm_placement: NormPlacement::AfterResidual,
    attention: AttentionPattern::Global,
    feed_forward: FeedForward::Plain,
    biases: BiasKeys::ALWAYS,
    sublayer_dropout: SublayerDropout { attention: SublayerRate::Hidden, feed_forward: SublayerRate::Hidden },
    tested_on: &["all-mpnet-base-v2"],
};
