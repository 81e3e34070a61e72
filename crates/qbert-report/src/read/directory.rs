//! Fills a report from whatever a run's directory contains.
//!
//! Files are recognized by name, in the directory and in its immediate subdirectories (those of the fine-tuned and the
//! quantized checkpoint). A missing file is no error; a damaged one is.

use std::path::{Path, PathBuf};

use qbert_documents::{BitCount, Fact, RunMetrics, Summary, TrainingMetrics, number::known, parse};

use super::metrics::{MetricsFile, TrainingStage, classes, data_in_words, facts};
use super::training::TrainingLog;
use crate::data::{BitPlan, EpochMetric, LandscapePart, Report, SensitivityPart, TrainingRun};
use crate::error::{Error, Result};

/// Fills a report from a run's directory.
///
/// | file | becomes |
/// |---|---|
/// | `train.jsonl`, `metrics.json` | training curves, results per class, the summary's figures, provenance |
/// | `metrics.json` of a whole run (`qbert-metrics`) | results per class, of the packed model |
/// | `sensitivity*.json`, `landscape*.json`, `attention*.json`, `plan.toml` | their figures |
/// | `plan-search.json` | the plans that were tried |
/// | `summary.json`, `models.json`, `changes.json`, `provenance.json` | the sections of their names |
///
/// # Errors
/// A file that cannot be read or is not what its name says; landscapes of different models; a directory with none of these.
pub fn directory(path: &Path) -> Result<Report> {
    let mut found = Found::default();
    found.look_into(path)?;
    // Superseded results are no part of the run.
    for folder in entries(path)?.iter().filter(|entry| entry.is_dir() && !entry.ends_with("old")) {
        found.look_into(folder)?;
    }
    if !found.any {
        return Err(Error::Nothing { path: path.to_owned() });
    }
    Ok(found.finish())
}

/// The entries of a directory, sorted by name.
fn entries(path: &Path) -> Result<Vec<PathBuf>> {
    let failed = |source| Error::Read { path: path.to_owned(), source };
    let listed = std::fs::read_dir(path).map_err(failed)?;
    let mut entries =
        listed.map(|entry| entry.map(|e| e.path())).collect::<std::io::Result<Vec<_>>>().map_err(failed)?;
    entries.sort();
    Ok(entries)
}

#[derive(Default)]
struct Found {
    any: bool,
    report: Report,
    metrics: Vec<TrainingMetrics>,
    /// Figures of a whole run.
    whole: Option<RunMetrics>,
    runs: Vec<(TrainingStage, TrainingRun)>,
    landscape_file: String,
}

impl Found {
    fn look_into(&mut self, folder: &Path) -> Result<()> {
        let mut log = None;
        let mut metrics = None;
        for path in entries(folder)?.into_iter().filter(|path| path.is_file()) {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let starts = |prefix: &str| name.starts_with(prefix) && name.ends_with(".json");
            let file = path.display().to_string();
            let read = || std::fs::read_to_string(&path).map_err(|source| Error::Read { path: path.clone(), source });
            let report = &mut self.report;
            match name {
                "train.jsonl" => log = Some(super::training(&read()?, &file)?),
                "metrics.json" => match MetricsFile::parse(&read()?, &file)? {
                    MetricsFile::Run(whole) => self.whole = Some(whole),
                    MetricsFile::Training(own) => metrics = Some(*own),
                },
                "plan.toml" => report.plan = Some(super::plan(&read()?, &file)?),
                "plan-search.json" => report.plan_search = Some(parse(&read()?, &file)?),
                "summary.json" => report.summary = Some(parse(&read()?, &file)?),
                "models.json" => report.models = Some(parse(&read()?, &file)?),
                "changes.json" => report.changes = Some(parse(&read()?, &file)?),
                "provenance.json" => report.provenance = parse(&read()?, &file)?,
                _ if starts("sensitivity") => report.sensitivity = Some(super::sensitivity(&read()?, &file)?),
                _ if starts("attention") => report.attention = Some(super::attention(&read()?, &file)?),
                _ if starts("landscape") => self.landscape(super::landscape(&read()?, &file)?, file)?,
                _ => continue,
            }
            self.any = true;
        }
        self.training(log, metrics);
        Ok(())
    }

    /// Adds what a folder says of a training run: its log, its metrics or both.
    fn training(&mut self, log: Option<TrainingLog>, metrics: Option<TrainingMetrics>) {
        let stage = metrics.as_ref().map_or(TrainingStage::Finetuning, TrainingStage::of);
        if let Some(log) = log {
            let mut run = TrainingRun {
                name: stage.name().to_owned(),
                steps: log.steps,
                lost: log.lost,
                curve: log.curve,
                evaluations: log.evaluations,
                ..TrainingRun::default()
            };
            if let Some(metrics) = &metrics {
                run.describe(metrics);
            }
            self.runs.push((stage, run));
        }
        self.metrics.extend(metrics);
    }

    /// Adds a landscape; several files of one model are shown together.
    fn landscape(&mut self, read: LandscapePart, file: String) -> Result<()> {
        match &mut self.report.landscape {
            None => {
                self.report.landscape = Some(read);
                self.landscape_file = file;
            }
            Some(first) if first.model == read.model => {
                first.layers.extend(read.layers);
                first.layers.sort_by_key(|layer| layer.layer);
            }
            Some(first) => {
                let (other, expected) = (self.landscape_file.clone(), first.model.clone());
                return Err(Error::Mixed { file, found: read.model, other, expected });
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Report {
        self.runs.sort_by_key(|(stage, _)| *stage);
        self.report.training = self.runs.into_iter().map(|(_, run)| run).collect();
        let of = |stage| self.metrics.iter().find(|metrics| TrainingStage::of(metrics) == stage);
        let (before, after) = (of(TrainingStage::Finetuning), of(TrainingStage::Quantization));
        let mut report = self.report;
        if report.summary.is_none() {
            report.summary = summary(before, after);
        }
        if let (Some(summary), Some(plan)) = (&mut report.summary, &report.plan)
            && summary.bits.is_empty()
        {
            summary.bits = plan.in_words();
        }
        if report.classes.is_none() {
            let of_run = |stage: &str| Some(&self.whole.as_ref()?.stage(stage)?.details);
            let [before, after] = [before, after].map(|own| own.map(|metrics| &metrics.dev.details));
            let (full, packed) = (of_run(RunMetrics::FULL_PRECISION), of_run(RunMetrics::PACKED));
            report.classes = classes(full.or(before), packed.or(after));
        }
        let listed = &mut report.provenance.facts;
        listed.extend(before.into_iter().chain(after).flat_map(facts));
        listed.extend(report.sensitivity.iter().flat_map(analysis_facts));
        report
    }
}

impl BitPlan {
    /// The widths in one line: first those of the layers, then the others.
    fn in_words(&self) -> String {
        let mut widths: Vec<BitCount> = self.layers.iter().flatten().copied().collect();
        widths.sort_by(|one, other| one.get().total_cmp(&other.get()));
        widths.dedup();
        let widths: Vec<String> = widths.iter().map(BitCount::to_string).collect();
        let others = self.others.iter().map(|other| format!("{} {}", other.site, other.bits));
        std::iter::once(format!("layers {}", widths.join("/"))).chain(others).collect::<Vec<_>>().join(", ")
    }
}

impl TrainingRun {
    /// Adds the settings and, if the log has no evaluations, the best epoch's figure from `metrics.json`.
    fn describe(&mut self, metrics: &TrainingMetrics) {
        self.metric.clone_from(&metrics.dev.metric);
        self.settings = metrics.settings().clone();
        if self.evaluations.is_empty() {
            let start = metrics.before.and_then(|before| known(before.post_training)).map(|value| (0, value));
            let best = metrics.epoch.zip(known(metrics.dev.value)).filter(|(epoch, _)| start.is_none() || *epoch > 0);
            let figures = start.into_iter().chain(best);
            self.evaluations.extend(figures.map(|(epoch, value)| EpochMetric { epoch: epoch as f64, value }));
        }
    }
}

fn summary(before: Option<&TrainingMetrics>, after: Option<&TrainingMetrics>) -> Option<Summary> {
    let either = after.or(before)?;
    let figures = after.and_then(|metrics| metrics.before);
    Some(Summary {
        task: either.task().to_owned(),
        metric: either.dev.metric.clone(),
        examples: either.dev.examples,
        full_precision: before.and_then(|m| known(m.dev.value)).or(figures.and_then(|f| known(f.full_precision))),
        post_training: figures.and_then(|figures| known(figures.post_training)),
        trained: after.filter(|metrics| metrics.is_trained()).and_then(|metrics| known(metrics.dev.value)),
        ..Summary::default()
    })
}

fn analysis_facts(sensitivity: &SensitivityPart) -> Vec<Fact> {
    let mut facts = Vec::new();
    let mut add = |name: &str, value: String| {
        if !value.is_empty() && value != "null" {
            facts.push(Fact { group: "Analysis".to_owned(), name: name.to_owned(), value });
        }
    };
    add("weights", sensitivity.model.clone());
    add("data", data_in_words(&sensitivity.data));
    for key in ["method", "runs", "fraction", "max_examples", "seed"] {
        let value = sensitivity.settings.get(key).unwrap_or(&serde_json::Value::Null);
        add(&key.replace('_', " "), value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    }
    facts
}
