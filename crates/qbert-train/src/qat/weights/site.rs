//! The quantizer of one site: where its weights lie, and how its ranges are found.

use std::ops::Range as Span;

use qbert_kernels::{CHUNK, Compute};
use qbert_model::{Module, ParameterLayout};
use qbert_quant::{
    Axis, BitWidth, Codebook, Error as QuantError, QuantParams, Range, RangeMethod, Scratch, Site, SitePlan,
};

use super::QuantResult;
use crate::error::Result;
use crate::qat::map;

/// One site of the plan.
#[derive(Debug)]
pub(super) struct SiteQuantizer {
    pub(super) site: Site,
    /// Its place among the weights.
    pub(super) span: Span<usize>,
    /// The place of its bias; empty where there is none.
    pub(super) bias: Span<usize>,
    pub(super) planned: SitePlan,
    pub(super) layout: qbert_quant::Layout,
    pub(super) bits: BitWidth,
    pub(super) params: QuantParams,
    /// Of a table whose values share codes. Then the ranges stay as they were found, and the entries follow the masters.
    pub(super) codebook: Option<Codebook>,
}

/// How a range is brought up to date.
#[derive(Debug, Clone, Copy)]
pub(super) enum Turn {
    /// From scratch.
    Fit,
    /// From where it is.
    Refine,
}

impl SiteQuantizer {
    /// The quantizer of a site in a model's layout, without ranges.
    pub(super) fn new(
        site: Site,
        weights: &ParameterLayout,
        planned: SitePlan,
        bits: BitWidth,
        heads: usize,
    ) -> Result<Self> {
        let parameter = weights.site(site).ok_or_else(|| crate::Error::NoParameter { name: site.to_string() })?;
        let (rows, cols) = (parameter.shape[0], parameter.shape[1]);
        let axis = if table_of(site).is_some() { Axis::Columns } else { Axis::Rows };
        let of_site = |error| at_site(site, error);
        let layout = planned.layout(rows, cols, axis, heads).map_err(of_site)?;
        let nothing = Range::new(0.0, 0.0).map_err(of_site)?;
        let ranges = vec![nothing; layout.groups().count()];
        let params = QuantParams::from_ranges(layout, bits, ranges).map_err(of_site)?;
        let (span, bias) = (parameter.span.clone(), bias_of(site, weights));
        let codebook = planned.product.map(|width| Codebook::empty(width, &params));
        Ok(Self { site, span, bias, planned, layout, bits, params, codebook })
    }

    /// Takes ranges that were found before, one per group.
    pub(super) fn set_ranges(&mut self, ranges: Vec<Range>) -> QuantResult<()> {
        self.params = QuantParams::from_ranges(self.layout, self.bits, ranges)?;
        if let Some(codebook) = &mut self.codebook {
            *codebook = Codebook::from_codes(codebook.width(), &self.params, codebook.codes().to_vec())?;
        }
        Ok(())
    }

    /// Takes the entries of a codebook that were found before.
    pub(super) fn set_entries(&mut self, codes: Vec<u8>) -> QuantResult<()> {
        match &mut self.codebook {
            Some(codebook) => *codebook = Codebook::from_codes(codebook.width(), &self.params, codes)?,
            None => return Err(QuantError::Length { what: "codebook", expected: 0, found: codes.len() }),
        }
        Ok(())
    }

    /// Brings the entries of some parts up to date.
    pub(super) fn find_entries(
        &mut self,
        compute: &Compute,
        values: &[f32],
        parts: &[usize],
        turn: Turn,
    ) -> QuantResult<()> {
        let (Some(codebook), params) = (&mut self.codebook, &self.params) else { return Ok(()) };
        let own = &*codebook;
        let found = map(compute, parts.len(), |index| match turn {
            Turn::Fit => own.fit_part(parts[index], values, params),
            Turn::Refine => own.refine_part(parts[index], values, params),
        });
        for (&part, entries) in parts.iter().zip(found) {
            codebook.set_part(part, &entries?, params)?;
        }
        Ok(())
    }

    /// Writes the quantized values of some rows.
    pub(super) fn fake_quantize_rows(&self, rows: Span<usize>, input: &[f32], output: &mut [f32]) -> QuantResult<()> {
        match &self.codebook {
            Some(codebook) => codebook.fake_quantize_rows(input, output),
            None => self.params.fake_quantize_rows(rows, input, output),
        }
    }

    /// How a range of this site is brought up to date.
    pub(super) fn turn(&self) -> Turn {
        let from_where_it_is = self.planned.range == RangeMethod::Mse || self.codebook.is_some();
        if from_where_it_is { Turn::Refine } else { Turn::Fit }
    }

    /// Whether the ranges are those from the smallest to the largest value, which one pass over the table finds.
    pub(super) fn has_column_ranges(&self) -> bool {
        self.layout.axis() == Axis::Columns && self.planned.range == RangeMethod::MinMax && self.codebook.is_none()
    }

    pub(super) fn find(&self, values: &[f32], group: usize, turn: Turn) -> QuantResult<Range> {
        let (bits, scratch) = (self.bits, &mut Scratch::default());
        match turn {
            Turn::Fit => self.layout.fit_group(values, group, bits, self.planned.range, scratch),
            Turn::Refine => self.layout.refine_group(values, group, bits, self.params.ranges()[group], scratch),
        }
    }

    /// The smallest and largest value of every group of columns in one pass over the table. Minima of minima are
    /// minima, so the split does not show.
    pub(super) fn find_column_ranges(&mut self, compute: &Compute, values: &[f32]) -> QuantResult<()> {
        let width = self.layout.cols();
        let rows = (16 * CHUNK / width).max(1);
        let parts: Vec<&[f32]> = values.chunks(rows * width).collect();
        let found = map(compute, parts.len(), |part| column_extremes(parts[part], width));
        let (mut low, mut high) = (vec![f32::INFINITY; width], vec![f32::NEG_INFINITY; width]);
        for (part_low, part_high, _) in &found {
            low.iter_mut().zip(part_low).for_each(|(low, &other)| *low = low.min(other));
            high.iter_mut().zip(part_high).for_each(|(high, &other)| *high = high.max(other));
        }
        let all_good = found.iter().all(|(_, _, good)| *good);
        for (group, span) in self.layout.groups().iter().enumerate() {
            let range = if all_good {
                let low = low[span.clone()].iter().copied().fold(f32::INFINITY, f32::min);
                Range::new(low, high[span].iter().copied().fold(f32::NEG_INFINITY, f32::max))?
            } else {
                // Slow, but it says which value is bad.
                self.layout.fit_group(values, group, self.bits, RangeMethod::MinMax, &mut Scratch::default())?
            };
            self.params.set_range(group, range)?;
        }
        Ok(())
    }
}

/// The extremes of each column, and whether every value may be part of a range.
fn column_extremes(values: &[f32], width: usize) -> (Vec<f32>, Vec<f32>, bool) {
    let (mut low, mut high) = (vec![f32::INFINITY; width], vec![f32::NEG_INFINITY; width]);
    let mut good = true;
    for row in values.chunks_exact(width) {
        for ((low, high), &value) in low.iter_mut().zip(&mut high).zip(row) {
            *low = if value < *low { value } else { *low };
            *high = if value > *high { value } else { *high };
            good &= value.abs() <= Range::LIMIT;
        }
    }
    (low, high, good)
}

/// Where the bias of a matrix lies; empty where there is none, as for embedding tables.
fn bias_of(site: Site, layout: &ParameterLayout) -> Span<usize> {
    layout.role(Module::Site(site).bias()).map_or(0..0, |parameter| parameter.span.clone())
}

/// The number of an embedding table.
pub(super) fn table_of(site: Site) -> Option<usize> {
    match site {
        Site::Embedding(table) => qbert_quant::Embedding::ALL.iter().position(|other| *other == table),
        Site::Layer(..) => None,
    }
}

pub(super) fn at_site(site: Site, source: QuantError) -> crate::Error {
    QuantError::AtSite { site, source: Box::new(source) }.into()
}
