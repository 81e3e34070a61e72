//! The forward pass: embedding, encoder layers in integers (or f32 where the plan says so), pooler and head in f32.
//!
//! ```text
//! hidden ──quantize──► codes ─W_q,W_k,W_v─► codes ─attention─► codes ─W_o─► + hidden ─LayerNorm─► hidden
//!                                                                                                   │
//!        hidden ◄─LayerNorm─ + hidden ◄─W_2─ codes ◄─GELU─W_1─ codes ◄──────────quantize────────────┘
//! ```
//!
//! Where norms are in front of the sublayers, a layer goes `hidden ─LayerNorm─► codes … W_o ─► + hidden`, and the same with the
//! feed-forward network ([`before`]).
//!
//! The residual stream is one f32 matrix that stays in place (paper, App. A: products of codes in integers, one gathered
//! dequantization). Where a matrix is left in f32 between quantized activations, its input codes are dequantized, it is
//! multiplied in f32 and its result quantized. That is slower; it is the same function as in training.

mod before;
mod floats;
mod head;
mod layer;

use qbert_kernels::Compute;
use qbert_kernels::int::NormOutput;
use qbert_model::PackedModel;
use qbert_model::family::{NormPlacement, SequencePooling};

use crate::error::{Error, Result};
use crate::state::{Shape, State, room};
use crate::weights::{OpenTable, Weights};

/// Tokens of an embedding task.
const EMBEDDING_ROWS: usize = 16;

/// Sequences of token ids, end to end.
#[derive(Debug, Clone, Copy)]
pub struct Tokens<'a> {
    /// Vocabulary ids of all sequences.
    pub ids: &'a [u32],
    /// Token type of each.
    pub segments: &'a [u8],
    /// Where each sequence begins, and at the end the number of tokens: one more entry than sequences.
    pub offsets: &'a [usize],
}

/// How far a forward pass goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scope {
    /// The last layer's hidden states of all tokens, without pooler and head.
    Hidden,
    /// The same, then pooler and head.
    #[default]
    All,
    /// Scores only. Where they depend on each sequence's first token alone (sequence classifiers, the pooler), the last
    /// layer skips the other tokens after attention. The scores have the same bits as with [`Scope::All`].
    Scores,
}

/// A model ready to compute.
#[derive(Debug)]
pub(crate) struct Encoder {
    pub(crate) model: PackedModel,
    pub(crate) weights: Weights,
    pub(crate) compute: Compute,
}

impl Encoder {
    /// Checks that every index is valid, before any kernel runs.
    pub(crate) fn check(&self, tokens: &Tokens<'_>) -> Result<()> {
        let problem = |problem: String| Err(Error::Tokens { problem });
        let (config, count) = (self.model.config(), tokens.ids.len());
        let (segments, offsets) = (tokens.segments.len(), tokens.offsets);
        let whole = offsets.first() == Some(&0) && offsets.last() == Some(&count);
        if segments != count || !whole {
            let (first, last) = (offsets.first(), offsets.last());
            return problem(format!("{count} ids with {segments} segments and offsets from {first:?} to {last:?}"));
        }
        for pair in offsets.windows(2) {
            let most = config.max_positions;
            if pair[1] <= pair[0] || pair[1] - pair[0] > most {
                return problem(format!("a sequence from token {} to {}; it may have 1 to {most}", pair[0], pair[1]));
            }
        }
        if let Some(id) = tokens.ids.iter().find(|&&id| id as usize >= config.vocab_size) {
            return problem(format!("token id {id}, but the model's vocabulary has {}", config.vocab_size));
        }
        let types = config.type_vocab_size;
        // Without a table of types there is nothing to look up, as in `transformers`.
        if let Some(segment) = tokens.segments.iter().find(|&&segment| types > 0 && usize::from(segment) >= types) {
            return problem(format!("token type {segment}, but the model has {}", config.type_vocab_size));
        }
        Ok(())
    }

    /// Computes a state from tokens that were checked.
    pub(crate) fn run(&self, tokens: &Tokens<'_>, scope: Scope, state: &mut State) {
        let config = self.model.config();
        state.begin(config, tokens);
        let (count, width) = (tokens.ids.len(), config.hidden_size);
        state.shape = Shape { rows: count, width, ..Shape::default() };
        if count == 0 {
            return;
        }
        self.embed(tokens, state);
        let reads = config.pooler(self.model.layout().head()).map(|pooler| pooler.reads);
        let only_first = scope == Scope::Scores
            && !self.model.layout().head_class().reads_every_token()
            && reads.is_none_or(|reads| reads == SequencePooling::FirstToken)
            && !self.weights.layers.is_empty();
        let last = self.weights.layers.len().saturating_sub(1);
        for (index, layer) in self.weights.layers.iter().enumerate() {
            let next = self.weights.layers.get(index + 1).and_then(|next| next.quantizers).map(|next| next.input);
            let only_first = only_first && index == last;
            match (config.family.norm_placement, layer.quantizers) {
                (NormPlacement::AfterResidual, Some(own)) => self.layer_in_codes(layer, &own, next, only_first, state),
                (NormPlacement::AfterResidual, None) => self.layer_in_floats(layer, only_first, state),
                (NormPlacement::BeforeSublayer, Some(own)) => self.before_in_codes(layer, &own, only_first, state),
                (NormPlacement::BeforeSublayer, None) => self.before_in_floats(layer, only_first, state),
            }
        }
        if let Some(norm) = &self.weights.final_norm {
            let hidden = &mut state.hidden[..state.shape.rows * width];
            let norm = norm.with(config.layer_norm_eps);
            self.compute.norm_to_codes(NormOutput { norm, hidden, codes: None });
        }
        if scope != Scope::Hidden {
            self.finish(state);
        }
    }

    /// `hidden = LayerNorm(word + position + type)`, through the projection where there is one, and its codes.
    fn embed(&self, tokens: &Tokens<'_>, state: &mut State) {
        let (compute, config) = (&self.compute, self.model.config());
        let (count, width) = (tokens.ids.len(), config.embedding_size);
        let Weights { word, position, token_type, projection, .. } = &self.weights;
        let word = word.open(&self.model);
        let position = position.as_ref().map(|table| table.open(&self.model));
        let token_type = token_type.as_ref().map(|table| table.open(&self.model));
        let State { hidden, embedded, positions, codes, .. } = state;
        let (sum, hidden) = if projection.is_some() { (embedded, Some(hidden)) } else { (hidden, None) };
        let embedded = room(sum, count * width);
        compute.threads().for_each_chunk([&mut *embedded], [EMBEDDING_ROWS * width], |task, [rows]| {
            for (index, row) in rows.chunks_exact_mut(width).enumerate() {
                let token = task * EMBEDDING_ROWS + index;
                self.look_up(&word, tokens.ids[token] as usize, false, row);
                if let Some(position) = &position {
                    self.look_up(position, positions[token] as usize, true, row);
                }
                if let Some(token_type) = &token_type {
                    self.look_up(token_type, usize::from(tokens.segments[token]), true, row);
                }
            }
        });
        let input = self.weights.layers.first().and_then(|layer| layer.quantizers);
        let codes = input.map(|quantizers| {
            codes.input.resize(count);
            (&mut codes.input, quantizers.input)
        });
        let norm = self.weights.embedding_norm.with(config.layer_norm_eps);
        let Some((projection, hidden)) = projection.as_ref().zip(hidden) else {
            return compute.norm_to_codes(NormOutput { norm, hidden: embedded, codes });
        };
        compute.norm_to_codes(NormOutput { norm, hidden: &mut *embedded, codes: None });
        let hidden = room(hidden, count * config.hidden_size);
        floats::multiply(compute, &projection.weight, &projection.bias, projection.neurons, embedded, hidden);
        if let Some((codes, quantizer)) = codes {
            compute.quantize(hidden, codes, quantizer);
        }
    }

    /// Writes a row of a table, or adds it.
    fn look_up(&self, table: &OpenTable<'_>, row: usize, add: bool, out: &mut [f32]) {
        let kernels = self.compute.kernels();
        match table {
            OpenTable::Codes(table) if add => kernels.add_embedding(*table, row, out),
            OpenTable::Codes(table) => kernels.write_embedding(*table, row, out),
            OpenTable::Floats(values) => {
                let values = &values[row * out.len()..(row + 1) * out.len()];
                if add { kernels.add_scaled(1.0, values, out) } else { out.copy_from_slice(values) }
            }
        }
    }
}
