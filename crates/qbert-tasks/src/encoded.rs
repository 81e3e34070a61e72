//! A token sequence: what goes into a model.
//!
//! A sequence is as long as its text; nothing is padded. Special tokens are added here, those of the tokenizer's frame: in
//! BERT `[CLS] a [SEP]` for one text, `[CLS] a [SEP] b [SEP]` for two, with segment 1 starting at `b`.

use serde::{Deserialize, Serialize};

use crate::Tokenizer;
use crate::tokenizer::{Frame, Special};

/// One input sequence, unpadded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Encoded {
    /// Vocabulary ids, `[CLS]` first.
    pub input_ids: Vec<u32>,
    /// 0 up to the first `[SEP]`, 1 after it.
    pub segments: Vec<u8>,
    /// The number of pieces cut off to fit.
    pub removed: usize,
}

impl Encoded {
    /// The number of tokens, special ones included.
    pub fn len(&self) -> usize {
        self.input_ids.len()
    }

    /// Never true for an encoded text, which has at least `[CLS]` and `[SEP]`.
    pub fn is_empty(&self) -> bool {
        self.input_ids.is_empty()
    }

    /// One text in its frame, or two.
    pub(crate) fn build(frame: &Frame, first: &[u32], second: Option<&[u32]>) -> Self {
        let special = if second.is_some() { frame.pair() } else { frame.single() };
        let length = special + first.len() + second.map_or(0, <[u32]>::len);
        let mut encoded =
            Self { input_ids: Vec::with_capacity(length), segments: Vec::with_capacity(length), removed: 0 };
        encoded.push_special(&frame.start);
        encoded.push_text(first, 0);
        match second {
            None => encoded.push_special(&frame.end),
            Some(second) => {
                encoded.push_special(&frame.between);
                encoded.push_text(second, frame.second);
                encoded.push_special(&frame.pair_end);
            }
        }
        encoded
    }

    fn push_special(&mut self, tokens: &[Special]) {
        self.input_ids.extend(tokens.iter().map(|token| token.id));
        self.segments.extend(tokens.iter().map(|token| token.segment));
    }

    fn push_text(&mut self, ids: &[u32], segment: u8) {
        self.input_ids.extend_from_slice(ids);
        self.segments.resize(self.input_ids.len(), segment);
    }
}

/// The ids of a text, where offsets are not needed.
pub(crate) fn ids(tokenizer: &Tokenizer, text: &str) -> crate::Result<Vec<u32>> {
    tokenizer.pieces(text).map(|pieces| pieces.ids)
}

/// Converts byte offsets of one text to character offsets, quickly even for many offsets in a long text.
#[derive(Debug, Clone)]
pub(crate) struct CharacterIndex<'a> {
    text: &'a str,
    /// The number of characters before every 64th byte; empty for ASCII, where both counts are the same.
    before: Vec<usize>,
}

impl<'a> CharacterIndex<'a> {
    const STEP: usize = 64;

    pub(crate) fn new(text: &'a str) -> Self {
        if text.is_ascii() {
            return Self { text, before: Vec::new() };
        }
        let starts = |bytes: &[u8]| bytes.iter().filter(|&&byte| byte & 0xC0 != 0x80).count();
        let mut before = vec![0];
        let mut total = 0;
        for chunk in text.as_bytes().chunks(Self::STEP) {
            total += starts(chunk);
            before.push(total);
        }
        Self { text, before }
    }

    /// The number of characters before `byte`.
    pub(crate) fn character(&self, byte: usize) -> usize {
        let byte = byte.min(self.text.len());
        let Some(known) = self.before.get(byte / Self::STEP) else { return byte };
        let rest = &self.text.as_bytes()[byte / Self::STEP * Self::STEP..byte];
        known + rest.iter().filter(|&&byte| byte & 0xC0 != 0x80).count()
    }
}

/// The byte at which character number `character` begins; the length of the text if it has fewer.
pub(crate) fn byte_of_character(text: &str, character: usize) -> usize {
    text.char_indices().nth(character).map_or(text.len(), |(byte, _)| byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_counted_as_the_standard_library_does() {
        let text = "naïve – 日本 😀 ".repeat(30) + "end";
        let index = CharacterIndex::new(&text);
        for (character, (byte, _)) in text.char_indices().enumerate() {
            assert_eq!(index.character(byte), character);
            assert_eq!(byte_of_character(&text, character), byte);
        }
        assert_eq!(index.character(text.len()), text.chars().count());
        assert_eq!(index.character(text.len() + 9), text.chars().count());
        assert_eq!(byte_of_character("ab", 7), 2);
        assert_eq!(CharacterIndex::new("ascii").character(3), 3);
    }
}
