//! The nearest right name for a mistyped one, for error messages only: never used to guess what the user meant.

/// The candidate nearest to `wanted`, if any is near enough to be worth printing.
///
/// Case is ignored, so that `Label` suggests `label`; among equally near names the first wins.
pub(crate) fn nearest<'a, S: AsRef<str>>(wanted: &str, candidates: &'a [S]) -> Option<&'a str> {
    let wanted = wanted.to_lowercase();
    let mut best: Option<(f64, &str)> = None;
    for candidate in candidates {
        let similarity = strsim::jaro_winkler(&wanted, &candidate.as_ref().to_lowercase());
        if similarity >= 0.7 && best.is_none_or(|(score, _)| similarity > score) {
            best = Some((similarity, candidate.as_ref()));
        }
    }
    best.map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn near_names_are_found_and_far_ones_are_not() {
        let names = ["text", "label", "gold_label"];
        assert_eq!(nearest("lable", &names), Some("label"));
        assert_eq!(nearest("Gold_Label", &names), Some("gold_label"));
        assert_eq!(nearest("zzz", &names), None);
        assert_eq!(nearest::<&str>("label", &[]), None);
    }
}
