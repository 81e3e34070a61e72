//! Making a bit plan: what `qbert plan` and `qbert run` do between the sensitivities and the quantization.
//!
//! [`Wishes`] say what is wanted, in the terms of the command line; [`make`] turns them into a plan for a model and
//! remembers how it came about. For a plan of your own, build a [`qbert_quant::Plan`] and leave this out.

mod make;
mod origin;
mod sensitivity;

use std::path::{Path, PathBuf};

use qbert_kernels::Threads;
use qbert_model::{Config, Head, ParameterLayout};
use qbert_quant::allocate::budget::Granularity;
use qbert_quant::{GroupSpec, Metric, ModelShape, Plan, RangeMethod};
use serde::Serialize;

pub use origin::{By, Cost, Limit, Origin, Ranked, Sensitive, UniformCost, short};
pub use sensitivity::{Measured, read as read_sensitivity};

use crate::error::{Error, ErrorKind, Result};

/// What a plan is to be like. What is not said is left to the usual setting: 128 groups (one per neuron in a smaller
/// model), `mse` ranges, 8-bit embeddings in one group, 8-bit activations.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Wishes {
    /// The width of every encoder matrix; with sensitivities the widths to choose from, low to high.
    pub bits: Vec<u32>,
    /// The self-attention's own width.
    pub attention_bits: Option<u32>,
    /// The feed-forward network's own width.
    pub ffn_bits: Option<u32>,
    /// One of the paper's published plans.
    pub preset: Option<String>,
    /// Groups per encoder matrix.
    pub groups: Option<GroupSpec>,
    /// How ranges are found.
    pub range: Option<RangeMethod>,
    /// Widths of the embedding: one for all tables, or the word embedding's and the others'.
    pub embedding_bits: Vec<u32>,
    /// Groups per embedding table.
    pub embedding_groups: Option<GroupSpec>,
    /// The file of sensitivities that chooses among `bits`.
    #[serde(skip)]
    pub sensitivity: Option<PathBuf>,
    /// How many layers get each higher width.
    pub high: Vec<usize>,
    /// MiB that a plan by rank may take.
    pub size: Option<f64>,
    /// MiB that the best plan may take.
    pub budget: Option<f64>,
    /// What has one width within a budget.
    pub granularity: Option<Granularity>,
    /// What sensitivity is.
    pub metric: Option<Metric>,
    /// Lower widths for the sensitive layers (the paper's MP-rev).
    pub reverse: bool,
}

/// The model a plan is for.
#[derive(Debug, Clone, Copy)]
pub struct Model<'data> {
    /// Its directory; `--budget` reads the weights, all else the shape only.
    pub directory: &'data Path,
    /// Its shape.
    pub shape: &'data ModelShape,
}

/// A plan and how it came about.
#[derive(Debug)]
pub struct Made {
    /// The plan.
    pub plan: Plan,
    /// How it came about.
    pub origin: Origin,
}

impl Made {
    /// The plan's file, with a comment on where it comes from.
    pub fn to_toml(&self) -> String {
        self.plan.to_toml_from(&self.origin.lines().join("\n"))
    }
}

/// Makes the plan that is wished for. `watch` hears how many sites of how many were tried at every width, where that is
/// needed.
///
/// # Errors
/// Widths that are none, sensitivities of another model, a size that nothing fits in; said of the flags of `qbert plan`.
pub fn make(
    wishes: &Wishes,
    model: &Model<'_>,
    threads: &Threads,
    watch: &mut dyn FnMut(usize, usize),
) -> Result<Made> {
    make::make(wishes, model, threads, watch)
}

/// Finds out what is wrong with wishes before there are sensitivities: widths that are none, groups that the model does not
/// have, more layers than it has, a size that nothing fits in.
///
/// # Errors
/// The first thing that is wrong, said of the flags of `qbert plan`.
pub fn check(wishes: &Wishes, model: &Model<'_>) -> Result<()> {
    make::check(wishes, model)
}

/// A width, or what is wrong with it, said of a flag.
///
/// # Errors
/// A number that is no width.
pub fn precision(flag: &str, bits: u32) -> Result<qbert_quant::Precision> {
    make::precision(flag, bits)
}

/// The shape of the model whose configuration is in this directory, as it will be packed: with the head that the
/// configuration declares.
///
/// # Errors
/// A configuration that is not there or not one.
pub fn shape(directory: &Path) -> Result<ModelShape> {
    let path = directory.join("config.json");
    if !path.exists() {
        let missing = "config.json".to_owned();
        return Err(qbert_model::Error::MissingFile { directory: directory.to_owned(), missing }.into());
    }
    let config = Config::read(&path)?;
    let head = config.declared_head.unwrap_or(Head::None);
    let outputs = if head == Head::QuestionAnswering { 2 } else { config.labels.len().max(2) };
    Ok(config.shape(Some(&ParameterLayout::new(&config, head, outputs, head == Head::None))))
}

/// Reads and checks a plan's file.
///
/// # Errors
/// A file that cannot be read or is no plan; the error names the line.
pub fn read(path: &Path) -> Result<Plan> {
    let bytes = std::fs::read(path).map_err(|error| {
        Error::from(qbert_model::Error::Io { path: path.to_owned(), action: "read the plan", source: error })
    })?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let line = 1 + error.as_bytes()[..error.utf8_error().valid_up_to()].iter().filter(|&&b| b == b'\n').count();
        let message = format!("{}:{line}: the line is not valid UTF-8", path.display());
        Error::new(ErrorKind::BadInput, message, "save the plan as UTF-8 text".to_owned())
    })?;
    Ok(Plan::parse(&text, &path.display().to_string())?)
}
