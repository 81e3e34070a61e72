//! `config.json`: the numbers that say which BERT this is.
//!
//! Only what the engine computes is accepted: the original encoder with learned absolute positions and
//! erf-GELU. Anything else is refused by name, because running it anyway would give wrong numbers silently.
//! Keys we do not know are kept and written back untouched.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// The head on top of the encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Head {
    /// The bare encoder (`BertModel`), with or without a pooler.
    None,
    /// One label per sequence, from the pooled `[CLS]` (`BertForSequenceClassification`).
    SequenceClassification,
    /// One label per token (`BertForTokenClassification`).
    TokenClassification,
    /// Start and end scores per token (`BertForQuestionAnswering`).
    QuestionAnswering,
}

impl Head {
    /// The class name that `transformers` puts into `architectures`.
    pub fn architecture(self) -> &'static str {
        match self {
            Self::None => "BertModel",
            Self::SequenceClassification => "BertForSequenceClassification",
            Self::TokenClassification => "BertForTokenClassification",
            Self::QuestionAnswering => "BertForQuestionAnswering",
        }
    }

    fn from_architecture(name: &str) -> Option<Self> {
        [Self::None, Self::SequenceClassification, Self::TokenClassification, Self::QuestionAnswering]
            .into_iter()
            .find(|head| head.architecture() == name)
    }
}

/// The numbers of a BERT encoder, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Rows of the word embedding.
    pub vocab_size: usize,
    /// Width of a token's vector.
    pub hidden_size: usize,
    /// Encoder layers.
    pub layers: usize,
    /// Attention heads per layer; divides `hidden_size`.
    pub heads: usize,
    /// Width of the feed-forward layer.
    pub intermediate_size: usize,
    /// Rows of the position embedding: the longest sequence.
    pub max_positions: usize,
    /// Rows of the token-type embedding.
    pub type_vocab_size: usize,
    /// Added to the variance in `LayerNorm`.
    pub layer_norm_eps: f32,
    /// Dropout after embeddings and sublayers, in training.
    pub hidden_dropout: f32,
    /// Dropout on attention probabilities, in training.
    pub attention_dropout: f32,
    /// Dropout before the head; `hidden_dropout` where the file names none.
    pub classifier_dropout: f32,
    /// Standard deviation of freshly drawn weights.
    pub initializer_range: f32,
    /// What `architectures` names, where it is one of ours.
    pub declared_head: Option<Head>,
    /// `id2label` in the order of the ids; empty where the file has none.
    pub labels: Vec<String>,
    raw: Map<String, Value>,
}

/// No BERT comes near these; a config that exceeds them is damaged, and is refused before memory is asked for.
const LARGEST_DIMENSION: usize = 1 << 24;
const MOST_LAYERS: usize = 1 << 10;
const MOST_PARAMETERS: u64 = 1 << 36;

impl Config {
    /// Reads and checks `config.json` at `path`.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read(path).map_err(Error::io(path, "read the configuration"))?;
        Self::parse(&text, path)
    }

    /// Checks the bytes of a `config.json`; `path` only serves the error messages.
    pub fn parse(text: &[u8], path: &Path) -> Result<Self> {
        let raw = match serde_json::from_slice(text) {
            Ok(Value::Object(map)) => map,
            Ok(_) => return Err(problem(path, "not a JSON object".to_owned())),
            Err(error) => return Err(problem(path, format!("not valid JSON: {error}"))),
        };
        let keys = Keys { raw: &raw, path };
        keys.only("model_type", &["bert"])?;
        keys.only("position_embedding_type", &["absolute"])?;
        keys.only("hidden_act", &["gelu", "gelu_python"])?;
        for unsupported in ["is_decoder", "add_cross_attention"] {
            if raw.get(unsupported) == Some(&Value::Bool(true)) {
                return Err(problem(path, format!("`{unsupported}` is true: only encoders are supported")));
            }
        }
        let hidden_dropout = keys.number("hidden_dropout_prob", 0.1)?;
        let config = Self {
            vocab_size: keys.size("vocab_size")?,
            hidden_size: keys.size("hidden_size")?,
            layers: keys.size("num_hidden_layers")?,
            heads: keys.size("num_attention_heads")?,
            intermediate_size: keys.size("intermediate_size")?,
            max_positions: keys.size("max_position_embeddings")?,
            type_vocab_size: keys.size_or("type_vocab_size", 2)?,
            layer_norm_eps: keys.number("layer_norm_eps", 1e-12)?,
            hidden_dropout,
            attention_dropout: keys.number("attention_probs_dropout_prob", 0.1)?,
            classifier_dropout: keys.number("classifier_dropout", hidden_dropout)?,
            initializer_range: keys.number("initializer_range", 0.02)?,
            declared_head: declared_head(&raw),
            labels: labels(&raw, path)?,
            raw,
        };
        config.check(path)?;
        Ok(config)
    }

    fn check(&self, path: &Path) -> Result<()> {
        if !self.hidden_size.is_multiple_of(self.heads) {
            let (hidden, heads) = (self.hidden_size, self.heads);
            let text = format!("`hidden_size` {hidden} is not a multiple of `num_attention_heads` {heads}");
            return Err(problem(path, text));
        }
        if self.layers > MOST_LAYERS {
            return Err(problem(path, format!("`num_hidden_layers` {} is not believable", self.layers)));
        }
        // Below the dimension limits these products fit u64, except the sum over layers of a hostile file.
        let (hidden, wide) = (self.hidden_size as u64, self.intermediate_size as u64);
        let layer = 4 * hidden * hidden + 2 * hidden * wide;
        let rows = (self.vocab_size + self.max_positions + self.type_vocab_size) as u64;
        let total = layer.saturating_mul(self.layers as u64).saturating_add(rows * hidden);
        if total > MOST_PARAMETERS {
            return Err(problem(path, format!("the sizes ask for {total} parameters, which is not believable")));
        }
        for (key, value) in [
            ("hidden_dropout_prob", self.hidden_dropout),
            ("attention_probs_dropout_prob", self.attention_dropout),
            ("classifier_dropout", self.classifier_dropout),
        ] {
            if !(0.0..1.0).contains(&value) {
                return Err(problem(path, format!("`{key}` is {value}; it must be at least 0 and below 1")));
            }
        }
        for (key, value) in [("layer_norm_eps", self.layer_norm_eps), ("initializer_range", self.initializer_range)] {
            if value <= 0.0 {
                return Err(problem(path, format!("`{key}` is {value}; it must be above 0")));
            }
        }
        Ok(())
    }

    /// Width of one attention head.
    pub fn head_size(&self) -> usize {
        self.hidden_size / self.heads
    }

    /// A `config.json` for this model with another head and its labels; unknown keys are kept.
    pub fn to_json(&self, head: Head, labels: &[String]) -> Value {
        let mut raw = self.raw.clone();
        raw.insert("architectures".into(), serde_json::json!([head.architecture()]));
        raw.insert("model_type".into(), "bert".into());
        // Weights are written in f32; an old entry would make transformers load them in half precision.
        for key in ["torch_dtype", "dtype"] {
            if raw.contains_key(key) {
                raw.insert(key.into(), "float32".into());
            }
        }
        // Derived from id2label by transformers, and contradicting it otherwise.
        for key in ["num_labels", "id2label", "label2id"] {
            raw.shift_remove(key);
        }
        if matches!(head, Head::SequenceClassification | Head::TokenClassification) {
            let by_id: Map<_, _> = labels.iter().enumerate().map(|(i, l)| (i.to_string(), l.as_str().into())).collect();
            let by_label: Map<_, _> = labels.iter().enumerate().map(|(i, l)| (l.clone(), i.into())).collect();
            raw.insert("id2label".into(), Value::Object(by_id));
            raw.insert("label2id".into(), Value::Object(by_label));
        }
        Value::Object(raw)
    }

    /// This configuration with other labels and declared head, as `to_json` would write it.
    pub fn with_head(&self, head: Head, labels: &[String]) -> Self {
        let raw = match self.to_json(head, labels) {
            Value::Object(raw) => raw,
            _ => Map::new(),
        };
        Self { declared_head: Some(head), labels: labels.to_vec(), raw, ..self.clone() }
    }
}

fn problem(path: &Path, problem: String) -> Error {
    Error::Config { path: path.to_owned(), problem }
}

fn declared_head(raw: &Map<String, Value>) -> Option<Head> {
    let names = raw.get("architectures")?.as_array()?;
    names.iter().filter_map(Value::as_str).find_map(Head::from_architecture)
}

/// `id2label` with ids 0..n, each once; otherwise `num_labels` numbered names; otherwise none.
fn labels(raw: &Map<String, Value>, path: &Path) -> Result<Vec<String>> {
    let Some(Value::Object(by_id)) = raw.get("id2label") else {
        let count = raw.get("num_labels").and_then(Value::as_u64).unwrap_or(0);
        if count as usize > LARGEST_DIMENSION {
            return Err(problem(path, format!("`num_labels` {count} is not believable")));
        }
        return Ok((0..count).map(|i| format!("LABEL_{i}")).collect());
    };
    let mut labels = vec![None; by_id.len()];
    for (id, name) in by_id {
        let (Ok(index), Some(name)) = (id.parse::<usize>(), name.as_str()) else {
            return Err(problem(
                path,
                format!("`id2label` has the entry `{id}`: {name}; ids are numbers, labels text"),
            ));
        };
        match labels.get_mut(index) {
            Some(slot @ None) => *slot = Some(name.to_owned()),
            _ => return Err(problem(path, format!("`id2label` has {} entries but id {id}", by_id.len()))),
        }
    }
    Ok(labels.into_iter().flatten().collect())
}

/// Looks keys up and names them in every complaint.
struct Keys<'a> {
    raw: &'a Map<String, Value>,
    path: &'a Path,
}

impl Keys<'_> {
    fn size(&self, key: &str) -> Result<usize> {
        match self.raw.get(key) {
            None => Err(problem(self.path, format!("`{key}` is missing"))),
            Some(value) => match value.as_u64() {
                Some(n) if n >= 1 && n <= LARGEST_DIMENSION as u64 => Ok(n as usize),
                _ => Err(problem(
                    self.path,
                    format!("`{key}` is {value}; it must be a whole number from 1 to {LARGEST_DIMENSION}"),
                )),
            },
        }
    }

    fn size_or(&self, key: &str, default: usize) -> Result<usize> {
        if self.raw.contains_key(key) { self.size(key) } else { Ok(default) }
    }

    fn number(&self, key: &str, default: f32) -> Result<f32> {
        match self.raw.get(key) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => match value.as_f64() {
                Some(n) if n.is_finite() => Ok(n as f32),
                _ => Err(problem(self.path, format!("`{key}` is {value}; it must be a number"))),
            },
        }
    }

    /// Refuses any value but the accepted ones; a missing key means the first.
    fn only(&self, key: &str, accepted: &[&str]) -> Result<()> {
        match self.raw.get(key) {
            None | Some(Value::Null) => Ok(()),
            Some(Value::String(value)) if accepted.contains(&value.as_str()) => Ok(()),
            Some(value) => {
                Err(problem(self.path, format!("`{key}` is {value}; only {} is supported", accepted.join(" or "))))
            }
        }
    }
}
