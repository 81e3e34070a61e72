//! A checkpoint with a smaller vocabulary: the tokens that some texts use, and those that the tokenizer cannot do without. On
//! request also with fewer positions, for models that never read texts as long as they could.
//!
//! The word table has a row for every token. It is half of a small encoder and most of a multilingual one, and a model for one
//! language or one field uses a part of it. The result is a checkpoint like any other.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use qbert_model::{Checkpoint, Config, Parameters, TokenizerFiles, write_checkpoint};
use qbert_tasks::{DataSource, Features, PrunedTokenizer, SharedData, Tokenizer};
use qbert_train::qat::files::is_quantized;
use serde::Serialize;

use crate::error::{Error, ErrorKind, Result};

/// What a smaller vocabulary costs and saves.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Pruned {
    /// Tokens before.
    pub tokens: usize,
    /// Tokens that stay.
    pub kept: usize,
    /// Tokens that the texts use often enough. The others that stay are special tokens, characters, and what larger pieces are
    /// made from.
    pub used: usize,
    /// The longest sequence before, in tokens.
    pub positions: usize,
    /// And after.
    pub kept_positions: usize,
    /// The longest text that an embedder's own files allow, where it is shorter than that: later positions are never used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reachable_positions: Option<usize>,
    /// The model's weights in f32 before, in bytes.
    pub bytes: u64,
    /// And after.
    pub kept_bytes: u64,
    /// What became of the texts.
    pub texts: Spelling,
}

/// How texts are split before and after.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Spelling {
    /// Sequences that the texts become.
    pub sequences: usize,
    /// Sequences that are split as before.
    pub same: usize,
    /// Tokens of all sequences before.
    pub length: usize,
    /// And after: rare words are spelled with more pieces.
    pub kept_length: usize,
    /// Tokens before that stand for something unknown.
    pub unknown: usize,
    /// And after.
    pub still_unknown: usize,
}

/// What to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PruneSettings {
    /// Tokens that occur at least this often in the data.
    pub min_count: usize,
    /// Positions for texts of up to this many tokens, special ones included; `None` for all.
    pub positions: Option<usize>,
}

/// Writes the checkpoint with the tokens that occur in the data, and the positions that are asked for.
///
/// # Errors
/// A quantized checkpoint, more positions than there are, a tokenizer that cannot spell what it loses, any fault of the model or
/// the data.
pub fn prune(model: &Path, data: &DataSource, settings: PruneSettings, out: &Path) -> Result<Pruned> {
    let PruneSettings { min_count, positions } = settings;
    if is_quantized(model)? {
        let message = format!("{}: a quantized checkpoint cannot lose a part of its vocabulary", model.display());
        let hint = "prune the full-precision checkpoint first, then quantize the result".to_owned();
        return Err(Error::new(ErrorKind::BadInput, message, hint));
    }
    let checkpoint = Checkpoint::open(model)?;
    let config = checkpoint.config();
    if let Some(longest) = positions {
        check_positions(model, config, longest)?;
    }
    let tokenizer = Tokenizer::for_model(model, config.vocab_size)?;
    let mut shared = SharedData::default();
    let before = shared.load(data.clone(), &tokenizer, None)?.features;
    let mut counts: HashMap<u32, usize> = HashMap::new();
    for index in 0..before.len() {
        before.batch(&[index], false)?.input_ids.iter().for_each(|&id| *counts.entry(id).or_default() += 1);
    }
    let used: HashSet<u32> = counts.iter().filter(|(_, count)| **count >= min_count).map(|(&id, _)| id).collect();
    let pruned = tokenizer.pruned(&used)?;
    let after = shared.load(data.clone(), &pruned.tokenizer, None)?.features;
    let texts = spelling([&before, &after], &tokenizer, &pruned)?;
    let parameters = checkpoint.load()?;
    let smaller = config.with_vocabulary(&pruned.kept);
    let smaller = positions.map_or_else(|| smaller.clone(), |longest| smaller.with_positions(longest));
    let kept = parameters.with_rows(&smaller, &pruned.kept);
    let files = tokenizer_files(checkpoint.tokenizer_files(), &pruned, positions)?;
    write_checkpoint(out, &smaller, &kept, &checkpoint.labels(), &files)?;
    let bytes = |own: &Parameters| 4 * own.values().len() as u64;
    Ok(Pruned {
        tokens: config.vocab_size,
        kept: pruned.kept.len(),
        used: used.len(),
        positions: config.max_positions,
        kept_positions: smaller.max_positions,
        reachable_positions: reachable_positions(&smaller),
        bytes: bytes(&parameters),
        kept_bytes: bytes(&kept),
        texts,
    })
}

/// The longest text that the files of an embedder allow, where the model has positions for longer ones.
fn reachable_positions(config: &Config) -> Option<usize> {
    let longest = config.embedder.as_ref()?.max_length?;
    (config.position_rows > 0 && longest < config.max_positions).then_some(longest)
}

fn check_positions(model: &Path, config: &Config, longest: usize) -> Result<()> {
    let (model, most) = (model.display(), config.max_positions);
    let (message, hint) = if config.position_rows == 0 {
        let message = format!("{model}: this model computes positions, so there is no table of them to make smaller");
        (message, "leave the number of positions out".to_owned())
    } else if longest > most {
        let message = format!("{model}: there are positions for {most} tokens, so {longest} cannot stay");
        (message, format!("ask for at most {most}"))
    } else if longest < 3 {
        let message = format!("positions for {longest} tokens leave no room for a text between the special tokens");
        (message, "ask for the longest text that the model should read, with its special tokens".to_owned())
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::BadInput, message, hint))
}

/// Looks at what became of the texts.
fn spelling([before, after]: [&Features; 2], tokenizer: &Tokenizer, pruned: &PrunedTokenizer) -> Result<Spelling> {
    let mut found = Spelling { sequences: after.len(), ..Spelling::default() };
    let unknown = |tokenizer: &Tokenizer, ids: &[u32]| ids.iter().filter(|&&id| id == tokenizer.special().unk).count();
    for index in 0..before.len() {
        let old = before.batch(&[index], false)?.input_ids;
        found.length += old.len();
        found.unknown += unknown(tokenizer, &old);
    }
    for index in 0..after.len() {
        let new = after.batch(&[index], false)?.input_ids;
        found.kept_length += new.len();
        found.still_unknown += unknown(&pruned.tokenizer, &new);
        // Longer spellings may split a long text into more windows, which have no counterpart then.
        if index < before.len() {
            let old = before.batch(&[index], false)?.input_ids;
            found.same += usize::from(new.iter().map(|&id| pruned.kept[id as usize]).eq(old));
        }
    }
    if found.still_unknown > found.unknown {
        let Spelling { unknown, still_unknown, .. } = found;
        let message =
            format!("the smaller tokenizer finds {still_unknown} unknown tokens in the texts instead of {unknown}");
        let hint = "keep the whole vocabulary, and please report the tokenizer: it should spell every word".to_owned();
        return Err(Error::new(ErrorKind::BadInput, message, hint));
    }
    Ok(found)
}

/// The files of the smaller tokenizer. Those that only repeat the vocabulary in a form that qbert does not read are left out.
fn tokenizer_files(
    files: &TokenizerFiles,
    pruned: &PrunedTokenizer,
    positions: Option<usize>,
) -> Result<TokenizerFiles> {
    let mut changed = vec![("tokenizer.json".to_owned(), Some(pruned.tokenizer.to_json()?.into_bytes()))];
    for (name, bytes) in files.iter() {
        let content = match name {
            "vocab.txt" => pruned.tokenizer.vocab_file().map(String::into_bytes),
            "tokenizer_config.json" | "added_tokens.json" => Some(pruned.side_file(name, bytes, positions)?),
            "vocab.json" | "merges.txt" | "sentencepiece.bpe.model" | "spiece.model" => None,
            _ => continue,
        };
        changed.push((name.to_owned(), content));
    }
    Ok(files.clone().with(changed))
}
