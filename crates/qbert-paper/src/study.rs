//! A fine-tuned checkpoint with its data and a budget: what the rows of all tables have in common.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use qbert_model::Checkpoint;
use qbert_quant::{
    Axis, GroupSpec, LayerSensitivity, Metric, ModelShape, Plan, Precision, Preset, RangeMethod, Ranking,
};
use qbert_tasks::{Kind, ReadOptions, Task};
use qbert_train::finetune::Finetune;
use qbert_train::qat::distill::Distillation;
use qbert_train::qat::method::Method;
use qbert_train::qat::student::QatSettings;
use qbert_train::trainer::Settings;

use super::result::{Bits, PaperMib, RowResult, RowSettings, Source, io, paper_sizes};
use super::rows::{HEADLINE_COMPRESSION, HEADLINE_METHOD, Row, Selection, Table, Treatment};
use qbert_pipeline::hashes::{self, sha256};
use qbert_pipeline::{Error, ErrorKind, Result};

/// What is studied.
#[derive(Debug, Clone)]
pub struct Experiment {
    /// The task.
    pub task: Task,
    /// The fine-tuned checkpoint.
    pub model: PathBuf,
    /// Files to learn from.
    pub train: Vec<PathBuf>,
    /// File to judge by.
    pub dev: PathBuf,
    /// How to read them.
    pub read: ReadOptions,
    /// Longest sequence in tokens.
    pub max_len: usize,
    /// How sensitive the layers are, for methods with mixed precision.
    pub sensitivity: Option<Sensitivity>,
    /// Steps or epochs, batch, rates and the like; the seed is the row's own.
    pub budget: Settings,
    /// Learn from the first examples only.
    pub max_train: Option<usize>,
    /// Judge by the first examples only.
    pub max_dev: Option<usize>,
    /// Where results go, in a directory of the task's name.
    pub out: PathBuf,
    /// Keep the quantized checkpoints, packed models included.
    pub keep: bool,
    /// Make rows again that were made with other settings.
    pub redo: bool,
}

/// Measured sensitivities.
#[derive(Debug, Clone)]
pub struct Sensitivity {
    /// The file they were read from.
    pub path: PathBuf,
    /// One for each encoder layer.
    pub layers: Vec<LayerSensitivity>,
}

/// How far a row is.
#[derive(Debug, Clone)]
pub enum State {
    /// Its result is there.
    Done(Box<RowResult>),
    /// A result is there that was made with other settings; the text says which.
    Differs(String),
    /// It was interrupted, or is being made.
    Begun,
    /// Nothing is there.
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
    /// Opens the checkpoint and takes the hashes of all files; the data itself is read by the first row.
    ///
    /// # Errors
    /// Files that are missing, a checkpoint that is none, sensitivities of another model.
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
        let model = Source { name: name_of(&experiment.model), sha256: hashes::weights(&experiment.model)? };
        Ok(Self {
            layers: config.layers,
            parameters: layout.len(),
            shape: config.shape(Some(&layout)),
            ranking,
            sensitivity,
            model,
            model_files: hashes::model(&experiment.model)?,
            train: experiment.train.iter().map(|path| source(path)).collect::<Result<_>>()?,
            dev: source(&experiment.dev)?,
            experiment,
        })
    }

    /// The rows that are selected, the baseline first where it is one of them.
    ///
    /// # Errors
    /// A name that no row has.
    pub fn rows(&self, selection: &Selection) -> Result<Vec<Row>> {
        let mut methods: Vec<(Method, Option<usize>)> = Vec::new();
        for table in &selection.tables {
            for printed in table.printed() {
                methods.extend(printed.rows()?.iter().map(|row| (row.method, None)));
            }
            if *table == Table::Headline {
                methods.extend(self.headline()?);
            }
        }
        selection.rows(&methods)
    }

    /// The headline's method with as many layers at the higher width as its compression allows; `None` where the model
    /// is too small for it.
    fn headline(&self) -> Result<Option<(Method, Option<usize>)>> {
        let method: Method = HEADLINE_METHOD.parse()?;
        let usual = usual_high(&method, self.experiment.task, self.layers)?;
        for high in (1..self.layers).rev() {
            // Only the number of layers matters for the size.
            let sensitive: Vec<usize> = (0..high).collect();
            let plan = with_fitting_groups(method.plan(self.layers, &sensitive, RangeMethod::MinMax)?, &self.shape)?;
            let (_, [encoder, _]) = paper_sizes(&self.shape, &plan, &self.full_plan()?)?;
            if encoder >= HEADLINE_COMPRESSION {
                return Ok(Some((method, (high != usual).then_some(high))));
            }
        }
        Ok(None)
    }

    fn full_plan(&self) -> Result<Plan> {
        let full: Method = "full".parse()?;
        with_fitting_groups(full.plan(self.layers, &[], RangeMethod::MinMax)?, &self.shape)
    }

    /// The plan of a row.
    ///
    /// # Errors
    /// Mixed precision without sensitivities.
    pub fn plan(&self, row: &Row) -> Result<Plan> {
        let range = row.treatment.ranges().map_or(RangeMethod::MinMax, |ranges| ranges.method());
        let mut sensitive = Vec::new();
        if row.method.is_mixed() {
            let ranking = self.ranking.as_ref().ok_or_else(|| {
                let message = format!("{} needs to know which layers are sensitive", row.name());
                let hint = "give --sensitivity FILE (from `qbert analyze`), or leave such rows out with --rows";
                Error::new(ErrorKind::BadInput, message, hint.to_owned())
            })?;
            let usual = usual_high(&row.method, self.experiment.task, self.layers)?;
            let high = row.high.unwrap_or(usual).min(self.layers);
            // Turned round, as many layers as before have the higher width: the least sensitive ones.
            let first = if row.method.is_reversed() { self.layers - high } else { high };
            sensitive = ranking.order()[..first].to_vec();
        }
        with_fitting_groups(row.method.plan(self.layers, &sensitive, range)?, &self.shape)
    }

    /// The paper's size of a row, and how many times smaller than full precision encoder and whole are.
    ///
    /// # Errors
    /// As [`Study::plan`].
    pub fn paper_sizes(&self, row: &Row) -> Result<(PaperMib, [f64; 2])> {
        paper_sizes(&self.shape, &self.plan(row)?, &self.full_plan()?)
    }

    /// Everything that decides the figures of a row.
    ///
    /// # Errors
    /// As [`Study::plan`].
    pub fn settings(&self, row: &Row) -> Result<RowSettings> {
        let Experiment { task, max_len, max_train, max_dev, ref read, .. } = self.experiment;
        let quantized = row.treatment != Treatment::FullPrecision;
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

    /// The budget of a row, whose seed is its own.
    pub(super) fn budget(&self, row: &Row) -> Settings {
        let mut budget = self.experiment.budget.clone();
        match row.treatment {
            Treatment::Trained { seed, .. } => budget.seed = seed,
            // Nothing is trained: what would decide it makes no difference.
            _ => {
                let batch = budget.batch;
                budget = Settings { batch, steps: Some(0), ..qbert_train::qat::run::recipe(self.experiment.task) };
            }
        }
        if budget.steps.is_some() {
            budget.epochs = 0;
        }
        budget
    }

    /// The run of a row in its scratch directory, continued where it was interrupted.
    pub(super) fn job(&self, row: &Row, out: &Path) -> Finetune {
        let Experiment { task, max_len, max_train, .. } = self.experiment;
        Finetune {
            model: self.experiment.model.clone(),
            task,
            train: self.experiment.train.clone(),
            dev: self.experiment.dev.clone(),
            out: out.to_owned(),
            read: self.experiment.read.clone(),
            max_len,
            max_train,
            settings: self.budget(row),
            resume: true,
        }
    }

    pub(super) fn directory(&self) -> PathBuf {
        self.experiment.out.join(self.experiment.task.name())
    }

    /// Where the result of a row is.
    pub fn result_path(&self, row: &Row) -> PathBuf {
        self.directory().join(format!("{}.json", row.id()))
    }

    /// Where a row is made; there while it is not done.
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

    /// The command that makes this row and no other, with names of files and no directories.
    pub(super) fn command(&self, row: &Row) -> String {
        let Experiment { task, max_train, max_dev, ref budget, .. } = self.experiment;
        let mut words: Vec<String> = vec![format!("qbert-paper reproduce --task {task} --rows {}", row.name())];
        words.extend(row.treatment.ranges().map(|ranges| format!("--ranges {}", ranges.name())));
        words.extend(row.treatment.compensate().then(|| "--compensate".to_owned()));
        words.extend(row.treatment.distill().then(|| "--distill".to_owned()));
        match row.treatment {
            Treatment::FullPrecision => {}
            Treatment::PostTraining { .. } => words.push("--steps 0".to_owned()),
            Treatment::Trained { seed, .. } => {
                words.push(format!("--seeds {seed}"));
                words.push(match budget.steps {
                    Some(steps) => format!("--steps {steps}"),
                    None => format!("--epochs {}", budget.epochs),
                });
                words.push(format!("--lr {:?}", budget.optimizer.learning_rate));
            }
        }
        if row.treatment != Treatment::FullPrecision {
            words.push(format!("--batch {}", budget.batch));
            words.extend(max_train.map(|count| format!("--max-train {count}")));
        }
        words.extend(max_dev.map(|count| format!("--max-dev {count}")));
        words.extend(self.files(row.method.is_mixed()));
        words.join(" ")
    }

    /// The command that measures the weights' errors, of these methods or of all.
    pub(super) fn errors_command(&self, names: &[String]) -> String {
        let mut words = vec![format!("qbert-paper reproduce --task {} --weight-errors", self.experiment.task)];
        words.extend((!names.is_empty()).then(|| format!("--rows {}", names.join(" "))));
        words.extend(self.files(true));
        words.join(" ")
    }

    /// Model, data and where results go, as words of a command.
    fn files(&self, sensitivity: bool) -> impl Iterator<Item = String> {
        let Experiment { task, max_len, .. } = self.experiment;
        let max_len = (max_len != task.default_max_len()).then(|| format!("--max-len {max_len}"));
        let names: Vec<&str> = self.train.iter().map(|source| source.name.as_str()).collect();
        let data = format!("--model {} --train {} --dev {}", self.model.name, names.join(" "), self.dev.name);
        let sensitivity = self.sensitivity.as_ref().filter(|_| sensitivity);
        let sensitivity = sensitivity.map(|source| format!("--sensitivity {}", source.name));
        let out = format!("--out {}", name_of(&self.experiment.out));
        max_len.into_iter().chain([data]).chain(sensitivity).chain([out])
    }
}

/// What quantization-aware training of a row decides beside its budget.
pub(super) fn quantization(row: &Row) -> QatSettings {
    let (compensate, distill) = (row.treatment.compensate(), row.treatment.distill());
    QatSettings { compensate, distillation: distill.then(Distillation::default), ..QatSettings::default() }
}

fn source(path: &Path) -> Result<Source> {
    let file = File::open(path).map_err(io(path, "read"))?;
    let sha256 = sha256(BufReader::new(file)).map_err(io(path, "read"))?;
    Ok(Source { name: name_of(path), sha256 })
}

fn name_of(path: &Path) -> String {
    path.file_name().map_or_else(|| ".".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// The plan with no more groups than a matrix has output neurons, so that small models can follow the paper's numbers.
fn with_fitting_groups(mut plan: Plan, shape: &ModelShape) -> Result<Plan> {
    for tensor in &shape.tensors {
        let neurons = match tensor.axis {
            Axis::Rows => tensor.rows,
            Axis::Columns => tensor.cols,
        };
        let own = plan.site_mut(tensor.site)?;
        if let GroupSpec::Count(count) = own.groups {
            own.groups = GroupSpec::Count(count.min(neurons));
        }
    }
    Ok(plan)
}

/// How many layers have the higher width in a plan with mixed precision: the share that the paper's plan for the task has
/// (Tab. 6 and 7; a user's own task takes the paper's of its kind), of this many layers, halves rounded up, and at least
/// one layer of each width. Half of the layers for widths that the paper has no plan for.
///
/// # Errors
/// None with the paper's plans as they are.
pub fn usual_high(method: &Method, task: Task, layers: usize) -> Result<usize> {
    let (low, high) = method.widths();
    let named = match task.kind() {
        Kind::Classify => Task::Sst2,
        Kind::Pair => Task::Mnli,
        Kind::Ner => Task::Conll03,
        Kind::Qa => Task::Squad,
    };
    let is_high = |width: Precision| width == high;
    let (wide, all) = match Preset::parse(&format!("{named}-{low}-{high}")) {
        Ok(preset) => {
            let plan = preset.plan(12)?;
            (plan.layers().iter().filter(|layer| is_high(layer.query.bits)).count(), plan.layers().len())
        }
        Err(_) => (1, 2),
    };
    let share = (2 * wide * layers + all) / (2 * all);
    Ok(share.clamp(1, layers.saturating_sub(1).max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_share_of_layers_is_scaled_to_the_model() {
        let high = |method: &str, task, layers| usual_high(&method.parse().unwrap(), task, layers).unwrap();
        // Tab. 6 and 7 themselves.
        let tasks = [Task::Sst2, Task::Mnli, Task::Conll03, Task::Squad];
        assert_eq!(tasks.map(|task| high("q-bert:2/3", task, 12)), [6, 4, 4, 6]);
        assert_eq!(tasks.map(|task| high("q-bert:2/4", task, 12)), [6, 5, 5, 5]);
        // Half the layers; 2.5 is 3, which is also the size that the paper prints.
        assert_eq!(tasks.map(|task| high("q-bert:2/3", task, 6)), [3, 2, 2, 3]);
        assert_eq!(tasks.map(|task| high("q-bert:2/4", task, 6)), [3, 3, 3, 3]);
        // A user's own tasks, the variants of a method, widths without a plan, and models of two layers.
        assert_eq!(high("q-bert:2/3", Task::Ner, 12), 4);
        assert_eq!(high("q-bert:2/3,attention=1/2", Task::Sst2, 12), 6);
        assert_eq!(high("q-bert:2/3-rev", Task::Mnli, 12), 4);
        assert_eq!(high("q-bert:3/8", Task::Sst2, 6), 3);
        assert_eq!(high("q-bert:2/3", Task::Mnli, 2), 1);
        assert_eq!(high("q-bert:2/3", Task::Mnli, 1), 1);
    }
}
