//! Hidden states of texts: one vector per token, with its place in the text.

use std::ops::Range;

use qbert_tasks::Encoded;

use crate::encoder::Scope;
use crate::error::Result;
use crate::session::Session;
use crate::vectors::Vectors;

/// The last layer's hidden states of one text.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct HiddenStates {
    /// One vector per token, in order.
    pub vectors: Vectors,
    /// The tokens: `[CLS]`, the pieces of the text, `[SEP]`.
    pub tokens: Vec<Token>,
    /// The number of pieces cut off because the text is longer than the model allows.
    pub removed: usize,
}

/// A token of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Token {
    /// Its id in the vocabulary.
    pub id: u32,
    /// Its bytes in the text; `None` for the special tokens at both ends.
    pub bytes: Option<Range<usize>>,
}

impl Session {
    /// Computes the last layer's hidden states of every token of every text, in order. Works with every head; texts that
    /// are too long are cut.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// # let session = tiny::tagger();
    /// let text = "the owls";
    /// let found = &session.hidden_states(&[text])?[0];
    /// for (token, vector) in found.tokens.iter().zip(&found.vectors) {
    ///     let piece = token.bytes.clone().map_or("(special)", |bytes| &text[bytes]);
    ///     println!("{piece}: {:?}", &vector[..3]);
    /// }
    /// let pieces: Vec<_> = found.tokens.iter().filter_map(|token| Some(&text[token.bytes.clone()?])).collect();
    /// assert_eq!(pieces, ["the", "owl", "s"]);
    /// assert_eq!(found.vectors.shape(), [5, session.config().hidden_size]);
    /// # Ok::<(), qbert_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Item`](crate::Error::Item) for a text that cannot be encoded.
    pub fn hidden_states<S: AsRef<str> + Sync>(&self, texts: &[S]) -> Result<Vec<HiddenStates>> {
        let encoded = self.encode_texts(texts)?;
        let mut all = Vec::with_capacity(texts.len());
        for (text, encoded) in texts.iter().zip(&encoded) {
            let states = self.states_of(text.as_ref(), encoded)?;
            let vectors = Vectors::with_capacity(encoded.len(), self.config().hidden_size);
            all.push(HiddenStates { vectors, ..states });
        }
        let mut states = all.iter_mut();
        self.forward_each(&encoded, Scope::Hidden, |output, sequence| {
            if let Some(state) = states.next() {
                state.vectors.extend(output.hidden_of(sequence));
            }
        })?;
        Ok(all)
    }

    /// A text's tokens with their places, without vectors.
    pub(crate) fn states_of(&self, text: &str, encoded: &Encoded) -> Result<HiddenStates> {
        let pieces = self.tokenizer().pieces(text)?;
        let mut tokens: Vec<Token> = encoded.input_ids.iter().map(|&id| Token { id, bytes: None }).collect();
        let between = tokens.len().saturating_sub(1);
        // One special token stands before the pieces and one after those that were kept.
        for (token, (start, end)) in tokens[..between].iter_mut().skip(1).zip(pieces.offsets) {
            token.bytes = Some(start..end);
        }
        Ok(HiddenStates { vectors: Vectors::default(), tokens, removed: encoded.removed })
    }
}
