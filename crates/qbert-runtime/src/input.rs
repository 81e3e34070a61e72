//! What a model can be asked.

use serde::de::IgnoredAny;
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
/// `{"question": …, "context": …}`. Other keys are ignored, and a key whose value is `null` counts as absent. Errors name
/// the key:
///
/// ```
/// use qbert_runtime::Input;
///
/// let input: Input = serde_json::from_str(r#"{"text": "two owls", "label": "yes"}"#)?;
/// assert_eq!(input, Input::text("two owls"));
/// let error = serde_json::from_str::<Input>(r#"{"question": "who?"}"#).unwrap_err();
/// assert!(error.to_string().starts_with("`question` without `context`"));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, try_from = "Fields")]
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

/// The keys of an input in JSON.
#[derive(Deserialize)]
struct Fields {
    text: Option<Field>,
    text2: Option<Field>,
    words: Option<Field>,
    question: Option<Field>,
    context: Option<Field>,
}

/// A value of any type, so that a wrong one can be reported by its key.
#[derive(Deserialize)]
#[serde(untagged)]
enum Field {
    Text(String),
    Words(Vec<String>),
    Other(IgnoredAny),
}

impl Field {
    fn string(self, key: &str) -> Result<String, String> {
        match self {
            Self::Text(text) => Ok(text),
            Self::Words(_) | Self::Other(_) => Err(format!("`{key}` is not a string")),
        }
    }
}

impl TryFrom<Fields> for Input {
    type Error = String;

    fn try_from(Fields { text, text2, words, question, context }: Fields) -> Result<Self, String> {
        if let Some(text) = text {
            let text = text.string("text")?;
            return Ok(match text2 {
                Some(text2) => Self::Pair { text, text2: text2.string("text2")? },
                None => Self::Text { text },
            });
        }
        match words {
            Some(Field::Words(words)) => return Ok(Self::Words { words }),
            Some(_) => return Err("`words` is not a list of strings".to_owned()),
            None => {}
        }
        let question = match (question, context) {
            (Some(question), Some(context)) => {
                Some(Self::Question { question: question.string("question")?, context: context.string("context")? })
            }
            (Some(_), None) => return Err("`question` without `context`".to_owned()),
            (None, Some(_)) => return Err("`context` without `question`".to_owned()),
            (None, None) => None,
        };
        if text2.is_some() {
            return Err("`text2` without `text`".to_owned());
        }
        question.ok_or_else(|| "an object that asks nothing".to_owned())
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
