//! From a checkpoint to a packed model: what `qbert pack` and `qbert quantize` write, and what benchmarks measure.
//!
//! A directory that `qbert quantize` wrote has its plan and ranges beside the masters and needs nothing more. Any other
//! checkpoint is quantized here without training, by a plan, on activation ranges learned from some data.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use qbert_kernels::Compute;
use qbert_model::packed::{LayerActivations, PackedContents, PackedTokenizer, packed_bytes, write_packed};
use qbert_model::{Checkpoint, Config, Parameters};
use qbert_quant::{
    ActivationPlan, EmbeddingPlan, GroupSpec, Plan, Precision, QuantizedMatrix, RangeMethod, Site, SitePlan,
};
use qbert_tasks::Tokenizer;
use qbert_train::batch::Batch;
use qbert_train::bert::{ActivationTensor, Bert};
use qbert_train::features::Features;
use qbert_train::qat::{Quantization, files};

use crate::hashes::sha256;
use crate::{Error, ErrorKind, Result};

/// The usual name of a packed model.
pub const FILE_NAME: &str = "model.qbert";

/// The paper's number of groups; a smaller model takes one group per neuron.
const GROUPS: usize = 128;

/// What activation ranges are learned from.
#[derive(Debug, Clone, Copy)]
pub enum Calibration<'a> {
    /// Batches of this many sequences, this many at the most, in the order of the data. Weights are rounded to suit them
    /// ([`qbert_quant::compensate`]).
    Data(&'a Features, usize, usize),
    /// These batches, with every weight rounded to its nearest code: for benchmarks on random weights.
    Batches(&'a [Batch]),
}

/// Everything that goes into a packed model.
#[derive(Debug)]
pub struct Packing {
    config: Config,
    parameters: Parameters,
    labels: Vec<String>,
    task: String,
    plan: Plan,
    sites: BTreeMap<Site, QuantizedMatrix>,
    activations: Option<Vec<LayerActivations>>,
    tokenizer: PackedText,
    provenance: BTreeMap<String, String>,
}

/// A tokenizer as text.
#[derive(Debug)]
enum PackedText {
    Vocabulary(String, String),
    Json(String),
}

impl Packing {
    /// A directory that `qbert quantize` wrote, with its own plan and ranges.
    ///
    /// # Errors
    /// When the directory is no quantized checkpoint, or a file of it is damaged or of another model.
    pub fn quantized(directory: &Path) -> Result<Self> {
        let checkpoint = Checkpoint::open(directory)?;
        let parameters = checkpoint.load()?;
        let quantization = files::read(directory, checkpoint.config(), parameters.layout())?;
        Self::new(&checkpoint, parameters, &quantization)
    }

    /// A checkpoint quantized by a plan without training.
    ///
    /// # Errors
    /// A plan for another model; one that quantizes activations, without data to learn their ranges from.
    pub fn by_plan(directory: &Path, plan: Plan, data: Option<Calibration<'_>>, compute: &Compute) -> Result<Self> {
        let checkpoint = Checkpoint::open(directory)?;
        let mut parameters = checkpoint.load()?;
        let mut quantization = Quantization::new(plan, checkpoint.config(), parameters.layout())?;
        quantization.fit(compute, parameters.values())?;
        if quantization.activations().is_some() {
            let data = data.ok_or_else(|| {
                let message = "the plan quantizes activations, and there is no data to learn their ranges from";
                let hint = "give --calibrate FILE and --task, or leave activations in f32 with --activation-bits 32";
                Error::new(ErrorKind::BadInput, message, hint.to_owned())
            })?;
            let bert = Bert::new(checkpoint.config(), parameters.layout().clone())?;
            let batches: qbert_tasks::Result<Vec<Batch>> = match data {
                Calibration::Data(features, size, most) => features.first_batches(size, most).collect(),
                Calibration::Batches(batches) => Ok(batches.to_vec()),
            };
            let batches = batches?;
            quantization.calibrate(&bert, compute, batches.iter().cloned().map(Ok))?;
            if matches!(data, Calibration::Data(..)) {
                quantization.compensate(&bert, compute, parameters.values_mut(), &batches)?;
            }
        }
        // As before any evaluation, so that this is the model that `qbert quantize --epochs 0` makes.
        quantization.before_evaluation(compute, parameters.values())?;
        Self::new(&checkpoint, parameters, &quantization)
    }

    fn new(checkpoint: &Checkpoint, parameters: Parameters, quantization: &Quantization) -> Result<Self> {
        let mut sites = BTreeMap::new();
        for (site, params) in quantization.weights().iter() {
            let values = parameters.site(site).unwrap_or_default();
            let matrix = QuantizedMatrix::quantize(values, params)
                .map_err(|source| qbert_quant::Error::AtSite { site, source: Box::new(source) })?;
            sites.insert(site, matrix);
        }
        let ranges = quantization.ranges();
        let activations = ranges.map(|ranges| {
            let learned = ActivationTensor::ALL.into_iter().filter(|tensor| tensor.is_learned());
            let learned: Vec<ActivationTensor> = learned.collect();
            let layer = |layer| LayerActivations::from_array(std::array::from_fn(|i| ranges.get(layer, learned[i])));
            (0..ranges.layers()).map(layer).collect()
        });
        let tokenizer = Tokenizer::for_model(checkpoint.directory(), checkpoint.config().vocab_size)?;
        let tokenizer = match tokenizer.to_vocab() {
            Some((text, options)) => PackedText::Vocabulary(text, serde_json::json!(options).to_string()),
            None => PackedText::Json(tokenizer.to_json()?),
        };
        let mut packing = Self {
            config: checkpoint.config().clone(),
            parameters,
            labels: checkpoint.labels(),
            task: String::new(),
            plan: quantization.plan().clone(),
            sites,
            activations,
            tokenizer,
            provenance: BTreeMap::new(),
        };
        packing.note("qbert", env!("CARGO_PKG_VERSION"));
        packing.note("plan", &quantization.plan().to_toml());
        let name = checkpoint.directory().file_name().map_or(".".into(), |name| name.to_string_lossy());
        packing.note("source", &name);
        packing.note("sha256", &weights_hash(checkpoint.directory())?);
        Ok(packing)
    }

    /// The same for a task, whose name is written down.
    #[must_use]
    pub fn for_task(mut self, task: &str) -> Self {
        task.clone_into(&mut self.task);
        self
    }

    /// Writes down where the model comes from.
    pub fn note(&mut self, key: &str, value: &str) {
        self.provenance.insert(key.to_owned(), value.to_owned());
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    fn contents(&self) -> PackedContents<'_> {
        PackedContents {
            config: &self.config,
            parameters: &self.parameters,
            labels: &self.labels,
            task: &self.task,
            plan: &self.plan,
            sites: &self.sites,
            activations: self.activations.as_deref(),
            tokenizer: match &self.tokenizer {
                PackedText::Vocabulary(text, options) => PackedTokenizer::Vocabulary { text: text.as_bytes(), options },
                PackedText::Json(text) => PackedTokenizer::Json(text.as_bytes()),
            },
            provenance: &self.provenance,
        }
    }

    /// Writes the packed model, whole or not at all. Returns its bytes.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<u64> {
        Ok(write_packed(path, &self.contents())?)
    }

    /// The packed model in memory; `name` stands for it in errors.
    ///
    /// # Errors
    /// When the parts do not fit together.
    pub fn bytes(&self, name: &str) -> Result<Vec<u8>> {
        Ok(packed_bytes(name, &self.contents())?)
    }
}

/// A plan by widths alone: one width for every encoder layer, or a second one for the middle third of them. Embedding
/// tables and activations are given theirs.
///
/// # Errors
/// A width that is none.
pub fn plan_by_widths(config: &Config, widths: &Widths) -> Result<Plan> {
    let groups = GroupSpec::Count(GROUPS.min(config.hidden_size).min(config.intermediate_size));
    let bits = |number: u32| Precision::from_number(i64::from(number));
    let mut plan = Plan::uniform(config.layers, bits(widths.layers)?, groups, widths.range);
    if let Some(middle) = widths.middle_layers {
        for layer in middle_layers(config.layers) {
            plan = plan.with_layer_bits(layer, bits(middle)?)?;
        }
    }
    let groups = GroupSpec::Count(GROUPS.min(config.hidden_size));
    let table = |number| Ok::<_, Error>(SitePlan { bits: bits(number)?, groups, range: widths.range });
    let (word, rest) = (table(widths.word_embedding)?, table(widths.other_embeddings)?);
    let activation = ActivationPlan { bits: bits(widths.activations)?, range: RangeMethod::MinMax };
    Ok(plan.with_embedding(EmbeddingPlan { word, position: rest, token_type: rest }).with_activation(activation))
}

/// The middle third of the layers.
pub fn middle_layers(layers: usize) -> std::ops::Range<usize> {
    layers / 3..layers - layers / 3
}

/// The numbers of [`plan_by_widths`].
#[derive(Debug, Clone)]
pub struct Widths {
    /// Of the encoder layers.
    pub layers: u32,
    /// Of the middle third of them, if another.
    pub middle_layers: Option<u32>,
    /// Of the word embedding.
    pub word_embedding: u32,
    /// Of positions and token types.
    pub other_embeddings: u32,
    /// Of activations: 8, or 32 for none.
    pub activations: u32,
    /// How ranges of weights are found.
    pub range: RangeMethod,
}

/// The sha256 of the checkpoint's weight files, one after the other in the order of their names.
pub fn weights_hash(directory: &Path) -> Result<String> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        |source| Error::from(qbert_model::Error::Io { path, action: "read", source })
    };
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed(directory))? {
        let path = entry.map_err(failed(directory))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("model") && name.ends_with(".safetensors") {
            paths.push(path);
        }
    }
    paths.sort();
    let mut all: Box<dyn std::io::Read> = Box::new(std::io::empty());
    for path in &paths {
        all = Box::new(std::io::Read::chain(all, std::fs::File::open(path).map_err(failed(path))?));
    }
    sha256(all).map_err(failed(directory))
}
