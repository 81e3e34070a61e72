//! Hutchinson's estimate of the trace: the mean of `zᵀHz` over vectors `z` of random signs.

use serde::Serialize;

use crate::Method;
use crate::vector::dot;

/// A trace with its uncertainty.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TraceEstimate {
    /// Mean of the samples.
    pub mean: f64,
    /// Standard error of the mean; not a number for a single sample.
    pub error: f64,
    /// Number of samples.
    pub samples: usize,
}

/// A trace estimation in progress.
#[derive(Debug, Clone)]
pub struct Trace {
    probes: Vec<Vec<f32>>,
    samples: Vec<f64>,
}

impl Trace {
    /// With these probes: vectors whose elements are +1 or −1, drawn by the caller.
    pub fn new(probes: Vec<Vec<f32>>) -> Self {
        Self { probes, samples: Vec::new() }
    }

    /// The estimate from the samples so far.
    pub fn estimate(&self) -> TraceEstimate {
        let samples = self.samples.len();
        let mean = self.samples.iter().sum::<f64>() / samples as f64;
        let squares: f64 = self.samples.iter().map(|sample| (sample - mean).powi(2)).sum();
        let error = (squares / (samples as f64 - 1.0) / samples as f64).sqrt();
        TraceEstimate { mean, error, samples }
    }
}

impl Method for Trace {
    fn vector(&self) -> Option<&[f32]> {
        self.probes.get(self.samples.len()).map(Vec::as_slice)
    }

    fn advance(&mut self, product: &[f32]) {
        let probe = &self.probes[self.samples.len()];
        assert_eq!(product.len(), probe.len(), "a product of another length");
        self.samples.push(dot(probe, product));
    }
}
