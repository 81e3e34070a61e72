//! Weights of a plan's sites: ranges that follow the masters, quantized copies, straight-through gradients (§3.1, §3.3).
//!
//! How ranges follow, by the method of the site:
//!
//! - `min-max`: found anew in every step, as the paper does. Nothing is ever outside, so there is no mask.
//! - `mse` and `percentile`: found once, then a share of the groups in every step, in turn: `mse` from where they are
//!   ([`qbert_quant::range::refine`]), percentiles anew. Between two turns a weight moves by a small part of a step, and
//!   the ranges of a checkpoint are brought up to date when it is evaluated.
//!
//! Tables of embeddings are large and a batch uses few of their rows: a step quantizes and masks only those.
//!
//! Every loop is split by shape alone, so that any number of threads gives the same bytes.

use std::ops::Range as Span;

use qbert_kernels::int::{Neurons, WideWeights};
use qbert_kernels::{CHUNK, Compute};
use qbert_model::{Config, Module, ParameterLayout};
use qbert_quant::{
    Axis, BitWidth, Error as QuantError, Plan, QuantParams, Range, RangeMethod, Scratch, Site, SitePlan,
};

use super::compensate::Rounded;
use super::map;
use crate::batch::Batch;
use crate::bert::WeightCodes;
use crate::error::Result;

type QuantResult<T> = std::result::Result<T, QuantError>;

/// The ranges of groups of up to this many values take turns in [`TURN`] steps, those of larger ones in [`LONG_TURN`].
const LARGE_GROUP: usize = 1 << 16;
const TURN: usize = 16;
const LONG_TURN: usize = 256;

/// The rows of the three embedding tables that a step uses, ascending.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsedRows([Vec<usize>; 3]);

impl UsedRows {
    /// Those of these batches.
    pub fn of<'a>(batches: impl IntoIterator<Item = &'a Batch>) -> Self {
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
        Self([words, (0..longest).collect(), types])
    }
}

/// One site of the plan.
#[derive(Debug)]
struct SiteQuantizer {
    site: Site,
    /// Its place among the weights.
    span: Span<usize>,
    /// That of its bias; empty for embedding tables, which have none.
    bias: Span<usize>,
    planned: SitePlan,
    layout: qbert_quant::Layout,
    bits: BitWidth,
    params: QuantParams,
}

/// A span of the weights in the order of the layout.
#[derive(Debug)]
enum Part {
    /// Copied as it is.
    Plain(Span<usize>),
    /// The site of this index.
    Site(usize),
    /// An embedding table that is not quantized: rows are copied as they are used. Which table, and its width.
    PlainTable(Span<usize>, usize, usize),
}

/// The quantizers of all sites of a plan.
#[derive(Debug)]
pub struct WeightQuantizer {
    sites: Vec<SiteQuantizer>,
    parts: Vec<Part>,
}

/// Some rows on their way from the masters to the copy, or gradients on their way back.
struct Task<'a> {
    /// The site, where it is quantized.
    site: Option<&'a SiteQuantizer>,
    rows: Span<usize>,
    masters: &'a [f32],
    target: &'a mut [f32],
    result: QuantResult<()>,
}

impl WeightQuantizer {
    /// The sites of a plan in a model's layout, without ranges.
    ///
    /// # Errors
    /// When the plan is for another number of layers, or a matrix cannot be grouped as it says.
    pub fn new(plan: &Plan, config: &Config, layout: &ParameterLayout) -> Result<Self> {
        plan.check_layers(config.layers)?;
        let mut by_span: Vec<(Span<usize>, usize, Site, &SitePlan)> = Vec::new();
        for (site, planned) in plan.sites() {
            let parameter = layout.site(site).ok_or_else(|| crate::Error::NoParameter { name: site.to_string() })?;
            by_span.push((parameter.span.clone(), parameter.shape[1], site, planned));
        }
        by_span.sort_by_key(|(span, ..)| span.start);
        let (mut sites, mut parts, mut end) = (Vec::new(), Vec::new(), 0);
        for (span, width, site, planned) in by_span {
            if span.start > end {
                parts.push(Part::Plain(end..span.start));
            }
            end = span.end;
            match (planned.bits.width(), table_of(site)) {
                (Some(bits), _) => {
                    let spans = (span, bias_of(site, layout)?);
                    let quantizer = SiteQuantizer::new(site, spans, width, (planned, bits), config.heads);
                    parts.push(Part::Site(sites.len()));
                    sites.push(quantizer.map_err(|error| at_site(site, error))?);
                }
                (None, Some(table)) => parts.push(Part::PlainTable(span, table, width)),
                (None, None) => parts.push(Part::Plain(span)),
            }
        }
        if layout.len() > end {
            parts.push(Part::Plain(end..layout.len()));
        }
        Ok(Self { sites, parts })
    }

    /// The quantizer of a site; `None` where it is not quantized.
    pub fn params(&self, site: Site) -> Option<&QuantParams> {
        self.sites.iter().find(|own| own.site == site).map(|own| &own.params)
    }

    /// Every quantized site with its quantizer.
    pub fn iter(&self) -> impl Iterator<Item = (Site, &QuantParams)> {
        self.sites.iter().map(|own| (own.site, &own.params))
    }

    /// The quantized matrices of the encoder.
    pub(super) fn matrices(&self) -> impl Iterator<Item = Rounded<'_>> {
        let matrices = self.sites.iter().filter(|own| table_of(own.site).is_none());
        matrices.map(|own| Rounded { site: own.site, span: own.span.clone(), params: &own.params })
    }

    /// Sets the ranges of a site, one per group.
    ///
    /// # Errors
    /// When there is no such site, or it has another number of groups.
    pub fn set_ranges(&mut self, site: Site, ranges: Vec<Range>) -> Result<()> {
        let Some(own) = self.sites.iter_mut().find(|own| own.site == site) else {
            return Err(at_site(site, QuantError::Length { what: "ranges", expected: 0, found: ranges.len() }));
        };
        own.params = QuantParams::from_ranges(own.layout, own.bits, ranges).map_err(|error| at_site(site, error))?;
        Ok(())
    }

    /// The ends of all ranges in one array, to be stored.
    pub fn flat_ranges(&self) -> Vec<f32> {
        let ranges = self.sites.iter().flat_map(|own| own.params.ranges());
        ranges.flat_map(|range| [range.low(), range.high()]).collect()
    }

    /// Goes on from stored ranges.
    ///
    /// # Errors
    /// When they are not those of this plan and model.
    pub fn restore_ranges(&mut self, flat: &[f32]) -> Result<()> {
        let found = flat.len();
        let expected = 2 * self.sites.iter().map(|own| own.params.ranges().len()).sum::<usize>();
        if found != expected {
            return Err(QuantError::Length { what: "stored ranges", expected, found }.into());
        }
        let (mut pairs, _) = flat.as_chunks::<2>();
        for own in &mut self.sites {
            let (mine, rest) = pairs.split_at(own.params.ranges().len());
            pairs = rest;
            let ranges: QuantResult<Vec<Range>> = mine.iter().map(|[l, h]| Range::new(*l, *h)).collect();
            own.params = QuantParams::from_ranges(own.layout, own.bits, ranges?)?;
        }
        Ok(())
    }

    /// Finds every range from scratch.
    ///
    /// # Errors
    /// A weight that no range can hold; the error names the site.
    pub fn fit(&mut self, compute: &Compute, masters: &[f32]) -> Result<()> {
        self.update(compute, masters, |_, _, _| Some(Turn::Fit))
    }

    /// Brings every range up to date from where it is.
    ///
    /// # Errors
    /// As [`WeightQuantizer::fit`].
    pub fn refine(&mut self, compute: &Compute, masters: &[f32]) -> Result<()> {
        self.update(compute, masters, |own, _, _| Some(own.turn()))
    }

    /// The same while the matrices hold values that were rounded with their ranges: a range found from scratch, such as
    /// from the smallest to the largest of them, would round them once more. One with the least error stays where it is,
    /// since there is none.
    ///
    /// # Errors
    /// As [`WeightQuantizer::fit`].
    pub fn refine_rounded(&mut self, compute: &Compute, masters: &[f32]) -> Result<()> {
        self.update(compute, masters, |own, _, _| {
            let may_change = table_of(own.site).is_some() || own.planned.range == RangeMethod::Mse;
            may_change.then(|| own.turn())
        })
    }

    /// Brings up to date the ranges whose turn it is in this step, counted over the whole run.
    ///
    /// # Errors
    /// As [`WeightQuantizer::fit`].
    pub fn follow(&mut self, compute: &Compute, masters: &[f32], step: usize) -> Result<()> {
        self.update(compute, masters, |own, index, values| {
            let turn = if values > LARGE_GROUP { LONG_TURN } else { TURN };
            ((index + step).is_multiple_of(turn) || own.planned.range == RangeMethod::MinMax).then(|| own.turn())
        })
    }

    /// Finds new ranges for the groups that `turn` names, given the site, the group's number in the whole model and the
    /// number of its values.
    fn update(
        &mut self,
        compute: &Compute,
        masters: &[f32],
        turn: impl Fn(&SiteQuantizer, usize, usize) -> Option<Turn>,
    ) -> Result<()> {
        let (mut due, mut index) = (Vec::new(), 0);
        for (number, own) in self.sites.iter().enumerate() {
            let groups = own.layout.groups();
            if own.layout.axis() == Axis::Columns && own.planned.range == RangeMethod::MinMax {
                index += groups.count();
                continue;
            }
            for group in 0..groups.count() {
                let values = groups.span(group).len() * (own.layout.elements() / groups.neurons());
                if let Some(turn) = turn(own, index, values) {
                    due.push((number, group, turn));
                }
                index += 1;
            }
        }
        let sites = &self.sites;
        let found = map(compute, due.len(), |task| {
            let (number, group, turn) = due[task];
            let own = &sites[number];
            own.find(&masters[own.span.clone()], group, turn)
        });
        for ((number, group, _), range) in due.into_iter().zip(found) {
            let own = &mut self.sites[number];
            range.and_then(|range| own.params.set_range(group, range)).map_err(|error| at_site(own.site, error))?;
        }
        for own in &mut self.sites {
            if own.layout.axis() == Axis::Columns && own.planned.range == RangeMethod::MinMax {
                own.find_column_ranges(compute, &masters[own.span.clone()]).map_err(|e| at_site(own.site, e))?;
            }
        }
        Ok(())
    }

    /// Writes the quantized weights into `copy`, which has the layout of the masters: all of them, or of the embedding
    /// tables only the rows that are used.
    ///
    /// # Errors
    /// A weight that is NaN or infinite; the error names the site.
    pub fn quantize(
        &self,
        compute: &Compute,
        masters: &[f32],
        used: Option<&UsedRows>,
        copy: &mut [f32],
    ) -> Result<()> {
        let mut tasks = self.tasks(masters, used, copy);
        compute.threads().for_each_item(&mut tasks, |_, task| {
            let rows = task.rows.clone();
            match task.site {
                Some(own) => task.result = own.params.fake_quantize_rows(rows, task.masters, task.target),
                None => task.target.copy_from_slice(task.masters),
            }
        });
        for task in tasks {
            if let (Err(error), Some(own)) = (task.result, task.site) {
                return Err(at_site(own.site, error));
            }
        }
        Ok(())
    }

    /// Writes the codes of the encoder's matrices, whose values are [`WeightQuantizer::quantize`]'s, with their biases.
    ///
    /// # Errors
    /// As there; a matrix with more inputs than integer sums have room for.
    pub fn encode(&self, compute: &Compute, masters: &[f32], codes: &mut WeightCodes) -> Result<()> {
        for own in &self.sites {
            let Site::Layer(layer, matrix) = own.site else { continue };
            let (neurons, inputs) = (own.layout.rows(), own.layout.cols());
            let room = codes.slot(layer, matrix);
            let target = match room {
                Some(target) => target,
                None => {
                    let made = WideWeights::new(neurons, inputs);
                    room.insert(made.map_err(|source| crate::Error::Integers { site: own.site, source })?)
                }
            };
            let (steps, lows) = (own.params.neuron_steps(), own.params.neuron_lows());
            let numbers = Neurons { steps, lows, biases: &masters[own.bias.clone()] };
            let values = &masters[own.span.clone()];
            let written = target.write(compute, numbers, |rows, codes| {
                own.params.quantize_rows(rows.clone(), &values[rows.start * inputs..rows.end * inputs], codes)
            });
            written.map_err(|error| at_site(own.site, error))?;
        }
        Ok(())
    }

    /// Sets to zero the gradients of the weights that the clamp moved; of the embedding tables, in the rows that are
    /// used, since the others have no gradient.
    pub fn straight_through(&self, compute: &Compute, masters: &[f32], used: &UsedRows, gradients: &mut [f32]) {
        let mut tasks = self.tasks(masters, Some(used), gradients);
        tasks.retain(|task| task.site.is_some_and(|own| own.planned.range != RangeMethod::MinMax));
        compute.threads().for_each_item(&mut tasks, |_, task| {
            if let Some(own) = task.site {
                task.result = own.params.straight_through_rows(task.rows.clone(), task.masters, task.target);
            }
        });
        debug_assert!(tasks.iter().all(|task| task.result.is_ok()), "rows were cut to fit");
    }

    /// Cuts masters and target into rows for threads.
    fn tasks<'a>(&'a self, masters: &'a [f32], used: Option<&UsedRows>, target: &'a mut [f32]) -> Vec<Task<'a>> {
        let (mut tasks, mut rest) = (Vec::new(), Cut { masters, target });
        for part in &self.parts {
            match part {
                Part::Plain(span) => {
                    let part = rest.take(span.len());
                    part.rows(None, span.len().min(CHUNK), &mut tasks);
                }
                Part::Site(index) => {
                    let own = &self.sites[*index];
                    let (part, width) = (rest.take(own.span.len()), own.layout.cols());
                    match (used, table_of(own.site)) {
                        (Some(used), Some(table)) => part.some_rows(Some(own), width, &used.0[table], &mut tasks),
                        _ => part.rows(Some(own), width, &mut tasks),
                    }
                }
                Part::PlainTable(span, table, width) => {
                    let part = rest.take(span.len());
                    match used {
                        Some(used) => part.some_rows(None, *width, &used.0[*table], &mut tasks),
                        None => part.rows(None, *width, &mut tasks),
                    }
                }
            }
        }
        tasks
    }
}

/// The masters and their target from somewhere on.
struct Cut<'a> {
    masters: &'a [f32],
    target: &'a mut [f32],
}

impl<'a> Cut<'a> {
    fn take(&mut self, length: usize) -> Cut<'a> {
        let (masters, later) = self.masters.split_at(length);
        let (target, later_target) = std::mem::take(&mut self.target).split_at_mut(length);
        (self.masters, self.target) = (later, later_target);
        Cut { masters, target }
    }

    /// All rows, in tasks of about [`CHUNK`] elements.
    fn rows(self, site: Option<&'a SiteQuantizer>, width: usize, tasks: &mut Vec<Task<'a>>) {
        let rows = (CHUNK / width).max(1);
        let pairs = self.masters.chunks(rows * width).zip(self.target.chunks_mut(rows * width));
        for (index, (masters, target)) in pairs.enumerate() {
            let rows = index * rows..index * rows + masters.len() / width;
            tasks.push(Task { site, rows, masters, target, result: Ok(()) });
        }
    }

    /// Some rows, ascending, each a task.
    fn some_rows(mut self, site: Option<&'a SiteQuantizer>, width: usize, rows: &[usize], tasks: &mut Vec<Task<'a>>) {
        let mut next = 0;
        for &row in rows {
            self.take((row - next) * width);
            let Cut { masters, target } = self.take(width);
            next = row + 1;
            tasks.push(Task { site, rows: row..next, masters, target, result: Ok(()) });
        }
    }
}

/// How a range is brought up to date.
#[derive(Debug, Clone, Copy)]
enum Turn {
    /// From scratch.
    Fit,
    /// From where it is.
    Refine,
}

impl SiteQuantizer {
    fn new(
        site: Site,
        (span, bias): (Span<usize>, Span<usize>),
        width: usize,
        (planned, bits): (&SitePlan, BitWidth),
        heads: usize,
    ) -> QuantResult<Self> {
        let axis = if table_of(site).is_some() { Axis::Columns } else { Axis::Rows };
        let layout = qbert_quant::Layout::resolve(span.len() / width, width, axis, planned.groups, heads)?;
        let nothing = Range::new(0.0, 0.0)?;
        let params = QuantParams::from_ranges(layout, bits, vec![nothing; layout.groups().count()])?;
        Ok(Self { site, span, bias, planned: *planned, layout, bits, params })
    }

    fn turn(&self) -> Turn {
        if self.planned.range == RangeMethod::Mse { Turn::Refine } else { Turn::Fit }
    }

    fn find(&self, values: &[f32], group: usize, turn: Turn) -> QuantResult<Range> {
        let (bits, scratch) = (self.bits, &mut Scratch::default());
        match turn {
            Turn::Fit => self.layout.fit_group(values, group, bits, self.planned.range, scratch),
            Turn::Refine => self.layout.refine_group(values, group, bits, self.params.ranges()[group], scratch),
        }
    }

    /// The smallest and largest value of every group of columns in one pass over the table. Minima of minima are
    /// minima, so the split does not show.
    fn find_column_ranges(&mut self, compute: &Compute, values: &[f32]) -> QuantResult<()> {
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

/// Where the bias of a matrix lies; nowhere for an embedding table.
fn bias_of(site: Site, layout: &ParameterLayout) -> Result<Span<usize>> {
    if table_of(site).is_some() {
        return Ok(0..0);
    }
    let role = Module::Site(site).bias();
    match layout.role(role) {
        Some(parameter) => Ok(parameter.span.clone()),
        None => Err(crate::Error::NoParameter { name: role.to_string() }),
    }
}

/// The number of an embedding table.
fn table_of(site: Site) -> Option<usize> {
    match site {
        Site::Embedding(table) => qbert_quant::Embedding::ALL.iter().position(|other| *other == table),
        Site::Layer(..) => None,
    }
}

fn at_site(site: Site, source: QuantError) -> crate::Error {
    QuantError::AtSite { site, source: Box::new(source) }.into()
}
