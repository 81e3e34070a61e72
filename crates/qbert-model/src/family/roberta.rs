//! RoBERTa: [Liu et al. 2019](https://arxiv.org/abs/1907.11692), and two models of its architecture with other
//! vocabularies: XLM-RoBERTa ([Conneau et al. 2020](https://arxiv.org/abs/1911.02116)) and CamemBERT
//! ([Martin et al. 2020](https://arxiv.org/abs/1911.03894)).
//!
//! BERT with positions that are counted after the padding token's row, and a classifier with a layer of its own in the
//! place of the pooler.

use super::bert::{FIXED, KEYS, LAYER, REFUSED};
use super::{
    AttentionPattern, BiasKeys, EmbeddingProjection, Family, FeedForward, HeadClass, HeadClasses, HeadDropout,
    LayerPath, LayerSharing, NormPlacement, OptionalKey, Pooler, PoolerActivation, Positions, RelativeBias,
    SublayerDropout, SublayerRate, TensorNames,
};

const POOLER: Pooler = Pooler {
    module: "pooler.dense",
    activation: PoolerActivation::Tanh,
    in_head: false,
    input_dropout: false,
    ..Pooler::PLAIN
};
const HEAD_POOLER: Pooler = Pooler {
    module: "classifier.dense",
    activation: PoolerActivation::Tanh,
    in_head: true,
    input_dropout: true,
    ..Pooler::PLAIN
};
const DROPOUT: HeadDropout = HeadDropout { key: "classifier_dropout", default: None };

/// The class names of a family of this architecture: encoder, sequences, tokens, answers.
type Classes = [&'static str; 4];

const fn heads([encoder, sequences, tokens, answers]: Classes) -> HeadClasses {
    HeadClasses {
        encoder: HeadClass { architecture: encoder, pooler: Some(POOLER), output: None, dropout: None },
        sequence_classification: HeadClass {
            architecture: sequences,
            pooler: Some(HEAD_POOLER),
            output: Some("classifier.out_proj"),
            dropout: Some(DROPOUT),
        },
        token_classification: HeadClass {
            architecture: tokens,
            pooler: None,
            output: Some("classifier"),
            dropout: Some(DROPOUT),
        },
        question_answering: HeadClass {
            architecture: answers,
            pooler: None,
            output: Some("qa_outputs"),
            dropout: None,
        },
    }
}

const fn family(model_type: &'static str, title: &'static str, classes: Classes) -> Family {
    Family {
        model_type,
        title,
        file_prefix: "roberta.",
        tensors: TensorNames {
            word: "embeddings.word_embeddings",
            tied_word: "lm_head.decoder",
            position: Some("embeddings.position_embeddings"),
            token_type: Some("embeddings.token_type_embeddings"),
            embedding_norm: "embeddings.LayerNorm",
            projection: None,
            relative_bias: None,
            final_norm: None,
            layers: LayerPath::List("encoder.layer"),
            layer: LAYER,
        },
        older_endings: &[],
        heads: heads(classes),
        keys: KEYS,
        fixed: FIXED,
        refused: REFUSED,
        positions: Positions::LearnedAfterPadding(OptionalKey::new("pad_token_id", 1)),
        projection: EmbeddingProjection::None,
        sharing: LayerSharing::None,
        relative_bias: RelativeBias::None,
        norm_placement: NormPlacement::AfterResidual,
        attention: AttentionPattern::Global,
        feed_forward: FeedForward::Plain,
        biases: BiasKeys::ALWAYS,
        sublayer_dropout: SublayerDropout { attention: SublayerRate::Hidden, feed_forward: SublayerRate::Hidden },
        tested_on: &[],
    }
}

/// RoBERTa.
pub static ROBERTA: Family = family(
    "roberta",
    "RoBERTa",
    [
        "RobertaModel",
        "RobertaForSequenceClassification",
        "RobertaForTokenClassification",
        "RobertaForQuestionAnswering",
    ],
);

/// XLM-RoBERTa, for a hundred languages.
pub static XLM_ROBERTA: Family = family(
    "xlm-roberta",
    "XLM-RoBERTa",
    [
        "XLMRobertaModel",
        "XLMRobertaForSequenceClassification",
        "XLMRobertaForTokenClassification",
        "XLMRobertaForQuestionAnswering",
    ],
);

/// CamemBERT, for French.
pub static CAMEMBERT: Family = family(
    "camembert",
    "CamemBERT",
    [
        "CamembertModel",
        "CamembertForSequenceClassification",
        "CamembertForTokenClassification",
        "CamembertForQuestionAnswering",
    ],
);
