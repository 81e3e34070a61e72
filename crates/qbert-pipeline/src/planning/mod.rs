//! Making a bit plan: the step between the sensitivities and the quantization.
//!
//! A [`PlanRequest`] says what the plan should be like; [`make`] turns it into a plan for a model and records how it was
//! made. To write a plan yourself, build a [`qbert_quant::Plan`] instead.

mod choose;
mod file;
mod make;
mod origin;
mod quantization_error;
pub mod search;
mod sensitivity;

use std::path::{Path, PathBuf};

use qbert_kernels::Threads;
use qbert_model::{Config, Embedder, Head, ParameterLayout};
use qbert_quant::allocate::budget::Granularity;
use qbert_quant::{GroupSpec, Metric, ModelShape, Plan, Precision, RangeMethod, TableWidth};
use serde::Serialize;

pub use file::{besides_weights, whole_file};
pub use origin::{By, Cost, Found, Limit, Origin, Ranked, Sensitive, UniformCost, short};
pub use quantization_error::{SiteError, Trial, plan_errors, quantization_errors};
pub use sensitivity::{Measured, read as read_sensitivity};

use self::search::DropLimit;
use crate::error::{Error, ErrorKind, Result};

/// What a plan should be like. The defaults are 128 groups (one per neuron in a smaller model), `mse` ranges, 8-bit
/// embeddings in as many groups and 8-bit activations.
///
/// Errors call its fields `plan.bits`, `plan.high` and so on.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct PlanRequest {
    /// The width of every encoder matrix; with sensitivities the widths to choose from, low to high.
    pub bits: Vec<Precision>,
    /// The self-attention's own width.
    pub attention_bits: Option<Precision>,
    /// The feed-forward network's own width.
    pub ffn_bits: Option<Precision>,
    /// One of the paper's published plans.
    pub preset: Option<String>,
    /// Groups per encoder matrix.
    pub groups: Option<GroupSpec>,
    /// How ranges are found.
    pub range: Option<RangeMethod>,
    /// Widths of the embedding: one for all tables, or the word embedding's and the others'. Only the word embedding can have
    /// product codes; of such a width the others take the bits.
    pub embedding_bits: Vec<TableWidth>,
    /// Groups per embedding table.
    pub embedding_groups: Option<GroupSpec>,
    /// Width of the activations between the matrices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activation_bits: Option<Precision>,
    /// How ranges of activations are found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activation_range: Option<RangeMethod>,
    /// The file of sensitivities that decide among `bits`.
    #[serde(skip)]
    pub sensitivity: Option<PathBuf>,
    /// How many layers get each higher width.
    pub high: Vec<usize>,
    /// MB (10^6 bytes) that the packed file of a plan by rank may take.
    pub size: Option<f64>,
    /// MB (10^6 bytes) that the packed file of the best plan may take.
    pub budget: Option<f64>,
    /// What shares a width within a budget.
    pub granularity: Option<Granularity>,
    /// What sensitivity is.
    pub metric: Option<Metric>,
    /// Lower widths for the sensitive layers (the paper's MP-rev).
    pub reverse: bool,
    /// How far the metric may drop: the smallest plan that keeps it is found by measuring ([`search::find`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_drop: Option<DropLimit>,
}

/// The model a plan is for.
#[derive(Debug, Clone, Copy)]
pub struct Model<'data> {
    /// Its directory. A size limit reads the tokenizer, a budget the weights, too.
    pub directory: &'data Path,
    /// Its shape.
    pub shape: &'data ModelShape,
}

impl Model<'_> {
    /// See [`besides_weights`].
    fn besides_weights(&self) -> Result<u64> {
        besides_weights(self.directory, self.shape)
    }
}

/// A plan and how it was made.
#[derive(Debug)]
pub struct NewPlan {
    /// The plan.
    pub plan: Plan,
    /// How it was made.
    pub origin: Origin,
}

impl NewPlan {
    /// The plan's file, with a comment on where it comes from.
    pub fn to_toml(&self) -> String {
        self.plan.to_toml_from(&self.origin.lines().join("\n"))
    }
}

/// Makes the requested plan. If sites have to be tried at every width, `watch` gets the number that are done, and of all.
///
/// # Errors
/// Numbers that are not widths, sensitivities of another model, a size that nothing fits in; a request for a plan that has to
/// be measured, which [`search::find`] makes.
pub fn make(
    request: &PlanRequest,
    model: &Model<'_>,
    threads: &Threads,
    watch: &mut dyn FnMut(usize, usize),
) -> Result<NewPlan> {
    make::make(request, model, threads, watch)
}

/// Checks a request before there are sensitivities: widths, groups, numbers of layers and sizes.
///
/// # Errors
/// The first problem.
pub fn check(request: &PlanRequest, model: &Model<'_>) -> Result<()> {
    make::check(request, model)
}

/// The shape of the model whose `config.json` is in this directory, as it will be packed: with the head that the
/// configuration declares.
///
/// # Errors
/// A configuration that is missing or not valid.
pub fn shape(directory: &Path) -> Result<ModelShape> {
    let path = directory.join("config.json");
    if !path.exists() {
        let missing = "config.json".to_owned();
        return Err(qbert_model::Error::MissingFile { directory: directory.to_owned(), missing }.into());
    }
    let mut config = Config::read(&path)?;
    config.embedder = Embedder::read(directory)?;
    let head = config.declared_head.unwrap_or(Head::None);
    let outputs = if head == Head::QuestionAnswering { 2 } else { config.labels.len().max(2) };
    let pooler = head == Head::None && !config.pools_tokens();
    Ok(config.shape(Some(&ParameterLayout::new(&config, head, outputs, pooler))))
}

/// Reads and checks a plan's file.
///
/// # Errors
/// A file that cannot be read or is not a plan; the error names the line.
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
