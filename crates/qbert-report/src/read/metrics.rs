//! `metrics.json`: what a run reached, and what it was made from.

use serde::Deserialize;
use serde_json::Value;

use crate::data::{ClassResults, ClassRow, Fact, Scores};
use crate::error::{Error, Result};

/// Which kind of run wrote the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Full precision.
    Finetuning,
    /// Quantization-aware training: the file says what the model could do before.
    Quantization,
}

impl Stage {
    /// What the stage is called on the page.
    pub fn name(self) -> &'static str {
        match self {
            Self::Finetuning => "Fine-tuning",
            Self::Quantization => "Quantization-aware training",
        }
    }
}

/// What a run reached.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct Metrics {
    /// The evaluation of the best epoch.
    pub dev: Dev,
    /// The best epoch, counted from 1.
    pub epoch: Option<f64>,
    /// Of a quantized model: its figures before training.
    pub before: Option<Before>,
    /// Settings, task, hashes.
    pub run: Value,
}

/// An evaluation.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct Dev {
    /// The metric's name.
    pub metric: String,
    /// Its value, in percent.
    pub value: Option<f64>,
    /// Examples.
    pub examples: Option<u64>,
    /// Everything else that was measured.
    pub details: Value,
}

/// Figures of a model before its quantization-aware training.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct Before {
    /// Full precision.
    pub full_precision: Option<f64>,
    /// Quantized, not trained.
    pub post_training: Option<f64>,
}

/// Reads the file.
pub fn metrics(text: &str, file: &str) -> Result<Metrics> {
    serde_json::from_str(text).map_err(|source| Error::Json { file: file.to_owned(), source })
}

#[derive(Deserialize)]
struct OfRun {
    #[serde(default)]
    metric: String,
    #[serde(default)]
    examples: Option<u64>,
    stages: Vec<OfStage>,
}

#[derive(Deserialize)]
struct OfStage {
    stage: String,
    value: Option<f64>,
    #[serde(default)]
    details: Value,
}

/// The `metrics.json` of a whole run, format `qbert-metrics`: the figures in full precision, and those of the packed model.
/// `None` for the file of a single training.
///
/// # Errors
/// A file that is not JSON, or not what it says it is.
pub fn run_metrics(text: &str, file: &str) -> Result<Option<[Option<Metrics>; 2]>> {
    let json = |source| Error::Json { file: file.to_owned(), source };
    let value: Value = serde_json::from_str(text).map_err(json)?;
    if value.get("format").is_none() {
        return Ok(None);
    }
    let run: OfRun = super::document(text, file, "qbert-metrics")?;
    let of = |name: &str| {
        let stage = run.stages.iter().find(|stage| stage.stage == name)?;
        let (metric, details) = (run.metric.clone(), stage.details.clone());
        let dev = Dev { metric, value: stage.value, examples: run.examples, details };
        Some(Metrics { dev, ..Metrics::default() })
    };
    Ok(Some([of("full precision"), of("packed")]))
}

impl Metrics {
    /// Which kind of run this was.
    pub fn stage(&self) -> Stage {
        if self.before.is_some() { Stage::Quantization } else { Stage::Finetuning }
    }

    /// The task's name, or nothing.
    pub fn task(&self) -> &str {
        self.run.pointer("/run/task").and_then(Value::as_str).unwrap_or_default()
    }

    /// The settings that decided the run.
    pub fn settings(&self) -> &Value {
        self.run.get("settings").unwrap_or(&Value::Null)
    }

    /// Seeds and hashes.
    pub fn facts(&self) -> Vec<Fact> {
        let mut facts = Vec::new();
        let mut add = |name: &str, value: Option<&Value>| {
            let text = value.map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
            if let Some(value) = text.filter(|text| text != "null") {
                facts.push(Fact { group: self.stage().name().to_owned(), name: name.to_owned(), value });
            }
        };
        add("task", self.run.pointer("/run/task"));
        add("weights at the start", self.run.pointer("/run/model"));
        for (name, key) in [("training data", "train"), ("dev data", "dev")] {
            let data = self.run.pointer(&format!("/run/{key}")).map(data_in_words);
            add(name, data.map(Value::String).as_ref());
        }
        add("longest sequence", self.run.pointer("/run/max_len"));
        add("seed", self.settings().get("seed"));
        add("epochs", self.settings().get("epochs"));
        add("batch", self.settings().get("batch"));
        add("learning rate", self.settings().pointer("/optimizer/learning_rate"));
        facts
    }
}

/// Size and hash of a data set in one line.
pub(crate) fn data_in_words(data: &Value) -> String {
    let number = |key: &str| data.get(key).and_then(Value::as_u64);
    let mut parts = Vec::new();
    if let Some(sequences) = number("sequences") {
        parts.push(format!("{sequences} sequences"));
    }
    if let Some(tokens) = number("tokens") {
        parts.push(format!("{tokens} tokens"));
    }
    if let Some(hash) = data.get("hash").and_then(Value::as_str) {
        parts.push(format!("hash {hash}"));
    }
    parts.join(", ")
}

#[derive(Deserialize)]
struct Named {
    name: String,
    #[serde(flatten)]
    scores: Scores,
    #[serde(default)]
    support: u64,
}

/// Per class or entity type, whichever the details have; `None` when neither has any.
pub fn classes(before: Option<&Metrics>, after: Option<&Metrics>) -> Option<ClassResults> {
    let mut kind = "class";
    let mut rows: Vec<ClassRow> = Vec::new();
    for (metrics, is_after) in [(before, false), (after, true)] {
        let Some(metrics) = metrics else { continue };
        for (key, name) in [("per_class", "class"), ("per_type", "entity type")] {
            let Some(list) = metrics.dev.details.get(key).and_then(Value::as_array) else { continue };
            kind = name;
            for named in list.iter().filter_map(|value| Named::deserialize(value).ok()) {
                let at = rows.iter().position(|row| row.name == named.name).unwrap_or_else(|| {
                    rows.push(ClassRow { name: named.name.clone(), support: named.support, ..ClassRow::default() });
                    rows.len() - 1
                });
                let place = if is_after { &mut rows[at].after } else { &mut rows[at].before };
                *place = Some(named.scores);
            }
        }
    }
    (!rows.is_empty()).then(|| ClassResults { kind: kind.to_owned(), rows })
}
