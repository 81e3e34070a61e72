//! Weights of a plan's sites: ranges that follow the masters, quantized copies, straight-through gradients (§3.1, §3.3).
//!
//! How ranges follow depends on the method of the site:
//!
//! - `min-max`: found again in every step, as in the paper. No weight is ever outside, so there is no mask.
//! - learned ([`WeightRanges::Learned`]), whatever the method: found once, then trained along with the weights.
//! - `mse` and `percentile`: found once. Then every step updates a share of the groups, in turn: `mse` from the present
//!   range ([`qbert_quant::range::refine`]), percentiles from scratch. Between two turns a weight moves by a small part of
//!   a step, and all ranges are brought up to date before an evaluation.
//!
//! A table of product codes keeps the ranges of its start. Its codebook follows the masters instead: every step refines
//! the entries of one part, in turn.
//!
//! Embedding tables are large and a batch uses few of their rows, so a step quantizes and masks only those.
//!
//! Every loop is split by shape alone, so that any number of threads gives the same bytes.

mod learned;
mod rows;
mod site;

use std::fmt;
use std::ops::Range as Span;
use std::str::FromStr;

use qbert_kernels::int::{Neurons, WideWeights};
use qbert_kernels::{CHUNK, Compute};
use qbert_model::{Config, ParameterLayout};
use qbert_quant::{
    Axis, Codebook, Embedding, Error as QuantError, Mask, Plan, QuantParams, QuantizedMatrix, Range, RangeMethod, Site,
    SitePlan,
};

use self::learned::RangeOptimizer;
use self::rows::{Cut, Task};
use self::site::{SiteQuantizer, Turn, at_site, table_of};
use super::compensate::Rounded;
use super::map;
use crate::bert::WeightCodes;
use crate::error::Result;
use serde::{Deserialize, Serialize};

pub use self::rows::UsedRows;

type QuantResult<T> = std::result::Result<T, QuantError>;

/// The ranges of groups of up to this many values take turns in [`TURN`] steps, those of larger ones in [`LONG_TURN`].
const LARGE_GROUP: usize = 1 << 16;
const TURN: usize = 16;
const LONG_TURN: usize = 256;
/// Steps in which the rows of a table take turns: there are many, and a batch moves few of them.
const ROW_TURN: usize = 64;

/// A span of the weights in the order of the layout.
#[derive(Debug)]
enum Part {
    /// Copied as it is.
    Plain(Span<usize>),
    /// The site of this index.
    Site(usize),
    /// An embedding table that is not quantized: rows are copied as they are used.
    PlainTable {
        /// Its place among the weights.
        span: Span<usize>,
        /// Which of the tables.
        table: usize,
        /// The length of a row.
        width: usize,
    },
}

impl Part {
    fn start(&self, sites: &[SiteQuantizer]) -> usize {
        match self {
            Self::Plain(span) | Self::PlainTable { span, .. } => span.start,
            Self::Site(index) => sites[*index].span.start,
        }
    }
}

/// How the ranges of matrices change while the weights are trained.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WeightRanges {
    /// They are found again from the masters by the plan's method.
    #[default]
    Followed,
    /// They are trained, at this multiple of the weights' learning rate.
    Learned(f64),
}

impl WeightRanges {
    /// The usual multiple of the learning rate, compared with others in `docs/results/recipe.md`.
    pub const USUAL_MULTIPLE: f64 = 10.0;
}

/// `follow`, `learn` or `learn:3`.
impl FromStr for WeightRanges {
    type Err = crate::Error;

    fn from_str(text: &str) -> Result<Self> {
        let rule = "it is `follow`, `learn`, or `learn:` with a multiple of the learning rate above 0";
        let refused = || crate::Error::Setting { name: "`qat.weight_ranges`", value: format!("{text:?}"), rule };
        match text.split_once(':') {
            None if text == "follow" => Ok(Self::Followed),
            None if text == "learn" => Ok(Self::Learned(Self::USUAL_MULTIPLE)),
            Some(("learn", multiple)) => {
                let multiple = multiple.parse().ok().filter(|multiple: &f64| *multiple > 0.0 && multiple.is_finite());
                Ok(Self::Learned(multiple.ok_or_else(refused)?))
            }
            _ => Err(refused()),
        }
    }
}

/// The text form, as [`WeightRanges::from_str`] reads it.
impl fmt::Display for WeightRanges {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Followed => formatter.write_str("follow"),
            Self::Learned(multiple) => write!(formatter, "learn:{multiple}"),
        }
    }
}

/// The quantizers of all sites of a plan.
#[derive(Debug)]
pub struct WeightQuantizer {
    sites: Vec<SiteQuantizer>,
    parts: Vec<Part>,
    /// If ranges of matrices are trained.
    learned: Option<RangeOptimizer>,
}

impl WeightQuantizer {
    /// The sites of a plan in a model's layout, without ranges.
    ///
    /// # Errors
    /// When the plan is for another number of layers, or a matrix cannot be grouped as it says.
    pub fn new(plan: &Plan, config: &Config, layout: &ParameterLayout) -> Result<Self> {
        plan.check_layers(config.distinct_layers())?;
        let mut by_span: Vec<(Span<usize>, usize, Site, &SitePlan)> = Vec::new();
        let has_table = |table: Embedding| config.tables().any(|(own, _)| own == table);
        // A plan names all tables, also those that the family does without.
        for (site, planned) in plan.sites().filter(|(site, _)| !matches!(site, Site::Embedding(t) if !has_table(*t))) {
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
                    parts.push(Part::Site(sites.len()));
                    sites.push(SiteQuantizer::new(site, layout, *planned, bits, config.heads)?);
                }
                (None, Some(table)) => parts.push(Part::PlainTable { span, table, width }),
                (None, None) => parts.push(Part::Plain(span)),
            }
        }
        if layout.len() > end {
            parts.push(Part::Plain(end..layout.len()));
        }
        Ok(Self { sites, parts, learned: None })
    }

    /// Sets whether ranges of matrices are trained from here on, without any moments yet.
    pub(super) fn learn_ranges(&mut self, learn: bool) {
        self.learned = learn.then(|| RangeOptimizer::new(&self.sites));
    }

    /// Whether the ranges of this site are trained.
    fn learns(&self, own: &SiteQuantizer) -> bool {
        self.learned.is_some() && table_of(own.site).is_none()
    }

    /// The quantizer of a site; `None` where it is not quantized.
    pub fn params(&self, site: Site) -> Option<&QuantParams> {
        self.sites.iter().find(|own| own.site == site).map(|own| &own.params)
    }

    /// Every quantized site with its quantizer.
    pub fn iter(&self) -> impl Iterator<Item = (Site, &QuantParams)> {
        self.sites.iter().map(|own| (own.site, &own.params))
    }

    /// The codes of a quantized site with its groups' quantizers; `None` where it is not quantized.
    ///
    /// # Errors
    /// A weight that is NaN or infinite; the error names the site.
    pub fn stored(&self, site: Site, values: &[f32]) -> Result<Option<QuantizedMatrix>> {
        let Some(own) = self.sites.iter().find(|own| own.site == site) else { return Ok(None) };
        let stored = match &own.codebook {
            Some(codebook) => QuantizedMatrix::quantize_product(values, &own.params, codebook),
            None => QuantizedMatrix::quantize(values, &own.params),
        };
        stored.map(Some).map_err(|error| at_site(site, error))
    }

    /// The codebooks of the tables that have product codes.
    pub fn codebooks(&self) -> impl Iterator<Item = (Site, &Codebook)> {
        self.sites.iter().filter_map(|own| own.codebook.as_ref().map(|codebook| (own.site, codebook)))
    }

    /// Sets the entries of a site's codebook, `[256, cols]`.
    ///
    /// # Errors
    /// When there is no such codebook, or it has another length.
    pub fn set_codebook(&mut self, site: Site, codes: Vec<u8>) -> Result<()> {
        let Some(own) = self.sites.iter_mut().find(|own| own.site == site) else {
            return Err(at_site(site, QuantError::Length { what: "codebook", expected: 0, found: codes.len() }));
        };
        own.set_entries(codes).map_err(|error| at_site(site, error))
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
        own.set_ranges(ranges).map_err(|error| at_site(site, error))
    }

    /// The ends of all ranges in one array, to store them, then the codes of codebooks and the moments of trained ranges.
    pub fn flat_ranges(&self) -> Vec<f32> {
        let ranges = self.sites.iter().flat_map(|own| own.params.ranges());
        let ends = ranges.flat_map(|range| [range.low(), range.high()]);
        let entries = self.codebooks().flat_map(|(_, book)| book.codes().iter().map(|&code| f32::from(code)));
        ends.chain(entries).chain(self.learned.iter().flat_map(RangeOptimizer::flat)).collect()
    }

    /// Continues from stored ranges.
    ///
    /// # Errors
    /// Ranges of another plan or model.
    pub fn restore_ranges(&mut self, flat: &[f32]) -> Result<()> {
        let ends = 2 * self.sites.iter().map(|own| own.params.ranges().len()).sum::<usize>();
        let expected = ends + self.codebooks().map(|(_, codebook)| codebook.codes().len()).sum::<usize>();
        let Some((stored, moments)) = flat.split_at_checked(expected) else {
            return Err(QuantError::Length { what: "stored ranges", expected, found: flat.len() }.into());
        };
        let (ends, mut entries) = stored.split_at(ends);
        match &mut self.learned {
            Some(learned) => learned.restore(moments)?,
            None if !moments.is_empty() => {
                return Err(QuantError::Length { what: "stored ranges", expected, found: flat.len() }.into());
            }
            None => {}
        }
        let (mut pairs, _) = ends.as_chunks::<2>();
        for own in &mut self.sites {
            let (mine, rest) = pairs.split_at(own.params.ranges().len());
            pairs = rest;
            let ranges: QuantResult<Vec<Range>> = mine.iter().map(|[l, h]| Range::new(*l, *h)).collect();
            own.set_ranges(ranges?)?;
            if let Some(codebook) = &own.codebook {
                let (mine, rest) = entries.split_at(codebook.codes().len());
                entries = rest;
                own.set_entries(mine.iter().map(|&code| code as u8).collect())?;
            }
        }
        Ok(())
    }

    /// Finds every range from scratch.
    ///
    /// # Errors
    /// A weight that no range can hold; the error names the site.
    pub fn fit(&mut self, compute: &Compute, masters: &[f32]) -> Result<()> {
        self.update(compute, masters, |_, _, _, _| Some(Turn::Fit))?;
        self.update_codebooks(compute, masters, None, Turn::Fit)
    }

    /// Brings every range up to date from where it is.
    ///
    /// # Errors
    /// As [`WeightQuantizer::fit`].
    pub fn refine(&mut self, compute: &Compute, masters: &[f32]) -> Result<()> {
        self.update(compute, masters, |all, own, _, _| (!all.learns(own)).then(|| own.turn()))?;
        self.update_codebooks(compute, masters, None, Turn::Refine)
    }

    /// The same while the matrices hold values that were rounded with their ranges. A range found from scratch, such as
    /// from the smallest to the largest value, would round them again, so it is kept. Refining for the least error changes
    /// nothing: rounded values have no error.
    ///
    /// # Errors
    /// As [`WeightQuantizer::fit`].
    pub fn refine_rounded(&mut self, compute: &Compute, masters: &[f32]) -> Result<()> {
        self.update(compute, masters, |_, own, _, _| {
            let may_change = table_of(own.site).is_some() || own.planned.range == RangeMethod::Mse;
            may_change.then(|| own.turn())
        })?;
        self.update_codebooks(compute, masters, None, Turn::Refine)
    }

    /// Brings up to date the ranges whose turn it is in this step, counted over the whole run.
    ///
    /// # Errors
    /// As [`WeightQuantizer::fit`].
    pub fn follow(&mut self, compute: &Compute, masters: &[f32], step: usize) -> Result<()> {
        self.update(compute, masters, |all, own, index, values| {
            let turn = match own.layout.axis() {
                Axis::TableRows => ROW_TURN,
                Axis::Rows | Axis::Columns if values > LARGE_GROUP => LONG_TURN,
                Axis::Rows | Axis::Columns => TURN,
            };
            let due = (index + step).is_multiple_of(turn) || own.planned.range == RangeMethod::MinMax;
            (due && !all.learns(own)).then(|| own.turn())
        })?;
        self.update_codebooks(compute, masters, Some(step), Turn::Refine)
    }

    /// Brings codebooks up to date: all parts, or the one whose turn it is in a step.
    fn update_codebooks(&mut self, compute: &Compute, masters: &[f32], step: Option<usize>, turn: Turn) -> Result<()> {
        for own in &mut self.sites {
            let Some(parts) = own.codebook.as_ref().map(Codebook::parts) else { continue };
            let due = step.map_or_else(|| (0..parts).collect(), |step| vec![step % parts]);
            let values = &masters[own.span.clone()];
            own.find_entries(compute, values, &due, turn).map_err(|error| at_site(own.site, error))?;
        }
        Ok(())
    }

    /// Finds new ranges for the groups that `turn` selects. It gets the quantizer, the site, the group's number in the whole
    /// model and the number of its values.
    fn update(
        &mut self,
        compute: &Compute,
        masters: &[f32],
        turn: impl Fn(&Self, &SiteQuantizer, usize, usize) -> Option<Turn>,
    ) -> Result<()> {
        let (mut due, mut index) = (Vec::new(), 0);
        for (number, own) in self.sites.iter().enumerate() {
            let groups = own.layout.groups();
            if own.has_column_ranges() {
                index += groups.count();
                continue;
            }
            for group in 0..groups.count() {
                let values = groups.span(group).len() * (own.layout.elements() / groups.neurons());
                match turn(self, own, index, values) {
                    // Only the start finds the ranges of a codebook's entries.
                    Some(Turn::Refine) if own.codebook.is_some() => {}
                    Some(turn) => due.push((number, group, turn)),
                    None => {}
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
            if own.has_column_ranges() {
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
        self.quantize_tasks(compute, self.tasks(masters, used, copy))
    }

    /// The same of the weights in one span, such as a layer's. The masters and the copy are all weights.
    ///
    /// # Errors
    /// As [`WeightQuantizer::quantize`].
    pub(super) fn quantize_span(
        &self,
        compute: &Compute,
        masters: &[f32],
        span: &Span<usize>,
        copy: &mut [f32],
    ) -> Result<()> {
        let tasks = self.tasks_within(span, &masters[span.clone()], None, &mut copy[span.clone()]);
        self.quantize_tasks(compute, tasks)
    }

    fn quantize_tasks(&self, compute: &Compute, mut tasks: Vec<Task<'_>>) -> Result<()> {
        compute.threads().for_each_item(&mut tasks, |_, task| {
            let rows = task.rows.clone();
            match task.site {
                Some(own) => task.result = own.fake_quantize_rows(rows, task.masters, task.target),
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
        self.encode_sites(compute, masters, |_| true, codes)
    }

    /// The same of some matrices.
    ///
    /// # Errors
    /// As [`WeightQuantizer::encode`].
    pub(super) fn encode_sites(
        &self,
        compute: &Compute,
        masters: &[f32],
        chosen: impl Fn(Site) -> bool,
        codes: &mut WeightCodes,
    ) -> Result<()> {
        for own in self.sites.iter().filter(|own| chosen(own.site)) {
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
            let zeros = vec![0.0; if own.bias.is_empty() { neurons } else { 0 }];
            let biases = if own.bias.is_empty() { &zeros[..] } else { &masters[own.bias.clone()] };
            let numbers = Neurons { steps, lows, biases };
            let values = &masters[own.span.clone()];
            let written = target.write(compute, numbers, |rows, codes| {
                own.params.quantize_rows(rows.clone(), &values[rows.start * inputs..rows.end * inputs], codes)
            });
            written.map_err(|error| at_site(own.site, error))?;
        }
        Ok(())
    }

    /// Computes the gradients of the ranges that are trained, from those of the quantized weights.
    pub fn range_gradients(&mut self, compute: &Compute, masters: &[f32], gradients: &[f32]) {
        if let Some(learned) = &mut self.learned {
            learned.backward(compute, &self.sites, masters, gradients);
        }
    }

    /// Moves the ranges that are trained; `steps` counts this step, from 1.
    ///
    /// # Errors
    /// A range that is none any more; the error names the site.
    pub fn move_ranges(&mut self, rate: f64, steps: usize) -> Result<()> {
        self.learned.as_mut().map_or(Ok(()), |learned| learned.step(&mut self.sites, rate, steps))
    }

    /// Sets to zero the gradients of the weights that the mask stops; of the embedding tables, in the rows that are
    /// used, since the others have no gradient.
    pub fn straight_through(
        &self,
        compute: &Compute,
        masters: &[f32],
        (used, mask): (&UsedRows, Mask),
        gradients: &mut [f32],
    ) {
        self.mask_tasks(compute, mask, self.tasks(masters, Some(used), gradients));
    }

    /// The same of the weights in one span, such as a layer's. The masters and the gradients are those of all weights.
    pub(super) fn straight_through_span(
        &self,
        compute: &Compute,
        masters: &[f32],
        span: &Span<usize>,
        mask: Mask,
        gradients: &mut [f32],
    ) {
        let tasks = self.tasks_within(span, &masters[span.clone()], None, &mut gradients[span.clone()]);
        self.mask_tasks(compute, mask, tasks);
    }

    fn mask_tasks(&self, compute: &Compute, mask: Mask, mut tasks: Vec<Task<'_>>) {
        // No weight is outside a range from the smallest to the largest.
        let masked = |own: &SiteQuantizer| own.planned.range != RangeMethod::MinMax || self.learns(own);
        tasks.retain(|task| task.site.is_some_and(masked));
        compute.threads().for_each_item(&mut tasks, |_, task| {
            if let Some(own) = task.site {
                task.result = own.params.straight_through_rows(mask, task.rows.clone(), task.masters, task.target);
            }
        });
        debug_assert!(tasks.iter().all(|task| task.result.is_ok()), "rows were cut to fit");
    }

    /// Cuts masters and target into rows for threads.
    fn tasks<'a>(&'a self, masters: &'a [f32], used: Option<&UsedRows>, target: &'a mut [f32]) -> Vec<Task<'a>> {
        self.tasks_within(&(0..masters.len()), masters, used, target)
    }

    /// The same of the parts that begin in a span; masters and target are those of the span.
    fn tasks_within<'a>(
        &'a self,
        span: &Span<usize>,
        masters: &'a [f32],
        used: Option<&UsedRows>,
        target: &'a mut [f32],
    ) -> Vec<Task<'a>> {
        let (mut tasks, mut rest) = (Vec::new(), Cut { masters, target });
        for part in self.parts.iter().filter(|part| span.contains(&part.start(&self.sites))) {
            match part {
                Part::Plain(own) => {
                    // The last one goes from the last layer to the end of all weights.
                    let length = own.len().min(span.end - own.start);
                    rest.take(length).rows(None, length.min(CHUNK), &mut tasks);
                }
                Part::Site(index) => {
                    let own = &self.sites[*index];
                    let (part, width) = (rest.take(own.span.len()), own.layout.cols());
                    match (used, table_of(own.site)) {
                        (Some(used), Some(table)) => part.some_rows(Some(own), width, &used.0[table], &mut tasks),
                        _ => part.rows(Some(own), width, &mut tasks),
                    }
                }
                Part::PlainTable { span, table, width } => {
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
