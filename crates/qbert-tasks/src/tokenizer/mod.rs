//! Tokenizers (WordPiece, BPE, Unigram), read from `tokenizer.json` or `vocab.txt`, on top of the `tokenizers` crate.
//!
//! Two things differ from handing the file to that crate. Truncation and padding stored in a `tokenizer.json`
//! (sentence-transformers' files pad everything to 128) are switched off: the tasks truncate, and nothing is padded.
//! The tasks also add special tokens, because windows and word alignment need to know where they are. The crate
//! provides the piece ids and the position of each piece in the original text.

mod charsmap;
mod chunks;
mod definition;
mod directory;
mod frame;
mod guard;
mod prune;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::{AddedToken, ModelWrapper, NormalizerWrapper, PreTokenizerWrapper};

use self::chunks::Cuts;
use self::definition::{AddedId, limits};
pub(crate) use self::frame::{Frame, Special};
use self::guard::guarded;
pub use self::prune::PrunedTokenizer;
use crate::error::shortened;
use crate::ner::Ideographs;
use crate::{Error, Result};

const UNKNOWN: &str = "[UNK]";
const SPECIAL_TOKENS: [&str; 5] = ["[PAD]", UNKNOWN, "[CLS]", "[SEP]", "[MASK]"];
const WORD_PIECE_PREFIX: &str = "##";
const LONGEST_WORD: usize = 100;
/// How much of a text is read to count the pieces that are cut off.
const COUNTED_BYTES: usize = 1 << 20;

/// Ids of the tokens every input is built with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpecialIds {
    /// `[CLS]` or `<s>`, the first token of every sequence.
    pub cls: u32,
    /// `[SEP]` or `</s>`, after each text.
    pub sep: u32,
    /// `[PAD]` or `<pad>`; never produced here, but exports need it.
    pub pad: u32,
    /// `[UNK]` or `<unk>`, for what the vocabulary cannot spell.
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
    frame: Arc<Frame>,
    vocab_size: usize,
    /// Where a long text may be cut.
    cuts: Arc<Cuts>,
}

impl Tokenizer {
    /// From the text of a `tokenizer.json`; `name` stands for it in errors.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] when it cannot be parsed, [`Error::MissingSpecialToken`] when it has none to begin or end a
    /// sequence with.
    pub fn from_json(name: &str, bytes: &[u8]) -> Result<Self> {
        let definition = definition::check(bytes).map_err(|problem| unusable(name, &problem))?;
        let inner = guarded(|| tokenizers::Tokenizer::from_bytes(&definition.text))
            .and_then(|inner| inner.map_err(|error| error.to_string()))
            .map_err(|problem| unusable(name, &problem))?;
        for AddedId { content, id } in &definition.added {
            let found = inner.token_to_id(content).map(u64::from);
            if found != Some(*id) {
                let found = found.map_or("none".to_owned(), |found| found.to_string());
                let problem = format!("the added token {content:?} has the id {id}, but its place gives it {found}");
                return Err(unusable(name, &problem));
            }
        }
        Self::finish(name, inner, None)
    }

    /// From the text of a `vocab.txt`, one token per line, and its settings; `name` stands for it in errors.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] when it is empty or not UTF-8, [`Error::MissingSpecialToken`] when it is not BERT's.
    pub fn from_vocab(name: &str, bytes: &[u8], options: VocabOptions) -> Result<Self> {
        Self::with_added(name, bytes, options, Vec::new())
    }

    /// From a `vocab.txt` and tokens to add to it, whose ids follow those of the vocabulary.
    fn with_added(name: &str, bytes: &[u8], options: VocabOptions, added: Vec<AddedToken>) -> Result<Self> {
        let tokens = vocabulary_of(name, bytes)?;
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
        let known_size = if added.is_empty() { Some(tokens.len()) } else { None };
        for tokens in [special, added] {
            guarded(|| inner.add_special_tokens(tokens))
                .and_then(|count| count.map_err(|error| error.to_string()))
                .map_err(|problem| unusable(name, &problem))?;
        }
        let tokenizer = Self::finish(name, inner, known_size)?;
        Ok(Self { vocab_size: tokenizer.vocab_size.max(tokens.len()), ..tokenizer })
    }

    /// `vocab_size` where it is known: finding it costs a copy of the whole vocabulary.
    fn finish(name: &str, mut inner: tokenizers::Tokenizer, vocab_size: Option<usize>) -> Result<Self> {
        inner.with_truncation(None).map_err(|error| unusable(name, &error.to_string()))?;
        inner.with_padding(None);
        let frame = Frame::of(name, &inner)?;
        let id = |names: [&'static str; 2]| {
            let found = names.into_iter().find_map(|token| inner.token_to_id(token));
            found.ok_or_else(|| Error::MissingSpecialToken { name: name.to_owned(), token: names[0] })
        };
        let of_frame = |part: &[Special]| part.last().map_or(0, |special| special.id);
        let special = SpecialIds {
            cls: of_frame(&frame.start),
            sep: of_frame(&frame.end),
            pad: id(["[PAD]", "<pad>"])?,
            unk: id([UNKNOWN, "<unk>"])?,
        };
        let largest = || inner.get_vocab(true).into_values().max().unwrap_or_default();
        let vocab_size = vocab_size.unwrap_or_else(|| largest() as usize + 1);
        let cuts = Arc::new(guarded(|| Cuts::of(&inner)).map_err(|problem| unusable(name, &problem))?);
        Ok(Self { inner: Arc::new(inner), special, frame: Arc::new(frame), vocab_size, cuts })
    }

    /// One more than the largest id: the number of rows a word embedding needs.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The ids of `[CLS]`, `[SEP]`, `[PAD]` and `[UNK]`, or of what the tokenizer has in their place.
    pub fn special(&self) -> SpecialIds {
        self.special
    }

    /// The special tokens round texts.
    pub(crate) fn frame(&self) -> &Frame {
        &self.frame
    }

    /// The pieces of a word of a sentence, as they are in the middle of a text: in byte-level BPE with the space in front.
    ///
    /// # Errors
    /// As [`Tokenizer::pieces`].
    pub(crate) fn word_ids(&self, word: &str) -> Result<Vec<u32>> {
        match self.inner.get_pre_tokenizer() {
            Some(PreTokenizerWrapper::ByteLevel(bytes)) if !bytes.add_prefix_space => {
                self.pieces(&format!(" {word}")).map(|pieces| pieces.ids)
            }
            _ => self.pieces(word).map(|pieces| pieces.ids),
        }
    }

    /// The token of an id.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Whether every Chinese character is a word of its own, as in the usual BERT tokenizers.
    pub fn ideographs(&self) -> Ideographs {
        let alone = |normalizer: &NormalizerWrapper| matches!(normalizer, NormalizerWrapper::BertNormalizer(bert) if bert.handle_chinese_chars);
        let is_alone = self.inner.get_normalizer().is_some_and(|normalizer| match normalizer {
            NormalizerWrapper::Sequence(parts) => parts.as_ref().iter().any(alone),
            other => alone(other),
        });
        if is_alone { Ideographs::Alone } else { Ideographs::Joined }
    }

    /// The pieces of a text, without special tokens. Long texts are tokenized in chunks, which changes nothing about the
    /// pieces and bounds the memory.
    ///
    /// # Errors
    /// [`Error::Tokenization`] when the underlying tokenizer refuses the text, [`Error::TextTooLong`] for more than 1 MiB
    /// in one stretch: without a space or punctuation, or with a tokenizer that needs the text whole.
    pub fn pieces(&self, text: &str) -> Result<Pieces> {
        let mut pieces = Pieces::default();
        for chunk in self.cuts.chunks(text) {
            let (start, chunk) = chunk?;
            let encoding = self.encoding(chunk)?;
            pieces.ids.extend_from_slice(encoding.get_ids());
            // Other tokenizers than WordPiece count the space in front of a word as part of its first piece.
            let has_spaces = !matches!(self.inner.get_model(), ModelWrapper::WordPiece(_));
            let trimmed = |&(from, to): &(usize, usize)| {
                let own = chunk.get(from..to).filter(|_| has_spaces).unwrap_or_default();
                let blank = own.len() - own.trim_start().len();
                if blank < own.len() { (start + from + blank, start + to) } else { (start + from, start + to) }
            };
            pieces.offsets.extend(encoding.get_offsets().iter().map(trimmed));
        }
        Ok(pieces)
    }

    /// The first ids of a text, at most `room`, and the number of ids after them.
    ///
    /// Counting ends where `room` is full and [`COUNTED_BYTES`] of text have been read: the ids are still those of the whole
    /// text, but of the ones after them only those up to there are counted.
    ///
    /// # Errors
    /// As [`Tokenizer::pieces`].
    pub(crate) fn first_ids(&self, text: &str, room: usize) -> Result<(Vec<u32>, usize)> {
        let (mut ids, mut more) = (Vec::new(), 0);
        for chunk in self.cuts.chunks(text) {
            let (start, chunk) = chunk?;
            if ids.len() == room && start >= COUNTED_BYTES {
                break;
            }
            let encoding = self.encoding(chunk)?;
            let found = encoding.get_ids();
            let kept = found.len().min(room - ids.len());
            ids.extend_from_slice(&found[..kept]);
            more += found.len() - kept;
        }
        Ok((ids, more))
    }

    fn encoding(&self, text: &str) -> Result<tokenizers::Encoding> {
        guarded(|| self.inner.encode(text, false))
            .and_then(|encoding| encoding.map_err(|error| error.to_string()))
            .map_err(|problem| Error::Tokenization { text: shortened(text, 60), problem })
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
        let by_name = |token: &str| self.inner.token_to_id(token);
        let usual_frame = Frame::new(by_name("[CLS]")?, by_name("[SEP]")?, 1);
        if !usual_model
            || !normalizer.clean_text
            || !usual_added
            || added.len() != present
            || *self.frame != usual_frame
        {
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
        let vocabulary = self.inner.get_vocab(true);
        // An id without a token. The largest id is only a number in a file: nothing of its size may be allocated.
        if vocabulary.len() < self.vocab_size {
            return None;
        }
        let mut tokens = vec![None; self.vocab_size];
        for (token, id) in vocabulary {
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

/// The tokens of a `vocab.txt`, checked.
fn vocabulary_of<'a>(name: &str, bytes: &'a [u8]) -> Result<Vec<&'a str>> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let line = 1 + bytes[..error.valid_up_to()].iter().filter(|&&byte| byte == b'\n').count();
        unusable(name, &format!("line {line} is not valid UTF-8"))
    })?;
    let tokens = vocabulary_lines(text);
    if tokens.is_empty() {
        return Err(unusable(name, "the vocabulary is empty"));
    }
    if tokens.len() > limits::TOKENS {
        return Err(unusable(name, &format!("{} tokens; {} are allowed", tokens.len(), limits::TOKENS)));
    }
    match tokens.iter().position(|token| token.len() > limits::TOKEN_BYTES) {
        Some(line) => {
            let (number, length, most) = (line + 1, tokens[line].len(), limits::TOKEN_BYTES);
            Err(unusable(name, &format!("the token in line {number} has {length} bytes; {most} are allowed")))
        }
        None => Ok(tokens),
    }
}

fn unusable(name: &str, problem: &str) -> Error {
    Error::Tokenizer { name: name.to_owned(), problem: problem.to_owned() }
}
