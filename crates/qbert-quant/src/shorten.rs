//! Shortens what an error message quotes from a file: a name or a list there can be megabytes long.
//!
//! Not for values that somebody reads back: what is left out is gone.

use std::borrow::Cow;
use std::fmt::Display;

/// The most characters of a text that are shown.
const CHARACTERS: usize = 120;
/// The most items of a list that are shown.
const ITEMS: usize = 8;

/// The text, or its first 120 characters and `…`.
///
/// ```
/// assert_eq!(qbert_quant::shorten("layer.0"), "layer.0");
/// assert_eq!(qbert_quant::shorten(&"x".repeat(1 << 20)).chars().count(), 121);
/// ```
pub fn shorten(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(CHARACTERS) {
        None => Cow::Borrowed(text),
        Some(_) => Cow::Owned(text.chars().take(CHARACTERS).chain(['…']).collect()),
    }
}

/// The list in brackets, or its first 8 items and how many there are.
///
/// ```
/// assert_eq!(qbert_quant::shorten_list(&[2, 3]), "[2, 3]");
/// assert_eq!(qbert_quant::shorten_list(&[1; 1000]), "[1, 1, 1, 1, 1, 1, 1, 1, … 1000 in all]");
/// ```
pub fn shorten_list<T: Display>(items: &[T]) -> String {
    let shown: Vec<String> = items.iter().take(ITEMS).map(|item| shorten(&item.to_string()).into_owned()).collect();
    let rest = if items.len() > ITEMS { format!(", … {} in all", items.len()) } else { String::new() };
    format!("[{}{rest}]", shown.join(", "))
}
