//! Predictions from a packed model: one file in, answers out, without anything that training needs.
//!
//! ```no_run
//! use qbert_runtime::{Session, SessionOptions};
//!
//! let session = Session::open("model.qbert", SessionOptions::default())?;
//! for found in session.classify(&["a film to remember", "two hours too long"])? {
//!     println!("{} ({:.1} %)", found.label, 100.0 * found.probability);
//! }
//! # Ok::<(), qbert_runtime::Error>(())
//! ```
//!
//! A [`Session`] is `Send + Sync`: share one between threads, each call takes its own buffers from a pool and gives them
//! back. After the first requests the encoder takes no memory any more. Sequences of a batch are laid end to end without
//! padding, so a batch costs what its tokens cost, and a text's answer has the same bits alone, in any batch and on any
//! number of threads.
//!
//! | question | call |
//! |---|---|
//! | which label has a text, or a pair of texts? | [`Session::classify`], [`Session::classify_pairs`] |
//! | which entities are in a text, which tags have words? | [`Session::tag_texts`], [`Session::tag_words`] |
//! | where in a context is the answer to a question? | [`Session::answer`] |
//! | any of these, by what the model is for | [`Session::predict`] |
//! | scores and hidden states of token ids | [`Session::forward`] |
//!
//! Nothing that comes in panics: texts longer than the model takes are cut (and the result says so) or seen through
//! windows, and every fault is an [`Error`] with a [`Error::hint`].

mod encoder;
mod error;
mod predict;
mod session;
mod state;
mod weights;

pub use encoder::{Scope, Tokens};
pub use error::{Error, Result};
pub use predict::{Answers, Classification, Input, LabelScore, Prediction, Tagging};
pub use qbert_tasks::ner::{Entity, Word};
pub use qbert_tasks::qa::Answer;
pub use session::{Session, SessionOptions};
pub use state::Output;
