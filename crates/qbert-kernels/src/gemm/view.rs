//! Row-major matrix views with a row stride: whole matrices, row ranges and column blocks of them.

use std::ops::Range;

/// A read-only row-major matrix: `rows × cols`, each row `row_stride` elements after the last.
#[derive(Clone, Copy, Debug)]
pub struct MatRef<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) row_stride: usize,
}

/// A writable row-major matrix; see [`MatRef`].
#[derive(Debug)]
pub struct MatMut<'a> {
    pub(crate) data: &'a mut [f32],
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) row_stride: usize,
}

/// The elements a view of this shape needs; panics when they are not there.
fn check(length: usize, rows: usize, cols: usize, row_stride: usize) {
    assert!(row_stride >= cols || rows <= 1, "row stride {row_stride} below {cols} columns: rows would overlap");
    let needed = match rows.checked_sub(1) {
        None => Some(0),
        Some(_) if cols == 0 => Some(0),
        Some(steps) => steps.checked_mul(row_stride).and_then(|start| start.checked_add(cols)),
    };
    assert!(
        needed.is_some_and(|needed| needed <= length),
        "a {rows}×{cols} matrix with row stride {row_stride} does not fit in {length} elements"
    );
}

/// The rows and columns of a view.
struct Extent {
    rows: usize,
    cols: usize,
    row_stride: usize,
}

impl Extent {
    /// Where a block starts and ends in the data; panics when it is not inside the matrix.
    fn block(&self, rows: &Range<usize>, cols: &Range<usize>) -> Range<usize> {
        let Self { rows: height, cols: width, row_stride } = *self;
        assert!(
            rows.start <= rows.end && rows.end <= height && cols.start <= cols.end && cols.end <= width,
            "block of rows {rows:?} and columns {cols:?} is not inside a {height}×{width} matrix"
        );
        if rows.is_empty() || cols.is_empty() {
            return 0..0;
        }
        rows.start * row_stride + cols.start..(rows.end - 1) * row_stride + cols.end
    }
}

impl<'a> MatRef<'a> {
    /// A matrix without gaps between rows.
    ///
    /// # Panics
    /// When `data` does not have exactly `rows × cols` elements.
    pub fn new(data: &'a [f32], rows: usize, cols: usize) -> Self {
        assert!(rows.checked_mul(cols) == Some(data.len()), "{} elements are not a {rows}×{cols} matrix", data.len());
        Self { data, rows, cols, row_stride: cols }
    }

    /// A matrix whose rows start `row_stride` elements apart.
    ///
    /// # Panics
    /// When the stride is below `cols` or `data` is too short.
    pub fn with_stride(data: &'a [f32], rows: usize, cols: usize, row_stride: usize) -> Self {
        check(data.len(), rows, cols, row_stride);
        Self { data, rows, cols, row_stride }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// One row.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn row(&self, row: usize) -> &'a [f32] {
        &self.data[self.extent().block(&(row..row + 1), &(0..self.cols))]
    }

    /// The part of the matrix in these rows and columns.
    ///
    /// # Panics
    /// When the ranges reach outside the matrix.
    pub fn block(&self, rows: Range<usize>, cols: Range<usize>) -> MatRef<'a> {
        let part = self.extent().block(&rows, &cols);
        MatRef { data: &self.data[part], rows: rows.len(), cols: cols.len(), row_stride: self.row_stride }
    }

    fn extent(&self) -> Extent {
        Extent { rows: self.rows, cols: self.cols, row_stride: self.row_stride }
    }
}

impl<'a> MatMut<'a> {
    /// A matrix without gaps between rows.
    ///
    /// # Panics
    /// When `data` does not have exactly `rows × cols` elements.
    pub fn new(data: &'a mut [f32], rows: usize, cols: usize) -> Self {
        assert!(rows.checked_mul(cols) == Some(data.len()), "{} elements are not a {rows}×{cols} matrix", data.len());
        Self { data, rows, cols, row_stride: cols }
    }

    /// A matrix whose rows start `row_stride` elements apart.
    ///
    /// # Panics
    /// When the stride is below `cols` or `data` is too short.
    pub fn with_stride(data: &'a mut [f32], rows: usize, cols: usize, row_stride: usize) -> Self {
        check(data.len(), rows, cols, row_stride);
        Self { data, rows, cols, row_stride }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The same matrix, borrowed for a shorter time.
    pub fn reborrow(&mut self) -> MatMut<'_> {
        MatMut { data: self.data, rows: self.rows, cols: self.cols, row_stride: self.row_stride }
    }

    /// The same matrix, read-only.
    pub fn as_ref(&self) -> MatRef<'_> {
        MatRef { data: self.data, rows: self.rows, cols: self.cols, row_stride: self.row_stride }
    }

    /// The part of the matrix in these rows and columns.
    ///
    /// # Panics
    /// When the ranges reach outside the matrix.
    pub fn block(&mut self, rows: Range<usize>, cols: Range<usize>) -> MatMut<'_> {
        let part = self.extent().block(&rows, &cols);
        MatMut { data: &mut self.data[part], rows: rows.len(), cols: cols.len(), row_stride: self.row_stride }
    }

    fn extent(&self) -> Extent {
        Extent { rows: self.rows, cols: self.cols, row_stride: self.row_stride }
    }
}
