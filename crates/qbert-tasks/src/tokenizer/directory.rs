//! The tokenizer files of a checkpoint directory: which of them count, and when they contradict each other.
//!
//! `tokenizer.json` says everything. Without it, `vocab.txt` is a BERT tokenizer whose settings and added tokens are in
//! `tokenizer_config.json`, `added_tokens.json` and `special_tokens_map.json`, read as `transformers` reads them. What
//! needs another program (`MeCab` for Japanese) is refused, because its pieces would silently be others.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};
use tokenizers::AddedToken;

use super::definition::limits;
use super::{SPECIAL_TOKENS, Tokenizer, VocabOptions, unusable, vocabulary_lines};
use crate::error::shortened;
use crate::files::lines::read_limited;
use crate::{Error, Result};

/// Classes of `transformers` whose `vocab.txt` is BERT's WordPiece, with or without `Fast` at the end.
const VOCABULARY_CLASSES: &[&str] = &[
    "BertTokenizer",
    "DistilBertTokenizer",
    "ElectraTokenizer",
    "MobileBertTokenizer",
    "SqueezeBertTokenizer",
    "ConvBertTokenizer",
    "LayoutLMTokenizer",
    "LxmertTokenizer",
];

/// Files of tokenizers that only `transformers` can turn into a `tokenizer.json`.
const UNCONVERTED: [&str; 4] = ["merges.txt", "sentencepiece.bpe.model", "spiece.model", "vocab.json"];

/// Settings that name the special tokens, in the order of [`SPECIAL_TOKENS`].
const SPECIAL_KEYS: [&str; 5] = ["pad_token", "unk_token", "cls_token", "sep_token", "mask_token"];

impl Tokenizer {
    /// From a checkpoint directory: `tokenizer.json` if there is one, else `vocab.txt` with the settings of
    /// `tokenizer_config.json` (BERT's defaults without it) and the tokens of `added_tokens.json` and
    /// `special_tokens_map.json`.
    ///
    /// Where both are there, their numbers of tokens must agree, but for tokens that `tokenizer.json` adds at the end.
    ///
    /// # Errors
    /// As the other constructors, naming the file; [`Error::NoTokenizer`], [`Error::VocabularyMismatch`] and
    /// [`Error::TokenizerClass`].
    pub fn from_directory(directory: &Path) -> Result<Self> {
        let json_path = directory.join("tokenizer.json");
        let vocab_path = directory.join("vocab.txt");
        let json = read_if_there(&json_path)?;
        let vocab = read_if_there(&vocab_path)?;
        let files = SideFiles::read(directory)?;
        match (json, vocab) {
            (None, None) => {
                let path = directory.to_owned();
                match UNCONVERTED.into_iter().find(|file| directory.join(file).exists()) {
                    Some(file) => Err(Error::UnconvertedTokenizer { path, file }),
                    None => Err(Error::NoTokenizer { path }),
                }
            }
            (None, Some(vocab)) => {
                files.config.check_class(false)?;
                let name = vocab_path.display().to_string();
                let tokens = super::vocabulary_of(&name, &vocab)?;
                let added = files.added_tokens(&tokens)?;
                let tokenizer = Self::with_added(&name, &vocab, files.config.options()?, added)?;
                files.check_against("the vocabulary", &tokenizer)?;
                Ok(tokenizer)
            }
            (Some(json), vocab) => {
                files.config.check_class(true)?;
                let tokenizer = Self::from_json(&json_path.display().to_string(), &json)?;
                if let Some(vocab) = vocab {
                    tokenizer.check_against(directory, &vocab)?;
                }
                files.check_against("tokenizer.json", &tokenizer)?;
                Ok(tokenizer)
            }
        }
    }

    /// The tokenizer of a checkpoint whose word embedding has so many rows.
    ///
    /// # Errors
    /// As [`Tokenizer::from_directory`]; [`Error::VocabularyTooLarge`] where it has tokens that the model has no row for.
    pub fn for_model(directory: &Path, rows: usize) -> Result<Self> {
        let tokenizer = Self::from_directory(directory)?;
        if tokenizer.vocab_size > rows {
            return Err(Error::VocabularyTooLarge { path: directory.to_owned(), tokens: tokenizer.vocab_size, rows });
        }
        Ok(tokenizer)
    }

    fn check_against(&self, directory: &Path, vocab: &[u8]) -> Result<()> {
        let lines = vocabulary_lines(&String::from_utf8_lossy(vocab)).len();
        let model = self.inner.get_vocab_size(false);
        if lines == model || lines == self.vocab_size {
            return Ok(());
        }
        Err(Error::VocabularyMismatch { path: directory.to_owned(), json: model, vocab: lines })
    }
}

/// A JSON file beside the vocabulary; without the file, an empty object.
struct SideFile {
    name: String,
    bytes: Option<Vec<u8>>,
    fields: Map<String, Value>,
}

/// An added token whose id a file gives.
struct Listed<'a> {
    file: &'a str,
    id: u64,
    token: AddedToken,
}

impl SideFile {
    fn read(directory: &Path, name: &str) -> Result<Self> {
        let path = directory.join(name);
        let (name, bytes) = (path.display().to_string(), read_if_there(&path)?);
        let fields = match &bytes {
            Some(bytes) => serde_json::from_slice(bytes).map_err(|error| unusable(&name, &error.to_string()))?,
            None => Map::new(),
        };
        Ok(Self { name, bytes, fields })
    }

    fn wrong(&self, problem: &str) -> Error {
        unusable(&self.name, problem)
    }

    fn options(&self) -> Result<VocabOptions> {
        match &self.bytes {
            Some(bytes) => VocabOptions::from_config(&self.name, bytes),
            None => Ok(VocabOptions::default()),
        }
    }

    /// Refuses a class that is not BERT's WordPiece. `tokenizer.json` stands for any class that has one.
    fn check_class(&self, has_json: bool) -> Result<()> {
        let text = |key: &str| self.fields.get(key).and_then(Value::as_str);
        let refused = |what: String| {
            let known = VOCABULARY_CLASSES.join(", ");
            Err(Error::TokenizerClass { name: self.name.clone(), what, known })
        };
        if let Some(class) = text("tokenizer_class") {
            let is_japanese = class.starts_with("BertJapanese");
            let plain = class.strip_suffix("Fast").unwrap_or(class);
            if is_japanese || !(has_json || VOCABULARY_CLASSES.contains(&plain)) {
                return refused(format!("`tokenizer_class` is {:?}", shortened(class, 60)));
            }
        }
        for (key, usual) in [("word_tokenizer_type", "basic"), ("subword_tokenizer_type", "wordpiece")] {
            if let Some(kind) = text(key).filter(|kind| *kind != usual && !has_json) {
                return refused(format!("`{key}` is {:?}", shortened(kind, 60)));
            }
        }
        Ok(())
    }

    /// Tokens with their properties, from `added_tokens_decoder` of `tokenizer_config.json`.
    fn decoder(&self) -> Result<Vec<Listed<'_>>> {
        #[derive(Deserialize)]
        struct Entry {
            content: String,
            #[serde(default)]
            single_word: bool,
            #[serde(default)]
            lstrip: bool,
            #[serde(default)]
            rstrip: bool,
            normalized: Option<bool>,
            #[serde(default)]
            special: bool,
        }
        let entries = match self.fields.get("added_tokens_decoder") {
            None | Some(Value::Null) => return Ok(Vec::new()),
            Some(Value::Object(entries)) => entries,
            Some(_) => return Err(self.wrong("`added_tokens_decoder` is not a JSON object")),
        };
        let listed = |(id, entry): (&String, &Value)| {
            let wrong = |problem: &str| self.wrong(&format!("`added_tokens_decoder` {id:?}: {problem}"));
            let id = id.parse().map_err(|_| wrong("the id is not a whole number"))?;
            let entry = Entry::deserialize(entry).map_err(|error| wrong(&error.to_string()))?;
            let token = AddedToken {
                content: entry.content,
                single_word: entry.single_word,
                lstrip: entry.lstrip,
                rstrip: entry.rstrip,
                normalized: entry.normalized.unwrap_or(!entry.special),
                special: entry.special,
            };
            Ok(Listed { file: &self.name, id, token })
        };
        entries.iter().map(listed).collect()
    }

    /// Tokens and ids, from `added_tokens.json`.
    fn ids(&self) -> Result<Vec<Listed<'_>>> {
        let listed = |(token, id): (&String, &Value)| {
            let id = id.as_u64().ok_or_else(|| self.wrong(&format!("the id of {token:?} is not a whole number")))?;
            Ok(Listed { file: &self.name, id, token: AddedToken::from(token.clone(), false) })
        };
        self.fields.iter().map(listed).collect()
    }

    /// Refuses other names for BERT's special tokens, and returns the tokens that are special besides them.
    fn special_tokens(&self) -> Result<Vec<String>> {
        let content = |value: &Value| value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned);
        for (key, usual) in SPECIAL_KEYS.into_iter().zip(SPECIAL_TOKENS) {
            if let Some(other) = self.fields.get(key).and_then(content).filter(|other| other != usual) {
                return Err(self.wrong(&format!("`{key}` is {other:?}, but BERT's vocabularies call it {usual}")));
            }
        }
        match self.fields.get("additional_special_tokens") {
            Some(Value::Array(tokens)) => Ok(tokens.iter().filter_map(content).collect()),
            _ => Ok(Vec::new()),
        }
    }
}

/// What stands beside the vocabulary.
struct SideFiles {
    config: SideFile,
    added: SideFile,
    special: SideFile,
}

impl SideFiles {
    fn read(directory: &Path) -> Result<Self> {
        Ok(Self {
            config: SideFile::read(directory, "tokenizer_config.json")?,
            added: SideFile::read(directory, "added_tokens.json")?,
            special: SideFile::read(directory, "special_tokens_map.json")?,
        })
    }

    /// The tokens that files list with their ids, by id. `added_tokens_decoder` is the newer and fuller list; where it is
    /// there, `added_tokens.json` must not say anything else.
    fn listed(&self) -> Result<Vec<Listed<'_>>> {
        let mut listed = self.config.decoder()?;
        let older = self.added.ids()?;
        if listed.is_empty() {
            listed = older;
        } else {
            let is_known = |one: &Listed<'_>| {
                listed.iter().any(|other| other.id == one.id && other.token.content == one.token.content)
            };
            if let Some(Listed { id, token, .. }) = older.iter().find(|one| !is_known(one)) {
                let content = &token.content;
                let problem =
                    format!("{content:?} with id {id} is not in `added_tokens_decoder` of {}", self.config.name);
                return Err(self.added.wrong(&problem));
            }
        }
        if listed.len() > limits::ADDED_TOKENS {
            let problem = format!("{} added tokens; {} are allowed", listed.len(), limits::ADDED_TOKENS);
            return Err(unusable(listed[0].file, &problem));
        }
        listed.sort_by_key(|one| one.id);
        Ok(listed)
    }

    /// The tokens to add to a vocabulary, in the order of their ids. The crate numbers them itself, so every id must be
    /// the one that it will give.
    fn added_tokens(&self, vocabulary: &[&str]) -> Result<Vec<AddedToken>> {
        let mut added: Vec<AddedToken> = Vec::new();
        let mut next = vocabulary.len() as u64;
        // The last line with a token decides, as when the vocabulary itself is read.
        let lines: HashMap<&str, u64> = vocabulary.iter().copied().zip(0..).collect();
        for Listed { file, id, token } in self.listed()? {
            let content = &token.content;
            if content.is_empty() || content.len() > limits::TOKEN_BYTES {
                let (length, most) = (content.len(), limits::TOKEN_BYTES);
                return Err(unusable(
                    file,
                    &format!("the token with id {id} has {length} bytes; 1 to {most} are allowed"),
                ));
            }
            let expected = lines.get(content.as_str()).copied().unwrap_or(next);
            if id != expected {
                let problem = format!("{content:?} has the id {id}, but with this vocabulary it must be {expected}");
                return Err(unusable(file, &problem));
            }
            next += u64::from(id == next);
            // BERT's own special tokens are added by the tokenizer.
            if !super::is_plain_special(&token) {
                added.push(token);
            }
        }
        let special = [self.config.special_tokens()?, self.special.special_tokens()?].concat();
        for content in special {
            let is_known = |token: &AddedToken| token.content == content;
            if !content.is_empty() && !SPECIAL_TOKENS.contains(&content.as_str()) && !added.iter().any(is_known) {
                added.push(AddedToken::from(content, true));
            }
        }
        Ok(added)
    }

    /// Refuses added tokens that the tokenizer lacks or numbers otherwise; `source` is where it comes from.
    fn check_against(&self, source: &str, tokenizer: &Tokenizer) -> Result<()> {
        for Listed { file, id, token } in self.listed()? {
            let found = tokenizer.inner.token_to_id(&token.content).map(u64::from);
            if found != Some(id) {
                let found = found.map_or("does not have it".to_owned(), |found| format!("gives it {found}"));
                let problem = format!("{:?} has the id {id}, but {source} {found}", token.content);
                return Err(unusable(file, &problem));
            }
        }
        Ok(())
    }
}

fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>> {
    match read_limited(path, limits::FILE_BYTES) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
