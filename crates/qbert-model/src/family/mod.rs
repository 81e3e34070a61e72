//! What makes one family of encoders different from another, as data.
//!
//! A family says what its tensors and configuration keys are called and which arithmetic it needs. Checkpoints, the
//! packed file, training and the runtime read this description; none of them knows the name of a tensor.
//!
//! To add a family, describe it in a file beside `bert.rs` and add it to [`Family::ALL`]. Where it computes something
//! that no other family does, add a variant to one of the enums here ([`Positions`], [`NormPlacement`],
//! [`Activation`], [`Pooling`]). They are matched exhaustively, so the compiler then lists every place in training and
//! the runtime that needs the new arithmetic.

mod bert;

pub use bert::BERT;

use qbert_quant::{Embedding, Matrix, Site};

use crate::head::Head;
use crate::role::{Module, Role, Tensor};

/// The description of a family of encoders.
#[derive(Debug, PartialEq)]
pub struct Family {
    /// `model_type` in `config.json`.
    pub model_type: &'static str,
    /// Precedes the names of the encoder's tensors in the files of models with a head, whose class wraps the encoder.
    pub file_prefix: &'static str,
    /// What the tensors are called.
    pub tensors: TensorNames,
    /// Endings of tensor names in older checkpoints, each with the ending of today.
    pub older_endings: &'static [(&'static str, &'static str)],
    /// The classes of `transformers`, one per [`Head`].
    pub heads: HeadClasses,
    /// Where `config.json` has the model's numbers.
    pub keys: ConfigKeys,
    /// Keys of `config.json` that must have one of these values if they are there.
    pub fixed: &'static [(&'static str, &'static [&'static str])],
    /// Keys of `config.json` that make a decoder of the model, and must not be true.
    pub refused: &'static [&'static str],
    /// The activations that `config.json` may name; the first is the default.
    pub activations: &'static [(&'static str, Activation)],
    /// How tokens learn where they are.
    pub positions: Positions,
    /// Where a layer's norms are.
    pub norm_placement: NormPlacement,
    /// How a sequence becomes one vector.
    pub pooling: Pooling,
}

/// The names of a family's modules: tensor names without `.weight` and `.bias`.
#[derive(Debug, PartialEq, Eq)]
pub struct TensorNames {
    /// The table of word pieces.
    pub word: &'static str,
    /// The table of positions.
    pub position: &'static str,
    /// The table of token types.
    pub token_type: &'static str,
    /// The norm after the embedding sum.
    pub embedding_norm: &'static str,
    /// The list of encoder layers; a layer's number and the names below follow.
    pub layers: &'static str,
    /// The modules of a layer.
    pub layer: LayerNames,
    /// The linear layer of the pooler.
    pub pooler: &'static str,
}

/// The names of an encoder layer's modules, after the layer's own.
#[derive(Debug, PartialEq, Eq)]
pub struct LayerNames {
    /// `W_q`
    pub query: &'static str,
    /// `W_k`
    pub key: &'static str,
    /// `W_v`
    pub value: &'static str,
    /// `W_o`, the projection after attention.
    pub attention_output: &'static str,
    /// The norm of the attention.
    pub attention_norm: &'static str,
    /// The first feed-forward matrix.
    pub intermediate: &'static str,
    /// The second feed-forward matrix.
    pub output: &'static str,
    /// The norm of the feed-forward network.
    pub output_norm: &'static str,
}

/// A family's model classes.
#[derive(Debug, PartialEq, Eq)]
pub struct HeadClasses {
    /// The bare encoder.
    pub encoder: HeadClass,
    /// One label per sequence.
    pub sequence_classification: HeadClass,
    /// One label per token.
    pub token_classification: HeadClass,
    /// Start and end scores per token.
    pub question_answering: HeadClass,
}

/// A family's model class for one head.
#[derive(Debug, PartialEq, Eq)]
pub struct HeadClass {
    /// The class name that `transformers` puts into `architectures`.
    pub architecture: &'static str,
    /// The name of the linear layer that gives the scores; `None` for the bare encoder.
    pub output: Option<&'static str>,
    /// Whether the scores come from the pooler, one row per sequence, rather than from every token.
    pub pooled: bool,
    /// Whether training drops out some of what the output layer reads.
    pub dropout: bool,
}

impl HeadClass {
    /// Whether the head reads the hidden state of every token.
    pub fn reads_every_token(&self) -> bool {
        self.output.is_some() && !self.pooled
    }

    /// The name of the output layer's weights; `None` for the bare encoder.
    pub(crate) fn output_weight(&self) -> Option<String> {
        self.output.map(|name| format!("{name}{}", Tensor::Weight.suffix()))
    }
}

/// Where `config.json` has the numbers of [`Config`](crate::Config).
#[derive(Debug, PartialEq)]
pub struct ConfigKeys {
    /// Rows of the word embedding.
    pub vocabulary: &'static str,
    /// Width of a token's vector.
    pub hidden: &'static str,
    /// Encoder layers.
    pub layers: &'static str,
    /// Attention heads per layer.
    pub heads: &'static str,
    /// Width of the feed-forward layer.
    pub intermediate: &'static str,
    /// Rows of the position embedding.
    pub positions: &'static str,
    /// Rows of the token-type embedding.
    pub token_types: OptionalKey<usize>,
    /// Added to the variance in norms.
    pub norm_epsilon: OptionalKey<f32>,
    /// Dropout after embeddings and sublayers.
    pub hidden_dropout: OptionalKey<f32>,
    /// Dropout on attention probabilities.
    pub attention_dropout: OptionalKey<f32>,
    /// Dropout before the head; `hidden_dropout` where the file has none.
    pub head_dropout: &'static str,
    /// Standard deviation of new weights.
    pub initializer_range: OptionalKey<f32>,
    /// The activation of the feed-forward network.
    pub activation: &'static str,
}

/// A key that a configuration may leave out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptionalKey<T> {
    /// The key.
    pub key: &'static str,
    /// What the family uses where the key is missing.
    pub default: T,
}

/// How tokens learn where they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Positions {
    /// A learned row per position, counted from 0, is added to the word's.
    Learned,
}

/// Where a layer's norms are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormPlacement {
    /// After the residual addition: `norm(x + sublayer(x))`.
    AfterResidual,
}

/// The function between the two feed-forward matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// GELU in its exact form, with the error function.
    Gelu,
}

/// How a sequence becomes one vector for the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// The first token's hidden state through a linear layer and tanh.
    FirstTokenTanh,
}

impl Family {
    /// All families that are supported. A configuration without `model_type` is read as the first.
    pub const ALL: [&'static Self; 1] = [&BERT];

    /// The family of a `model_type`.
    pub fn of_model_type(model_type: &str) -> Option<&'static Self> {
        Self::ALL.into_iter().find(|family| family.model_type == model_type)
    }

    /// The class of a head.
    pub fn class(&self, head: Head) -> &HeadClass {
        match head {
            Head::None => &self.heads.encoder,
            Head::SequenceClassification => &self.heads.sequence_classification,
            Head::TokenClassification => &self.heads.token_classification,
            Head::QuestionAnswering => &self.heads.question_answering,
        }
    }

    /// The head of a class name of `transformers`.
    pub fn head_of_architecture(&self, architecture: &str) -> Option<Head> {
        Head::ALL.into_iter().find(|&head| self.class(head).architecture == architecture)
    }

    /// The canonical name of a tensor in a model with `head`: the name in the files of the bare encoder.
    pub(crate) fn tensor_name(&self, head: Head, role: Role) -> String {
        let (names, layer) = (&self.tensors, &self.tensors.layer);
        let suffix = role.tensor.suffix();
        let in_layer = |index: usize, part: &str| format!("{}.{index}.{part}{suffix}", names.layers);
        let name = match role.module {
            Module::Site(Site::Embedding(Embedding::Word)) => names.word,
            Module::Site(Site::Embedding(Embedding::Position)) => names.position,
            Module::Site(Site::Embedding(Embedding::Type)) => names.token_type,
            Module::EmbeddingNorm => names.embedding_norm,
            Module::Site(Site::Layer(index, matrix)) => return in_layer(index, layer.matrix(matrix)),
            Module::AttentionNorm(index) => return in_layer(index, layer.attention_norm),
            Module::OutputNorm(index) => return in_layer(index, layer.output_norm),
            Module::Pooler => names.pooler,
            Module::Head => self.class(head).output.unwrap_or_default(),
        };
        format!("{name}{suffix}")
    }

    /// The canonical name of a tensor that a file calls `name`: without the prefix of a class with a head, and with
    /// today's ending.
    pub(crate) fn canonical_name(&self, name: &str) -> String {
        let name = name.strip_prefix(self.file_prefix).unwrap_or(name);
        for (old, new) in self.older_endings {
            if let Some(stem) = name.strip_suffix(old) {
                return format!("{stem}{new}");
            }
        }
        name.to_owned()
    }

    /// The name that `transformers` gives a tensor in the file of a model with `head`.
    pub(crate) fn file_name(&self, head: Head, role: Role, canonical: &str) -> String {
        let wrapped = head != Head::None && role.module != Module::Head;
        if wrapped { format!("{}{canonical}", self.file_prefix) } else { canonical.to_owned() }
    }
}

impl LayerNames {
    fn matrix(&self, matrix: Matrix) -> &'static str {
        match matrix {
            Matrix::Query => self.query,
            Matrix::Key => self.key,
            Matrix::Value => self.value,
            Matrix::AttentionOutput => self.attention_output,
            Matrix::Intermediate => self.intermediate,
            Matrix::Output => self.output,
        }
    }
}
