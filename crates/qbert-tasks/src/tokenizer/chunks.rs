//! Long texts are tokenized chunk by chunk.
//!
//! The `tokenizers` crate takes some 60 bytes of memory per byte of text. A text is therefore cut where the pieces of both
//! sides do not depend on each other, so that the pieces are those of the whole text (a property test compares them).
//! Where that is depends on the tokenizer: in BERT's, before a space, punctuation or Chinese character that no added
//! token contains. A tokenizer without such places, or a stretch of text without one, is taken whole up to a limit.

use tokenizers::{NormalizedString, Normalizer, NormalizerWrapper, PreTokenizerWrapper};

use crate::ner::is_ideograph;
use crate::{Error, Result};

/// Texts up to this length are tokenized in one go.
const CHUNK_BYTES: usize = 1 << 16;
/// The longest stretch of text that cannot be cut.
pub(super) const STRETCH_BYTES: usize = 1 << 20;

/// Punctuation that may be a place to cut, with the space.
const CANDIDATES: [char; 7] = [' ', '.', ',', ';', ':', '!', '?'];

/// The characters before which a text may be cut.
#[derive(Debug, Clone, Default)]
pub(super) struct Cuts {
    characters: Vec<char>,
    ideographs: bool,
}

impl Cuts {
    /// The cuts of a tokenizer; none where its parts are not known to treat both sides alike.
    pub(super) fn of(inner: &tokenizers::Tokenizer) -> Self {
        let Some(PreTokenizerWrapper::BertPreTokenizer(_)) = inner.get_pre_tokenizer() else { return Self::default() };
        let Some(NormalizerWrapper::BertNormalizer(normalizer)) = inner.get_normalizer() else {
            return Self::default();
        };
        let (mut characters, mut ideographs) = (CANDIDATES.to_vec(), normalizer.handle_chinese_chars);
        for token in inner.get_added_tokens_decoder().values() {
            // These look at what stands beside them, and take spaces with them.
            if token.lstrip || token.rstrip {
                return Self::default();
            }
            let mut normalized = NormalizedString::from(token.content.as_str());
            if normalizer.normalize(&mut normalized).is_err() {
                return Self::default();
            }
            for content in [token.content.as_str(), normalized.get()] {
                characters.retain(|&character| !content.contains(character));
                ideographs &= !content.contains(is_ideograph);
            }
            // An ideograph beside such a token is part of its word; a space or punctuation is not.
            ideographs &= !token.single_word;
        }
        Self { characters, ideographs }
    }

    fn is_cut(&self, character: char) -> bool {
        self.characters.contains(&character) || self.ideographs && is_ideograph(character)
    }

    /// Where the first chunk of a text ends.
    fn first_end(&self, text: &str) -> Result<usize> {
        if text.len() <= CHUNK_BYTES {
            return Ok(text.len());
        }
        let from = text.floor_char_boundary(CHUNK_BYTES);
        let cut = text[from..].char_indices().find(|&(_, character)| self.is_cut(character));
        let end = cut.map_or(text.len(), |(at, _)| from + at);
        if end > STRETCH_BYTES {
            return Err(Error::TextTooLong { bytes: end, limit: STRETCH_BYTES });
        }
        Ok(end)
    }

    /// The chunks of a text with their places, from front to back. An error ends them.
    pub(super) fn chunks<'a>(&'a self, text: &'a str) -> impl Iterator<Item = Result<(usize, &'a str)>> {
        let mut start = Some(0);
        std::iter::from_fn(move || {
            let begin = start.take()?;
            let rest = &text[begin..];
            Some(self.first_end(rest).map(|end| {
                start = (begin + end < text.len()).then_some(begin + end);
                (begin, &rest[..end])
            }))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::{Tokenizer, VocabOptions};

    const VOCAB: &[u8] = include_bytes!("../../tests/data/vocab.txt");

    /// A tokenizer with added tokens of every sort.
    fn tokenizer(added: &[(&str, bool, bool, bool)]) -> Tokenizer {
        let plain = Tokenizer::from_vocab("vocab.txt", VOCAB, VocabOptions::default()).unwrap();
        let mut value: serde_json::Value = serde_json::from_str(&plain.to_json().unwrap()).unwrap();
        let mut next = plain.vocab_size()..;
        for &(content, single_word, strip, normalized) in added {
            let known = plain.inner.token_to_id(content).map(|id| id as usize);
            let token = json!({"id": known.or_else(|| next.next()), "content": content, "single_word": single_word,
                "lstrip": strip, "rstrip": strip, "normalized": normalized, "special": false});
            value["added_tokens"].as_array_mut().unwrap().push(token);
        }
        Tokenizer::from_json("tokenizer.json", value.to_string().as_bytes()).unwrap()
    }

    fn tokenizers() -> Vec<Tokenizer> {
        vec![
            tokenizer(&[]),
            tokenizer(&[("Mira", true, false, true), ("<E1>", false, false, false)]),
            tokenizer(&[("a.b", false, false, true), ("Mira Ostby", false, false, true), ("日本", false, false, true)]),
            tokenizer(&[("<E1>", true, true, true)]),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn point_18_chunks_have_the_pieces_of_the_whole_text(
            parts in prop::collection::vec(prop::sample::select(vec![
                "mira", "Mira", " ", "  ", "Ostby", "bridge", ".", ",", "a.b", "<E1>", "<", "日", "本", "日本", "é", "e\u{301}",
                "\u{301}", "\u{7}", "\t", "\u{a0}", "!", "lampkeeper", "[SEP]", "[", "x9", "ß", "İ", "가", "ー", "\u{200d}",
            ]), 1..40),
            repeats in 3_000usize..6_000, room in 1usize..600,
        ) {
            let text = parts.concat().repeat(repeats / parts.len());
            for tokenizer in tokenizers() {
                let whole = tokenizer.inner.encode(text.as_str(), false).unwrap();
                let pieces = tokenizer.pieces(&text).unwrap();
                prop_assert_eq!(&pieces.ids, whole.get_ids());
                prop_assert_eq!(&pieces.offsets, whole.get_offsets());
                let (ids, more) = tokenizer.first_ids(&text, room).unwrap();
                prop_assert_eq!(&ids, &pieces.ids[..room.min(pieces.len())]);
                prop_assert_eq!(more, pieces.len() - ids.len());
            }
        }
    }

    #[test]
    fn point_18_a_text_is_cut_into_bounded_chunks() {
        let text = "the bridge of Ostby. ".repeat(100_000);
        let tokenizer = tokenizer(&[]);
        let chunks: Vec<(usize, &str)> = tokenizer.cuts.chunks(&text).collect::<Result<_>>().unwrap();
        assert!(chunks.len() > 30 && chunks.iter().all(|(_, chunk)| chunk.len() < CHUNK_BYTES + 100));
        assert_eq!(chunks.iter().map(|&(_, chunk)| chunk).collect::<String>(), text);
        let chinese = "日本".repeat(100_000);
        assert!(tokenizer.cuts.chunks(&chinese).count() > 5);
    }

    #[test]
    fn point_18_counting_ends_when_nothing_more_can_be_kept() {
        let tokenizer = tokenizer(&[]);
        // Twice as much as is counted, and the words come last: they are found all the same.
        let text = " ".repeat(2 << 20) + "mira saw";
        let (ids, more) = tokenizer.first_ids(&text, 8).unwrap();
        assert_eq!((ids, more), (tokenizer.pieces("mira saw").unwrap().ids, 0));
        let text = "mira ".repeat(1 << 20);
        let (ids, more) = tokenizer.first_ids(&text, 8).unwrap();
        assert_eq!(ids.len(), 8);
        assert!(more < (2 << 20) / 5, "{more} pieces were counted");
    }

    #[test]
    fn point_18_a_stretch_without_a_cut_is_refused() {
        let error = tokenizer(&[]).pieces(&"a".repeat((1 << 20) + 1)).unwrap_err();
        assert!(matches!(error, Error::TextTooLong { bytes: 1_048_577, .. }), "{error}");
        let whole = tokenizer(&[("<E1>", false, true, true)]);
        assert!(whole.pieces(&"a b ".repeat(200_000)).is_ok());
        assert!(whole.pieces(&"a b ".repeat(300_000)).is_err());
    }
}
