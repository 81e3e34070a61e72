//! Ranges of matrices that are trained along with the weights ([`qbert_quant::learned`]).
//!
//! A group's parameters are its offset in steps and the logarithm of its step, so that one rate suits every matrix and
//! width. Each has its own moments (Adam, no decay); the rate is a multiple of the weights' rate and follows its schedule.
//! Embedding tables keep ranges that follow the masters: a step sees few of their rows.

use qbert_kernels::Compute;
use qbert_quant::{Error as QuantError, RangeGradient};

use super::site::{SiteQuantizer, at_site, table_of};
use crate::error::Result;
use crate::optimizer::power;
use crate::qat::map;

const BETA1: f64 = 0.9;
const BETA2: f64 = 0.999;
const EPSILON: f64 = 1e-10;
/// The most that a step may change in one optimizer step, as a share of it.
const LARGEST_MOVE: f64 = 0.05;

/// The moments of one parameter.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Moments {
    first: f32,
    second: f32,
}

impl Moments {
    /// Takes in a gradient and returns the move, before the rate.
    fn step(&mut self, gradient: f64, steps: usize) -> f64 {
        let first = BETA1 * f64::from(self.first) + (1.0 - BETA1) * gradient;
        let second = BETA2 * f64::from(self.second) + (1.0 - BETA2) * gradient * gradient;
        // What is stored is what counts, so that a resumed run ends with the same bytes.
        (self.first, self.second) = (first as f32, second as f32);
        let corrected = f64::from(self.first) / (1.0 - power(BETA1, steps));
        let scale = (f64::from(self.second) / (1.0 - power(BETA2, steps))).sqrt();
        corrected / (scale + EPSILON)
    }
}

/// The optimizer of all groups of all matrices.
#[derive(Debug, Default)]
pub(super) struct RangeOptimizer {
    /// Offset and step of every group, in the order of the sites.
    moments: Vec<[Moments; 2]>,
    gradients: Vec<RangeGradient>,
}

/// Every group of every matrix: the site's number and the group's.
fn groups(sites: &[SiteQuantizer]) -> Vec<(usize, usize)> {
    let matrices = sites.iter().enumerate().filter(|(_, own)| table_of(own.site).is_none());
    matrices.flat_map(|(number, own)| (0..own.layout.groups().count()).map(move |group| (number, group))).collect()
}

impl RangeOptimizer {
    pub(super) fn new(sites: &[SiteQuantizer]) -> Self {
        let count = groups(sites).len();
        Self { moments: vec![Default::default(); count], gradients: vec![RangeGradient::default(); count] }
    }

    /// Computes the gradients of all ranges from those of the quantized weights, before these are masked.
    pub(super) fn backward(&mut self, compute: &Compute, sites: &[SiteQuantizer], masters: &[f32], gradients: &[f32]) {
        let all = groups(sites);
        self.gradients = map(compute, all.len(), |task| {
            let (number, group) = all[task];
            let own = &sites[number];
            let found = own.params.range_gradient(group, &masters[own.span.clone()], &gradients[own.span.clone()]);
            debug_assert!(found.is_ok(), "spans are whole matrices");
            found.unwrap_or_default()
        });
    }

    /// Moves all ranges; `steps` counts this step, from 1.
    ///
    /// # Errors
    /// A range that is none any more; the error names the site.
    pub(super) fn step(&mut self, sites: &mut [SiteQuantizer], rate: f64, steps: usize) -> Result<()> {
        let all = groups(sites);
        for (((number, group), moments), gradient) in all.into_iter().zip(&mut self.moments).zip(&self.gradients) {
            let own = &mut sites[number];
            let range = own.params.ranges()[group];
            // The derivatives by the offset in steps and by the step's logarithm.
            let unit = f64::from(own.params.affines()[group].step());
            let moves = [gradient.low * unit, gradient.step * unit];
            let [low, step] = [0, 1].map(|which| {
                let moved: f64 = rate * moments[which].step(moves[which], steps);
                -moved.clamp(-LARGEST_MOVE, LARGEST_MOVE)
            });
            let moved = range.moved(low, step, own.bits.max_code());
            let set = moved.and_then(|range| own.params.set_range(group, range));
            set.map_err(|error| at_site(own.site, error))?;
        }
        Ok(())
    }

    /// All moments in one array, to store them.
    pub(super) fn flat(&self) -> Vec<f32> {
        self.moments.iter().flatten().flat_map(|own| [own.first, own.second]).collect()
    }

    /// Continues from stored moments.
    ///
    /// # Errors
    /// Moments of another plan or model.
    pub(super) fn restore(&mut self, flat: &[f32]) -> std::result::Result<(), QuantError> {
        let (expected, found) = (4 * self.moments.len(), flat.len());
        if found != expected {
            return Err(QuantError::Length { what: "stored moments of ranges", expected, found });
        }
        let (all, _) = flat.as_chunks::<4>();
        for (own, &[a, b, c, d]) in self.moments.iter_mut().zip(all) {
            *own = [Moments { first: a, second: b }, Moments { first: c, second: d }];
        }
        Ok(())
    }
}
