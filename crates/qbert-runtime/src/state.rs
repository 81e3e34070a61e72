//! The memory of one request, reused by the next: several threads may ask at once, each has its own.

use std::sync::{Mutex, PoisonError};

use qbert_kernels::int::Codes;
use qbert_model::Config;

use crate::encoder::Tokens;

/// Buffers that only grow. `[rows, width]` matrices are the first part of theirs.
#[derive(Debug)]
pub(crate) struct State {
    /// Position of each token in its sequence.
    pub(crate) positions: Vec<u32>,
    /// The residual stream.
    pub(crate) hidden: Vec<f32>,
    pub(crate) codes: CodeBuffers,
    pub(crate) floats: FloatBuffers,
    pub(crate) first_tokens: Vec<f32>,
    pub(crate) pooled: Vec<f32>,
    pub(crate) logits: Vec<f32>,
    /// The request that is in here.
    pub(crate) shape: Shape,
    pub(crate) offsets: Vec<usize>,
}

/// What a finished request left in the buffers.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Shape {
    /// Rows of the hidden state: tokens, or sequences where only their first tokens were asked for.
    pub(crate) rows: usize,
    pub(crate) width: usize,
    /// Rows of the scores.
    pub(crate) score_rows: usize,
    pub(crate) outputs: usize,
    /// Whether scores are one row per token, or one per sequence.
    pub(crate) per_token: bool,
    pub(crate) pooled_rows: usize,
}

/// Activation codes of a layer; empty where activations stay in f32.
#[derive(Debug)]
pub(crate) struct CodeBuffers {
    pub(crate) input: Codes,
    pub(crate) query: Codes,
    pub(crate) key: Codes,
    pub(crate) value: Codes,
    pub(crate) context: Codes,
    pub(crate) middle: Codes,
    pub(crate) inner: Codes,
}

/// f32 activations, grown only by models that need them.
#[derive(Debug, Default)]
pub(crate) struct FloatBuffers {
    /// What enters a matrix in f32.
    pub(crate) read: Vec<f32>,
    /// What comes out of it.
    pub(crate) result: Vec<f32>,
    pub(crate) query: Vec<f32>,
    pub(crate) key: Vec<f32>,
    pub(crate) value: Vec<f32>,
    pub(crate) context: Vec<f32>,
    /// Of one sequence, head after head.
    pub(crate) probabilities: Vec<f32>,
    pub(crate) head_contexts: Vec<f32>,
}

impl State {
    fn new(config: &Config) -> Self {
        let codes = || Codes::new(config.hidden_size);
        Self {
            positions: Vec::new(),
            hidden: Vec::new(),
            codes: CodeBuffers {
                input: codes(),
                query: codes(),
                key: codes(),
                value: codes(),
                context: codes(),
                middle: codes(),
                inner: Codes::new(config.intermediate_size),
            },
            floats: FloatBuffers::default(),
            first_tokens: Vec::new(),
            pooled: Vec::new(),
            logits: Vec::new(),
            shape: Shape::default(),
            offsets: Vec::new(),
        }
    }

    /// Notes positions and offsets of a request.
    pub(crate) fn begin(&mut self, tokens: &Tokens<'_>) {
        self.offsets.clear();
        self.offsets.extend_from_slice(tokens.offsets);
        self.positions.clear();
        for pair in tokens.offsets.windows(2) {
            self.positions.extend((0..pair[1] - pair[0]).map(|position| position as u32));
        }
    }
}

/// The first `length` elements, which exist from now on; their content is arbitrary.
pub(crate) fn room(buffer: &mut Vec<f32>, length: usize) -> &mut [f32] {
    if buffer.len() < length {
        buffer.resize(length, 0.0);
    }
    &mut buffer[..length]
}

/// Free states of a session.
#[derive(Debug, Default)]
pub(crate) struct StatePool(Mutex<Vec<State>>);

impl StatePool {
    pub(crate) fn take(&self, config: &Config) -> State {
        let free = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        free.unwrap_or_else(|| State::new(config))
    }

    fn give_back(&self, state: State) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(state);
    }
}

/// What [`crate::Session::forward`] found. Its memory goes back to the session when it is dropped.
#[derive(Debug)]
pub struct Output<'a> {
    /// Always there until dropped.
    state: Option<State>,
    pool: &'a StatePool,
}

impl<'a> Output<'a> {
    pub(crate) fn new(state: State, pool: &'a StatePool) -> Self {
        Self { state: Some(state), pool }
    }

    fn part(&self, choose: impl Fn(&State) -> (&[f32], usize)) -> &[f32] {
        let Some(state) = &self.state else { return &[] };
        let (buffer, length) = choose(state);
        &buffer[..length]
    }

    fn shape(&self) -> Shape {
        self.state.as_ref().map_or(Shape::default(), |state| state.shape)
    }

    /// The last layer's hidden states, row-major: one row per token, or per sequence where [`crate::Scope::Scores`] left
    /// out the others.
    pub fn hidden(&self) -> &[f32] {
        self.part(|state| (&state.hidden, state.shape.rows * state.shape.width))
    }

    /// The pooler's outputs, one row per sequence; empty for models without a pooler.
    pub fn pooled(&self) -> &[f32] {
        self.part(|state| (&state.pooled, state.shape.pooled_rows * state.shape.width))
    }

    /// The head's scores, row-major: one row per sequence of a sequence classifier, one per token of the other heads.
    /// Empty without a head.
    pub fn logits(&self) -> &[f32] {
        self.part(|state| (&state.logits, state.shape.score_rows * state.shape.outputs))
    }

    /// Scores per row: labels, or 2 for answers; 0 without a head.
    pub fn outputs(&self) -> usize {
        self.shape().outputs
    }

    /// Sequences.
    pub fn sequences(&self) -> usize {
        self.state.as_ref().map_or(0, |state| state.offsets.len().saturating_sub(1))
    }

    /// The scores of one sequence: one row, or one row per token.
    ///
    /// # Panics
    /// When there is no such sequence.
    pub fn logits_of(&self, sequence: usize) -> &[f32] {
        let Shape { outputs, per_token, score_rows, .. } = self.shape();
        let Some(state) = &self.state else { return &[] };
        let rows = match (score_rows, per_token) {
            (0, _) => 0..0,
            (_, true) => state.offsets[sequence]..state.offsets[sequence + 1],
            (_, false) => sequence..sequence + 1,
        };
        &state.logits[rows.start * outputs..rows.end * outputs]
    }
}

impl Drop for Output<'_> {
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            self.pool.give_back(state);
        }
    }
}
