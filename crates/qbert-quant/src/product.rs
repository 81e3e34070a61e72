//! Product codes of embedding tables: neighbouring values of a row share one code of a byte (Jégou et al., 2011).
//!
//! The columns of a table are cut into parts of a few. Each part has a codebook of 256 entries, and a row stores, for
//! every part, the number of an entry. The entries themselves are ordinary 8-bit codes on the ranges of their columns, so
//! whoever reads a row looks up its codes and then goes on as with any table. A table of 384 columns in parts of six takes
//! 64 bytes a row, 1.33 bits a value; the codebooks take as much as 256 rows of 8 bits.
//!
//! Rows are looked up and never multiplied, so this costs a kernel nothing. Matrices cannot be stored like this.
//!
//! Entries are found by k-means, part by part. A part depends on its own columns alone, so the caller may split the
//! work by parts, and [`Codebook::refine_part`] goes on from where the entries are, while the table is trained.

use std::fmt;
use std::ops::Range as Span;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::bits::{BitWidth, Precision};
use crate::error::Error;
use crate::matrix::QuantParams;
use crate::quantizer::check_finite;
use crate::range::check_length;
use crate::shorten::shorten;

/// The entries of a codebook: as many as a byte can name.
const ENTRIES: usize = 256;
/// Rounds of k-means from scratch. More change the error by less than a percent.
const ROUNDS: usize = 12;

/// The width of an embedding table: bits for each value, or a byte for several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableWidth {
    /// The width of the codes; 8 for product codes.
    pub bits: Precision,
    /// How many values share a code, if they do.
    pub product: Option<ProductWidth>,
}

impl TableWidth {
    /// The bits of one value; the codebook comes on top.
    pub fn number(self) -> f64 {
        self.bits.number() / self.product.map_or(1.0, |product| product.values() as f64)
    }
}

impl From<Precision> for TableWidth {
    fn from(bits: Precision) -> Self {
        Self { bits, product: None }
    }
}

/// `4`, or `8/6` for a byte that six values share.
impl FromStr for TableWidth {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let Some((bits, values)) = text.split_once('/') else { return Ok(text.parse::<Precision>()?.into()) };
        let bits: Precision = bits.parse()?;
        let wrong = || Error::ProductWidth { found: shorten(text).into_owned() };
        let product = values
            .trim()
            .parse()
            .map_err(|_| wrong())
            .and_then(|values| ProductWidth::new(values).map_err(|_| wrong()))?;
        if bits != Precision::Bits(BitWidth::EIGHT) {
            return Err(wrong());
        }
        Ok(Self { bits, product: Some(product) })
    }
}

impl fmt::Display for TableWidth {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.product {
            None => self.bits.fmt(formatter),
            Some(product) => write!(formatter, "{}/{product}", self.bits),
        }
    }
}

/// A number, or a text for product codes.
impl Serialize for TableWidth {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.product {
            None => self.bits.serialize(serializer),
            Some(_) => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for TableWidth {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Bits(Precision),
            Text(String),
        }
        match Form::deserialize(deserializer)? {
            Form::Bits(bits) => Ok(bits.into()),
            Form::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

/// How many neighbouring values of a row share a code: 2 to 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ProductWidth(u8);

impl ProductWidth {
    /// Checks that `values` is 2 to 16.
    ///
    /// # Errors
    /// [`Error::ProductWidth`] for every other number.
    pub fn new(values: u8) -> Result<Self, Error> {
        match values {
            2..=16 => Ok(Self(values)),
            _ => Err(Error::ProductWidth { found: values.to_string() }),
        }
    }

    /// The number of values.
    pub fn values(self) -> usize {
        usize::from(self.0)
    }

    /// How many codes a row of so many columns has. The last one may stand for fewer values.
    pub fn parts(self, cols: usize) -> usize {
        cols.div_ceil(self.values())
    }

    /// The columns of one part.
    pub fn span(self, part: usize, cols: usize) -> Span<usize> {
        let end = (part + 1).saturating_mul(self.values()).min(cols);
        (part * self.values()).min(end)..end
    }
}

impl fmt::Display for ProductWidth {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// The entries of all parts of a table, as a table of 256 rows: row `e` holds the entries of number `e`.
#[derive(Clone, Debug, PartialEq)]
pub struct Codebook {
    width: ProductWidth,
    cols: usize,
    /// `[256, cols]`, codes of 8 bits.
    codes: Vec<u8>,
    /// The values of the codes column by column, `[cols, 256]`, so that one value is compared with all entries at once.
    values: Vec<f32>,
}

impl Codebook {
    /// The entries of each part.
    pub const ENTRIES: usize = ENTRIES;

    /// The bytes of a codebook.
    pub fn len(cols: usize) -> usize {
        ENTRIES * cols
    }

    /// A codebook whose entries are all zero codes.
    pub fn empty(width: ProductWidth, params: &QuantParams) -> Self {
        let cols = params.layout().cols();
        let mut book = Self { width, cols, codes: vec![0; Self::len(cols)], values: vec![0.0; Self::len(cols)] };
        (0..width.parts(cols)).for_each(|part| book.write_values(part, params));
        book
    }

    /// A codebook from its stored entries.
    ///
    /// # Errors
    /// [`Error::Length`] when there are not 256 codes for every column.
    pub fn from_codes(width: ProductWidth, params: &QuantParams, codes: Vec<u8>) -> Result<Self, Error> {
        check_length("codebook", Self::len(params.layout().cols()), codes.len())?;
        let mut book = Self::empty(width, params);
        book.codes = codes;
        (0..book.parts()).for_each(|part| book.write_values(part, params));
        Ok(book)
    }

    /// How many values share a code.
    pub fn width(&self) -> ProductWidth {
        self.width
    }

    /// How many codes a row has.
    pub fn parts(&self) -> usize {
        self.width.parts(self.cols)
    }

    /// The entries, `[256, cols]`.
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// The entries of one part for the whole table `values`, from scratch: `[256, columns of the part]`.
    ///
    /// # Errors
    /// [`Error::Length`] when `values` is not a table of these columns; [`Error::BadValue`] for NaN or infinity.
    pub fn fit_part(&self, part: usize, values: &[f32], params: &QuantParams) -> Result<Vec<u8>, Error> {
        let points = self.points(part, values)?;
        let dims = self.width.span(part, self.cols).len();
        let rows = points.len() / dims;
        // The rows that the entries begin with, spread evenly over the table.
        let start = (0..ENTRIES).flat_map(|entry| {
            let row = entry * rows / ENTRIES;
            points[row * dims..(row + 1) * dims].iter().copied()
        });
        Ok(self.improve(part, &points, transpose(start, dims), params, ROUNDS))
    }

    /// One round of k-means from the present entries, for new values of the table.
    ///
    /// # Errors
    /// As [`Codebook::fit_part`].
    pub fn refine_part(&self, part: usize, values: &[f32], params: &QuantParams) -> Result<Vec<u8>, Error> {
        let points = self.points(part, values)?;
        let span = self.width.span(part, self.cols);
        let start = self.values[span.start * ENTRIES..span.end * ENTRIES].to_vec();
        Ok(self.improve(part, &points, start, params, 1))
    }

    /// Replaces the entries of one part by what [`Codebook::fit_part`] or [`Codebook::refine_part`] found.
    ///
    /// # Errors
    /// [`Error::Length`] when there are not 256 entries of this part.
    pub fn set_part(&mut self, part: usize, entries: &[u8], params: &QuantParams) -> Result<(), Error> {
        let span = self.width.span(part, self.cols);
        check_length("entries", ENTRIES * span.len(), entries.len())?;
        for (row, entry) in self.codes.chunks_exact_mut(self.cols).zip(entries.chunks_exact(span.len())) {
            row[span.clone()].copy_from_slice(entry);
        }
        self.write_values(part, params);
        Ok(())
    }

    /// Writes the values of the nearest entries of some rows; both slices hold these rows and nothing else.
    ///
    /// # Errors
    /// [`Error::Length`] when the slices are not whole rows; [`Error::BadValue`] for NaN or infinity.
    pub fn fake_quantize_rows(&self, input: &[f32], output: &mut [f32]) -> Result<(), Error> {
        check_length("output", input.len(), output.len())?;
        self.each_part(input, |place, span, entry| {
            for (column, value) in span.clone().zip(&mut output[place..place + span.len()]) {
                *value = self.values[column * ENTRIES + entry];
            }
        })
    }

    /// The number of the nearest entry of every part of every row.
    ///
    /// # Errors
    /// As [`Codebook::fake_quantize_rows`].
    pub fn quantize(&self, input: &[f32]) -> Result<Vec<u8>, Error> {
        let mut numbers = Vec::with_capacity(input.len() / self.cols * self.parts());
        self.each_part(input, |_, _, entry| numbers.push(entry as u8))?;
        Ok(numbers)
    }

    /// The 8-bit codes that the numbers of [`Codebook::quantize`] stand for, row by row.
    ///
    /// # Errors
    /// [`Error::Length`] when the numbers are not those of whole rows.
    pub fn expand(&self, numbers: &[u8]) -> Result<Vec<u8>, Error> {
        let parts = self.parts();
        check_length("codes", numbers.len().next_multiple_of(parts), numbers.len())?;
        let mut codes = Vec::with_capacity(numbers.len() / parts * self.cols);
        for row in numbers.chunks_exact(parts) {
            for (part, &entry) in row.iter().enumerate() {
                let span = self.width.span(part, self.cols);
                codes.extend_from_slice(&self.codes[usize::from(entry) * self.cols..][span]);
            }
        }
        Ok(codes)
    }

    /// Calls `found` with the place in `input`, the columns and the nearest entry of every part of every row.
    fn each_part(&self, input: &[f32], mut found: impl FnMut(usize, Span<usize>, usize)) -> Result<(), Error> {
        check_length("input", input.len().next_multiple_of(self.cols), input.len())?;
        let mut distances = [0.0; ENTRIES];
        for (row, values) in input.chunks_exact(self.cols).enumerate() {
            for part in 0..self.parts() {
                let span = self.width.span(part, self.cols);
                let entries = &self.values[span.start * ENTRIES..span.end * ENTRIES];
                let (entry, _) = nearest(entries, &values[span.clone()], &mut distances);
                found(row * self.cols + span.start, span, entry);
            }
        }
        check_finite(input)
    }

    /// The values of one part of all rows.
    fn points(&self, part: usize, values: &[f32]) -> Result<Vec<f32>, Error> {
        if values.is_empty() {
            return Err(Error::NoValues);
        }
        check_length("table", values.len().next_multiple_of(self.cols), values.len())?;
        check_finite(values)?;
        let span = self.width.span(part, self.cols);
        Ok(values.chunks_exact(self.cols).flat_map(|row| row[span.clone()].iter().copied()).collect())
    }

    /// K-means: every point goes to its nearest entry, every entry to the mean of its points. Returns codes,
    /// `[256, columns of the part]`.
    fn improve(
        &self,
        part: usize,
        points: &[f32],
        mut entries: Vec<f32>,
        params: &QuantParams,
        rounds: usize,
    ) -> Vec<u8> {
        let dims = entries.len() / ENTRIES;
        let mut distances = [0.0; ENTRIES];
        for _ in 0..rounds {
            let mut sums = vec![0.0_f64; ENTRIES * dims];
            let mut counts = [0_u32; ENTRIES];
            let mut far: Vec<(f32, usize)> = Vec::new();
            for (row, point) in points.chunks_exact(dims).enumerate() {
                let (entry, distance) = nearest(&entries, point, &mut distances);
                counts[entry] += 1;
                sums[entry * dims..][..dims].iter_mut().zip(point).for_each(|(sum, &value)| *sum += f64::from(value));
                far.push((distance, row));
            }
            // An entry without points takes one of those that are farthest from theirs.
            let empty = counts.iter().filter(|&&count| count == 0).count();
            far.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            let mut far = far.into_iter().take(empty).filter(|(distance, _)| *distance > 0.0);
            for (entry, &count) in counts.iter().enumerate() {
                let new = match count {
                    0 => far.next().map(|(_, row)| points[row * dims..(row + 1) * dims].to_vec()),
                    _ => Some(sums[entry * dims..][..dims].iter().map(|sum| (sum / f64::from(count)) as f32).collect()),
                };
                for (dim, value) in new.unwrap_or_default().into_iter().enumerate() {
                    entries[dim * ENTRIES + entry] = value;
                }
            }
        }
        let groups = params.layout().groups();
        let first = self.width.span(part, self.cols).start;
        let affines: Vec<_> = (0..dims).map(|dim| params.affines()[groups.group_of(first + dim)]).collect();
        let code = |entry: usize| affines.iter().enumerate().map(move |(dim, own)| (dim, entry, own));
        (0..ENTRIES).flat_map(code).map(|(dim, entry, own)| own.code(entries[dim * ENTRIES + entry])).collect()
    }

    fn write_values(&mut self, part: usize, params: &QuantParams) {
        let groups = params.layout().groups();
        for column in self.width.span(part, self.cols) {
            let affine = params.affines()[groups.group_of(column)];
            for (entry, value) in self.values[column * ENTRIES..(column + 1) * ENTRIES].iter_mut().enumerate() {
                *value = affine.value(self.codes[entry * self.cols + column]);
            }
        }
    }
}

/// `[256, dims]` to `[dims, 256]`.
fn transpose(values: impl Iterator<Item = f32>, dims: usize) -> Vec<f32> {
    let mut columns = vec![0.0; ENTRIES * dims];
    for (index, value) in values.enumerate() {
        columns[index % dims * ENTRIES + index / dims] = value;
    }
    columns
}

/// The nearest of the entries `[dims, 256]` and its squared distance; the first of equally near ones. Sums have a fixed
/// order, so every CPU finds the same one.
fn nearest(entries: &[f32], point: &[f32], distances: &mut [f32; ENTRIES]) -> (usize, f32) {
    distances.fill(0.0);
    for (&value, column) in point.iter().zip(entries.as_chunks::<ENTRIES>().0) {
        for (distance, &entry) in distances.iter_mut().zip(column) {
            let difference = value - entry;
            *distance += difference * difference;
        }
    }
    // The minimum first, which has no branches, then its place.
    let mut lanes = [f32::INFINITY; 16];
    for chunk in distances.as_chunks::<16>().0 {
        lanes
            .iter_mut()
            .zip(chunk)
            .for_each(|(least, &distance)| *least = if distance < *least { distance } else { *least });
    }
    let least = lanes.into_iter().fold(f32::INFINITY, f32::min);
    (distances.iter().position(|&distance| distance == least).unwrap_or(0), least)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::{Axis, Layout};
    use crate::range::{RangeMethod, Scratch};
    use proptest::prelude::*;

    fn table(rows: usize, cols: usize, seed: u32) -> Vec<f32> {
        let mut state = u64::from(seed) + 1;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 24) as f32 - 0.5
        };
        (0..rows * cols).map(|_| next() + next() + next()).collect()
    }

    fn fitted(values: &[f32], cols: usize, width: u8) -> (QuantParams, Codebook) {
        let layout = Layout::new(values.len() / cols, cols, Axis::Columns, cols.min(4)).unwrap();
        let eight = BitWidth::EIGHT;
        let params = QuantParams::fit(values, layout, eight, RangeMethod::MinMax, &mut Scratch::default()).unwrap();
        let mut book = Codebook::empty(ProductWidth::new(width).unwrap(), &params);
        for part in 0..book.parts() {
            let entries = book.fit_part(part, values, &params).unwrap();
            book.set_part(part, &entries, &params).unwrap();
        }
        (params, book)
    }

    fn error(book: &Codebook, values: &[f32]) -> f64 {
        let mut output = vec![0.0; values.len()];
        book.fake_quantize_rows(values, &mut output).unwrap();
        values.iter().zip(&output).map(|(a, b)| f64::from(a - b).powi(2)).sum()
    }

    #[test]
    fn few_rows_are_kept_to_a_step_of_eight_bits() {
        let values = table(200, 10, 1);
        let (params, book) = fitted(&values, 10, 4);
        let mut output = vec![0.0; values.len()];
        book.fake_quantize_rows(&values, &mut output).unwrap();
        let step = params.affines().iter().map(|affine| affine.step()).fold(0.0, f32::max);
        for (value, quantized) in values.iter().zip(&output) {
            assert!((value - quantized).abs() <= 0.51 * step, "{value} {quantized}");
        }
    }

    #[test]
    fn the_error_of_many_rows_is_that_of_a_good_codebook() {
        // 1.33 bits for each of six values: a byte for six. Rounding each value to one bit alone has a larger error.
        let values = table(4000, 12, 2);
        let (_, book) = fitted(&values, 12, 6);
        let layout = Layout::new(4000, 12, Axis::Columns, 12).unwrap();
        let one = QuantParams::fit(&values, layout, BitWidth::ONE, RangeMethod::Mse, &mut Scratch::default()).unwrap();
        let mut output = vec![0.0; values.len()];
        one.fake_quantize(&values, &mut output).unwrap();
        let by_one: f64 = values.iter().zip(&output).map(|(a, b)| f64::from(a - b).powi(2)).sum();
        assert!(error(&book, &values) < 0.75 * by_one, "{} {by_one}", error(&book, &values));
    }

    #[test]
    fn a_refined_part_follows_the_values() {
        let mut values = table(3000, 8, 3);
        let (params, mut book) = fitted(&values, 8, 4);
        values.iter_mut().for_each(|value| *value = 0.6 * *value + 0.1);
        let before = error(&book, &values);
        for part in 0..book.parts() {
            let entries = book.refine_part(part, &values, &params).unwrap();
            book.set_part(part, &entries, &params).unwrap();
        }
        assert!(error(&book, &values) < 0.8 * before);
    }

    #[test]
    fn widths_read_back_and_others_are_refused() {
        for text in ["4", "1.6", "32", "8/6", "8/4"] {
            let width: TableWidth = text.parse().unwrap();
            assert_eq!(width.to_string(), text);
            let json = serde_json::to_string(&width).unwrap();
            assert_eq!(serde_json::from_str::<TableWidth>(&json).unwrap(), width);
        }
        for text in ["8/1", "8/17", "4/6", "8/", "/6", "8/six", "32/6"] {
            assert!(text.parse::<TableWidth>().is_err(), "{text}");
        }
    }

    #[test]
    fn bad_values_are_named() {
        let values = table(300, 8, 4);
        let (params, book) = fitted(&values, 8, 4);
        let mut bad = values.clone();
        bad[17] = f32::NAN;
        assert!(matches!(book.fit_part(0, &bad, &params), Err(Error::BadValue { index: 17, .. })));
        assert!(matches!(book.quantize(&bad), Err(Error::BadValue { index: 17, .. })));
        assert!(book.quantize(&values[1..]).is_err() && book.fit_part(0, &[], &params).is_err());
        assert!(Codebook::from_codes(book.width(), &params, vec![0; 7]).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn codes_and_values_agree(cols in 1_usize..20, width in 2_u8..9, rows in 1_usize..40, seed in 0_u32..100) {
            let values = table(rows, cols, seed);
            let (params, book) = fitted(&values, cols, width);
            let codes = book.expand(&book.quantize(&values).unwrap()).unwrap();
            let mut output = vec![0.0; values.len()];
            book.fake_quantize_rows(&values, &mut output).unwrap();
            for (index, (&code, &value)) in codes.iter().zip(&output).enumerate() {
                let affine = params.affines()[params.layout().groups().group_of(index % cols)];
                prop_assert_eq!(affine.value(code), value);
            }
            let again = Codebook::from_codes(book.width(), &params, book.codes().to_vec()).unwrap();
            prop_assert_eq!(again, book);
        }
    }
}
