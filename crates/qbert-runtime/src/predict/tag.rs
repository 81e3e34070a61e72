//! Tags of words and entities in texts.

use qbert_model::Head;
use qbert_tasks::Encoded;
use qbert_tasks::ner::{
    Entity, Ideographs, NerWindow, TagDecoder, TagStyle, Word, WordTag, encode, entities, split_words,
};
use serde::Serialize;

use super::{Encoding, indexed};
use crate::error::Result;
use crate::input::Input;
use crate::session::Session;

/// The words of a text, their tags, and the entities they form.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Tagging {
    /// Entities in the order of the text. If words were given, offsets refer to the words joined by single spaces.
    pub entities: Vec<Entity>,
    /// The words.
    pub words: Vec<String>,
    /// One tag per word.
    pub tags: Vec<String>,
    /// The probability of each word's tag.
    pub probabilities: Vec<f64>,
    /// The number of pieces cut off single words that are longer than the model allows. Texts are never cut: long ones
    /// are read in windows.
    pub removed: usize,
}

/// A text with its words.
#[derive(Debug)]
pub(crate) struct Source {
    text: String,
    words: Vec<Word>,
}

impl Source {
    fn text(text: &str, ideographs: Ideographs) -> Self {
        Self { text: text.to_owned(), words: split_words(text, ideographs) }
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

/// A text with the windows it is read in.
#[derive(Debug)]
pub(crate) struct EncodedSentence {
    source: Source,
    windows: Vec<NerWindow>,
}

impl Encoding<Source> for EncodedSentence {
    type Output = Tagging;

    fn encode(session: &Session, source: Source) -> Result<Self> {
        session.check_bytes(source.text.len())?;
        let words: Vec<&str> = source.words.iter().map(|word| word.text.as_str()).collect();
        let windows = encode(session.tokenizer(), &words, None, 0, session.max_len())?;
        Ok(Self { source, windows })
    }

    fn sequences(&self) -> impl Iterator<Item = &Encoded> {
        self.windows.iter().map(|window| &window.encoded)
    }

    fn decode(self, session: &Session, scores: &[&[f32]]) -> Result<Tagging> {
        let mut decoder = TagDecoder::new([self.source.words.len()], session.labels().len());
        for (window, logits) in self.windows.iter().zip(scores) {
            decoder.push(window, logits);
        }
        let tags = decoder.finish()?.into_iter().next().unwrap_or_default();
        let removed = self.windows.iter().map(|window| window.encoded.removed).sum();
        session.tagging(self.source, &tags, removed)
    }
}

pub(crate) fn source(input: &Input, ideographs: Ideographs) -> Option<Source> {
    match input {
        Input::Text { text } => Some(Source::text(text, ideographs)),
        Input::Words { words } => Some(Source::words(words)),
        _ => None,
    }
}

impl Session {
    /// Finds the entities in texts, in order. Texts are split into words as in the CoNLL files, and every Chinese character
    /// is a word if the model's tokenizer treats it so. Texts may be longer than a sequence.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// # let session = tiny::tagger();
    /// let text = "the owls of Ostby";
    /// for entity in &session.tag_texts(&[text])?[0].entities {
    ///     println!("{} {} at characters {:?}", entity.kind, entity.text, entity.characters);
    /// }
    /// # Ok::<(), qbert_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::WrongTask`](crate::Error::WrongTask) if the model does not tag words,
    /// [`Error::Item`](crate::Error::Item) for a text that cannot be encoded.
    pub fn tag_texts<S: AsRef<str>>(&self, texts: &[S]) -> Result<Vec<Tagging>> {
        self.tag(texts.iter().map(|text| Source::text(text.as_ref(), self.tokenizer().ideographs())))
    }

    /// Tags words that are already split, sentence by sentence.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// # let session = tiny::tagger();
    /// let found = session.tag_words(&[vec!["the", "owls", "of", "Ostby"]])?;
    /// assert_eq!(found[0].tags.len(), 4);
    /// # Ok::<(), qbert_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Session::tag_texts`].
    pub fn tag_words<S: AsRef<str>>(&self, sentences: &[Vec<S>]) -> Result<Vec<Tagging>> {
        self.tag(sentences.iter().map(|words| Source::words(words)))
    }

    fn tag(&self, sources: impl Iterator<Item = Source>) -> Result<Vec<Tagging>> {
        self.require(Head::TokenClassification, "entities")?;
        indexed(self.run_each::<_, EncodedSentence>(sources.map(Ok).collect()))
    }

    fn tagging(&self, source: Source, tags: &[WordTag], removed: usize) -> Result<Tagging> {
        let names: Vec<&str> =
            tags.iter().map(|word| self.labels().get(word.tag).map_or("O", String::as_str)).collect();
        let style = TagStyle::of_names(self.labels());
        let probabilities: Vec<f64> = tags.iter().map(|word| word.probability).collect();
        let entities = entities(style, &source.text, &source.words, &names, &probabilities)?;
        let tags = names.into_iter().map(str::to_owned).collect();
        let words = source.words.into_iter().map(|word| word.text).collect();
        Ok(Tagging { entities, words, tags, probabilities, removed })
    }
}
