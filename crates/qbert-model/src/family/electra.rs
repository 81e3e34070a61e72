//! ELECTRA: [Clark et al. 2020](https://arxiv.org/abs/2003.10555). Its discriminator is what is fine-tuned.
//!
//! BERT without a pooler, and in its smaller sizes with embeddings narrower than the encoder, which a linear layer widens.

use super::bert::{FIXED, KEYS, LAYER, REFUSED};
use super::{
    Activation, AttentionPattern, BiasKeys, EmbeddingProjection, Family, FeedForward, HeadClass, HeadClasses,
    HeadDropout, LayerPath, LayerSharing, NormPlacement, OptionalKey, Pooler, PoolerActivation, Positions,
    RelativeBias, SublayerDropout, SublayerRate, TensorNames,
};

const DROPOUT: HeadDropout = HeadDropout { key: "classifier_dropout", default: None };

/// ELECTRA.
pub static ELECTRA: Family = Family {
    model_type: "electra",
    title: "ELECTRA",
    file_prefix: "electra.",
    tensors: TensorNames {
        word: "embeddings.word_embeddings",
        tied_word: "generator_lm_head",
        position: Some("embeddings.position_embeddings"),
        token_type: Some("embeddings.token_type_embeddings"),
        embedding_norm: "embeddings.LayerNorm",
        projection: Some("embeddings_project"),
        relative_bias: None,
        final_norm: None,
        layers: LayerPath::List("encoder.layer"),
        layer: LAYER,
    },
    older_endings: &[],
    heads: HeadClasses {
        encoder: HeadClass { architecture: "ElectraModel", pooler: None, output: None, dropout: None },
        sequence_classification: HeadClass {
            architecture: "ElectraForSequenceClassification",
            pooler: Some(Pooler {
                module: "classifier.dense",
                activation: PoolerActivation::Of(Activation::Gelu),
                in_head: true,
                input_dropout: true,
                ..Pooler::PLAIN
            }),
            output: Some("classifier.out_proj"),
            dropout: Some(DROPOUT),
        },
        token_classification: HeadClass {
            architecture: "ElectraForTokenClassification",
            pooler: None,
            output: Some("classifier"),
            dropout: Some(DROPOUT),
        },
        question_answering: HeadClass {
            architecture: "ElectraForQuestionAnswering",
            pooler: None,
            output: Some("qa_outputs"),
            dropout: None,
        },
    },
    keys: KEYS,
    fixed: FIXED,
    refused: REFUSED,
    positions: Positions::Learned,
    projection: EmbeddingProjection::IfNeeded(OptionalKey::new("embedding_size", 128)),
    sharing: LayerSharing::None,
    relative_bias: RelativeBias::None,
    norm_placement: NormPlacement::AfterResidual,
    attention: AttentionPattern::Global,
    feed_forward: FeedForward::Plain,
    biases: BiasKeys::ALWAYS,
    sublayer_dropout: SublayerDropout { attention: SublayerRate::Hidden, feed_forward: SublayerRate::Hidden },
    tested_on: &[],
};
