//! Predictions from a packed model: one file in, answers out, and no training code.
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
//! # What to call
//!
//! | question | call |
//! |---|---|
//! | Which label does a text have, or a pair of texts? | [`Session::classify`], [`Session::classify_pairs`] |
//! | Which entities are in a text? Which tag does each word have? | [`Session::tag_texts`], [`Session::tag_words`] |
//! | Where in a context is the answer to a question? | [`Session::answer`] |
//! | Whatever the model was trained for | [`Session::predict`], [`Session::predict_one`] |
//! | The same, where one bad input must not fail the others | [`Session::predict_each`] |
//! | Does this input suit the model? | [`Session::check`] |
//! | What is the vector of a text, for search and clustering? | [`Session::embed`] |
//! | What is the vector of each token of a text? | [`Session::hidden_states`] |
//! | The same in steps, with batches of one's own across requests (servers) | [`Session::prepare`], [`Session::compute_together`], [`Session::finish`] |
//! | What are the raw scores and hidden states of token ids? | [`Session::forward`] |
//!
//! # Inputs
//!
//! [`Session::predict`] takes anything that becomes an [`Input`]: `["a text", "another"]`, `[("a text", "its pair")]`, or
//! `Input` values, which have a JSON form. Texts that are longer than the model allows are cut, and the result says by how
//! much; entity and question models read long texts in windows instead.
//!
//! # Errors
//!
//! No input causes a panic. Every failure is an [`Error`] with an [`Error::hint`] that says what to do. If one of several
//! inputs is at fault, the error is an [`Error::Item`] with its index.
//!
//! # Threads, memory and reproducibility
//!
//! A [`Session`] is `Send + Sync`: share one between threads. Each call borrows its buffers from a pool and returns them,
//! so the encoder allocates nothing after the first requests. The sequences of a batch are laid end to end without
//! padding, so a batch costs as much as its tokens. A text gets the same answer, to the last bit, alone or in any batch,
//! and on any number of threads.
//!
//! The pool keeps the buffers of as many requests as can run at once, so a burst of requests leaves little memory behind.
//!
//! # Fork
//!
//! Open sessions after a fork, or use one thread and fork while no thread is inside a call. In the child of a fork, a
//! session with more threads computes on the calling thread and can be dropped. A fork while another thread is inside a
//! call is not safe, because a lock that it holds stays locked in the child.

mod embed;
mod encoder;
mod error;
mod hidden;
mod input;
mod options;
mod predict;
mod prepared;
mod rank;
mod session;
mod state;
mod vectors;
mod weights;

pub use embed::{EmbedOptions, Embeddings};
pub use encoder::{Scope, Tokens};
pub use error::{Error, Result};
pub use hidden::{HiddenStates, Token};
pub use input::Input;
pub use options::SessionOptions;
pub use predict::{Answers, Classification, LabelScore, LabelSet, Prediction, Score, Tagging, Warning};
pub use prepared::{Outcome, Prepared};
pub use rank::Ranked;
pub use session::Session;
pub use state::Output;
pub use vectors::Vectors;

// Types of other crates that appear in signatures here.
pub use qbert_kernels::{Compute, KernelError, Kernels, Threads};
pub use qbert_model::{Config, Embedder, Error as ModelError, Head, PackedModel, Pooling, Problem, Storage};
pub use qbert_quant::Plan;
pub use qbert_tasks::embed::cosine;
pub use qbert_tasks::ner::Entity;
pub use qbert_tasks::qa::Answer;
pub use qbert_tasks::{Error as TaskError, Pieces, SpecialIds, Task, Tokenizer};
