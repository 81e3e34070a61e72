//! What quantization does to the weights before any training: `‖W - Q_b(W)‖²` of each site at each width.
//!
//! Weighted with the sensitivities of the layers, it is the cost that [`qbert_quant::allocate::budget`] minimizes. It looks
//! at weights only; evaluate a model to find out what it loses in accuracy.

use std::ops::Range;

use qbert_kernels::Threads;
use qbert_model::Parameters;
use qbert_quant::{Axis, GroupSpec, Layout, ModelShape, Plan, Precision, RangeMethod, Scratch, Site};

use crate::error::Result;

/// Groups per task: enough to reuse its memory, few enough to keep all threads busy.
const GROUPS_PER_TASK: usize = 8;

/// A way to quantize sites.
#[derive(Debug, Clone)]
pub struct Trial {
    /// The widths to try.
    pub widths: Vec<Precision>,
    /// Which output neurons share a range.
    pub groups: GroupSpec,
    /// How ranges are found.
    pub range: RangeMethod,
    /// The number of attention heads, for groups by head.
    pub heads: usize,
}

/// The squared error of each of the encoder's `sites` at each width of the trial, 0 at full precision. `progress` gets the
/// number of sites that are done, and of all.
///
/// The numbers do not depend on the number of threads.
///
/// # Errors
/// A site that is not a matrix of the encoder or cannot be grouped as tried; weights that no range can hold.
pub fn quantization_errors(
    parameters: &Parameters,
    sites: &[Site],
    trial: &Trial,
    threads: &Threads,
    mut progress: impl FnMut(usize, usize),
) -> Result<Vec<Vec<f64>>> {
    let mut errors = Vec::with_capacity(sites.len());
    // A few sites at a time, so that one with few groups does not leave threads idle.
    for several in sites.chunks(6) {
        errors.extend(errors_of(parameters, several, trial, threads)?);
        progress(errors.len(), sites.len());
    }
    Ok(errors)
}

/// The error that a plan makes in the weights of a site.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SiteError {
    /// The site.
    pub site: Site,
    /// `‖W - Q(W)‖²`, 0 at full precision.
    pub error: f64,
    /// `‖W‖²`.
    pub weights: f64,
}

/// The squared error of every site of the model, embeddings included, as the plan quantizes it.
///
/// The numbers do not depend on the number of threads.
///
/// # Errors
/// A plan that does not fit the model; weights that no range can hold.
pub fn plan_errors(
    parameters: &Parameters,
    shape: &ModelShape,
    plan: &Plan,
    threads: &Threads,
) -> Result<Vec<SiteError>> {
    let (mut parts, mut sites) = (Vec::new(), Vec::new());
    let planned = shape.tensors.iter().map(|tensor| Ok((tensor, plan.site(tensor.site)?)));
    let planned = planned.collect::<Result<Vec<_>>>()?;
    for (index, (tensor, own)) in planned.iter().enumerate() {
        let weights = weights_of(parameters, tensor.site)?;
        let layout = own.layout(tensor.rows, tensor.cols, tensor.axis, shape.heads).map_err(at_site(tensor.site))?;
        let whole = Part::whole(index, layout, weights, std::slice::from_ref(&own.bits), own.range);
        parts.extend(whole.split());
        sites.push(tensor.site);
    }
    let errors = sum(parts, &sites, 1, threads)?;
    let site = |(&site, errors): (&Site, Vec<f64>)| {
        let weights = weights_of(parameters, site)?.iter().map(|weight| f64::from(*weight).powi(2)).sum();
        Ok(SiteError { site, error: errors[0], weights })
    };
    sites.iter().zip(errors).map(site).collect()
}

fn weights_of(parameters: &Parameters, site: Site) -> Result<&[f32]> {
    let missing = || qbert_quant::Error::UnknownSite { text: site.to_string(), nearest: None };
    Ok(parameters.get(parameters.layout().site(site).ok_or_else(missing)?))
}

fn at_site(site: Site) -> impl Fn(qbert_quant::Error) -> qbert_quant::Error {
    move |source| qbert_quant::Error::AtSite { site, source: Box::new(source) }
}

/// Some groups of one site.
struct Part<'data> {
    site: usize,
    layout: Layout,
    weights: &'data [f32],
    groups: Range<usize>,
    widths: &'data [Precision],
    range: RangeMethod,
    /// For each width the errors of these groups, one after the other.
    found: std::result::Result<Vec<Vec<f64>>, qbert_quant::Error>,
}

impl<'data> Part<'data> {
    /// All groups of a site.
    fn whole(
        site: usize,
        layout: Layout,
        weights: &'data [f32],
        widths: &'data [Precision],
        range: RangeMethod,
    ) -> Self {
        Self { site, layout, weights, groups: 0..layout.groups().count(), widths, range, found: Ok(Vec::new()) }
    }

    /// The same groups, a few at a time.
    fn split(self) -> impl Iterator<Item = Self> {
        let Self { site, layout, weights, groups: Range { start, end }, widths, range, .. } = self;
        (start..end).step_by(GROUPS_PER_TASK).map(move |start| {
            let groups = start..(start + GROUPS_PER_TASK).min(end);
            Self { site, layout, weights, groups, widths, range, found: Ok(Vec::new()) }
        })
    }

    fn measure(&self) -> std::result::Result<Vec<Vec<f64>>, qbert_quant::Error> {
        let mut scratch = Scratch::default();
        let mut error = |width: Precision, group: usize| match width {
            Precision::Full => Ok(0.0),
            Precision::Bits(bits) => self.layout.group_error(self.weights, group, bits, self.range, &mut scratch),
        };
        self.widths.iter().map(|&width| self.groups.clone().map(|group| error(width, group)).collect()).collect()
    }
}

fn errors_of(parameters: &Parameters, sites: &[Site], trial: &Trial, threads: &Threads) -> Result<Vec<Vec<f64>>> {
    let mut parts = Vec::new();
    for (index, &site) in sites.iter().enumerate() {
        let missing = || qbert_quant::Error::UnknownSite { text: site.to_string(), nearest: None };
        let parameter = parameters.layout().site(site).filter(|_| site.layer().is_some()).ok_or_else(missing)?;
        let (rows, cols) = (parameter.shape[0], parameter.shape[1]);
        let layout = Layout::resolve(rows, cols, Axis::Rows, trial.groups, trial.heads).map_err(at_site(site))?;
        parts.extend(Part::whole(index, layout, parameters.get(parameter), &trial.widths, trial.range).split());
    }
    sum(parts, sites, trial.widths.len(), threads)
}

/// For each site the errors of its parts at each width, added up.
fn sum(mut parts: Vec<Part<'_>>, sites: &[Site], widths: usize, threads: &Threads) -> Result<Vec<Vec<f64>>> {
    threads.for_each_item(&mut parts, |_, part| part.found = part.measure());
    let mut errors = vec![vec![0.0; widths]; sites.len()];
    for part in parts {
        let found = part.found.map_err(at_site(sites[part.site]))?;
        // Group by group, as one thread would add them.
        let widths = errors[part.site].iter_mut().zip(found);
        widths.for_each(|(sum, groups)| groups.into_iter().for_each(|error| *sum += error));
    }
    Ok(errors)
}
