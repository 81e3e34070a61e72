//! Matrix products in the three forms of a linear layer, on row-major matrices of f32 with strides.
//!
//! | form | product | a linear layer's | shapes |
//! |---|---|---|---|
//! | `nt` | `A · Bᵀ` | forward: X · Wᵀ | `[m,k] · [n,k]ᵀ` |
//! | `nn` | `A · B` | input gradient: dY · W | `[m,k] · [k,n]` |
//! | `tn` | `Aᵀ · B` | weight gradient: dYᵀ · X | `[k,m]ᵀ · [k,n]` |
//!
//! [`Kernels`] has them for small products on the calling thread (attention, inside a parallel loop), [`Compute`] for
//! large ones over all threads. Shapes that do not match are programming errors: the functions panic and name the shapes.
//!
//! Order of summation: k ascending in blocks of 256, one accumulator per element within a block, blocks added to C in
//! order. It depends on nothing else, so neither tiling nor threads change a bit. NaN and infinity propagate; with
//! [`Start::ZERO`] the old content of C is never read.
//!
//! **bf16.** A [`Compute`] made by [`Compute::with_products`] rounds the inputs of products to bf16, to nearest,
//! ties to even, with subnormal numbers as zero. Sums stay in f32, in blocks of 512 depths, and a sum below 2⁻¹²⁶ inside a
//! block is zero. How large a product is does not matter, so a part of its rows or columns has the bits of the whole. There are
//! two orders:
//!
//! - k ascending in pairs, of which the second product is added first. That is what `vdpbf16ps` computes, so CPUs without
//!   it give the same bits, at little less than the speed of f32.
//! - With AMX, `tdpbf16ps` takes 32 depths at once. Its even and its odd products have a sum each, k ascending from zero;
//!   the two are added, and then added to the sum of the block. Zeros fill up the last 32 depths. So last bits differ from
//!   the first order, but neither tiling nor threads change them. AMX is used with the multiplier `amx` only:
//!   `QBERT_KERNELS=avx512+avx512-vnni` gives the first order on such a CPU.

mod driver;
mod element;
mod emulated;
mod micro;
mod pack;
mod product;
mod tile;
#[cfg(any(test, target_arch = "x86_64"))]
mod tiles;
mod view;

pub use view::{MatMut, MatRef};

use std::marker::PhantomData;
use std::ops::Range;

use crate::compute::Compute;
use crate::cpu::Kernels;
use crate::scratch::part_bytes;
use crate::simd::{Bf16Set, InstructionSet, with_bf16_set, with_set};
use driver::{BLOCK_COLUMNS, LargeProduct, PackPanel, Panels, SizesOf, SmallProduct};
use element::Single;
use micro::{Bf16Products, MicroKernel, Registers};
use product::{Form, Product};

/// What the inputs of a [`Compute`]'s products are rounded to; sums are in f32 either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProductPrecision {
    /// Nothing is rounded.
    #[default]
    F32,
    /// To bf16: twice as fast on CPUs with instructions for it ([`Kernels::has_bf16`]). Last bits differ between CPUs with
    /// and without AMX, unless a multiplier other than `amx` is chosen ([`Kernels::with_multiplier`]).
    Bf16,
}

impl ProductPrecision {
    /// `f32` or `bf16`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }
}

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

impl Kernels {
    /// `C = start + A · Bᵀ` on the calling thread, for small matrices.
    ///
    /// # Panics
    /// When the shapes do not fit together.
    pub fn gemm_nt(self, a: MatRef<'_>, b: MatRef<'_>, start: Start<'_>, c: MatMut<'_>) {
        self.run(SmallProduct(Product::new(Form::Nt, a, b, start, c)));
    }

    /// `C = start + A · B` on the calling thread, for small matrices.
    ///
    /// # Panics
    /// When the shapes do not fit together.
    pub fn gemm_nn(self, a: MatRef<'_>, b: MatRef<'_>, start: Start<'_>, c: MatMut<'_>) {
        self.run(SmallProduct(Product::new(Form::Nn, a, b, start, c)));
    }

    /// `C = start + Aᵀ · B` on the calling thread, for small matrices.
    ///
    /// # Panics
    /// When the shapes do not fit together.
    pub fn gemm_tn(self, a: MatRef<'_>, b: MatRef<'_>, start: Start<'_>, c: MatMut<'_>) {
        self.run(SmallProduct(Product::new(Form::Tn, a, b, start, c)));
    }
}

/// Up to this many multiplications, packing or waking threads does not pay off.
const SMALL: usize = 64 * 64 * 64;

impl Compute {
    /// `C = start + A · Bᵀ` over all threads.
    ///
    /// # Panics
    /// When the shapes do not fit together.
    pub fn gemm_nt(&self, a: MatRef<'_>, b: MatRef<'_>, start: Start<'_>, c: MatMut<'_>) {
        self.product(Product::new(Form::Nt, a, b, start, c));
    }

    /// `C = start + A · B` over all threads.
    ///
    /// # Panics
    /// When the shapes do not fit together.
    pub fn gemm_nn(&self, a: MatRef<'_>, b: MatRef<'_>, start: Start<'_>, c: MatMut<'_>) {
        self.product(Product::new(Form::Nn, a, b, start, c));
    }

    /// `C = start + Aᵀ · B` over all threads.
    ///
    /// # Panics
    /// When the shapes do not fit together.
    pub fn gemm_tn(&self, a: MatRef<'_>, b: MatRef<'_>, start: Start<'_>, c: MatMut<'_>) {
        self.product(Product::new(Form::Tn, a, b, start, c));
    }

    fn product(&self, product: Product<'_>) {
        let is_small = product.rows() * product.cols() * product.depth() <= SMALL;
        match self.products() {
            ProductPrecision::F32 if is_small => self.kernels().run(SmallProduct(product)),
            ProductPrecision::F32 => with_set!(self.kernels().set(), simd => {
                self.large_product(Registers::<_, Single>::new(simd), &product)
            }),
            ProductPrecision::Bf16 => with_bf16_set!(self.kernels().bf16(), products => {
                self.large_product(products.micro_kernel(), &product)
            }),
        }
    }

    fn large_product<M: MicroKernel>(&self, micro: M, product: &Product<'_>) {
        if product.a().depth_step == 1 {
            self.shared_panels(micro, product);
        } else {
            self.own_panels(micro, product);
        }
    }

    /// B holds the weights: it is much smaller than A and packed once for all tasks.
    fn shared_panels<M: MicroKernel>(&self, micro: M, product: &Product<'_>) {
        let sizes = micro.run(SizesOf { product, micro: PhantomData::<M> });
        let length = product.cols().div_ceil(sizes.panel_width) * sizes.panel;
        let mut scratch = self.scratch(part_bytes::<f32>(length));
        let panels = scratch.parts().take::<f32>(length);
        self.threads().for_each_chunk([&mut *panels], [sizes.panel], |panel, [target]| {
            micro.run(PackPanel { product, panel, target, micro: PhantomData::<M> });
        });
        let (panels, grid) = (&*panels, Grid::shared(product));
        self.threads().for_each(grid.tasks(), |task| {
            let (rows, cols) = grid.block(task);
            // SAFETY: the blocks of the grid do not overlap, and each task runs once.
            micro.run(unsafe { LargeProduct::new(micro, product, Panels::Shared(panels), rows, cols) });
        });
    }

    /// A weight gradient: the depth is the number of tokens and C is small, so tasks take tall blocks of C and pack what
    /// they need of B themselves.
    fn own_panels<M: MicroKernel>(&self, micro: M, product: &Product<'_>) {
        let (grid, sizes) = (Grid::own(product), micro.run(SizesOf { product, micro: PhantomData::<M> }));
        self.threads().for_each(grid.tasks(), |task| {
            let (rows, cols) = grid.block(task);
            let mut scratch = self.scratch(part_bytes::<f32>(sizes.own_block));
            let panels = Panels::Own(scratch.parts().take(sizes.own_block));
            // SAFETY: the blocks of the grid do not overlap, and each task runs once.
            micro.run(unsafe { LargeProduct::new(micro, product, panels, rows, cols) });
        });
    }
}

/// C cut into tasks by its shape alone: columns outermost, so that neighbouring tasks share a block of B. Widths are
/// multiples of every panel.
struct Grid {
    rows: usize,
    cols: usize,
    task: (usize, usize),
}

impl Grid {
    /// Tasks over shared panels: small ones balance the load and cost nothing, so there are many.
    fn shared(product: &Product<'_>) -> Self {
        let mut grid = Self { rows: product.rows(), cols: product.cols(), task: (96, BLOCK_COLUMNS) };
        while grid.tasks() < 12 && grid.task.0 > 24 {
            grid.task.0 /= 2;
        }
        grid
    }

    /// Tasks that pack B themselves: large and square, so that little is packed in total.
    fn own(product: &Product<'_>) -> Self {
        let mut grid = Self { rows: product.rows(), cols: product.cols(), task: (384, BLOCK_COLUMNS) };
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
