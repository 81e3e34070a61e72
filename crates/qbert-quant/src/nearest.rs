//! Finds the name somebody probably meant, for the hints of error messages.
//!
//! Not for lookups: a near name is only ever suggested, never taken.

/// The candidate most like `text`, or `None` when nothing is alike enough to be worth suggesting.
///
/// Alike is the Damerau–Levenshtein distance relative to the longer name; case does not count. Of equally
/// near candidates the first one wins, so the order of `candidates` decides and nothing else.
pub fn nearest<I, S>(text: &str, candidates: I) -> Option<String>
where
    I: IntoIterator<Item = S>,
    S: AsRef<str>,
{
    const ALIKE: f64 = 0.5;
    // Time and memory grow with the product of both lengths, and nobody misspells a name of more characters.
    const LONGEST: usize = 256;
    let too_long = |text: &str| text.chars().nth(LONGEST).is_some();
    if too_long(text) {
        return None;
    }
    let text = text.to_lowercase();
    let mut best: Option<(f64, String)> = None;
    for candidate in candidates {
        let candidate = candidate.as_ref();
        if too_long(candidate) {
            continue;
        }
        let score = strsim::normalized_damerau_levenshtein(&text, &candidate.to_lowercase());
        if score >= ALIKE && best.as_ref().is_none_or(|(highest, _)| score > *highest) {
            best = Some((score, candidate.to_owned()));
        }
    }
    best.map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn suggests_the_likeliest_name_and_nothing_far_fetched() {
        let names = ["query", "key", "value", "attention_output", "intermediate", "output"];
        assert_eq!(nearest("qurey", names).as_deref(), Some("query"));
        assert_eq!(nearest("Outptu", names).as_deref(), Some("output"));
        assert_eq!(nearest("attention-output", names).as_deref(), Some("attention_output"));
        assert_eq!(nearest("pooler_dense", names), None);
        assert_eq!(nearest("", names), None);
    }

    #[test]
    fn point_17b_names_without_end_are_not_compared() {
        let endless = "query".repeat(1 << 20);
        assert_eq!(nearest(&endless, [endless.as_str(), "query"]), None);
        assert_eq!(nearest("qurey", [endless.as_str(), "query"]).as_deref(), Some("query"));
    }
}
