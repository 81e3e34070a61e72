//! Linear layers on codes: packed weights are widened panel by panel, once for many tokens.
//!
//! Work is cut into row blocks × runs of panels. A task widens a panel of 32 neurons into its own scratch (eight-bit
//! codes need none and are read in place), multiplies all its rows with it, tile by tile, and finishes each tile while
//! its sums are in the first-level cache. With few tokens the panels are shared out between threads, with many the rows.
//! Sums are exact and every output element is finished alone, so no split changes a bit of the result.

use super::codes::{Codes, Quantizer, row_sum};
use super::epilogue::{Finish, Target};
use super::layout::{BLOCK_CELLS, CELL, PackedWeights, TILE_NEURONS};
use super::params::LinearParams;
use super::tile::{MAX_ROWS, Multiplier, PANEL, Tile};
use crate::compute::Compute;
use crate::gemm::MatMut;
use crate::simd::{Kernel, Simd};
use std::ops::Range;

/// Rows of a task when there are many: few enough that their codes stay in the second-level cache, many enough that
/// widening a panel costs nothing beside multiplying with it.
const ROW_BLOCK: usize = 192;
/// Tasks per thread that are aimed at, so that no thread waits long for another.
const TASKS_PER_THREAD: usize = 4;

/// The codes that go into a linear layer, and how they were made.
#[derive(Clone, Copy, Debug)]
pub struct LinearInput<'a> {
    /// `[tokens, inputs]`
    pub codes: &'a Codes,
    /// Their quantizer.
    pub quantizer: Quantizer,
}

/// What becomes of a linear layer's results `y`, `[tokens, neurons]`.
#[derive(Debug)]
pub enum LinearOutput<'a> {
    /// The exact integers `Σ (A - z)·W`, row-major: for tests and for arithmetic of one's own.
    Sums(&'a mut [i32]),
    /// `y` itself.
    Float(MatMut<'a>),
    /// `y` is added to what is there.
    Add(MatMut<'a>),
    /// `y` quantized.
    Codes(&'a mut Codes, Quantizer),
    /// `gelu(y)` quantized.
    Gelu(&'a mut Codes, Quantizer),
}

/// One linear layer: weights, numbers per neuron, and where the result goes.
#[derive(Debug)]
pub struct LinearLayer<'a> {
    /// Codes `[neurons, inputs]`.
    pub weights: PackedWeights<'a>,
    /// One step, offset, code sum and bias per neuron.
    pub params: &'a LinearParams,
    /// Where `y` goes. Codes must have been [resized](Codes::resize) to the number of tokens.
    pub output: LinearOutput<'a>,
}

impl Compute {
    /// Runs linear layers that share their input, as query, key and value do, over all threads.
    ///
    /// # Panics
    /// When shapes do not fit together.
    pub fn linear<const N: usize>(&self, input: LinearInput<'_>, layers: [LinearLayer<'_>; N]) {
        let plans = layers.map(|layer| {
            let target = target(layer.output, input.codes.rows(), layer.weights.neurons());
            Plan::new(self, input, (layer.weights, layer.params), target)
        });
        let plans = &plans;
        let tasks = plans.iter().map(Plan::tasks).sum();
        self.threads().for_each(tasks, |task| {
            let mut task = task;
            for plan in plans {
                if task < plan.tasks() {
                    return plan.run(self, task);
                }
                task -= plan.tasks();
            }
        });
    }
}

/// One layer, checked, and how it is cut into tasks.
pub(super) struct Plan<'a> {
    input: LinearInput<'a>,
    weights: PackedWeights<'a>,
    params: &'a LinearParams,
    target: Target,
    multiplier: Multiplier,
    row_blocks: usize,
    /// Runs of panels that the neurons are cut into.
    runs: usize,
}

// SAFETY: the target's address is the only thing that is not Sync by itself; tasks write disjoint parts of it.
unsafe impl Sync for Plan<'_> {}

impl<'a> Plan<'a> {
    /// The target must have as many rows as the input and as many columns as there are neurons, and be nobody else's
    /// while tasks run.
    pub(super) fn new(
        compute: &Compute,
        input: LinearInput<'a>,
        (weights, params): (PackedWeights<'a>, &'a LinearParams),
        target: Target,
    ) -> Self {
        let (rows, inputs, neurons) = (input.codes.rows(), weights.inputs(), weights.neurons());
        assert!(input.codes.cols() == inputs, "{} codes a token for {inputs} inputs", input.codes.cols());
        assert!(params.neurons() == neurons, "numbers of {} neurons for {neurons}", params.neurons());
        let row_blocks = rows.div_ceil(ROW_BLOCK);
        let panels = neurons.div_ceil(PANEL);
        let wanted = if compute.threads().count() == 1 { 1 } else { TASKS_PER_THREAD * compute.threads().count() };
        let runs = wanted.div_ceil(row_blocks.max(1)).clamp(1, panels);
        let multiplier = Multiplier::of(compute.kernels());
        Self { input, weights, params, target, multiplier, row_blocks, runs }
    }

    pub(super) fn tasks(&self) -> usize {
        self.row_blocks * self.runs
    }

    /// Whether every task finishes whole rows.
    pub(super) fn has_whole_rows(&self) -> bool {
        self.runs == 1
    }

    /// The rows of a task.
    pub(super) fn rows(&self, task: usize) -> Range<usize> {
        share(self.input.codes.rows(), self.row_blocks, task / self.runs)
    }

    /// Computes one task's part of the result.
    pub(super) fn run(&self, compute: &Compute, task: usize) {
        let rows = self.rows(task);
        let panels = share(self.weights.neurons().div_ceil(PANEL), self.runs, task % self.runs);
        let cells = self.weights.blocks() * BLOCK_CELLS * CELL;
        let floats = (2 * cells + MAX_ROWS * PANEL * size_of::<i32>()) / size_of::<f32>() + rows.len();
        let mut scratch = compute.scratch(floats);
        let base = scratch.as_mut_ptr();
        // SAFETY: that many floats were asked for; the three parts do not overlap, and floats and integers may hold any
        // bits.
        let (cells, sums, row_terms) = unsafe {
            let sums = base.add(2 * cells / size_of::<f32>());
            let row_terms = sums.add(MAX_ROWS * PANEL);
            (
                std::slice::from_raw_parts_mut(base.cast::<u8>(), 2 * cells),
                sums.cast::<i32>(),
                std::slice::from_raw_parts_mut(row_terms, rows.len()),
            )
        };
        compute.kernels().run(RowTerms { input: self.input, first: rows.start, terms: row_terms });
        for panel in panels {
            let (address, half_step) = self.panel(panel, cells);
            let start = self.start(panel);
            let height = self.multiplier.rows(self.weights.bits());
            let tiles = rows.len().div_ceil(height);
            for part in (0..tiles).map(|index| share(rows.len(), tiles, index)) {
                let (row, neuron) = (rows.start + part.start, panel * PANEL);
                self.target.prefetch(row..row + part.len(), neuron);
                // SAFETY: the rows are inside the input, whose rows are padded to whole cells; the panel was widened or
                // is read in place; `sums` has room for a whole tile.
                unsafe {
                    self.multiplier.multiply(&Tile {
                        rows: part.len(),
                        a: self.input.codes.as_ptr().add(row * self.input.codes.stride()),
                        a_row: self.input.codes.stride(),
                        cells: address,
                        half_step,
                        steps: self.weights.blocks() * BLOCK_CELLS,
                        bits: self.weights.bits(),
                        start: start.as_ptr(),
                        sums,
                        sums_row: PANEL,
                    });
                }
                let neurons = PANEL.min(self.weights.neurons() - neuron);
                let (params, step, target) = (self.params, self.input.quantizer.step, self.target);
                let row_terms = &row_terms[part];
                compute.kernels().run(Finish { sums, row_terms, params, step, target, row, neuron, neurons });
            }
        }
    }

    /// Where the cells of a panel are, and how far apart its two tiles: in `room`, or in the weights themselves. Where
    /// there is only one tile left, it stands for both.
    fn panel(&self, panel: usize, room: &mut [u8]) -> (*const u8, usize) {
        let tiles = 2 * panel..self.weights.tiles().min(2 * panel + 2);
        let first = self.weights.tile(tiles.start);
        if self.weights.bits() == 8 {
            return (first.as_ptr(), if tiles.len() == 2 { first.len() } else { 0 });
        }
        let half = room.len() / 2;
        for (tile, room) in tiles.clone().zip(room.chunks_exact_mut(half)) {
            self.multiplier.widen(self.weights.bits(), self.weights.tile(tile), room);
        }
        (room.as_ptr(), if tiles.len() == 2 { half } else { 0 })
    }

    /// What the sums of a panel start from: `-z·ΣW`, the zero point as the stored codes have it.
    fn start(&self, panel: usize) -> [i32; PANEL] {
        let zero = self.input.quantizer.shifted_zero();
        let sums = &self.params.code_sums[panel * PANEL..][..PANEL];
        std::array::from_fn(|neuron| sums[neuron].wrapping_mul(-zero))
    }
}

/// Checks an output's shape and takes its address.
fn target(output: LinearOutput<'_>, rows: usize, neurons: usize) -> Target {
    let check = |found: (usize, usize)| {
        assert!(found == (rows, neurons), "an output of {found:?} for {rows} tokens and {neurons} neurons");
    };
    match output {
        LinearOutput::Sums(sums) => {
            assert!(sums.len() == rows * neurons, "{} sums for {rows} tokens and {neurons} neurons", sums.len());
            Target::Sums(sums.as_mut_ptr(), neurons)
        }
        LinearOutput::Float(matrix) => {
            check((matrix.rows, matrix.cols));
            Target::Float(matrix.data.as_mut_ptr(), matrix.row_stride)
        }
        LinearOutput::Add(matrix) => {
            check((matrix.rows, matrix.cols));
            Target::Add(matrix.data.as_mut_ptr(), matrix.row_stride)
        }
        LinearOutput::Codes(codes, quantizer) => {
            check((codes.rows(), codes.cols()));
            Target::Codes(codes.as_mut_ptr(), codes.stride(), quantizer)
        }
        LinearOutput::Gelu(codes, quantizer) => {
            check((codes.rows(), codes.cols()));
            Target::Gelu(codes.as_mut_ptr(), codes.stride(), quantizer)
        }
    }
}

/// Part `index` of `0..total` cut into `parts` whose sizes differ by at most one.
pub(super) fn share(total: usize, parts: usize, index: usize) -> Range<usize> {
    let (base, extra) = (total / parts, total % parts);
    let start = |index: usize| index * base + index.min(extra);
    start(index)..start(index + 1)
}

/// `f32(ΣA - z·K)` of some rows.
struct RowTerms<'a> {
    input: LinearInput<'a>,
    first: usize,
    terms: &'a mut [f32],
}

impl Kernel for RowTerms<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let codes = self.input.codes;
        let zeros = self.input.quantizer.shifted_zero() * codes.cols() as i32;
        for (index, term) in self.terms.iter_mut().enumerate() {
            assert!(self.first + index < codes.rows());
            // SAFETY: the row is inside the matrix.
            let sum = unsafe { row_sum(simd, codes.as_ptr().add((self.first + index) * codes.stride()), codes.cols()) };
            *term = (sum - zeros) as f32;
        }
    }
}

const _: () = assert!(PANEL == 2 * TILE_NEURONS);
