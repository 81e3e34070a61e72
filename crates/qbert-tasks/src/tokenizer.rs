//! BERT's WordPiece tokenizer, read from `tokenizer.json` or `vocab.txt`, on top of the `tokenizers` crate.
//!
//! Two things differ from handing the file to that crate. Truncation and padding stored in a `tokenizer.json`
//! (sentence-transformers' files pad everything to 128) are switched off: the tasks truncate, and nothing is padded.
//! The tasks also add special tokens, because windows and word alignment need to know where they are. The crate
//! provides the piece ids and the position of each piece in the original text.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::{AddedToken, ModelWrapper, NormalizerWrapper, PreTokenizerWrapper};

use crate::error::shortened;
use crate::{Error, Result};

const UNKNOWN: &str = "[UNK]";
const SPECIAL_TOKENS: [&str; 5] = ["[PAD]", UNKNOWN, "[CLS]", "[SEP]", "[MASK]"];
const WORD_PIECE_PREFIX: &str = "##";
const LONGEST_WORD: usize = 100;

/// Ids of the tokens every BERT input is built with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpecialIds {
    /// `[CLS]`, the first token of every sequence.
    pub cls: u32,
    /// `[SEP]`, after each text.
    pub sep: u32,
    /// `[PAD]`; never produced here, but exports need it.
    pub pad: u32,
    /// `[UNK]`, for what the vocabulary cannot spell.
    pub unk: u32,
}

/// How a plain `vocab.txt` is used: the three settings of BERT's `tokenizer_config.json` that change the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct VocabOptions {
    /// Lower-case the text (`do_lower_case`).
    #[serde(rename = "do_lower_case")]
    pub lowercase: bool,
    /// Strip accents; `None` does as `lowercase` does.
    #[serde(default)]
    pub strip_accents: Option<bool>,
    /// Put spaces round Chinese characters.
    #[serde(default = "yes")]
    pub tokenize_chinese_chars: bool,
}

fn yes() -> bool {
    true
}

impl Default for VocabOptions {
    fn default() -> Self {
        Self { lowercase: true, strip_accents: None, tokenize_chinese_chars: true }
    }
}

impl VocabOptions {
    /// Reads the settings from the text of a `tokenizer_config.json`; keys that are missing keep BERT's defaults.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] naming `name` when it is no JSON object or a setting is not a boolean.
    pub fn from_config(name: &str, bytes: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        struct Config {
            do_lower_case: Option<bool>,
            strip_accents: Option<bool>,
            tokenize_chinese_chars: Option<bool>,
        }
        let config: Config = serde_json::from_slice(bytes).map_err(|error| unusable(name, &error.to_string()))?;
        Ok(Self {
            lowercase: config.do_lower_case.unwrap_or(true),
            strip_accents: config.strip_accents,
            tokenize_chinese_chars: config.tokenize_chinese_chars.unwrap_or(true),
        })
    }
}

/// The pieces of one text, without special tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pieces {
    /// Vocabulary ids.
    pub ids: Vec<u32>,
    /// The bytes of each piece in the original text, start and end, always at character boundaries.
    pub offsets: Vec<(usize, usize)>,
}

impl Pieces {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether the text has no piece at all (it is empty, blank or only control characters).
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}

/// A tokenizer, cheap to clone and to share between threads.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: Arc<tokenizers::Tokenizer>,
    special: SpecialIds,
    vocab_size: usize,
}

impl Tokenizer {
    /// From the text of a `tokenizer.json`; `name` stands for it in errors.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] when it cannot be parsed, [`Error::MissingSpecialToken`] when it is not BERT's.
    pub fn from_json(name: &str, bytes: &[u8]) -> Result<Self> {
        let inner = tokenizers::Tokenizer::from_bytes(bytes).map_err(|error| unusable(name, &error.to_string()))?;
        Self::finish(name, inner, None)
    }

    /// From the text of a `vocab.txt`, one token per line, and its settings; `name` stands for it in errors.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] when it is empty or not UTF-8, [`Error::MissingSpecialToken`] when it is not BERT's.
    pub fn from_vocab(name: &str, bytes: &[u8], options: VocabOptions) -> Result<Self> {
        let text = std::str::from_utf8(bytes).map_err(|error| {
            let line = 1 + bytes[..error.valid_up_to()].iter().filter(|&&byte| byte == b'\n').count();
            unusable(name, &format!("line {line} is not valid UTF-8"))
        })?;
        let tokens = vocabulary_lines(text);
        if tokens.is_empty() {
            return Err(unusable(name, "the vocabulary is empty"));
        }
        let count = u32::try_from(tokens.len()).map_err(|_| unusable(name, "the vocabulary is too large"))?;
        // The map's type has no public name; an empty one from the crate itself is filled instead. Its own reader
        // would cut white space off the tokens, which Python's does not.
        let mut vocabulary = WordPiece::read_bytes(b"").map_err(|error| unusable(name, &error.to_string()))?;
        vocabulary.extend(tokens.iter().map(|&token| token.to_owned()).zip(0..count));
        let missing = SPECIAL_TOKENS[..4].iter().find(|token| !vocabulary.contains_key(**token));
        if let Some(token) = missing {
            return Err(Error::MissingSpecialToken { name: name.to_owned(), token });
        }
        let present = SPECIAL_TOKENS.iter().filter(|token| vocabulary.contains_key(**token));
        let special: Vec<AddedToken> = present.map(|&token| AddedToken::from(token, true)).collect();
        let model = WordPiece::builder()
            .vocab(vocabulary)
            .unk_token(UNKNOWN.to_owned())
            .continuing_subword_prefix(WORD_PIECE_PREFIX.to_owned())
            .max_input_chars_per_word(LONGEST_WORD)
            .build()
            .map_err(|error| unusable(name, &error.to_string()))?;
        let mut inner = tokenizers::Tokenizer::new(model);
        let normalizer =
            BertNormalizer::new(true, options.tokenize_chinese_chars, options.strip_accents, options.lowercase);
        inner.with_normalizer(Some(normalizer)).map_err(|error| unusable(name, &error.to_string()))?;
        inner.with_pre_tokenizer(Some(BertPreTokenizer));
        inner.add_special_tokens(special).map_err(|error| unusable(name, &error.to_string()))?;
        Self::finish(name, inner, Some(tokens.len()))
    }

    /// From a checkpoint directory: `tokenizer.json` if there is one, else `vocab.txt` with the settings of
    /// `tokenizer_config.json` (BERT's defaults without it).
    ///
    /// Where both are there, their numbers of tokens must agree, but for tokens that `tokenizer.json` adds at the end.
    ///
    /// # Errors
    /// As the other constructors, naming the file; [`Error::NoTokenizer`] and [`Error::VocabularyMismatch`].
    pub fn from_directory(directory: &Path) -> Result<Self> {
        let json_path = directory.join("tokenizer.json");
        let vocab_path = directory.join("vocab.txt");
        let json = read_if_there(&json_path)?;
        let vocab = read_if_there(&vocab_path)?;
        match (json, vocab) {
            (None, None) => Err(Error::NoTokenizer { path: directory.to_owned() }),
            (None, Some(vocab)) => {
                let config_path = directory.join("tokenizer_config.json");
                let options = match read_if_there(&config_path)? {
                    Some(config) => VocabOptions::from_config(&config_path.display().to_string(), &config)?,
                    None => VocabOptions::default(),
                };
                Self::from_vocab(&vocab_path.display().to_string(), &vocab, options)
            }
            (Some(json), vocab) => {
                let tokenizer = Self::from_json(&json_path.display().to_string(), &json)?;
                if let Some(vocab) = vocab {
                    tokenizer.check_against(directory, &vocab)?;
                }
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

    /// `vocab_size` where it is known: finding it costs a copy of the whole vocabulary.
    fn finish(name: &str, mut inner: tokenizers::Tokenizer, vocab_size: Option<usize>) -> Result<Self> {
        inner.with_truncation(None).map_err(|error| unusable(name, &error.to_string()))?;
        inner.with_padding(None);
        let id = |token: &'static str| {
            inner.token_to_id(token).ok_or_else(|| Error::MissingSpecialToken { name: name.to_owned(), token })
        };
        let special = SpecialIds { cls: id("[CLS]")?, sep: id("[SEP]")?, pad: id("[PAD]")?, unk: id(UNKNOWN)? };
        let largest = || inner.get_vocab(true).into_values().max().unwrap_or_default();
        let vocab_size = vocab_size.unwrap_or_else(|| largest() as usize + 1);
        Ok(Self { inner: Arc::new(inner), special, vocab_size })
    }

    /// One more than the largest id: the number of rows a word embedding needs.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The ids of `[CLS]`, `[SEP]`, `[PAD]` and `[UNK]`.
    pub fn special(&self) -> SpecialIds {
        self.special
    }

    /// The token of an id.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The pieces of a text, without special tokens and without any limit.
    ///
    /// # Errors
    /// [`Error::Tokenization`] when the underlying tokenizer refuses the text.
    pub fn pieces(&self, text: &str) -> Result<Pieces> {
        let encoding = self
            .inner
            .encode(text, false)
            .map_err(|error| Error::Tokenization { text: shortened(text, 60), problem: error.to_string() })?;
        Ok(Pieces { ids: encoding.get_ids().to_vec(), offsets: encoding.get_offsets().to_vec() })
    }

    /// The whole tokenizer as the text of a `tokenizer.json`, for a checkpoint directory.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] when it cannot be written as JSON.
    pub fn to_json(&self) -> Result<String> {
        self.inner.to_string(false).map_err(|error| unusable("tokenizer.json", &error.to_string()))
    }

    /// The tokenizer as a `vocab.txt` and its settings, or `None` if it is more than that (another model,
    /// normalizer, or added tokens). A third of `tokenizer.json`'s size and quicker to load: for packed models.
    pub fn to_vocab(&self) -> Option<(String, VocabOptions)> {
        let ModelWrapper::WordPiece(model) = self.inner.get_model() else { return None };
        let Some(NormalizerWrapper::BertNormalizer(normalizer)) = self.inner.get_normalizer() else { return None };
        let Some(PreTokenizerWrapper::BertPreTokenizer(_)) = self.inner.get_pre_tokenizer() else { return None };
        let usual_model = model.unk_token == UNKNOWN
            && model.continuing_subword_prefix == WORD_PIECE_PREFIX
            && model.max_input_chars_per_word == LONGEST_WORD;
        let added = self.inner.get_added_tokens_decoder();
        let usual_added = added.values().all(is_plain_special);
        let present = SPECIAL_TOKENS.iter().filter(|token| self.inner.token_to_id(token).is_some()).count();
        if !usual_model || !normalizer.clean_text || !usual_added || added.len() != present {
            return None;
        }
        let options = VocabOptions {
            lowercase: normalizer.lowercase,
            strip_accents: normalizer.strip_accents,
            tokenize_chinese_chars: normalizer.handle_chinese_chars,
        };
        Some((self.vocabulary_text()?, options))
    }

    /// Whether both split every text into the same pieces, as far as their definitions tell.
    pub fn is_same_as(&self, other: &Self) -> bool {
        if Arc::ptr_eq(&self.inner, &other.inner) {
            return true;
        }
        match (self.to_vocab(), other.to_vocab()) {
            (Some(own), Some(other)) => own == other,
            (None, None) => matches!((self.to_json(), other.to_json()), (Ok(own), Ok(other)) if own == other),
            _ => false,
        }
    }

    /// The vocabulary, one token per line; `None` if an id has no token or a token would not survive as a line.
    fn vocabulary_text(&self) -> Option<String> {
        let mut tokens = vec![None; self.vocab_size];
        for (token, id) in self.inner.get_vocab(true) {
            *tokens.get_mut(id as usize)? = Some(token);
        }
        let mut text = String::new();
        for token in tokens {
            let token = token.filter(|token| !token.contains(['\n', '\r']))?;
            text.push_str(&token);
            text.push('\n');
        }
        Some(text)
    }
}

/// Whether an added token is one that [`Tokenizer::from_vocab`] would add just the same.
fn is_plain_special(token: &AddedToken) -> bool {
    let altered = token.single_word || token.lstrip || token.rstrip || token.normalized || !token.special;
    SPECIAL_TOKENS.contains(&token.content.as_str()) && !altered
}

/// The tokens of a `vocab.txt`: a line break ends a token, nothing else about the line is touched.
fn vocabulary_lines(text: &str) -> Vec<&str> {
    text.lines().collect()
}

fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Io { path: path.to_owned(), source }),
    }
}

fn unusable(name: &str, problem: &str) -> Error {
    Error::Tokenizer { name: name.to_owned(), problem: problem.to_owned() }
}
