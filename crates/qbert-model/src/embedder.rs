//! How an encoder turns texts into vectors: what `sentence-transformers` keeps beside a checkpoint, read and written.
//!
//! The files are `modules.json` (the steps), `1_Pooling/config.json`, `sentence_bert_config.json` (the longest text) and
//! `config_sentence_transformers.json` (prompts). A step or setting that nothing here computes is refused by name.

use std::collections::BTreeMap;
use std::path::Path;

use qbert_kernels::TokenPooling;
use qbert_quant::shorten;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::atomic;
use crate::error::{Error, Result, read_at_most};

/// The largest of the files in bytes; real ones have a few hundred.
const LARGEST_FILE: u64 = 1 << 20;
/// The list of steps.
const MODULES: &str = "modules.json";
/// Longest sequence.
const LENGTHS: &str = "sentence_bert_config.json";
/// Prompts and truncation.
const PROMPTS: &str = "config_sentence_transformers.json";
/// The folder of the pooling step, as `sentence-transformers` names it.
const POOLING_FOLDER: &str = "1_Pooling";

/// How the hidden states of a text become one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Pooling {
    /// The mean over all tokens, including `[CLS]` and `[SEP]`. Most sentence encoders are trained with it.
    #[default]
    Mean,
    /// The hidden state of the first token, `[CLS]`.
    First,
    /// The hidden state of the last token.
    Last,
    /// The largest number of each column.
    Max,
    /// The mean, where later tokens count more: token `i`, counted from 1, counts `i` times.
    WeightedMean,
    /// The sum over all tokens divided by the square root of their number.
    MeanSqrtLength,
    /// The output of the model's pooler: the first token through a linear layer and its activation.
    Pooler,
}

impl Pooling {
    /// All of them, with the names that people use.
    pub const NAMES: [(&'static str, Self); 7] = [
        ("mean", Self::Mean),
        ("first", Self::First),
        ("last", Self::Last),
        ("max", Self::Max),
        ("weighted-mean", Self::WeightedMean),
        ("mean-sqrt-length", Self::MeanSqrtLength),
        ("pooler", Self::Pooler),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::NAMES.into_iter().find(|&(_, own)| own == self).map_or("", |(name, _)| name)
    }

    /// How token vectors are pooled; `None` where the pooler does it.
    pub fn of_tokens(self) -> Option<TokenPooling> {
        match self {
            Self::Mean => Some(TokenPooling::Mean),
            Self::First => Some(TokenPooling::First),
            Self::Last => Some(TokenPooling::Last),
            Self::Max => Some(TokenPooling::Max),
            Self::WeightedMean => Some(TokenPooling::WeightedMean),
            Self::MeanSqrtLength => Some(TokenPooling::MeanSqrtLength),
            Self::Pooler => None,
        }
    }

    /// The names in `sentence-transformers`: of the newer key, and of the older switch.
    const FOREIGN: [(&'static str, &'static str, Self); 6] = [
        ("mean", "pooling_mode_mean_tokens", Self::Mean),
        ("cls", "pooling_mode_cls_token", Self::First),
        ("max", "pooling_mode_max_tokens", Self::Max),
        ("lasttoken", "pooling_mode_lasttoken", Self::Last),
        ("weightedmean", "pooling_mode_weightedmean_tokens", Self::WeightedMean),
        ("mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens", Self::MeanSqrtLength),
    ];
}

/// How a model turns texts into vectors.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Embedder {
    /// How the hidden states of a text become one vector.
    pub pooling: Pooling,
    /// Whether vectors are scaled to length 1, so that their dot product is the cosine similarity.
    pub normalize: bool,
    /// Numbers of a vector that are kept, from the first; all where there is none (Matryoshka models).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dimensions: Option<usize>,
    /// The longest text in tokens, special ones included, where it is below the model's own limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_length: Option<usize>,
    /// What stands before a text, by purpose: `query`, `document`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub prompts: BTreeMap<String, String>,
    /// The prompt for texts whose purpose is not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_prompt: Option<String>,
}

impl Embedder {
    /// The names of the files and folders in a checkpoint's directory.
    pub const NAMES: [&'static str; 4] = [MODULES, LENGTHS, PROMPTS, POOLING_FOLDER];

    /// What models call the prompt of queries.
    pub const QUERY_PROMPTS: &'static [&'static str] = &["query"];
    /// What models call the prompt of documents.
    pub const DOCUMENT_PROMPTS: &'static [&'static str] = &["document", "passage", "corpus"];

    /// A plain one: pooled, with nothing before texts.
    pub fn new(pooling: Pooling, normalize: bool) -> Self {
        Self { pooling, normalize, ..Self::default() }
    }

    /// Reads the files of a checkpoint's directory; `None` where it has no `modules.json`.
    ///
    /// # Errors
    /// [`Error::Config`] for a step or a setting that is not supported, by name.
    pub fn read(directory: &Path) -> Result<Option<Self>> {
        let path = directory.join(MODULES);
        if !path.exists() {
            return Ok(None);
        }
        let text = read_at_most(LARGEST_FILE, &path, "read the list of modules")?;
        let modules: Vec<Module> = serde_json::from_slice(&text)
            .map_err(|error| problem(&path, format!("not a list of modules: {}", shorten(&error.to_string()))))?;
        let mut found = Self { pooling: Pooling::Mean, ..Self::default() };
        let mut is_pooled = false;
        for (index, module) in modules.iter().enumerate() {
            match module.kind.rsplit('.').next().unwrap_or_default() {
                "Transformer" if index == 0 && module.path.is_empty() => {}
                "Pooling" if index == 1 => {
                    found.pooling = pooling_of(&directory.join(&module.path).join("config.json"))?;
                    is_pooled = true;
                }
                "Normalize" if is_pooled && index + 1 == modules.len() => found.normalize = true,
                other => {
                    let text = format!("module {index} is `{}` in `{}`: {SUPPORTED}", shorten(other), module.path);
                    return Err(problem(&path, text));
                }
            }
        }
        if !is_pooled {
            return Err(problem(&path, format!("no Pooling module: {SUPPORTED}")));
        }
        found.read_lengths(&directory.join(LENGTHS))?;
        found.read_prompts(&directory.join(PROMPTS))?;
        Ok(Some(found))
    }

    fn read_lengths(&mut self, path: &Path) -> Result<()> {
        let Some(object) = optional_object(path)? else { return Ok(()) };
        if object.get("do_lower_case") == Some(&Value::Bool(true)) {
            let text = "`do_lower_case` is true: set it in tokenizer_config.json, where every program sees it";
            return Err(problem(path, text.to_owned()));
        }
        self.max_length = match object.get("max_seq_length") {
            None | Some(Value::Null) => None,
            Some(value) => Some(whole(value).filter(|&length| length > 0).ok_or_else(|| {
                problem(
                    path,
                    format!("`max_seq_length` is {}; it must be a number above 0", shorten(&value.to_string())),
                )
            })?),
        };
        Ok(())
    }

    fn read_prompts(&mut self, path: &Path) -> Result<()> {
        let Some(object) = optional_object(path)? else { return Ok(()) };
        if let Some(Value::Object(prompts)) = object.get("prompts") {
            for (name, text) in prompts {
                let text =
                    text.as_str().ok_or_else(|| problem(path, format!("the prompt `{}` is no text", shorten(name))))?;
                self.prompts.insert(name.clone(), text.to_owned());
            }
        }
        if let Some(Value::String(name)) = object.get("default_prompt_name") {
            if !self.prompts.contains_key(name) {
                return Err(problem(path, format!("`default_prompt_name` is {}, which is no prompt", shorten(name))));
            }
            self.default_prompt = Some(name.clone());
        }
        if let Some(value) = object.get("truncate_dim").filter(|value| !value.is_null()) {
            let kept = whole(value).filter(|&kept| kept > 0);
            self.dimensions = Some(kept.ok_or_else(|| {
                problem(path, format!("`truncate_dim` is {}; it must be a number above 0", shorten(&value.to_string())))
            })?);
        }
        Ok(())
    }

    /// Writes the files that `sentence-transformers` reads, each atomically; `width` is that of a hidden state.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, directory: &Path, width: usize) -> Result<()> {
        let module = |index: usize, path: &str, kind: &str| json!({ "idx": index, "name": index.to_string(), "path": path, "type": format!("sentence_transformers.models.{kind}") });
        let mut modules = vec![module(0, "", "Transformer"), module(1, POOLING_FOLDER, "Pooling")];
        if self.normalize {
            modules.push(module(2, "2_Normalize", "Normalize"));
        }
        let mut pooling = Map::from_iter([("word_embedding_dimension".to_owned(), json!(width))]);
        for (_, switch, own) in Pooling::FOREIGN {
            pooling.insert(switch.to_owned(), json!(own == self.pooling));
        }
        let folder = directory.join(POOLING_FOLDER);
        std::fs::create_dir_all(&folder).map_err(Error::io(&folder, "create the directory"))?;
        let write = |path: &Path, value: &Value| atomic::write_file(path, |writer| writeln!(writer, "{value:#}"));
        write(&folder.join("config.json"), &Value::Object(pooling))?;
        if let Some(length) = self.max_length {
            write(&directory.join(LENGTHS), &json!({ "max_seq_length": length, "do_lower_case": false }))?;
        }
        let prompts = json!({ "prompts": self.prompts, "default_prompt_name": self.default_prompt, "truncate_dim": self.dimensions });
        write(&directory.join(PROMPTS), &prompts)?;
        write(&directory.join(MODULES), &Value::Array(modules))
    }

    /// What stands before a text: the prompt of this name, or the default one.
    ///
    /// # Errors
    /// The names there are, where this is none of them.
    pub fn prompt(&self, name: Option<&str>) -> std::result::Result<&str, Vec<String>> {
        match name.or(self.default_prompt.as_deref()) {
            None => Ok(""),
            Some(name) => {
                self.prompts.get(name).map(String::as_str).ok_or_else(|| self.prompts.keys().cloned().collect())
            }
        }
    }
}

/// What is supported, for errors.
const SUPPORTED: &str = "a Transformer, then Pooling, then at most Normalize are supported";

/// A step in `modules.json`.
#[derive(Debug, Deserialize)]
struct Module {
    #[serde(default)]
    path: String,
    #[serde(rename = "type")]
    kind: String,
}

fn pooling_of(path: &Path) -> Result<Pooling> {
    let object = object(path)?;
    if object.get("include_prompt") == Some(&Value::Bool(false)) {
        return Err(problem(path, "`include_prompt` is false: prompts are always part of the vector here".to_owned()));
    }
    // Newer files name the mode, older ones have a switch for each.
    if let Some(Value::String(name)) = object.get("pooling_mode") {
        let known = Pooling::FOREIGN.into_iter().find(|&(foreign, ..)| foreign == name);
        return known.map(|(.., pooling)| pooling).ok_or_else(|| {
            let names: Vec<&str> = Pooling::FOREIGN.iter().map(|&(foreign, ..)| foreign).collect();
            problem(path, format!("`pooling_mode` is {}; supported are {}", shorten(name), names.join(", ")))
        });
    }
    let is_on = |switch: &str| object.get(switch) == Some(&Value::Bool(true));
    let on: Vec<Pooling> =
        Pooling::FOREIGN.into_iter().filter(|&(_, switch, _)| is_on(switch)).map(|(.., own)| own).collect();
    match on[..] {
        [pooling] => Ok(pooling),
        [] => Err(problem(path, "no `pooling_mode_…` that is supported is true".to_owned())),
        _ => Err(problem(path, "more than one `pooling_mode_…` is true; one at a time is supported".to_owned())),
    }
}

fn whole(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|number| usize::try_from(number).ok())
}

fn object(path: &Path) -> Result<Map<String, Value>> {
    let text = read_at_most(LARGEST_FILE, path, "read the file")?;
    serde_json::from_slice(&text)
        .map_err(|error| problem(path, format!("not a JSON object: {}", shorten(&error.to_string()))))
}

fn optional_object(path: &Path) -> Result<Option<Map<String, Value>>> {
    if path.exists() { object(path).map(Some) } else { Ok(None) }
}

fn problem(path: &Path, problem: String) -> Error {
    Error::Config { path: path.to_owned(), problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        directory
    }

    const THREE: &str = r#"[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]"#;

    #[test]
    fn the_files_are_read() {
        let files = [
            (MODULES, THREE),
            ("1_Pooling/config.json", r#"{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}"#),
            (LENGTHS, r#"{"max_seq_length": 256, "do_lower_case": false}"#),
            (PROMPTS, r#"{"prompts": {"query": "query: ", "document": "passage: "}, "default_prompt_name": "query"}"#),
        ];
        let found = Embedder::read(directory(&files).path()).unwrap().unwrap();
        assert_eq!((found.pooling, found.normalize, found.max_length), (Pooling::First, true, Some(256)));
        assert_eq!(found.prompt(None), Ok("query: "));
        assert_eq!(found.prompt(Some("document")), Ok("passage: "));
        assert_eq!(found.prompt(Some("other")), Err(vec!["document".to_owned(), "query".to_owned()]));
        assert_eq!(Embedder::read(directory(&[]).path()).unwrap(), None);
    }

    #[test]
    fn what_is_written_is_read_back() {
        for (_, pooling) in Pooling::NAMES.into_iter().filter(|&(_, pooling)| pooling != Pooling::Pooler) {
            for normalize in [false, true] {
                let mut own = Embedder::new(pooling, normalize);
                own.prompts.insert("query".to_owned(), "q: ".to_owned());
                (own.max_length, own.dimensions) = (Some(64), Some(128));
                let target = directory(&[]);
                own.write(target.path(), 384).unwrap();
                assert_eq!(Embedder::read(target.path()).unwrap(), Some(own));
            }
        }
    }

    #[test]
    fn what_is_not_computed_is_refused_by_name() {
        let dense = THREE.replace("Normalize", "Dense");
        let mean = ("1_Pooling/config.json", r#"{"pooling_mode": "mean"}"#);
        let refused: [(&[(&str, &str)], &str); 6] = [
            (&[(MODULES, &dense), mean], "module 2 is `Dense`"),
            (
                &[(MODULES, THREE), ("1_Pooling/config.json", r#"{"pooling_mode": "attention"}"#)],
                "`pooling_mode` is attention",
            ),
            (&[(MODULES, THREE), ("1_Pooling/config.json", "{}")], "no `pooling_mode_…`"),
            (
                &[(MODULES, THREE), ("1_Pooling/config.json", r#"{"pooling_mode": "mean", "include_prompt": false}"#)],
                "`include_prompt` is false",
            ),
            (&[(MODULES, THREE), mean, (LENGTHS, r#"{"do_lower_case": true}"#)], "`do_lower_case` is true"),
            (&[(MODULES, THREE), mean, (PROMPTS, r#"{"default_prompt_name": "x"}"#)], "`default_prompt_name` is x"),
        ];
        for (files, expected) in refused {
            let error = Embedder::read(directory(files).path()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
