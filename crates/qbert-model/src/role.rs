//! What a tensor is for, whatever its family calls it.
//!
//! Training and the runtime ask a [`ParameterLayout`](crate::ParameterLayout) for roles; only a
//! [`Family`](crate::Family) knows the names that belong to them.

use std::fmt;

use qbert_quant::{Embedding, Matrix, Site};

/// A part of the model that has weights of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Module {
    /// An embedding table or a matrix of an encoder layer: what a plan can quantize.
    Site(Site),
    /// The norm after the embedding sum.
    EmbeddingNorm,
    /// The linear layer from the width of the embeddings to the encoder's.
    EmbeddingProjection,
    /// The table of what attention adds to its scores, by distance and head.
    RelativeBias,
    /// The norm of an encoder layer's attention, by layer.
    AttentionNorm(usize),
    /// The norm of an encoder layer's feed-forward network, by layer.
    OutputNorm(usize),
    /// The norm after the last encoder layer.
    FinalNorm,
    /// The linear layer on hidden states, in front of the head or a part of it.
    Pooler,
    /// The norm after the pooler's activation.
    PoolerNorm,
    /// The linear layer that gives the scores.
    Head,
}

impl Module {
    /// An embedding table.
    pub const fn table(table: Embedding) -> Self {
        Self::Site(Site::Embedding(table))
    }

    /// A matrix of an encoder layer.
    pub const fn matrix(layer: usize, matrix: Matrix) -> Self {
        Self::Site(Site::Layer(layer, matrix))
    }

    /// Whether this is a norm, whose new weights are ones.
    pub const fn is_norm(self) -> bool {
        match self {
            Self::EmbeddingNorm | Self::AttentionNorm(_) | Self::OutputNorm(_) | Self::FinalNorm | Self::PoolerNorm => {
                true
            }
            Self::Site(_) | Self::EmbeddingProjection | Self::RelativeBias | Self::Pooler | Self::Head => false,
        }
    }

    /// The module's weight: a matrix, a table, or the γ of a norm.
    pub const fn weight(self) -> Role {
        Role { module: self, tensor: Tensor::Weight }
    }

    /// The module's bias, or the β of a norm. Embedding tables have none.
    pub const fn bias(self) -> Role {
        Role { module: self, tensor: Tensor::Bias }
    }
}

/// Which tensor of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tensor {
    /// A matrix, a table, or the γ of a norm.
    Weight,
    /// A bias, or the β of a norm.
    Bias,
}

/// One tensor of a model by what it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Role {
    /// The part of the model.
    pub module: Module,
    /// Which of its tensors.
    pub tensor: Tensor,
}

impl Role {
    /// The site whose weights these are; `None` for a tensor that is never quantized.
    pub fn site(self) -> Option<Site> {
        match self {
            Self { module: Module::Site(site), tensor: Tensor::Weight } => Some(site),
            _ => None,
        }
    }

    /// Whether the tensor belongs to the pooler or the head, which a checkpoint for another task may lack.
    pub fn is_on_top(self) -> bool {
        matches!(self.module, Module::Pooler | Module::PoolerNorm | Module::Head)
    }

    /// Whether weight decay applies: to matrices and embeddings, not to biases and norms.
    pub fn decays(self) -> bool {
        let spared = self.module.is_norm() || self.module == Module::RelativeBias;
        self.tensor == Tensor::Weight && !spared
    }
}

impl fmt::Display for Module {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Site(site) => write!(formatter, "{site}"),
            Self::EmbeddingNorm => write!(formatter, "embedding.norm"),
            Self::EmbeddingProjection => write!(formatter, "embedding.projection"),
            Self::RelativeBias => write!(formatter, "relative_bias"),
            Self::AttentionNorm(layer) => write!(formatter, "layer.{layer}.attention_norm"),
            Self::OutputNorm(layer) => write!(formatter, "layer.{layer}.output_norm"),
            Self::FinalNorm => write!(formatter, "final_norm"),
            Self::Pooler => write!(formatter, "pooler"),
            Self::PoolerNorm => write!(formatter, "pooler_norm"),
            Self::Head => write!(formatter, "head"),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}{}", self.module, self.tensor.suffix())
    }
}

impl Tensor {
    /// How the name of the tensor ends, in PyTorch and here.
    pub(crate) const fn suffix(self) -> &'static str {
        match self {
            Self::Weight => ".weight",
            Self::Bias => ".bias",
        }
    }
}
