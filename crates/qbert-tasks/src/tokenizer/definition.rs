//! A `tokenizer.json`, checked before the `tokenizers` crate sees it.
//!
//! That crate trusts its file: some mistakes make it panic, and a few kilobytes can make it turn a line into gigabytes or
//! search for hours. A packed model carries such a file, and packed models come from anywhere. So only the components in
//! the lists below are accepted, and what they can do to a text is bounded ([`limits`], and "Limits of the tokenizer" in
//! `docs/reference/format.md`). The crate gets the checked values, not the original bytes, which could mean two things
//! (a key given twice). It still checks the types of the other fields.

use serde_json::{Map, Value};

use super::charsmap;
use crate::error::shortened;

/// What a tokenizer may have. Far above real tokenizers, far below what would hurt.
pub(super) mod limits {
    /// Bytes of `tokenizer.json` or `vocab.txt`. XLM-R's has 17 MB.
    pub(crate) const FILE_BYTES: usize = 64 << 20;
    /// Tokens, and the largest id. XLM-V has 901,629.
    pub(crate) const TOKENS: usize = 1 << 22;
    /// Bytes of one token.
    pub(crate) const TOKEN_BYTES: usize = 1024;
    /// Merges of a BPE model.
    pub(crate) const MERGES: usize = 1 << 22;
    /// Added tokens.
    pub(crate) const ADDED_TOKENS: usize = 1 << 16;
    /// `max_input_chars_per_word` of WordPiece: its time grows with the cube.
    pub(crate) const WORD_CHARACTERS: u64 = 200;
    /// Components of one kind, counted through nested sequences.
    pub(crate) const COMPONENTS: usize = 32;
    /// How many times longer `Replace`, `Prepend` and `Precompiled` may make a text, all together.
    pub(crate) const GROWTH: usize = 32;
    /// Bytes of a pattern.
    pub(crate) const PATTERN_BYTES: usize = 256;
}

const NORMALIZERS: &[&str] = &[
    "BertNormalizer",
    "Sequence",
    "Lowercase",
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "Nmt",
    "Strip",
    "StripAccents",
    "Replace",
    "Prepend",
    "Precompiled",
    "ByteLevel",
];
const PRE_TOKENIZERS: &[&str] = &[
    "BertPreTokenizer",
    "Sequence",
    "ByteLevel",
    "Metaspace",
    "Whitespace",
    "WhitespaceSplit",
    "Punctuation",
    "Digits",
    "UnicodeScripts",
    "CharDelimiterSplit",
    "Split",
];
const MODELS: &[&str] = &["WordPiece", "WordLevel", "BPE", "Unigram"];
const POST_PROCESSORS: &[&str] =
    &["BertProcessing", "RobertaProcessing", "TemplateProcessing", "ByteLevel", "Sequence"];
const DECODERS: &[&str] = &[
    "WordPiece",
    "Sequence",
    "ByteLevel",
    "Metaspace",
    "BPEDecoder",
    "Replace",
    "Fuse",
    "Strip",
    "ByteFallback",
    "CTC",
];

type Checked<T = ()> = Result<T, String>;

/// An added token and the id that the file gives it.
pub(super) struct AddedId {
    pub(super) content: String,
    pub(super) id: u64,
}

/// A definition that passed.
pub(super) struct Definition {
    /// What the crate may read.
    pub(super) text: Vec<u8>,
    /// The crate gives added tokens ids of its own; these are the ones it must arrive at.
    pub(super) added: Vec<AddedId>,
}

/// Checks the bytes of a `tokenizer.json`; an error says what is wrong with them.
pub(super) fn check(bytes: &[u8]) -> Checked<Definition> {
    if bytes.len() > limits::FILE_BYTES {
        return Err(format!("it has {} bytes; {} are allowed", bytes.len(), limits::FILE_BYTES));
    }
    let value: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let Value::Object(mut parts) = value else { return Err("it is not a JSON object".to_owned()) };
    let mut normalizers = Kind::new("normalizer", "normalizers", NORMALIZERS);
    normalizers.check(parts.get("normalizer"))?;
    if normalizers.growth > limits::GROWTH {
        return Err(format!(
            "its normalizers can make a text {} times longer; {} times are allowed",
            normalizers.growth,
            limits::GROWTH
        ));
    }
    Kind::new("pre_tokenizer", "pretokenizers", PRE_TOKENIZERS).check(parts.get("pre_tokenizer"))?;
    Kind::new("post_processor", "processors", POST_PROCESSORS).check(parts.get("post_processor"))?;
    Kind::new("decoder", "decoders", DECODERS).check(parts.get("decoder"))?;
    check_model(parts.get("model"))?;
    let added = added_tokens(parts.get("added_tokens"))?;
    // Tasks cut and nothing is padded, so what the file says about both is not read.
    parts.insert("truncation".to_owned(), Value::Null);
    parts.insert("padding".to_owned(), Value::Null);
    let text = serde_json::to_vec(&parts).map_err(|error| error.to_string())?;
    Ok(Definition { text, added })
}

/// The components of one kind, counted through sequences.
struct Kind {
    name: &'static str,
    /// The key of a sequence's parts.
    parts: &'static str,
    known: &'static [&'static str],
    count: usize,
    growth: usize,
}

impl Kind {
    fn new(name: &'static str, parts: &'static str, known: &'static [&'static str]) -> Self {
        Self { name, parts, known, count: 0, growth: 1 }
    }

    fn check(&mut self, value: Option<&Value>) -> Checked {
        let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(()) };
        let name = self.name;
        let Value::Object(fields) = value else { return Err(format!("`{name}` is not a JSON object")) };
        let Some(Value::String(kind)) = fields.get("type") else {
            return Err(format!("`{name}` has no `type`"));
        };
        if !self.known.contains(&kind.as_str()) {
            let (kind, known) = (shortened(kind, 40), self.known.join(", "));
            return Err(format!("`{name}` has the type {kind:?}; the types that are read are {known}"));
        }
        self.count += 1;
        if self.count > limits::COMPONENTS {
            return Err(format!("`{name}` has more than {} parts", limits::COMPONENTS));
        }
        let wrong = |problem: String| format!("{name} {kind}: {problem}");
        match (kind.as_str(), name) {
            ("Sequence", _) => {
                let Some(Value::Array(parts)) = fields.get(self.parts) else {
                    return Err(format!("the sequence in `{name}` has no list `{}`", self.parts));
                };
                parts.iter().try_for_each(|part| self.check(Some(part)))?;
            }
            ("Replace", _) => {
                let least = check_pattern(fields).map_err(wrong)?;
                let content = string(fields, "content").map_err(wrong)?;
                self.grow(content.len().div_ceil(least));
            }
            ("Split", _) => drop(check_pattern(fields).map_err(wrong)?),
            ("Prepend", _) => self.grow(1 + string(fields, "prepend").map_err(wrong)?.len()),
            ("Precompiled", _) => {
                let map = string(fields, "precompiled_charsmap").map_err(wrong)?;
                self.grow(charsmap::check(map).map_err(wrong)?);
            }
            ("TemplateProcessing", _) => check_template(fields).map_err(wrong)?,
            _ => {}
        }
        Ok(())
    }

    fn grow(&mut self, factor: usize) {
        self.growth = self.growth.saturating_mul(factor.max(1));
    }
}

fn string<'a>(fields: &'a Map<String, Value>, key: &str) -> Checked<&'a str> {
    fields.get(key).and_then(Value::as_str).ok_or_else(|| format!("`{key}` is not a string"))
}

/// Checks a pattern, and returns the fewest bytes that it matches.
///
/// Regular expressions must be ones that need no backtracking: with it, a short pattern can search for hours, and where
/// the library gives up it finds nothing more without saying so.
fn check_pattern(fields: &Map<String, Value>) -> Checked<usize> {
    let Some(Value::Object(pattern)) = fields.get("pattern") else { return Err("it has no `pattern`".to_owned()) };
    let text = |key: &str| pattern.get(key).and_then(Value::as_str);
    let (text, is_regex) = match (text("String"), text("Regex")) {
        (Some(text), None) => (text, false),
        (None, Some(text)) => (text, true),
        _ => return Err("its pattern is neither a `String` nor a `Regex`".to_owned()),
    };
    if text.is_empty() || text.len() > limits::PATTERN_BYTES {
        return Err(format!("its pattern has {} bytes; 1 to {} are allowed", text.len(), limits::PATTERN_BYTES));
    }
    if !is_regex {
        return Ok(text.len());
    }
    let unsupported =
        |why: &str| Err(format!("its regular expression {:?} is not supported: {why}", shortened(text, 60)));
    // The two libraries read these differently: possessive quantifiers in one, repeated repetitions in the other.
    if ["++", "*+", "?+", "}+"].iter().any(|possessive| text.contains(possessive)) {
        return unsupported("a possessive quantifier");
    }
    match regex::RegexBuilder::new(text).size_limit(1 << 20).build() {
        Err(_) => unsupported("only expressions without look-around and back-references are"),
        Ok(regex) if regex.is_match("") => unsupported("it matches the empty text"),
        Ok(_) => Ok(1),
    }
}

/// A template without exactly one text would lose the text, repeat it, or ask for a second one that is not there.
fn check_template(fields: &Map<String, Value>) -> Checked {
    let Some(Value::Array(single)) = fields.get("single") else { return Err("`single` is not a list".to_owned()) };
    let texts: Vec<&Value> = single.iter().filter_map(|piece| piece.get("Sequence")).collect();
    match texts[..] {
        [text] if text.get("id").and_then(Value::as_str) == Some("A") => Ok(()),
        _ => Err("`single` must have the text `A` once, and no other".to_owned()),
    }
}

fn check_model(value: Option<&Value>) -> Checked {
    let Some(Value::Object(fields)) = value else { return Err("`model` is missing".to_owned()) };
    // Files of 2020 have no type here.
    let kind = match fields.get("type") {
        Some(Value::String(kind)) => kind.as_str(),
        Some(_) => return Err("the type of `model` is not a string".to_owned()),
        None if fields.contains_key("merges") => "BPE",
        None if fields.contains_key("max_input_chars_per_word") => "WordPiece",
        None => return Err("`model` has no `type`".to_owned()),
    };
    if !MODELS.contains(&kind) {
        let (kind, known) = (shortened(kind, 40), MODELS.join(", "));
        return Err(format!("`model` has the type {kind:?}; the types that are read are {known}"));
    }
    check_vocabulary(fields.get("vocab"), kind == "Unigram")?;
    if let Some(Value::Number(longest)) = fields.get("max_input_chars_per_word")
        && longest.as_u64().is_none_or(|longest| longest > limits::WORD_CHARACTERS)
    {
        return Err(format!(
            "`max_input_chars_per_word` is {longest}; at most {} are allowed",
            limits::WORD_CHARACTERS
        ));
    }
    if let Some(Value::Array(merges)) = fields.get("merges")
        && merges.len() > limits::MERGES
    {
        return Err(format!("{} merges; {} are allowed", merges.len(), limits::MERGES));
    }
    if fields.get("dropout").is_some_and(|dropout| !dropout.is_null() && dropout.as_f64() != Some(0.0)) {
        return Err("`dropout` of the model makes pieces random; set it to null".to_owned());
    }
    Ok(())
}

fn check_vocabulary(value: Option<&Value>, is_list: bool) -> Checked {
    let count = |count: usize| {
        if count <= limits::TOKENS { Ok(()) } else { Err(format!("{count} tokens; {} are allowed", limits::TOKENS)) }
    };
    match value {
        Some(Value::Object(vocabulary)) if !is_list => {
            count(vocabulary.len())?;
            vocabulary.iter().try_for_each(|(token, id)| check_token(token, id))?;
            check_distinct(vocabulary)
        }
        Some(Value::Array(vocabulary)) if is_list => {
            count(vocabulary.len())?;
            let token = |entry: &Value| match entry.get(0).and_then(Value::as_str) {
                Some(token) => check_length(token),
                None => Err("an entry of the vocabulary is not a token with its score".to_owned()),
            };
            vocabulary.iter().try_for_each(token)
        }
        _ => Err("the vocabulary of `model` is missing".to_owned()),
    }
}

/// Two tokens with one id: only one of them would survive being packed.
fn check_distinct(vocabulary: &Map<String, Value>) -> Checked {
    let mut tokens: Vec<(Option<u64>, &String)> = vocabulary.iter().map(|(token, id)| (id.as_u64(), token)).collect();
    tokens.sort_unstable();
    match tokens.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        None => Ok(()),
        Some(pair) => {
            let [one, other] = [pair[0].1, pair[1].1].map(|token| shortened(token, 40));
            Err(format!("the tokens {one:?} and {other:?} have the same id, {}", pair[0].0.unwrap_or(0)))
        }
    }
}

fn check_token(token: &str, id: &Value) -> Checked {
    check_length(token)?;
    match id.as_u64() {
        Some(id) if id < limits::TOKENS as u64 => Ok(()),
        _ => Err(format!(
            "the token {:?} has the id {id}; ids are whole numbers below {}",
            shortened(token, 40),
            limits::TOKENS
        )),
    }
}

fn check_length(token: &str) -> Checked {
    if token.len() <= limits::TOKEN_BYTES {
        return Ok(());
    }
    let (token, length) = (shortened(token, 40), token.len());
    Err(format!("the token {token:?} has {length} bytes; {} are allowed", limits::TOKEN_BYTES))
}

fn added_tokens(value: Option<&Value>) -> Checked<Vec<AddedId>> {
    let tokens = match value {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(tokens)) => tokens,
        Some(_) => return Err("`added_tokens` is not a list".to_owned()),
    };
    if tokens.len() > limits::ADDED_TOKENS {
        return Err(format!("{} added tokens; {} are allowed", tokens.len(), limits::ADDED_TOKENS));
    }
    let mut added = Vec::with_capacity(tokens.len());
    for token in tokens {
        let (Some(content), Some(id)) = (token.get("content").and_then(Value::as_str), token.get("id")) else {
            return Err("an added token has no `content` or no `id`".to_owned());
        };
        check_token(content, id)?;
        if content.is_empty() {
            return Err("an added token is empty".to_owned());
        }
        added.push(AddedId { content: content.to_owned(), id: id.as_u64().unwrap_or_default() });
    }
    Ok(added)
}
