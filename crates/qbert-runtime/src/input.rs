//! What a model can be asked.

use serde::{Deserialize, Serialize};

/// A question to a model: a text, a pair of texts, a list of words, or a question with its context.
///
/// Strings become texts, tuples become pairs and vectors become word lists:
///
/// ```
/// use qbert_runtime::Input;
///
/// assert_eq!(Input::from("two owls"), Input::text("two owls"));
/// assert_eq!(Input::from(("two owls", "birds")), Input::pair("two owls", "birds"));
/// assert_eq!(Input::from(vec!["two", "owls"]), Input::words(["two", "owls"]));
/// ```
///
/// In JSON it is an object: `{"text": …}`, `{"text": …, "text2": …}`, `{"words": […]}` or
/// `{"question": …, "context": …}`. Other keys are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum Input {
    /// A pair of texts to classify.
    Pair {
        /// The first text.
        text: String,
        /// The second text.
        text2: String,
    },
    /// A text to classify or to find entities in.
    Text {
        /// The text.
        text: String,
    },
    /// Words to tag.
    Words {
        /// The words of one sentence. They are not split any further.
        words: Vec<String>,
    },
    /// A question about a context.
    Question {
        /// The question.
        question: String,
        /// The text that contains the answer.
        context: String,
    },
}

impl Input {
    /// A text to classify or to find entities in.
    ///
    /// ```
    /// # use qbert_runtime::Input;
    /// assert_eq!(Input::text("two owls"), Input::Text { text: "two owls".to_owned() });
    /// ```
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }

    /// A pair of texts to classify.
    ///
    /// ```
    /// # use qbert_runtime::Input;
    /// let pair = Input::pair("two owls sleep", "birds are asleep");
    /// assert!(matches!(pair, Input::Pair { .. }));
    /// ```
    pub fn pair(text: impl Into<String>, text2: impl Into<String>) -> Self {
        Self::Pair { text: text.into(), text2: text2.into() }
    }

    /// The words of one sentence, to tag each of them.
    ///
    /// ```
    /// # use qbert_runtime::Input;
    /// let words = Input::words(["Mira", "saw", "two", "owls"]);
    /// assert!(matches!(words, Input::Words { words } if words.len() == 4));
    /// ```
    pub fn words<S: Into<String>>(words: impl IntoIterator<Item = S>) -> Self {
        Self::Words { words: words.into_iter().map(Into::into).collect() }
    }

    /// A question about a context.
    ///
    /// ```
    /// # use qbert_runtime::Input;
    /// let question = Input::question("Who saw the owls?", "Mira saw two owls.");
    /// assert!(matches!(question, Input::Question { .. }));
    /// ```
    pub fn question(question: impl Into<String>, context: impl Into<String>) -> Self {
        Self::Question { question: question.into(), context: context.into() }
    }

    /// What it is, for error messages.
    pub(crate) fn describe(&self) -> &'static str {
        match self {
            Self::Pair { .. } => "a pair of texts",
            Self::Text { .. } => "a text",
            Self::Words { .. } => "a list of words",
            Self::Question { .. } => "a question",
        }
    }
}

impl From<&str> for Input {
    fn from(text: &str) -> Self {
        Self::text(text)
    }
}

impl From<&&str> for Input {
    fn from(text: &&str) -> Self {
        Self::text(*text)
    }
}

impl From<String> for Input {
    fn from(text: String) -> Self {
        Self::text(text)
    }
}

impl From<&String> for Input {
    fn from(text: &String) -> Self {
        Self::text(text)
    }
}

impl<A: Into<String>, B: Into<String>> From<(A, B)> for Input {
    fn from((text, text2): (A, B)) -> Self {
        Self::pair(text, text2)
    }
}

impl<S: Into<String>> From<Vec<S>> for Input {
    fn from(words: Vec<S>) -> Self {
        Self::words(words)
    }
}

impl From<&Input> for Input {
    fn from(input: &Input) -> Self {
        input.clone()
    }
}
