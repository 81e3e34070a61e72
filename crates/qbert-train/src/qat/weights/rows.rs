//! The weights cut into rows for threads, and the rows of embedding tables that a step uses.

use std::ops::Range as Span;

use qbert_kernels::CHUNK;
use qbert_model::Config;

use super::QuantResult;
use super::site::SiteQuantizer;
use crate::batch::Batch;

/// The rows of the three embedding tables that a step uses, ascending.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsedRows(pub(super) [Vec<usize>; 3]);

impl UsedRows {
    /// The rows that these batches use.
    pub fn of<'a>(config: &Config, batches: impl IntoIterator<Item = &'a Batch>) -> Self {
        let (mut words, mut longest, mut types) = (Vec::new(), 0, Vec::new());
        for batch in batches {
            words.extend(batch.input_ids.iter().map(|&id| id as usize));
            types.extend(batch.segments.iter().map(|&segment| usize::from(segment)));
            longest = batch.ranges().map(|range| range.len()).fold(longest, usize::max);
        }
        for rows in [&mut words, &mut types] {
            rows.sort_unstable();
            rows.dedup();
        }
        Self([words, config.used_position_rows(longest).collect(), types])
    }
}

/// Rows that a thread quantizes from the masters into the target, or whose gradients in the target it masks.
pub(super) struct Task<'a> {
    /// The site, if it is quantized.
    pub(super) site: Option<&'a SiteQuantizer>,
    pub(super) rows: Span<usize>,
    pub(super) masters: &'a [f32],
    pub(super) target: &'a mut [f32],
    pub(super) result: QuantResult<()>,
}

/// A span of the masters and of their target.
pub(super) struct Cut<'a> {
    pub(super) masters: &'a [f32],
    pub(super) target: &'a mut [f32],
}

impl<'a> Cut<'a> {
    /// Cuts off the first `length` values.
    pub(super) fn take(&mut self, length: usize) -> Cut<'a> {
        let (masters, later) = self.masters.split_at(length);
        let (target, later_target) = std::mem::take(&mut self.target).split_at_mut(length);
        (self.masters, self.target) = (later, later_target);
        Cut { masters, target }
    }

    /// All rows, in tasks of about [`CHUNK`] elements.
    pub(super) fn rows(self, site: Option<&'a SiteQuantizer>, width: usize, tasks: &mut Vec<Task<'a>>) {
        let rows = (CHUNK / width).max(1);
        let pairs = self.masters.chunks(rows * width).zip(self.target.chunks_mut(rows * width));
        for (index, (masters, target)) in pairs.enumerate() {
            let rows = index * rows..index * rows + masters.len() / width;
            tasks.push(Task { site, rows, masters, target, result: Ok(()) });
        }
    }

    /// Some rows, ascending, each a task.
    pub(super) fn some_rows(
        mut self,
        site: Option<&'a SiteQuantizer>,
        width: usize,
        rows: &[usize],
        tasks: &mut Vec<Task<'a>>,
    ) {
        let mut next = 0;
        for &row in rows {
            self.take((row - next) * width);
            let Cut { masters, target } = self.take(width);
            next = row + 1;
            tasks.push(Task { site, rows: row..next, masters, target, result: Ok(()) });
        }
    }
}
