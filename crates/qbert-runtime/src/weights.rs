//! The weights an encoder computes with, prepared once when a model is opened.
//!
//! Codes are read from the file's bytes. Prepared here is what the kernels need besides: a step, an offset, a code sum and
//! a bias per neuron. Matrices in f32 are read from the file as well. Tensors are looked up by [`Role`], so this module
//! serves every family.
//!
//! Where activations stay in f32, codes cannot be multiplied in integers. Quantized matrices are then converted to f32
//! here, once, and the model takes as much memory as one in f32.

use std::borrow::Cow;
use std::sync::Arc;

use qbert_kernels::int::{EmbeddingTable, LinearParams, Quantizer};
use qbert_kernels::{Compute, DistanceBias, LayerNorm, Window};
use qbert_model::packed::{LayerActivations, PackedGroups, PackedModel, PackedSite};
use qbert_model::{LayerAttention, Module, Role};
use qbert_quant::{ActivationParams, Embedding, Matrix, Site};

use crate::error::{Error, Result};

/// All weights of a model.
#[derive(Debug)]
pub(crate) struct Weights {
    pub(crate) word: Table,
    /// `None` for a model without a table of positions.
    pub(crate) position: Option<Table>,
    /// `None` for a model without token types.
    pub(crate) token_type: Option<Table>,
    pub(crate) embedding_norm: Norm,
    /// From the embeddings' width to the encoder's.
    pub(crate) projection: Option<Dense>,
    /// What attention adds to its scores.
    pub(crate) bias: Option<DistanceBias>,
    /// The layers as they are computed.
    pub(crate) layers: Vec<Layer>,
    /// The norm after the last layer.
    pub(crate) final_norm: Option<Norm>,
    pub(crate) pooler: Option<Dense>,
    /// The norm after the pooler's activation.
    pub(crate) pooler_norm: Option<Norm>,
    pub(crate) head: Option<Dense>,
}

/// One encoder layer.
#[derive(Debug)]
pub(crate) struct Layer {
    /// Its weights, which other layers may have as well.
    pub(crate) weights: Arc<LayerWeights>,
    /// `None` where activations stay in f32.
    pub(crate) quantizers: Option<Quantizers>,
    /// How its attention sees a sequence.
    pub(crate) sees: LayerAttention,
}

impl Layer {
    /// What a token sees; `None` for all of its sequence.
    pub(crate) fn window(&self) -> Option<Window> {
        self.sees.reach.map(|reach| Window { reach })
    }
}

/// The weights of an encoder layer.
#[derive(Debug)]
pub(crate) struct LayerWeights {
    /// Query, key and value.
    pub(crate) attention: [Linear; 3],
    pub(crate) attention_output: Linear,
    pub(crate) intermediate: Linear,
    pub(crate) output: Linear,
    /// `None` where there is none.
    pub(crate) attention_norm: Option<Norm>,
    pub(crate) output_norm: Norm,
}

/// How the activations of a layer are quantized.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quantizers {
    pub(crate) input: Quantizer,
    /// Query, key and value.
    pub(crate) attention: [Quantizer; 3],
    pub(crate) context: Quantizer,
    pub(crate) middle: Quantizer,
    pub(crate) inner: Quantizer,
}

impl From<&LayerActivations> for Quantizers {
    fn from(activations: &LayerActivations) -> Self {
        let quantizer = |params: ActivationParams| Quantizer::new(params.step(), params.zero_point());
        let LayerActivations { input, query, key, value, context, middle, inner } = *activations;
        Self {
            input: quantizer(input),
            attention: [query, key, value].map(quantizer),
            context: quantizer(context),
            middle: quantizer(middle),
            inner: quantizer(inner),
        }
    }
}

/// A matrix of an encoder layer with its bias.
#[derive(Debug)]
pub(crate) enum Linear {
    /// Codes, multiplied in integers.
    Codes { site: Site, params: LinearParams },
    /// f32 values; the bias is empty where there is none.
    Floats { values: Floats, bias: Vec<f32>, neurons: usize },
}

/// Where the f32 values of a site are.
#[derive(Debug)]
pub(crate) enum Floats {
    /// In the file's bytes.
    InFile(Site),
    /// In memory of their own.
    Own(Vec<f32>),
}

impl Floats {
    /// The values, `[rows, cols]`, without a copy: values that cannot be read in place were copied when the model was
    /// opened.
    pub(crate) fn get<'a>(&'a self, model: &'a PackedModel) -> Cow<'a, [f32]> {
        match self {
            Self::Own(values) => Cow::Borrowed(values),
            Self::InFile(site) => match model.site(*site) {
                Some(PackedSite::Full(values, _)) => values,
                _ => Cow::Borrowed(&[]),
            },
        }
    }
}

/// An embedding table.
#[derive(Debug)]
pub(crate) enum Table {
    /// Packed rows, with a step and an offset per column or per row.
    Codes { site: Site, by_row: bool, steps: Vec<f32>, lows: Vec<f32> },
    /// f32 rows.
    Floats(Floats),
}

/// An embedding table with its bytes.
pub(crate) enum OpenTable<'a> {
    Codes(EmbeddingTable<'a>),
    Floats(Cow<'a, [f32]>),
}

impl Table {
    fn new(model: &PackedModel, table: Embedding) -> Result<Self> {
        let site = Site::Embedding(table);
        match model.site(site) {
            Some(PackedSite::Table(_, groups)) => {
                let by_row = groups.layout().axis().is_by_row();
                Ok(Self::Codes { site, by_row, steps: groups.steps(), lows: groups.lows() })
            }
            Some(PackedSite::Full(values, _)) => Ok(Self::Floats(keep(site, values))),
            _ => Err(missing(model, site)),
        }
    }

    pub(crate) fn open<'a>(&'a self, model: &'a PackedModel) -> OpenTable<'a> {
        match self {
            Self::Floats(values) => OpenTable::Floats(values.get(model)),
            Self::Codes { site, by_row, steps, lows } => match model.site(*site) {
                Some(PackedSite::Table(rows, _)) => {
                    OpenTable::Codes(EmbeddingTable { rows, by_row: *by_row, steps, lows })
                }
                _ => OpenTable::Floats(Cow::Borrowed(&[])),
            },
        }
    }
}

/// γ and β of a LayerNorm.
#[derive(Debug)]
pub(crate) struct Norm {
    gamma: Vec<f32>,
    beta: Vec<f32>,
}

impl Norm {
    fn new(model: &PackedModel, module: Module) -> Result<Self> {
        let gamma = float(model, module.weight())?;
        let beta = bias(model, module)?.unwrap_or_else(|| vec![0.0; gamma.len()]);
        Ok(Self { gamma, beta })
    }

    /// `None` where the model has no such norm.
    fn optional(model: &PackedModel, module: Module) -> Result<Option<Self>> {
        let is_there = model.layout().role(module.weight()).is_some();
        is_there.then(|| Self::new(model, module)).transpose()
    }

    pub(crate) fn with(&self, epsilon: f32) -> LayerNorm<'_> {
        LayerNorm { gamma: &self.gamma, beta: &self.beta, epsilon }
    }
}

/// A small linear layer in f32: pooler, head and the projection of the embeddings.
#[derive(Debug)]
pub(crate) struct Dense {
    pub(crate) weight: Vec<f32>,
    /// Empty where there is none.
    pub(crate) bias: Vec<f32>,
    pub(crate) neurons: usize,
}

impl Dense {
    fn new(model: &PackedModel, module: Module) -> Result<Option<Self>> {
        // A classifier without labels has no head either.
        let Some(parameter) = model.layout().role(module.weight()).filter(|parameter| !parameter.span.is_empty())
        else {
            return Ok(None);
        };
        let (weight, bias) = (float(model, module.weight())?, bias(model, module)?.unwrap_or_default());
        Ok(Some(Self { weight, bias, neurons: parameter.shape[0] }))
    }
}

impl Weights {
    pub(crate) fn new(model: &PackedModel, compute: &Compute) -> Result<Self> {
        let config = model.config();
        let types = (config.type_vocab_size > 0).then(|| Table::new(model, Embedding::Type));
        let positions = (config.position_rows > 0).then(|| Table::new(model, Embedding::Position));
        let stored = (0..config.distinct_layers()).map(|layer| LayerWeights::new(model, compute, layer).map(Arc::new));
        let stored = stored.collect::<Result<Vec<_>>>()?;
        let layers = (0..config.layers).map(|layer| Layer {
            weights: Arc::clone(&stored[config.weights_of(layer)]),
            quantizers: model.activations().and_then(|all| all.get(layer)).map(Quantizers::from),
            sees: config.attention_of(layer),
        });
        let bias = model.layout().role(Module::RelativeBias.weight()).map(|parameter| float(model, parameter.role));
        Ok(Self {
            word: Table::new(model, Embedding::Word)?,
            position: positions.transpose()?,
            token_type: types.transpose()?,
            embedding_norm: Norm::new(model, Module::EmbeddingNorm)?,
            projection: Dense::new(model, Module::EmbeddingProjection)?,
            bias: bias.transpose()?.map(|table| config.distance_bias(&table, config.max_positions)),
            layers: layers.collect(),
            final_norm: Norm::optional(model, Module::FinalNorm)?,
            pooler: Dense::new(model, Module::Pooler)?,
            pooler_norm: Norm::optional(model, Module::PoolerNorm)?,
            head: Dense::new(model, Module::Head)?,
        })
    }
}

impl LayerWeights {
    fn new(model: &PackedModel, compute: &Compute, layer: usize) -> Result<Self> {
        let quantized = model.activations().is_some();
        let linear = |matrix| Linear::new(model, compute, Site::Layer(layer, matrix), quantized);
        Ok(Self {
            attention: [linear(Matrix::Query)?, linear(Matrix::Key)?, linear(Matrix::Value)?],
            attention_output: linear(Matrix::AttentionOutput)?,
            intermediate: linear(Matrix::Intermediate)?,
            output: linear(Matrix::Output)?,
            attention_norm: Norm::optional(model, Module::AttentionNorm(layer))?,
            output_norm: Norm::new(model, Module::OutputNorm(layer))?,
        })
    }
}

impl Linear {
    fn new(model: &PackedModel, compute: &Compute, site: Site, quantized_activations: bool) -> Result<Self> {
        let bias = bias(model, Module::Site(site))?.unwrap_or_default();
        let neurons = model.layout().site(site).map_or(0, |parameter| parameter.shape[0]);
        match model.site(site) {
            Some(PackedSite::Full(values, _)) => Ok(Self::Floats { values: keep(site, values), bias, neurons }),
            Some(PackedSite::Matrix(weights, groups)) if quantized_activations => {
                let bias = if bias.is_empty() { vec![0.0; neurons] } else { bias };
                let params = LinearParams::new(compute.kernels(), &weights, &groups.steps(), &groups.lows(), &bias);
                Ok(Self::Codes { site, params })
            }
            Some(PackedSite::Matrix(weights, groups)) => {
                let values = Floats::Own(to_floats(compute, &weights.codes(), &groups));
                Ok(Self::Floats { values, bias, neurons })
            }
            _ => Err(missing(model, site)),
        }
    }
}

/// `Δ·code + q0` of a whole matrix, two roundings, as in training.
fn to_floats(compute: &Compute, codes: &[u8], groups: &PackedGroups<'_>) -> Vec<f32> {
    let (cols, layout, affines) = (groups.layout().cols(), groups.layout().groups(), groups.affines());
    let mut values = vec![0.0; codes.len()];
    compute.threads().for_each_chunk([&mut values], [cols], |row, [values]| {
        let affine = affines[layout.group_of(row)];
        let codes = &codes[row * cols..(row + 1) * cols];
        values.iter_mut().zip(codes).for_each(|(value, &code)| *value = affine.value(code));
    });
    values
}

/// Where to read the values of a site: in the file, unless this machine cannot read them in place.
fn keep(site: Site, values: Cow<'_, [f32]>) -> Floats {
    match values {
        Cow::Borrowed(_) => Floats::InFile(site),
        Cow::Owned(values) => Floats::Own(values),
    }
}

fn float(model: &PackedModel, role: Role) -> Result<Vec<f32>> {
    let values = model.float(role).ok_or_else(|| missing(model, role))?;
    Ok(values.into_owned())
}

/// The bias of a module; `None` where it has none.
fn bias(model: &PackedModel, module: Module) -> Result<Option<Vec<f32>>> {
    model.layout().role(module.bias()).map(|parameter| float(model, parameter.role)).transpose()
}

fn missing(model: &PackedModel, name: impl std::fmt::Display) -> Error {
    Error::MissingPart { path: model.path().to_owned(), name: name.to_string() }
}
