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

/// What becomes of the characters of Chinese, which has no spaces between words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ideographs {
    /// Each is a word, as BERT's tokenizers treat them. CJK punctuation stands alone too.
    Alone,
    /// They are letters like others: a word ends at white space.
    Joined,
}

/// Splits running text into words much as the CoNLL-2003 files do: at white space; punctuation at the ends of a word
/// stands alone, but a point stays with an abbreviation (`U.N.`, `J.`); `'s` and `n't` stand alone. Hyphens, commas in
/// numbers and the like stay inside words. Chinese characters are words if `ideographs` says so; kana and Hangul never
/// are, because BERT's tokenizers do not split them either.
pub fn split_words(text: &str, ideographs: Ideographs) -> Vec<Word> {
    let mut words = Vec::new();
    let mut begin = None;
    let is_word =
        |character| ideographs == Ideographs::Alone && (is_ideograph(character) || is_cjk_punctuation(character));
    for (byte, character) in text.char_indices().chain([(text.len(), ' ')]) {
        let is_word = is_word(character);
        if !is_word && !character.is_whitespace() {
            begin = begin.or(Some(byte));
            continue;
        }
        if let Some(from) = begin.take() {
            split_chunk(text, from..byte, &mut words);
        }
        if is_word {
            words.push(Word { text: character.to_string(), bytes: byte..byte + character.len_utf8() });
        }
    }
    words
}

/// The Chinese characters that BERT's normalizer puts spaces round, in its ranges.
pub(crate) fn is_ideograph(character: char) -> bool {
    matches!(character,
        '\u{4E00}'..='\u{9FFF}'
        | '\u{3400}'..='\u{4DBF}'
        | '\u{20000}'..='\u{2A6DF}'
        | '\u{2A700}'..='\u{2B73F}'
        | '\u{2B740}'..='\u{2B81F}'
        | '\u{2B920}'..='\u{2CEAF}'
        | '\u{F900}'..='\u{FAFF}'
        | '\u{2F800}'..='\u{2FA1F}')
}

/// Punctuation (Unicode's category P) of the CJK and full-width blocks, which stands between words without spaces.
fn is_cjk_punctuation(character: char) -> bool {
    matches!(character,
        '\u{3001}'..='\u{3003}'
        | '\u{3008}'..='\u{3011}'
        | '\u{3014}'..='\u{301F}'
        | '\u{3030}' | '\u{303D}' | '\u{30A0}' | '\u{30FB}'
        | '\u{FE30}'..='\u{FE52}'
        | '\u{FF01}'..='\u{FF03}'
        | '\u{FF05}'..='\u{FF0A}'
        | '\u{FF0C}'..='\u{FF0F}'
        | '\u{FF1A}' | '\u{FF1B}' | '\u{FF1F}' | '\u{FF20}'
        | '\u{FF3B}'..='\u{FF3D}' | '\u{FF3F}' | '\u{FF5B}' | '\u{FF5D}'
        | '\u{FF5F}'..='\u{FF65}')
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
        let words = split_words(text, Ideographs::Alone);
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
    fn point_5_chinese_and_japanese_text_splits_as_the_tokenizer_does() {
        let cases: [(&str, &[&str]); 5] = [
            ("李明在北京大学,学习。", &["李", "明", "在", "北", "京", "大", "学", ",", "学", "习", "。"]),
            ("東京タワーへ、行く", &["東", "京", "タワーへ", "、", "行", "く"]),
            ("ジョン・スミス「OK」", &["ジョン", "・", "スミス", "「", "OK", "」"]),
            ("在U.N.的 Mira's", &["在", "U.N.", "的", "Mira", "'s"]),
            ("서울은 𠀀㐀豈", &["서울은", "𠀀", "㐀", "豈"]),
        ];
        for (text, expected) in cases {
            assert_eq!(split(text), expected, "{text}");
        }
        let joined = split_words("李明 在北京", Ideographs::Joined);
        assert_eq!(joined.iter().map(|word| word.text.as_str()).collect::<Vec<_>>(), ["李明", "在北京"]);
    }
}
