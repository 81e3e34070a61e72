//! A run's directory: finds what is there and fills a report with it.
//!
//! Files are known by their names, in the directory and in its immediate subdirectories (a fine-tuned checkpoint and a
//! quantized one lie beside the analysis). What is absent is no error; what is there and damaged is.

use std::path::{Path, PathBuf};

use super::metrics::{Metrics, Stage, data_in_words};
use crate::data::{BitPlan, EpochMetric, Fact, Landscapes, Report, Sensitivity, Summary, TrainingRun};
use crate::error::{Error, Result};

/// Fills a report from a run's directory.
///
/// | file | becomes |
/// |---|---|
/// | `train.jsonl`, `metrics.json` | training curves, results per class, the summary's figures, provenance |
/// | `metrics.json` of a whole run (`qbert-metrics`) | results per class, of the packed model |
/// | `sensitivity*.json`, `landscape*.json`, `attention*.json`, `plan.toml` | their figures |
/// | `summary.json`, `models.json`, `changes.json`, `provenance.json` | the sections of their names |
///
/// # Errors
/// A file that cannot be read or is not what its name says; landscapes of different models; a directory with none of these.
pub fn directory(path: &Path) -> Result<Report> {
    let mut found = Found::default();
    found.look_into(path)?;
    // What a run put away is not part of it any more.
    for folder in entries(path)?.iter().filter(|entry| entry.is_dir() && !entry.ends_with("old")) {
        found.look_into(folder)?;
    }
    if !found.any {
        return Err(Error::Nothing { path: path.to_owned() });
    }
    Ok(found.finish())
}

/// What is in a directory, in the order of names.
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
    metrics: Vec<Metrics>,
    /// Figures of a whole run: before and after quantization.
    whole: [Option<Metrics>; 2],
    runs: Vec<(Stage, TrainingRun)>,
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
                "metrics.json" => match super::run_metrics(&read()?, &file)? {
                    Some(whole) => self.whole = whole,
                    None => metrics = Some(super::metrics(&read()?, &file)?),
                },
                "plan.toml" => report.plan = Some(super::plan(&read()?, &file)?),
                "summary.json" => report.summary = Some(super::summary(&read()?, &file)?),
                "models.json" => report.models = Some(super::models(&read()?, &file)?),
                "changes.json" => report.changes = Some(super::changes(&read()?, &file)?),
                "provenance.json" => report.provenance = super::provenance(&read()?, &file)?,
                _ if starts("sensitivity") => report.sensitivity = Some(super::sensitivity(&read()?, &file)?),
                _ if starts("attention") => report.attention = Some(super::attention(&read()?, &file)?),
                _ if starts("landscape") => self.landscape(super::landscape(&read()?, &file)?, file)?,
                _ => continue,
            }
            self.any = true;
        }
        let stage = metrics.as_ref().map_or(Stage::Finetuning, Metrics::stage);
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
        Ok(())
    }

    /// Several files of one model are shown together.
    fn landscape(&mut self, read: Landscapes, file: String) -> Result<()> {
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
        let of = |stage| self.metrics.iter().find(|metrics| metrics.stage() == stage);
        let (before, after) = (of(Stage::Finetuning), of(Stage::Quantization));
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
            let [full, packed] = &self.whole;
            report.classes = super::classes(full.as_ref().or(before), packed.as_ref().or(after));
        }
        let facts = &mut report.provenance.facts;
        facts.extend(before.into_iter().chain(after).flat_map(Metrics::facts));
        facts.extend(report.sensitivity.iter().flat_map(analysis_facts));
        report
    }
}

impl BitPlan {
    /// Widths in one line: those of the layers, then each other one.
    fn in_words(&self) -> String {
        let mut widths: Vec<u8> = self.layers.iter().flatten().copied().collect();
        widths.sort_unstable();
        widths.dedup();
        let widths: Vec<String> = widths.iter().map(u8::to_string).collect();
        let others = self.others.iter().map(|other| format!("{} {}", other.site, other.bits));
        std::iter::once(format!("layers {}", widths.join("/"))).chain(others).collect::<Vec<_>>().join(", ")
    }
}

impl TrainingRun {
    /// Adds what only `metrics.json` knows: settings, and the best epoch's figure where the log has none.
    fn describe(&mut self, metrics: &Metrics) {
        self.metric.clone_from(&metrics.dev.metric);
        self.settings = metrics.settings().clone();
        if self.evaluations.is_empty() {
            let start = metrics.before.and_then(|before| before.post_training).map(|value| (0.0, value));
            let best = metrics.epoch.zip(metrics.dev.value).filter(|(epoch, _)| start.is_none() || *epoch > 0.0);
            let known = start.into_iter().chain(best);
            self.evaluations.extend(known.map(|(epoch, value)| EpochMetric { epoch, value }));
        }
    }
}

fn summary(before: Option<&Metrics>, after: Option<&Metrics>) -> Option<Summary> {
    let either = after.or(before)?;
    let figures = after.and_then(|metrics| metrics.before);
    Some(Summary {
        task: either.task().to_owned(),
        metric: either.dev.metric.clone(),
        examples: either.dev.examples,
        full_precision: before.and_then(|m| m.dev.value).or(figures.and_then(|f| f.full_precision)),
        post_training: figures.and_then(|figures| figures.post_training),
        // The best epoch 0 is the model before its first step.
        trained: after.filter(|metrics| metrics.epoch != Some(0.0)).and_then(|metrics| metrics.dev.value),
        ..Summary::default()
    })
}

fn analysis_facts(sensitivity: &Sensitivity) -> Vec<Fact> {
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
