//! AdamW with decoupled weight decay, gradient clipping and the learning rate's schedule.

use std::ops::Range;

use qbert_kernels::{AdamW, Compute};
use qbert_model::ParameterLayout;
use qbert_quant::Site;

/// The settings of the optimizer.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct OptimizerSettings {
    /// The highest learning rate.
    pub learning_rate: f64,
    /// Decay of the gradient's moving average.
    pub beta1: f64,
    /// Decay of the squared gradient's moving average.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Decay of matrices and embeddings; biases and LayerNorm have none.
    pub weight_decay: f64,
    /// Larger gradients are scaled down to this norm; 0 for never.
    pub clip: f64,
    /// The learning rate of embedding tables, as a multiple of the others'; 0 keeps the tables as they are.
    ///
    /// A rare word has a gradient in few steps. Its second moment then stays small, and one gradient moves the row by up to
    /// 30 times the learning rate in a direction that nothing corrects.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub table_rate: f64,
}

fn one() -> f64 {
    1.0
}

/// Older files say nothing, and the usual rate still says nothing, so that files stay comparable.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde calls")]
fn is_one(rate: &f64) -> bool {
    *rate == one()
}

impl Default for OptimizerSettings {
    fn default() -> Self {
        Self {
            learning_rate: 5e-5,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.01,
            clip: 1.0,
            table_rate: 1.0,
        }
    }
}

impl OptimizerSettings {
    /// The constants of step number `taken`, counted from 1, at `rate`; without weight decay, which not all weights have.
    pub(crate) fn adamw(&self, rate: f64, taken: usize, gradient_scale: f64) -> AdamW {
        AdamW {
            learning_rate: rate as f32,
            beta1: self.beta1 as f32,
            beta2: self.beta2 as f32,
            epsilon: self.epsilon as f32,
            weight_decay: 0.0,
            correction1: (1.0 - power(self.beta1, taken)) as f32,
            correction2: (1.0 - power(self.beta2, taken)) as f32,
            gradient_scale: gradient_scale as f32,
        }
    }
}

/// Linear warm-up to the peak, then linear decay to zero, as `get_linear_schedule_with_warmup` of transformers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// The highest rate.
    pub peak: f64,
    /// Steps of warm-up.
    pub warmup: usize,
    /// Total number of steps.
    pub total: usize,
}

impl Schedule {
    /// The rate of a step, counted from 0.
    pub fn rate(&self, step: usize) -> f64 {
        if step < self.warmup {
            return self.peak * step as f64 / self.warmup as f64;
        }
        let left = self.total.saturating_sub(step) as f64;
        self.peak * left / (self.total.saturating_sub(self.warmup).max(1)) as f64
    }
}

/// The moments, and which weights decay.
#[derive(Debug, Clone)]
pub struct Optimizer {
    settings: OptimizerSettings,
    /// First moments, in the weights' layout.
    pub first: Vec<f32>,
    /// Second moments, in the weights' layout.
    pub second: Vec<f32>,
    /// Steps taken.
    pub steps: usize,
    spans: Vec<Span>,
}

/// Neighbouring weights that are treated alike.
#[derive(Debug, Clone)]
struct Span {
    weights: Range<usize>,
    decays: bool,
    is_table: bool,
}

/// `base^exponent` by squaring. What `powi` does is the platform's choice, and so are its last bits.
pub(crate) fn power(base: f64, exponent: usize) -> f64 {
    let (mut square, mut left, mut result) = (base, exponent, 1.0);
    while left > 0 {
        if left % 2 == 1 {
            result *= square;
        }
        square *= square;
        left /= 2;
    }
    result
}

impl Optimizer {
    /// An optimizer that has taken no step.
    pub fn new(settings: OptimizerSettings, layout: &ParameterLayout) -> Self {
        let mut spans: Vec<Span> = Vec::new();
        for parameter in layout.parameters() {
            let decays = parameter.role.decays();
            let is_table = matches!(parameter.role.site(), Some(Site::Embedding(_)));
            match spans.last_mut() {
                Some(last) if (last.decays, last.is_table) == (decays, is_table) => {
                    last.weights.end = parameter.span.end;
                }
                _ => spans.push(Span { weights: parameter.span.clone(), decays, is_table }),
            }
        }
        Self { settings, first: vec![0.0; layout.len()], second: vec![0.0; layout.len()], steps: 0, spans }
    }

    /// The settings.
    pub fn settings(&self) -> &OptimizerSettings {
        &self.settings
    }

    /// One step at `rate`. Returns the gradient's norm before clipping; if it is not finite, nothing changes.
    pub fn step(&mut self, compute: &Compute, rate: f64, weights: &mut [f32], gradients: &[f32]) -> f64 {
        let norm = compute.sum_of_squares(gradients).sqrt();
        if !norm.is_finite() {
            return norm;
        }
        self.steps += 1;
        let OptimizerSettings { weight_decay, clip, table_rate, .. } = self.settings;
        // PyTorch's clip_grad_norm_: a hair below the limit, and never a scale above 1.
        let scale = if clip > 0.0 { (clip / (norm + 1e-6)).min(1.0) } else { 1.0 };
        let usual = self.settings.adamw(rate, self.steps, scale);
        let tables = self.settings.adamw(rate * table_rate, self.steps, scale);
        for Span { weights: span, decays, is_table } in &self.spans {
            if *is_table && table_rate == 0.0 {
                continue;
            }
            let step = if *is_table { tables } else { usual };
            let step = AdamW { weight_decay: if *decays { weight_decay as f32 } else { 0.0 }, ..step };
            let (first, second) = (&mut self.first[span.clone()], &mut self.second[span.clone()]);
            compute.adamw(&step, &mut weights[span.clone()], &gradients[span.clone()], first, second);
        }
        norm
    }
}

#[cfg(test)]
mod tests {
    use super::power;

    #[test]
    fn powers_by_squaring() {
        assert_eq!((power(0.9, 0), power(0.9, 1), power(0.5, 40)), (1.0, 0.9, 1.0 / (1_u64 << 40) as f64));
        assert_eq!(power(0.999, 5), 0.999 * (0.999 * 0.999 * (0.999 * 0.999)));
        assert_eq!(power(0.95, 1_000_000), 0.0);
    }
}
