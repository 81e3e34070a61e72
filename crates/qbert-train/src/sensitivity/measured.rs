//! Sensitivity by measurement: one matrix at a time is quantized at each width, and the divergence of the answers from
//! those in full precision is what it costs (not in the paper).
//!
//! It needs no labels beyond where they stand, no derivative, and tells matrices apart, not only layers. Data that the model
//! was not trained on says more: on its training data a model is too sure of itself.
//!
//! Layers go from the bottom up. The hidden states that enter a layer are computed once, so a trial costs the layers above
//! only. A trial depends on nothing but its matrix and width, so an interrupted measurement ends with the same figures.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use qbert_documents::{MeasuredSite, MeasuredSites, MeasuredWidth, Sensitivity};
use qbert_kernels::Compute;
use qbert_model::lock::DirectoryLock;
use qbert_model::{atomic, sealed};
use qbert_quant::{Axis, BitWidth, GroupSpec, Layout, Matrix, QuantParams, RangeMethod, Scratch, Site};
use qbert_tasks::{DataSource, TaskData};
use serde::{Deserialize, Serialize};

use super::work::Sample;
use super::{FILE, file, model_hash};
use crate::batch::Batch;
use crate::bert::{Activations, Mode, Pass};
use crate::error::{Error, Result};
use crate::fingerprint;
use crate::loading::Loaded;
use crate::ops::distill::answer_divergence;
use crate::qat::map;
use crate::state::read_sealed;

/// The state of a measurement that is not finished.
const STATE: &str = "measured.json";

/// Everything that decides the figures, apart from model and data.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasureSettings {
    /// The widths to try, lowest first.
    pub widths: Vec<BitWidth>,
    /// Which output neurons share a range; `None` for the usual number of groups.
    pub groups: Option<GroupSpec>,
    /// How ranges are found.
    pub range: RangeMethod,
    /// Most sequences to look at; `None` for all.
    pub examples: Option<usize>,
    /// Seed of the sample.
    pub seed: u64,
}

impl Default for MeasureSettings {
    fn default() -> Self {
        let widths = BitWidth::all().filter(|width| [2.0, 3.0, 4.0, 8.0].contains(&width.number())).collect();
        Self { widths, groups: None, range: RangeMethod::Mse, examples: Some(256), seed: 1 }
    }
}

impl MeasureSettings {
    /// Refuses settings that make no sense; errors call them `measure.widths` and so on.
    ///
    /// # Errors
    /// No width, widths that do not rise, no sequence.
    pub fn check(&self) -> Result<()> {
        let refuse = |name, value: String, rule| Err(Error::Setting { name, value, rule });
        if self.widths.is_empty() || !self.widths.is_sorted_by(|low, high| low < high) {
            let text = self.widths.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            return refuse("`measure.widths`", text, "give one or more widths from low to high, such as 2,3,4,8");
        }
        if self.examples == Some(0) {
            return refuse("`measure.examples`", "0".to_owned(), "it must be at least 1");
        }
        Ok(())
    }

    /// As files have them.
    fn to_json(&self, groups: GroupSpec) -> serde_json::Value {
        let (range, groups) = (self.range.to_string(), groups.to_string());
        serde_json::json!({
            "widths": self.widths, "groups": groups, "range": range, "examples": self.examples, "seed": self.seed,
        })
    }
}

/// Everything a measurement is made from.
#[derive(Debug, Clone)]
pub struct Measurement {
    /// Fine-tuned checkpoint.
    pub model: PathBuf,
    /// Data of its task, best what it was not trained on.
    pub data: DataSource,
    /// Widths, ranges and sample.
    pub settings: MeasureSettings,
    /// Directory to write to; the figures join those of an analysis there.
    pub out: PathBuf,
    /// Continue an interrupted measurement.
    pub resume: bool,
}

/// The progress of a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Trial {
    /// The matrix.
    pub site: Site,
    /// Its width.
    pub bits: BitWidth,
    /// What it cost.
    pub divergence: f64,
    /// Trials that are done.
    pub done: usize,
    /// All trials.
    pub total: usize,
}

/// Observes a measurement: called after every trial, and may ask to stop.
pub type WatchTrials<'a> = &'a mut dyn FnMut(Trial) -> ControlFlow<()>;

/// Measures a model; `watch` is called after every trial. Returns the whole file: with eigenvalues, if the directory has an
/// analysis of the same model.
///
/// # Errors
/// [`Error::Stopped`] if `watch` asks to stop, with the state saved; a problem with model, data or settings.
pub fn measure(
    measurement: &Measurement,
    compute: &Compute,
    save_every: Duration,
    watch: WatchTrials<'_>,
) -> Result<Sensitivity> {
    measurement.settings.check()?;
    let loaded = Loaded::open(&measurement.model, &measurement.data)?;
    let out = &measurement.out;
    let failed = |source| Error::Io { path: out.clone(), action: "create the directory", source };
    std::fs::create_dir_all(out).map_err(failed)?;
    let _lock = DirectoryLock::exclusive(out)?;
    measure_loaded(measurement, &loaded, compute, save_every, watch)
}

/// As [`measure`], on data that was read earlier, in a directory that exists and that the caller has locked.
///
/// # Errors
/// As [`measure`]; data that was not read for this model.
pub fn measure_on(
    measurement: &Measurement,
    data: Arc<TaskData>,
    compute: &Compute,
    save_every: Duration,
    watch: WatchTrials<'_>,
) -> Result<Sensitivity> {
    measurement.settings.check()?;
    measure_loaded(measurement, &Loaded::with_data(&measurement.model, data)?, compute, save_every, watch)
}

/// The figures so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct State {
    crc32: String,
    /// Hash of the weights.
    model: String,
    measured: MeasuredSites,
}

fn measure_loaded(
    measurement: &Measurement,
    loaded: &Loaded,
    compute: &Compute,
    save_every: Duration,
    watch: WatchTrials<'_>,
) -> Result<Sensitivity> {
    let Measurement { settings, data, out, .. } = measurement;
    atomic::remove_leftovers(out)?;
    let (path, state_path) = (out.join(FILE), out.join(STATE));
    let groups = settings.groups.unwrap_or_else(|| usual_groups(loaded));
    let sample = Sample::draw(&loaded.data.features, settings.examples.unwrap_or(usize::MAX), settings.seed, 0)?;
    sample.batches().iter().try_for_each(|(batch, _)| loaded.bert.check(batch))?;
    let mut state = State {
        crc32: sealed::BLANK.to_owned(),
        model: model_hash(&loaded.weights),
        measured: MeasuredSites {
            settings: settings.to_json(groups),
            data: fingerprint::data(&loaded.data.features)?,
            max_len: data.max_len,
            examples: sample.examples(),
            tokens: sample.batches().iter().map(|(batch, _)| batch.tokens()).sum(),
            sites: Vec::new(),
        },
    };
    let mut whole = beside(&path, &state, data.task.name(), loaded)?;
    if let Some(done) = &whole.measured {
        let same = difference(done, &state.measured);
        return match (measurement.resume, same) {
            (true, None) => Ok(whole),
            (true, Some(difference)) => {
                Err(refuse(&path, format!("the finished measurement was made with {difference}")))
            }
            (false, _) => Err(refuse(&path, "the directory holds a measurement already".to_owned())),
        };
    }
    if state_path.exists() {
        if !measurement.resume {
            return Err(refuse(&state_path, "the directory holds a measurement already".to_owned()));
        }
        state = resumed(&state_path, state)?;
    }
    let trials = Trials { loaded, compute, sample: &sample, settings, groups };
    trials.run(&mut state, &state_path, save_every, watch)?;
    whole.measured = Some(state.measured);
    file::write(&path, &whole)?;
    match std::fs::remove_file(&state_path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::Io { path: state_path, action: "remove", source })
        }
        _ => Ok(whole),
    }
}

/// The groups of the encoder's matrices that a plan has by default.
fn usual_groups(loaded: &Loaded) -> GroupSpec {
    let config = loaded.bert.config();
    GroupSpec::default_for(config.hidden_size.min(config.intermediate_size))
}

/// The file that the figures go into: that of an analysis of the same model, or a new one.
fn beside(path: &Path, state: &State, task: &str, loaded: &Loaded) -> Result<Sensitivity> {
    if !path.exists() {
        let mut new = Sensitivity::default();
        new.subject.task = task.to_owned();
        new.subject.model = state.model.clone();
        new.subject.layer_parameters = loaded.bert.layout().layers().iter().map(ExactSizeIterator::len).collect();
        return Ok(new);
    }
    let there: Sensitivity = qbert_documents::read(path)?;
    if there.subject.model == state.model {
        return Ok(there);
    }
    Err(refuse(path, "it is the analysis of another model".to_owned()))
}

fn refuse(path: &Path, problem: String) -> Error {
    Error::Resume { path: path.to_owned(), problem }
}

/// Why figures do not belong to the same measurement.
fn difference(one: &MeasuredSites, other: &MeasuredSites) -> Option<String> {
    let settings = (one.settings != other.settings).then(|| format!("other settings: {}", one.settings));
    let data = (&one.data, one.max_len) != (&other.data, other.max_len);
    settings.or_else(|| data.then(|| "other data".to_owned()))
}

fn resumed(path: &Path, fresh: State) -> Result<State> {
    let bytes = read_sealed(path, path)?;
    let saved: State = serde_json::from_slice(&bytes).map_err(|error| refuse(path, format!("damaged: {error}")))?;
    if saved.model != fresh.model {
        return Err(refuse(path, "the measurement was started with another model".to_owned()));
    }
    match difference(&saved.measured, &fresh.measured) {
        None => Ok(saved),
        Some(difference) => Err(refuse(path, format!("the measurement was started with {difference}"))),
    }
}

fn save(path: &Path, state: &State) -> Result<()> {
    let text = serde_json::to_string_pretty(state).map_err(|error| refuse(path, error.to_string()))?;
    Ok(sealed::write_json(path, text + "\n")?)
}

/// What all trials have in common.
struct Trials<'a> {
    loaded: &'a Loaded,
    compute: &'a Compute,
    sample: &'a Sample,
    settings: &'a MeasureSettings,
    groups: GroupSpec,
}

impl Trials<'_> {
    /// Makes the trials that are missing.
    fn run(&self, state: &mut State, path: &Path, save_every: Duration, watch: WatchTrials<'_>) -> Result<()> {
        let Self { loaded, settings, .. } = *self;
        let (bert, widths) = (&loaded.bert, settings.widths.len());
        let batches: Vec<&Batch> = self.sample.batches().iter().map(|(batch, _)| batch).collect();
        let mut activations = Activations::for_evaluation();
        let full = loaded.weights.values();
        // The hidden states that enter the layer, and the answers in full precision.
        let mut inputs: Vec<Vec<f32>> =
            batches.iter().map(|batch| bert.embedded(self.pass(full, batch), &mut activations)).collect();
        let mut answers = Vec::with_capacity(batches.len());
        for (batch, input) in batches.iter().zip(&inputs) {
            bert.forward_from(self.pass(full, batch), 0, input, &mut activations);
            answers.push(activations.logits.clone());
        }
        let (mut trial, mut saved) = (full.to_vec(), Instant::now());
        let total = bert.config().distinct_layers() * Matrix::ALL.len() * widths;
        let mut done: usize = state.measured.sites.iter().map(|site| site.widths.len()).sum();
        for layer in 0..bert.config().distinct_layers() {
            // The first that is computed with these weights: nothing below it changes with them.
            let first = bert.config().first_with_weights(layer);
            for matrix in Matrix::ALL {
                let site = Site::Layer(layer, matrix);
                let place = bert.layout().site(site).ok_or_else(|| Error::NoParameter { name: site.to_string() })?;
                let span = place.span.clone();
                let number = layer * Matrix::ALL.len() + matrix as usize;
                if state.measured.sites.len() <= number {
                    let parameters = span.len();
                    let new = MeasuredSite { site: site.to_string(), layer, parameters, widths: Vec::new() };
                    state.measured.sites.push(new);
                }
                while let Some(&bits) = settings.widths.get(state.measured.sites[number].widths.len()) {
                    let shape = (place.shape[0], place.shape[1]);
                    let error = self.quantize(site, shape, bits, &full[span.clone()], &mut trial[span.clone()])?;
                    let (mut sum, mut terms) = (0.0, 0);
                    for ((batch, input), answer) in batches.iter().zip(&inputs).zip(&answers) {
                        bert.forward_from(self.pass(&trial, batch), first, input, &mut activations);
                        let pair = (&activations.logits[..], &answer[..]);
                        let (own, count) = answer_divergence(pair, batch, bert.outputs());
                        (sum, terms) = (sum + own, terms + count);
                    }
                    let divergence = sum / terms.max(1) as f64;
                    if !divergence.is_finite() {
                        let problem = format!("{site} at {bits} bits: the model computes infinity or NaN on this data");
                        return Err(Error::Batch { problem });
                    }
                    let found = MeasuredWidth { bits: bits.number().into(), divergence, error };
                    state.measured.sites[number].widths.push(found);
                    done += 1;
                    let stop = watch(Trial { site, bits, divergence, done, total }).is_break() && done < total;
                    if stop || saved.elapsed() >= save_every {
                        save(path, state)?;
                        saved = Instant::now();
                    }
                    if stop {
                        return Err(Error::Stopped { path: path.to_owned() });
                    }
                }
                trial[span.clone()].copy_from_slice(&full[span]);
            }
            let next = bert.config().first_with_weights(layer + 1);
            for (batch, input) in batches.iter().zip(&mut inputs) {
                let output = bert.layers_forward(self.pass(full, batch), first..next, input, &mut activations);
                *input = output.to_vec();
            }
        }
        Ok(())
    }

    fn pass<'b>(&'b self, weights: &'b [f32], batch: &'b Batch) -> Pass<'b> {
        Pass { compute: self.compute, weights, batch, mode: Mode::Evaluate }
    }

    /// Writes the quantized matrix to `target` and returns its squared error.
    fn quantize(
        &self,
        site: Site,
        (rows, cols): (usize, usize),
        bits: BitWidth,
        weights: &[f32],
        target: &mut [f32],
    ) -> Result<f64> {
        let at_site = |source| Error::from(qbert_quant::Error::AtSite { site, source: Box::new(source) });
        let heads = self.loaded.bert.config().heads;
        let layout = Layout::resolve(rows, cols, Axis::Rows, self.groups, heads).map_err(at_site)?;
        let found = map(self.compute, layout.groups().count(), |group| {
            layout.fit_group(weights, group, bits, self.settings.range, &mut Scratch::default())
        });
        let ranges = found.into_iter().collect::<std::result::Result<Vec<_>, _>>().map_err(at_site)?;
        let params = QuantParams::from_ranges(layout, bits, ranges).map_err(at_site)?;
        params.fake_quantize(weights, target).map_err(at_site)?;
        Ok(weights.iter().zip(&*target).map(|(weight, value)| f64::from(weight - value).powi(2)).sum())
    }
}
