//! The encoder with its head, forward and backward: the operations called in order and in reverse order.
//!
//! There is one model for all purposes. The caller passes the weights as a flat array in the model's layout, so
//! quantization-aware training can pass quantized weights and use their gradient for the originals. With quantized
//! activations ([`Integers`]) the forward pass multiplies codes, exactly as integer inference does.
//!
//! The [`Family`](qbert_model::Family) decides what is computed where families differ; this module knows no tensor names.
//!
//! Shapes in comments use the letters of [`crate::ops`].

mod activations;
mod backward;
mod before;
mod feed_forward;
mod forward;
mod integers;
mod quantized;
mod spans;
mod tangent;

use std::sync::Arc;

use qbert_kernels::{Compute, DropoutKey};
use qbert_model::family::{SequencePooling, SublayerRate};
use qbert_model::{Config, Embedder, Head, ParameterLayout, PoolerSettings};

pub use activations::{Activations, BackwardBuffers, LayerActivations};
pub use quantized::{ActivationQuantizer, ActivationTensor, Integers, Quantized, WeightCodes};
pub use spans::{LayerSpans, LinearSpan, NormSpan, Spans};
pub use tangent::{HessianPass, Point};

use crate::batch::{Batch, Targets};
use crate::error::{Error, Result};
use crate::ops::Dropout;
use crate::ops::attention::Heads;
use crate::ops::loss::{Loss, cross_entropy};
use crate::ops::pooler::Pooler;
use crate::ops::sentence_vector::SentenceVector;
use crate::team::{Rows, Team};
use forward::linear_at;

/// The numbers of a text's vector; 0 where the model's pooler makes them, which is not trained.
fn vector_width(config: &Config) -> usize {
    let own = config.embedder.clone().unwrap_or_default();
    let width = own.dimensions.unwrap_or(config.hidden_size).min(config.hidden_size);
    if own.pooling.of_tokens().is_some() { width } else { 0 }
}

/// Sets gradients to zero before a step, on all threads.
pub fn zero(compute: &Compute, gradients: &mut [f32]) {
    compute.threads().for_each_chunk([gradients], [qbert_kernels::CHUNK], |_, [part]| part.fill(0.0));
}

/// Whether a pass is part of training, and if so, which random masks it draws.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// No dropout.
    Evaluate,
    /// Dropout with the masks of this seed and step.
    Train {
        /// The run's seed.
        seed: u64,
        /// Identifies the micro-batch: passes that need different masks need different steps.
        step: u64,
    },
}

/// The inputs that the forward and the backward pass share.
#[derive(Debug, Clone, Copy)]
pub struct Pass<'a> {
    /// Kernels and threads.
    pub compute: &'a Compute,
    /// All weights in the model's layout, quantized or not.
    pub weights: &'a [f32],
    /// The sequences.
    pub batch: &'a Batch,
    /// Training or evaluation.
    pub mode: Mode,
}

/// A teacher's forward pass over the same batch, and its terms in the student's loss ([`crate::ops::distill`]).
#[derive(Debug, Clone, Copy)]
pub struct SoftTargets<'a> {
    /// Every layer's hidden states and probabilities.
    pub teacher: &'a Activations,
    /// Weight of the mean square of each hidden state.
    pub hidden: f64,
    /// Weight of the mean divergence of each layer's attention.
    pub attention: f64,
}

/// The places of dropout in a layer.
#[derive(Debug, Clone, Copy)]
enum Place {
    Probabilities(usize),
    AttentionOutput(usize),
    Output(usize),
    Embedding,
    Head,
    PoolerInput,
    Inner(usize),
}

impl Place {
    fn site(self) -> u32 {
        match self {
            Self::Embedding => 0,
            Self::Head => 1,
            Self::PoolerInput => 2,
            Self::Probabilities(layer) => 4 + 4 * layer as u32,
            Self::AttentionOutput(layer) => 5 + 4 * layer as u32,
            Self::Output(layer) => 6 + 4 * layer as u32,
            Self::Inner(layer) => 7 + 4 * layer as u32,
        }
    }
}

/// An encoder with its head: shapes and places of the weights, but not the weights themselves.
#[derive(Debug, Clone)]
pub struct Bert {
    config: Config,
    layout: Arc<ParameterLayout>,
    spans: Spans,
    outputs: usize,
    /// The β of norms that have none.
    zeros: Vec<f32>,
}

impl Bert {
    /// A model from a configuration and a layout that was made for it.
    pub fn new(config: &Config, layout: Arc<ParameterLayout>) -> Result<Self> {
        let spans = Spans::new(config, &layout)?;
        let outputs = match &spans.head {
            Some(head) => head.outputs,
            None => vector_width(config),
        };
        let zeros = vec![0.0; config.hidden_size.max(config.embedding_size)];
        Ok(Self { config: config.clone(), layout, spans, outputs, zeros })
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The layout of weights and gradients.
    pub fn layout(&self) -> &Arc<ParameterLayout> {
        &self.layout
    }

    /// Where each weight lies.
    pub fn spans(&self) -> &Spans {
        &self.spans
    }

    /// How sequences become vectors, where the model has no head.
    fn sentence_vector<'a>(&self, batch: &'a Batch) -> Option<SentenceVector<'a>> {
        if self.spans.head.is_some() {
            return None;
        }
        let width = self.config.hidden_size;
        match &self.config.embedder {
            Some(own) => SentenceVector::new(own, width, batch),
            None => SentenceVector::new(&Embedder::default(), width, batch),
        }
    }

    /// The number of outputs of the head per row: labels, 2 for spans, or the numbers of a text's vector.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// The heads of a computed layer.
    pub(crate) fn heads(&self, layer: usize) -> Heads {
        activations::heads_of(&self.config, layer)
    }

    /// The pooler, where the model has one.
    fn pooler<'a>(
        &'a self,
        compute: &'a Compute,
        weights: &'a [f32],
        batch: &'a Batch,
        mode: Mode,
    ) -> Option<Pooler<'a>> {
        let (span, settings) = (self.spans.pooler.as_ref()?, self.config.pooler(self.layout.head())?);
        let dropout = self.dropout(batch, mode, Place::PoolerInput);
        let PoolerSettings { activation, reads } = settings;
        let norm = self.spans.pooler_norm.as_ref().map(|span| self.norm_at(weights, span));
        Some(Pooler { compute, linear: linear_at(weights, span), batch, activation, reads, norm, dropout })
    }

    fn dropout(&self, batch: &Batch, mode: Mode, place: Place) -> Option<Dropout> {
        let Mode::Train { seed, step } = mode else { return None };
        let (head, class) = (self.layout.head(), self.layout.head_class());
        let sublayers = self.config.family.sublayer_dropout;
        let rate = match place {
            Place::Probabilities(_) => self.config.attention_dropout,
            Place::AttentionOutput(_) => self.sublayer_rate(sublayers.attention),
            Place::Output(_) => self.sublayer_rate(sublayers.feed_forward),
            Place::Inner(_) => self.config.inner_dropout,
            Place::Embedding => self.config.hidden_dropout,
            Place::PoolerInput if !class.pooler.is_some_and(|pooler| pooler.input_dropout) => 0.0,
            Place::Head | Place::PoolerInput => self.config.head_dropout(head),
        };
        let Config { hidden_size, embedding_size, intermediate_size, .. } = self.config;
        let pooler = self.config.pooler(head);
        let pools_every_token = pooler.is_some_and(|pooler| pooler.reads == SequencePooling::EveryToken);
        let rows_before = |every_token: bool| if every_token { batch.first_token() } else { batch.first_sequence() };
        let first = match place {
            // Attention counts its probabilities itself.
            Place::Probabilities(_) => 0,
            Place::Embedding => batch.first_token() * embedding_size,
            Place::AttentionOutput(_) | Place::Output(_) => batch.first_token() * hidden_size,
            Place::Inner(_) => batch.first_token() * intermediate_size,
            Place::Head => rows_before(class.reads_every_token()) * hidden_size,
            Place::PoolerInput => rows_before(pools_every_token) * hidden_size,
        };
        (rate > 0.0).then(|| Dropout { key: DropoutKey::new(seed, step, place.site()), rate, first })
    }

    fn sublayer_rate(&self, rate: SublayerRate) -> f32 {
        match rate {
            SublayerRate::None => 0.0,
            SublayerRate::Hidden => self.config.hidden_dropout,
            SublayerRate::Attention => self.config.attention_dropout,
        }
    }

    /// Checks that every index in a batch is valid, once, before any kernel runs.
    pub fn check(&self, batch: &Batch) -> Result<()> {
        let problem = |problem: String| Err(Error::Batch { problem });
        let (tokens, segments) = (batch.tokens(), batch.segments.len());
        let whole = batch.offsets.first() == Some(&0) && batch.offsets.last() == Some(&tokens);
        if tokens == 0 || segments != tokens || !whole {
            return problem(format!("a batch of {tokens} tokens, {segments} segments and offsets {:?}", batch.offsets));
        }
        for range in batch.ranges() {
            if range.is_empty() || range.len() > self.config.max_positions {
                let (length, most) = (range.len(), self.config.max_positions);
                return problem(format!("a sequence of {length} tokens; the model takes 1 to {most}"));
            }
        }
        if let Some(id) = batch.input_ids.iter().find(|&&id| id as usize >= self.config.vocab_size) {
            return problem(format!("token id {id}, but the model's vocabulary has {}", self.config.vocab_size));
        }
        let types = self.config.type_vocab_size;
        // Without a table of types there is nothing to look up, as in `transformers`.
        if let Some(segment) = batch.segments.iter().find(|&&s| types > 0 && usize::from(s) >= types) {
            return problem(format!("token type {segment}, but the model has {}", self.config.type_vocab_size));
        }
        self.check_targets(batch)
    }

    fn check_targets(&self, batch: &Batch) -> Result<()> {
        let problem = |problem: String| Err(Error::Batch { problem });
        let head = self.layout.head();
        let (found, expected, needed) = match &batch.targets {
            Targets::None => return Ok(()),
            Targets::Sequences(targets) => (targets.len(), batch.sequences(), Head::SequenceClassification),
            Targets::LabelSets(sets) => (sets.len(), batch.sequences(), Head::SequenceClassification),
            Targets::Values(values) => (values.len(), batch.sequences(), Head::SequenceClassification),
            Targets::Vectors { count, .. } => (*count, batch.sequences(), Head::None),
            Targets::Tokens(targets) => (targets.len(), batch.tokens(), Head::TokenClassification),
            Targets::Spans(targets) => (targets.len(), batch.sequences(), Head::QuestionAnswering),
        };
        if head != needed {
            return problem(format!("targets for {needed:?}, but the model's head is {head:?}"));
        }
        if found != expected {
            return problem(format!("{found} targets, but the batch needs {expected}"));
        }
        let label_outside = |target: &u32| *target as usize >= self.outputs;
        let outside = match &batch.targets {
            Targets::Sequences(targets) => targets.iter().find(|t| label_outside(t)).map(|&t| (t, self.outputs)),
            Targets::Tokens(targets) => targets.iter().flatten().find(|t| label_outside(t)).map(|&t| (t, self.outputs)),
            Targets::Spans(spans) => batch.ranges().zip(spans).find_map(|(range, &(start, end))| {
                [start, end].into_iter().find(|&t| t as usize >= range.len()).map(|t| (t, range.len()))
            }),
            Targets::LabelSets(sets) => sets.iter().flatten().find(|t| label_outside(t)).map(|&t| (t, self.outputs)),
            Targets::Values(values) => {
                if let Some(value) = values.iter().find(|value| !value.is_finite()) {
                    return problem(format!("the value {value} to be learned"));
                }
                if self.outputs != 1 {
                    return problem(format!("a value per sequence, but the model has {} outputs", self.outputs));
                }
                None
            }
            Targets::None | Targets::Vectors { .. } => None,
        };
        match outside {
            Some((target, limit)) => problem(format!("target {target}, but only 0 to {} are possible", limit - 1)),
            None => Ok(()),
        }
    }

    /// What the logits have one row for.
    pub(crate) fn logit_rows(&self) -> Rows {
        let every_token = self.spans.head.is_some() && self.layout.head_class().reads_every_token();
        if every_token { Rows::Tokens } else { Rows::Sequences }
    }

    /// [`Bert::loss`] of the whole batch, where this is a part of one; the gradient is that of the part.
    pub fn loss_of_whole(
        &self,
        compute: &Compute,
        batch: &Batch,
        activations: &Activations,
        scale: f64,
        buffers: &mut BackwardBuffers,
    ) -> Loss {
        let Some(team) = Team::of(compute, batch) else { return self.loss(batch, activations, scale, buffers) };
        buffers.resize(&self.config, batch, activations);
        let mut logits = team.rows(self.logit_rows(), &activations.logits);
        let loss = cross_entropy(&mut logits, batch.whole(), self.outputs, scale);
        buffers.d_logits.copy_from_slice(team.own_part(self.logit_rows(), &logits));
        loss
    }

    /// The loss of the last forward pass; its gradient times `scale` is written to `buffers.d_logits`.
    pub fn loss(&self, batch: &Batch, activations: &Activations, scale: f64, buffers: &mut BackwardBuffers) -> Loss {
        buffers.resize(&self.config, batch, activations);
        buffers.d_logits.copy_from_slice(&activations.logits);
        cross_entropy(&mut buffers.d_logits, batch, self.outputs, scale)
    }
}
