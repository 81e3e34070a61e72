//! Running text split into words, for texts that do not come as a list of words.

use std::ops::Range;

/// A word of running text, with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Word {
    /// The word.
    pub text: String,
    /// Its bytes in the text.
    pub bytes: Range<usize>,
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
}
