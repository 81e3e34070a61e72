//! The smallest plan whose metric drops by no more than a limit, found by measuring: what `max_drop` asks for.
//!
//! The knapsack over the measured divergences of all matrices gives the best plan of every size (the frontier). Which of them
//! keeps the limit is measured: each candidate is quantized without training and evaluated on the dev data
//! ([`bench`]). `ladder` decides which to try, `fit` what to expect of it. Every measurement is written to
//! `plan-search.json` at once and never repeated as long as model, data and calibration are the same.
//!
//! For a plan within a size, nothing has to be measured: see [`super::make`].

mod bench;
mod climb;
mod fit;
mod interval;
mod ladder;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use qbert_documents::{BitCount, FrontierPoint, MeasuredDrop, PlanSearch, TriedPlan};
use qbert_kernels::Compute;
use qbert_model::atomic;
use qbert_quant::allocate::budget::Allocation;
use qbert_quant::{BitWidth, Matrix, Plan, Precision};
use qbert_tasks::{DataSource, Evaluation, TaskData};
use serde::Serialize;
use serde_json::{Value, json};

pub use bench::Rounding;
pub(crate) use interval::{USUAL_END, measured_drop, with_ends};

use self::bench::Bench;
use self::climb::{Climb, EXPECTED_RECOVERY, Trained};
use self::fit::Fit;
use self::ladder::{Next, Rung, Trial, next};
use super::choose::Mixed;
use super::origin::{Found, Origin};
use super::{Model, NewPlan, PlanRequest, make};
use crate::error::{Error, ErrorKind, Result};
use crate::hashes;

/// The usual name of the file that lists every plan tried.
pub const FILE: &str = "plan-search.json";
/// The widths to choose from where nothing else is said: those that an analysis measures by default.
pub const WIDTHS: [BitWidth; 4] = [BitWidth::TWO, BitWidth::THREE, BitWidth::FOUR, BitWidth::EIGHT];
/// The most points of the frontier that the file lists.
const LISTED: usize = 200;

/// How far the metric may drop.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DropLimit {
    /// Points of the metric.
    pub points: f64,
    /// How sure the limit should hold: the upper end of the drop's interval decides. `None`: the measured drop itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
    /// The most plans to measure.
    pub tries: usize,
}

impl DropLimit {
    /// The most plans that are measured by default.
    pub const TRIES: usize = 12;

    /// A limit that the measured drop itself decides about.
    pub fn new(points: f64) -> Self {
        Self { points, confidence: None, tries: Self::TRIES }
    }

    /// How sure an end of an interval is.
    pub(crate) fn sure(&self) -> f64 {
        self.confidence.unwrap_or(USUAL_END)
    }

    /// Refuses numbers that make no sense; errors call them `plan.max_drop`, `plan.confidence` and `plan.tries`.
    ///
    /// # Errors
    /// A drop that is negative or not a number, a confidence outside 0.5 to 1, no try.
    pub fn check(&self) -> Result<()> {
        let refuse = |message: String, hint: &str| Err(Error::new(ErrorKind::BadInput, message, hint.to_owned()));
        if !(self.points.is_finite() && self.points >= 0.0) {
            let message = format!("`plan.max_drop` is {}: it must be a number of points, 0 or more", self.points);
            return refuse(message, "give the largest drop of the metric, such as 0.5");
        }
        if let Some(sure) = self.confidence.filter(|sure| !(*sure > 0.5 && *sure < 1.0)) {
            let message = format!("`plan.confidence` is {sure}: it must be above 0.5 and below 1");
            return refuse(
                message,
                "give a number such as 0.95, or leave it out: then the measured drop itself decides",
            );
        }
        if self.tries == 0 {
            let message = "`plan.tries` is 0: a plan has to be measured before it can be chosen".to_owned();
            return refuse(message, "leave it out for the default");
        }
        Ok(())
    }
}

/// The data that plans are measured with.
#[derive(Debug, Clone)]
pub struct SearchData {
    /// To calibrate with.
    pub train: Arc<TaskData>,
    /// To judge by.
    pub dev: Arc<TaskData>,
    /// What identifies both: if it changes, everything is measured again.
    pub identity: Value,
}

impl SearchData {
    /// Reads the data for the checkpoint in a directory.
    ///
    /// # Errors
    /// A model without the task's head or with other labels; any fault of the files.
    pub fn read(model: &Path, train: &DataSource, dev: &Path) -> Result<Self> {
        let mut shared = qbert_tasks::SharedData::default();
        let judged = train.with_files([dev]);
        let mut read = |source| qbert_train::loading::read_data(model, source, &mut shared);
        let (train_data, dev_data) = (read(train)?, read(&judged)?);
        let files = train.files.iter().map(|path| hashes::file(path)).collect::<Result<Vec<_>>>()?;
        let identity = json!({
            "task": train.task,
            "train": files,
            "dev": hashes::file(dev)?,
            "columns": train.read.columns,
            "labels": dev_data.labels.names(),
            "label_names": dev_data.labels.other_names(),
            "format": train.read.format,
            "max_len": train.max_len,
        });
        Ok(Self { train: train_data, dev: dev_data, identity })
    }
}

/// Observes a search.
pub trait Watch {
    /// Some work on a plan is at `done` of `total`.
    fn progress(&mut self, done: usize, total: usize, what: &str);
    /// A plan was measured, or is known from before: the last of the list.
    fn tried(&mut self, search: &PlanSearch, plan: &TriedPlan);
    /// What was measured before does not count any more.
    fn starts_over(&mut self);
}

/// Everything a search is made from.
#[derive(Debug)]
pub struct Search<'a> {
    /// The plan's details and the limit; without `bits`, the measured widths are chosen from.
    pub request: &'a PlanRequest,
    /// The model that plans are for, with the task's head.
    pub model: Model<'a>,
    /// The hash of the model, as [`hashes::model`] computes it.
    pub model_hash: String,
    /// The data.
    pub data: SearchData,
    /// How plans are quantized.
    pub rounding: Rounding,
    /// The model in full precision on the dev data, if it is known.
    pub full_precision: Option<Evaluation>,
    /// The file that keeps every plan tried, in a directory that exists and that the caller has locked.
    pub memory: PathBuf,
}

/// A plan that was found by measuring.
#[derive(Debug)]
pub struct FoundPlan {
    /// The plan, and how it was made. If no plan keeps the limit, the nearest.
    pub new: NewPlan,
    /// Every plan tried.
    pub search: PlanSearch,
}

/// Finds the smallest plan that keeps the limit without training.
///
/// # Errors
/// A request without a limit, or with one that makes no sense; sensitivities without measured divergences; any fault of
/// model or data.
pub fn find(search: &Search<'_>, compute: &Compute, watch: &mut dyn Watch) -> Result<FoundPlan> {
    let request = super::make::measured_request(search.request, search.model.shape.layers)?;
    let mut finder = Finder::open(search, &request, compute, watch)?;
    let limit = finder.limit;
    let end = finder.search_for(limit.points, watch)?;
    finder.choose(end)
}

/// Finds the plan to train next: a new one, or the smallest that kept the limit after training. `None` if none did and none is
/// left. The trainings that `training` is the hash of are those that count.
///
/// # Errors
/// As [`find`].
pub(crate) fn find_to_train(
    search: &Search<'_>,
    training: &str,
    compute: &Compute,
    watch: &mut dyn Watch,
) -> Result<Option<FoundPlan>> {
    let request = super::make::measured_request(search.request, search.model.shape.layers)?;
    let mut finder = Finder::open(search, &request, compute, watch)?;
    let points = finder.limit.points;
    let end = finder.search_for(points, watch)?;
    let start = match finder.search_for(EXPECTED_RECOVERY * points, watch)? {
        Next::Found { rung, .. } | Next::Try(rung) | Next::Nothing { nearest: rung } => rung,
    };
    let top = match end {
        Next::Found { rung, .. } | Next::Try(rung) | Next::Nothing { nearest: rung } => rung,
    };
    let (measured, trained) = (finder.judged()?, finder.trained(training)?);
    let climb = finder.climb(&measured, &trained, (start, top));
    let Some(rung) = climb.next().or(climb.smallest_holding()) else { return Ok(None) };
    if measured.iter().all(|trial| trial.rung != rung) {
        finder.measure(rung, points, watch)?;
    }
    finder.choose_to_train(rung).map(Some)
}

/// Whether another plan than the chosen one is to be trained after those that a document lists, without measuring anything.
///
/// # Errors
/// As [`find`].
pub(crate) fn goes_on(search: &Search<'_>, document: &PlanSearch, training: &str, compute: &Compute) -> Result<bool> {
    let request = super::make::measured_request(search.request, search.model.shape.layers)?;
    let finder = Finder::new(search, &request, compute, document.clone())?;
    let (measured, trained) = (finder.judged()?, finder.trained(training)?);
    let ends =
        [EXPECTED_RECOVERY, 1.0].map(|times| match next(&finder.rungs, &measured, times * finder.limit.points, 0) {
            Next::Found { rung, .. } | Next::Try(rung) | Next::Nothing { nearest: rung } => rung,
        });
    let climb = finder.climb(&measured, &trained, ends.into());
    let chosen = finder.document.plans.iter().zip(finder.places()?).find(|(plan, _)| plan.chosen);
    let other = |&rung: &usize| chosen.is_none_or(|(_, place)| place != Some(rung));
    Ok(climb.next().or(climb.smallest_holding().filter(other)).is_some())
}

/// A search in progress.
struct Finder<'a> {
    search: &'a Search<'a>,
    limit: DropLimit,
    mixed: Mixed<'a>,
    /// The frontier, smallest first.
    allocations: Vec<Allocation>,
    rungs: Vec<Rung>,
    bench: Option<Bench<'a>>,
    compute: &'a Compute,
    document: PlanSearch,
}

impl<'a> Finder<'a> {
    /// A search that remembers what the file has.
    fn open(
        search: &'a Search<'a>,
        request: &'a PlanRequest,
        compute: &'a Compute,
        watch: &mut dyn Watch,
    ) -> Result<Self> {
        let mut finder = Self::new(search, request, compute, PlanSearch::default())?;
        finder.document = remembered(&search.memory, &finder.inputs()?, &finder.limit, watch)?;
        Ok(finder)
    }

    fn new(
        search: &'a Search<'a>,
        request: &'a PlanRequest,
        compute: &'a Compute,
        document: PlanSearch,
    ) -> Result<Self> {
        let limit = request.max_drop.unwrap_or(DropLimit::new(f64::NAN));
        limit.check()?;
        let mixed = make::mixed(request, &search.model)?;
        let allocations = mixed.frontier()?;
        let rungs = allocations.iter().map(|own| Rung { bytes: own.bytes, divergence: own.cost }).collect();
        Ok(Self { search, limit, mixed, allocations, rungs, bench: None, compute, document })
    }

    /// Hash of everything that decides a measurement, but for the widths, which are listed with every plan.
    fn inputs(&self) -> Result<String> {
        let everything_else = self.mixed.at(Precision::from_number(8)?)?;
        let inputs = json!({
            "model": self.search.model_hash,
            "data": self.search.data.identity,
            "rounding": self.search.rounding,
            "plan": everything_else.to_toml(),
        });
        Ok(hashes::text(&inputs.to_string()))
    }

    /// The widths of a rung, as the file lists them.
    fn bits(&self, rung: usize) -> Result<Vec<Vec<BitCount>>> {
        let plan = self.plan(rung)?;
        let of_layer = |layer: &qbert_quant::LayerPlan| {
            Matrix::ALL.map(|matrix| BitCount::from(layer.get(matrix).bits.number())).to_vec()
        };
        Ok(plan.layers().iter().map(of_layer).collect())
    }

    fn plan(&self, rung: usize) -> Result<Plan> {
        self.mixed.with_widths(&self.allocations[rung].widths)
    }

    /// The rung of every plan in the file; plans that are not on this frontier have none.
    fn places(&self) -> Result<Vec<Option<usize>>> {
        let place = |tried: &TriedPlan| -> Result<Option<usize>> {
            // Few rungs have the same size, so few plans are made.
            for (rung, _) in self.rungs.iter().enumerate().filter(|(_, own)| own.bytes == tried.bytes) {
                if self.bits(rung)? == tried.bits {
                    return Ok(Some(rung));
                }
            }
            Ok(None)
        };
        self.document.plans.iter().map(place).collect()
    }

    /// The plans of this frontier that have some figure, in the order of trying.
    fn trials(&self, figure: impl Fn(&TriedPlan) -> Option<f64>) -> Result<Vec<Trial>> {
        let places = self.places()?;
        let trial = |(plan, rung): (&TriedPlan, Option<usize>)| Some(Trial { rung: rung?, judged: figure(plan)? });
        Ok(self.document.plans.iter().zip(places).filter_map(trial).collect())
    }

    /// The plans that were measured without training, with what is held against the limit.
    fn judged(&self) -> Result<Vec<Trial>> {
        self.trials(|plan| Some(self.document.judged(plan.measured.as_ref()?)))
    }

    /// The plans that were trained in this way.
    fn trained(&self, training: &str) -> Result<Vec<Trained>> {
        let own =
            |plan: &TriedPlan| plan.trained.as_ref().filter(|own| own.training == training).map(|own| own.measured);
        let trials = self.trials(|plan| Some(self.document.judged(&own(plan)?)))?;
        let uppers = self.trials(|plan| Some(own(plan)?.high))?;
        Ok(trials.into_iter().zip(uppers).map(|(trial, upper)| Trained { trial, upper: upper.judged }).collect())
    }

    fn climb<'b>(&'b self, measured: &'b [Trial], trained: &'b [Trained], (start, top): (usize, usize)) -> Climb<'b> {
        Climb { rungs: &self.rungs, measured, trained, limit: self.limit.points, start, top }
    }

    /// The drop to expect of every sum of divergences, as far as plans were measured.
    fn fit(&self) -> Result<Option<Fit>> {
        let trials = self.trials(|plan| Some(plan.measured?.drop))?;
        Ok(Fit::new(trials.into_iter().map(|trial| (self.rungs[trial.rung].divergence, trial.judged))))
    }

    /// Measures plans until the smallest one that keeps a limit is known.
    fn search_for(&mut self, points: f64, watch: &mut dyn Watch) -> Result<Next> {
        loop {
            let trials = self.judged()?;
            let made = self.document.plans.iter().filter(|plan| plan.aim == Some(points)).count();
            match next(&self.rungs, &trials, points, self.limit.tries.saturating_sub(made)) {
                Next::Try(rung) => self.measure(rung, points, watch)?,
                end => return Ok(end),
            }
        }
    }

    fn measure(&mut self, rung: usize, aim: f64, watch: &mut dyn Watch) -> Result<()> {
        let (plan, bits) = (self.plan(rung)?, self.bits(rung)?);
        let Rung { bytes, divergence } = self.rungs[rung];
        let predicted = self.fit()?.map(|fit| fit.at(divergence));
        let mut progress = |done: usize, total: usize, what: &str| watch.progress(done, total, what);
        if self.bench.is_none() {
            let Search { model, data, rounding, full_precision, .. } = self.search;
            let data = (&*data.train, &data.dev);
            let full = full_precision.clone();
            let bench = Bench::new(model.directory, data, *rounding, full, self.compute, &mut progress)?;
            self.document.task = self.search.data.dev.source.task.name().to_owned();
            self.document.metric = bench.full.metric.to_owned();
            self.document.examples = bench.full.examples as u64;
            self.document.full_precision = bench.full.value;
            self.bench = Some(bench);
        }
        let Some(bench) = &self.bench else { return Ok(()) };
        let found = bench.measure(&plan, &mut progress)?;
        let measured = Some(measured_drop(&bench.full, &found, self.limit.sure()));
        let aim = Some(aim);
        let tried = TriedPlan { bits, bytes, divergence, predicted, aim, measured, ..TriedPlan::default() };
        self.document.plans.push(tried.clone());
        self.write()?;
        watch.tried(&self.document, &tried);
        Ok(())
    }

    fn write(&self) -> Result<()> {
        write(&self.search.memory, &self.document)
    }

    /// Ends the search with its result.
    fn choose(mut self, end: Next) -> Result<FoundPlan> {
        let (rung, holds) = match end {
            Next::Found { rung, .. } | Next::Try(rung) => (rung, true),
            Next::Nothing { nearest } => (nearest, false),
        };
        self.mark(rung)?;
        self.document.holds = holds;
        let narrowed = !matches!(end, Next::Found { narrowed: false, .. });
        self.document.outcome = outcome(&self.document, &self.limit, narrowed);
        self.finish(rung)
    }

    /// Ends the search with a plan that training has to confirm.
    fn choose_to_train(mut self, rung: usize) -> Result<FoundPlan> {
        self.mark(rung)?;
        let drop = self.document.chosen().and_then(|plan| plan.measured).map(|own| drop_in_words(&own));
        let (size, metric) = (size_in_words(self.rungs[rung].bytes), &self.document.metric);
        self.document.outcome = format!(
            "{size}, to be trained: without training {metric} drops by {}; {} plans measured for a limit of {} points",
            drop.unwrap_or_default(),
            self.document.plans.len(),
            self.limit.points
        );
        self.finish(rung)
    }

    /// Marks the chosen plan.
    fn mark(&mut self, rung: usize) -> Result<()> {
        for (plan, place) in self.places()?.into_iter().enumerate() {
            self.document.plans[plan].chosen = place == Some(rung);
        }
        Ok(())
    }

    fn finish(mut self, rung: usize) -> Result<FoundPlan> {
        self.document.frontier = self.listed()?;
        self.write()?;
        let PlanSearch { outcome, holds, .. } = &self.document;
        let found = Found { outcome: outcome.clone(), holds: *holds, max_drop: self.limit.points };
        let origin = Origin::Sensitivity(Box::new(self.mixed.by_measurement(found)));
        Ok(FoundPlan { new: NewPlan { plan: self.plan(rung)?, origin }, search: self.document })
    }

    /// The frontier for the file: all of it, or evenly chosen points.
    fn listed(&self) -> Result<Vec<FrontierPoint>> {
        let fit = self.fit()?;
        let (count, last) = (self.rungs.len().min(LISTED), self.rungs.len() - 1);
        let point = |index: usize| {
            let Rung { bytes, divergence } = self.rungs[index * last / (count - 1).max(1)];
            FrontierPoint { bytes, divergence, predicted: fit.as_ref().map(|fit| fit.at(divergence)) }
        };
        Ok((0..count).map(point).collect())
    }
}

/// What is known from before: the file, if it is of the same model, data and calibration.
fn remembered(path: &Path, inputs: &str, limit: &DropLimit, watch: &mut dyn Watch) -> Result<PlanSearch> {
    let mut document = PlanSearch::default();
    if path.exists() {
        let known: PlanSearch = qbert_documents::read(path).map_err(|error| match error {
            qbert_documents::Error::Read { .. } => Error::from(error),
            damaged => {
                let hint = "delete it: its plans are then measured again".to_owned();
                Error::new(ErrorKind::BadInput, damaged.to_string(), hint)
            }
        })?;
        if known.inputs == inputs {
            document = known;
        } else {
            watch.starts_over();
        }
    }
    // The tries of another search do not count.
    let is_other = document.confidence != limit.confidence;
    for plan in &mut document.plans {
        plan.aim = plan.aim.filter(|_| !is_other);
        plan.measured = plan.measured.map(|measured| with_ends(measured, limit.sure()));
        if let Some(trained) = &mut plan.trained {
            trained.measured = with_ends(trained.measured, limit.sure());
        }
        plan.chosen = false;
    }
    inputs.clone_into(&mut document.inputs);
    (document.max_drop, document.confidence, document.interval) = (limit.points, limit.confidence, limit.sure());
    (document.holds, document.outcome, document.frontier) = (false, String::new(), Vec::new());
    Ok(document)
}

/// Writes the file of a search, whole or not at all.
pub(crate) fn write(path: &Path, document: &PlanSearch) -> Result<()> {
    let text = qbert_documents::to_json(document);
    Ok(atomic::write_file(path, |writer| writer.write_all(text.as_bytes()))?)
}

/// A plan that was just measured, for people.
pub fn tried_in_words(search: &PlanSearch, plan: &TriedPlan) -> String {
    let expected = plan.predicted.map(|drop| format!(", expected drop {drop:.2}")).unwrap_or_default();
    let measured = plan.measured.as_ref().map(|own| format!(", measured {}", drop_in_words(own))).unwrap_or_default();
    format!("plan {}: {}{expected}{measured}", search.plans.len(), size_in_words(plan.bytes))
}

/// A measured drop with its interval, for people: `0.34 points (-0.21 to 0.90)`.
pub fn drop_in_words(measured: &MeasuredDrop) -> String {
    format!("{:.2} points ({:.2} to {:.2})", measured.drop, measured.low, measured.high)
}

/// A file's size for people.
pub(crate) fn size_in_words(bytes: u64) -> String {
    let bytes = bytes as f64;
    if bytes < 1e5 { format!("{:.2} kB", bytes / 1e3) } else { format!("{:.2} MB", bytes / 1e6) }
}

/// How sure a limit should hold, to follow its number.
pub(crate) fn confidence_in_words(limit: &DropLimit) -> String {
    limit.confidence.map_or(String::new(), |sure| format!(" with confidence {sure}"))
}

/// What came out, in a sentence.
fn outcome(document: &PlanSearch, limit: &DropLimit, narrowed: bool) -> String {
    let PlanSearch { metric, max_drop, plans, .. } = document;
    let sure = confidence_in_words(limit);
    let Some((chosen, measured)) = document.chosen().and_then(|plan| Some((plan, plan.measured?))) else {
        return String::new();
    };
    let (size, drop, count) = (size_in_words(chosen.bytes), drop_in_words(&measured), plans.len());
    if !document.holds {
        return format!(
            "none of the {count} plans measured keeps the drop of {metric} within {max_drop} points{sure}; the nearest, \
             {size}, drops by {drop}"
        );
    }
    let end = if narrowed { "" } else { "; the search ended before all smaller plans were ruled out" };
    format!("{size}: {metric} drops by {drop}, within {max_drop}{sure}; {count} plans measured{end}")
}
