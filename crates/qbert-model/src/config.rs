//! `config.json`: which family a model belongs to, and its sizes.
//!
//! Which keys hold the numbers, and which settings are supported, is the [`Family`]'s to say. A setting that nothing
//! here computes is refused by name, because ignoring it would silently give wrong results. Unknown keys are kept and
//! written back untouched.

mod settings;

use std::ops::Range;
use std::path::Path;

use qbert_kernels::DistanceBias;
use qbert_quant::{Embedding, shorten};
use serde_json::{Map, Value};

use crate::embedder::Embedder;
use crate::error::{Error, Result, read_at_most};
use crate::family::{
    ACTIVATIONS, Activation, EmbeddingProjection, Family, FeedForward, LayerSharing, NormPlacement, OptionalKey,
    Positions,
};
use crate::head::{Head, Problem};
use crate::role::Role;

pub use settings::{Biases, LayerAttention, PoolerSettings};

/// A model's family and sizes, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// What kind of encoder this is.
    pub family: &'static Family,
    /// Rows of the word embedding.
    pub vocab_size: usize,
    /// Width of a token's vector.
    pub hidden_size: usize,
    /// Encoder layers as they are computed; [`Config::distinct_layers`] have weights of their own.
    pub layers: usize,
    /// Attention heads per layer; divides `hidden_size`.
    pub heads: usize,
    /// Width of the feed-forward layer.
    pub intermediate_size: usize,
    /// Width of the embedding tables; the encoder's width where nothing comes between.
    pub embedding_size: usize,
    /// Rows of the position embedding; 0 where the family has none.
    pub position_rows: usize,
    /// The longest sequence.
    pub max_positions: usize,
    /// Rows of the token-type embedding; 0 where the family has none.
    pub type_vocab_size: usize,
    /// The function between the two feed-forward matrices.
    pub activation: Activation,
    /// Added to the variance in norms.
    pub layer_norm_eps: f32,
    /// Dropout after embeddings and sublayers, in training.
    pub hidden_dropout: f32,
    /// Dropout on attention probabilities, in training.
    pub attention_dropout: f32,
    /// Dropout between the two feed-forward products, in training.
    pub inner_dropout: f32,
    /// Which linear layers and norms have a bias.
    pub biases: Biases,
    /// How each computed layer's attention sees its sequence.
    attention: Vec<LayerAttention>,
    /// The pooler of each head as the file has it, in the order of [`Head::ALL`].
    poolers: [Option<PoolerSettings>; 4],
    /// Dropout before the output layer of each head, in the order of [`Head::ALL`].
    head_dropouts: [f32; 4],
    /// Standard deviation of new weights.
    pub initializer_range: f32,
    /// The head that `architectures` names, where it is one of the family's.
    pub declared_head: Option<Head>,
    /// `id2label` in the order of the ids; empty where the file has none.
    pub labels: Vec<String>,
    /// The class that `architectures` names, where it is none of the family's.
    foreign_class: Option<String>,
    /// What the outputs of a classifier mean, where the file says it.
    problem_type: Option<Problem>,
    /// The id of the padding token, where positions are counted from it.
    padding_id: usize,
    /// Groups of layers with shared weights, and how many layers each has: `layers` groups of 1 where nothing is shared.
    groups: usize,
    members: usize,
    /// How texts become vectors, where the checkpoint or packed file says it. It is not part of `config.json`.
    pub embedder: Option<Embedder>,
    raw: Map<String, Value>,
}

/// No encoder comes near these. A config that exceeds them is damaged, and is refused before any memory is allocated.
const LARGEST_DIMENSION: usize = 1 << 24;
const MOST_LAYERS: usize = 1 << 8;
/// Names of labels are made from a number alone, so a short file could ask for any amount of memory.
pub(crate) const MOST_LABELS: usize = 1 << 16;
const MOST_PARAMETERS: u64 = 1 << 36;

/// The key that says what the outputs of a sequence classifier mean.
const PROBLEM_TYPE: &str = "problem_type";

/// The key that names the family.
const MODEL_TYPE: &str = "model_type";

impl Config {
    /// Reads and checks `config.json` at `path`.
    pub fn read(path: &Path) -> Result<Self> {
        Self::parse(&read_at_most(Self::LARGEST_FILE, path, "read the configuration")?, path)
    }

    /// The largest `config.json` in bytes, several times that of a model with the most labels.
    pub(crate) const LARGEST_FILE: u64 = 8 << 20;

    /// Checks the bytes of a `config.json`; `path` only serves the error messages.
    pub fn parse(text: &[u8], path: &Path) -> Result<Self> {
        let raw = match serde_json::from_slice(text) {
            Ok(Value::Object(map)) => map,
            Ok(_) => return Err(problem(path, "not a JSON object".to_owned())),
            Err(error) => return Err(problem(path, format!("not valid JSON: {}", shorten(&error.to_string())))),
        };
        let file = File { raw: &raw, path };
        let family = file.family()?;
        file.check_settings(family)?;
        let keys = &family.keys;
        let hidden_size = file.size(keys.hidden)?;
        let layers = file.size(keys.layers)?;
        let (groups, members) = file.groups(family, layers)?;
        let padding_id = file.padding_id(family)?;
        let positions = file.size(keys.positions)?;
        let position_rows = if family.tensors.position.is_some() { positions } else { 0 };
        let hidden_dropout = file.number_at(keys.hidden_dropout)?;
        let config = Self {
            family,
            vocab_size: file.size(keys.vocabulary)?,
            hidden_size,
            layers: layers.saturating_mul(members),
            heads: file.size(keys.heads)?,
            intermediate_size: file.size(keys.intermediate)?,
            embedding_size: file.embedding_size(family, hidden_size)?,
            position_rows,
            max_positions: file.longest(family, positions, padding_id)?,
            type_vocab_size: if family.tensors.token_type.is_some() { file.size_at(keys.token_types)? } else { 0 },
            activation: file.activation(family)?,
            layer_norm_eps: file.number_at(keys.norm_epsilon)?,
            hidden_dropout,
            attention_dropout: file.number_at(keys.attention_dropout)?,
            inner_dropout: file.number_at(keys.inner_dropout)?,
            biases: file.biases(family)?,
            attention: file.attention(family, layers.saturating_mul(members))?,
            poolers: file.poolers(family)?,
            head_dropouts: file.head_dropouts(family, hidden_dropout)?,
            initializer_range: file.number_at(keys.initializer_range)?,
            declared_head: file.declared_head(family),
            labels: file.labels()?,
            foreign_class: file.foreign_class(family),
            problem_type: file.problem()?,
            padding_id,
            groups,
            members,
            embedder: None,
            raw,
        };
        config.check_sizes(path)?;
        config.check_numbers(path)?;
        Ok(config)
    }

    fn check_sizes(&self, path: &Path) -> Result<()> {
        let keys = &self.family.keys;
        if !self.hidden_size.is_multiple_of(self.heads) {
            let (hidden, heads) = (self.hidden_size, self.heads);
            let text = format!("`{}` {hidden} is not a multiple of `{}` {heads}", keys.hidden, keys.heads);
            return Err(problem(path, text));
        }
        if matches!(self.family.positions, Positions::Rotary(_)) && !self.head_size().is_multiple_of(2) {
            let (hidden, heads) = (self.hidden_size, self.heads);
            let text = format!(
                "`{}` {hidden} and `{}` {heads} give heads of an odd width, which rotary positions cannot turn",
                keys.hidden, keys.heads
            );
            return Err(problem(path, text));
        }
        if self.layers > MOST_LAYERS {
            let text = format!("`{}` is {}, which no model has; at most {MOST_LAYERS}", keys.layers, self.layers);
            return Err(problem(path, text));
        }
        // Below the dimension limits these products fit u64, except the sum over layers of a hostile file.
        let (hidden, wide) = (self.hidden_size as u64, self.intermediate_size as u64);
        let layer = 4 * hidden * hidden + hidden * (wide + self.intermediate_outputs() as u64);
        let rows = (self.vocab_size + self.position_rows + self.type_vocab_size) as u64;
        let embeddings = rows * self.embedding_size as u64;
        let total = layer.saturating_mul(self.layers as u64).saturating_add(embeddings);
        if total > MOST_PARAMETERS {
            let text = format!("the sizes add up to {total} parameters; at most {MOST_PARAMETERS} are supported");
            return Err(problem(path, text));
        }
        Ok(())
    }

    fn check_numbers(&self, path: &Path) -> Result<()> {
        let keys = &self.family.keys;
        let encoder = [
            (keys.hidden_dropout.key, self.hidden_dropout),
            (keys.attention_dropout.key, self.attention_dropout),
            (keys.inner_dropout.key, self.inner_dropout),
        ];
        let of_heads =
            Head::ALL.map(|head| (self.family.class(head).dropout.map(|dropout| dropout.key), self.head_dropout(head)));
        for (key, value) in encoder.into_iter().chain(of_heads) {
            if !(0.0..1.0).contains(&value) {
                let key = key.unwrap_or_default();
                return Err(problem(path, format!("`{key}` is {value}; it must be at least 0 and below 1")));
            }
        }
        for (key, value) in
            [(keys.norm_epsilon.key, self.layer_norm_eps), (keys.initializer_range.key, self.initializer_range)]
        {
            if value <= 0.0 {
                let key = key.unwrap_or_default();
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
        match self.problem(head, outputs) {
            Problem::Regression if outputs > 1 => Some(format!("for regression of {outputs} values at once")),
            Problem::SingleLabel if outputs == 1 => {
                let (name, hidden) = (self.family.class(head).output_weight().unwrap_or_default(), self.hidden_size);
                Some(format!("of one label: `{name}` has the shape [1, {hidden}], a classifier's has two rows or more"))
            }
            Problem::Regression | Problem::MultiLabel | Problem::SingleLabel => None,
        }
    }

    /// What the outputs of a head mean. Where the file does not say it, a single output is a value, as in `transformers`.
    pub fn problem(&self, head: Head, outputs: usize) -> Problem {
        if !self.family.class(head).reads_sequences() {
            return Problem::SingleLabel;
        }
        let usual = if outputs == 1 { Problem::Regression } else { Problem::SingleLabel };
        self.problem_type.unwrap_or(usual)
    }

    /// This configuration for a head whose outputs mean this.
    #[must_use]
    pub fn with_problem(&self, problem: Problem) -> Self {
        // One label is what a file means that says nothing.
        let kept = self.problem_type.filter(|&own| own == problem);
        let problem_type = if problem == Problem::SingleLabel { kept } else { Some(problem) };
        Self { problem_type, ..self.clone() }
    }

    /// Width of one attention head.
    pub fn head_size(&self) -> usize {
        self.hidden_size / self.heads
    }

    /// Outputs of the first feed-forward matrix: twice its width where half of them gate the others.
    pub fn intermediate_outputs(&self) -> usize {
        match self.family.feed_forward {
            FeedForward::Plain => self.intermediate_size,
            FeedForward::Gated => 2 * self.intermediate_size,
        }
    }

    /// How the attention of a computed layer sees its sequence.
    pub fn attention_of(&self, layer: usize) -> LayerAttention {
        self.attention[layer]
    }

    /// Whether the attention of a layer has a norm.
    pub fn has_attention_norm(&self, layer: usize) -> bool {
        match self.family.norm_placement {
            NormPlacement::AfterResidual => true,
            NormPlacement::BeforeSublayer => layer > 0,
        }
    }

    /// Whether a norm follows the last layer.
    pub fn has_final_norm(&self) -> bool {
        match self.family.norm_placement {
            NormPlacement::AfterResidual => false,
            NormPlacement::BeforeSublayer => true,
        }
    }

    /// Whether the model turns texts into vectors, and its own files say that it does so without the pooler.
    pub fn pools_tokens(&self) -> bool {
        self.embedder.as_ref().is_some_and(|embedder| embedder.pooling.of_tokens().is_some())
    }

    /// How the pooler of a head computes; `None` where its class has none.
    pub fn pooler(&self, head: Head) -> Option<PoolerSettings> {
        self.poolers[head as usize]
    }

    /// Dropout before the output layer of a head, in training.
    pub fn head_dropout(&self, head: Head) -> f32 {
        self.head_dropouts[head as usize]
    }

    /// The encoder layers that have weights of their own: what plans, sensitivities and files count.
    pub fn distinct_layers(&self) -> usize {
        self.groups * self.members
    }

    /// Which of the [distinct layers](Self::distinct_layers) has the weights of a computed layer.
    pub fn weights_of(&self, layer: usize) -> usize {
        match self.family.sharing {
            LayerSharing::None => layer,
            LayerSharing::Groups { .. } => {
                // As `transformers` computes it, in f64.
                let (of_group, member) = (layer / self.members, layer % self.members);
                let per_group = (self.layers / self.members) as f64 / self.groups as f64;
                (of_group as f64 / per_group) as usize * self.members + member
            }
        }
    }

    /// The first computed layer that has the weights of this [distinct layer](Self::distinct_layers); the number of
    /// computed layers if there is none.
    pub fn first_with_weights(&self, distinct: usize) -> usize {
        (0..self.layers).find(|&layer| self.weights_of(layer) == distinct).unwrap_or(self.layers)
    }

    /// The embedding tables that the model has, with their rows, in the order of [`Embedding::ALL`].
    pub fn tables(&self) -> impl Iterator<Item = (Embedding, usize)> {
        let rows = [self.vocab_size, self.position_rows, self.type_vocab_size];
        Embedding::ALL.into_iter().zip(rows).filter(|&(_, rows)| rows > 0)
    }

    /// Whether a linear layer leads from the embeddings to the encoder.
    pub fn has_projection(&self) -> bool {
        match self.family.projection {
            EmbeddingProjection::None => false,
            EmbeddingProjection::IfNeeded(_) => self.embedding_size != self.hidden_size,
            EmbeddingProjection::Always(_) => true,
        }
    }

    /// The row of the position embedding for every token of a sequence.
    pub fn position_rows_of<'a>(&self, ids: &'a [u32]) -> impl Iterator<Item = usize> + use<'a> {
        let (family, padding) = (self.family, self.padding_id);
        let mut counted = 0;
        ids.iter().map(move |&id| match family.positions {
            // Nothing is looked up for a rotary position; it is its number all the same.
            Positions::Learned | Positions::Rotary(_) => {
                counted += 1;
                counted - 1
            }
            Positions::LearnedAfterPadding(_) if id as usize == padding => padding,
            Positions::LearnedAfterPadding(_) => {
                counted += 1;
                padding + counted
            }
        })
    }

    /// The rows of the position embedding that sequences of up to `longest` tokens use.
    pub fn used_position_rows(&self, longest: usize) -> Range<usize> {
        match self.family.positions {
            Positions::Learned => 0..longest,
            Positions::Rotary(_) => 0..0,
            Positions::LearnedAfterPadding(_) => self.padding_id..self.padding_id + 1 + longest,
        }
    }

    /// What attention adds to its scores in sequences of up to `longest` tokens, from the table of the relative bias.
    pub fn distance_bias(&self, table: &[f32], longest: usize) -> DistanceBias {
        let (bias, heads) = (self.family.relative_bias, self.heads);
        DistanceBias::new(heads, longest, |head, distance| table[bias.bucket(distance) * heads + head])
    }

    /// The canonical name of a tensor in a model with `head`.
    pub(crate) fn tensor_name(&self, head: Head, role: Role) -> String {
        self.family.tensor_name(head, self.members, role)
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
        // What an earlier head's outputs meant says nothing about this one.
        match self.problem_type.filter(|_| self.family.class(head).reads_sequences()) {
            Some(problem) => drop(raw.insert(PROBLEM_TYPE.into(), problem.name().into())),
            None => {
                let is_other = |value: &Value| !value.is_null() && value != Problem::SingleLabel.name();
                if raw.get(PROBLEM_TYPE).is_some_and(is_other) {
                    raw.shift_remove(PROBLEM_TYPE);
                }
            }
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
        let (declared_head, labels) = (Some(head), labels.to_vec());
        Self { declared_head, labels, foreign_class: None, raw, ..self.clone() }
    }

    /// This configuration for a vocabulary that keeps these tokens, by their ids here: the first one gets the id 0, and so on.
    /// Ids of tokens in the file (`pad_token_id` and the like) are changed with them.
    #[must_use]
    pub fn with_vocabulary(&self, kept: &[u32]) -> Self {
        let mut raw = self.raw.clone();
        raw.insert(self.family.keys.vocabulary.into(), kept.len().into());
        for (_, id) in raw.iter_mut().filter(|(key, _)| key.ends_with("_token_id")) {
            let new = id.as_u64().and_then(|id| kept.iter().position(|&old| u64::from(old) == id));
            if let Some(new) = new {
                *id = new.into();
            }
        }
        Self { vocab_size: kept.len(), raw, ..self.clone() }
    }

    /// This configuration with a table of positions for sequences of up to `longest` tokens.
    #[must_use]
    pub fn with_positions(&self, longest: usize) -> Self {
        let rows = self.used_position_rows(longest).end;
        let mut raw = self.raw.clone();
        raw.insert(self.family.keys.positions.into(), rows.into());
        let mut smaller = Self { position_rows: rows, max_positions: longest, raw, ..self.clone() };
        // What the model's own limit says already is not said twice.
        if let Some(embedder) = &mut smaller.embedder {
            embedder.max_length = embedder.max_length.filter(|&own| own < longest);
        }
        smaller
    }
}

/// `a`, `a and b`, `a, b and c`.
fn listed(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [name] => (*name).to_owned(),
        [others @ .., last] => format!("{} and {last}", others.join(", ")),
    }
}

/// A value as a message shows it.
fn shown(value: &Value) -> String {
    shorten(&value.to_string()).into_owned()
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
        match self.raw.get(family.keys.activation) {
            None | Some(Value::Null) => Ok(family.keys.default_activation),
            Some(_) => self.choice(family.keys.activation, ACTIVATIONS.into_iter()),
        }
    }

    fn problem(&self) -> Result<Option<Problem>> {
        let known = [Problem::SingleLabel, Problem::MultiLabel, Problem::Regression];
        match self.raw.get(PROBLEM_TYPE) {
            None | Some(Value::Null) => Ok(None),
            Some(_) => self.choice(PROBLEM_TYPE, known.into_iter().map(|problem| (problem.name(), Some(problem)))),
        }
    }

    fn embedding_size(&self, family: &Family, hidden: usize) -> Result<usize> {
        match family.projection {
            EmbeddingProjection::None => Ok(hidden),
            EmbeddingProjection::IfNeeded(key) | EmbeddingProjection::Always(key) => self.size_at(key),
        }
    }

    /// Groups of layers that share weights, and the layers of each.
    fn groups(&self, family: &Family, layers: usize) -> Result<(usize, usize)> {
        match family.sharing {
            LayerSharing::None => Ok((layers, 1)),
            LayerSharing::Groups { groups, members } => {
                let (count, members) = (self.size_at(groups)?, self.size_at(members)?);
                if count > layers {
                    let (key, of_layers) = (groups.key.unwrap_or_default(), family.keys.layers);
                    let text = format!("`{key}` is {count}, more than `{of_layers}`, which is {layers}");
                    return Err(problem(self.path, text));
                }
                Ok((count, members))
            }
        }
    }

    /// The padding token's id, where positions are counted from it; otherwise 0.
    fn padding_id(&self, family: &Family) -> Result<usize> {
        let Positions::LearnedAfterPadding(OptionalKey { key, default }) = family.positions else { return Ok(0) };
        match key.and_then(|key| Some((key, self.raw.get(key)?))) {
            None | Some((_, Value::Null)) => Ok(default),
            Some((key, value)) => match value.as_u64() {
                Some(id) if id < LARGEST_DIMENSION as u64 => Ok(id as usize),
                _ => Err(problem(self.path, format!("`{key}` is {}; it must be a token's id", shown(value)))),
            },
        }
    }

    /// The longest sequence.
    fn longest(&self, family: &Family, rows: usize, padding: usize) -> Result<usize> {
        match family.positions {
            Positions::Learned | Positions::Rotary(_) => Ok(rows),
            Positions::LearnedAfterPadding(_) => match rows.checked_sub(padding + 1) {
                Some(longest) if longest > 0 => Ok(longest),
                _ => {
                    let key = family.keys.positions;
                    let text = format!(
                        "`{key}` is {rows}; positions are counted after the padding token's id, {padding}, so it must be at least {}",
                        padding + 2
                    );
                    Err(problem(self.path, text))
                }
            },
        }
    }

    fn head_dropouts(&self, family: &Family, hidden_dropout: f32) -> Result<[f32; 4]> {
        let mut rates = [0.0; 4];
        for (rate, head) in rates.iter_mut().zip(Head::ALL) {
            if let Some(dropout) = family.class(head).dropout {
                *rate = self.number(dropout.key, dropout.default.unwrap_or(hidden_dropout))?;
            }
        }
        Ok(rates)
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
            if count > MOST_LABELS as u64 {
                let text = format!("`num_labels` is {count}; at most {MOST_LABELS} labels are supported");
                return Err(problem(self.path, text));
            }
            return Ok((0..count).map(|i| format!("LABEL_{i}")).collect());
        };
        if by_id.len() > MOST_LABELS {
            let text = format!("`id2label` names {} labels; at most {MOST_LABELS} are supported", by_id.len());
            return Err(problem(self.path, text));
        }
        let mut labels = vec![None; by_id.len()];
        for (id, name) in by_id {
            let (Ok(index), Some(name)) = (id.parse::<usize>(), name.as_str()) else {
                let text =
                    format!("`id2label` maps `{}` to {}; it must map numbers to strings", shorten(id), shown(name));
                return Err(problem(self.path, text));
            };
            match labels.get_mut(index) {
                Some(slot @ None) => *slot = Some(name.to_owned()),
                _ => {
                    let count = by_id.len();
                    let text = format!("`id2label` has {count} entries, but one has the id {}", shorten(id));
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
                    format!("`{key}` is {}; it must be a whole number from 1 to {LARGEST_DIMENSION}", shown(value)),
                )),
            },
        }
    }

    fn size_at(&self, OptionalKey { key, default }: OptionalKey<usize>) -> Result<usize> {
        match key.filter(|key| self.raw.contains_key(*key)) {
            Some(key) => self.size(key),
            None => Ok(default),
        }
    }

    fn number_at(&self, OptionalKey { key, default }: OptionalKey<f32>) -> Result<f32> {
        key.map_or(Ok(default), |key| self.number(key, default))
    }

    fn number(&self, key: &str, default: f32) -> Result<f32> {
        match self.raw.get(key) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => match value.as_f64() {
                // A number beyond f32 would become infinite.
                Some(n) if (n as f32).is_finite() => Ok(n as f32),
                _ => Err(problem(
                    self.path,
                    format!("`{key}` is {}; it must be a number that f32 can hold", shown(value)),
                )),
            },
        }
    }

    /// What the value of a key stands for; a missing key means the first choice, and any other value is refused.
    fn choice<T>(&self, key: &str, choices: impl Iterator<Item = (&'static str, T)> + Clone) -> Result<T> {
        let found = match self.raw.get(key) {
            None | Some(Value::Null) => choices.clone().next(),
            Some(Value::String(value)) => choices.clone().find(|(name, _)| value == name),
            Some(Value::Number(value)) => {
                let text = value.to_string();
                choices.clone().find(|(name, _)| text == *name)
            }
            Some(_) => None,
        };
        found.map(|(_, choice)| choice).ok_or_else(|| {
            let value = self.raw.get(key).unwrap_or(&Value::Null);
            let accepted: Vec<&str> = choices.map(|(name, _)| name).collect();
            let are = if accepted.len() == 1 { "is" } else { "are" };
            problem(self.path, format!("`{key}` is {}; only {} {are} supported", shown(value), listed(&accepted)))
        })
    }
}
