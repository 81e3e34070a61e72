//! Linear layers on codes: packed weights are widened panel by panel, once for many tokens.
//!
//! Work is cut into row blocks × runs of panels. A task first puts its rows into the multiplier's order, if that has one.
//! Then it widens a panel of 32 neurons into its own scratch memory (eight-bit codes are usually read in place), multiplies
//! all its rows with the panel, tile by tile, and finishes each tile while its sums are in the first-level cache. With few
//! tokens the panels are divided among the threads, with many the rows. Sums are exact and every output element is computed
//! independently, so no split changes a bit of the result.

use super::codes::{Codes, Quantizer, sum_of_codes};
use super::epilogue::{Epilogue, Target};
use super::layout::{BLOCK_CELLS, CELL, PackedWeights};
use super::multiplier::Multiplier;
use super::params::LinearParams;
use super::tile::{PANEL, Rows, Tile};
use crate::activation::Activation;
use crate::compute::Compute;
use crate::gemm::MatMut;
use crate::scratch::{Parts, part_bytes};
use crate::shared_matrix::SharedMatrix;
use crate::simd::{Kernel, Simd};
use std::ops::Range;

/// Rows of a task when there are many: few enough that their codes stay in the second-level cache, many enough that
/// widening a panel costs nothing beside multiplying with it.
const ROW_BLOCK: usize = 192;
/// How many tasks per thread to aim for, so that no thread waits long for another.
const TASKS_PER_THREAD: usize = 4;

/// The codes that go into a linear layer, and how they were made.
#[derive(Clone, Copy, Debug)]
pub struct LinearInput<'a> {
    /// `[tokens, inputs]`
    pub codes: &'a Codes,
    /// Their quantizer.
    pub quantizer: Quantizer,
}

/// What to do with a linear layer's results `y`, `[tokens, neurons]`.
#[derive(Debug)]
pub enum LinearOutput<'a> {
    /// The exact integers `Σ (A - z)·W`, row-major: for tests, and for callers with arithmetic of their own.
    Sums(&'a mut [i32]),
    /// `y` itself.
    Float(MatMut<'a>),
    /// `y` is added to what is there.
    Add(MatMut<'a>),
    /// `y` quantized.
    Codes(&'a mut Codes, Quantizer),
    /// An activation of `y`, quantized.
    Activated(Activation, &'a mut Codes, Quantizer),
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
            Plan::new(self, input, layer.weights, layer.params, target)
        });
        let plans = &plans;
        let tasks = plans.iter().map(Plan::tasks).sum();
        self.threads().for_each(tasks, |task| {
            let mut task = task;
            for plan in plans {
                if task < plan.tasks() {
                    // SAFETY: each task of a plan is run once.
                    return unsafe { plan.run(self, task) };
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
    epilogue: Epilogue<'a>,
    multiplier: Multiplier,
    row_blocks: usize,
    /// Runs of panels that the neurons are cut into.
    runs: usize,
}

impl<'a> Plan<'a> {
    /// Checks the shapes, except for the target's, which is checked tile by tile.
    pub(super) fn new(
        compute: &Compute,
        input: LinearInput<'a>,
        weights: PackedWeights<'a>,
        params: &'a LinearParams,
        target: Target<'a>,
    ) -> Self {
        let (rows, inputs, neurons) = (input.codes.rows(), weights.inputs(), weights.neurons());
        assert!(input.codes.cols() == inputs, "{} codes a token for {inputs} inputs", input.codes.cols());
        assert!(params.neurons() == neurons, "numbers of {} neurons for {neurons}", params.neurons());
        let row_blocks = rows.div_ceil(ROW_BLOCK);
        let panels = neurons.div_ceil(PANEL);
        let wanted = if compute.threads().count() == 1 { 1 } else { TASKS_PER_THREAD * compute.threads().count() };
        let runs = wanted.div_ceil(row_blocks.max(1)).clamp(1, panels);
        let epilogue = Epilogue { params, step: input.quantizer.step, target };
        Self { input, weights, epilogue, multiplier: compute.kernels().multiplier(), row_blocks, runs }
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
    ///
    /// # Safety
    /// No other thread may run this task or use its part of the target at the same time.
    pub(super) unsafe fn run(&self, compute: &Compute, task: usize) {
        let rows = self.rows(task);
        let panels = share(self.weights.neurons().div_ceil(PANEL), self.runs, task % self.runs);
        let mut scratch = compute.scratch(Buffers::bytes(self, rows.len()));
        let mut buffers = Buffers::new(self, rows.len(), scratch.parts());
        compute.kernels().run(RowTerms { input: self.input, first: rows.start, terms: buffers.row_terms });
        for tile in 0..self.row_tiles(rows.len()) {
            let (tile_rows, room) = (self.tile_rows(&rows, tile), self.arranged_range(tile));
            self.multiplier.arrange(tile_rows, &mut buffers.arranged[room]);
        }
        let _products = self.multiplier.begin();
        for panel in panels {
            // SAFETY: the panel's neurons of these rows are this task's part of the target.
            unsafe { self.run_panel(compute, panel, rows.clone(), &mut buffers) };
        }
    }

    /// Multiplies some rows with one panel.
    ///
    /// # Safety
    /// No other thread may use the panel's neurons of these rows of the target at the same time.
    unsafe fn run_panel(&self, compute: &Compute, panel: usize, rows: Range<usize>, buffers: &mut Buffers<'_>) {
        let Buffers { cells, arranged, sums, row_terms } = buffers;
        let (cells, half_step) = self.panel(compute, panel, cells);
        let start = self.start(panel);
        let neuron = panel * PANEL;
        let tiles = self.row_tiles(rows.len());
        for tile in 0..tiles {
            let part = share(rows.len(), tiles, tile);
            let row = rows.start + part.start;
            self.epilogue.target.prefetch(row..row + part.len(), neuron);
            let room = &arranged[self.arranged_range(tile)];
            let a = self.multiplier.arranged(self.tile_rows(&rows, tile), room);
            self.multiplier.multiply(Tile {
                rows: a.count,
                a: a.codes,
                a_row: a.stride,
                cells,
                half_step,
                steps: a.steps,
                bits: self.bits(),
                start: &start,
                sums,
                sums_row: PANEL,
            });
            // SAFETY: passed on from the caller.
            compute.kernels().run(unsafe { self.epilogue.finish(sums, &row_terms[part], row, neuron) });
        }
    }

    /// Tiles that some rows are cut into.
    fn row_tiles(&self, rows: usize) -> usize {
        rows.div_ceil(self.multiplier.rows(self.bits()))
    }

    /// The stored codes of one tile of a task's rows.
    fn tile_rows(&self, rows: &Range<usize>, tile: usize) -> Rows<'a> {
        let part = share(rows.len(), self.row_tiles(rows.len()), tile);
        let codes = self.input.codes;
        Rows {
            count: part.len(),
            codes: &codes.stored()[(rows.start + part.start) * codes.stride()..],
            stride: codes.stride(),
            steps: self.steps(),
        }
    }

    /// Where a tile's rows in the multiplier's order are, if it has one.
    fn arranged_range(&self, tile: usize) -> Range<usize> {
        let bytes = self.multiplier.arranged_bytes(self.steps());
        tile * bytes..(tile + 1) * bytes
    }

    /// Bits of the widened codes.
    fn bits(&self) -> u8 {
        self.weights.coding().widened_bits()
    }

    /// Steps of four inputs through a row, as many as the multiplier takes. The stored codes of a row, padded to whole
    /// cache lines, are at least as long.
    fn steps(&self) -> usize {
        self.multiplier.padded_steps(self.stored_steps())
    }

    /// Cells of a tile of weights.
    fn stored_steps(&self) -> usize {
        self.weights.blocks() * BLOCK_CELLS
    }

    /// The cells of a panel in the multiplier's order, and how far apart its two tiles are: in `room`, or in the weights
    /// themselves. Where there is only one tile left, it stands for both.
    fn panel<'b>(&'b self, compute: &Compute, panel: usize, room: &'b mut [u8]) -> (&'b [u8], usize) {
        let tiles = 2 * panel..self.weights.tiles().min(2 * panel + 2);
        let (bits, both) = (self.bits(), tiles.len() == 2);
        let padded = self.steps() != self.stored_steps();
        if bits == 8 && !padded && self.multiplier.reads_stored_cells() {
            let stored = self.weights.tile_range(tiles);
            return (stored, if both { stored.len() / 2 } else { 0 });
        }
        let half = room.len() / 2;
        for (tile, cells) in tiles.zip(room.chunks_exact_mut(half)) {
            let (stored, padding) = cells.split_at_mut(self.stored_steps() * CELL);
            self.weights.widen_tile(compute.kernels(), tile, stored);
            padding.fill(0);
            self.multiplier.rearrange(bits, cells);
        }
        (room, if both { half } else { 0 })
    }

    /// What the sums of a panel start from: `-z·ΣW`, the zero point as the stored codes have it.
    fn start(&self, panel: usize) -> [i32; PANEL] {
        let zero = self.input.quantizer.shifted_zero();
        let sums = &self.epilogue.params.code_sums[panel * PANEL..][..PANEL];
        std::array::from_fn(|neuron| sums[neuron].wrapping_mul(-zero))
    }
}

/// The scratch memory of a task.
struct Buffers<'a> {
    /// A panel's two tiles of widened cells.
    cells: &'a mut [u8],
    /// All rows in the multiplier's order, tile after tile; empty where it has none.
    arranged: &'a mut [i8],
    /// A tile of sums.
    sums: &'a mut [i32],
    /// `f32(ΣA - z·K)` of every row.
    row_terms: &'a mut [f32],
}

impl<'a> Buffers<'a> {
    /// Bytes of the cells and the arranged rows, and the number of sums.
    fn lengths(plan: &Plan<'_>, rows: usize) -> (usize, usize, usize) {
        let cells = 2 * plan.steps() * CELL;
        let arranged = plan.arranged_range(plan.row_tiles(rows)).start;
        (cells, arranged, plan.multiplier.rows(plan.bits()) * PANEL)
    }

    fn bytes(plan: &Plan<'_>, rows: usize) -> usize {
        let (cells, arranged, sums) = Self::lengths(plan, rows);
        part_bytes::<u8>(cells) + part_bytes::<i8>(arranged) + part_bytes::<i32>(sums) + part_bytes::<f32>(rows)
    }

    fn new(plan: &Plan<'_>, rows: usize, mut parts: Parts<'a>) -> Self {
        let (cells, arranged, sums) = Self::lengths(plan, rows);
        Self {
            cells: parts.take(cells),
            arranged: parts.take(arranged),
            sums: parts.take(sums),
            row_terms: parts.take(rows),
        }
    }
}

/// Checks an output's shape.
fn target(output: LinearOutput<'_>, rows: usize, neurons: usize) -> Target<'_> {
    let check = |found: (usize, usize)| {
        assert!(found == (rows, neurons), "an output of {found:?} for {rows} tokens and {neurons} neurons");
    };
    match output {
        LinearOutput::Sums(sums) => {
            let fits = rows.checked_mul(neurons) == Some(sums.len());
            assert!(fits, "{} sums for {rows} tokens and {neurons} neurons", sums.len());
            Target::Sums(SharedMatrix::new(sums, rows, neurons, neurons))
        }
        LinearOutput::Float(matrix) => {
            check((matrix.rows, matrix.cols));
            Target::Float(SharedMatrix::new(matrix.data, rows, neurons, matrix.row_stride))
        }
        LinearOutput::Add(matrix) => {
            check((matrix.rows, matrix.cols));
            Target::Add(SharedMatrix::new(matrix.data, rows, neurons, matrix.row_stride))
        }
        LinearOutput::Codes(codes, quantizer) => {
            check((codes.rows(), codes.cols()));
            Target::Codes(codes.shared(), quantizer)
        }
        LinearOutput::Activated(activation, codes, quantizer) => {
            check((codes.rows(), codes.cols()));
            Target::Activated(activation, codes.shared(), quantizer)
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
            let sum = sum_of_codes(simd, &codes.stored_row(self.first + index)[..codes.cols()]);
            *term = (sum - zeros) as f32;
        }
    }
}
