//! The bit plan: what is quantized, to how many bits, in which groups, on which ranges (paper, §3.2).
//!
//! A plan is data, meant to be written by a program and then read and edited by a person, as a versioned
//! TOML text: [`Plan::parse`] and [`Plan::to_toml`]. It names every site of the model, so that nothing is
//! quantized (or left alone) by accident. How sensitivities become widths is decided in [`crate::allocate`];
//! plans the paper publishes are in [`crate::preset`].

mod parse;
mod write;

use crate::bits::Precision;
use crate::error::Error;
use crate::groups::GroupSpec;
use crate::matrix::{Axis, Layout};
use crate::product::{ProductWidth, TableWidth};
use crate::range::RangeMethod;
use crate::site::{Embedding, Matrix, Site};
use serde::Serialize;

/// The version of the text form that this crate reads and writes.
pub const VERSION: i64 = 1;

/// How one site is quantized. At full precision, groups and range have no effect but are kept.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SitePlan {
    /// The width of the codes.
    pub bits: Precision,
    /// Which output neurons share a range.
    pub groups: GroupSpec,
    /// How ranges are found.
    pub range: RangeMethod,
    /// How many values of a row share a code of 8 bits, if they do: for embedding tables only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub product: Option<ProductWidth>,
}

impl SitePlan {
    /// A code of its own for every value.
    pub fn new(bits: Precision, groups: GroupSpec, range: RangeMethod) -> Self {
        Self { bits, groups, range, product: None }
    }

    /// The same for a table of this width.
    pub fn table(width: TableWidth, groups: GroupSpec, range: RangeMethod) -> Self {
        Self { bits: width.bits, groups, range, product: width.product }
    }

    /// The grouping of a matrix of this shape, in a model of `heads` heads.
    ///
    /// # Errors
    /// As [`Layout::resolve`]; [`Error::RowGroups`] with product codes, whose codebook needs the ranges of columns.
    pub fn layout(&self, rows: usize, cols: usize, axis: Axis, heads: usize) -> Result<Layout, Error> {
        match (self.product, self.groups) {
            (Some(_), GroupSpec::PerRow) => Err(Error::RowGroups),
            _ => Layout::resolve(rows, cols, axis, self.groups, heads),
        }
    }

    /// The width as people write it: `2`, or `8/6` for product codes.
    pub fn width(&self) -> TableWidth {
        TableWidth { bits: self.bits, product: self.product }
    }
}

/// The six matrices of an encoder layer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LayerPlan {
    /// `W_q`.
    pub query: SitePlan,
    /// `W_k`.
    pub key: SitePlan,
    /// `W_v`.
    pub value: SitePlan,
    /// `W_o`.
    pub attention_output: SitePlan,
    /// The first feed-forward matrix.
    pub intermediate: SitePlan,
    /// The second feed-forward matrix.
    pub output: SitePlan,
}

impl LayerPlan {
    /// The same for all six matrices.
    pub fn uniform(site: SitePlan) -> Self {
        Self { query: site, key: site, value: site, attention_output: site, intermediate: site, output: site }
    }

    /// The plan of one matrix.
    pub fn get(&self, matrix: Matrix) -> &SitePlan {
        match matrix {
            Matrix::Query => &self.query,
            Matrix::Key => &self.key,
            Matrix::Value => &self.value,
            Matrix::AttentionOutput => &self.attention_output,
            Matrix::Intermediate => &self.intermediate,
            Matrix::Output => &self.output,
        }
    }

    /// The plan of one matrix, to change it.
    pub fn get_mut(&mut self, matrix: Matrix) -> &mut SitePlan {
        match matrix {
            Matrix::Query => &mut self.query,
            Matrix::Key => &mut self.key,
            Matrix::Value => &mut self.value,
            Matrix::AttentionOutput => &mut self.attention_output,
            Matrix::Intermediate => &mut self.intermediate,
            Matrix::Output => &mut self.output,
        }
    }
}

/// The three embedding tables. Groups are over the hidden columns (App. C.2), or every row has a range of its own.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct EmbeddingPlan {
    /// Word pieces.
    pub word: SitePlan,
    /// Positions.
    pub position: SitePlan,
    /// Token types.
    #[serde(rename = "type")]
    pub token_type: SitePlan,
}

impl EmbeddingPlan {
    /// The same for all three tables.
    pub fn uniform(site: SitePlan) -> Self {
        Self { word: site, position: site, token_type: site }
    }

    /// The plan of one table.
    pub fn get(&self, table: Embedding) -> &SitePlan {
        match table {
            Embedding::Word => &self.word,
            Embedding::Position => &self.position,
            Embedding::Type => &self.token_type,
        }
    }

    /// The plan of one table, to change it.
    pub fn get_mut(&mut self, table: Embedding) -> &mut SitePlan {
        match table {
            Embedding::Word => &mut self.word,
            Embedding::Position => &mut self.position,
            Embedding::Type => &mut self.token_type,
        }
    }
}

/// How activations are quantized: alike everywhere, one range per activation tensor.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ActivationPlan {
    /// The width of the codes; [`Precision::Full`] leaves activations in f32.
    pub bits: Precision,
    /// How ranges are found.
    pub range: RangeMethod,
}

/// The plan of a whole model. Serializes to JSON with every site spelled out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    version: i64,
    layers: Vec<LayerPlan>,
    embedding: EmbeddingPlan,
    activation: ActivationPlan,
}

impl Plan {
    /// A plan from its parts; layers in order.
    pub fn new(layers: Vec<LayerPlan>, embedding: EmbeddingPlan, activation: ActivationPlan) -> Self {
        Self { version: VERSION, layers, embedding, activation }
    }

    /// The paper's setting with one width for all encoder layers: embeddings 8 bits in one group each,
    /// activations 8 bits on min/max ranges; encoder and embedding ranges by `range`.
    ///
    /// With [`Precision::Full`] nothing at all is quantized, as in the paper's baseline rows.
    pub fn uniform(layers: usize, bits: Precision, groups: GroupSpec, range: RangeMethod) -> Self {
        let eight = Precision::Bits(crate::bits::BitWidth::EIGHT);
        let other = if bits == Precision::Full { bits } else { eight };
        Self::new(
            vec![LayerPlan::uniform(SitePlan::new(bits, groups, range)); layers],
            EmbeddingPlan::uniform(SitePlan::new(other, GroupSpec::Count(1), range)),
            ActivationPlan { bits: other, range: RangeMethod::MinMax },
        )
    }

    /// Reads a plan's text. `source_name` stands for the text in errors, usually a path.
    ///
    /// # Errors
    /// [`Error::Plan`] with the line for everything that is not a plan.
    pub fn parse(text: &str, source_name: &str) -> Result<Self, Error> {
        parse::parse(text, source_name)
    }

    /// Writes the plan's text: commented, aligned, the same for the same plan. [`Plan::parse`] reads it
    /// back to an equal plan.
    pub fn to_toml(&self) -> String {
        write::to_toml(self, "")
    }

    /// [`Plan::to_toml`] with a comment at its head that says where the plan comes from, line by line. It is for
    /// people: [`Plan::parse`] reads the same plan with it and without.
    pub fn to_toml_from(&self, origin: &str) -> String {
        write::to_toml(self, origin)
    }

    /// The plan of each encoder layer, counted from 0.
    pub fn layers(&self) -> &[LayerPlan] {
        &self.layers
    }

    /// The plan of the embedding tables.
    pub fn embedding(&self) -> &EmbeddingPlan {
        &self.embedding
    }

    /// The plan of the activations.
    pub fn activation(&self) -> &ActivationPlan {
        &self.activation
    }

    /// The plan of one site.
    ///
    /// # Errors
    /// [`Error::NoSuchLayer`] for a layer the plan does not have.
    pub fn site(&self, site: Site) -> Result<&SitePlan, Error> {
        match site {
            Site::Embedding(table) => Ok(self.embedding.get(table)),
            Site::Layer(layer, matrix) => {
                let layers = self.layers.len();
                self.layers.get(layer).map(|plan| plan.get(matrix)).ok_or(Error::NoSuchLayer { layer, layers })
            }
        }
    }

    /// The plan of one site, to change it.
    ///
    /// # Errors
    /// As [`Plan::site`].
    pub fn site_mut(&mut self, site: Site) -> Result<&mut SitePlan, Error> {
        match site {
            Site::Embedding(table) => Ok(self.embedding.get_mut(table)),
            Site::Layer(layer, matrix) => {
                let layers = self.layers.len();
                self.layers.get_mut(layer).map(|plan| plan.get_mut(matrix)).ok_or(Error::NoSuchLayer { layer, layers })
            }
        }
    }

    /// Every site with its plan, in the order of [`Site::all`].
    pub fn sites(&self) -> impl Iterator<Item = (Site, &SitePlan)> {
        let tables = Embedding::ALL.map(|table| (Site::Embedding(table), self.embedding.get(table)));
        let matrices = self
            .layers
            .iter()
            .enumerate()
            .flat_map(|(layer, plan)| Matrix::ALL.map(|matrix| (Site::Layer(layer, matrix), plan.get(matrix))));
        tables.into_iter().chain(matrices)
    }

    /// Checks that the plan is for a model of this many encoder layers.
    ///
    /// # Errors
    /// [`Error::PlanLayers`] with both numbers.
    pub fn check_layers(&self, model: usize) -> Result<(), Error> {
        let plan = self.layers.len();
        if plan == model { Ok(()) } else { Err(Error::PlanLayers { plan, model }) }
    }

    /// The same plan with all six matrices of a layer at this width.
    ///
    /// # Errors
    /// [`Error::NoSuchLayer`] for a layer the plan does not have.
    pub fn with_layer_bits(mut self, layer: usize, bits: Precision) -> Result<Self, Error> {
        for matrix in Matrix::ALL {
            self.site_mut(Site::Layer(layer, matrix))?.bits = bits;
        }
        Ok(self)
    }

    /// The same plan with other embedding tables.
    pub fn with_embedding(mut self, embedding: EmbeddingPlan) -> Self {
        self.embedding = embedding;
        self
    }

    /// The same plan with other activations.
    pub fn with_activation(mut self, activation: ActivationPlan) -> Self {
        self.activation = activation;
        self
    }

    /// The same plan with one range method for all weights; activations keep theirs.
    pub fn with_weight_range(mut self, range: RangeMethod) -> Self {
        let layers = self.layers.len();
        for site in Site::all(layers) {
            if let Ok(plan) = self.site_mut(site) {
                plan.range = range;
            }
        }
        self
    }

    /// The plan turned round, as the paper's ablation does (App. C.1, "MP-rev"): in the encoder, what has
    /// the one width gets the other. Keeps the size only if both widths are equally frequent.
    pub fn reverse(mut self, one: Precision, other: Precision) -> Self {
        for layer in &mut self.layers {
            for matrix in Matrix::ALL {
                let bits = &mut layer.get_mut(matrix).bits;
                if *bits == one {
                    *bits = other;
                } else if *bits == other {
                    *bits = one;
                }
            }
        }
        self
    }
}
