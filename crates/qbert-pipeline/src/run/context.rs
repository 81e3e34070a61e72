//! What all stages share: the job, the record, results that several stages need, and how a stage is skipped, repeated or
//! continued.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use qbert_kernels::Compute;
use qbert_model::atomic;
use qbert_model::lock::DirectoryLock;
use qbert_train::evaluate::Evaluated;
use serde_json::Value;

use super::check::Checked;
use super::record::{Record, StageStatus};
use super::terms::Terms;
use super::{CHECKPOINT, Event, FINETUNED, Job, OLD, PLAN, RECORD, Stage, TIMES, Watch};
use crate::error::{Error, ErrorKind, Result};
use crate::hashes::{self, KnownHashes};
use crate::packing::FILE_NAME;
use crate::planning::search::FILE as SEARCH;

/// A run in progress.
pub(super) struct Context<'a> {
    pub(super) job: &'a Job,
    pub(super) compute: &'a Compute,
    /// For what all ranks compute.
    pub(super) together: &'a Compute,
    pub(super) watch: &'a mut dyn Watch,
    pub(super) checked: Checked,
    record: Record,
    model_hashes: KnownHashes,
    full_precision: Option<Evaluated>,
    /// Held as long as the run lives: two of them in one directory would undo each other's work.
    _lock: DirectoryLock,
}

/// A stage that should be done.
pub(super) struct Step<'a> {
    pub(super) stage: Stage,
    /// Everything that decides its results, beyond model, task and data of the run.
    pub(super) inputs: Value,
    /// What moves to `old/` before the stage is repeated with other inputs.
    pub(super) replaces: &'a [&'a str],
}

impl<'a> Context<'a> {
    /// Takes over the job's directory: an empty one, or one that holds this run.
    pub(super) fn open(
        job: &'a Job,
        (compute, together): (&'a Compute, &'a Compute),
        watch: &'a mut dyn Watch,
        checked: Checked,
    ) -> Result<Self> {
        let out = &job.out;
        let failed = |action| {
            let path = out.clone();
            move |source| Error::from(qbert_model::Error::Io { path, action, source })
        };
        refuse_foreign(out)?;
        std::fs::create_dir_all(out).map_err(failed("create the directory"))?;
        // The record is read under the lock: a run that ends meanwhile writes it last.
        let lock = DirectoryLock::exclusive(out)?;
        let record = match Record::read(out)? {
            Some(record) => same_run(job, record, &checked.identity)?,
            None => Record::new(checked.identity.clone()),
        };
        atomic::remove_leftovers(out)?;
        let mut model_hashes = KnownHashes::default();
        model_hashes.insert(&job.directory, &checked.model_hash);
        let full_precision = None;
        let context =
            Self { job, compute, together, watch, checked, record, model_hashes, full_precision, _lock: lock };
        context.record.write(out)?;
        Ok(context)
    }

    /// The checkpoint with the task's head.
    pub(super) fn model(&self) -> PathBuf {
        if self.finetunes() { self.job.path(FINETUNED) } else { self.job.directory.clone() }
    }

    /// What the card says about the use of the model.
    pub(super) fn terms(&self) -> Terms {
        Terms::new(self.job.license.as_deref(), &self.job.languages, &self.job.directory)
    }

    /// The hash of the checkpoint with the task's head.
    pub(super) fn model_hash(&mut self) -> Result<String> {
        self.model_hashes.of(&self.model())
    }

    /// The hash of the quantized checkpoint.
    pub(super) fn checkpoint_hash(&mut self) -> Result<String> {
        self.model_hashes.of(&self.job.path(CHECKPOINT))
    }

    /// What the model reaches in full precision, evaluated once for all stages.
    pub(super) fn full_precision(&mut self) -> Result<&Evaluated> {
        let known = match self.full_precision.take() {
            Some(known) => known,
            None => super::evaluate::full_precision(self)?,
        };
        Ok(self.full_precision.insert(known))
    }

    /// Whether the run fine-tunes.
    pub(super) fn finetunes(&self) -> bool {
        self.job.always_finetune || self.checked.headless.is_some()
    }

    /// Does a stage unless it is done. `work` starts, or continues from the state it left. It returns the names of all
    /// files it wrote: if one of them is deleted later, the stage is repeated.
    pub(super) fn perform(
        &mut self,
        step: Step<'_>,
        work: impl FnOnce(&mut Self) -> Result<Vec<String>>,
    ) -> Result<()> {
        let Step { stage, inputs, replaces } = step;
        if self.watch.stop() {
            return Err(self.stopped());
        }
        let out = &self.job.out;
        let why = match self.record.status(out, stage, &inputs)? {
            StageStatus::Done { edited } => {
                let how = if edited { "changed by hand since: used as it is" } else { "there already" };
                self.watch.stage(stage, Event::Skipped(how));
                return Ok(());
            }
            StageStatus::Begun => None,
            StageStatus::New => {
                put_away(out, replaces)?;
                None
            }
            StageStatus::Missing(name) => {
                put_away(out, replaces)?;
                Some(format!("{name} is gone"))
            }
            StageStatus::Other(difference) => {
                put_away(out, replaces)?;
                Some(in_file_names(difference))
            }
        };
        for name in replaces {
            self.model_hashes.forget(&self.job.path(name));
        }
        // Only now: what was there belongs to other inputs until it is out of the way.
        self.record.begin(stage, inputs);
        self.record.write(out)?;
        self.watch.stage(stage, Event::Begins(why.as_deref()));
        let begun = Instant::now();
        let results =
            work(self).map_err(|error| if error.kind() == ErrorKind::Interrupted { self.stopped() } else { error })?;
        let mut results = hashes::files(&self.job.out, &results)?;
        if let Some(hash) = results.get_mut(SEARCH) {
            // It goes on to change when the plan has been trained.
            hash.clear();
        }
        self.record.finish(stage, results);
        self.record.write(&self.job.out)?;
        self.log(stage, begun.elapsed().as_secs_f64());
        self.watch.stage(stage, Event::Done);
        Ok(())
    }

    /// Moves results that would be out of date into `old/`.
    pub(super) fn put_away(&self, names: &[&str]) -> Result<()> {
        put_away(&self.job.out, names)
    }

    /// Reports that a stage is not needed.
    pub(super) fn pass_over(&mut self, stage: Stage, why: &str) {
        self.watch.stage(stage, Event::Skipped(why));
    }

    pub(super) fn record(&self) -> &Record {
        &self.record
    }

    fn stopped(&self) -> Error {
        let message = format!("stopped as asked; {} keeps what is done", self.job.out.display());
        Error::new(ErrorKind::Interrupted, message, "the same command goes on from there".to_owned())
    }

    /// Times are for people; a line that cannot be written is no reason to stop.
    fn log(&self, stage: Stage, seconds: f64) {
        let threads = self.compute.threads().count();
        let line = serde_json::json!({
            "stage": stage, "seconds": (seconds * 10.0).round() / 10.0, "threads": threads,
        });
        let file = std::fs::OpenOptions::new().append(true).create(true).open(self.job.path(TIMES));
        let _ = file.and_then(|mut file| writeln!(file, "{line}"));
    }
}

/// A difference of inputs, with the names that users know their files by.
fn in_file_names(difference: String) -> String {
    let names = [("`plan`", PLAN), ("`checkpoint`", CHECKPOINT), ("`packed`", FILE_NAME)];
    names.into_iter().fold(difference, |text, (key, name)| text.replace(key, &format!("`{name}`")))
}

fn same_run(job: &Job, record: Record, identity: &Value) -> Result<Record> {
    if record.run == *identity {
        return Ok(record);
    }
    let differs = |key: &str| record.run.get(key) != identity.get(key);
    let shown = |path: &Path| path.display().to_string();
    let difference = if differs("task") {
        qbert_train::state::difference(&record.run, identity)
    } else if differs("model") {
        format!("of another model than {}, or that model has changed", job.model)
    } else if differs("train") {
        let files: Vec<String> = job.data.files.iter().map(|path| shown(path)).collect();
        format!("on other training data than {}, or that has changed", files.join(", "))
    } else if differs("dev") {
        format!("judged by other data than {}, or that has changed", shown(&job.dev))
    } else {
        qbert_train::state::difference(&record.run, identity)
    };
    let message = format!("{}: this directory holds another run: {difference}", shown(&job.out));
    let hint = "give another `run.out`; settings of the stages may change, model, task and data may not".to_owned();
    Err(Error::new(ErrorKind::BadInput, message, hint))
}

/// A directory without the record of a run must hold nothing that could be lost.
fn refuse_foreign(out: &Path) -> Result<()> {
    if !out.exists() || out.join(RECORD).exists() {
        return Ok(());
    }
    let failed = |source| {
        let (path, action) = (out.to_owned(), "list the directory");
        Error::from(qbert_model::Error::Io { path, action, source })
    };
    let hint = || "give a new directory as `run.out`".to_owned();
    if !out.is_dir() {
        return Err(Error::new(ErrorKind::BadInput, format!("{}: this is a file", out.display()), hint()));
    }
    let mut names = Vec::new();
    for entry in std::fs::read_dir(out).map_err(failed)? {
        names.push(entry.map_err(failed)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    match names.iter().find(|name| !name.starts_with('.')) {
        None => Ok(()),
        Some(name) => {
            let message = format!("{}: it holds `{name}` but no {RECORD}: not the directory of a run", out.display());
            Err(Error::new(ErrorKind::BadInput, message, hint()))
        }
    }
}

/// Moves results into `old/`, each in one step. They replace what is there.
fn put_away(out: &Path, names: &[&str]) -> Result<()> {
    for name in names {
        let (from, to) = (out.join(name), out.join(OLD).join(name));
        if !from.exists() {
            continue;
        }
        let failed =
            |source| Error::from(qbert_model::Error::Io { path: from.clone(), action: "move out of the way", source });
        std::fs::create_dir_all(out.join(OLD)).map_err(failed)?;
        let removed = if to.is_dir() { std::fs::remove_dir_all(&to) } else { std::fs::remove_file(&to) };
        removed
            .or_else(|error| if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
            .map_err(failed)?;
        std::fs::rename(&from, &to).map_err(failed)?;
    }
    Ok(())
}

/// A file's text.
pub(super) fn read_text(path: &Path) -> Result<String> {
    std::fs::read_to_string(path)
        .map_err(|source| qbert_model::Error::Io { path: path.to_owned(), action: "read", source }.into())
}
