//! Licence and languages of a model, for its card: as the user says, or as the card of the original model says.

use std::path::Path;

/// What a card says about the use of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub(super) struct Terms {
    /// The licence's identifier, such as `apache-2.0`.
    pub(super) license: Option<String>,
    /// The name and the link of a licence that is called `other`.
    pub(super) license_name: Option<String>,
    pub(super) license_link: Option<String>,
    /// Codes such as `en`.
    pub(super) languages: Vec<String>,
}

impl Terms {
    /// The user's word first, then that of the card beside the original model.
    pub(super) fn new(license: Option<&str>, languages: &[String], model: &Path) -> Self {
        let card = std::fs::read_to_string(model.join("README.md")).unwrap_or_default();
        let mut terms = Self::of_card(&card);
        if let Some(license) = license {
            terms = Self { license: Some(license.to_owned()), languages: terms.languages, ..Self::default() };
        }
        if !languages.is_empty() {
            terms.languages = languages.to_vec();
        }
        terms
    }

    fn of_card(card: &str) -> Self {
        let first = |key: &str| values(card, key).into_iter().next();
        Self {
            license: first("license"),
            license_name: first("license_name"),
            license_link: first("license_link"),
            languages: values(card, "language"),
        }
    }

    /// The lines of the front matter.
    pub(super) fn lines(&self) -> String {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let mut text = String::new();
        let fields =
            [("license", &self.license), ("license_name", &self.license_name), ("license_link", &self.license_link)];
        for (key, value) in fields {
            if let Some(value) = value {
                text += &format!("{key}: {}\n", quoted(value));
            }
        }
        if !self.languages.is_empty() {
            text += "language:\n";
            text.extend(self.languages.iter().map(|language| format!("  - {}\n", quoted(language))));
        }
        text
    }
}

/// The values of a key in a card's front matter: `key: value`, `key: [a, b]`, or a list below the key. That is all of YAML
/// that cards use for these keys; what is written otherwise is left out rather than guessed.
fn values(card: &str, key: &str) -> Vec<String> {
    let mut lines = card.lines();
    if lines.next().map(str::trim_end) != Some("---") {
        return Vec::new();
    }
    let mut lines = lines.take_while(|line| line.trim_end() != "---");
    let Some(rest) = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(':')) else { return Vec::new() };
    let plain = |text: &str| {
        let text = text.trim().trim_matches(['"', '\'']);
        let is_plain = !text.is_empty() && text.len() <= 200 && !text.contains(['{', '}', '[', ']', '|', '>', '#']);
        is_plain.then(|| text.to_owned())
    };
    let rest = rest.trim();
    if let Some(list) = rest.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return list.split(',').filter_map(plain).collect();
    }
    if !rest.is_empty() {
        return plain(rest).into_iter().collect();
    }
    lines.map_while(|line| line.trim_start().strip_prefix("- ")).filter_map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_read_as_people_write_it() {
        let of = |front: &str| Terms::of_card(&format!("---\n{front}\n---\nlicense: not this\n"));
        let plain = of("language: en\nlicense: apache-2.0");
        assert_eq!((plain.license.as_deref(), plain.languages), (Some("apache-2.0"), vec!["en".to_owned()]));
        assert_eq!(of("language:\n- en\n- \"no\"\nlicense: mit").languages, ["en", "no"]);
        assert_eq!(of("language: [en, de]").languages, ["en", "de"]);
        let other = of("license: other\nlicense_name: my-terms\nlicense_link: LICENSE.md");
        assert_eq!(other.lines(), "license: \"other\"\nlicense_name: \"my-terms\"\nlicense_link: \"LICENSE.md\"\n");
        for silent in ["", "tags:\n- mit", "license: {a: b}", "license: >"] {
            assert_eq!(of(silent), Terms::default(), "{silent}");
        }
        assert_eq!(Terms::of_card("license: mit\n"), Terms::default(), "no front matter");
    }

    #[test]
    fn the_users_word_comes_first() {
        let home = std::env::temp_dir();
        let terms = Terms::new(Some("mit"), &["fr".to_owned()], &home.join("no-such-model"));
        assert_eq!(terms.lines(), "license: \"mit\"\nlanguage:\n  - \"fr\"\n");
    }
}
