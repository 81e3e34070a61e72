//! Makes a row: skips one that is done, resumes one that was interrupted, and writes the result last.
//!
//! An unfinished row is a directory `NAME.partial`, in which quantization-aware training runs and resumes. Evaluations are
//! kept there too, so an interrupted row ends with the same result. Several processes may share the rows: each locks the
//! row it is making.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use qbert_documents::{LogRecord, StepRecord, TrainingMetrics};
use qbert_kernels::Compute;
use qbert_quant::RangeMethod;
use qbert_train::evaluate::Evaluation;
use qbert_train::qat::method::Method;
use qbert_train::qat::run::{Judging, Quantize, full_precision, quantize_with};
use qbert_train::trainer::Watch;

use super::result::{Compression, Measured, Parts, RowResult, RowSettings, Sizes, Training, io, write_json};
use super::rows::Row;
use super::study::{State, Study, quantization};
use qbert_pipeline::comparison::{Answered, compare};
use qbert_pipeline::packing::{FILE_NAME, Packing};
use qbert_pipeline::{Error, ErrorKind, Result};

/// The outcome of making a row.
#[derive(Debug, Clone)]
pub enum Ran {
    /// It was already done.
    Before(Box<RowResult>),
    /// It is done now.
    Now(Box<RowResult>),
    /// Another process is making it.
    Elsewhere,
}

/// The evaluations of a row so far, by epoch.
const EVALUATIONS: &str = "evaluations.json";
/// The settings of a row.
const SETTINGS: &str = "row.json";
/// Held by the process that makes the row.
const LOCK: &str = "lock";

impl Study {
    /// The full-precision model's row, measured on first use; all other rows are compared with it.
    ///
    /// # Errors
    /// A problem with model or data; a row that was made with other settings.
    pub fn baseline(&self, compute: &Compute, progress: impl FnMut(usize, usize)) -> Result<Ran> {
        let row = Row::baseline()?;
        if let Some(done) = self.done(&row)? {
            return Ok(Ran::Before(done));
        }
        let scratch = self.scratch(&row);
        let lock = lock_file(&scratch)?;
        // Every row needs it, so other processes wait instead of measuring it again. A file system without locks is
        // taken to have no other process.
        let _ = lock.lock();
        if let Some(done) = self.done(&row)? {
            remove(&scratch)?;
            return Ok(Ran::Before(done));
        }
        let job = self.job(&row, &scratch);
        let evaluation = full_precision(&job, self.experiment.max_dev, compute, progress)?;
        let full: Method = "full".parse()?;
        let plan = full.plan(self.layers, &[], RangeMethod::MinMax)?;
        let packing = Packing::by_plan(&self.experiment.model, plan, None, compute)?;
        let full_precision = Measured::from(&evaluation);
        let made = Made { full_precision, evaluations: BTreeMap::new(), training: None, divergence: None };
        let result = self.finish(&row, made, &packing)?;
        remove(&scratch)?;
        Ok(Ran::Now(result))
    }

    /// Makes a row and compares it with the baseline; `watch` sees every step.
    ///
    /// # Errors
    /// A problem with model, data or budget; a row that was made, or begun, with other settings.
    pub fn run(&self, row: &Row, baseline: &RowResult, compute: &Compute, watch: &mut dyn Watch) -> Result<Ran> {
        if let Some(done) = self.done(row)? {
            return Ok(Ran::Before(done));
        }
        let scratch = self.scratch(row);
        let lock = lock_file(&scratch)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(Ran::Elsewhere),
            // Not every file system has locks; then one process makes all rows.
            Err(TryLockError::Error(_)) => {}
        }
        // Another process may have finished the row just before it released the lock.
        if let Some(done) = self.done(row)? {
            remove(&scratch)?;
            return Ok(Ran::Before(done));
        }
        self.begin(row, &scratch)?;
        let evaluations = self.train(row, baseline, compute, watch, &scratch)?;
        let packing = Packing::quantized(&scratch)?.for_task(self.experiment.data.task.name());
        let training = Some(training(&scratch)?);
        let divergence = self.divergence(&scratch, compute)?;
        if self.experiment.keep {
            packing.write(&scratch.join(FILE_NAME))?;
            let kept = self.directory().join(row.id());
            // Before the result is written: it must not end up next to the model of an earlier row of this name.
            remove(&kept)?;
            std::fs::rename(&scratch, &kept).map_err(io(&kept, "move a directory to"))?;
        }
        let made = Made { full_precision: baseline.measured_full(), evaluations, training, divergence };
        let result = self.finish(row, made, &packing)?;
        remove(&scratch)?;
        Ok(Ran::Now(result))
    }

    /// Checks that a row can be made or is done, before anything is computed.
    ///
    /// # Errors
    /// A row that was made with other settings, unless such rows are to be made again; a plan that cannot be made.
    pub fn check(&self, row: &Row) -> Result<()> {
        self.plan(row)?;
        self.done(row).map(|_| ())
    }

    /// The result of a row that is done; an error if it was made differently, unless such rows are to be made again.
    fn done(&self, row: &Row) -> Result<Option<Box<RowResult>>> {
        match self.state(row)? {
            State::Done(result) => Ok(Some(result)),
            State::Differs(difference) if !self.experiment.redo => {
                Err(made_differently(&self.result_path(row), &difference))
            }
            _ => Ok(None),
        }
    }

    /// Checks that the scratch directory's content was made with the same settings.
    fn begin(&self, row: &Row, scratch: &Path) -> Result<()> {
        let (path, settings) = (scratch.join(SETTINGS), self.settings(row)?);
        if path.exists() {
            let bytes = std::fs::read(&path).map_err(io(&path, "read"))?;
            let begun: Option<RowSettings> = serde_json::from_slice(&bytes).ok();
            let difference = match begun {
                Some(begun) => begun.difference(&settings),
                None => Some("it cannot be read".to_owned()),
            };
            match difference {
                None => return Ok(()),
                Some(difference) if !self.experiment.redo => return Err(made_differently(&path, &difference)),
                Some(_) => {}
            }
        }
        // Anything here without settings, or with others, does not belong to this row.
        clear(scratch)?;
        write_json(&path, &settings)
    }

    /// Trains to the end from the row's saved state, and returns the evaluations.
    fn train(
        &self,
        row: &Row,
        baseline: &RowResult,
        compute: &Compute,
        watch: &mut dyn Watch,
        scratch: &Path,
    ) -> Result<BTreeMap<usize, Measured>> {
        let mut recorder = Recorder::open(scratch, watch)?;
        // Weights without a resume state: training is finished, only the result is missing.
        let finished = scratch.join("model.safetensors").exists() && !scratch.join("resume.safetensors").exists();
        if !finished {
            let job = Quantize { job: self.job(row, scratch), plan: self.plan(row)?, settings: quantization(row) };
            let full_precision = baseline.full_precision.get(&baseline.metric).copied();
            // The figures are those of the last epoch, so that epoch's model must be kept.
            let judging = Judging { max_dev: self.experiment.max_dev, full_precision, keep_last: true };
            quantize_with(&job, judging, compute, &mut recorder)?;
        }
        recorder.finish()
    }

    /// The divergence of a quantized checkpoint's answers from the model's own; none on a part of the dev set.
    fn divergence(&self, quantized: &Path, compute: &Compute) -> Result<Option<f64>> {
        if self.experiment.max_dev.is_some() {
            return Ok(None);
        }
        let source = self.experiment.data.with_files([&self.experiment.dev]);
        let answers = |directory: &Path| Answered::by_checkpoint(directory, &source, compute, |_, _| {});
        Ok(compare(&answers(&self.experiment.model)?, &answers(quantized)?, 0)?.divergence)
    }

    /// Writes the result of a row.
    fn finish(&self, row: &Row, made: Made, packing: &Packing) -> Result<Box<RowResult>> {
        let Made { full_precision, evaluations, training, divergence } = made;
        let (paper_mib, [encoder, total]) = self.paper_sizes(row)?;
        let (file_bytes, f32_bytes) = (packing.bytes(&row.id())?.len() as u64, 4 * self.parameters as u64);
        let compression = Compression { encoder, total, file: f32_bytes as f64 / file_bytes as f64 };
        let result = RowResult::from(Parts {
            id: row.id(),
            command: self.command(row),
            settings: self.settings(row)?,
            sensitivity: self.sensitivity.clone().filter(|_| row.method.is_mixed()),
            training,
            full_precision,
            evaluations,
            divergence,
            sizes: Sizes { paper_mib, file_bytes, f32_bytes, compression },
        });
        result.write(&self.result_path(row))?;
        Ok(Box::new(result))
    }
}

/// What was measured of a row.
struct Made {
    full_precision: Measured,
    /// By epoch; 0 is before training.
    evaluations: BTreeMap<usize, Measured>,
    training: Option<Training>,
    divergence: Option<f64>,
}

fn made_differently(path: &Path, difference: &str) -> Error {
    let message = format!("{}: the row was made with other settings: {difference}", path.display());
    let hint = "use the same settings or another --out, or make such rows again with --redo";
    Error::new(ErrorKind::BadInput, message, hint.to_owned())
}

/// Opens the lock file of a scratch directory; creates both if needed.
fn lock_file(scratch: &Path) -> Result<File> {
    std::fs::create_dir_all(scratch).map_err(io(scratch, "create the directory"))?;
    File::create(scratch.join(LOCK)).map_err(io(scratch, "create a file in"))
}

/// Removes a directory; one that is already gone is fine.
fn remove(directory: &Path) -> Result<()> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io(directory, "remove")(error)),
        _ => Ok(()),
    }
}

/// Empties a scratch directory except for the lock. The settings go last, to identify whatever is still left.
fn clear(scratch: &Path) -> Result<()> {
    let entries = std::fs::read_dir(scratch).map_err(io(scratch, "read"))?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()).map_err(io(scratch, "read")));
    let mut paths = paths.collect::<Result<Vec<PathBuf>>>()?;
    paths.retain(|path| path.file_name().is_some_and(|name| name != LOCK));
    paths.sort_by_key(|path| path.file_name().is_some_and(|name| name == SETTINGS));
    for path in paths {
        let removed = if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        removed.map_err(io(&path, "remove"))?;
    }
    Ok(())
}

/// The extent of training, from the files it wrote.
fn training(scratch: &Path) -> Result<Training> {
    let (log, metrics) = (scratch.join("train.jsonl"), scratch.join("metrics.json"));
    let text = std::fs::read_to_string(&log).map_err(io(&log, "read"))?;
    let records = LogRecord::parse_all(&text, &log.display().to_string())?;
    let last =
        records.into_iter().rev().find_map(|record| if let LogRecord::Step(step) = record { Some(step) } else { None });
    let (steps, epochs) = last.map_or((0, 0.0), |record| (record.step, record.epoch));
    let written: TrainingMetrics = qbert_documents::read(&metrics)?;
    let sequences = written.training_sequences().ok_or_else(|| {
        let hint = format!("delete {}: its row is then made again", scratch.display());
        Error::new(ErrorKind::BadInput, format!("{}: `run.run.train.sequences` is missing", metrics.display()), hint)
    })?;
    Ok(Training { steps, epochs, sequences })
}

/// Forwards events and saves every evaluation: a resumed run does not repeat them.
struct Recorder<'a> {
    path: PathBuf,
    evaluations: BTreeMap<usize, Measured>,
    watch: &'a mut dyn Watch,
    failed: Option<Error>,
}

impl<'a> Recorder<'a> {
    fn open(scratch: &Path, watch: &'a mut dyn Watch) -> Result<Self> {
        let path = scratch.join(EVALUATIONS);
        let mut evaluations = BTreeMap::new();
        if path.exists() {
            let bytes = std::fs::read(&path).map_err(io(&path, "read"))?;
            evaluations = serde_json::from_slice(&bytes).map_err(|error| {
                let hint = format!("delete {}: its row is then made again", scratch.display());
                Error::new(ErrorKind::BadInput, format!("{}: damaged: {error}", path.display()), hint)
            })?;
        }
        Ok(Self { path, evaluations, watch, failed: None })
    }

    fn finish(self) -> Result<BTreeMap<usize, Measured>> {
        self.failed.map_or(Ok(self.evaluations), Err)
    }
}

impl Watch for Recorder<'_> {
    fn step(&mut self, record: &StepRecord, total: usize) {
        self.watch.step(record, total);
    }

    fn full_precision(&mut self, evaluation: &Evaluation) {
        self.watch.full_precision(evaluation);
    }

    fn evaluated(&mut self, epoch: usize, evaluation: &Evaluation, best: bool) {
        self.evaluations.insert(epoch, evaluation.into());
        // Training saves its state after this call, so no evaluation is lost.
        if let Err(error) = write_json(&self.path, &self.evaluations) {
            self.failed.get_or_insert(error);
        }
        self.watch.evaluated(epoch, evaluation, best);
    }

    fn stop(&mut self) -> bool {
        self.watch.stop()
    }
}
