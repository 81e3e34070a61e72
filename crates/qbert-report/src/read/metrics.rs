//! `metrics.json`: what a run reached, and what it was made from.

use qbert_documents::{Error, Fact, RunMetrics, TrainingMetrics, parse};
use serde::Deserialize;
use serde_json::Value;

use crate::data::{ClassResults, ClassRow, Scores};
use crate::error::Result;

/// Which kind of training wrote the file, in the order they happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TrainingStage {
    /// Full precision.
    Finetuning,
    /// Quantization-aware training.
    Quantization,
}

impl TrainingStage {
    /// The stage that wrote these metrics.
    pub(super) fn of(metrics: &TrainingMetrics) -> Self {
        if metrics.is_quantization() { Self::Quantization } else { Self::Finetuning }
    }

    /// What the stage is called on the page.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Finetuning => "Fine-tuning",
            Self::Quantization => "Quantization-aware training",
        }
    }
}

/// Either of the files called `metrics.json`.
pub(super) enum MetricsFile {
    /// Of a whole `qbert run`.
    Run(RunMetrics),
    /// Of one training run.
    Training(Box<TrainingMetrics>),
}

impl MetricsFile {
    /// Reads the file: that of a training run names no format.
    pub(super) fn parse(text: &str, file: &str) -> Result<Self> {
        match parse(text, file) {
            Ok(run) => Ok(Self::Run(run)),
            Err(Error::Format { found: None, .. }) => Ok(Self::Training(Box::new(parse(text, file)?))),
            Err(error) => Err(error.into()),
        }
    }
}

/// Seeds and hashes.
pub(super) fn facts(metrics: &TrainingMetrics) -> Vec<Fact> {
    let group = TrainingStage::of(metrics).name();
    let (run, settings) = (&metrics.run, metrics.settings());
    let mut facts = Vec::new();
    let mut add = |name: &str, value: Option<&Value>| {
        let text = value.map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        if let Some(value) = text.filter(|text| text != "null") {
            facts.push(Fact { group: group.to_owned(), name: name.to_owned(), value });
        }
    };
    add("task", run.pointer("/run/task"));
    add("weights at the start", run.pointer("/run/model"));
    for (name, key) in [("training data", "train"), ("dev data", "dev")] {
        let data = run.pointer(&format!("/run/{key}")).map(data_in_words);
        add(name, data.map(Value::String).as_ref());
    }
    add("longest sequence", run.pointer("/run/max_len"));
    add("seed", settings.get("seed"));
    add("epochs", settings.get("epochs"));
    add("batch", settings.get("batch"));
    add("learning rate", settings.pointer("/optimizer/learning_rate"));
    facts
}

/// Size and hash of a data set in one line.
pub(super) fn data_in_words(data: &Value) -> String {
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

/// Results per class or entity type, from the details of an evaluation before and after quantization; `None` when neither
/// has any.
pub(super) fn classes(before: Option<&Value>, after: Option<&Value>) -> Option<ClassResults> {
    let mut kind = "class";
    let mut rows: Vec<ClassRow> = Vec::new();
    for (details, is_after) in [(before, false), (after, true)] {
        let Some(details) = details else { continue };
        for (key, name) in [("per_class", "class"), ("per_type", "entity type")] {
            let Some(list) = details.get(key).and_then(Value::as_array) else { continue };
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
