//! Results of rows, read back and put together by task, method and variant.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use qbert_tasks::Task;
use qbert_tasks::metrics::outcomes::{Outcomes, squared_error};
use qbert_train::sensitivity::{self, Sensitivity};

use crate::result::{RowResult, io};
use crate::rows::{Ranges, Recipe};
use qbert_pipeline::{Error, ErrorKind, Result};

/// What was done with a method's plan, seeds aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Variant {
    pub(super) ranges: Ranges,
    /// Whether it was trained, rather than calibrated only.
    pub(super) trained: bool,
    pub(super) compensate: bool,
    pub(super) distill: bool,
}

impl Variant {
    /// The variant for people.
    pub(super) fn text(self) -> String {
        let ranges = |ranges| match ranges {
            Ranges::MinMax => "min/max",
            Ranges::Optimal => "optimal",
        };
        let compensated = if self.compensate { ", compensated" } else { "" };
        let end = match (self.trained, self.distill) {
            (false, _) => "not trained",
            (true, false) => "trained",
            (true, true) => "distilled",
        };
        format!("{}{compensated}, {end}", ranges(self.ranges))
    }

    /// Without training, without anything that the paper does not do.
    pub(super) fn untrained(ranges: Ranges) -> Self {
        Self { ranges, trained: false, compensate: false, distill: false }
    }

    /// Trained, without anything that the paper does not do.
    pub(super) fn trained(ranges: Ranges) -> Self {
        Self { trained: true, ..Self::untrained(ranges) }
    }

    /// The same with compensated rounding.
    pub(super) fn compensated(self) -> Self {
        Self { compensate: true, ..self }
    }

    /// The same with distillation.
    pub(super) fn distilled(self) -> Self {
        Self { distill: true, ..self }
    }

    /// Whether the paper could have done it: shown whether it was run or not.
    pub(super) fn is_plain(self) -> bool {
        !self.compensate && !self.distill
    }

    /// Every variant, plain ones and trained ones first.
    pub(super) fn all() -> Vec<Self> {
        let both = |make: fn(Ranges) -> Self| Ranges::ALL.map(make);
        let plain = [both(Self::trained), both(Self::untrained)].concat();
        let compensated = plain.iter().map(|variant| variant.compensated());
        let trained = plain.iter().copied().chain(compensated.clone()).filter(|variant| variant.trained);
        let distilled = trained.map(Self::distilled).collect::<Vec<_>>();
        plain.iter().copied().chain(compensated).chain(distilled).collect()
    }

    /// Whether a result has figures of it.
    fn includes(self, row: &RowResult) -> bool {
        let own = row.settings.treatment;
        let usual = own.recipe() == Recipe::default();
        let alike = usual && own.ranges() == Some(self.ranges) && own.compensate() == self.compensate;
        // Every quantized row was evaluated before training, with or without distillation.
        alike && if self.trained { row.last.is_some() && own.distill() == self.distill } else { true }
    }
}

/// The runs of a method in a variant: one, or one for each seed.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    runs: Vec<BTreeMap<String, f64>>,
    /// What the metric is a share of.
    counted: usize,
    /// How much each example moves the deciding metric, the mean over the runs; `None` where a run did not keep it.
    influences: Option<Vec<f64>>,
    /// What runs differ in on the whole dev set by chance of its examples alone, as a variance; 0 for a single run.
    within: f64,
    /// The variance between seeds of methods that lose about as much, for a single run.
    usual_variance: Option<f64>,
    /// Which of the task's budgets the runs had, each once; none without training.
    pub(super) budgets: Vec<usize>,
}

impl Sample {
    /// How many runs.
    pub(super) fn len(&self) -> usize {
        self.runs.len()
    }

    fn values(&self, metric: &str) -> Vec<f64> {
        self.runs.iter().filter_map(|run| run.get(metric).copied()).collect()
    }

    /// The mean over the runs.
    pub(super) fn mean(&self, metric: &str) -> Option<f64> {
        let values = self.values(metric);
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    }

    /// The standard deviation between the runs; `None` for a single one.
    pub(super) fn deviation(&self, metric: &str) -> Option<f64> {
        let (values, mean) = (self.values(metric), self.mean(metric)?);
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        (values.len() > 1).then(|| (squares / (values.len() - 1) as f64).sqrt())
    }

    /// The variance between seeds, without what differs by chance of the examples: that is in the examples' error, and
    /// must not count twice. `None` for a single run.
    fn seed_variance(&self, metric: &str) -> Option<f64> {
        Some((self.deviation(metric)?.powi(2) - self.within).max(0.0))
    }
}

/// The standard error of a sum of figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct StandardError {
    pub(super) value: f64,
    /// Whether it is that of the sum on the same examples, rather than one from the figures' own errors.
    pub(super) paired: bool,
}

impl StandardError {
    /// That of a sum of samples' means of the deciding metric, each with its sign: by chance of the examples, which all
    /// runs were judged by, and by chance of the seeds.
    pub(super) fn of(metric: &str, terms: &[(f64, Sample)]) -> Option<Self> {
        let (mut shares, mut seeds) = (0.0, 0.0);
        for (_, sample) in terms {
            shares += binomial(sample.mean(metric)?, sample.counted);
            seeds += sample.seed_variance(metric).or(sample.usual_variance).unwrap_or(0.0) / sample.len() as f64;
        }
        let paired = paired(terms).map(|influences| squared_error(&influences));
        Some(Self { value: (paired.unwrap_or(shares) + seeds).sqrt(), paired: paired.is_some() })
    }
}

/// How much each example moves a sum; `None` unless all samples know that of the same examples.
fn paired(terms: &[(f64, Sample)]) -> Option<Vec<f64>> {
    let mut sum: Option<Vec<f64>> = None;
    for (sign, sample) in terms {
        let own = sample.influences.as_ref()?;
        let sum = sum.get_or_insert_with(|| vec![0.0; own.len()]);
        if sum.len() != own.len() {
            return None;
        }
        sum.iter_mut().zip(own).for_each(|(sum, own)| *sum += sign * own);
    }
    sum
}

impl fmt::Display for StandardError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "± {:.2}{}", self.value, if self.paired { "" } else { "*" })
    }
}

/// The mean of the runs' influences, and the variance of a run's figure that comes of each example's differing between
/// runs by chance.
fn influences<'a>(runs: impl Iterator<Item = Option<&'a Outcomes>>) -> Option<(Vec<f64>, f64)> {
    let runs = runs.map(|run| Some(run?.influences())).collect::<Option<Vec<Vec<f64>>>>()?;
    let length = runs.first()?.len();
    if runs.iter().any(|run| run.len() != length) {
        return None;
    }
    let (count, mut within) = (runs.len() as f64, 0.0);
    let mean = |place: usize| runs.iter().map(|run| run[place]).sum::<f64>() / count;
    let means: Vec<f64> = (0..length).map(mean).collect();
    if runs.len() > 1 {
        let squares = runs.iter().flat_map(|run| run.iter().zip(&means)).map(|(own, mean)| (own - mean).powi(2));
        within = squares.sum::<f64>() / (count - 1.0) / (length as f64).powi(2);
    }
    Some((means, within))
}

/// The squared standard error of a share in percent.
pub(super) fn binomial(percent: f64, counted: usize) -> f64 {
    let share = (percent / 100.0).clamp(0.0, 1.0);
    1e4 * share * (1.0 - share) / counted.max(1) as f64
}

/// How much the seed matters to a method.
#[derive(Debug, Clone, Copy)]
struct SeedVariance {
    variant: Variant,
    mean: f64,
    variance: f64,
}

/// All results of a task.
#[derive(Debug)]
pub(super) struct Collected {
    pub(super) task: Task,
    /// In the order of their names; never empty.
    pub(super) rows: Vec<RowResult>,
    /// How much was trained, the most frequent first.
    pub(super) budgets: Vec<String>,
    variances: Vec<SeedVariance>,
    pub(super) sensitivity: Option<Sensitivity>,
}

impl Collected {
    /// Reads `DIRECTORY/TASK/*.json` of every task that is there, and `sensitivity-TASK.json` beside the directory.
    pub(super) fn read(directory: &Path) -> Result<Vec<Self>> {
        let mut all = Vec::new();
        for task in Task::ALL {
            let own = directory.join(task.name());
            if own.is_dir() {
                let sensitivity = directory.parent().map(|up| up.join(format!("sensitivity-{task}.json")));
                all.extend(Self::of_task(task, &own, sensitivity.filter(|path| path.exists()))?);
            }
        }
        if all.is_empty() {
            let message = format!("{}: no results", directory.display());
            let hint = "give the directory of `qbert-paper reproduce --out`, which has a subdirectory for each task";
            return Err(Error::new(ErrorKind::BadInput, message, hint.to_owned()));
        }
        Ok(all)
    }

    fn of_task(task: Task, directory: &Path, sensitivity: Option<PathBuf>) -> Result<Option<Self>> {
        let entries = std::fs::read_dir(directory).map_err(io(directory, "read"))?;
        let paths = entries.map(|entry| entry.map(|entry| entry.path()).map_err(io(directory, "read")));
        let mut paths = paths.collect::<Result<Vec<PathBuf>>>()?;
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
        paths.sort();
        let rows = paths.iter().map(|path| RowResult::read(path)).collect::<Result<Vec<RowResult>>>()?;
        let Some(first) = rows.first() else { return Ok(None) };
        let files = rows.iter().find_map(|row| row.settings.model_files.as_ref());
        for (row, path) in rows.iter().zip(&paths) {
            let own_files = row.settings.model_files.as_ref();
            let judged = |row: &RowResult| {
                let own = &row.settings;
                (own.model.sha256.clone(), own.dev.sha256.clone(), own.max_dev, own.max_len)
            };
            let other_files = own_files.is_some() && own_files != files;
            if judged(row) != judged(first) || other_files || row.settings.task != task {
                let message = format!(
                    "{}: belongs to another model, task or dev set than {}",
                    path.display(),
                    paths[0].display()
                );
                let hint = "use one directory for each model and dev set".to_owned();
                return Err(Error::new(ErrorKind::BadInput, message, hint));
            }
        }
        let budgets = budgets(&rows);
        let sensitivity = sensitivity.map(|path| sensitivity::read(&path)).transpose()?;
        let mut collected = Self { task, rows, budgets, variances: Vec::new(), sensitivity };
        collected.variances = collected.seed_variances();
        Ok(Some(collected))
    }

    /// The first of the results, for what all have in common.
    pub(super) fn any(&self) -> &RowResult {
        &self.rows[0]
    }

    /// The metric that comparisons are about.
    pub(super) fn metric(&self) -> &str {
        &self.any().metric
    }

    /// All metrics, in the order of tables.
    pub(super) fn metrics(&self) -> Vec<&str> {
        self.any().full_precision.keys().map(String::as_str).collect()
    }

    /// The full-precision model's figure.
    pub(super) fn full(&self, metric: &str) -> f64 {
        self.any().full_precision.get(metric).copied().unwrap_or(f64::NAN)
    }

    /// The full-precision model, as a run to set others beside.
    pub(super) fn full_sample(&self) -> Sample {
        let outcomes = self.rows.iter().find_map(|row| row.outcomes.full_precision.as_ref());
        let runs = vec![self.any().full_precision.clone()];
        let influences = influences(std::iter::once(outcomes)).map(|(means, _)| means);
        let (counted, budgets) = (self.any().counted, Vec::new());
        Sample { runs, counted, influences, within: 0.0, usual_variance: None, budgets }
    }

    /// Points that a method loses against full precision, and their standard error.
    pub(super) fn loss(&self, name: &str, variant: Variant) -> Option<(f64, StandardError)> {
        let (metric, sample) = (self.metric(), self.sample(name, variant)?);
        let lost = self.full(metric) - sample.mean(metric)?;
        Some((lost, StandardError::of(metric, &[(1.0, self.full_sample()), (-1.0, sample)])?))
    }

    /// The runs of a method, by its name in files.
    pub(super) fn sample(&self, name: &str, variant: Variant) -> Option<Sample> {
        let rows: Vec<&RowResult> =
            self.rows.iter().filter(|row| name_of(row) == name && variant.includes(row)).collect();
        let counted = self.any().counted;
        if !variant.trained {
            // All say the same; one that kept what became of each example says more.
            let judged = || rows.iter().filter(|row| row.post_training.is_some());
            let row = judged().find(|row| row.outcomes.post_training.is_some()).or(judged().next())?;
            let influences = influences(std::iter::once(row.outcomes.post_training.as_ref())).map(|(means, _)| means);
            let (runs, budgets) = (vec![row.post_training.clone()?], Vec::new());
            return Some(Sample { runs, counted, influences, within: 0.0, usual_variance: None, budgets });
        }
        let runs: Vec<_> = rows.iter().filter_map(|row| Some(row.last.as_ref()?.metrics.clone())).collect();
        let place = |row: &&RowResult| self.budgets.iter().position(|text| Some(text) == budget(row).as_ref());
        let mut budgets: Vec<usize> = rows.iter().filter_map(place).collect();
        budgets.sort_unstable();
        budgets.dedup();
        let trained = rows.iter().filter(|row| row.last.is_some());
        let (influences, within) = influences(trained.map(|row| row.outcomes.last.as_ref())).unzip();
        let mut sample =
            Sample { runs, counted, influences, within: within.unwrap_or(0.0), usual_variance: None, budgets };
        sample.usual_variance = self.usual_variance(variant, sample.mean(self.metric())?);
        Some(sample)
    }

    /// The mean variance between seeds of the methods with several that lose most nearly as much: what loses much
    /// scatters much.
    fn usual_variance(&self, variant: Variant, mean: f64) -> Option<f64> {
        const NEAREST: usize = 3;
        let mut known: Vec<(f64, f64)> = self
            .variances
            .iter()
            .filter(|own| own.variant == variant)
            .map(|own| ((own.mean - mean).abs(), own.variance))
            .collect();
        known.sort_by(|a, b| a.0.total_cmp(&b.0));
        known.truncate(NEAREST);
        (!known.is_empty()).then(|| known.iter().map(|(_, variance)| variance).sum::<f64>() / known.len() as f64)
    }

    /// What is known of the chance of seeds: from every method that was run with several.
    fn seed_variances(&self) -> Vec<SeedVariance> {
        let names: BTreeSet<&str> = self.rows.iter().map(name_of).collect();
        let mut found = Vec::new();
        for variant in Variant::all() {
            for sample in names.iter().filter_map(|name| self.sample(name, variant)) {
                let (mean, variance) = (sample.mean(self.metric()), sample.seed_variance(self.metric()));
                found.extend(mean.zip(variance).map(|(mean, variance)| SeedVariance { variant, mean, variance }));
            }
        }
        found
    }

    /// Whether any row was run in a variant.
    pub(super) fn has(&self, variant: Variant) -> bool {
        self.rows.iter().any(|row| variant.includes(row))
    }

    /// Any result of a method, for its size.
    pub(super) fn sized(&self, name: &str) -> Option<&RowResult> {
        self.rows.iter().find(|row| name_of(row) == name)
    }
}

/// The method's name in files.
pub(super) fn name_of(row: &RowResult) -> &str {
    row.id.split('.').next().unwrap_or(&row.id)
}

/// How much a row was trained, for people.
fn budget(row: &RowResult) -> Option<String> {
    let (training, settings) = (row.training.as_ref()?, row.settings.budget.as_ref()?);
    row.last.as_ref()?;
    Some(format!(
        "{} steps of {} sequences at a learning rate of {:?}, {:.2} passes over {} sequences",
        training.steps,
        settings.batch * settings.accumulate,
        settings.optimizer.learning_rate,
        training.epochs,
        training.sequences,
    ))
}

fn budgets(rows: &[RowResult]) -> Vec<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for text in rows.iter().filter_map(budget) {
        *counts.entry(text).or_default() += 1;
    }
    let mut texts: Vec<(String, usize)> = counts.into_iter().collect();
    texts.sort_by(|(text, count), (other, more)| more.cmp(count).then_with(|| text.cmp(other)));
    texts.into_iter().map(|(text, _)| text).collect()
}
