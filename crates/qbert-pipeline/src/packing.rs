//! Packing a checkpoint into one file for the runtime.
//!
//! A quantized checkpoint has its plan and ranges beside the masters ([`Packing::quantized`]). Any other checkpoint is
//! quantized by a plan, without training, with activation ranges learned from some data ([`Packing::by_plan`]).

use std::collections::BTreeMap;
use std::path::Path;

use qbert_kernels::Compute;
use qbert_model::packed::{LayerActivations, PackedContents, PackedTokenizer, packed_bytes, write_packed};
use qbert_model::{Checkpoint, Config, Parameters, atomic};
use qbert_quant::{
    ActivationPlan, EmbeddingPlan, GroupSpec, Plan, Precision, QuantizedMatrix, RangeMethod, Site, SitePlan, TableWidth,
};
use qbert_tasks::{Task, Tokenizer};
use qbert_train::batch::Batch;
use qbert_train::bert::{ActivationTensor, Bert};
use qbert_train::features::Features;
use qbert_train::qat::student::QatSettings;
use qbert_train::qat::{Calibration, Quantization, files};

use crate::{Error, ErrorKind, Result, hashes};

/// The usual name of a packed model.
pub const FILE_NAME: &str = "model.qbert";

/// Sequences of a calibration batch.
pub(crate) const CALIBRATION_BATCH: usize = 32;

/// What activation ranges are learned from.
#[derive(Debug, Clone, Copy)]
pub enum CalibrationData<'a> {
    /// The first examples of a data set: as many batches as quantization-aware training takes by default. Weights are
    /// rounded to suit them ([`qbert_quant::compensate`]).
    Examples(&'a Features),
    /// These batches, with every weight rounded to its nearest code: for benchmarks on random weights.
    Batches(&'a [Batch]),
}

impl CalibrationData<'_> {
    fn batches(self) -> Result<Vec<Batch>> {
        Ok(match self {
            Self::Examples(features) => {
                let most = QatSettings::default().calibration;
                features.first_batches(CALIBRATION_BATCH, most).collect::<qbert_tasks::Result<_>>()?
            }
            Self::Batches(batches) => batches.to_vec(),
        })
    }
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
pub(crate) enum PackedText {
    Vocabulary(String, String),
    Json(String),
}

impl PackedText {
    /// The tokenizer of the checkpoint in a directory, as a packed file holds it.
    pub(crate) fn of(directory: &Path, vocab_size: usize) -> Result<Self> {
        let tokenizer = Tokenizer::for_model(directory, vocab_size)?;
        Ok(match tokenizer.to_vocab() {
            Some((text, options)) => Self::Vocabulary(text, serde_json::json!(options).to_string()),
            None => Self::Json(tokenizer.to_json()?),
        })
    }

    /// The bytes it takes in the file.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Vocabulary(text, options) => text.len() + options.len(),
            Self::Json(text) => text.len(),
        }
    }
}

impl Packing {
    /// A quantized checkpoint ([`qbert_train::qat::files`]), with its own plan and ranges.
    ///
    /// # Errors
    /// A directory without a quantized checkpoint; a file that is damaged or belongs to another model.
    pub fn quantized(directory: &Path) -> Result<Self> {
        let checkpoint = Checkpoint::open(directory)?;
        let parameters = checkpoint.load()?;
        let quantization = files::read(directory, checkpoint.config(), parameters.layout())?;
        Self::new(&checkpoint, parameters, &quantization)
    }

    /// A checkpoint quantized by a plan without training: the model that quantization-aware training starts from.
    ///
    /// # Errors
    /// A plan for another model; one that quantizes activations, without data to learn their ranges from.
    pub fn by_plan(directory: &Path, plan: Plan, data: Option<CalibrationData<'_>>, compute: &Compute) -> Result<Self> {
        Self::by_plan_watched(directory, plan, data, compute, &mut |_, _| {})
    }

    /// The same; `progress` gets the number of passes over a calibration batch that are done, and of all.
    ///
    /// # Errors
    /// As [`Packing::by_plan`].
    pub fn by_plan_watched(
        directory: &Path,
        plan: Plan,
        data: Option<CalibrationData<'_>>,
        compute: &Compute,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self> {
        let checkpoint = Checkpoint::open(directory)?;
        let mut parameters = checkpoint.load()?;
        let mut quantization = Quantization::new(plan, checkpoint.config(), parameters.layout())?;
        let batches = match data {
            _ if quantization.activations().is_none() => Vec::new(),
            Some(data) => data.batches()?,
            None => {
                let message = "the plan quantizes activations, but there is no data to learn their ranges from";
                let hint = "give `packing.calibration`, or leave activations in f32: `plan.activation.bits` 32";
                return Err(Error::new(ErrorKind::BadInput, message, hint.to_owned()));
            }
        };
        let bert = Bert::new(checkpoint.config(), parameters.layout().clone())?;
        let compensate = matches!(data, Some(CalibrationData::Examples(_)));
        let calibration = Calibration { bert: &bert, compute, batches: &batches, compensate, fit_steps: 0 };
        quantization.calibrate_watched(parameters.values_mut(), calibration, progress)?;
        // As before any evaluation: this is the model that training without a single step ends with.
        quantization.before_evaluation(compute, parameters.values())?;
        Self::new(&checkpoint, parameters, &quantization)
    }

    fn new(checkpoint: &Checkpoint, parameters: Parameters, quantization: &Quantization) -> Result<Self> {
        let mut sites = BTreeMap::new();
        for (site, _) in quantization.weights().iter() {
            let values = parameters.site(site).unwrap_or_default();
            sites.extend(quantization.weights().stored(site, values)?.map(|matrix| (site, matrix)));
        }
        let ranges = quantization.ranges();
        let activations = ranges.map(|ranges| {
            let learned = ActivationTensor::ALL.into_iter().filter(|tensor| tensor.is_learned());
            let learned: Vec<ActivationTensor> = learned.collect();
            let layer = |layer| LayerActivations::from_array(std::array::from_fn(|i| ranges.get(layer, learned[i])));
            (0..ranges.layers()).map(layer).collect()
        });
        let tokenizer = PackedText::of(checkpoint.directory(), checkpoint.config().vocab_size)?;
        let mut packing = Self {
            config: checkpoint.config().clone(),
            parameters: parameters.without_unread_pooler(checkpoint.config()),
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
        packing.note("sha256", &hashes::weights(checkpoint.directory())?);
        Ok(packing)
    }

    /// A quantized checkpoint for a task, made by this command.
    ///
    /// # Errors
    /// As [`Packing::quantized`].
    pub fn trained(directory: &Path, task: Task, command: &str) -> Result<Self> {
        let mut packing = Self::quantized(directory)?.for_task(task.name());
        packing.note("command", command);
        Ok(packing)
    }

    /// Names the task that the model is for.
    #[must_use]
    pub fn for_task(mut self, task: &str) -> Self {
        task.clone_into(&mut self.task);
        self
    }

    /// Adds a fact about where the model comes from.
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

    /// The packed model in memory; errors call it `name`.
    ///
    /// # Errors
    /// When the parts do not fit together.
    pub fn bytes(&self, name: &str) -> Result<Vec<u8>> {
        Ok(packed_bytes(name, &self.contents())?)
    }
}

/// Writes what hubs and other tools look for beside a packed model: the configuration of the checkpoint it was made from, with
/// `quantization_config`, and the tokenizer's files. Returns their names.
///
/// # Errors
/// When a file of the checkpoint cannot be read, or one of these cannot be written.
pub fn write_companions(checkpoint: &Path, plan: &Plan, directory: &Path) -> Result<Vec<String>> {
    let checkpoint = Checkpoint::open(checkpoint)?;
    let mut config = checkpoint.config().to_json(checkpoint.head(), &checkpoint.labels());
    let widths = |sites: &dyn Fn(Site) -> bool| {
        let own = plan.sites().filter(|(site, _)| sites(*site)).map(|(_, own)| own.width());
        let mut widths: Vec<TableWidth> = own.collect();
        widths.sort_by(|a, b| a.number().total_cmp(&b.number()));
        widths.dedup();
        widths
    };
    config["quantization_config"] = serde_json::json!({
        "quant_method": "qbert",
        "file": FILE_NAME,
        "weight_bits": widths(&|site| site.layer().is_some()),
        "embedding_bits": widths(&|site| site.layer().is_none()),
        "activation_bits": plan.activation().bits,
        "qbert_version": env!("CARGO_PKG_VERSION"),
    });
    let mut names = vec!["config.json".to_owned()];
    atomic::write_file(&directory.join("config.json"), |writer| writeln!(writer, "{config:#}"))?;
    for (name, bytes) in checkpoint.tokenizer_files().iter() {
        atomic::write_file(&directory.join(name), |writer| writer.write_all(bytes))?;
        names.push(name.to_owned());
    }
    Ok(names)
}

/// A plan from widths alone, without sensitivities.
///
/// # Errors
/// A number that is not a width.
pub fn plan_by_widths(config: &Config, widths: &PartWidths) -> Result<Plan> {
    let groups = GroupSpec::default_for(config.hidden_size.min(config.intermediate_size));
    let mut plan = Plan::uniform(config.distinct_layers(), widths.layers, groups, widths.range);
    if let Some(middle) = widths.middle_layers {
        for layer in middle_layers(config.distinct_layers()) {
            plan = plan.with_layer_bits(layer, middle)?;
        }
    }
    let table =
        |width| SitePlan::table(width, GroupSpec::default_for_table(width, config.embedding_size), widths.range);
    let (word, rest) = (table(widths.word_embedding), table(widths.other_embeddings));
    let activation = ActivationPlan { bits: widths.activations, range: RangeMethod::MinMax };
    Ok(plan.with_embedding(EmbeddingPlan { word, position: rest, token_type: rest }).with_activation(activation))
}

/// The middle third of the layers.
pub fn middle_layers(layers: usize) -> std::ops::Range<usize> {
    layers / 3..layers - layers / 3
}

/// The widths of [`plan_by_widths`], in bits; 32 is f32.
#[derive(Debug, Clone)]
pub struct PartWidths {
    /// The encoder layers.
    pub layers: Precision,
    /// The middle third of the layers, if different.
    pub middle_layers: Option<Precision>,
    /// The word embedding.
    pub word_embedding: TableWidth,
    /// The position and token type embeddings.
    pub other_embeddings: TableWidth,
    /// Activations: 8 or 32.
    pub activations: Precision,
    /// How the ranges of weights are found.
    pub range: RangeMethod,
}
