//! How large a model is: its shape for the paper's sizes, and the bytes of a packed file.
//!
//! The bytes are those of the layouts that [`crate::packed`] writes, so that a budget buys what a file takes. Header,
//! alignment, activation ranges and the tokenizer come on top.

use qbert_kernels::int::{EmbeddingRows, packed_len};
use qbert_quant::size::{group_bytes, product_bytes};
use qbert_quant::{Matrix, ModelShape, Plan, Precision, Site, SitePlan, SitedTensor, TransformerDimensions};
use serde::Serialize;

use crate::config::Config;
use crate::error::Result;
use crate::head::Head;
use crate::layout::ParameterLayout;
use crate::packed::coding_of;
use crate::role::Module;

impl Config {
    /// The shape of every site, and the number of parameters that no plan quantizes: the norms of the embedding and of the
    /// last layer, the projection, the relative bias, and the pooler and head of `layout`, if it is given.
    pub fn shape(&self, layout: Option<&ParameterLayout>) -> ModelShape {
        let on_top: usize = layout
            .into_iter()
            .flat_map(ParameterLayout::parameters)
            .filter(|p| p.role.is_on_top())
            .map(|p| p.span.len())
            .sum();
        let encoder = ParameterLayout::new(self, Head::None, 0, false);
        let values = |module: Module| {
            let tensors = [module.weight(), module.bias()].into_iter().filter_map(|role| encoder.role(role));
            tensors.map(|parameter| parameter.span.len()).sum::<usize>()
        };
        let outside = [Module::EmbeddingNorm, Module::EmbeddingProjection, Module::RelativeBias, Module::FinalNorm];
        let mut shape = ModelShape::transformer(&TransformerDimensions {
            vocabulary: self.vocab_size,
            positions: self.position_rows,
            types: self.type_vocab_size,
            embedding: self.embedding_size,
            hidden: self.hidden_size,
            intermediate: self.intermediate_size,
            layers: self.distinct_layers(),
            heads: self.heads,
            uncounted: outside.map(values).iter().sum::<usize>() + on_top,
        });
        // A gated feed-forward network has more rows; some families have no biases, and some layers no norm.
        for tensor in &mut shape.tensors {
            let Site::Layer(layer, matrix) = tensor.site else { continue };
            let bias = encoder.role(Module::Site(tensor.site).bias()).map_or(0, |bias| bias.span.len());
            let norm = match matrix {
                Matrix::AttentionOutput => values(Module::AttentionNorm(layer)),
                Matrix::Output => values(Module::OutputNorm(layer)),
                Matrix::Query | Matrix::Key | Matrix::Value | Matrix::Intermediate => 0,
            };
            tensor.companions = bias + norm;
            if matrix == Matrix::Intermediate {
                tensor.rows = self.intermediate_outputs();
            }
        }
        shape
    }
}

/// The bytes of a packed file by what they are for, without header, alignment and tokenizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FileSize {
    /// Packed codes, filled up to whole blocks and rows.
    pub codes: u64,
    /// Offset and step of every group.
    pub ranges: u64,
    /// Everything in f32: biases, LayerNorm, pooler, head, and matrices that the plan does not quantize.
    pub full_precision: u64,
}

impl FileSize {
    /// All bytes.
    pub fn total(&self) -> u64 {
        self.codes + self.ranges + self.full_precision
    }

    fn plus(self, other: Self) -> Self {
        Self {
            codes: self.codes + other.codes,
            ranges: self.ranges + other.ranges,
            full_precision: self.full_precision + other.full_precision,
        }
    }

    /// The weights of one tensor: codes and ranges, or f32.
    fn of_weights(shape: &ModelShape, tensor: &SitedTensor, plan: &SitePlan) -> Result<Self> {
        let layout = shape.layout(tensor, plan)?;
        let Precision::Bits(width) = plan.bits else {
            return Ok(Self { full_precision: 4 * layout.elements() as u64, ..Self::default() });
        };
        let codes = match tensor.site {
            Site::Layer(..) => packed_len(coding_of(width), tensor.rows, tensor.cols),
            Site::Embedding(_) => match plan.product {
                Some(product) => Ok(product_bytes(tensor.rows, tensor.cols, product) as usize),
                None => EmbeddingRows::packed_len(width.whole_bits(), tensor.rows, tensor.cols),
            },
        };
        // The only shapes without a packed length are those that `shape.layout` refuses or that no file can hold.
        let codes = codes.map_err(|_| qbert_quant::Error::Shape { rows: tensor.rows, cols: tensor.cols })?;
        Ok(Self { codes: codes as u64, ranges: group_bytes(layout), full_precision: 0 })
    }
}

/// What a packed file holds of a model of this shape.
///
/// # Errors
/// When the plan is for another number of layers, or a site cannot be grouped as planned.
pub fn file_size(shape: &ModelShape, plan: &Plan) -> Result<FileSize> {
    plan.check_layers(shape.layers)?;
    let fixed = shape.uncounted + shape.tensors.iter().map(|tensor| tensor.companions).sum::<usize>();
    let mut size = FileSize { full_precision: 4 * fixed as u64, ..FileSize::default() };
    for tensor in &shape.tensors {
        size = size.plus(FileSize::of_weights(shape, tensor, plan.site(tensor.site)?)?);
    }
    Ok(size)
}

/// What the weights of one site take of [`file_size`]. Biases and LayerNorm, which no width changes, are not in it.
///
/// # Errors
/// When the model has no such site, or it cannot be grouped as planned.
pub fn site_bytes(shape: &ModelShape, site: Site, plan: &SitePlan) -> Result<u64> {
    let no_such = || qbert_quant::Error::NoSuchLayer { layer: site.layer().unwrap_or(0), layers: shape.layers };
    let tensor = shape.tensors.iter().find(|tensor| tensor.site == site).ok_or_else(no_such)?;
    Ok(FileSize::of_weights(shape, tensor, plan)?.total())
}
