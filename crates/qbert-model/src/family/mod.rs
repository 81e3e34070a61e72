//! What makes one family of encoders different from another, as data.
//!
//! A family says what its tensors and configuration keys are called and which arithmetic it needs. Checkpoints, the
//! packed file, training and the runtime read this description; none of them knows the name of a tensor.
//!
//! To add a family, describe it in a file beside `bert.rs` and add it to [`Family::ALL`]. Where it computes something
//! that no other family does, add a variant to one of the enums here ([`Positions`], [`AttentionPattern`],
//! [`NormPlacement`], [`FeedForward`], [`Activation`], [`PoolerActivation`], [`PoolerReads`], [`EmbeddingProjection`],
//! [`LayerSharing`], [`RelativeBias`]). They are matched exhaustively, so the compiler then lists every place in training
//! and the runtime that needs the new arithmetic.

mod albert;
mod bert;
mod distilbert;
mod electra;
mod modernbert;
mod mpnet;
mod names;
mod page;
mod roberta;

pub use albert::ALBERT;
pub use bert::BERT;
pub use distilbert::DISTILBERT;
pub use electra::ELECTRA;
pub use modernbert::MODERNBERT;
pub use mpnet::MPNET;
pub use names::{LayerNames, LayerPath, TensorNames};
pub use qbert_kernels::Activation;
pub use roberta::{CAMEMBERT, ROBERTA, XLM_ROBERTA};

use crate::head::Head;
use crate::role::Tensor;

/// The description of a family of encoders.
#[derive(Debug, PartialEq)]
pub struct Family {
    /// `model_type` in `config.json`.
    pub model_type: &'static str,
    /// What people call it.
    pub title: &'static str,
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
    /// Keys of `config.json` that must have one of these values, strings or numbers, if they are there.
    pub fixed: &'static [(&'static str, &'static [&'static str])],
    /// Keys of `config.json` that make a decoder of the model, and must not be true.
    pub refused: &'static [&'static str],
    /// How tokens learn where they are.
    pub positions: Positions,
    /// How embeddings get the encoder's width.
    pub projection: EmbeddingProjection,
    /// Which layers share their weights.
    pub sharing: LayerSharing,
    /// What attention adds to its scores.
    pub relative_bias: RelativeBias,
    /// Where a layer's norms are.
    pub norm_placement: NormPlacement,
    /// Which tokens the attention of a layer sees.
    pub attention: AttentionPattern,
    /// What the feed-forward network computes.
    pub feed_forward: FeedForward,
    /// Which linear layers and norms have a bias.
    pub biases: BiasKeys,
    /// Which sublayers drop out some of their result in training.
    pub sublayer_dropout: SublayerDropout,
    /// Real weights that it was tested on, for the table of families.
    pub tested_on: &'static [&'static str],
}

/// A family's model classes.
#[derive(Debug, PartialEq)]
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
#[derive(Debug, PartialEq)]
pub struct HeadClass {
    /// The class name that `transformers` puts into `architectures`.
    pub architecture: &'static str,
    /// The layer in front of the output layer. A bare encoder may have one; a head that has one reads it, and any other
    /// head reads every token's hidden state.
    pub pooler: Option<Pooler>,
    /// The name of the linear layer that gives the scores; `None` for the bare encoder.
    pub output: Option<&'static str>,
    /// What training drops out of the output layer's input; `None` where it drops nothing.
    pub dropout: Option<HeadDropout>,
}

/// A linear layer and an activation on hidden states, usually on the first token's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pooler {
    /// The name of the linear layer.
    pub module: &'static str,
    /// What follows it.
    pub activation: PoolerActivation,
    /// Whether it is a part of the head: then files have its name without the family's prefix.
    pub in_head: bool,
    /// Whether training drops out some of what it reads, at the rate of the output layer's.
    pub input_dropout: bool,
    /// The key that names another activation.
    pub activation_key: Option<&'static str>,
    /// The name of the norm after the activation; `None` where there is none.
    pub norm: Option<&'static str>,
    /// Which hidden states it reads.
    pub reads: PoolerReads,
}

impl Pooler {
    /// A layer on the first token, without a norm: what most families have.
    const PLAIN: Self = Self {
        module: "",
        activation: PoolerActivation::Tanh,
        in_head: false,
        input_dropout: false,
        activation_key: None,
        norm: None,
        reads: PoolerReads::FirstToken,
    };
}

/// Which hidden states a pooler reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolerReads {
    /// The first token's.
    FirstToken,
    /// The first token's, or the mean of all, as the key says: `cls`, which is the default, or `mean`.
    AsConfigured(&'static str),
    /// Each token's.
    EveryToken,
}

/// How the hidden states of a sequence become what a pooler reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SequencePooling {
    /// The first token's.
    #[default]
    FirstToken,
    /// The mean of all.
    Mean,
    /// Each token's.
    EveryToken,
}

/// Where `config.json` has the dropout before a head's output layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadDropout {
    /// The key.
    pub key: &'static str,
    /// The rate where the key is missing; `None` for that of the encoder's sublayers.
    pub default: Option<f32>,
}

impl HeadClass {
    /// Whether the head gives scores of every token.
    pub fn reads_every_token(&self) -> bool {
        self.output.is_some() && self.pooler.is_none_or(|pooler| pooler.reads == PoolerReads::EveryToken)
    }

    /// Whether the head gives scores of whole sequences.
    pub fn reads_sequences(&self) -> bool {
        self.output.is_some() && !self.reads_every_token()
    }

    /// Whether the head reads the pooler, and not the hidden states themselves.
    pub fn reads_pooler(&self) -> bool {
        self.output.is_some() && self.pooler.is_some()
    }

    /// The name of the output layer's weights; `None` for the bare encoder.
    pub(crate) fn output_weight(&self) -> Option<String> {
        self.output.map(|name| format!("{name}{}", Tensor::Weight.suffix()))
    }

    /// The name of the pooler's weights; `None` where the class has none.
    pub(crate) fn pooler_weight(&self) -> Option<String> {
        self.pooler.map(|pooler| format!("{}{}", pooler.module, Tensor::Weight.suffix()))
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
    /// Rows of the position embedding; the longest sequence where there is no such table.
    pub positions: &'static str,
    /// Rows of the token-type embedding; unused where the family has no such table.
    pub token_types: OptionalKey<usize>,
    /// Added to the variance in norms.
    pub norm_epsilon: OptionalKey<f32>,
    /// Dropout after embeddings and sublayers.
    pub hidden_dropout: OptionalKey<f32>,
    /// Dropout on attention probabilities.
    pub attention_dropout: OptionalKey<f32>,
    /// Dropout between the two feed-forward products.
    pub inner_dropout: OptionalKey<f32>,
    /// Standard deviation of new weights.
    pub initializer_range: OptionalKey<f32>,
    /// The activation of the feed-forward network.
    pub activation: &'static str,
    /// The activation where the file names none.
    pub default_activation: Activation,
}

/// A key that a configuration may leave out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionalKey<T> {
    /// The key; `None` for a number that no file of the family can change.
    pub key: Option<&'static str>,
    /// What the family uses where the key is missing.
    pub default: T,
}

impl<T> OptionalKey<T> {
    const fn new(key: &'static str, default: T) -> Self {
        Self { key: Some(key), default }
    }

    const fn fixed(value: T) -> Self {
        Self { key: None, default: value }
    }
}

/// How tokens learn where they are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Positions {
    /// A learned row per position, counted from 0, is added to the word's.
    Learned,
    /// The same, but the count begins after the row whose number is the padding token's id. That row is the padding
    /// token's own, and such a token is not counted.
    LearnedAfterPadding(OptionalKey<usize>),
    /// Nothing is added to the word's row. Attention turns queries and keys by angles that grow with the position.
    Rotary(RotaryKeys),
}

/// Where `config.json` has the base of the angles, which layers of global and of local attention have one each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RotaryKeys {
    /// The key of an object with an entry per kind of attention, as newer files have it.
    pub by_kind: &'static str,
    /// The key of the base in such an entry.
    pub theta: &'static str,
    /// The key of the angles' rule in such an entry; only the default is computed.
    pub rule: &'static str,
    /// The base of layers of global attention.
    pub global: OptionalKey<f32>,
    /// That of layers of local attention.
    pub local: OptionalKey<f32>,
}

/// Which tokens the attention of a layer sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttentionPattern {
    /// The whole sequence.
    Global,
    /// Some layers see the whole sequence, the others a window round each token.
    Alternating(WindowKeys),
}

/// Where `config.json` has the windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowKeys {
    /// The key of a list with the kind of every layer, as newer files have it.
    pub kinds: &'static str,
    /// The kind that sees the whole sequence.
    pub global: &'static str,
    /// The kind that sees a window.
    pub local: &'static str,
    /// Without that list: from the first layer on, every so many layers are global.
    pub every: OptionalKey<usize>,
    /// The window's width: half of it on each side of a token.
    pub width: OptionalKey<usize>,
}

/// What the feed-forward network computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeedForward {
    /// `W₂·f(W₁·x)`
    Plain,
    /// `W₂·(f(a) ∘ g)`, where `a` and `g` are the upper and the lower half of `W₁·x`.
    Gated,
}

/// Where `config.json` says which linear layers and norms have a bias. The output layer of a head always has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BiasKeys {
    /// Query, key, value and the projection after attention.
    pub attention: OptionalKey<bool>,
    /// The feed-forward network.
    pub feed_forward: OptionalKey<bool>,
    /// The norms.
    pub norms: OptionalKey<bool>,
    /// The pooler.
    pub pooler: OptionalKey<bool>,
}

impl BiasKeys {
    /// Every one of them, whatever the file says.
    const ALWAYS: Self = Self {
        attention: OptionalKey::fixed(true),
        feed_forward: OptionalKey::fixed(true),
        norms: OptionalKey::fixed(true),
        pooler: OptionalKey::fixed(true),
    };
}

/// How embeddings get the encoder's width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmbeddingProjection {
    /// They have it.
    None,
    /// A linear layer after the norm, where the embeddings are of another width.
    IfNeeded(OptionalKey<usize>),
    /// A linear layer after the norm, always.
    Always(OptionalKey<usize>),
}

/// Which layers share their weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerSharing {
    /// Every layer has its own.
    None,
    /// Layers that follow each other form groups. A group has the weights of a few layers, which all its members compute
    /// one after the other.
    Groups {
        /// The number of groups.
        groups: OptionalKey<usize>,
        /// The number of layers in a group's weights.
        members: OptionalKey<usize>,
    },
}

/// What attention adds to its scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelativeBias {
    /// Nothing.
    None,
    /// A number per head and bucket of distances between key and query, the same in every layer: half of the buckets for
    /// keys behind the query, half for those before it. Near distances have a bucket each, farther ones share
    /// buckets that grow with the logarithm, and the last bucket has all from `farthest` on.
    Buckets {
        /// Rows of the table.
        count: usize,
        /// The distance from which on the bucket is the last.
        farthest: usize,
    },
}

/// Where a layer's norms are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormPlacement {
    /// After the residual addition: `norm(x + sublayer(x))`.
    AfterResidual,
    /// In front of the sublayer: `x + sublayer(norm(x))`. The attention of the first layer has no norm, because the
    /// embeddings end in one, and the last layer is followed by one.
    BeforeSublayer,
}

/// Which sublayers drop out some of their result in training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SublayerDropout {
    /// The attention, after its projection.
    pub attention: SublayerRate,
    /// The feed-forward network.
    pub feed_forward: SublayerRate,
}

/// How much a sublayer drops out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SublayerRate {
    /// Nothing.
    None,
    /// As much as the embeddings.
    Hidden,
    /// As much as attention drops of its probabilities.
    Attention,
}

/// The function after the pooler's linear layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolerActivation {
    /// The hyperbolic tangent.
    Tanh,
    /// One of the feed-forward network's functions.
    Of(Activation),
}

/// The activations by their names in `config.json`. Some have several, for implementations of one function.
pub(crate) const ACTIVATIONS: [(&str, Activation); 9] = [
    ("gelu", Activation::Gelu),
    ("gelu_python", Activation::Gelu),
    ("gelu_new", Activation::GeluTanh),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("gelu_python_tanh", Activation::GeluTanh),
    ("gelu_fast", Activation::GeluTanh),
    ("relu", Activation::Relu),
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
];

impl Family {
    /// All families that are supported. A configuration without `model_type` is read as the first.
    pub const ALL: [&'static Self; 9] =
        [&BERT, &DISTILBERT, &ROBERTA, &XLM_ROBERTA, &CAMEMBERT, &ELECTRA, &MPNET, &ALBERT, &MODERNBERT];

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
}

impl RelativeBias {
    /// The bucket of a key this far after its query (negative: before it).
    pub fn bucket(self, distance: isize) -> usize {
        match self {
            Self::None => 0,
            Self::Buckets { count, farthest } => {
                let (half, far) = (count / 2, distance.unsigned_abs());
                let own = if distance > 0 { half } else { 0 };
                own + bucket_of_distance(far, half, farthest)
            }
        }
    }

    /// Rows of the table; 0 where there is none.
    pub fn buckets(self) -> usize {
        match self {
            Self::None => 0,
            Self::Buckets { count, .. } => count,
        }
    }
}

/// The bucket of a distance among `buckets`: half of them hold one distance each, and the upper ends of the others grow
/// by equal factors up to `farthest`.
fn bucket_of_distance(distance: usize, buckets: usize, farthest: usize) -> usize {
    let exact = buckets / 2;
    if distance < exact {
        return distance;
    }
    let place = |value: usize| libm::logf(value as f32 / exact as f32);
    let share = place(distance) / libm::log(farthest as f64 / exact as f64) as f32;
    let bucket = exact + (share * (buckets - exact) as f32) as usize;
    bucket.min(buckets - 1)
}
