//! What quantization does to the weights before any training: `‖W - Q_b(W)‖²` of each site at each width.
//!
//! With the sensitivities of the layers it is the cost that [`qbert_quant::allocate::budget`] minimizes. It reads
//! weights only; what a model loses in accuracy is found by evaluating it.

use qbert_kernels::Threads;
use qbert_model::Parameters;
use qbert_quant::{Axis, GroupSpec, Layout, Precision, RangeMethod, Scratch, Site};

use crate::error::Result;

/// Groups that one task works on: enough to reuse its memory, few enough to keep all threads busy.
const GROUPS_PER_TASK: usize = 8;

/// How sites would be quantized.
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

/// The squared error of each of the encoder's `sites` at each width of the trial, 0 at full precision. `progress`
/// hears how many sites of how many are done.
///
/// The numbers do not depend on the number of threads.
///
/// # Errors
/// When a site is not a matrix of the encoder, cannot be grouped as tried, or holds weights that no range can hold.
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

/// Some groups of one site.
struct Part<'data> {
    site: usize,
    layout: Layout,
    weights: &'data [f32],
    groups: std::ops::Range<usize>,
    /// For each width the errors of these groups, one after the other.
    found: std::result::Result<Vec<Vec<f64>>, qbert_quant::Error>,
}

fn errors_of(parameters: &Parameters, sites: &[Site], trial: &Trial, threads: &Threads) -> Result<Vec<Vec<f64>>> {
    let mut parts = Vec::new();
    for (site, &name) in sites.iter().enumerate() {
        let at_site = |source| qbert_quant::Error::AtSite { site: name, source: Box::new(source) };
        let missing = || qbert_quant::Error::UnknownSite { text: name.to_string(), nearest: None };
        let parameter = parameters.layout().site(name).filter(|_| name.layer().is_some()).ok_or_else(missing)?;
        let (rows, cols) = (parameter.shape[0], parameter.shape[1]);
        let layout = Layout::resolve(rows, cols, Axis::Rows, trial.groups, trial.heads).map_err(at_site)?;
        let weights = parameters.get(parameter);
        let count = layout.groups().count();
        for start in (0..count).step_by(GROUPS_PER_TASK) {
            let groups = start..(start + GROUPS_PER_TASK).min(count);
            parts.push(Part { site, layout, weights, groups, found: Ok(Vec::new()) });
        }
    }
    threads.for_each_item(&mut parts, |_, part| part.found = measure(part, trial));
    let mut errors = vec![vec![0.0; trial.widths.len()]; sites.len()];
    for part in parts {
        let at_site = |source| qbert_quant::Error::AtSite { site: sites[part.site], source: Box::new(source) };
        let widths = errors[part.site].iter_mut().zip(part.found.map_err(at_site)?);
        // Group by group, as one thread would add them.
        widths.for_each(|(sum, groups)| groups.into_iter().for_each(|error| *sum += error));
    }
    Ok(errors)
}

fn measure(part: &Part<'_>, trial: &Trial) -> std::result::Result<Vec<Vec<f64>>, qbert_quant::Error> {
    let mut scratch = Scratch::default();
    let mut error = |width: Precision, group: usize| match width {
        Precision::Full => Ok(0.0),
        Precision::Bits(bits) => part.layout.group_error(part.weights, group, bits, trial.range, &mut scratch),
    };
    trial.widths.iter().map(|&width| part.groups.clone().map(|group| error(width, group)).collect()).collect()
}
