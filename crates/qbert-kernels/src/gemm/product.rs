//! One matrix product, checked: what the kernels of `driver.rs` are made from.

use super::element::Element;
use super::tile::TileStart;
use super::{MatMut, MatRef, Start};
use crate::shared_matrix::SharedMatrix;

/// Which operand is transposed; see the table in `mod.rs`.
#[derive(Clone, Copy)]
pub(super) enum Form {
    Nt,
    Nn,
    Tn,
}

impl Form {
    fn name(self) -> &'static str {
        match self {
            Self::Nt => "A·Bᵀ",
            Self::Nn => "A·B",
            Self::Tn => "Aᵀ·B",
        }
    }
}

/// One operand of a product: element `(outer, depth)`, where outer is A's row or B's column. One of the steps is 1.
#[derive(Clone, Copy)]
pub(super) struct Operand<'a> {
    data: &'a [f32],
    /// How many depths there are.
    pub(super) depth: usize,
    pub(super) outer_step: usize,
    pub(super) depth_step: usize,
}

impl<'a> Operand<'a> {
    /// Rows of the view are outer, or its columns are.
    fn new(view: MatRef<'a>, rows_are_outer: bool) -> Self {
        let (depth, outer_step, depth_step) =
            if rows_are_outer { (view.cols, view.row_stride, 1) } else { (view.rows, 1, view.row_stride) };
        Self { data: view.data, depth, outer_step, depth_step }
    }

    /// The element's address; wrapping, because an operand without depth has no elements at all.
    #[inline(always)]
    pub(super) fn at(self, outer: usize, depth: usize) -> *const f32 {
        self.data.as_ptr().wrapping_add(outer * self.outer_step + depth * self.depth_step)
    }
}

/// `C = start + A · B`. Only [`Product::new`] makes one: every element of the shape is inside its slice, and C is
/// borrowed for as long as the product lives.
pub(super) struct Product<'a> {
    rows: usize,
    cols: usize,
    depth: usize,
    a: Operand<'a>,
    b: Operand<'a>,
    c: SharedMatrix<'a, f32>,
    start: Start<'a>,
}

impl<'a> Product<'a> {
    /// Checks the shapes.
    ///
    /// # Panics
    /// When they do not fit together.
    pub(super) fn new(form: Form, a: MatRef<'a>, b: MatRef<'a>, start: Start<'a>, c: MatMut<'a>) -> Self {
        let (rows, depth) = if matches!(form, Form::Tn) { (a.cols, a.rows) } else { (a.rows, a.cols) };
        let (cols, b_depth) = if matches!(form, Form::Nt) { (b.rows, b.cols) } else { (b.cols, b.rows) };
        assert!(
            depth == b_depth && c.rows == rows && c.cols == cols,
            "matrix product {}: A is {}×{}, B is {}×{}, C is {}×{}",
            form.name(),
            a.rows,
            a.cols,
            b.rows,
            b.cols,
            c.rows,
            c.cols
        );
        if let Start::Bias(bias) = start {
            assert!(bias.len() == cols, "bias of {} elements for {cols} columns", bias.len());
        }
        let a = Operand::new(a, !matches!(form, Form::Tn));
        let b = Operand::new(b, matches!(form, Form::Nt));
        // A matrix without columns may have any number of rows in no memory at all.
        let c = SharedMatrix::new(c.data, if cols == 0 { 0 } else { rows }, cols, c.row_stride);
        Self { rows, cols, depth, a, b, c, start }
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn cols(&self) -> usize {
        self.cols
    }

    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    /// How many elements of packed copies hold the depth.
    pub(super) fn steps<E: Element>(&self) -> usize {
        self.depth.div_ceil(E::DEPTHS)
    }

    pub(super) fn a(&self) -> Operand<'a> {
        self.a
    }

    pub(super) fn b(&self) -> Operand<'a> {
        self.b
    }

    /// Elements between rows of C.
    #[inline(always)]
    pub(super) fn c_row(&self) -> usize {
        self.c.stride()
    }

    /// Where an element of C is.
    #[inline(always)]
    pub(super) fn c_at(&self, row: usize, column: usize) -> *mut f32 {
        self.c.address(row, column)
    }

    /// What the tile at this column starts from, in the block of depths that begins at `step`.
    #[inline(always)]
    pub(super) fn start_at(&self, column: usize, step: usize) -> TileStart {
        match self.start {
            _ if step > 0 => TileStart::Scaled(1.0),
            Start::Bias(bias) => TileStart::Bias(bias.as_ptr().wrapping_add(column)),
            Start::Scaled(factor) => TileStart::Scaled(factor),
        }
    }
}
