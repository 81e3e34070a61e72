//! BERT: [Devlin et al. 2019](https://arxiv.org/abs/1810.04805), in the names of `transformers`.

use super::{
    Activation, ConfigKeys, Family, HeadClass, HeadClasses, LayerNames, NormPlacement, OptionalKey, Pooling, Positions,
    TensorNames,
};

/// BERT, and every model that was trained from it without changing its architecture (MiniLM, for one).
pub static BERT: Family = Family {
    model_type: "bert",
    file_prefix: "bert.",
    tensors: TensorNames {
        word: "embeddings.word_embeddings",
        position: "embeddings.position_embeddings",
        token_type: "embeddings.token_type_embeddings",
        embedding_norm: "embeddings.LayerNorm",
        layers: "encoder.layer",
        layer: LayerNames {
            query: "attention.self.query",
            key: "attention.self.key",
            value: "attention.self.value",
            attention_output: "attention.output.dense",
            attention_norm: "attention.output.LayerNorm",
            intermediate: "intermediate.dense",
            output: "output.dense",
            output_norm: "output.LayerNorm",
        },
        pooler: "pooler.dense",
    },
    // Checkpoints converted from TensorFlow keep the names that it gave γ and β.
    older_endings: &[("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")],
    heads: HeadClasses {
        encoder: HeadClass { architecture: "BertModel", output: None, pooled: false, dropout: false },
        sequence_classification: HeadClass {
            architecture: "BertForSequenceClassification",
            output: Some("classifier"),
            pooled: true,
            dropout: true,
        },
        token_classification: HeadClass {
            architecture: "BertForTokenClassification",
            output: Some("classifier"),
            pooled: false,
            dropout: true,
        },
        question_answering: HeadClass {
            architecture: "BertForQuestionAnswering",
            output: Some("qa_outputs"),
            pooled: false,
            dropout: false,
        },
    },
    keys: ConfigKeys {
        vocabulary: "vocab_size",
        hidden: "hidden_size",
        layers: "num_hidden_layers",
        heads: "num_attention_heads",
        intermediate: "intermediate_size",
        positions: "max_position_embeddings",
        token_types: OptionalKey { key: "type_vocab_size", default: 2 },
        norm_epsilon: OptionalKey { key: "layer_norm_eps", default: 1e-12 },
        hidden_dropout: OptionalKey { key: "hidden_dropout_prob", default: 0.1 },
        attention_dropout: OptionalKey { key: "attention_probs_dropout_prob", default: 0.1 },
        head_dropout: "classifier_dropout",
        initializer_range: OptionalKey { key: "initializer_range", default: 0.02 },
        activation: "hidden_act",
    },
    fixed: &[("position_embedding_type", &["absolute"])],
    refused: &["is_decoder", "add_cross_attention"],
    activations: &[("gelu", Activation::Gelu), ("gelu_python", Activation::Gelu)],
    positions: Positions::Learned,
    norm_placement: NormPlacement::AfterResidual,
    pooling: Pooling::FirstTokenTanh,
};
