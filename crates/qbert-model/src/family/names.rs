//! What a family's tensors are called.

use qbert_quant::{Embedding, Matrix, Site};

use super::Family;
use crate::head::Head;
use crate::role::{Module, Role, Tensor};

/// The names of a family's modules: tensor names without `.weight` and `.bias`.
#[derive(Debug, PartialEq, Eq)]
pub struct TensorNames {
    /// The table of word pieces.
    pub word: &'static str,
    /// The output layer of the pre-training head, which shares its weights with that table: some files have them under
    /// this name only.
    pub tied_word: &'static str,
    /// The table of positions; `None` where the family has none.
    pub position: Option<&'static str>,
    /// The table of token types; `None` where the family has none.
    pub token_type: Option<&'static str>,
    /// The norm after the embedding sum.
    pub embedding_norm: &'static str,
    /// The linear layer after it, for families that have one.
    pub projection: Option<&'static str>,
    /// The table of the relative bias, for families that have one.
    pub relative_bias: Option<&'static str>,
    /// The norm after the last layer, for families that have one.
    pub final_norm: Option<&'static str>,
    /// Where the encoder layers are; the names below follow.
    pub layers: LayerPath,
    /// The modules of a layer.
    pub layer: LayerNames,
}

/// How the name of a layer is made from its number.
#[derive(Debug, PartialEq, Eq)]
pub enum LayerPath {
    /// `LIST.layer`
    List(&'static str),
    /// `GROUPS.group.MEMBERS.layer within the group`
    Groups {
        /// The list of groups.
        groups: &'static str,
        /// The list of layers in a group.
        members: &'static str,
    },
}

impl LayerPath {
    /// The name of a layer, where a group has so many.
    fn of(&self, layer: usize, members: usize) -> String {
        match self {
            Self::List(list) => format!("{list}.{layer}"),
            Self::Groups { groups, members: list } => {
                format!("{groups}.{}.{list}.{}", layer / members, layer % members)
            }
        }
    }
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
    /// The one module that files have in the place of the three, with their rows one below the other. The names above are
    /// then ours alone.
    pub fused_attention: Option<&'static str>,
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

impl Family {
    /// The canonical name of a tensor in a model with `head`, whose groups of layers have so many `members`: the name in
    /// the files of the bare encoder.
    pub(crate) fn tensor_name(&self, head: Head, members: usize, role: Role) -> String {
        let (names, layer) = (&self.tensors, &self.tensors.layer);
        let suffix = role.tensor.suffix();
        let in_layer = |index: usize, part: &str| format!("{}.{part}{suffix}", names.layers.of(index, members));
        let class = self.class(head);
        let name = match role.module {
            Module::Site(Site::Embedding(Embedding::Word)) => names.word,
            Module::Site(Site::Embedding(Embedding::Position)) => names.position.unwrap_or_default(),
            Module::Site(Site::Embedding(Embedding::Type)) => names.token_type.unwrap_or_default(),
            Module::EmbeddingNorm => names.embedding_norm,
            Module::EmbeddingProjection => names.projection.unwrap_or_default(),
            Module::RelativeBias => names.relative_bias.unwrap_or_default(),
            Module::Site(Site::Layer(index, matrix)) => return in_layer(index, layer.matrix(matrix)),
            Module::AttentionNorm(index) => return in_layer(index, layer.attention_norm),
            Module::OutputNorm(index) => return in_layer(index, layer.output_norm),
            Module::FinalNorm => names.final_norm.unwrap_or_default(),
            Module::Pooler => class.pooler.map_or("", |pooler| pooler.module),
            Module::PoolerNorm => class.pooler.and_then(|pooler| pooler.norm).unwrap_or_default(),
            Module::Head => class.output.unwrap_or_default(),
        };
        format!("{name}{suffix}")
    }

    /// The names of query, key and value for a tensor that has the rows of all three; `None` for any other tensor.
    pub(crate) fn split_name(&self, canonical: &str) -> Option<[String; 3]> {
        let layer = &self.tensors.layer;
        let fused = layer.fused_attention?;
        [Tensor::Weight, Tensor::Bias].into_iter().find_map(|tensor| {
            let suffix = tensor.suffix();
            let stem = canonical.strip_suffix(suffix)?.strip_suffix(fused)?;
            Some([layer.query, layer.key, layer.value].map(|part| format!("{stem}{part}{suffix}")))
        })
    }

    /// The name of the tensor that has the rows of this one among others, for a file; `None` for a tensor of its own.
    pub(crate) fn fused_name(&self, name: &str) -> Option<String> {
        let layer = &self.tensors.layer;
        let fused = layer.fused_attention?;
        let suffix = if name.ends_with(Tensor::Weight.suffix()) { Tensor::Weight } else { Tensor::Bias }.suffix();
        let stem = name.strip_suffix(suffix)?;
        let parts = [layer.query, layer.key, layer.value];
        parts.into_iter().find_map(|part| stem.strip_suffix(part)).map(|stem| format!("{stem}{fused}{suffix}"))
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
        let in_head = match role.module {
            Module::Head => true,
            Module::Pooler | Module::PoolerNorm => self.class(head).pooler.is_some_and(|pooler| pooler.in_head),
            _ => false,
        };
        let wrapped = head != Head::None && !in_head;
        if wrapped { format!("{}{canonical}", self.file_prefix) } else { canonical.to_owned() }
    }
}
