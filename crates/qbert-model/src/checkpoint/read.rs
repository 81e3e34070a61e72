//! Reading a checkpoint directory into one flat array of f32.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::{bf16, f16};
use safetensors::Dtype;

use super::files::{StoredTensor, WeightFiles};
use crate::config::{Config, MOST_LABELS};
use crate::embedder::Embedder;
use crate::error::{Error, Result};
use crate::family::HeadClass;
use crate::head::{Head, Problem};
use crate::layout::{Parameter, ParameterLayout};
use crate::parameters::Parameters;
use crate::role::Module;

/// The files of a tokenizer, kept so that a written checkpoint is complete.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenizerFiles {
    files: BTreeMap<String, Vec<u8>>,
}

impl TokenizerFiles {
    /// The names of the files that are kept.
    pub const NAMES: [&'static str; 9] = [
        "vocab.txt",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "sentencepiece.bpe.model",
        "spiece.model",
    ];

    /// Reads the files that are in `directory`.
    pub fn read(directory: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        for name in Self::NAMES {
            let path = directory.join(name);
            if path.exists() {
                let bytes = std::fs::read(&path).map_err(Error::io(&path, "read"))?;
                files.insert(name.to_owned(), bytes);
            }
        }
        Ok(Self { files })
    }

    /// The same files with some of them replaced, left out where the content is `None`, or added.
    #[must_use]
    pub fn with(mut self, changed: impl IntoIterator<Item = (String, Option<Vec<u8>>)>) -> Self {
        for (name, content) in changed {
            match content {
                Some(bytes) => drop(self.files.insert(name, bytes)),
                None => drop(self.files.remove(&name)),
            }
        }
        self
    }

    /// The content of one file.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.files.get(name).map(Vec::as_slice)
    }

    /// All files in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice()))
    }
}

/// Weights in memory, and which of them the caller must initialize.
#[derive(Debug)]
pub struct LoadedWeights {
    /// All weights; tensors named in `fresh` are zero.
    pub parameters: Parameters,
    /// The names of pooler and head tensors that the checkpoint lacks: the caller initializes them for fine-tuning.
    pub fresh: Vec<String>,
}

/// How to load the pooler and the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnTop {
    /// Both must be in the checkpoint.
    Required,
    /// The head is loaded if it is for the same kind of task and has the right shape.
    IfItFits,
    /// The head is not loaded, the pooler is.
    New,
}

/// An opened checkpoint: configuration read, weights mapped and listed, nothing copied yet.
#[derive(Debug)]
pub struct Checkpoint {
    directory: PathBuf,
    config: Config,
    weights: WeightFiles,
    tokenizer: TokenizerFiles,
    head: Head,
    outputs: usize,
    unsupported: Option<String>,
}

impl Checkpoint {
    /// Opens a directory with `config.json` and safetensors weights.
    pub fn open(directory: &Path) -> Result<Self> {
        if directory.is_file() {
            return Err(Error::file_alone(directory));
        }
        let config_path = directory.join("config.json");
        if !config_path.exists() {
            if !directory.exists() {
                let detail = None;
                return Err(Error::NoSuchModel { name: directory.display().to_string(), detail });
            }
            let missing = "config.json".to_owned();
            return Err(Error::MissingFile { directory: directory.to_owned(), missing });
        }
        let mut config = Config::read(&config_path)?;
        config.embedder = Embedder::read(directory)?;
        let weights = WeightFiles::open(directory, config.family)?;
        let tokenizer = TokenizerFiles::read(directory)?;
        let (head, outputs) = find_head(&config, &weights)?;
        if let Some(what) = config.unsupported_head(head, outputs) {
            // The encoder is as good as any, for a new head.
            let (head, outputs, unsupported) = (Head::None, 0, Some(what));
            return Ok(Self {
                directory: directory.to_owned(),
                config,
                weights,
                tokenizer,
                head,
                outputs,
                unsupported,
            });
        }
        if head.has_labels() && !config.labels.is_empty() && config.labels.len() != outputs {
            let problem = format!("`id2label` names {} labels, but the classifier has {outputs}", config.labels.len());
            return Err(Error::Config { path: config_path, problem });
        }
        Ok(Self { directory: directory.to_owned(), config, weights, tokenizer, head, outputs, unsupported: None })
    }

    /// The directory it was opened from.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The tokenizer's files.
    pub fn tokenizer_files(&self) -> &TokenizerFiles {
        &self.tokenizer
    }

    /// The head whose tensors the checkpoint has.
    pub fn head(&self) -> Head {
        self.head
    }

    /// What the checkpoint's head is, if it is none of ours: it can only be replaced, and [`Checkpoint::head`] has none.
    pub fn unsupported_head(&self) -> Option<&str> {
        self.unsupported.as_deref()
    }

    /// What the head's outputs mean.
    pub fn problem(&self) -> Problem {
        self.config.problem(self.head, self.outputs)
    }

    /// The labels of a classifier, in the order of its outputs; empty for other heads.
    pub fn labels(&self) -> Vec<String> {
        if !self.head.has_labels() {
            return Vec::new();
        }
        if self.config.labels.is_empty() {
            return (0..self.outputs).map(|i| format!("LABEL_{i}")).collect();
        }
        self.config.labels.clone()
    }

    /// Whether the checkpoint has pooler weights.
    pub fn has_pooler(&self) -> bool {
        has_pooler(self.config.family.class(Head::None), &self.weights)
    }

    /// The layout of this checkpoint: its own head, and its pooler if it has one.
    pub fn layout(&self) -> ParameterLayout {
        // Heads that read every token do not use a pooler, and transformers drops it.
        let pooler = self.has_pooler() && !self.config.family.class(self.head).reads_every_token();
        ParameterLayout::new(&self.config, self.head, self.outputs, pooler)
    }

    /// The names, as in the files, of tensors that the layout does not use: pre-training heads, position ids.
    pub fn unused(&self, layout: &ParameterLayout) -> Vec<String> {
        let tensors = self.weights.tensors().iter();
        tensors.filter(|(name, _)| layout.get(name).is_none()).map(|(_, t)| t.file_name.clone()).collect()
    }

    /// The number formats the weights are stored in, with the number of tensors of each.
    pub fn dtypes(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        // A tensor that several parameters make up counts once.
        let stored: BTreeMap<_, _> =
            self.weights.tensors().values().map(|tensor| (&tensor.file_name, tensor.dtype)).collect();
        for dtype in stored.values() {
            *counts.entry(format!("{dtype:?}")).or_insert(0) += 1;
        }
        counts
    }

    /// All weights with the checkpoint's own head.
    ///
    /// # Errors
    /// [`Error::Head`] for a head that is not supported; any fault of the tensors.
    pub fn load(&self) -> Result<Parameters> {
        if let Some(what) = &self.unsupported {
            return Err(Error::unsupported_head(&self.directory, what));
        }
        let loaded = self.fill(self.layout(), OnTop::Required)?;
        Ok(loaded.parameters)
    }

    /// The weights for fine-tuning with `head` and `outputs` labels.
    ///
    /// Pooler and head are loaded where the checkpoint has them in the right shape, and listed in [`LoadedWeights::fresh`]
    /// where it does not.
    pub fn load_for(&self, head: Head, outputs: usize) -> Result<LoadedWeights> {
        self.fill(self.layout_for(head, outputs)?, OnTop::IfItFits)
    }

    /// Like [`Checkpoint::load_for`], but always with a new head: for labels that the checkpoint's head was not made for.
    pub fn load_for_new_head(&self, head: Head, outputs: usize) -> Result<LoadedWeights> {
        self.fill(self.layout_for(head, outputs)?, OnTop::New)
    }

    fn layout_for(&self, head: Head, outputs: usize) -> Result<ParameterLayout> {
        if outputs > MOST_LABELS {
            let path = self.directory.clone();
            return Err(Error::TooManyLabels { path, labels: outputs, most: MOST_LABELS });
        }
        Ok(ParameterLayout::new(&self.config, head, outputs, false))
    }

    fn fill(&self, layout: ParameterLayout, on_top: OnTop) -> Result<LoadedWeights> {
        // Shapes first: a damaged config.json must not decide how much memory is allocated.
        for parameter in layout.parameters().iter().filter(|parameter| !parameter.role.is_on_top()) {
            let stored = self.weights.tensors().get(&parameter.name);
            self.check_shape(parameter, stored.ok_or_else(|| self.missing(parameter, &layout))?)?;
        }
        let may_be_fresh = on_top != OnTop::Required;
        let mut values = vec![0.0; layout.len()];
        let mut fresh = Vec::new();
        for parameter in layout.parameters() {
            let stored = self.weights.tensors().get(&parameter.name);
            let of_head = parameter.role.module == Module::Head;
            // A head for other labels or another task is of no use here.
            let fits = |stored: &StoredTensor| self.head == layout.head() && stored.shape == parameter.shape;
            let stored = stored.filter(|stored| match on_top {
                OnTop::IfItFits if of_head => fits(stored),
                OnTop::New => !of_head,
                _ => true,
            });
            match stored {
                Some(stored) => self.copy(parameter, stored, &mut values[parameter.span.clone()])?,
                None if may_be_fresh && parameter.role.is_on_top() => fresh.push(parameter.name.clone()),
                None => return Err(self.missing(parameter, &layout)),
            }
        }
        self.weights.check_unchanged()?;
        Ok(LoadedWeights { parameters: Parameters::new(Arc::new(layout), values), fresh })
    }

    /// Suggests an unused tensor with a similar name: it may be the missing one, misspelled.
    fn missing(&self, parameter: &Parameter, layout: &ParameterLayout) -> Error {
        Error::MissingTensor {
            path: self.weights.first_path().to_owned(),
            tensor: parameter.name.clone(),
            shape: parameter.shape.clone(),
            nearest: qbert_quant::nearest(&parameter.name, self.unused(layout)),
        }
    }

    fn check_shape(&self, parameter: &Parameter, stored: &StoredTensor) -> Result<()> {
        if stored.shape == parameter.shape {
            return Ok(());
        }
        let (path, tensor) = (self.weights.path(stored).to_owned(), stored.file_name.clone());
        Err(Error::WrongShape { path, tensor, found: stored.shape.clone(), expected: parameter.shape.clone() })
    }

    fn copy(&self, parameter: &Parameter, stored: &StoredTensor, target: &mut [f32]) -> Result<()> {
        let path = || self.weights.path(stored).to_owned();
        let tensor = || stored.file_name.clone();
        self.check_shape(parameter, stored)?;
        let bytes = self.weights.bytes(stored);
        match stored.dtype {
            Dtype::F32 => convert(bytes, target, f32::from_le_bytes),
            Dtype::F16 => convert(bytes, target, |b| f16::from_le_bytes(b).to_f32()),
            Dtype::BF16 => convert(bytes, target, |b| bf16::from_le_bytes(b).to_f32()),
            other => return Err(Error::WrongDtype { path: path(), tensor: tensor(), dtype: format!("{other:?}") }),
        }
        match target.iter().position(|v| !v.is_finite()) {
            Some(index) => Err(Error::NotFinite { path: path(), tensor: tensor(), index, value: target[index] }),
            None => Ok(()),
        }
    }
}

fn convert<const N: usize>(bytes: &[u8], target: &mut [f32], decode: impl Fn([u8; N]) -> f32) {
    let (chunks, _) = bytes.as_chunks::<N>();
    for (value, chunk) in target.iter_mut().zip(chunks) {
        *value = decode(*chunk);
    }
}

/// Whether the files have the pooler of a class.
fn has_pooler(class: &HeadClass, weights: &WeightFiles) -> bool {
    class.pooler_weight().is_some_and(|name| weights.tensors().contains_key(&name))
}

/// The head whose output layer is in the files and its number of outputs, checked against what the configuration
/// declares.
fn find_head(config: &Config, weights: &WeightFiles) -> Result<(Head, usize)> {
    let declared = config.declared_head.unwrap_or(Head::None);
    let name = |head: Head| config.family.class(head).output_weight();
    let stored = |head: Head| name(head).and_then(|name| weights.tensors().get(&name));
    let candidates = Head::ALL.into_iter().filter(|&head| stored(head).is_some());
    let found = if stored(declared).is_some() {
        declared
    } else {
        // Heads may share a name. Where it is not declared which one this is, only a pooled head keeps the pooler.
        let fits = |&head: &Head| {
            let class = config.family.class(head);
            !class.reads_pooler() || has_pooler(class, weights)
        };
        candidates.clone().find(fits).or(candidates.clone().next()).unwrap_or(Head::None)
    };
    if found != declared && (declared == Head::QuestionAnswering || found == Head::None) {
        return Err(Error::MissingTensor {
            path: weights.first_path().to_owned(),
            tensor: name(declared).unwrap_or_default(),
            shape: vec![declared.outputs(config.labels.len()), config.hidden_size],
            nearest: None,
        });
    }
    let outputs = stored(found).map_or(0, |tensor| tensor.shape.first().copied().unwrap_or(0));
    // A tensor without elements may claim any number of rows, and a name is made for each.
    if let Some(tensor) = stored(found).filter(|_| outputs > MOST_LABELS) {
        let (path, tensor) = (weights.path(tensor).to_owned(), &tensor.file_name);
        let problem = format!("tensor `{tensor}` has {outputs} outputs; at most {MOST_LABELS} are supported");
        return Err(Error::Damaged { path, problem });
    }
    Ok((found, outputs))
}
