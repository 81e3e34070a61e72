//! Making a row: skipped when it is done, continued when it was interrupted, its result written last.
//!
//! A row in the making is the directory `NAME.partial`, which quantization-aware training owns and resumes in. What it
//! measured is kept beside its state, so that a row that was interrupted ends with the same result. Several processes may
//! work on the same rows: each holds a lock on the one it makes.

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
use qbert_pipeline::packing::{FILE_NAME, Packing};
use qbert_pipeline::{Error, ErrorKind, Result};

/// How a row came out.
#[derive(Debug, Clone)]
pub enum Ran {
    /// It was done before.
    Before(Box<RowResult>),
    /// It is done now.
    Now(Box<RowResult>),
    /// Another process is making it.
    Elsewhere,
}

/// What a row measured so far, by epoch.
const EVALUATIONS: &str = "evaluations.json";
/// What a row is made from.
const SETTINGS: &str = "row.json";
/// Held by the process that makes the row.
const LOCK: &str = "lock";

impl Study {
    /// The full-precision model's row, measured if it is not there yet; every other row is set beside it.
    ///
    /// # Errors
    /// Whatever is wrong with model or data; a row that was made with other settings.
    pub fn baseline(&self, compute: &Compute, progress: impl FnMut(usize, usize)) -> Result<Ran> {
        let row = Row::baseline()?;
        if let Some(done) = self.done(&row)? {
            return Ok(Ran::Before(done));
        }
        let scratch = self.scratch(&row);
        let lock = lock_file(&scratch)?;
        // Every row needs it, so other processes wait rather than measure it, too.
        // Where the file system cannot lock, there is nobody to wait for.
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
        let result = self.finish(&row, Measured::from(&evaluation), BTreeMap::new(), None, &packing)?;
        remove(&scratch)?;
        Ok(Ran::Now(result))
    }

    /// Makes a row, judged against the baseline; `watch` sees every step.
    ///
    /// # Errors
    /// Whatever is wrong with model, data or budget; a row that was made, or begun, with other settings.
    pub fn run(&self, row: &Row, baseline: &RowResult, compute: &Compute, watch: &mut dyn Watch) -> Result<Ran> {
        if let Some(done) = self.done(row)? {
            return Ok(Ran::Before(done));
        }
        let scratch = self.scratch(row);
        let lock = lock_file(&scratch)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(Ran::Elsewhere),
            // Not every file system can lock; then there is nobody to share the rows with.
            Err(TryLockError::Error(_)) => {}
        }
        // Another process may have been done just before the lock was free.
        if let Some(done) = self.done(row)? {
            remove(&scratch)?;
            return Ok(Ran::Before(done));
        }
        self.begin(row, &scratch)?;
        let evaluations = self.train(row, baseline, (compute, watch), &scratch)?;
        let packing = Packing::quantized(&scratch)?.for_task(self.experiment.data.task.name());
        let training = Some(training(&scratch)?);
        if self.experiment.keep {
            packing.write(&scratch.join(FILE_NAME))?;
            let kept = self.directory().join(row.id());
            // Before the result, which must not stand beside the model of an earlier row of this name.
            remove(&kept)?;
            std::fs::rename(&scratch, &kept).map_err(io(&kept, "move a directory to"))?;
        }
        let result = self.finish(row, baseline.measured_full(), evaluations, training, &packing)?;
        remove(&scratch)?;
        Ok(Ran::Now(result))
    }

    /// Whether a row can be made, or is there: said before anything is computed.
    ///
    /// # Errors
    /// A row that was made with other settings and is not to be made again; one whose plan cannot be made.
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

    /// Makes sure that what lies in the scratch directory was begun with the same settings.
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
        // Whatever lies here without its settings, or with others, is not of this row.
        clear(scratch)?;
        write_json(&path, &settings)
    }

    /// Trains to the end, from wherever the row is. Returns what was measured.
    fn train(
        &self,
        row: &Row,
        baseline: &RowResult,
        (compute, watch): (&Compute, &mut dyn Watch),
        scratch: &Path,
    ) -> Result<BTreeMap<usize, Measured>> {
        let mut recorder = Recorder::open(scratch, watch)?;
        // Weights without a state: training is finished, and only the result is missing.
        let finished = scratch.join("model.safetensors").exists() && !scratch.join("resume.safetensors").exists();
        if !finished {
            let job = Quantize { job: self.job(row, scratch), plan: self.plan(row)?, settings: quantization(row) };
            let full_precision = baseline.full_precision.get(&baseline.metric).copied();
            // Figures are those of the last epoch, so the model that is kept must be.
            let judging = Judging { max_dev: self.experiment.max_dev, full_precision, keep_last: true };
            quantize_with(&job, judging, compute, &mut recorder)?;
        }
        recorder.finish()
    }

    /// Writes the result of a row.
    fn finish(
        &self,
        row: &Row,
        full_precision: Measured,
        evaluations: BTreeMap<usize, Measured>,
        training: Option<Training>,
        packing: &Packing,
    ) -> Result<Box<RowResult>> {
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
            sizes: Sizes { paper_mib, file_bytes, f32_bytes, compression },
        });
        result.write(&self.result_path(row))?;
        Ok(Box::new(result))
    }
}

fn made_differently(path: &Path, difference: &str) -> Error {
    let message = format!("{}: the row was made with other settings: {difference}", path.display());
    let hint = "give the same settings or another --out, or have such rows made again with --redo";
    Error::new(ErrorKind::BadInput, message, hint.to_owned())
}

/// The file in a scratch directory that the process which makes the row locks; both are made if they are not there.
fn lock_file(scratch: &Path) -> Result<File> {
    std::fs::create_dir_all(scratch).map_err(io(scratch, "create the directory"))?;
    File::create(scratch.join(LOCK)).map_err(io(scratch, "create a file in"))
}

/// Removes a directory, unless it is not there or another process was faster.
fn remove(directory: &Path) -> Result<()> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io(directory, "remove")(error)),
        _ => Ok(()),
    }
}

/// Empties a scratch directory, but for the lock. The settings go last: as long as something is left they say of what.
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

/// What training came to, from the files it wrote.
fn training(scratch: &Path) -> Result<Training> {
    let (log, metrics) = (scratch.join("train.jsonl"), scratch.join("metrics.json"));
    let text = std::fs::read_to_string(&log).map_err(io(&log, "read"))?;
    let records = LogRecord::parse_all(&text, &log.display().to_string())?;
    let last =
        records.into_iter().rev().find_map(|record| if let LogRecord::Step(step) = record { Some(step) } else { None });
    let (steps, epochs) = last.map_or((0, 0.0), |record| (record.step, record.epoch));
    let written: TrainingMetrics = qbert_documents::read(&metrics)?;
    let sequences = written.training_sequences().ok_or_else(|| {
        let hint = format!("remove {}; its row is then made again", scratch.display());
        Error::new(ErrorKind::BadInput, format!("{}: `run.run.train.sequences` is missing", metrics.display()), hint)
    })?;
    Ok(Training { steps, epochs, sequences })
}

/// Passes on what happens, and keeps every evaluation on disk: a run that is resumed does not repeat them.
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
                let hint = format!("remove {}; its row is then made again", scratch.display());
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
        // Training saves its state after this: what it will not measure again is on disk by then.
        if let Err(error) = write_json(&self.path, &self.evaluations) {
            self.failed.get_or_insert(error);
        }
        self.watch.evaluated(epoch, evaluation, best);
    }

    fn stop(&mut self) -> bool {
        self.watch.stop()
    }
}
