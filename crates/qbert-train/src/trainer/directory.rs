//! The directory of a training run: the best checkpoint, `train.jsonl`, `metrics.json` and, until the run is finished,
//! `resume.safetensors`.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use qbert_documents::{DevFigure, EpochRecord, TrainingMetrics};
use qbert_model::{atomic, update_checkpoint};
use serde::Serialize;

use super::{Outcome, Run, Trainer};
use crate::error::{Error, Result};
use crate::evaluate::{self, Evaluation};
use crate::qat::files;
use crate::state::{self, difference};

impl Trainer<'_> {
    pub(super) fn state_path(&self) -> PathBuf {
        self.run.out.join("resume.safetensors")
    }

    fn log_path(&self) -> PathBuf {
        self.run.out.join("train.jsonl")
    }

    fn metrics_path(&self) -> PathBuf {
        self.run.out.join("metrics.json")
    }

    /// Prepares the directory: empty for a new run, cut back to the saved step for a resumed one.
    pub(super) fn open(&mut self, resume: bool) -> Result<()> {
        let out = self.run.out;
        let io = |path: &Path, action| {
            let path = path.to_owned();
            move |source| Error::Io { path, action, source }
        };
        std::fs::create_dir_all(out).map_err(io(out, "create the directory"))?;
        atomic::remove_leftovers(out)?;
        let (state, log) = (self.state_path(), self.log_path());
        if resume && state.exists() {
            self.resume(state)?;
            let file =
                OpenOptions::new().write(true).create(true).truncate(false).open(&log).map_err(io(&log, "open"))?;
            return file.set_len(self.position.log_bytes).map_err(io(&log, "shorten"));
        }
        let finished = out.join("model.safetensors");
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
        Ok(())
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
        let metric = self.run.dev.metric();
        Ok(Outcome { metric, best: ended.dev.value, best_epoch, steps: self.schedule.total, before: ended.before })
    }

    /// Refuses a loss or gradient that is not a finite number.
    pub(super) fn finite(&self, step: usize, what: &'static str, value: f64) -> Result<()> {
        if value.is_finite() {
            return Ok(());
        }
        let candidates = [self.state_path(), self.run.out.join("model.safetensors")];
        let last_good = candidates.into_iter().find(|path| path.exists());
        Err(Error::Diverged { step, what, value, last_good })
    }

    /// Appends a line to the log.
    pub(super) fn log(&mut self, record: &impl Serialize) -> Result<()> {
        let path = self.log_path();
        let line = serde_json::to_string(record).unwrap_or_default() + "\n";
        let appended =
            OpenOptions::new().append(true).create(true).open(&path).and_then(|mut f| f.write_all(line.as_bytes()));
        appended.map_err(|source| Error::Io { path, action: "append to", source })?;
        self.position.log_bytes += line.len() as u64;
        Ok(())
    }

    /// Logs the dev metric after an epoch, among the steps.
    pub(super) fn log_evaluation(&mut self, epoch: usize, evaluation: &Evaluation) -> Result<()> {
        let dev = DevFigure { metric: evaluation.metric.to_owned(), value: evaluation.value };
        self.log(&EpochRecord { epoch, dev })
    }

    /// Saves the state.
    pub(super) fn save(&mut self) -> Result<()> {
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
