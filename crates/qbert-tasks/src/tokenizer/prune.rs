//! A tokenizer without the tokens that some texts never use: the word table needs a row for every token, and often is half of a
//! small model.
//!
//! Texts whose tokens all stay are split exactly as before. Other words are spelled with shorter pieces. Every character and
//! every byte that the tokenizer knows stays, so nothing becomes unknown that was not.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::{Map, Value};

use super::{Tokenizer, WORD_PIECE_PREFIX, unusable};
use crate::Result;

/// A tokenizer with fewer tokens.
#[derive(Debug, Clone)]
pub struct PrunedTokenizer {
    /// It.
    pub tokenizer: Tokenizer,
    /// For each of its ids, the id of the same token before. They ascend.
    pub kept: Vec<u32>,
}

/// How errors call the result.
const NAME: &str = "the smaller tokenizer";
/// Rows that BERT's vocabularies keep free for tokens of one's own. No text is ever split into them.
const FREE_ROWS: &str = "[unused";

impl Tokenizer {
    /// The same tokenizer with the tokens in `used` and those that it cannot do without: special and added tokens, every
    /// single character, and whatever could not be spelled without it.
    ///
    /// # Errors
    /// [`crate::Error::Tokenizer`] for a vocabulary of whole words, which cannot spell what it loses.
    pub fn pruned(&self, used: &HashSet<u32>) -> Result<PrunedTokenizer> {
        let mut definition: Value =
            serde_json::from_str(&self.to_json()?).map_err(|error| wrong(&error.to_string()))?;
        let tokens: HashMap<String, u32> = self.inner.get_vocab(true);
        let model = definition.get("model").and_then(Value::as_object).ok_or_else(|| wrong("it has no model"))?;
        let mut kept = match model.get("type").and_then(Value::as_str) {
            Some("WordPiece") => kept_of_word_pieces(model, &tokens),
            Some("BPE") => kept_of_merges(model, &tokens, used)?,
            Some("Unigram") => kept_of_unigram(model, &tokens),
            _ => return Err(wrong("its vocabulary is one of whole words, which cannot spell the words that it loses")),
        };
        kept.extend(used);
        kept.extend(self.inner.get_added_tokens_decoder().keys());
        // Positions of some families are counted from the padding token's id, so nothing in front of it may go.
        let special = self.special();
        kept.extend(0..=special.pad);
        kept.extend([special.cls, special.sep, special.unk]);
        let existing: HashSet<u32> = tokens.values().copied().collect();
        let mut kept: Vec<u32> = kept.into_iter().filter(|id| existing.contains(id)).collect();
        kept.sort_unstable();
        let renumbered = Renumbered::new(&kept);
        renumbered.definition(&mut definition)?;
        let text = serde_json::to_vec(&definition).map_err(|error| wrong(&error.to_string()))?;
        Ok(PrunedTokenizer { tokenizer: Self::from_json(NAME, &text)?, kept })
    }

    /// The vocabulary as a `vocab.txt`, if the tokenizer splits words into word pieces.
    pub fn vocab_file(&self) -> Option<String> {
        let is_word_piece = matches!(self.inner.get_model(), tokenizers::ModelWrapper::WordPiece(_));
        self.vocabulary_text().filter(|_| is_word_piece)
    }
}

impl PrunedTokenizer {
    /// A file beside the vocabulary (`tokenizer_config.json`, `added_tokens.json`) with the new ids in place of the old ones, and
    /// with texts limited to `longest` tokens: other programs trust the file's limit to be within the model's.
    ///
    /// # Errors
    /// [`crate::Error::Tokenizer`] when it is no JSON object.
    pub fn side_file(&self, name: &str, bytes: &[u8], longest: Option<usize>) -> Result<Vec<u8>> {
        let mut fields: Map<String, Value> =
            serde_json::from_slice(bytes).map_err(|error| unusable(name, &error.to_string()))?;
        let renumbered = Renumbered::new(&self.kept);
        if let Some(Value::Object(decoder)) = fields.get_mut("added_tokens_decoder") {
            let old = std::mem::take(decoder);
            let new = |id: &str| renumbered.id(id.parse().ok()?);
            decoder.extend(old.into_iter().filter_map(|(id, entry)| Some((new(&id)?.to_string(), entry))));
        }
        if let (Some(longest), Some(limit)) = (longest, fields.get_mut("model_max_length"))
            && limit.as_f64().is_some_and(|limit| limit > longest as f64)
        {
            *limit = longest.into();
        }
        if name == "added_tokens.json" {
            fields.values_mut().for_each(|id| renumbered.value(id));
        }
        serde_json::to_vec_pretty(&fields).map_err(|error| unusable(name, &error.to_string()))
    }
}

fn wrong(problem: &str) -> crate::Error {
    unusable("tokenizer", problem)
}

/// Single characters, and pieces with a character that no other piece spells at that place.
fn kept_of_word_pieces(model: &Map<String, Value>, tokens: &HashMap<String, u32>) -> HashSet<u32> {
    let prefix = model.get("continuing_subword_prefix").and_then(Value::as_str).unwrap_or(WORD_PIECE_PREFIX);
    let has = |inside: bool, character: char| {
        let piece = if inside { format!("{prefix}{character}") } else { character.to_string() };
        tokens.contains_key(&piece)
    };
    let stays = |token: &str| {
        let (inside, body) = token.strip_prefix(prefix).map_or((false, token), |body| (true, body));
        let spelled = body.chars().enumerate().all(|(place, character)| has(inside || place > 0, character));
        body.chars().count() == 1 || (!spelled && !token.starts_with(FREE_ROWS))
    };
    tokens.iter().filter(|(token, _)| stays(token)).map(|(_, &id)| id).collect()
}

/// What is not made by a merge, and all that the merges of used tokens go through on their way: then the merges that apply to
/// a text of used tokens are all there, in their order, so it is split as before.
fn kept_of_merges(
    model: &Map<String, Value>,
    tokens: &HashMap<String, u32>,
    used: &HashSet<u32>,
) -> Result<HashSet<u32>> {
    let merges = merges_of(model)?;
    let mut parts: HashMap<&str, Vec<&str>> = HashMap::new();
    for merge in &merges {
        parts.entry(&merge.product).or_default().extend([merge.left.as_str(), merge.right.as_str()]);
    }
    let is_needed = |token: &str, id: u32| used.contains(&id) || !parts.contains_key(token);
    let mut open: Vec<&str> =
        tokens.iter().filter(|(token, id)| is_needed(token, **id)).map(|(own, _)| &own[..]).collect();
    let mut kept = HashSet::new();
    while let Some(token) = open.pop() {
        let Some(&id) = tokens.get(token) else { continue };
        if kept.insert(id) {
            open.extend(parts.get(token).into_iter().flatten());
        }
    }
    Ok(kept)
}

/// Single characters and bytes, pieces with a character that no other piece spells, and the piece of the lowest score,
/// because unknown characters are scored by it.
fn kept_of_unigram(model: &Map<String, Value>, tokens: &HashMap<String, u32>) -> HashSet<u32> {
    let is_byte = |token: &str| token.starts_with("<0x") && token.ends_with('>');
    let stays = |token: &str| {
        token.chars().count() == 1
            || is_byte(token)
            || token.chars().any(|character| !tokens.contains_key(&character.to_string()))
    };
    let mut kept: HashSet<u32> = tokens.iter().filter(|(token, _)| stays(token)).map(|(_, &id)| id).collect();
    let scores = model.get("vocab").and_then(Value::as_array).into_iter().flatten().zip(0..);
    let scores = scores.filter_map(|(entry, id)| Some((entry.get(1)?.as_f64()?, id)));
    kept.extend(scores.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, id)| id));
    kept.extend(model.get("unk_id").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok()));
    kept
}

/// Two tokens that become one.
struct Merge {
    left: String,
    right: String,
    product: String,
}

/// The merges of a BPE model, in either of their two forms.
fn merges_of(model: &Map<String, Value>) -> Result<Vec<Merge>> {
    let prefix = model.get("continuing_subword_prefix").and_then(Value::as_str).unwrap_or_default();
    let listed = model.get("merges").and_then(Value::as_array).ok_or_else(|| wrong("it has no merges"))?;
    let merge = |entry: &Value| {
        let (left, right) = match entry {
            Value::String(text) => text.split_once(' ')?,
            Value::Array(pair) => (pair.first()?.as_str()?, pair.get(1)?.as_str()?),
            _ => return None,
        };
        let product = format!("{left}{}", right.strip_prefix(prefix).unwrap_or(right));
        Some(Merge { left: left.to_owned(), right: right.to_owned(), product })
    };
    listed.iter().map(|entry| merge(entry).ok_or_else(|| wrong("a merge is not a pair of tokens"))).collect()
}

/// From old ids to new ones.
struct Renumbered(BTreeMap<u32, u32>);

impl Renumbered {
    fn new(kept: &[u32]) -> Self {
        Self(kept.iter().copied().zip(0..).collect())
    }

    fn id(&self, old: u64) -> Option<u32> {
        self.0.get(&u32::try_from(old).ok()?).copied()
    }

    /// Changes an id; anything else stays.
    fn value(&self, value: &mut Value) {
        if let Some(new) = value.as_u64().and_then(|old| self.id(old)) {
            *value = new.into();
        }
    }

    fn definition(&self, definition: &mut Value) -> Result<()> {
        for token in definition["added_tokens"].as_array_mut().into_iter().flatten() {
            self.value(&mut token["id"]);
        }
        self.post_processor(&mut definition["post_processor"]);
        let model = definition["model"].as_object_mut().ok_or_else(|| wrong("it has no model"))?;
        let names: HashSet<String> = match model.get_mut("vocab") {
            Some(Value::Object(vocabulary)) => {
                vocabulary.retain(|_, id| id.as_u64().and_then(|old| self.id(old)).is_some());
                vocabulary.values_mut().for_each(|id| self.value(id));
                vocabulary.keys().cloned().collect()
            }
            Some(Value::Array(pieces)) => {
                let mut place = 0;
                pieces.retain(|_| {
                    place += 1;
                    self.id(place - 1).is_some()
                });
                HashSet::new()
            }
            _ => return Err(wrong("its model has no vocabulary")),
        };
        if let Some(unknown) = model.get_mut("unk_id") {
            self.value(unknown);
        }
        if model.contains_key("merges") {
            let merges = merges_of(model)?;
            let stays =
                |merge: &Merge| [&merge.left, &merge.right, &merge.product].iter().all(|own| names.contains(*own));
            let mut stays = merges.iter().map(stays);
            if let Some(Value::Array(listed)) = model.get_mut("merges") {
                listed.retain(|_| stays.next().unwrap_or(false));
            }
        }
        Ok(())
    }

    /// `BertProcessing` and `RobertaProcessing` have pairs of a token and its id, templates a list of ids for each token.
    fn post_processor(&self, processor: &mut Value) {
        let Some(fields) = processor.as_object_mut() else { return };
        for key in ["sep", "cls"] {
            if let Some(id) = fields.get_mut(key).and_then(|pair| pair.get_mut(1)) {
                self.value(id);
            }
        }
        if let Some(Value::Object(special)) = fields.get_mut("special_tokens") {
            let lists = special.values_mut().filter_map(|own| own.get_mut("ids")?.as_array_mut());
            lists.flatten().for_each(|id| self.value(id));
        }
        if let Some(Value::Array(parts)) = fields.get_mut("processors") {
            parts.iter_mut().for_each(|part| self.post_processor(part));
        }
    }
}
