//! Tags of words and entities in texts.

use qbert_model::Head;
use qbert_tasks::ner::{Entity, TagDecoder, Word, WordTag, encode, entities, split_words};
use serde::Serialize;

use super::Input;
use crate::error::Result;
use crate::session::Session;

/// The words of a text, their tags, and the entities they form.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Tagging {
    /// Entities in the order of the text. Of words that were given, places are those in the words joined by one space.
    pub entities: Vec<Entity>,
    /// The words.
    pub words: Vec<String>,
    /// One tag per word.
    pub tags: Vec<String>,
    /// The probability of each word's tag.
    pub probabilities: Vec<f64>,
    /// How many pieces were cut off single words longer than the model takes. Long texts are seen through windows, not
    /// cut.
    pub removed: usize,
}

/// A text with its words.
pub(super) struct Source {
    text: String,
    words: Vec<Word>,
}

impl Source {
    pub(super) fn of(input: &Input) -> Option<Self> {
        match input {
            Input::Text { text } => Some(Self::text(text)),
            Input::Words { words } => Some(Self::words(words)),
            _ => None,
        }
    }

    fn text(text: &str) -> Self {
        Self { text: text.to_owned(), words: split_words(text) }
    }

    fn words<S: AsRef<str>>(given: &[S]) -> Self {
        let (mut text, mut words) = (String::new(), Vec::with_capacity(given.len()));
        for word in given.iter().map(AsRef::as_ref) {
            if !words.is_empty() {
                text.push(' ');
            }
            let start = text.len();
            text.push_str(word);
            words.push(Word { text: word.to_owned(), bytes: start..text.len() });
        }
        Self { text, words }
    }
}

impl Session {
    /// Entities in running texts, in their order. Texts are split into words as the CoNLL files are; any length.
    ///
    /// # Errors
    /// [`crate::Error::WrongTask`] when the model is not for entities.
    pub fn tag_texts<S: AsRef<str>>(&self, texts: &[S]) -> Result<Vec<Tagging>> {
        self.tag_all(texts.iter().map(|text| Source::text(text.as_ref())).collect())
    }

    /// Tags of words that are already split, sentence by sentence.
    ///
    /// # Errors
    /// As [`Session::tag_texts`].
    pub fn tag_words<S: AsRef<str>>(&self, sentences: &[Vec<S>]) -> Result<Vec<Tagging>> {
        self.tag_all(sentences.iter().map(|words| Source::words(words)).collect())
    }

    pub(super) fn tag_all(&self, sources: Vec<Source>) -> Result<Vec<Tagging>> {
        self.require(Head::TokenClassification, "entities")?;
        let windows = self.encode_each(&sources, |index, source| {
            let words: Vec<&str> = source.words.iter().map(|word| word.text.as_str()).collect();
            Ok(encode(self.tokenizer(), &words, None, index, self.max_len())?)
        })?;
        let windows = windows.concat();
        let mut decoder = TagDecoder::new(sources.iter().map(|source| source.words.len()), self.labels().len());
        self.score_each(windows.iter().map(|window| &window.encoded), |index, logits| {
            decoder.push(&windows[index], logits);
        })?;
        let mut removed = vec![0; sources.len()];
        windows.iter().for_each(|window| removed[window.sentence] += window.encoded.removed);
        let results = sources.into_iter().zip(decoder.finish()?).zip(removed);
        results.map(|((source, tags), removed)| self.tagging(source, &tags, removed)).collect()
    }

    fn tagging(&self, source: Source, tags: &[WordTag], removed: usize) -> Result<Tagging> {
        let names: Vec<&str> =
            tags.iter().map(|word| self.labels().get(word.tag).map_or("O", String::as_str)).collect();
        let probabilities: Vec<f64> = tags.iter().map(|word| word.probability).collect();
        let entities = entities(&source.text, &source.words, &names, &probabilities)?;
        let tags = names.into_iter().map(str::to_owned).collect();
        let words = source.words.into_iter().map(|word| word.text).collect();
        Ok(Tagging { entities, words, tags, probabilities, removed })
    }
}
