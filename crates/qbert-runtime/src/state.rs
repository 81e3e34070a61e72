//! The buffers of a request. Concurrent requests have separate ones; a finished request leaves its buffers to the next.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use qbert_kernels::Rotary;
use qbert_kernels::int::Codes;
use qbert_model::Config;

use crate::encoder::Tokens;

/// The largest buffers in bytes that are kept for the next request: more than a full batch of BERT-large needs in
/// integers. Those of a longer text are given back to the system.
const LARGEST_KEPT: usize = 128 << 20;

/// Buffers that only grow. A `[rows, width]` matrix occupies the beginning of its buffer.
#[derive(Debug)]
pub(crate) struct State {
    /// The position embedding's row of each token.
    pub(crate) positions: Vec<u32>,
    /// The embeddings in front of their projection, where there is one.
    pub(crate) embedded: Vec<f32>,
    /// The residual stream.
    pub(crate) hidden: Vec<f32>,
    /// What a norm in front of a sublayer makes of it.
    pub(crate) normed: Vec<f32>,
    /// The angles of rotary positions, by their base.
    pub(crate) rotary: Vec<Rotary>,
    pub(crate) codes: CodeBuffers,
    pub(crate) floats: FloatBuffers,
    pub(crate) first_tokens: Vec<f32>,
    pub(crate) pooled: Vec<f32>,
    pub(crate) logits: Vec<f32>,
    /// The shape of the request that the buffers hold.
    pub(crate) shape: Shape,
    pub(crate) offsets: Vec<usize>,
}

/// How much of the buffers a finished request filled.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Shape {
    /// Rows of the hidden state: one per token, or one per sequence if only first tokens were computed.
    pub(crate) rows: usize,
    pub(crate) width: usize,
    /// Rows of the scores.
    pub(crate) score_rows: usize,
    pub(crate) outputs: usize,
    /// Whether there is one row of scores per token rather than per sequence.
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

/// f32 activations. They stay empty for models that do not need them.
#[derive(Debug, Default)]
pub(crate) struct FloatBuffers {
    /// The input of a matrix in f32.
    pub(crate) read: Vec<f32>,
    /// Its output.
    pub(crate) result: Vec<f32>,
    pub(crate) query: Vec<f32>,
    pub(crate) key: Vec<f32>,
    pub(crate) value: Vec<f32>,
    pub(crate) context: Vec<f32>,
    /// Attention probabilities of one sequence or some of its queries, head after head.
    pub(crate) probabilities: Vec<f32>,
    pub(crate) head_contexts: Vec<f32>,
}

impl State {
    fn new(config: &Config) -> Self {
        let codes = || Codes::new(config.hidden_size);
        Self {
            positions: Vec::new(),
            embedded: Vec::new(),
            hidden: Vec::new(),
            normed: Vec::new(),
            rotary: Vec::new(),
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

    /// The memory it holds.
    fn bytes(&self) -> usize {
        let CodeBuffers { input, query, key, value, context, middle, inner } = &self.codes;
        let codes: usize = [input, query, key, value, context, middle, inner].iter().map(|codes| codes.bytes()).sum();
        let FloatBuffers { read, result, query, key, value, context, probabilities, head_contexts } = &self.floats;
        let own = [&self.hidden, &self.normed, &self.embedded, &self.first_tokens, &self.pooled, &self.logits];
        let floats = [read, result, query, key, value, context, probabilities, head_contexts];
        let floats: usize = own.iter().chain(&floats).map(|buffer| buffer.capacity()).sum();
        let angles: usize = self.rotary.iter().map(Rotary::bytes).sum();
        codes + angles + floats * size_of::<f32>()
    }

    fn tokens_of(&self, sequence: usize) -> Range<usize> {
        self.offsets[sequence]..self.offsets[sequence + 1]
    }

    /// Stores the positions and offsets of a request, and computes angles that are not there yet.
    pub(crate) fn begin(&mut self, config: &Config, tokens: &Tokens<'_>) {
        self.offsets.clear();
        self.offsets.extend_from_slice(tokens.offsets);
        self.positions.clear();
        for pair in tokens.offsets.windows(2) {
            let rows = config.position_rows_of(&tokens.ids[pair[0]..pair[1]]);
            self.positions.extend(rows.map(|row| row as u32));
        }
        let longest = tokens.offsets.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
        for theta in (0..config.layers).filter_map(|layer| config.attention_of(layer).theta) {
            if self.rotary.iter().all(|rotary| rotary.theta() != theta) {
                self.rotary.push(Rotary::new(theta, config.head_size()));
            }
        }
        self.rotary.iter_mut().for_each(|rotary| rotary.extend(longest));
    }
}

/// The first `length` elements, with arbitrary content. Grows the buffer if necessary.
pub(crate) fn room(buffer: &mut Vec<f32>, length: usize) -> &mut [f32] {
    if buffer.len() < length {
        buffer.resize(length, 0.0);
    }
    &mut buffer[..length]
}

/// The unused buffers of a session: at most as many as requests can run at full speed, so that a burst of requests leaves
/// no memory behind.
#[derive(Debug)]
pub(crate) struct StatePool {
    free: Mutex<Vec<State>>,
    most: usize,
}

impl StatePool {
    /// A pool that keeps the buffers of at most `most` requests.
    pub(crate) fn new(most: usize) -> Self {
        Self { free: Mutex::default(), most }
    }

    pub(crate) fn take(&self, config: &Config) -> State {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        free.unwrap_or_else(|| State::new(config))
    }

    fn give_back(&self, state: State) {
        if state.bytes() > LARGEST_KEPT {
            return;
        }
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        // What is not kept is dropped after the lock.
        let surplus = if free.len() < self.most {
            free.push(state);
            None
        } else {
            Some(state)
        };
        drop(free);
        drop(surplus);
    }

    /// How many buffers are kept, and their bytes.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> (usize, usize) {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        (free.len(), free.iter().map(State::bytes).sum())
    }
}

/// The result of [`Session::forward`](crate::Session::forward). Dropping it returns its buffers to the session.
///
/// ```
/// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
/// use qbert_runtime::{Scope, Tokens};
///
/// # let session = tiny::classifier();
/// // Two sequences, of three tokens and of one.
/// let tokens = Tokens { ids: &[2, 5, 3, 2], segments: &[0; 4], offsets: &[0, 3, 4] };
/// let output = session.forward(tokens, Scope::All)?;
/// let width = session.config().hidden_size;
/// assert_eq!((output.sequences(), output.width(), output.outputs()), (2, width, 2));
/// assert_eq!(output.hidden_of(0).len(), 3 * width);
/// assert_eq!(output.hidden_of(1), &output.hidden()[3 * width..]);
/// assert_eq!(output.pooled_of(1), &output.pooled()[width..]);
/// assert_eq!(output.logits_of(1), &output.logits()[2..]);
/// # Ok::<(), qbert_runtime::Error>(())
/// ```
#[derive(Debug)]
pub struct Output<'a> {
    /// Always `Some`, until it is dropped.
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

    /// The last layer's hidden states, row by row: one row per token, or only the first token's of each sequence where
    /// [`Scope::Scores`](crate::Scope::Scores) left out the others.
    pub fn hidden(&self) -> &[f32] {
        self.part(|state| (&state.hidden, state.shape.rows * state.shape.width))
    }

    /// The length of a hidden state.
    pub fn width(&self) -> usize {
        self.shape().width
    }

    /// The hidden states of one sequence, as in [`Output::hidden`].
    ///
    /// # Panics
    /// If there is no such sequence.
    pub fn hidden_of(&self, sequence: usize) -> &[f32] {
        let Some(state) = &self.state else { return &[] };
        let Shape { rows, width, .. } = state.shape;
        let has_all_tokens = state.offsets.last() == Some(&rows);
        let own = if has_all_tokens { state.tokens_of(sequence) } else { sequence..sequence + 1 };
        &state.hidden[own.start * width..own.end * width]
    }

    /// The pooler's outputs, one row per sequence. Empty for models without a pooler.
    pub fn pooled(&self) -> &[f32] {
        self.part(|state| (&state.pooled, state.shape.pooled_rows * state.shape.width))
    }

    /// The pooler's output for one sequence, as in [`Output::pooled`].
    ///
    /// # Panics
    /// If there is no such sequence.
    pub fn pooled_of(&self, sequence: usize) -> &[f32] {
        let width = self.width();
        let pooled = self.pooled();
        if pooled.is_empty() { pooled } else { &pooled[sequence * width..(sequence + 1) * width] }
    }

    /// The head's scores, row by row: one row per sequence for a classifier of texts, one row per token for other heads.
    /// Empty without a head.
    pub fn logits(&self) -> &[f32] {
        self.part(|state| (&state.logits, state.shape.score_rows * state.shape.outputs))
    }

    /// The number of scores per row: one per label, 2 for question answering, 0 without a head.
    pub fn outputs(&self) -> usize {
        self.shape().outputs
    }

    /// The number of sequences.
    pub fn sequences(&self) -> usize {
        self.state.as_ref().map_or(0, |state| state.offsets.len().saturating_sub(1))
    }

    /// The scores of one sequence: one row, or one row per token.
    ///
    /// # Panics
    /// If there is no such sequence.
    pub fn logits_of(&self, sequence: usize) -> &[f32] {
        let Shape { outputs, per_token, score_rows, .. } = self.shape();
        let Some(state) = &self.state else { return &[] };
        let rows = match (score_rows, per_token) {
            (0, _) => 0..0,
            (_, true) => state.tokens_of(sequence),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        let text = r#"{"vocab_size": 4, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1,
            "intermediate_size": 4, "max_position_embeddings": 4}"#;
        Config::parse(text.as_bytes(), "config.json".as_ref()).expect("a configuration")
    }

    #[test]
    fn point_20_a_burst_of_requests_leaves_few_buffers_behind() {
        let (pool, config) = (StatePool::new(3), config());
        let used = || {
            let mut state = pool.take(&config);
            state.hidden.reserve_exact(1000);
            state.codes.inner.resize(10);
            Output::new(state, &pool)
        };
        let burst: Vec<Output<'_>> = (0..64).map(|_| used()).collect();
        assert_eq!(pool.kept(), (0, 0));
        drop(burst);
        let (count, bytes) = pool.kept();
        assert_eq!(count, 3);
        assert!((3 * 4000..3 * 8000).contains(&bytes), "{bytes} bytes");
        drop(used());
        assert_eq!(pool.kept(), (count, bytes), "what is kept is used again");
    }

    #[test]
    fn point_20_buffers_of_an_enormous_request_are_given_back() {
        let (pool, config) = (StatePool::new(3), config());
        let mut state = pool.take(&config);
        state.floats.probabilities.reserve_exact(LARGEST_KEPT / size_of::<f32>() + 1);
        drop(Output::new(state, &pool));
        assert_eq!(pool.kept(), (0, 0));
    }
}
