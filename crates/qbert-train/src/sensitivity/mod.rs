//! The sensitivity of each encoder layer to changes of its weights: the top Hessian eigenvalue per layer over several
//! samples of the data, and Ω from their mean and spread (paper, §3.2, Alg. 1, Eq. 2).
//!
//! [`measured`] is the other way: it quantizes one matrix at a time and measures what that does to the answers.
//!
//! The work is runs × layers. The layers of a run go in lock step over one sample. Runs come one after the other, or in
//! several processes ([`Shard`], [`merge`]). Results survive a crash.

mod file;
pub mod measured;
pub(crate) mod settings;
mod state;
pub(crate) mod work;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use qbert_kernels::{Compute, Ranks};
use qbert_model::lock::DirectoryLock;
use qbert_model::{Parameters, atomic};
use qbert_tasks::{DataSource, TaskData};

pub use file::{Found, read, settings_of};
pub use qbert_documents::{AnalysisRun, AnalysisSubject, AnalyzedLayer, Sensitivity};
pub use settings::{Method, Settings, Shard};

use crate::agreement;
use crate::error::{Error, Result};
use crate::fingerprint;
use crate::loading::Loaded;
use crate::state::read_sealed;
use crate::team;
use state::{Interrupted, Part};
use work::RunWork;

/// The file that an analysis writes.
pub const FILE: &str = "sensitivity.json";

/// The state is saved this often by default. Vectors are as large as the model: saving them after every product would cost
/// more than the product.
pub const SAVE_EVERY: Duration = Duration::from_secs(30);

/// Everything an analysis is made from.
#[derive(Debug, Clone)]
pub struct Analysis {
    /// Fine-tuned checkpoint.
    pub model: PathBuf,
    /// Data of its task, normally what it was trained on.
    pub data: DataSource,
    /// Samples, method and limits.
    pub settings: Settings,
    /// The part of the work to do.
    pub shard: Shard,
    /// Directory to write to.
    pub out: PathBuf,
    /// Continue an interrupted analysis.
    pub resume: bool,
}

/// The progress of an analysis.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// The run, counted from 0.
    pub run: usize,
    /// Passes over the run's sample so far.
    pub passes: usize,
    /// Layers of the run still in progress.
    pub layers_left: usize,
    /// Pairs of run and layer that are done.
    pub done: usize,
    /// All pairs.
    pub total: usize,
    /// Mean loss over the sample.
    pub loss: f64,
}

/// The outcome of an analysis.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The whole analysis.
    Whole(Box<Sensitivity>),
    /// The part of a shard, written to this file.
    Part(PathBuf),
}

/// Observes an analysis: called after every pass, and may ask to stop.
pub type Watch<'a> = &'a mut dyn FnMut(Step) -> ControlFlow<()>;

/// Analyzes a model; `watch` is called after every pass.
///
/// # Errors
/// [`Error::Stopped`] if `watch` asks to stop, with the state saved; a problem with model, data or settings.
pub fn analyze(analysis: &Analysis, compute: &Compute, watch: Watch<'_>) -> Result<Outcome> {
    analyze_saving(analysis, compute, SAVE_EVERY, watch)
}

/// As [`analyze`], saving the state at the given interval.
///
/// # Errors
/// As [`analyze`].
pub fn analyze_saving(
    analysis: &Analysis,
    compute: &Compute,
    save_every: Duration,
    watch: Watch<'_>,
) -> Result<Outcome> {
    analysis.settings.check()?;
    let loaded = Loaded::open(&analysis.model, &analysis.data)?;
    let out = &analysis.out;
    if !compute.writes() {
        return analyze_loaded(analysis, &loaded, compute, save_every, watch);
    }
    let failed = |source| Error::Io { path: out.clone(), action: "create the directory", source };
    std::fs::create_dir_all(out).map_err(failed)?;
    // Shards share a directory: each has its own files, and two processes with the same shard write the same bytes.
    let whole = analysis.shard == Shard::WHOLE;
    let _lock = if whole { DirectoryLock::exclusive(out)? } else { DirectoryLock::shared(out)? };
    analyze_loaded(analysis, &loaded, compute, save_every, watch)
}

/// As [`analyze_saving`], on data that was read earlier, in a directory that exists and that the caller has locked.
///
/// # Errors
/// As [`analyze`]; data that was not read for this model.
pub fn analyze_on(
    analysis: &Analysis,
    data: Arc<TaskData>,
    compute: &Compute,
    save_every: Duration,
    watch: Watch<'_>,
) -> Result<Outcome> {
    analysis.settings.check()?;
    analyze_loaded(analysis, &Loaded::with_data(&analysis.model, data)?, compute, save_every, watch)
}

fn analyze_loaded(
    analysis: &Analysis,
    loaded: &Loaded,
    compute: &Compute,
    save_every: Duration,
    watch: Watch<'_>,
) -> Result<Outcome> {
    let Analysis { settings, shard, out, .. } = analysis;
    let subject = subject(analysis, loaded)?;
    let mut part = Part::new(subject, *settings, *shard);
    let state_path = state::path(out, *shard);
    let begin = match compute.ranks() {
        None => open(analysis, &part, &state_path)?,
        Some(ranks) => open_together(ranks, analysis, &part, &state_path)?,
    };
    let mut interrupted = match begin {
        Begin::Fresh => None,
        Begin::Finished(outcome) => return Ok(outcome),
        Begin::Resumed(saved, interrupted) => {
            part = *saved;
            interrupted
        }
    };

    let layers = loaded.bert.config().distinct_layers();
    let share = shard.share(settings.runs * layers);
    let (total, mut saved) = (share.len(), Instant::now());
    for run in 0..settings.runs {
        let own = (0..layers).filter(|layer| share.contains(&(run * layers + layer)) && !part.has(run, *layer));
        let own: Vec<usize> = own.collect();
        if own.is_empty() {
            continue;
        }
        let mut work = RunWork::new(loaded, settings, run)?;
        take_up(&mut work, own, interrupted.take().filter(|saved| saved.run == run), &state_path)?;
        let (mut passes, mut stop) = (0, false);
        while !work.works().is_empty() {
            part.found.extend(work.step(compute)?);
            passes += 1;
            let (layers_left, done) = (work.works().len(), part.found.len());
            stop = watch(Step { run, passes, layers_left, done, total, loss: work.info().loss }).is_break();
            if let Some(ranks) = compute.ranks() {
                // Ranks stop together.
                stop = team::numbers(ranks, &[f64::from(u8::from(stop))]).concat().contains(&1.0);
            }
            if (stop || saved.elapsed() >= save_every) && layers_left > 0 {
                if compute.writes() {
                    state::save(&state_path, &part, Some((run, &work)))?;
                }
                saved = Instant::now();
                if stop {
                    return Err(Error::Stopped { path: state_path });
                }
            }
        }
        if !part.runs.iter().any(|info| info.run == run) {
            part.runs.push(work.info());
        }
        if compute.writes() {
            state::save(&state_path, &part, None)?;
        }
        if stop && part.found.len() < total {
            return Err(Error::Stopped { path: state_path });
        }
    }
    if let Some(ranks) = compute.ranks().filter(|ranks| !ranks.writes()) {
        return heard(ranks, out, *shard);
    }
    let outcome = finish(part, out)?;
    if let Some(ranks) = compute.ranks() {
        tell_outcome(ranks, &outcome);
    }
    std::fs::remove_file(&state_path)
        .or_else(|error| if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
        .map_err(|source| Error::Io { path: state_path, action: "remove", source })?;
    Ok(outcome)
}

/// The hash of a model's weights, as in [`AnalysisSubject::model`]: tells whether sensitivities belong to a model.
pub fn model_hash(weights: &Parameters) -> String {
    fingerprint::weights(weights.values())
}

fn subject(analysis: &Analysis, loaded: &Loaded) -> Result<AnalysisSubject> {
    let mut data = fingerprint::data(&loaded.data.features)?;
    if let Some(left_out) = loaded.data.features.dataset().left_out() {
        data["left_out"] = serde_json::json!(left_out);
    }
    Ok(AnalysisSubject {
        task: analysis.data.task.name().to_owned(),
        model: model_hash(&loaded.weights),
        layer_parameters: loaded.bert.layout().layers().iter().map(ExactSizeIterator::len).collect(),
        data,
        max_len: analysis.data.max_len,
    })
}

/// What a directory holds of an analysis.
enum Begin {
    Fresh,
    Resumed(Box<Part>, Option<Interrupted>),
    Finished(Outcome),
}

fn open(analysis: &Analysis, part: &Part, state_path: &Path) -> Result<Begin> {
    // Shards share a directory: only the whole analysis may remove what a killed writer left.
    if analysis.shard == Shard::WHOLE {
        atomic::remove_leftovers(&analysis.out)?;
    }
    let finished = finished_path(&analysis.out, analysis.shard);
    let refuse = |path: &Path, problem: String| Err(Error::Resume { path: path.to_owned(), problem });
    if !analysis.resume {
        let finished = finished.as_path();
        let there = [state_path, finished].into_iter().find(|path| path.exists() && !is_only_measured(path));
        return match there {
            Some(path) => refuse(path, "the directory holds an analysis already".to_owned()),
            None => Ok(Begin::Fresh),
        };
    }
    let differs = |saved: &Part| saved.difference(part);
    if state_path.exists() {
        let (saved, interrupted) = state::load(state_path)?;
        return match differs(&saved) {
            Some(difference) => refuse(state_path, format!("the analysis was started with {difference}")),
            None => Ok(Begin::Resumed(Box::new(saved), interrupted)),
        };
    }
    if !finished.exists() || is_only_measured(&finished) {
        return Ok(Begin::Fresh);
    }
    let (saved, outcome) = if analysis.shard == Shard::WHOLE {
        let whole = file::read(&finished)?;
        let saved = Part::new(whole.subject.clone(), file::settings_of(&whole, &finished)?, Shard::WHOLE);
        (saved, Outcome::Whole(Box::new(whole)))
    } else {
        (Part::read(&finished)?, Outcome::Part(finished.clone()))
    };
    match differs(&saved) {
        Some(difference) => refuse(&finished, format!("the finished analysis was made with {difference}")),
        None => Ok(Begin::Finished(outcome)),
    }
}

/// What the rank that writes found in the directory, told to all ranks.
fn open_together(ranks: &dyn Ranks, analysis: &Analysis, part: &Part, state_path: &Path) -> Result<Begin> {
    let identity = serde_json::json!({
        "qbert": env!("CARGO_PKG_VERSION"), "analysis": part.subject, "settings": part.settings, "shard": part.shard,
    });
    agreement::check(ranks, &identity)?;
    if ranks.writes() {
        let begin = open(analysis, part, state_path)?;
        match &begin {
            Begin::Fresh => drop(ranks.gather_bytes(b"fresh")),
            Begin::Finished(outcome) => {
                ranks.gather_bytes(b"finished");
                tell_outcome(ranks, outcome);
            }
            Begin::Resumed(..) => drop(ranks.gather_bytes(&read_sealed(state_path, state_path)?)),
        }
        return Ok(begin);
    }
    let found = ranks.gather_bytes(&[]).swap_remove(0);
    match &found[..] {
        b"fresh" => Ok(Begin::Fresh),
        b"finished" => Ok(Begin::Finished(heard(ranks, &analysis.out, analysis.shard)?)),
        state => {
            let (saved, interrupted) = state::parse(state_path, state)?;
            Ok(Begin::Resumed(Box::new(saved), interrupted))
        }
    }
}

/// Tells the other ranks what came of the analysis; they have [`heard`] it at the same time.
fn tell_outcome(ranks: &dyn Ranks, outcome: &Outcome) {
    match outcome {
        Outcome::Whole(whole) => agreement::tell(ranks, &Some(whole)),
        Outcome::Part(_) => agreement::tell(ranks, &None::<Box<Sensitivity>>),
    }
}

fn heard(ranks: &dyn Ranks, out: &Path, shard: Shard) -> Result<Outcome> {
    let whole: Option<Box<Sensitivity>> = agreement::hear(ranks)?;
    Ok(whole.map_or_else(|| Outcome::Part(finished_path(out, shard)), Outcome::Whole))
}

/// Starts the layers of a run: interrupted ones where they stopped, the others from the beginning.
fn take_up(work: &mut RunWork<'_>, layers: Vec<usize>, saved: Option<Interrupted>, state_path: &Path) -> Result<()> {
    let mut saved = saved.map(|saved| saved.layers).unwrap_or_default();
    for layer in layers {
        match saved.iter().position(|(state, _)| state.layer == layer) {
            Some(index) => {
                let (state, vectors) = saved.swap_remove(index);
                work.restore(state, vectors).ok_or_else(|| Error::Resume {
                    path: state_path.to_owned(),
                    problem: format!("damaged: the vectors of layer {layer} have another length"),
                })?;
            }
            None => work.start(layer),
        }
    }
    Ok(())
}

fn finished_path(out: &Path, shard: Shard) -> PathBuf {
    out.join(if shard == Shard::WHOLE {
        FILE.to_owned()
    } else {
        format!("sensitivity.{}-of-{}.json", shard.part, shard.of)
    })
}

fn finish(mut part: Part, out: &Path) -> Result<Outcome> {
    if part.shard == Shard::WHOLE {
        return Ok(Outcome::Whole(Box::new(sum_up(part, out)?)));
    }
    part.sort();
    let path = finished_path(out, part.shard);
    part.write(&path)?;
    Ok(Outcome::Part(path))
}

/// Whether a file has divergences of a measurement and no eigenvalues: an analysis adds to it.
fn is_only_measured(path: &Path) -> bool {
    let found = qbert_documents::read::<Sensitivity>(path);
    found.is_ok_and(|found| found.layers.is_empty() && found.measured.is_some())
}

/// Writes the file of a whole analysis, with the divergences that were measured of the same model.
fn sum_up(mut part: Part, out: &Path) -> Result<Sensitivity> {
    part.sort();
    let mut whole = file::sum_up(part.subject, part.settings, part.runs, &part.found);
    let there = qbert_documents::read::<Sensitivity>(&finished_path(out, Shard::WHOLE)).ok();
    let of_this_model = there.filter(|there| there.subject.model == whole.subject.model);
    whole.measured = of_this_model.and_then(|there| there.measured);
    file::write(&finished_path(out, Shard::WHOLE), &whole)?;
    Ok(whole)
}

/// The finished parts in a directory, in the order of their names.
pub fn parts_in(directory: &Path) -> Result<Vec<PathBuf>> {
    let io = |source| Error::Io { path: directory.to_owned(), action: "list the directory", source };
    let entries = std::fs::read_dir(directory).map_err(io)?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>().map_err(io)?;
    paths.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("sensitivity.") && name.ends_with(".json") && name.contains("-of-")
    });
    paths.sort();
    Ok(paths)
}

/// Joins the parts of all shards into the file that one process would have written, and writes it to `out`.
pub fn merge(parts: &[PathBuf], out: &Path) -> Result<Sensitivity> {
    let bad = |path: &Path, problem: String| Error::Sensitivity { path: path.to_owned(), problem };
    let Some((first, others)) = parts.split_first() else {
        return Err(bad(out, "there is no part of an analysis here (sensitivity.1-of-N.json)".to_owned()));
    };
    let mut whole = Part::read(first)?;
    for path in others {
        let part = Part::read(path)?;
        if let Some(difference) = whole.difference(&part) {
            return Err(bad(path, format!("it belongs to another analysis than {}: {difference}", first.display())));
        }
        if let Some(twice) = part.found.iter().find(|found| whole.has(found.run, found.layer)) {
            let (run, layer) = (twice.run, twice.layer);
            return Err(bad(path, format!("run {run}, layer {layer} is in an earlier part too")));
        }
        whole.found.extend(part.found);
        let known: Vec<usize> = whole.runs.iter().map(|info| info.run).collect();
        whole.runs.extend(part.runs.into_iter().filter(|info| !known.contains(&info.run)));
    }
    let layers = whole.subject.layer_parameters.len();
    let units = (0..whole.settings.runs).flat_map(|run| (0..layers).map(move |layer| (run, layer)));
    let missing: Vec<_> = units.filter(|&(run, layer)| !whole.has(run, layer)).collect();
    if let Some((run, layer)) = missing.first() {
        let count = missing.len();
        let problem =
            format!("{count} pairs of run and layer are in no part, the first of them run {run}, layer {layer}");
        return Err(bad(out, problem));
    }
    sum_up(whole, out)
}
