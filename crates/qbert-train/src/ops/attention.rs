//! The attention core: `softmax(Q·Kᵀ/√D)·V`, for every sequence and head; some families add a bias to the scores.
//!
//! Queries, keys and values lie side by side in one `[T, 3H]` matrix; head `h` has columns `h·D..(h+1)·D` of each third.
//! Each sequence is one task and touches only its own rows. Probabilities before dropout are kept for the
//! backward pass: `N·n²` per sequence, head after head.
//!
//! Sequences longer than [`LONGEST_KEPT`], and those that a [`Window`] does not cover, are cut into tiles, and their
//! probabilities are computed again where they are needed: memory then grows with the length, and with a window
//! time does so too.
//!
//! Where queries, keys and values are quantized ([`Treatment::quantized`]), the forward pass computes as integer inference
//! does: both products sum whole numbers of steps, and the step sizes are multiplied in once, where the runtime does it.
//! Such sums are exact in f32 below 2^24, whatever their order. Those of the scores are at most `255²·D`, so they are
//! exact for heads up to 258 wide; those of the context always are.
//!
//! The paper writes `√d` for the model's width in the denominator; BERT divides by `√D`, the width of a head.

mod tangent;
mod tiled;

use qbert_kernels::{BiasRows, Compute, DistanceBias, Kernels, MatMut, MatRef, Start, Window};
use qbert_model::family::RelativeBias;
use qbert_quant::ActivationParams;

pub use tangent::{BackwardTangent, ForwardTangent, backward_tangent, forward_tangent};
pub use tiled::{Side, divergences};

use super::Dropout;
use super::embedding::split_by_sequence;
use crate::batch::Batch;
use crate::team::Team;

/// The longest sequence whose probabilities are kept; the longest of BERT.
pub const LONGEST_KEPT: usize = 512;

/// Heads, their width, and how far they see.
#[derive(Debug, Clone, Copy)]
pub struct Heads {
    /// `N`
    pub count: usize,
    /// `D`
    pub width: usize,
    /// What a token sees; `None` for all of its sequence.
    pub window: Option<Window>,
}

impl Heads {
    fn hidden(self) -> usize {
        self.count * self.width
    }

    fn scale(self) -> f32 {
        1.0 / (self.width as f32).sqrt()
    }

    /// Whether the probabilities of a sequence are kept.
    fn keeps(self, length: usize) -> bool {
        length <= LONGEST_KEPT && self.window.is_none_or(|window| window.covers(length))
    }

    /// Whether those of every sequence of a batch are.
    pub fn keeps_all(self, batch: &Batch) -> bool {
        batch.ranges().all(|range| self.keeps(range.len()))
    }

    /// Elements of one head's probabilities of a sequence; 0 where they are not kept.
    fn square(self, length: usize) -> usize {
        if self.keeps(length) { length * length } else { 0 }
    }

    /// Elements of the probabilities of a whole batch.
    pub fn probabilities(self, batch: &Batch) -> usize {
        batch.ranges().map(|range| self.count * self.square(range.len())).sum()
    }

    /// Elements of the scratch memory of a whole batch: one head's probabilities per sequence.
    pub fn scratch(self, batch: &Batch) -> usize {
        batch.ranges().map(|range| self.square(range.len())).sum()
    }

    /// What each sequence has of the probabilities: where its own begin in memory, and where dropout counts them from,
    /// kept or not.
    fn places(self, batch: &Batch) -> impl Iterator<Item = Place> {
        let earlier = batch.whole().ranges().take(batch.first_sequence());
        let (mut start, mut counted) = (0, earlier.map(|range| self.count * range.len() * range.len()).sum());
        batch.ranges().map(move |range| {
            let place = Place { start, counted, square: self.square(range.len()) };
            start += self.count * place.square;
            counted += self.count * range.len() * range.len();
            place
        })
    }

    /// Query, key and value of one head, as columns of a sequence's rows.
    fn parts<'a>(self, rows: &'a [f32], head: usize) -> [MatRef<'a>; 3] {
        let hidden = self.hidden();
        let whole = MatRef::new(rows, rows.len() / (3 * hidden), 3 * hidden);
        std::array::from_fn(|part| {
            let start = part * hidden + head * self.width;
            whole.block(0..whole.rows(), start..start + self.width)
        })
    }
}

/// Where the probabilities of a sequence are.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// The first element in memory.
    start: usize,
    /// The number of that element for dropout's masks.
    counted: usize,
    /// Elements of one head; 0 where they are not kept.
    square: usize,
}

/// What is done to attention's inputs and probabilities: quantization, then dropout, and distillation.
#[derive(Debug, Clone, Copy, Default)]
pub struct Treatment<'a> {
    /// Dropout of the probabilities.
    pub dropout: Option<Dropout>,
    /// How query, key and value were quantized, where they were. The forward pass is then given them in steps
    /// ([`super::quantize::steps_in_place`]), the backward pass as values; and probabilities are rounded to 8 bits
    /// ([`ActivationParams::PROBABILITIES`]). All of them lie in the range, so the straight-through gradient of this is 1
    /// everywhere.
    pub quantized: Option<[ActivationParams; 3]>,
    /// A teacher's attention to the same batch ([`super::distill`]); only the backward pass uses it.
    pub teacher: Option<Teacher<'a>>,
    /// What is added to the scaled scores.
    pub bias: Option<&'a DistanceBias>,
}

/// A teacher's attention, and the weight of each row's divergence from it in the loss.
#[derive(Debug, Clone, Copy)]
pub struct Teacher<'a> {
    /// Its query, key and value, in full precision.
    pub qkv: &'a [f32],
    /// Its probabilities.
    pub probabilities: &'a [f32],
    /// The weight of each row.
    pub weight: f32,
}

/// One sequence's share of a forward pass.
struct ForwardTask<'a> {
    /// Query, key and value.
    rows: &'a [f32],
    probabilities: &'a mut [f32],
    scratch: &'a mut [f32],
    context: &'a mut [f32],
    /// The number of the first probability for dropout's masks.
    counted: usize,
}

/// From `qkv` `[T, 3H]` to `context` `[T, H]`, keeping the probabilities; `scratch` is [`Heads::scratch`] long.
pub fn forward(
    compute: &Compute,
    heads: Heads,
    batch: &Batch,
    dropout: Option<Dropout>,
    qkv: &[f32],
    buffers: ForwardBuffers<'_>,
) {
    forward_with(compute, heads, batch, Treatment { dropout, ..Treatment::default() }, qkv, buffers);
}

/// [`forward`] in steps where the treatment says so. Probabilities are kept as the softmax left them.
pub fn forward_with(
    compute: &Compute,
    heads: Heads,
    batch: &Batch,
    treatment: Treatment<'_>,
    qkv: &[f32],
    buffers: ForwardBuffers<'_>,
) {
    let hidden = heads.hidden();
    let contexts = split_by_sequence(buffers.context, batch, hidden);
    let mut rest = (buffers.probabilities, buffers.scratch);
    let mut tasks = Vec::with_capacity(contexts.len());
    for ((range, context), place) in batch.ranges().zip(contexts).zip(heads.places(batch)) {
        let rows = &qkv[range.start * 3 * hidden..range.end * 3 * hidden];
        if place.square == 0 {
            tiled::forward(compute, heads, treatment, rows, place.counted, context);
            continue;
        }
        let (probabilities, later) = rest.0.split_at_mut(heads.count * place.square);
        let (scratch, later_scratch) = rest.1.split_at_mut(place.square);
        rest = (later, later_scratch);
        tasks.push(ForwardTask { rows, probabilities, scratch, context, counted: place.counted });
    }
    let kernels = compute.kernels();
    compute.threads().for_each_item(&mut tasks, |_, task| forward_sequence(kernels, heads, treatment, task));
}

/// What a forward pass writes.
#[derive(Debug)]
pub struct ForwardBuffers<'a> {
    /// Kept for the backward pass: [`Heads::probabilities`] elements.
    pub probabilities: &'a mut [f32],
    /// Nothing of it is kept.
    pub scratch: &'a mut [f32],
    /// The result `[T, H]`.
    pub context: &'a mut [f32],
}

fn forward_sequence(kernels: Kernels, heads: Heads, treatment: Treatment<'_>, task: &mut ForwardTask<'_>) {
    let hidden = heads.hidden();
    let length = task.context.len() / hidden;
    let square = length * length;
    let mut context = MatMut::new(task.context, length, hidden);
    for (head, probabilities) in task.probabilities.chunks_exact_mut(square).enumerate() {
        let [query, key, value] = heads.parts(task.rows, head);
        kernels.gemm_nt(query, key, Start::ZERO, MatMut::new(probabilities, length, length));
        let scale = treatment.score_scale(heads);
        match treatment.bias {
            None => kernels.softmax(probabilities, length, scale),
            Some(bias) => kernels.softmax_biased(probabilities, length, scale, BiasRows { bias, head, first: 0 }),
        }
        let offset = task.counted + head * square;
        let kept = treatment.apply(kernels, probabilities, &mut *task.scratch, offset, |values| {
            for value in values {
                *value = ActivationParams::PROBABILITIES.steps(*value);
            }
        });
        let columns = head * heads.width..(head + 1) * heads.width;
        kernels.gemm_nn(MatRef::new(kept, length, length), value, Start::ZERO, context.block(0..length, columns));
    }
    if let Some([_, _, value]) = treatment.quantized {
        kernels.scale(value.step() / 255.0, task.context);
    }
}

impl Treatment<'_> {
    /// What scores are multiplied by. Steps may be as small or large as floats go; their product stays a number.
    fn score_scale(self, heads: Heads) -> f32 {
        match self.quantized {
            None => heads.scale(),
            Some([query, key, _]) => {
                (query.step() * key.step() / (heads.width as f32).sqrt()).clamp(f32::MIN_POSITIVE, f32::MAX)
            }
        }
    }

    /// The treated probabilities: themselves, or a copy in `scratch`, which begins at `offset` of the whole and is
    /// quantized by `quantize` where anything is.
    fn apply<'a>(
        self,
        kernels: Kernels,
        probabilities: &'a [f32],
        scratch: &'a mut [f32],
        offset: usize,
        quantize: impl Fn(&mut [f32]),
    ) -> &'a [f32] {
        if self.dropout.is_none() && self.quantized.is_none() {
            return probabilities;
        }
        scratch.copy_from_slice(probabilities);
        if self.quantized.is_some() {
            quantize(scratch);
        }
        if let Some(dropout) = self.dropout {
            dropout.apply_part(kernels, scratch, offset);
        }
        scratch
    }
}

/// What a backward pass needs again, and writes.
#[derive(Debug)]
pub struct BackwardBuffers<'a> {
    /// What the forward pass was given `[T, 3H]`.
    pub qkv: &'a [f32],
    /// As the forward pass left them.
    pub probabilities: &'a [f32],
    /// Gradient of the context `[T, H]`.
    pub d_context: &'a [f32],
    /// Two heads' worth of scratch: twice [`Heads::scratch`] elements.
    pub scratch: &'a mut [f32],
    /// Gradient of `qkv` `[T, 3H]`, overwritten.
    pub d_qkv: &'a mut [f32],
    /// Where the gradient of the bias is added, if there is one and it is wanted.
    pub d_bias: Option<BiasGradient<'a>>,
}

/// The gradient of a relative bias.
#[derive(Debug)]
pub struct BiasGradient<'a> {
    /// Which bucket a distance belongs to.
    pub bias: RelativeBias,
    /// `[buckets, N]`
    pub table: &'a mut [f32],
}

impl BiasGradient<'_> {
    /// Adds the sums over one sequence's diagonals: per head, from the key farthest before its query to the one
    /// farthest after it.
    fn add(&mut self, heads: Heads, diagonals: &[f32]) {
        let per_head = diagonals.len() / heads.count;
        let ahead = (per_head / 2).cast_signed();
        for (head, sums) in diagonals.chunks_exact(per_head).enumerate() {
            for (distance, sum) in (-ahead..=ahead).zip(sums) {
                self.table[self.bias.bucket(distance) * heads.count + head] += sum;
            }
        }
    }
}

/// One sequence's share of a backward pass.
struct BackwardTask<'a> {
    /// Query, key and value.
    rows: &'a [f32],
    d_context: MatRef<'a>,
    probabilities: &'a [f32],
    /// The teacher's.
    teacher: Option<(&'a [f32], f32)>,
    /// The number of the first one for dropout's masks.
    counted: usize,
    scratch: &'a mut [f32],
    d_rows: &'a mut [f32],
    /// Sums of the scores' gradients over diagonals `[N, 2n - 1]`; empty without a bias.
    d_diagonals: Vec<f32>,
    /// The number of the sequence.
    index: usize,
}

/// From the gradient of the context to that of `qkv`.
pub fn backward(
    compute: &Compute,
    heads: Heads,
    batch: &Batch,
    dropout: Option<Dropout>,
    buffers: BackwardBuffers<'_>,
) {
    backward_with(compute, heads, batch, Treatment { dropout, ..Treatment::default() }, buffers);
}

/// The same after [`forward_with`].
pub fn backward_with(
    compute: &Compute,
    heads: Heads,
    batch: &Batch,
    treatment: Treatment<'_>,
    buffers: BackwardBuffers<'_>,
) {
    let hidden = heads.hidden();
    let BackwardBuffers { qkv, probabilities, d_context, scratch, d_qkv, d_bias } = buffers;
    let rows_of_gradient = split_by_sequence(d_qkv, batch, 3 * hidden);
    let mut rest = scratch;
    let mut tasks = Vec::with_capacity(rows_of_gradient.len());
    // The sums over diagonals, sequence after sequence, where they are wanted.
    let mut diagonals = vec![Vec::new(); if d_bias.is_some() { batch.sequences() } else { 0 }];
    for (index, ((range, d_rows), place)) in batch.ranges().zip(rows_of_gradient).zip(heads.places(batch)).enumerate() {
        let length = range.len();
        let of_rows = |matrix| rows_of(matrix, &range, 3 * hidden);
        let mut d_diagonals = vec![0.0; if d_bias.is_some() { heads.count * (2 * length - 1) } else { 0 }];
        let d_context = MatRef::new(&d_context[range.start * hidden..range.end * hidden], length, hidden);
        if place.square == 0 {
            let given = tiled::Given {
                rows: of_rows(qkv),
                d_context,
                teacher: treatment.teacher.map(|teacher| (of_rows(teacher.qkv), teacher.weight)),
                counted: place.counted,
            };
            tiled::backward(compute, heads, treatment, given, d_rows, &mut d_diagonals);
            if d_bias.is_some() {
                diagonals[index] = d_diagonals;
            }
            continue;
        }
        let (scratch, later) = rest.split_at_mut(2 * place.square);
        rest = later;
        let own = place.start..place.start + heads.count * place.square;
        tasks.push(BackwardTask {
            rows: of_rows(qkv),
            d_context,
            counted: place.counted,
            teacher: treatment.teacher.map(|teacher| (&teacher.probabilities[own.clone()], teacher.weight)),
            probabilities: &probabilities[own],
            scratch,
            d_rows,
            d_diagonals,
            index,
        });
    }
    let kernels = compute.kernels();
    compute.threads().for_each_item(&mut tasks, |_, task| backward_sequence(kernels, heads, treatment, task));
    if let Some(mut d_bias) = d_bias {
        tasks.into_iter().for_each(|task| diagonals[task.index] = task.d_diagonals);
        let sums = |length: usize| heads.count * (2 * length - 1);
        let all = match Team::of(compute, batch) {
            None => diagonals.concat(),
            Some(team) => team.lists(&diagonals.concat(), sums),
        };
        // One after the other, so that the sum does not depend on the threads; first those that are computed in tiles.
        for tiled in [true, false] {
            let mut rest = &all[..];
            for length in batch.whole().ranges().map(|range| range.len()) {
                let (own, after) = rest.split_at(sums(length));
                rest = after;
                if (heads.square(length) == 0) == tiled {
                    d_bias.add(heads, own);
                }
            }
        }
    }
}

/// The rows of a sequence.
fn rows_of<'a>(matrix: &'a [f32], range: &std::ops::Range<usize>, width: usize) -> &'a [f32] {
    &matrix[range.start * width..range.end * width]
}

/// With `P` the probabilities, `M` the dropout mask, `C = (P∘M)·V`:
/// (`Q(P)∘M` in the place of `P∘M` where probabilities are quantized),
/// `dV = (P∘M)ᵀ·dC`, `dP = M∘(dC·Vᵀ)`, `dS = scale·P∘(dP − Σ P·dP)`, `dQ = dS·K`, `dK = dSᵀ·Q`.
fn backward_sequence(kernels: Kernels, heads: Heads, treatment: Treatment<'_>, task: &mut BackwardTask<'_>) {
    let BackwardTask { rows, d_context, probabilities, teacher, counted, .. } = *task;
    let (hidden, length) = (heads.hidden(), d_context.rows());
    let square = length * length;
    let (masked, d_scores) = task.scratch.split_at_mut(square);
    let mut d_rows = MatMut::new(task.d_rows, length, 3 * hidden);
    for head in 0..heads.count {
        let [query, key, value] = heads.parts(rows, head);
        let offset = counted + head * square;
        let own = &probabilities[head * square..(head + 1) * square];
        let columns = head * heads.width..(head + 1) * heads.width;
        let part = |third: usize| third * hidden + columns.start..third * hidden + columns.end;
        let d_context = d_context.block(0..length, columns.clone());
        let quantize = |values: &mut [f32]| ActivationParams::PROBABILITIES.fake_quantize(values);
        let kept = treatment.apply(kernels, own, &mut *masked, offset, quantize);
        kernels.gemm_tn(MatRef::new(kept, length, length), d_context, Start::ZERO, d_rows.block(0..length, part(2)));
        kernels.gemm_nt(d_context, value, Start::ZERO, MatMut::new(d_scores, length, length));
        if let Some(dropout) = treatment.dropout {
            dropout.apply_part(kernels, d_scores, offset);
        }
        // The bias is added after the scale, so its gradient is that of the scaled scores.
        let by_diagonals = !task.d_diagonals.is_empty();
        let scale = if by_diagonals { 1.0 } else { heads.scale() };
        kernels.softmax_backward(own, d_scores, length, scale);
        if let Some((teacher, weight)) = teacher {
            let pairs = own.iter().zip(&teacher[head * square..(head + 1) * square]);
            for (d, (s, t)) in d_scores.iter_mut().zip(pairs) {
                *d += weight * scale * (s - t);
            }
        }
        if by_diagonals {
            let diagonals = &mut task.d_diagonals[head * (2 * length - 1)..(head + 1) * (2 * length - 1)];
            for (query, row) in d_scores.chunks_exact(length).enumerate() {
                kernels.add_scaled(1.0, row, &mut diagonals[length - 1 - query..][..length]);
            }
            kernels.scale(heads.scale(), d_scores);
        }
        let d_scores = MatRef::new(d_scores, length, length);
        kernels.gemm_nn(d_scores, key, Start::ZERO, d_rows.block(0..length, part(0)));
        kernels.gemm_tn(d_scores, query, Start::ZERO, d_rows.block(0..length, part(1)));
    }
}
