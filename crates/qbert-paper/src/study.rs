//! A fine-tuned checkpoint with its data and a budget: what the rows of all tables have in common.

mod command;
mod plans;

use std::path::{Path, PathBuf};

use qbert_model::Checkpoint;
use qbert_quant::{LayerSensitivity, Metric, ModelShape, Ranking};
use qbert_tasks::{DataSource, ReadOptions};
use qbert_train::finetune::Finetune;
use qbert_train::qat::distill::Distillation;
use qbert_train::qat::student::QatSettings;
use qbert_train::trainer::Settings;

use super::result::{Bits, RowResult, RowSettings, Source};
use super::rows::{Recipe, Row, RowTreatment};
use qbert_pipeline::Result;
use qbert_pipeline::hashes::{self, ModelHashes};

pub use plans::usual_high;

/// The model, data and settings of a study.
#[derive(Debug, Clone)]
pub struct Experiment {
    /// The fine-tuned checkpoint.
    pub model: PathBuf,
    /// The data to learn from.
    pub data: DataSource,
    /// File to judge by, read as `data` is.
    pub dev: PathBuf,
    /// How sensitive the layers are, for methods with mixed precision.
    pub sensitivity: Option<MeasuredSensitivity>,
    /// Steps or epochs, batch, rates and the like; the seed is the row's own.
    pub budget: Settings,
    /// Use only this many training examples, the first.
    pub max_train: Option<usize>,
    /// Use only this many dev examples, the first.
    pub max_dev: Option<usize>,
    /// The directory of the results; those of a task are in a subdirectory of its name.
    pub out: PathBuf,
    /// Keep the quantized checkpoints, packed models included.
    pub keep: bool,
    /// Make rows again that were made with other settings.
    pub redo: bool,
}

/// Measured sensitivities.
#[derive(Debug, Clone)]
pub struct MeasuredSensitivity {
    /// The file they were read from.
    pub path: PathBuf,
    /// One for each encoder layer.
    pub layers: Vec<LayerSensitivity>,
}

/// How far a row is.
#[derive(Debug, Clone)]
pub enum State {
    /// It has a result.
    Done(Box<RowResult>),
    /// It has a result made with other settings; the text says which.
    Differs(String),
    /// It was interrupted, or is being made.
    Begun,
    /// It was not begun.
    Open,
}

/// An experiment whose model and data are known.
#[derive(Debug)]
pub struct Study {
    pub(super) experiment: Experiment,
    pub(super) layers: usize,
    pub(super) parameters: usize,
    pub(super) shape: ModelShape,
    ranking: Option<Ranking>,
    pub(super) sensitivity: Option<Source>,
    pub(super) model: Source,
    /// One hash of its files.
    model_files: String,
    train: Vec<Source>,
    dev: Source,
}

impl Study {
    /// Opens the checkpoint and hashes all files; the first row reads the data itself.
    ///
    /// # Errors
    /// Missing files, a directory that is not a checkpoint, sensitivities of another model.
    pub fn open(experiment: Experiment) -> Result<Self> {
        experiment.budget.check()?;
        let checkpoint = Checkpoint::open(&experiment.model)?;
        let layout = checkpoint.layout();
        let config = checkpoint.config();
        let (mut ranking, mut sensitivity) = (None, None);
        if let Some(measured) = &experiment.sensitivity {
            if measured.layers.len() != config.layers {
                return Err(qbert_quant::Error::PlanLayers { plan: measured.layers.len(), model: config.layers }.into());
            }
            ranking = Some(Ranking::new(&measured.layers, Metric::Omega)?);
            sensitivity = Some(source(&measured.path)?);
        }
        // Both hashes in one pass: the weights are the largest files there are.
        let ModelHashes { weights, files } = hashes::model_and_weights(&experiment.model)?;
        Ok(Self {
            layers: config.layers,
            parameters: layout.len(),
            shape: config.shape(Some(&layout)),
            ranking,
            sensitivity,
            model: Source { name: name_of(&experiment.model), sha256: weights },
            model_files: files,
            train: experiment.data.files.iter().map(|path| source(path)).collect::<Result<_>>()?,
            dev: source(&experiment.dev)?,
            experiment,
        })
    }

    /// Everything that decides the figures of a row.
    ///
    /// # Errors
    /// As [`Study::plan`].
    pub fn settings(&self, row: &Row) -> Result<RowSettings> {
        let Experiment { max_train, max_dev, .. } = self.experiment;
        let DataSource { task, max_len, ref read, .. } = self.experiment.data;
        let quantized = row.treatment != RowTreatment::FullPrecision;
        let usual = *read == ReadOptions::default();
        Ok(RowSettings {
            task,
            method: row.method.to_string(),
            treatment: row.treatment,
            bits: Bits::of(&self.plan(row)?),
            groups: if quantized { row.method.groups().to_string() } else { String::new() },
            budget: quantized.then(|| self.budget(row)),
            quantization: quantized.then(|| quantization(row)),
            max_len,
            model: self.model.clone(),
            model_files: Some(self.model_files.clone()),
            train: if quantized { self.train.clone() } else { Vec::new() },
            dev: self.dev.clone(),
            max_train: max_train.filter(|_| quantized),
            max_dev,
            reading: (!usual).then(|| format!("{read:?}")),
        })
    }

    /// The budget of a row, with the row's own seed.
    pub(super) fn budget(&self, row: &Row) -> Settings {
        let mut budget = self.experiment.budget.clone();
        match row.treatment {
            RowTreatment::Trained { seed, .. } => budget.seed = seed,
            // Nothing is trained: what would decide it makes no difference.
            _ => {
                let batch = budget.batch;
                budget = Settings { batch, steps: Some(0), ..qbert_train::qat::run::recipe(self.experiment.data.task) };
            }
        }
        if budget.steps.is_some() {
            budget.epochs = 0;
        }
        budget
    }

    /// The training run of a row in its scratch directory; resumes an interrupted one.
    pub(super) fn job(&self, row: &Row, out: &Path) -> Finetune {
        Finetune {
            model: self.experiment.model.clone(),
            data: self.experiment.data.clone(),
            dev: self.experiment.dev.clone(),
            out: out.to_owned(),
            max_train: self.experiment.max_train,
            settings: self.budget(row),
            resume: true,
        }
    }

    pub(super) fn directory(&self) -> PathBuf {
        self.experiment.out.join(self.experiment.data.task.name())
    }

    /// The file of a row's result.
    pub fn result_path(&self, row: &Row) -> PathBuf {
        self.directory().join(format!("{}.json", row.id()))
    }

    /// The directory a row is made in; it exists until the row is done.
    pub fn scratch(&self, row: &Row) -> PathBuf {
        self.directory().join(format!("{}.partial", row.id()))
    }

    /// How far a row is.
    ///
    /// # Errors
    /// As [`Study::plan`]; a result that cannot be read.
    pub fn state(&self, row: &Row) -> Result<State> {
        let path = self.result_path(row);
        if !path.exists() {
            return Ok(if self.scratch(row).exists() { State::Begun } else { State::Open });
        }
        let result = RowResult::read(&path)?;
        Ok(match result.settings.difference(&self.settings(row)?) {
            None => State::Done(Box::new(result)),
            Some(difference) => State::Differs(difference),
        })
    }
}

/// The settings of a row's quantization-aware training other than its budget.
pub(super) fn quantization(row: &Row) -> QatSettings {
    let (compensate, distill) = (row.treatment.compensate(), row.treatment.distill());
    let Recipe { mask, weight_ranges, fit_steps } = row.treatment.recipe();
    let distillation = distill.then(Distillation::default);
    QatSettings { compensate, fit_steps, mask, weight_ranges, distillation, ..QatSettings::default() }
}

fn source(path: &Path) -> Result<Source> {
    Ok(Source { name: name_of(path), sha256: hashes::file(path)? })
}

fn name_of(path: &Path) -> String {
    path.file_name().map_or_else(|| ".".to_owned(), |name| name.to_string_lossy().into_owned())
}
