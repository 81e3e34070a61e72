//! From token scores to one tag per word, and from tags to entities of the original text.
//!
//! Evaluation and prediction both decode with [`TagDecoder`]. Entities are read from the tags as `conlleval` and
//! `seqeval` read them ([`super::spans`]), so users see exactly what the metric counts.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{EntitySpan, NerWindow, TagStyle, Word, spans};
use crate::classify::decode;
use crate::encoded::CharacterIndex;
use crate::{Error, Result};

/// The predicted tag of a word.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WordTag {
    /// The label's id.
    pub tag: usize,
    /// Its probability.
    pub probability: f64,
}

/// Collects the tags of all words, window by window, so that scores need not be kept.
///
/// Every word is predicted by exactly one window. An error is kept and returned by [`TagDecoder::finish`].
#[derive(Debug)]
pub struct TagDecoder {
    outputs: usize,
    windows: usize,
    sentences: Vec<Vec<WordTag>>,
    error: Option<Error>,
}

impl TagDecoder {
    /// A decoder for sentences with these numbers of words and a head with this many outputs.
    pub fn new(word_counts: impl IntoIterator<Item = usize>, outputs: usize) -> Self {
        let sentence = |count| vec![WordTag { tag: 0, probability: 0.0 }; count];
        let sentences = word_counts.into_iter().map(sentence).collect();
        Self { outputs, windows: 0, sentences, error: None }
    }

    /// Takes the scores of the next window: one row of `outputs` for each of its tokens.
    pub fn push(&mut self, window: &NerWindow, scores: &[f32]) {
        if self.error.is_none() {
            self.error = self.decode(window, scores).err();
        }
        self.windows += 1;
    }

    /// The tag of each word of each sentence.
    ///
    /// # Errors
    /// [`Error::Length`] when a window does not fit its scores or its sentence.
    pub fn finish(self) -> Result<Vec<Vec<WordTag>>> {
        self.error.map_or(Ok(self.sentences), Err)
    }

    fn decode(&mut self, window: &NerWindow, scores: &[f32]) -> Result<()> {
        let what = || format!("scores of window {}", self.windows);
        same_length(what, window.encoded.len() * self.outputs, scores.len())?;
        let count = self.sentences.len();
        let words = self.sentences.get_mut(window.sentence).ok_or_else(|| Error::Length {
            what: format!("sentence {} of window {}", window.sentence, self.windows),
            expected: window.sentence + 1,
            found: count,
        })?;
        for position in &window.words {
            let found = words.len();
            let word = words.get_mut(position.word).ok_or_else(|| Error::Length {
                what: format!("words of sentence {}", window.sentence),
                expected: position.word + 1,
                found,
            })?;
            let choice = decode(&scores[position.token * self.outputs..(position.token + 1) * self.outputs]);
            *word = WordTag { tag: choice.label, probability: choice.probability() };
        }
        Ok(())
    }
}

/// A named entity in running text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entity {
    /// The type, such as `PER`.
    pub kind: String,
    /// The text from the first to the last word.
    pub text: String,
    /// The words it covers.
    pub words: Range<usize>,
    /// Where it stands, in Unicode code points.
    pub characters: Range<usize>,
    /// The mean over its words of the probability of the predicted tag.
    pub probability: f64,
}

fn same_length(what: impl FnOnce() -> String, expected: usize, found: usize) -> Result<()> {
    if expected == found { Ok(()) } else { Err(Error::Length { what: what(), expected, found }) }
}

/// Entities of a text, by the style of the model's tags, from the tag (and its probability) of each of its words.
///
/// # Errors
/// [`Error::Length`] when there are not as many tags or probabilities as words.
pub fn entities<S: AsRef<str>>(
    style: TagStyle,
    text: &str,
    words: &[Word],
    tags: &[S],
    probabilities: &[f64],
) -> Result<Vec<Entity>> {
    same_length(|| "tags of the text".to_owned(), words.len(), tags.len())?;
    same_length(|| "probabilities of the text".to_owned(), words.len(), probabilities.len())?;
    let index = CharacterIndex::new(text);
    let entity = |span: EntitySpan| {
        let range = span.words;
        let bytes = words.get(range.start)?.bytes.start..words.get(range.end.checked_sub(1)?)?.bytes.end;
        let probability = probabilities[range.clone()].iter().sum::<f64>() / range.len() as f64;
        Some(Entity {
            kind: span.kind,
            text: text.get(bytes.clone())?.to_owned(),
            words: range,
            characters: index.character(bytes.start)..index.character(bytes.end),
            probability,
        })
    };
    Ok(spans(style, tags).into_iter().filter_map(entity).collect())
}

#[cfg(test)]
mod tests {
    use super::super::{Ideographs, NerWindow, WordPosition, split_words};
    use super::*;
    use crate::Encoded;

    #[test]
    fn entities_carry_their_place_in_characters() {
        let text = "Zoë Ångström, of Ås";
        let words = split_words(text, Ideographs::Alone);
        let tags = ["B-PER", "I-PER", "O", "O", "I-LOC"];
        let found = entities(TagStyle::Marked, text, &words, &tags, &[0.5, 1.0, 1.0, 1.0, 0.25]).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(
            (found[0].text.as_str(), found[0].characters.clone(), found[0].probability),
            ("Zoë Ångström", 0..12, 0.75)
        );
        assert_eq!(
            (found[1].kind.as_str(), found[1].text.as_str(), found[1].characters.clone()),
            ("LOC", "Ås", 17..19)
        );
        assert!(entities(TagStyle::Marked, text, &words, &tags[..2], &[1.0, 1.0]).is_err());
    }

    /// One word on the second of four tokens.
    fn window(sentence: usize, word: usize) -> NerWindow {
        NerWindow {
            encoded: Encoded { input_ids: vec![0; 4], segments: vec![0; 4], removed: 0 },
            sentence,
            words: vec![WordPosition { word, token: 1 }],
            labels: vec![None; 4],
        }
    }

    #[test]
    fn a_word_takes_the_scores_of_its_first_piece() {
        let mut decoder = TagDecoder::new([1, 1], 2);
        decoder.push(&window(1, 0), &[9.0, 0.0, 0.0, 3.0, 9.0, 0.0, 9.0, 0.0]);
        decoder.push(&window(0, 0), &[0.0, 9.0, 0.0, 0.0, 0.0, 9.0, 0.0, 9.0]);
        let tags = decoder.finish().unwrap();
        assert_eq!(tags[0], [WordTag { tag: 0, probability: 0.5 }]);
        assert_eq!(tags[1][0].tag, 1);
        assert!((tags[1][0].probability - 1.0 / (1.0 + (-3.0_f64).exp())).abs() < 1e-12);
    }

    #[test]
    fn scores_that_do_not_fit_are_an_error_and_no_panic() {
        for (sentence, word, scores) in [(0, 0, 7), (0, 0, 9), (2, 0, 8), (0, 1, 8)] {
            let mut decoder = TagDecoder::new([1, 1], 2);
            decoder.push(&window(sentence, word), &vec![0.0; scores]);
            decoder.push(&window(1, 0), &[0.0; 8]);
            assert!(matches!(decoder.finish(), Err(Error::Length { .. })), "{sentence} {word} {scores}");
        }
    }
}
