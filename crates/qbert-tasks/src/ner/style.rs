//! How the tags of a model, or of a file, say where an entity begins and ends.
//!
//! A model's tags are known only as a list of names, and lists differ: `B-PER` and `I-PER`, bare types (`PER`), parts of
//! speech (`ADJ`). `seqeval` takes the first letter of every tag for a mark, which makes `DJ` of `ADJ`; here the list
//! decides what its tags are.

use crate::Labels;

/// What the tags of a list are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TagStyle {
    /// Every tag but `O` has a mark (`B-PER`, `I-PER`, or `B` and `I` alone): entities are those of `conlleval` and
    /// `seqeval`.
    Marked,
    /// Some tags have marks, and some do not. Those that do not are types as they are: neighbours that are equal are one
    /// entity.
    Mixed,
    /// `O` and types without marks: neighbours that are equal are one entity, as `transformers` joins them
    /// (`aggregation_strategy="simple"`).
    Types,
    /// No `O` and no marks, as parts of speech are: every word stands alone, as in `conlleval -r`. F1 over such
    /// entities is the share of words with the right tag.
    Words,
}

impl TagStyle {
    /// The style of a head's labels.
    pub fn of(labels: &Labels) -> Self {
        Self::of_names(labels.names())
    }

    /// The style of a list of tags.
    pub fn of_names<S: AsRef<str>>(names: &[S]) -> Self {
        let tags = || names.iter().map(AsRef::as_ref).filter(|&name| name != "O");
        let is_typed = |tag: &str| Self::split(tag).is_some();
        // A letter alone is a mark only among marks: some parts of speech are called B or S.
        let is_mark = |tag: &str| matches!(tag, "B" | "I" | "E" | "S" | "L" | "U");
        if tags().all(|tag| is_typed(tag) || is_mark(tag)) {
            Self::Marked
        } else if tags().any(is_typed) {
            Self::Mixed
        } else if tags().count() < names.len() {
            Self::Types
        } else {
            Self::Words
        }
    }

    /// A tag's mark and type; `None` for a tag that has no mark, or no type.
    pub fn split(tag: &str) -> Option<(char, &str)> {
        let (mark, kind) = tag.split_once('-')?;
        let mark = mark.chars().next().filter(|_| mark.len() == 1)?;
        (matches!(mark, 'B' | 'I' | 'E' | 'S' | 'L' | 'U') && !kind.is_empty()).then_some((mark, kind))
    }

    /// Whether tags say where an entity begins.
    pub fn has_marks(self) -> bool {
        matches!(self, Self::Marked | Self::Mixed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_tags_says_what_they_are() {
        for (tags, style) in [
            (&["O", "B-PER", "I-PER"][..], TagStyle::Marked),
            (&["B-PER", "E-PER", "S-PER"], TagStyle::Marked),
            (&["O", "B", "I"], TagStyle::Marked),
            (&["O"], TagStyle::Marked),
            (&["O", "B-PER", "I-PER", "X"], TagStyle::Mixed),
            (&["O", "PER", "LOC"], TagStyle::Types),
            (&["O", "B_PER", "I_PER"], TagStyle::Types),
            (&["O", "PER-B", "PER-I"], TagStyle::Types),
            (&["ADJ", "NOUN", "VERB"], TagStyle::Words),
            (&["A", "B", "E", "S", "V"], TagStyle::Words),
            (&["LABEL_0", "LABEL_1"], TagStyle::Words),
        ] {
            assert_eq!(TagStyle::of_names(tags), style, "{tags:?}");
        }
    }
}
