//! The directory of a training run: the best checkpoint, `train.jsonl`, `metrics.json` and, until the run is finished,
//! `resume.safetensors`.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use qbert_documents::{BeforeTraining, DevFigure, EpochRecord, TrainingMetrics};
use qbert_model::lock::DirectoryLock;
use qbert_model::{atomic, update_checkpoint};
use serde::{Deserialize, Serialize};

use super::{Outcome, Run, Trainer, TrainingPrecision};
use crate::agreement;
use crate::error::{Error, Result};
use crate::evaluate::{self, Evaluation};
use crate::qat::files;
use crate::state::{self, Position, difference};

const STATE: &str = "resume.safetensors";
const WEIGHTS: &str = "model.safetensors";
const METRICS: &str = "metrics.json";

fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Error + use<> {
    let path = path.to_owned();
    move |source| Error::Io { path, action, source }
}

/// The precision of the training in a directory, finished or not; `None` if there is none, or if its files cannot be read,
/// of which the trainer tells.
///
/// A run that says nothing about the precision takes what suits the CPU. This is for continuing it on another one.
pub fn recorded_precision(directory: &Path) -> Option<TrainingPrecision> {
    let of_state = || Some(state::read(&directory.join(STATE), &mut []).ok()?.settings);
    let of_metrics = || Some(qbert_documents::read::<TrainingMetrics>(&directory.join(METRICS)).ok()?.run);
    let run = of_state().or_else(of_metrics)?;
    // Older runs had no choice.
    let recorded = run.get("settings")?.get("precision").cloned();
    recorded.map_or(Some(TrainingPrecision::F32), |value| serde_json::from_value(value).ok())
}

/// What the rank that writes tells the others about the directory.
#[derive(Debug, Serialize, Deserialize)]
struct Opened {
    position: Position,
    finished: Option<Ended>,
}

/// How a finished run ended.
#[derive(Debug, Serialize, Deserialize)]
struct Ended {
    best: f64,
    best_epoch: usize,
    before: Option<BeforeTraining>,
}

impl Ended {
    fn of(outcome: &Outcome) -> Self {
        Self { best: outcome.best, best_epoch: outcome.best_epoch, before: outcome.before }
    }

    fn outcome(self, metric: &'static str, steps: usize) -> Outcome {
        let Self { best, best_epoch, before } = self;
        Outcome { metric, best, best_epoch, steps, before }
    }
}

impl Trainer<'_> {
    pub(super) fn state_path(&self) -> PathBuf {
        self.run.out.join(STATE)
    }

    fn log_path(&self) -> PathBuf {
        self.run.out.join("train.jsonl")
    }

    fn metrics_path(&self) -> PathBuf {
        self.run.out.join(METRICS)
    }

    /// Prepares the directory: empty for a new run, cut back to the saved step for a resumed one. It belongs to this run
    /// alone until the trainer is dropped.
    pub(super) fn open(&mut self, resume: bool) -> Result<()> {
        let compute = self.compute;
        let Some(ranks) = compute.ranks() else { return self.open_here(resume) };
        // bf16 products have other bits on some CPUs, and everybody must have the same weights.
        let kernels = match self.settings.precision {
            TrainingPrecision::F32 => String::new(),
            TrainingPrecision::Bf16 => compute.kernels().to_string(),
        };
        let identity = serde_json::json!({ "qbert": env!("CARGO_PKG_VERSION"), "kernels": kernels, "job": self.position.settings });
        agreement::check(ranks, &identity)?;
        if ranks.writes() {
            self.open_here(resume)?;
            let opened = Opened { position: self.position.clone(), finished: self.finished.as_ref().map(Ended::of) };
            agreement::tell(ranks, &opened);
        } else {
            let Opened { position, finished } = agreement::hear(ranks)?;
            let metric = self.run.dev.metric();
            self.finished = finished.map(|ended| ended.outcome(metric, self.schedule.total));
            self.position = position;
        }
        let mut ranges = self.student.as_ref().map_or(Vec::new(), |student| student.flat_ranges());
        let arrays =
            [self.weights.values_mut(), &mut self.optimizer.first, &mut self.optimizer.second, &mut ranges[..]];
        arrays.into_iter().for_each(|array| ranks.broadcast(array));
        self.optimizer.steps = self.position.steps;
        match &mut self.student {
            Some(student) if !ranks.writes() => student.restore(&ranges, self.position.activations.clone()),
            _ => Ok(()),
        }
    }

    /// The same for the process that writes.
    fn open_here(&mut self, resume: bool) -> Result<()> {
        let out = self.run.out;
        std::fs::create_dir_all(out).map_err(io(out, "create the directory"))?;
        self.lock = Some(DirectoryLock::exclusive(out)?);
        atomic::remove_leftovers(out)?;
        let (state, log) = (self.state_path(), self.log_path());
        if resume && state.exists() {
            self.resume(state)?;
            return self.cut_log();
        }
        let finished = out.join(WEIGHTS);
        if resume && finished.exists() {
            self.finished = Some(self.ended()?);
            return Ok(());
        }
        if finished.exists() || state.exists() {
            let path = if state.exists() { state } else { finished };
            return Err(Error::Resume { path, problem: "the directory already holds a run".to_owned() });
        }
        std::fs::write(&log, b"").map_err(io(&log, "create"))?;
        // From here to the end there is a state: a directory with weights but without one is a finished run.
        self.save()
    }

    /// A fault of the directory that only a new start can mend.
    fn spoiled(&self, path: PathBuf, problem: impl Into<String>) -> Error {
        Error::State { path, problem: problem.into(), delete: self.run.out.to_owned() }
    }

    /// Cuts the log back to the steps of the state. Refuses a log of other steps.
    fn cut_log(&self) -> Result<()> {
        let path = self.log_path();
        let log = match std::fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            found => found.map_err(io(&path, "read"))?,
        };
        let of_state = usize::try_from(self.position.log_bytes).ok().and_then(|length| log.get(..length));
        if of_state.map(crc32fast::hash) != Some(self.position.log_crc32) {
            let steps = self.position.steps;
            return Err(self.spoiled(path, format!("damaged: it is not the log of the {steps} steps that were saved")));
        }
        let file = OpenOptions::new().write(true).open(&path).map_err(io(&path, "open"))?;
        file.set_len(self.position.log_bytes).map_err(io(&path, "shorten"))
    }

    /// Refuses a directory in which a file of the kept model is gone: nothing would write it again.
    fn check_kept(&self) -> Result<()> {
        let of_student = self.student.iter().flat_map(|student| files::names(student.quantization()));
        let of_tokenizer = self.run.tokenizer.iter().map(|(name, _)| name);
        let mut names = [WEIGHTS, "config.json", METRICS].into_iter().chain(of_student).chain(of_tokenizer);
        match names.find(|name| !self.run.out.join(name).is_file()).map(|name| self.run.out.join(name)) {
            Some(path) => Err(self.spoiled(path, "the file is gone, and it is part of the best model so far")),
            None => Ok(()),
        }
    }

    /// Continues from the saved state.
    fn resume(&mut self, path: PathBuf) -> Result<()> {
        let mut ranges = self.student.as_ref().map_or(Vec::new(), |student| student.flat_ranges());
        let mut targets: Vec<(&str, &mut [f32])> = vec![
            ("weights", self.weights.values_mut()),
            ("first", &mut self.optimizer.first),
            ("second", &mut self.optimizer.second),
        ];
        if self.student.is_some() {
            targets.push(("ranges", &mut ranges));
        }
        let saved = state::read(&path, &mut targets)?;
        if saved.settings != self.position.settings {
            let difference = difference(&saved.settings, &self.position.settings);
            return Err(Error::Resume { path, problem: format!("the run was started differently: {difference}") });
        }
        self.optimizer.steps = saved.steps;
        if let Some(student) = &mut self.student {
            student.restore(&ranges, saved.activations.clone())?;
        }
        self.position = saved;
        if self.position.best.is_some() { self.check_kept() } else { Ok(()) }
    }

    /// How the finished run in the directory ended, if it was this one.
    fn ended(&self) -> Result<Outcome> {
        let path = self.metrics_path();
        let ended: TrainingMetrics = qbert_documents::read(&path)?;
        if ended.run != self.position.settings {
            let difference = difference(&ended.run, &self.position.settings);
            return Err(Error::Resume {
                path,
                problem: format!("the finished run was made differently: {difference}"),
            });
        }
        let (Some(best_epoch), true) = (ended.epoch, ended.dev.value.is_finite()) else {
            return Err(Error::Resume { path, problem: "`epoch` or `dev.value` is missing".to_owned() });
        };
        self.check_complete()?;
        self.check_kept()?;
        let metric = self.run.dev.metric();
        Ok(Outcome { metric, best: ended.dev.value, best_epoch, steps: self.schedule.total, before: ended.before })
    }

    /// Refuses weights without a state whose log does not reach the last epoch: they are those of an unfinished run.
    fn check_complete(&self) -> Result<()> {
        let path = self.log_path();
        let log = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(self.spoiled(path, "the file is gone: nothing says whether the run is finished"));
            }
            found => found.map_err(io(&path, "read"))?,
        };
        let last = log.lines().last().and_then(|line| serde_json::from_str::<EpochRecord>(line).ok());
        let epochs = self.schedule.total.div_ceil(self.per_epoch);
        if last.is_some_and(|record| record.epoch == epochs) {
            return Ok(());
        }
        let problem = format!("the file is gone, but {} ends before epoch {epochs}", path.display());
        Err(self.spoiled(self.state_path(), problem))
    }

    /// Refuses a loss or gradient that is not a finite number.
    pub(super) fn finite(&self, step: usize, what: &'static str, value: f64) -> Result<()> {
        if value.is_finite() {
            return Ok(());
        }
        let candidates = [self.state_path(), self.run.out.join(WEIGHTS)];
        let last_good = candidates.into_iter().find(|path| path.exists());
        Err(Error::Diverged { step, what, value, last_good })
    }

    /// Appends a line to the log.
    pub(super) fn log(&mut self, record: &impl Serialize) -> Result<()> {
        if !self.compute.writes() {
            return Ok(());
        }
        let path = self.log_path();
        let line = serde_json::to_string(record).unwrap_or_default() + "\n";
        let appended =
            OpenOptions::new().append(true).create(true).open(&path).and_then(|mut f| f.write_all(line.as_bytes()));
        appended.map_err(|source| Error::Io { path, action: "append to", source })?;
        self.position.log_bytes += line.len() as u64;
        let mut sum = crc32fast::Hasher::new_with_initial(self.position.log_crc32);
        sum.update(line.as_bytes());
        self.position.log_crc32 = sum.finalize();
        Ok(())
    }

    /// Logs the dev metric after an epoch, among the steps.
    pub(super) fn log_evaluation(&mut self, epoch: usize, evaluation: &Evaluation) -> Result<()> {
        let dev = DevFigure { metric: evaluation.metric.to_owned(), value: evaluation.value };
        self.log(&EpochRecord { epoch, dev })
    }

    /// Saves the state.
    pub(super) fn save(&mut self) -> Result<()> {
        if !self.compute.writes() {
            return Ok(());
        }
        // After a power failure the log must have what the state says.
        let log = self.log_path();
        std::fs::File::open(&log).and_then(|file| file.sync_all()).map_err(io(&log, "flush to the disk"))?;
        let ranges;
        let (first, second) = (&self.optimizer.first[..], &self.optimizer.second[..]);
        let mut arrays = vec![("weights", self.weights.values()), ("first", first), ("second", second)];
        if let Some(student) = &self.student {
            ranges = student.flat_ranges();
            self.position.activations = student.learned();
            arrays.push(("ranges", &ranges));
        }
        state::write(&self.state_path(), &self.position, &arrays)
    }

    /// Writes the model as it is now, with its metrics.
    pub(super) fn write_kept(&self, epoch: usize, evaluation: &Evaluation) -> Result<()> {
        if !self.compute.writes() {
            return Ok(());
        }
        let Run { bert, labels, tokenizer, out, .. } = &self.run;
        if let Some(student) = &self.student {
            files::write(out, student.quantization())?;
        }
        update_checkpoint(out, bert.config(), &self.weights, labels.names(), tokenizer)?;
        let metrics = TrainingMetrics {
            dev: evaluate::dev_metrics(evaluation),
            epoch: Some(epoch),
            run: self.position.settings.clone(),
            before: self.position.before,
        };
        let text = qbert_documents::to_json(&metrics);
        atomic::write_file(&self.metrics_path(), |writer| writer.write_all(text.as_bytes()))?;
        Ok(())
    }
}
