//! The ranks that compute the parts of one batch together, and how they form sums over all of its rows.
//!
//! A sum over the rows of a batch has one order, whoever has the rows: the order of a process alone. So ranks do not add
//! up partial sums, which would be another order. They exchange the rows that a sum is made of:
//!
//! | sum | who forms it | what travels |
//! |---|---|---|
//! | gradient of a matrix, `dYᵀ·X` | each rank some of its rows, or columns if it has more of them | all rows of `X` or `dY`; of the other the columns that a rank needs |
//! | gradients of a LayerNorm, in chunks of 64 rows | who has a chunk's first row | the rows of chunks that two ranks share, and the chunks' sums |
//! | gradients of small matrices and embeddings, the loss | everybody | all rows |
//! | distances that only the log shows, in chunks | as for LayerNorm | the same |
//!
//! So `N` ranks give the same bytes as one. What it costs is in `docs/guide/scale.md`.

use std::ops::Range;

use qbert_kernels::{CHUNK, Compute, LayerNormGradients, MatMut, MatRef, Normalized, ROW_CHUNK, Ranks, Start};
use qbert_tasks::batch::PartOf;

use crate::batch::Batch;
use crate::ops::linear::{self, LinearGradients};
use crate::ops::residual_norm::{self, Saved};

/// What a matrix has one row for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rows {
    /// Every token.
    Tokens,
    /// Every sequence.
    Sequences,
}

/// The ranks that have the parts of a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Team<'a> {
    ranks: &'a dyn Ranks,
    part: &'a PartOf,
}

/// What each rank has of the gradient of a matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Slices {
    /// Everybody all of it.
    All,
    /// Some outputs, which are rows.
    Outputs(Vec<Range<usize>>),
    /// Some inputs, which are columns.
    Inputs(Vec<Range<usize>>),
}

/// A matrix of fewer rows or columns for each rank is not worth being shared.
const FEWEST: usize = 16;

impl Slices {
    /// The longer side is cut, because all of the shorter one travels.
    fn new(outputs: usize, inputs: usize, ranks: usize) -> Self {
        let longer = outputs.max(inputs);
        if outputs.min(inputs) < FEWEST || longer < ranks * FEWEST {
            return Self::All;
        }
        // Whole vectors, which is no condition, only faster.
        let bound = |rank: usize| if rank == ranks { longer } else { longer * rank / ranks / FEWEST * FEWEST };
        let slices = (0..ranks).map(|rank| bound(rank)..bound(rank + 1)).collect();
        if outputs >= inputs { Self::Outputs(slices) } else { Self::Inputs(slices) }
    }
}

impl<'a> Team<'a> {
    /// Those that have the parts of this batch; `None` for a batch of its own.
    pub(crate) fn of(compute: &'a Compute, batch: &'a Batch) -> Option<Self> {
        Self::of_part(compute, batch.part.as_ref())
    }

    /// The same of a batch that is this part of another.
    pub(crate) fn of_part(compute: &'a Compute, part: Option<&'a PartOf>) -> Option<Self> {
        let (ranks, part) = compute.ranks().zip(part)?;
        Some(Self { ranks, part })
    }

    /// The tokens of the whole batch.
    pub(crate) fn tokens(&self) -> usize {
        self.part.whole.tokens()
    }

    /// The first row of each rank, then the number of rows.
    fn starts(&self, rows: Rows) -> Vec<usize> {
        match rows {
            Rows::Tokens => self.part.tokens(),
            Rows::Sequences => self.part.bounds.to_vec(),
        }
    }

    /// All rows of a matrix of which `own` has this rank's.
    pub(crate) fn rows(&self, rows: Rows, own: &[f32]) -> Vec<f32> {
        let starts = self.starts(rows);
        let width = own.len() / (starts[self.part.own + 1] - starts[self.part.own]);
        let counts: Vec<usize> = starts.windows(2).map(|pair| (pair[1] - pair[0]) * width).collect();
        self.gather(own, &counts)
    }

    fn gather(&self, own: &[f32], counts: &[usize]) -> Vec<f32> {
        let mut all = vec![0.0; counts.iter().sum()];
        self.ranks.gather(own, counts, &mut all);
        all
    }

    /// All values of lists, one for each sequence of the batch, of which `own` has this rank's. `length` tells how long the
    /// list of a sequence of so many tokens is.
    pub(crate) fn lists(&self, own: &[f32], length: impl Fn(usize) -> usize) -> Vec<f32> {
        let whole = &self.part.whole;
        let of_rank = |pair: &[usize]| (pair[0]..pair[1]).map(|index| length(whole.sequence(index).len())).sum();
        self.gather(own, &self.part.bounds.windows(2).map(of_rank).collect::<Vec<usize>>())
    }

    /// This rank's part of a matrix with all rows.
    pub(crate) fn own_part<'m>(&self, rows: Rows, whole: &'m [f32]) -> &'m [f32] {
        let starts = self.starts(rows);
        let width = whole.len() / starts.last().copied().unwrap_or(1).max(1);
        &whole[starts[self.part.own] * width..starts[self.part.own + 1] * width]
    }

    /// All rows of some columns: `slices` has each rank's.
    fn columns(&self, rows: Rows, own: &[f32], width: usize, slices: &[Range<usize>]) -> Vec<f32> {
        let starts = self.starts(rows);
        let mine = starts[self.part.own + 1] - starts[self.part.own];
        let mut packed = Vec::with_capacity(own.len());
        for slice in slices {
            own.chunks_exact(width).for_each(|row| packed.extend_from_slice(&row[slice.clone()]));
        }
        let sent: Vec<usize> = slices.iter().map(|slice| slice.len() * mine).collect();
        let wide = slices[self.part.own].len();
        let received: Vec<usize> = starts.windows(2).map(|pair| (pair[1] - pair[0]) * wide).collect();
        let mut all = vec![0.0; received.iter().sum()];
        self.ranks.exchange(&packed, &sent, &received, &mut all);
        all
    }

    /// Adds the gradients of a linear layer over all rows: those that this rank has, or all if the layer is small.
    pub(crate) fn add_linear(
        &self,
        compute: &Compute,
        rows: Rows,
        (x, dy): (&[f32], &[f32]),
        gradients: LinearGradients<'_>,
    ) {
        let (outputs, own) = (gradients.outputs, self.part.own);
        let inputs = gradients.weight.len() / outputs;
        let compute = &linear::compute_for(compute, outputs);
        match Slices::new(outputs, inputs, self.ranks.size()) {
            Slices::All => {
                linear::add_gradients(compute, &self.rows(rows, x), &self.rows(rows, dy), gradients);
            }
            Slices::Outputs(slices) => {
                let (x, dy) = (self.rows(rows, x), self.columns(rows, dy, outputs, &slices));
                linear::add_gradients(compute, &x, &dy, gradients.rows(slices[own].clone()));
            }
            Slices::Inputs(slices) => {
                let (x, dy) = (self.columns(rows, x, inputs, &slices), self.rows(rows, dy));
                let (slice, count) = (slices[own].clone(), dy.len() / outputs);
                let (x, dy) = (MatRef::new(&x, count, slice.len()), MatRef::new(&dy, count, outputs));
                let mut weight = MatMut::new(gradients.weight, outputs, inputs);
                compute.gemm_tn(dy, x, Start::ACCUMULATE, weight.block(0..outputs, slice));
                if !gradients.bias.is_empty() {
                    compute.add_column_sums(dy, gradients.bias);
                }
            }
        }
    }

    /// The gradient of this rank's sums under a norm, and those of γ and β over all rows.
    pub(crate) fn norm_backward(
        &self,
        compute: &Compute,
        rows: Rows,
        (gamma, saved): (&[f32], &Saved),
        (dy, d_sum): (&[f32], &mut [f32]),
        gradients: LayerNormGradients<'_>,
    ) {
        let width = gamma.len();
        let chunks = Chunks::new(self.starts(rows), ROW_CHUNK, self.part.own);
        let at = |rows: Range<usize>| {
            let elements = rows.start * width..rows.end * width;
            let sum = &saved.sum[elements.clone()];
            let own = Normalized { sum, mean: &saved.mean[rows.clone()], rstd: &saved.rstd[rows] };
            (own, elements)
        };
        let sums_of = |rows: usize| vec![0.0; rows.div_ceil(ROW_CHUNK) * 2 * width];
        let mut run = |rows: Range<usize>| {
            let ((own, elements), mut sums) = (at(rows.clone()), sums_of(rows.len()));
            compute.layer_norm_backward_sums(gamma, own, &dy[elements.clone()], &mut d_sum[elements], &mut sums);
            sums
        };
        run(chunks.head());
        let mut sums = run(chunks.head().end..chunks.len());
        // A row on its way: the sum, the gradient, mean and deviation.
        let mut head = Vec::new();
        for row in chunks.head() {
            let (own, elements) = at(row..row + 1);
            head.extend_from_slice(own.sum);
            head.extend_from_slice(&dy[elements]);
            head.extend_from_slice(&[own.mean[0], own.rstd[0]]);
        }
        let rest = chunks.complete(self.ranks, 2 * width + 2, &head);
        if !rest.is_empty() {
            let (own, elements) = at(chunks.tail());
            let (mut sum, mut d_out) = (own.sum.to_vec(), dy[elements].to_vec());
            let (mut mean, mut rstd) = (own.mean.to_vec(), own.rstd.to_vec());
            for row in rest.chunks_exact(2 * width + 2) {
                sum.extend_from_slice(&row[..width]);
                d_out.extend_from_slice(&row[width..2 * width]);
                mean.push(row[2 * width]);
                rstd.push(row[2 * width + 1]);
            }
            let start = sums.len() - 2 * width;
            let (own, mut unwanted) = (Normalized { sum: &sum, mean: &mean, rstd: &rstd }, vec![0.0; sum.len()]);
            compute.layer_norm_backward_sums(gamma, own, &d_out, &mut unwanted, &mut sums[start..]);
        }
        let counts: Vec<usize> = chunks.chunks_of_ranks().map(|count| count * 2 * width).collect();
        let all = self.gather(&sums, &counts);
        residual_norm::with_beta(gradients, |gradients| compute.add_layer_norm_sums(&all, gradients));
    }

    /// The sum over two arrays of the whole batch of which this rank has `a` and `b`, formed in chunks. `starts` has the
    /// first element of each rank, then the number of elements.
    pub(crate) fn sum_of_pairs(
        &self,
        starts: Vec<usize>,
        (a, b): (&[f32], &[f32]),
        sums: impl Fn(&[f32], &[f32]) -> Vec<f64>,
    ) -> f64 {
        let chunks = Chunks::new(starts, CHUNK, self.part.own);
        let from = chunks.head().end;
        let mut own = sums(&a[from..], &b[from..]);
        let head: Vec<f32> = chunks.head().flat_map(|index| [a[index], b[index]]).collect();
        let rest = chunks.complete(self.ranks, 2, &head);
        if !rest.is_empty() {
            let tail = chunks.tail();
            let side = |own: &[f32], which: usize| -> Vec<f32> {
                own[tail.clone()].iter().copied().chain(rest.chunks_exact(2).map(|pair| pair[which])).collect()
            };
            own.pop();
            own.extend(sums(&side(a, 0), &side(b, 1)));
        }
        self.numbers(&own).iter().flatten().sum()
    }

    /// The first element of each rank of an array with `width` elements for each token.
    pub(crate) fn starts_of_tokens(&self, width: usize) -> Vec<usize> {
        self.starts(Rows::Tokens).iter().map(|start| start * width).collect()
    }

    /// The same of an array with so many elements for a sequence of a length.
    pub(crate) fn starts_of_sequences(&self, elements: impl Fn(usize) -> usize) -> Vec<usize> {
        let ends = self.part.whole.ranges().scan(0, |end, range| {
            *end += elements(range.len());
            Some(*end)
        });
        let ends: Vec<usize> = std::iter::once(0).chain(ends).collect();
        self.part.bounds.iter().map(|&bound| ends[bound]).collect()
    }

    /// Everybody's numbers.
    pub(crate) fn numbers(&self, own: &[f64]) -> Vec<Vec<f64>> {
        numbers(self.ranks, own)
    }

    /// All rows of which this rank has some: row `index` of the whole batch is taken if `taken` says so.
    pub(crate) fn taken_rows<'m>(
        &self,
        own: impl Fn(usize) -> &'m [f32],
        width: usize,
        taken: impl Fn(usize) -> bool,
    ) -> Vec<f32> {
        let starts = self.starts(Rows::Tokens);
        let mut values = Vec::new();
        for index in (starts[self.part.own]..starts[self.part.own + 1]).filter(|&index| taken(index)) {
            values.extend_from_slice(own(index - starts[self.part.own]));
        }
        let count = |pair: &[usize]| (pair[0]..pair[1]).filter(|&index| taken(index)).count() * width;
        self.gather(&values, &starts.windows(2).map(count).collect::<Vec<usize>>())
    }
}

/// Everybody's numbers.
pub(crate) fn numbers(ranks: &dyn Ranks, own: &[f64]) -> Vec<Vec<f64>> {
    let bytes: Vec<u8> = own.iter().flat_map(|number| number.to_le_bytes()).collect();
    let read = |bytes: Vec<u8>| bytes.as_chunks::<8>().0.iter().map(|number| f64::from_le_bytes(*number)).collect();
    ranks.gather_bytes(&bytes).into_iter().map(read).collect()
}

/// Rows (or elements) that are summed in chunks of a fixed number, counted over the whole batch, of which each rank has
/// some. A chunk belongs to the rank that has its first row.
#[derive(Debug)]
struct Chunks {
    starts: Vec<usize>,
    chunk: usize,
    own: usize,
}

impl Chunks {
    fn new(starts: Vec<usize>, chunk: usize, own: usize) -> Self {
        Self { starts, chunk, own }
    }

    /// This rank's rows.
    fn len(&self) -> usize {
        self.starts[self.own + 1] - self.starts[self.own]
    }

    /// Of this rank's rows, those of a chunk that belongs to an earlier rank.
    fn head(&self) -> Range<usize> {
        self.head_of(self.own)
    }

    fn head_of(&self, rank: usize) -> Range<usize> {
        let (start, end) = (self.starts[rank], self.starts[rank + 1]);
        0..start.next_multiple_of(self.chunk).min(end) - start
    }

    /// Of this rank's rows, those of its last chunk if that is not complete.
    fn tail(&self) -> Range<usize> {
        let (start, end) = (self.starts[self.own], self.starts[self.own + 1]);
        (end / self.chunk * self.chunk).max(start + self.head().end) - start..end - start
    }

    /// The chunks that belong to each rank.
    fn chunks_of_ranks(&self) -> impl Iterator<Item = usize> {
        let chunk = self.chunk;
        self.starts.windows(2).map(move |pair| pair[1].div_ceil(chunk) - pair[0].div_ceil(chunk))
    }

    /// The rank that a rank's head belongs to.
    fn owner(&self, rank: usize) -> usize {
        let first = self.starts[rank] / self.chunk * self.chunk;
        self.starts.partition_point(|&start| start <= first) - 1
    }

    /// Sends the head's rows, `width` values each, where they belong, and returns those that complete the tail.
    fn complete(&self, ranks: &dyn Ranks, width: usize, head: &[f32]) -> Vec<f32> {
        let size = self.starts.len() - 1;
        let (mut sent, mut received) = (vec![0; size], vec![0; size]);
        for (rank, received) in received.iter_mut().enumerate() {
            let count = self.head_of(rank).len() * width;
            if count == 0 {
                continue;
            }
            let owner = self.owner(rank);
            if rank == self.own {
                sent[owner] = count;
            }
            if owner == self.own {
                *received = count;
            }
        }
        let mut rest = vec![0.0; received.iter().sum()];
        ranks.exchange(head, &sent, &received, &mut rest);
        rest
    }
}

/// Gives everybody the gradients of the linear layers that each rank has some outputs of. Each is given by the places of
/// weight and bias and the number of outputs.
pub(crate) fn share_gradients(
    ranks: &dyn Ranks,
    layers: &[(Range<usize>, Range<usize>, usize)],
    gradients: &mut [f32],
) {
    let (size, own) = (ranks.size(), ranks.rank());
    let (mut biases, mut counts, mut places) = (Vec::new(), vec![0; size], Vec::new());
    for (weight, bias, outputs) in layers {
        let inputs = weight.len() / outputs;
        let target = &mut gradients[weight.clone()];
        let counts_of = |slices: &[Range<usize>], other: usize| -> Vec<usize> {
            slices.iter().map(|slice| slice.len() * other).collect()
        };
        let slices = match Slices::new(*outputs, inputs, size) {
            Slices::All => continue,
            Slices::Inputs(slices) => {
                let part: Vec<f32> =
                    target.chunks_exact(inputs).flat_map(|row| &row[slices[own].clone()]).copied().collect();
                let mut all = vec![0.0; target.len()];
                ranks.gather(&part, &counts_of(&slices, *outputs), &mut all);
                let mut rest = &all[..];
                for slice in slices {
                    let (part, after) = rest.split_at(slice.len() * outputs);
                    for (row, values) in target.chunks_exact_mut(inputs).zip(part.chunks_exact(slice.len())) {
                        row[slice.clone()].copy_from_slice(values);
                    }
                    rest = after;
                }
                // Everybody has the whole bias.
                continue;
            }
            Slices::Outputs(slices) => slices,
        };
        let part = target[slices[own].start * inputs..slices[own].end * inputs].to_vec();
        ranks.gather(&part, &counts_of(&slices, inputs), target);
        if !bias.is_empty() {
            biases.extend_from_slice(&gradients[bias.start + slices[own].start..bias.start + slices[own].end]);
            counts.iter_mut().zip(&slices).for_each(|(count, slice)| *count += slice.len());
            places.push((bias.start, slices));
        }
    }
    // Biases are short: all of them travel together.
    let mut all = vec![0.0; counts.iter().sum()];
    ranks.gather(&biases, &counts, &mut all);
    let mut rest = &all[..];
    for rank in 0..size {
        for (start, slices) in &places {
            let (own, after) = rest.split_at(slices[rank].len());
            gradients[start + slices[rank].start..start + slices[rank].end].copy_from_slice(own);
            rest = after;
        }
    }
}

/// Adds the gradients of a linear layer over all rows of the batch, whoever has them.
pub(crate) fn add_linear(
    compute: &Compute,
    batch: &Batch,
    rows: Rows,
    (x, dy): (&[f32], &[f32]),
    gradients: LinearGradients<'_>,
) {
    match Team::of(compute, batch) {
        None => linear::backward_parameters(compute, x, dy, gradients),
        Some(team) => team.add_linear(compute, rows, (x, dy), gradients),
    }
}

/// [`residual_norm::backward`] with the gradients of γ and β over all rows of the batch, whoever has them.
pub(crate) fn norm_backward(
    compute: &Compute,
    batch: &Batch,
    rows: Rows,
    (gamma, saved): (&[f32], &Saved),
    (dy, d_sum): (&[f32], &mut [f32]),
    gradients: LayerNormGradients<'_>,
) {
    match Team::of(compute, batch) {
        None => residual_norm::backward(compute, gamma, saved, dy, d_sum, gradients),
        Some(team) => team.norm_backward(compute, rows, (gamma, saved), (dy, d_sum), gradients),
    }
}
