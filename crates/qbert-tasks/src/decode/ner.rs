//! From token predictions to one tag per word, and from tags to entities of the original text.
//!
//! Entities are read off the tags as `conlleval` and `seqeval` read them (see [`crate::metrics::entities`]), so what
//! a user is shown is what the metric counts.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::features::CharacterIndex;
use crate::features::ner::NerWindow;
use crate::metrics::entities::spans;
use crate::{Error, Result};

/// A word of running text, with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Word {
    /// The word.
    pub text: String,
    /// Its bytes in the text.
    pub bytes: Range<usize>,
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

/// One label id per word of every sentence, taken from the windows' token predictions.
///
/// `predictions[w]` has one label id per token of window `w`; `word_counts` has the number of words per sentence.
/// Every word is predicted by exactly one window, so nothing is guessed; a sentence without words gets no tags.
///
/// # Errors
/// [`Error::Length`] when the predictions do not fit the windows.
pub fn tags_per_sentence<P: AsRef<[usize]>>(
    windows: &[NerWindow],
    predictions: &[P],
    word_counts: &[usize],
) -> Result<Vec<Vec<usize>>> {
    same_length("predicted windows", windows.len(), predictions.len())?;
    let mut sentences: Vec<Vec<usize>> = word_counts.iter().map(|&count| vec![0; count]).collect();
    for (index, (window, prediction)) in windows.iter().zip(predictions).enumerate() {
        let prediction = prediction.as_ref();
        same_length(&format!("predicted tokens of window {index}"), window.encoded.len(), prediction.len())?;
        let count = sentences.len();
        let tags = sentences.get_mut(window.sentence).ok_or_else(|| Error::Length {
            what: format!("sentence {} of window {index}", window.sentence),
            expected: window.sentence + 1,
            found: count,
        })?;
        for position in &window.words {
            let words = tags.len();
            *tags.get_mut(position.word).ok_or_else(|| Error::Length {
                what: format!("words of sentence {}", window.sentence),
                expected: position.word + 1,
                found: words,
            })? = prediction[position.token];
        }
    }
    Ok(sentences)
}

fn same_length(what: &str, expected: usize, found: usize) -> Result<()> {
    if expected == found { Ok(()) } else { Err(Error::Length { what: what.to_owned(), expected, found }) }
}

/// Entities of a text from the tag (and its probability) of each of its words.
///
/// # Errors
/// [`Error::Length`] when there are not as many tags or probabilities as words.
pub fn entities<S: AsRef<str>>(text: &str, words: &[Word], tags: &[S], probabilities: &[f64]) -> Result<Vec<Entity>> {
    same_length("tags of the text", words.len(), tags.len())?;
    same_length("probabilities of the text", words.len(), probabilities.len())?;
    let index = CharacterIndex::new(text);
    let entity = |span: crate::metrics::entities::EntitySpan| {
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
    Ok(spans(tags).into_iter().filter_map(entity).collect())
}

/// Splits running text into words much as the CoNLL-2003 files do: at white space; punctuation at the ends of a word
/// stands alone, but a point stays with an abbreviation (`U.N.`, `J.`); `'s` and `n't` stand alone. Hyphens, commas in
/// numbers and the like stay inside words.
pub fn split_words(text: &str) -> Vec<Word> {
    let mut words = Vec::new();
    let mut begin = None;
    for (byte, character) in text.char_indices().chain([(text.len(), ' ')]) {
        match (character.is_whitespace(), begin) {
            (true, Some(from)) => {
                split_chunk(text, from..byte, &mut words);
                begin = None;
            }
            (false, None) => begin = Some(byte),
            _ => {}
        }
    }
    words
}

fn split_chunk(text: &str, chunk: Range<usize>, words: &mut Vec<Word>) {
    let word = |bytes: Range<usize>| Word { text: text[bytes.clone()].to_owned(), bytes };
    let Range { mut start, mut end } = chunk;
    while let Some(first) = text[start..end].chars().next().filter(|&first| stands_alone(first)) {
        words.push(word(start..start + first.len_utf8()));
        start += first.len_utf8();
    }
    let mut after = Vec::new();
    while let Some(last) = text[start..end].chars().next_back().filter(|&last| stands_alone(last)) {
        let from = end - last.len_utf8();
        if last == '.' && is_abbreviation(&text[start..from]) {
            break;
        }
        after.push(word(from..end));
        end = from;
    }
    if start < end {
        match clitic(&text[start..end]) {
            Some(length) => words.extend([word(start..end - length), word(end - length..end)]),
            None => words.push(word(start..end)),
        }
    }
    words.extend(after.into_iter().rev());
}

/// Punctuation and symbols; letters, digits and combining marks of any script are not.
fn stands_alone(character: char) -> bool {
    character.is_ascii_punctuation()
        || matches!(character, '«' | '»' | '¿' | '¡' | '\u{2010}'..='\u{2027}' | '\u{2030}'..='\u{205E}' | '\u{3001}'..='\u{3011}')
}

/// A single letter, or letters with points between them: the point after it belongs to it.
fn is_abbreviation(before: &str) -> bool {
    let mut characters = before.chars();
    let single = characters.next().is_some_and(char::is_alphabetic) && characters.next().is_none();
    let dotted = before.contains('.') && before.chars().all(|character| character.is_alphabetic() || character == '.');
    single || dotted
}

/// The length in bytes of a clitic at the end of a word that is more than the clitic.
fn clitic(word: &str) -> Option<usize> {
    ["'s", "'S", "’s", "n't", "'ll", "'re", "'ve", "'d", "'m"]
        .iter()
        .find(|clitic| word.len() > clitic.len() && word.ends_with(**clitic))
        .map(|clitic| clitic.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Vec<String> {
        let words = split_words(text);
        assert!(words.iter().all(|word| text[word.bytes.clone()] == word.text));
        words.into_iter().map(|word| word.text).collect()
    }

    #[test]
    fn running_text_splits_like_the_files() {
        let cases: [(&str, &[&str]); 7] = [
            ("Mira (of Ostby) left.", &["Mira", "(", "of", "Ostby", ")", "left", "."]),
            ("the U.N. and J. Doe's well-known", &["the", "U.N.", "and", "J.", "Doe", "'s", "well-known"]),
            ("1,250.5 don't", &["1,250.5", "do", "n't"]),
            ("“Zürich”…", &["“", "Zürich", "”", "…"]),
            ("...", &[".", ".", "."]),
            ("  \t\n", &[]),
            ("'s", &["'", "s"]),
        ];
        for (text, expected) in cases {
            assert_eq!(split(text), expected, "{text}");
        }
    }

    #[test]
    fn entities_carry_their_place_in_characters() {
        let text = "Zoë Ångström, of Ås";
        let words = split_words(text);
        let tags = ["B-PER", "I-PER", "O", "O", "I-LOC"];
        let found = entities(text, &words, &tags, &[0.5, 1.0, 1.0, 1.0, 0.25]).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(
            (found[0].text.as_str(), found[0].characters.clone(), found[0].probability),
            ("Zoë Ångström", 0..12, 0.75)
        );
        assert_eq!(
            (found[1].kind.as_str(), found[1].text.as_str(), found[1].characters.clone()),
            ("LOC", "Ås", 17..19)
        );
        assert!(entities(text, &words, &tags[..2], &[1.0, 1.0]).is_err());
    }
}
