//! f32 matrix products in the three forms of a linear layer, on row-major matrices with strides.
//!
//! | form | product | a linear layer's | shapes |
//! |---|---|---|---|
//! | `nt` | `A · Bᵀ` | forward: X · Wᵀ | `[m,k] · [n,k]ᵀ` |
//! | `nn` | `A · B` | input gradient: dY · W | `[m,k] · [k,n]` |
//! | `tn` | `Aᵀ · B` | weight gradient: dYᵀ · X | `[k,m]ᵀ · [k,n]` |
//!
//! [`Kernels`] has them for small products on the calling thread (attention, inside a parallel
//! region), [`Compute`] for large ones over all threads. Shapes that do not fit are programming
//! errors: the functions panic and name both shapes.
//!
//! Order of summation: k ascending in blocks of 256, one accumulator per element within a block,
//! blocks added to C in order. It depends on nothing else, so neither tiling nor threads change a
//! bit. NaN and infinity go through; with [`Start::ZERO`] old content of C is never read.

mod driver;
mod pack;
mod tile;
mod view;

pub use view::{MatMut, MatRef};

use std::ops::Range;

use crate::compute::Compute;
use crate::cpu::Kernels;
use crate::threads::Shared;
use driver::{BLOCK_COLUMNS, BLOCK_ROOM, LargeProduct, PackPanels, PanelWidth, Panels, Product, SmallProduct};
use pack::Operand;
use tile::TileStart;

/// What the products are added to.
#[derive(Clone, Copy, Debug)]
pub enum Start<'a> {
    /// `factor · C`
    Scaled(f32),
    /// The same row for every row of C: a linear layer's bias.
    Bias(&'a [f32]),
}

impl Start<'_> {
    /// C is overwritten.
    pub const ZERO: Self = Self::Scaled(0.0);
    /// C is added to.
    pub const ACCUMULATE: Self = Self::Scaled(1.0);
}

#[derive(Clone, Copy)]
enum Form {
    Nt,
    Nn,
    Tn,
}

/// Checks the shapes and describes the product by address.
fn product(form: Form, a: MatRef<'_>, b: MatRef<'_>, start: Start<'_>, c: &mut MatMut<'_>) -> Product {
    let (rows, depth, a_steps) = match form {
        Form::Nt | Form::Nn => (a.rows, a.cols, (a.row_stride, 1)),
        Form::Tn => (a.cols, a.rows, (1, a.row_stride)),
    };
    let (cols, b_depth, b_steps) = match form {
        Form::Nt => (b.rows, b.cols, (b.row_stride, 1)),
        Form::Nn | Form::Tn => (b.cols, b.rows, (1, b.row_stride)),
    };
    assert!(
        depth == b_depth && c.rows == rows && c.cols == cols,
        "matrix product {}: A is {}×{}, B is {}×{}, C is {}×{}",
        match form {
            Form::Nt => "A·Bᵀ",
            Form::Nn => "A·B",
            Form::Tn => "Aᵀ·B",
        },
        a.rows,
        a.cols,
        b.rows,
        b.cols,
        c.rows,
        c.cols
    );
    let start = match start {
        Start::Scaled(factor) => TileStart::Scaled(factor),
        Start::Bias(bias) => {
            assert!(bias.len() == cols, "bias of {} elements for {cols} columns", bias.len());
            TileStart::Bias(bias.as_ptr())
        }
    };
    let operand =
        |view: MatRef<'_>, (outer_step, depth_step)| Operand { data: view.data.as_ptr(), outer_step, depth_step };
    Product {
        rows,
        cols,
        depth,
        a: operand(a, a_steps),
        b: operand(b, b_steps),
        c: c.data.as_mut_ptr(),
        c_row: c.row_stride,
        start,
    }
}

impl Kernels {
    /// `C = start + A · Bᵀ` on the calling thread, for small matrices.
    ///
    /// # Panics
    /// When the shapes do not fit together.
    pub fn gemm_nt(self, a: MatRef<'_>, b: MatRef<'_>, start: Start<'_>, mut c: MatMut<'_>) {
        self.run(SmallProduct(product(Form::Nt, a, b, start, &mut c)));
    }

    /// `C = start + A · B` on the calling thread, for small matrices.
    ///
    /// # Panics
    /// When the shapes do not fit together.
    pub fn gemm_nn(self, a: MatRef<'_>, b: MatRef<'_>, start: Start<'_>, mut c: MatMut<'_>) {
        self.run(SmallProduct(product(Form::Nn, a, b, start, &mut c)));
    }

    /// `C = start + Aᵀ · B` on the calling thread, for small matrices.
    ///
    /// # Panics
    /// When the shapes do not fit together.
    pub fn gemm_tn(self, a: MatRef<'_>, b: MatRef<'_>, start: Start<'_>, mut c: MatMut<'_>) {
        self.run(SmallProduct(product(Form::Tn, a, b, start, &mut c)));
    }
}

/// Below this many multiplications a product is not worth packing or waking threads.
const SMALL: usize = 64 * 64 * 64;
impl Compute {
    /// `C = start + A · Bᵀ` over all threads.
    ///
    /// # Panics
    /// When the shapes do not fit together.
    pub fn gemm_nt(&self, a: MatRef<'_>, b: MatRef<'_>, start: Start<'_>, mut c: MatMut<'_>) {
        self.product(product(Form::Nt, a, b, start, &mut c));
    }

    /// `C = start + A · B` over all threads.
    ///
    /// # Panics
    /// When the shapes do not fit together.
    pub fn gemm_nn(&self, a: MatRef<'_>, b: MatRef<'_>, start: Start<'_>, mut c: MatMut<'_>) {
        self.product(product(Form::Nn, a, b, start, &mut c));
    }

    /// `C = start + Aᵀ · B` over all threads.
    ///
    /// # Panics
    /// When the shapes do not fit together.
    pub fn gemm_tn(&self, a: MatRef<'_>, b: MatRef<'_>, start: Start<'_>, mut c: MatMut<'_>) {
        self.product(product(Form::Tn, a, b, start, &mut c));
    }

    fn product(&self, product: Product) {
        if product.rows * product.cols * product.depth <= SMALL {
            self.kernels().run(SmallProduct(product));
        } else if product.a.depth_step == 1 {
            self.shared_panels(product);
        } else {
            self.own_panels(product);
        }
    }

    /// B is the weights: much smaller than A, packed once for all tasks.
    fn shared_panels(&self, product: Product) {
        let kernels = self.kernels();
        let width = kernels.run(PanelWidth);
        let count = product.cols.div_ceil(width);
        let mut scratch = self.scratch(count * width * product.depth);
        let panels = Shared(scratch.as_mut_ptr());
        self.threads().for_each(count, |panel| {
            let target = panels.get();
            kernels.run(PackPanels { product, panels: panel..panel + 1, target });
        });
        let grid = Grid::shared(&product);
        self.threads().for_each(grid.tasks(), |task| {
            let (rows, cols) = grid.block(task);
            let panels = Panels::Shared(panels.get());
            kernels.run(LargeProduct { product, panels, rows, cols });
        });
    }

    /// A weight gradient: the depth is the tokens, C is small, so tasks take tall blocks of C and
    /// pack what they need of B themselves.
    fn own_panels(&self, product: Product) {
        let kernels = self.kernels();
        let grid = Grid::own(&product);
        self.threads().for_each(grid.tasks(), |task| {
            let (rows, cols) = grid.block(task);
            let mut room = self.scratch(BLOCK_ROOM);
            let panels = Panels::Own(room.as_mut_ptr());
            kernels.run(LargeProduct { product, panels, rows, cols });
        });
    }
}

/// C cut into tasks by its shape alone: columns outermost, so that neighbouring tasks share a block
/// of B. Heights are multiples of every tile, widths of every panel.
struct Grid {
    rows: usize,
    cols: usize,
    task: (usize, usize),
}

impl Grid {
    /// Tasks over shared panels: low ones cost nothing but balance, so there are many.
    fn shared(product: &Product) -> Self {
        let mut grid = Self { rows: product.rows, cols: product.cols, task: (96, BLOCK_COLUMNS) };
        while grid.tasks() < 12 && grid.task.0 > 24 {
            grid.task.0 /= 2;
        }
        grid
    }

    /// Tasks that pack B themselves: large and square, to pack little in all.
    fn own(product: &Product) -> Self {
        let mut grid = Self { rows: product.rows, cols: product.cols, task: (384, BLOCK_COLUMNS) };
        while grid.tasks() < 4 && grid.task.0 > 96 {
            grid.task = (grid.task.0 / 2, grid.task.1 / 2);
        }
        grid
    }

    fn row_tasks(&self) -> usize {
        self.rows.div_ceil(self.task.0)
    }

    fn tasks(&self) -> usize {
        self.row_tasks() * self.cols.div_ceil(self.task.1)
    }

    fn block(&self, task: usize) -> (Range<usize>, Range<usize>) {
        let row = task % self.row_tasks() * self.task.0;
        let col = task / self.row_tasks() * self.task.1;
        (row..self.rows.min(row + self.task.0), col..self.cols.min(col + self.task.1))
    }
}
