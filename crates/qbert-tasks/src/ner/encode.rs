//! Sequences for named entities: words to pieces and back.
//!
//! Each word is tokenized by itself and has its tag on its first piece; loss and metric ignore the other pieces and the
//! special tokens (`None`, PyTorch's −100). A word without any piece (a zero-width or control character)
//! gets one `[UNK]`, so that every word has exactly one prediction.
//!
//! A sentence that does not fit is split into overlapping windows of whole words, not truncated. A window takes as
//! many words as fit, and overlaps the next one by about a quarter. A word in two windows belongs to the one in which
//! its smaller side of context is larger (the earlier one if equal); only there does it have a label and a
//! prediction. A word longer than a window is truncated.

use super::NerSentence;
use crate::encoded::Encoded;
use crate::{Error, Result, Tokenizer};

/// One input sequence: a sentence, or a window of a long one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NerWindow {
    /// The sequence.
    pub encoded: Encoded,
    /// The sentence it belongs to.
    pub sentence: usize,
    /// The words this window predicts, with the position of their first piece in the sequence.
    pub words: Vec<WordPosition>,
    /// One per token: the label's id on the first piece of a word this window predicts, else `None`.
    pub labels: Vec<Option<usize>>,
}

/// Where a word's prediction is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WordPosition {
    /// The word's index in its sentence.
    pub word: usize,
    /// Its first piece's index in the sequence.
    pub token: usize,
}

/// Encodes every sentence, long ones into several windows, in order.
///
/// # Errors
/// [`Error::MaxLen`] when not even one piece fits.
pub fn encode_all(tokenizer: &Tokenizer, sentences: &[NerSentence], max_len: usize) -> Result<Vec<NerWindow>> {
    let mut windows = Vec::with_capacity(sentences.len());
    for (index, sentence) in sentences.iter().enumerate() {
        windows.extend(encode(tokenizer, &sentence.words, sentence.tags.as_deref(), index, max_len)?);
    }
    Ok(windows)
}

/// Encodes one sentence; `sentence` is its index, copied to the windows.
///
/// # Errors
/// [`Error::MaxLen`] when not even one piece fits, [`Error::Length`] when there are not as many tags as words.
pub fn encode<S: AsRef<str>>(
    tokenizer: &Tokenizer,
    words: &[S],
    tags: Option<&[usize]>,
    sentence: usize,
    max_len: usize,
) -> Result<Vec<NerWindow>> {
    let frame = tokenizer.frame();
    let least = frame.single() + 1;
    if max_len < least {
        return Err(Error::MaxLen { max_len, least, what: "a word" });
    }
    if let Some(tags) = tags.filter(|tags| tags.len() != words.len()) {
        let what = format!("tags of sentence {sentence}");
        return Err(Error::Length { what, expected: words.len(), found: tags.len() });
    }
    let room = max_len - frame.single();
    let (pieces, removed) = word_pieces(tokenizer, words, room)?;
    let spans = window_spans(&pieces, room);
    let owners = owners(&pieces, &spans);
    let mut windows = Vec::with_capacity(spans.len());
    for (index, span) in spans.iter().enumerate() {
        let ids: Vec<u32> = pieces[span.clone()].concat();
        let mut window = NerWindow {
            encoded: Encoded::build(frame, &ids, None),
            sentence,
            words: Vec::new(),
            labels: vec![None; ids.len() + frame.single()],
        };
        let mut token = frame.start.len();
        for word in span.clone() {
            if owners[word] == index {
                window.words.push(WordPosition { word, token });
                window.labels[token] = tags.map(|tags| tags[word]);
            }
            token += pieces[word].len();
        }
        windows.push(window);
    }
    if let Some(first) = windows.first_mut() {
        first.encoded.removed = removed;
    }
    Ok(windows)
}

/// At least one and at most `room` pieces for every word, and the number of pieces removed.
fn word_pieces<S: AsRef<str>>(tokenizer: &Tokenizer, words: &[S], room: usize) -> Result<(Vec<Vec<u32>>, usize)> {
    let mut all = Vec::with_capacity(words.len());
    let mut removed = 0;
    for word in words {
        let mut ids = tokenizer.word_ids(word.as_ref())?;
        if ids.is_empty() {
            ids.push(tokenizer.special().unk);
        }
        removed += ids.len().saturating_sub(room);
        ids.truncate(room);
        all.push(ids);
    }
    Ok((all, removed))
}

/// Ranges of words, each of at most `room` pieces, that together cover all words; one (maybe empty) range at least.
fn window_spans(pieces: &[Vec<u32>], room: usize) -> Vec<std::ops::Range<usize>> {
    let mut spans = Vec::new();
    let mut begin = 0;
    loop {
        let (mut end, mut used) = (begin, 0);
        while end < pieces.len() && used + pieces[end].len() <= room {
            used += pieces[end].len();
            end += 1;
        }
        spans.push(begin..end);
        if end >= pieces.len() {
            return spans;
        }
        // Step back by whole words for a quarter of the window, but always advance, and past the last end.
        let (mut next, mut overlap) = (end, 0);
        while next > begin + 1 && overlap + pieces[next - 1].len() <= room / 4 {
            next -= 1;
            overlap += pieces[next].len();
        }
        begin = if overlap + pieces[end].len() <= room { next } else { end };
    }
}

/// For each word, the window in which its smaller side of context is largest.
fn owners(pieces: &[Vec<u32>], spans: &[std::ops::Range<usize>]) -> Vec<usize> {
    let mut best: Vec<Option<(usize, usize)>> = vec![None; pieces.len()];
    for (index, span) in spans.iter().enumerate() {
        let total: usize = pieces[span.clone()].iter().map(Vec::len).sum();
        let mut left = 0;
        for word in span.clone() {
            let right = total - left - pieces[word].len();
            let context = left.min(right);
            if best[word].is_none_or(|(known, _)| context > known) {
                best[word] = Some((context, index));
            }
            left += pieces[word].len();
        }
    }
    best.into_iter().map(|owner| owner.map_or(0, |(_, index)| index)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn windows_fit_cover_everything_and_move_on(
            lengths in prop::collection::vec(1usize..9, 0..80), room in 9usize..40
        ) {
            let pieces: Vec<Vec<u32>> = lengths.iter().map(|&length| vec![7; length.min(room)]).collect();
            let spans = window_spans(&pieces, room);
            prop_assert_eq!(spans[0].start, 0);
            prop_assert_eq!(spans[spans.len() - 1].end, pieces.len());
            for span in &spans {
                prop_assert!(pieces[span.clone()].iter().map(Vec::len).sum::<usize>() <= room);
            }
            for pair in spans.windows(2) {
                prop_assert!(pair[1].start > pair[0].start && pair[1].start <= pair[0].end && pair[1].end > pair[0].end);
            }
            let owners = owners(&pieces, &spans);
            prop_assert!(owners.iter().enumerate().all(|(word, &owner)| spans[owner].contains(&word)));
        }
    }
}
