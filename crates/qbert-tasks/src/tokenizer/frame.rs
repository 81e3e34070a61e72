//! The special tokens round the texts of a sequence, as the tokenizer's post-processor puts them.
//!
//! `[CLS] a [SEP] b [SEP]` in one family is `<s> a </s></s> b </s>` in another. The tasks cut texts and put sequences
//! together themselves, so the frame is read off once, from what the post-processor makes of one token per text. A file
//! without a post-processor gets the frame that goes with the names of its special tokens.

use tokenizers::{Encoding, Token};

use super::guard::guarded;
use crate::{Error, Result};

/// The most special tokens in one place of a frame.
const MOST: usize = 8;

/// Names of the token in front, and of the one that ends a text, which two texts have so often between them.
const FRAMES: [(&str, &str, usize); 2] = [("[CLS]", "[SEP]", 1), ("<s>", "</s>", 2)];

/// A special token with its token type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Special {
    pub(crate) id: u32,
    pub(crate) segment: u8,
}

/// The special tokens of a sequence of one text or of two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    /// In front of the first text.
    pub(crate) start: Vec<Special>,
    /// After a text alone.
    pub(crate) end: Vec<Special>,
    /// Between two texts.
    pub(crate) between: Vec<Special>,
    /// After the second text.
    pub(crate) pair_end: Vec<Special>,
    /// The token type of the second text.
    pub(crate) second: u8,
}

impl Frame {
    /// The frame of a tokenizer; `name` stands for its file in errors.
    pub(super) fn of(name: &str, inner: &tokenizers::Tokenizer) -> Result<Self> {
        if inner.get_post_processor().is_some() {
            let found = guarded(|| Self::of_processor(inner)).and_then(|found| found);
            let found = found.map_err(|problem| super::unusable(name, &problem))?;
            if let Some(frame) = found {
                return Ok(frame);
            }
        }
        let by_name = |(front, end, between): (&'static str, &'static str, usize)| {
            let (front, end) = (inner.token_to_id(front)?, inner.token_to_id(end)?);
            Some(Self::new(front, end, between))
        };
        let missing = if inner.token_to_id(FRAMES[0].0).is_none() { FRAMES[0].0 } else { FRAMES[0].1 };
        let frame = FRAMES.into_iter().find_map(by_name);
        frame.ok_or_else(|| Error::MissingSpecialToken { name: name.to_owned(), token: missing })
    }

    /// A token in front and one after each text, `between` of them between two. Two texts with one token between them are
    /// of two types.
    pub(super) fn new(front: u32, end: u32, between: usize) -> Self {
        let special = |id: u32, segment: u8| Special { id, segment };
        let second = u8::from(between == 1);
        Self {
            start: vec![special(front, 0)],
            end: vec![special(end, 0)],
            between: vec![special(end, 0); between],
            pair_end: vec![special(end, second)],
            second,
        }
    }

    /// What the post-processor puts round a token; `None` if not at least one in front and one behind.
    fn of_processor(inner: &tokenizers::Tokenizer) -> std::result::Result<Option<Self>, String> {
        const FIRST: u32 = u32::MAX;
        const SECOND: u32 = u32::MAX - 1;
        let text = |id: u32, segment: u32| {
            Encoding::from_tokens(vec![Token { id, value: "a".to_owned(), offsets: (0, 1) }], segment)
        };
        let run = |pair: Option<Encoding>| {
            inner.post_process(text(FIRST, 0), pair, true).map_err(|error| error.to_string()).map(|found| {
                let both = found.get_ids().iter().zip(found.get_type_ids());
                both.map(|(&id, &segment)| (id, segment.min(255) as u8)).collect::<Vec<_>>()
            })
        };
        let place = |tokens: &[(u32, u8)], id: u32| tokens.iter().position(|token| token.0 == id);
        let special = |tokens: &[(u32, u8)]| -> Vec<Special> {
            tokens.iter().map(|&(id, segment)| Special { id, segment }).collect()
        };
        let (single, pair) = (run(None)?, run(Some(text(SECOND, 1)))?);
        let (Some(at), Some(first), Some(second)) = (place(&single, FIRST), place(&pair, FIRST), place(&pair, SECOND))
        else {
            return Err("its post-processor loses a text".to_owned());
        };
        if second < first {
            return Err("its post-processor puts the second text first".to_owned());
        }
        let frame = Self {
            start: special(&single[..at]),
            end: special(&single[at + 1..]),
            between: special(&pair[first + 1..second]),
            pair_end: special(&pair[second + 1..]),
            second: pair[second].1,
        };
        let parts = [&frame.start, &frame.end, &frame.between, &frame.pair_end];
        if let Some(part) = parts.iter().find(|part| part.len() > MOST) {
            return Err(format!(
                "its post-processor puts {} special tokens in one place; {MOST} are allowed",
                part.len()
            ));
        }
        let is_whole = parts.iter().all(|part| !part.is_empty()) && pair[..first] == single[..at];
        Ok(is_whole.then_some(frame))
    }

    /// Special tokens of a sequence of one text.
    pub(crate) fn single(&self) -> usize {
        self.start.len() + self.end.len()
    }

    /// Special tokens of a sequence of two texts.
    pub(crate) fn pair(&self) -> usize {
        self.start.len() + self.between.len() + self.pair_end.len()
    }
}
