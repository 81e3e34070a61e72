//! A quantized matrix as it is stored: codes, and one offset and step per group.
//!
//! This is what packed files, exports and integer kernels read. For training use
//! [`QuantParams::fake_quantize`], which gives the same values without storing codes.

use crate::bits::BitWidth;
use crate::error::Error;
use crate::matrix::{Axis, Layout, QuantParams};
use crate::product::{Codebook, ProductWidth};
use crate::quantizer::Affine;
use crate::range::{Range, check_length};
use std::ops;

/// The codes of a matrix, one byte each, with the quantizers of its groups.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizedMatrix {
    layout: Layout,
    bits: BitWidth,
    affines: Vec<Affine>,
    /// Of the rows of a table, if they have ranges: these are stored, and not what follows from them.
    row_ranges: Vec<Range>,
    codes: Vec<u8>,
    product: Option<ProductCodes>,
}

/// The stored form of a table whose values share codes.
#[derive(Clone, Debug, PartialEq)]
pub struct ProductCodes {
    /// How many values share a code.
    pub width: ProductWidth,
    /// The entries, `[256, cols]`.
    pub codebook: Vec<u8>,
    /// The number of an entry for every part of every row.
    pub numbers: Vec<u8>,
}

/// What an integer kernel or an export needs to know of one output neuron:
/// `value = step · code + low` for its codes, and the sum of the codes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowParams {
    /// The offset `q0` of the neuron's group.
    pub low: f32,
    /// The step `Δ` of the neuron's group.
    pub step: f32,
    /// `Σ wI`, the sum of the neuron's codes.
    pub code_sum: u32,
}

impl QuantizedMatrix {
    /// Quantizes a whole matrix.
    ///
    /// # Errors
    /// As [`QuantParams::quantize_rows`].
    pub fn quantize(values: &[f32], params: &QuantParams) -> Result<Self, Error> {
        let layout = params.layout();
        let mut codes = vec![0; layout.elements()];
        params.quantize_rows(0..layout.rows(), values, &mut codes)?;
        let (bits, affines) = (params.bits(), params.affines().to_vec());
        let row_ranges = if layout.axis() == Axis::TableRows { params.ranges().to_vec() } else { Vec::new() };
        Ok(Self { layout, bits, affines, row_ranges, codes, product: None })
    }

    /// Quantizes a whole table to product codes. Its codes are those that the entries of the codebook stand for.
    ///
    /// # Errors
    /// As [`Codebook::quantize`].
    pub fn quantize_product(values: &[f32], params: &QuantParams, codebook: &Codebook) -> Result<Self, Error> {
        let numbers = codebook.quantize(values)?;
        let product = ProductCodes { width: codebook.width(), codebook: codebook.codes().to_vec(), numbers };
        let codes = codebook.expand(&product.numbers)?;
        check_length("codes", params.layout().elements(), codes.len())?;
        let (layout, affines) = (params.layout(), params.affines().to_vec());
        Ok(Self { layout, bits: params.bits(), affines, row_ranges: Vec::new(), codes, product: Some(product) })
    }

    /// Puts a matrix together from stored parts.
    ///
    /// # Errors
    /// [`Error::Length`] when the numbers of quantizers or codes do not fit the layout,
    /// [`Error::Code`] for a code that is too large, [`Error::BitWidth`] when a quantizer has another
    /// width, [`Error::RowGroups`] for a table whose rows have ranges.
    pub fn from_parts(layout: Layout, bits: BitWidth, affines: Vec<Affine>, codes: Vec<u8>) -> Result<Self, Error> {
        check_length("quantizers", layout.groups().count(), affines.len())?;
        check_length("codes", layout.elements(), codes.len())?;
        check_codes(&codes, bits)?;
        if let Some(other) = affines.iter().find(|affine| affine.bits() != bits) {
            return Err(Error::BitWidth { found: other.bits().to_string() });
        }
        if layout.axis() == Axis::TableRows {
            return Err(Error::RowGroups);
        }
        Ok(Self { layout, bits, affines, row_ranges: Vec::new(), codes, product: None })
    }

    /// The shape and grouping.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The width of the codes.
    pub fn bits(&self) -> BitWidth {
        self.bits
    }

    /// The quantizer of each group.
    pub fn affines(&self) -> &[Affine] {
        &self.affines
    }

    /// The range of every row of a table of [`Axis::TableRows`]; empty for other layouts.
    pub fn row_ranges(&self) -> &[Range] {
        &self.row_ranges
    }

    /// The codes, row-major, one byte each.
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// The stored form of the codes, if values share them.
    pub fn product(&self) -> Option<&ProductCodes> {
        self.product.as_ref()
    }

    /// The values of the whole matrix.
    pub fn dequantize(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.layout.elements()];
        self.write_rows(0..self.layout.rows(), &mut values);
        values
    }

    /// Writes the values of some rows into `output`, which holds these rows and nothing else. With
    /// [`Axis::Columns`] a span of one row is an embedding lookup.
    ///
    /// # Errors
    /// [`Error::Rows`] when there are no such rows, [`Error::Length`] when `output` does not fit them.
    pub fn dequantize_rows(&self, rows: ops::Range<usize>, output: &mut [f32]) -> Result<(), Error> {
        self.layout.check_rows("output", &rows, output.len())?;
        self.write_rows(rows, output);
        Ok(())
    }

    fn write_rows(&self, rows: ops::Range<usize>, output: &mut [f32]) {
        let (cols, groups) = (self.layout.cols(), self.layout.groups());
        let codes = self.codes[rows.start * cols..rows.end * cols].chunks_exact(cols);
        for (row, (codes, values)) in rows.zip(codes.zip(output.chunks_exact_mut(cols))) {
            let write = |affine: &Affine, span: ops::Range<usize>, values: &mut [f32]| {
                for (value, &code) in values[span.clone()].iter_mut().zip(&codes[span]) {
                    *value = affine.value(code);
                }
            };
            match self.layout.axis() {
                Axis::Rows | Axis::TableRows => write(&self.affines[groups.group_of(row)], 0..cols, values),
                Axis::Columns => {
                    for (affine, span) in self.affines.iter().zip(groups.iter()) {
                        write(affine, span, values);
                    }
                }
            }
        }
    }

    /// One entry for everything that has a range, in order: per column with [`Axis::Columns`], otherwise per row.
    pub fn row_params(&self) -> Vec<RowParams> {
        let mut sums = vec![0_u32; self.layout.groups().neurons()];
        for (row, codes) in self.codes.chunks_exact(self.layout.cols()).enumerate() {
            match self.layout.axis() {
                Axis::Rows | Axis::TableRows => sums[row] = codes.iter().map(|&code| u32::from(code)).sum(),
                Axis::Columns => sums.iter_mut().zip(codes).for_each(|(sum, &code)| *sum += u32::from(code)),
            }
        }
        let groups = self.affines.iter().zip(self.layout.groups().iter());
        let per_neuron = groups.flat_map(|(affine, span)| span.map(|_| (affine.low(), affine.step())));
        per_neuron.zip(sums).map(|((low, step), code_sum)| RowParams { low, step, code_sum }).collect()
    }
}

/// Refuses codes above the largest one.
fn check_codes(codes: &[u8], bits: BitWidth) -> Result<(), Error> {
    let largest = codes.iter().fold(0, |largest: u8, &code| largest.max(code));
    if largest <= bits.max_code() {
        return Ok(());
    }
    let index = codes.iter().position(|&code| code > bits.max_code()).unwrap_or(0);
    Err(Error::Code { index, code: codes[index], bits })
}
