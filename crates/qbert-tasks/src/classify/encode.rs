//! Sequences for classification and sentence pairs.
//!
//! A single text is truncated at the end. A pair that is too long is truncated "longest first", as the fast tokenizers
//! of `transformers` do: the longer text loses pieces until both are equally long, then both do, and the second keeps
//! the odd one. Tests compare generated pairs with `transformers` (`reference/metrics`).

use super::ClassifyExample;
use crate::encoded::Encoded;
use crate::tokenizer::Frame;
use crate::{Error, Result, Tokenizer};

/// An encoded example with its label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassifyFeature {
    /// The sequence.
    pub encoded: Encoded,
    /// The label's id.
    pub label: Option<usize>,
}

/// Encodes a text, or a pair, to at most `max_len` tokens.
///
/// # Errors
/// [`Error::MaxLen`] when `max_len` leaves no room for a piece of each text.
pub fn encode(tokenizer: &Tokenizer, text: &str, text2: Option<&str>, max_len: usize) -> Result<Encoded> {
    let frame = tokenizer.frame();
    check_max_len(max_len, frame, text2.is_some())?;
    let Some(text2) = text2 else {
        let (kept, removed) = tokenizer.first_ids(text, max_len - frame.single())?;
        return Ok(Encoded { removed, ..Encoded::build(frame, &kept, None) });
    };
    // Neither text keeps more than all the room, and what exceeds it counts as removed whatever the other one has.
    let room = max_len - frame.pair();
    let ((first, more), (second, more2)) = (tokenizer.first_ids(text, room)?, tokenizer.first_ids(text2, room)?);
    let (kept, kept2) = longest_first(first.len() + more, second.len() + more2, room);
    let encoded = Encoded::build(frame, &first[..kept], Some(&second[..kept2]));
    Ok(Encoded { removed: first.len() + more + second.len() + more2 - kept - kept2, ..encoded })
}

/// Encodes every example, in order.
///
/// # Errors
/// As [`encode`].
pub fn encode_all(tokenizer: &Tokenizer, examples: &[ClassifyExample], max_len: usize) -> Result<Vec<ClassifyFeature>> {
    let feature = |example: &ClassifyExample| {
        let encoded = encode(tokenizer, &example.text, example.text2.as_deref(), max_len)?;
        Ok(ClassifyFeature { encoded, label: example.label })
    };
    examples.iter().map(feature).collect()
}

fn check_max_len(max_len: usize, frame: &Frame, pair: bool) -> Result<()> {
    let (least, what) = if pair { (frame.pair() + 2, "a pair of texts") } else { (frame.single() + 1, "a text") };
    if max_len < least { Err(Error::MaxLen { max_len, least, what }) } else { Ok(()) }
}

/// How many pieces of each text are kept when both together may have `room`.
fn longest_first(first: usize, second: usize, room: usize) -> (usize, usize) {
    if first + second <= room {
        return (first, second);
    }
    let half = room / 2;
    if first.min(second) <= half {
        // Only the longer one has to give.
        return if first <= second { (first, room - first) } else { (room - second, second) };
    }
    if first <= second { (half, room - half) } else { (room - half, half) }
}

#[cfg(test)]
mod tests {
    use super::longest_first;

    /// The rule as its name says: take from the longer one, one piece at a time.
    fn one_by_one(mut first: usize, mut second: usize, room: usize) -> (usize, usize) {
        let shorter_first = first <= second;
        while first + second > room {
            match first.cmp(&second) {
                std::cmp::Ordering::Greater => first -= 1,
                std::cmp::Ordering::Less => second -= 1,
                // The text that was longer to begin with keeps the odd piece.
                std::cmp::Ordering::Equal if shorter_first => first -= 1,
                std::cmp::Ordering::Equal => second -= 1,
            }
        }
        (first, second)
    }

    #[test]
    fn longest_first_equals_its_definition() {
        for first in 0..24 {
            for second in 0..24 {
                for room in 0..24 {
                    assert_eq!(longest_first(first, second, room), one_by_one(first, second, room));
                }
            }
        }
    }
}
