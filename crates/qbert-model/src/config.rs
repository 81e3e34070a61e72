//! `config.json`: which family a model belongs to, and its sizes.
//!
//! Which keys hold the numbers, and which settings are supported, is the [`Family`]'s to say. A setting that nothing
//! here computes is refused by name, because ignoring it would silently give wrong results. Unknown keys are kept and
//! written back untouched.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::family::{Activation, ConfigKeys, Family};
use crate::head::Head;

/// A model's family and sizes, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// What kind of encoder this is.
    pub family: &'static Family,
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
    /// The function between the two feed-forward matrices.
    pub activation: Activation,
    /// Added to the variance in norms.
    pub layer_norm_eps: f32,
    /// Dropout after embeddings and sublayers, in training.
    pub hidden_dropout: f32,
    /// Dropout on attention probabilities, in training.
    pub attention_dropout: f32,
    /// Dropout before the head; `hidden_dropout` where the file names none.
    pub classifier_dropout: f32,
    /// Standard deviation of new weights.
    pub initializer_range: f32,
    /// The head that `architectures` names, where it is one of the family's.
    pub declared_head: Option<Head>,
    /// `id2label` in the order of the ids; empty where the file has none.
    pub labels: Vec<String>,
    /// The class that `architectures` names, where it is none of the family's.
    foreign_class: Option<String>,
    /// What the outputs of a classifier mean, where the file says it.
    problem_type: Option<String>,
    raw: Map<String, Value>,
}

/// No encoder comes near these. A config that exceeds them is damaged, and is refused before any memory is allocated.
const LARGEST_DIMENSION: usize = 1 << 24;
const MOST_LAYERS: usize = 1 << 10;
const MOST_PARAMETERS: u64 = 1 << 36;

/// The key that says what the outputs of a sequence classifier mean, and its value for one label per text.
const PROBLEM_TYPE: &str = "problem_type";
const SINGLE_LABEL: &str = "single_label_classification";

/// The key that names the family.
const MODEL_TYPE: &str = "model_type";

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
        let file = File { raw: &raw, path };
        let family = file.family()?;
        file.check_settings(family)?;
        let keys = &family.keys;
        let hidden_dropout = file.number(keys.hidden_dropout.key, keys.hidden_dropout.default)?;
        let config = Self {
            family,
            vocab_size: file.size(keys.vocabulary)?,
            hidden_size: file.size(keys.hidden)?,
            layers: file.size(keys.layers)?,
            heads: file.size(keys.heads)?,
            intermediate_size: file.size(keys.intermediate)?,
            max_positions: file.size(keys.positions)?,
            type_vocab_size: file.size_or(keys.token_types.key, keys.token_types.default)?,
            activation: file.activation(family)?,
            layer_norm_eps: file.number(keys.norm_epsilon.key, keys.norm_epsilon.default)?,
            hidden_dropout,
            attention_dropout: file.number(keys.attention_dropout.key, keys.attention_dropout.default)?,
            classifier_dropout: file.number(keys.head_dropout, hidden_dropout)?,
            initializer_range: file.number(keys.initializer_range.key, keys.initializer_range.default)?,
            declared_head: file.declared_head(family),
            labels: file.labels()?,
            foreign_class: file.foreign_class(family),
            problem_type: file.raw.get(PROBLEM_TYPE).and_then(Value::as_str).map(str::to_owned),
            raw,
        };
        config.check_sizes(keys, path)?;
        config.check_numbers(keys, path)?;
        Ok(config)
    }

    fn check_sizes(&self, keys: &ConfigKeys, path: &Path) -> Result<()> {
        if !self.hidden_size.is_multiple_of(self.heads) {
            let (hidden, heads) = (self.hidden_size, self.heads);
            let text = format!("`{}` {hidden} is not a multiple of `{}` {heads}", keys.hidden, keys.heads);
            return Err(problem(path, text));
        }
        if self.layers > MOST_LAYERS {
            let text = format!("`{}` is {}, which no model has; at most {MOST_LAYERS}", keys.layers, self.layers);
            return Err(problem(path, text));
        }
        // Below the dimension limits these products fit u64, except the sum over layers of a hostile file.
        let (hidden, wide) = (self.hidden_size as u64, self.intermediate_size as u64);
        let layer = 4 * hidden * hidden + 2 * hidden * wide;
        let rows = (self.vocab_size + self.max_positions + self.type_vocab_size) as u64;
        let total = layer.saturating_mul(self.layers as u64).saturating_add(rows * hidden);
        if total > MOST_PARAMETERS {
            let text = format!("the sizes add up to {total} parameters; at most {MOST_PARAMETERS} are supported");
            return Err(problem(path, text));
        }
        Ok(())
    }

    fn check_numbers(&self, keys: &ConfigKeys, path: &Path) -> Result<()> {
        for (key, value) in [
            (keys.hidden_dropout.key, self.hidden_dropout),
            (keys.attention_dropout.key, self.attention_dropout),
            (keys.head_dropout, self.classifier_dropout),
        ] {
            if !(0.0..1.0).contains(&value) {
                return Err(problem(path, format!("`{key}` is {value}; it must be at least 0 and below 1")));
            }
        }
        for (key, value) in
            [(keys.norm_epsilon.key, self.layer_norm_eps), (keys.initializer_range.key, self.initializer_range)]
        {
            if value <= 0.0 {
                return Err(problem(path, format!("`{key}` is {value}; it must be above 0")));
            }
        }
        Ok(())
    }

    /// What a head of this kind with this many outputs is, if nothing here computes it: `transformers` keeps several heads
    /// under the names of a classifier, and their scores mean something else.
    pub(crate) fn unsupported_head(&self, head: Head, outputs: usize) -> Option<String> {
        if !head.has_labels() {
            return None;
        }
        if let Some(class) = &self.foreign_class {
            return Some(format!("that of a {class}"));
        }
        let pooled = self.family.class(head).pooled;
        match self.problem_type.as_deref().filter(|_| pooled) {
            Some("multi_label_classification") => {
                return Some(format!("for several labels per text (`{PROBLEM_TYPE}` is multi_label_classification)"));
            }
            Some("regression") => return Some(format!("for regression (`{PROBLEM_TYPE}` is regression)")),
            _ => {}
        }
        (outputs == 1).then(|| {
            let (name, hidden) = (self.family.class(head).output_weight().unwrap_or_default(), self.hidden_size);
            format!(
                "for regression or ranking: `{name}` has the shape [1, {hidden}], a classifier's has two rows or more"
            )
        })
    }

    /// Width of one attention head.
    pub fn head_size(&self) -> usize {
        self.hidden_size / self.heads
    }

    /// A `config.json` for this model with another head and its labels; unknown keys are kept.
    pub fn to_json(&self, head: Head, labels: &[String]) -> Value {
        let mut raw = self.raw.clone();
        raw.insert("architectures".into(), serde_json::json!([self.family.class(head).architecture]));
        raw.insert(MODEL_TYPE.into(), self.family.model_type.into());
        // Weights are written in f32; with an old entry, transformers would load them in half precision.
        for key in ["torch_dtype", "dtype"] {
            if raw.contains_key(key) {
                raw.insert(key.into(), "float32".into());
            }
        }
        // transformers derives these from id2label; old entries would contradict it.
        for key in ["num_labels", "id2label", "label2id"] {
            raw.shift_remove(key);
        }
        // What an earlier head's outputs meant says nothing about this one, whose outputs are labels.
        let is_other =
            raw.get(PROBLEM_TYPE).is_some_and(|value| !value.is_null() && value.as_str() != Some(SINGLE_LABEL));
        if is_other {
            raw.shift_remove(PROBLEM_TYPE);
        }
        if head.has_labels() {
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
        let problem_type = self.problem_type.clone().filter(|value| value == SINGLE_LABEL);
        let (declared_head, labels) = (Some(head), labels.to_vec());
        Self { declared_head, labels, foreign_class: None, problem_type, raw, ..self.clone() }
    }
}

fn problem(path: &Path, problem: String) -> Error {
    Error::Config { path: path.to_owned(), problem }
}

/// A `config.json` on its way in; every complaint names the key.
struct File<'a> {
    raw: &'a Map<String, Value>,
    path: &'a Path,
}

impl File<'_> {
    fn family(&self) -> Result<&'static Family> {
        self.choice(MODEL_TYPE, Family::ALL.into_iter().map(|family| (family.model_type, family)))
    }

    /// Refuses settings that the family does not have.
    fn check_settings(&self, family: &Family) -> Result<()> {
        for (key, accepted) in family.fixed {
            self.choice(key, accepted.iter().map(|&value| (value, ())))?;
        }
        self.activation(family)?;
        for key in family.refused {
            if self.raw.get(*key) == Some(&Value::Bool(true)) {
                return Err(problem(self.path, format!("`{key}` is true: only encoders are supported")));
            }
        }
        Ok(())
    }

    fn activation(&self, family: &Family) -> Result<Activation> {
        self.choice(family.keys.activation, family.activations.iter().copied())
    }

    fn declared_head(&self, family: &Family) -> Option<Head> {
        let names = self.raw.get("architectures")?.as_array()?;
        names.iter().filter_map(Value::as_str).find_map(|name| family.head_of_architecture(name))
    }

    /// The class, if the file names one with a head that is not ours.
    fn foreign_class(&self, family: &Family) -> Option<String> {
        let names = self.raw.get("architectures")?.as_array()?;
        if self.declared_head(family).is_some() {
            return None;
        }
        names.iter().filter_map(Value::as_str).next().map(str::to_owned)
    }

    /// `id2label` with ids 0..n, each once; otherwise `num_labels` numbered names; otherwise none.
    fn labels(&self) -> Result<Vec<String>> {
        let Some(Value::Object(by_id)) = self.raw.get("id2label") else {
            let count = self.raw.get("num_labels").and_then(Value::as_u64).unwrap_or(0);
            if count as usize > LARGEST_DIMENSION {
                let text = format!("`num_labels` is {count}; at most {LARGEST_DIMENSION} are supported");
                return Err(problem(self.path, text));
            }
            return Ok((0..count).map(|i| format!("LABEL_{i}")).collect());
        };
        let mut labels = vec![None; by_id.len()];
        for (id, name) in by_id {
            let (Ok(index), Some(name)) = (id.parse::<usize>(), name.as_str()) else {
                let text = format!("`id2label` maps `{id}` to {name}; it must map numbers to strings");
                return Err(problem(self.path, text));
            };
            match labels.get_mut(index) {
                Some(slot @ None) => *slot = Some(name.to_owned()),
                _ => {
                    let count = by_id.len();
                    let text = format!("`id2label` has {count} entries, but one has the id {id}");
                    return Err(problem(self.path, text));
                }
            }
        }
        Ok(labels.into_iter().flatten().collect())
    }

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

    /// What the value of a key stands for; a missing key means the first choice, and any other value is refused.
    fn choice<T>(&self, key: &str, choices: impl Iterator<Item = (&'static str, T)> + Clone) -> Result<T> {
        let found = match self.raw.get(key) {
            None | Some(Value::Null) => choices.clone().next(),
            Some(value) => choices.clone().find(|(name, _)| value.as_str() == Some(name)),
        };
        found.map(|(_, choice)| choice).ok_or_else(|| {
            let value = self.raw.get(key).unwrap_or(&Value::Null);
            let accepted: Vec<&str> = choices.map(|(name, _)| name).collect();
            problem(self.path, format!("`{key}` is {value}; only {} is supported", accepted.join(" or ")))
        })
    }
}
