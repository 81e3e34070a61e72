//! How large a quantized model is by the paper's convention; `qbert_model::sizes` counts the bytes of a packed file.
//!
//! [`PaperSize`] is the number in the paper's tables (Tab. 1 and 5), in MiB. A matrix of `n` parameters at
//! `k` bits in `g` groups counts `n·k/8 + 8·g` bytes (two f32 per group, `Δ` and `q0`), and biases and
//! LayerNorm count as if they were quantized like the matrix they belong to. At 32 bits there are no
//! groups. The embedding's LayerNorm, the pooler and the task head do not count.
//!
//! Which matrix biases and LayerNorm belong to matters only when the sites of a layer have different
//! widths, which the paper has in Tab. 3 (b) without giving sizes. Here each bias belongs to its own matrix,
//! the LayerNorm after the attention to `attention_output`, the last LayerNorm of a layer to `output`.

use crate::bits::Precision;
use crate::error::Error;
use crate::matrix::{Axis, Layout};
use crate::plan::{Plan, SitePlan};
use crate::product::{Codebook, ProductWidth};
use crate::site::{Embedding, Matrix, Site};
use serde::Serialize;

/// Bytes per group: the f32 offset and the f32 step.
const BYTES_PER_GROUP: u64 = 8;
/// Bytes per row of a table whose rows have ranges: both ends in bf16.
const BYTES_PER_ROW_RANGE: u64 = 4;

/// A matrix or embedding table of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SitedTensor {
    /// Which one.
    pub site: Site,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Where its output neurons lie.
    pub axis: Axis,
    /// Bias and LayerNorm parameters that the paper's convention counts with it.
    pub companions: usize,
}

/// What of a model matters for its size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelShape {
    /// All sites, each once.
    pub tensors: Vec<SitedTensor>,
    /// The number of encoder layers.
    pub layers: usize,
    /// The number of attention heads, for plans that group by head.
    pub heads: usize,
    /// Parameters that no plan quantizes and the paper's convention does not count: the embedding's
    /// LayerNorm, the pooler, the task head.
    pub uncounted: usize,
}

/// The numbers that determine the shape of a BERT-like encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransformerDimensions {
    /// Word pieces.
    pub vocabulary: usize,
    /// Positions.
    pub positions: usize,
    /// Token types; 0 for a model without that table.
    pub types: usize,
    /// Width of the tables; usually that of the hidden states.
    pub embedding: usize,
    /// Width of the hidden states.
    pub hidden: usize,
    /// Width of the feed-forward network.
    pub intermediate: usize,
    /// Encoder layers that have weights of their own.
    pub layers: usize,
    /// Attention heads.
    pub heads: usize,
    /// See [`ModelShape::uncounted`].
    pub uncounted: usize,
}

impl ModelShape {
    /// The shape of a BERT-like encoder, with biases and LayerNorm where the [module](self) says.
    pub fn transformer(dimensions: &TransformerDimensions) -> Self {
        let TransformerDimensions { hidden, intermediate, .. } = *dimensions;
        let table = |table: Embedding, rows: usize| SitedTensor {
            site: Site::Embedding(table),
            rows,
            cols: dimensions.embedding,
            axis: Axis::Columns,
            companions: 0,
        };
        let layer_norm = 2 * hidden;
        let matrix = |layer: usize, matrix: Matrix| {
            let (rows, cols, norm) = match matrix {
                Matrix::Query | Matrix::Key | Matrix::Value => (hidden, hidden, 0),
                Matrix::AttentionOutput => (hidden, hidden, layer_norm),
                Matrix::Intermediate => (intermediate, hidden, 0),
                Matrix::Output => (hidden, intermediate, layer_norm),
            };
            SitedTensor { site: Site::Layer(layer, matrix), rows, cols, axis: Axis::Rows, companions: rows + norm }
        };
        let tables = [
            table(Embedding::Word, dimensions.vocabulary),
            table(Embedding::Position, dimensions.positions),
            table(Embedding::Type, dimensions.types),
        ];
        let matrices = (0..dimensions.layers).flat_map(|layer| Matrix::ALL.map(|name| matrix(layer, name)));
        Self {
            tensors: tables.into_iter().filter(|table| table.rows > 0).chain(matrices).collect(),
            layers: dimensions.layers,
            heads: dimensions.heads,
            uncounted: dimensions.uncounted,
        }
    }

    /// The size in the paper's convention.
    ///
    /// # Errors
    /// [`Error::PlanLayers`] when the plan is for another number of layers; as [`Layout::resolve`] when a
    /// site cannot be grouped as planned.
    pub fn paper_size(&self, plan: &Plan) -> Result<PaperSize, Error> {
        plan.check_layers(self.layers)?;
        let mut size = PaperSize { encoder_bits: 0, embedding_bits: 0 };
        for tensor in &self.tensors {
            let site = plan.site(tensor.site)?;
            let layout = self.layout(tensor, site)?;
            let parameters = (layout.elements() + tensor.companions) as u64;
            let ranges = if site.bits == Precision::Full { 0 } else { group_bytes(layout) * 8 };
            // In whole tenths of a bit, which ternary codes need, so that nothing is rounded before the sum.
            let tenths = parameters * (10.0 * site.bits.number()).round() as u64;
            let codes = match site.product {
                None => tenths.div_ceil(10),
                Some(product) => 8 * product_bytes(tensor.rows, tensor.cols, product),
            };
            let bits = codes + ranges;
            match tensor.site {
                Site::Layer(..) => size.encoder_bits += bits,
                Site::Embedding(_) => size.embedding_bits += bits,
            }
        }
        Ok(size)
    }

    /// The grouping of a tensor that `site` asks for.
    ///
    /// # Errors
    /// As [`Layout::resolve`], with the name of the site.
    pub fn layout(&self, tensor: &SitedTensor, site: &SitePlan) -> Result<Layout, Error> {
        site.layout(tensor.rows, tensor.cols, tensor.axis, self.heads)
            .map_err(|source| Error::AtSite { site: tensor.site, source: Box::new(source) })
    }
}

/// The bytes of a matrix's ranges.
pub fn group_bytes(layout: Layout) -> u64 {
    let bytes = if layout.axis() == Axis::TableRows { BYTES_PER_ROW_RANGE } else { BYTES_PER_GROUP };
    layout.groups().count() as u64 * bytes
}

/// The bytes of product codes and their codebooks.
pub fn product_bytes(rows: usize, cols: usize, product: ProductWidth) -> u64 {
    (rows * product.parts(cols) + Codebook::len(cols)) as u64
}

/// A number of bits in MiB (2^20 bytes): exact for every size below 2^53 bits.
pub fn mebibytes(bits: u64) -> f64 {
    bits as f64 / (8.0 * 1024.0 * 1024.0)
}

/// The size of a model in the paper's convention, kept in bits so that nothing is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PaperSize {
    /// All encoder layers.
    pub encoder_bits: u64,
    /// All embedding tables.
    pub embedding_bits: u64,
}

impl PaperSize {
    /// The paper's "Size-w/o-e", in MiB.
    pub fn without_embedding(&self) -> f64 {
        mebibytes(self.encoder_bits)
    }

    /// The embedding tables alone, in MiB.
    pub fn embedding(&self) -> f64 {
        mebibytes(self.embedding_bits)
    }

    /// The paper's "Size", in MiB.
    pub fn total(&self) -> f64 {
        mebibytes(self.encoder_bits + self.embedding_bits)
    }
}
