//! The settings of a training run.

use std::fmt;
use std::str::FromStr;

use qbert_kernels::{Kernels, ProductPrecision};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::optimizer::OptimizerSettings;

/// Everything that decides the result of a training run, apart from model and data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Passes over the data.
    pub epochs: usize,
    /// Total number of optimizer steps; overrides `epochs`. The last pass over the data may be incomplete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<usize>,
    /// Sequences per micro-batch.
    pub batch: usize,
    /// Micro-batches whose gradients are averaged into one step.
    pub accumulate: usize,
    /// Share of the steps in which the learning rate rises.
    pub warmup: f64,
    /// The optimizer's settings.
    pub optimizer: OptimizerSettings,
    /// Seed of everything random.
    pub seed: u64,
    /// The precision of the products in a step's passes.
    #[serde(default, skip_serializing_if = "TrainingPrecision::is_f32")]
    pub precision: TrainingPrecision,
}

/// What the inputs of the linear layers' products are rounded to, in the passes of a training step and of its teacher.
/// Masters, sums, the optimizer, norms, softmax and losses are in f32 either way, and so are evaluations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TrainingPrecision {
    /// Nothing is rounded.
    #[default]
    F32,
    /// To bf16. Faster than f32 only where there are instructions for it. The same bytes on every CPU, except that those
    /// with AMX have other last bits ([`ProductPrecision::Bf16`]).
    Bf16,
}

impl TrainingPrecision {
    /// bf16 where the CPU has instructions for it, f32 elsewhere.
    pub fn fastest(kernels: Kernels) -> Self {
        if kernels.has_bf16() { Self::Bf16 } else { Self::F32 }
    }

    /// What kernels call it.
    pub fn products(self) -> ProductPrecision {
        match self {
            Self::F32 => ProductPrecision::F32,
            Self::Bf16 => ProductPrecision::Bf16,
        }
    }

    /// Older files say nothing, and files of f32 still say nothing, so that they stay comparable.
    fn is_f32(&self) -> bool {
        *self == Self::F32
    }
}

impl fmt::Display for TrainingPrecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.products().name())
    }
}

impl FromStr for TrainingPrecision {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = [Self::F32, Self::Bf16].into_iter().find(|known| known.to_string() == text);
        known.ok_or_else(|| format!("{text:?} is neither f32 nor bf16"))
    }
}

impl Settings {
    /// Refuses settings that make no sense; errors call them `training.batch` and so on.
    pub fn check(&self) -> crate::Result<()> {
        let refuse = |name, value: String, rule| Err(Error::Setting { name, value, rule });
        let OptimizerSettings { learning_rate, weight_decay, clip, table_rate, .. } = self.optimizer;
        if self.batch == 0 {
            return refuse("`training.batch`", self.batch.to_string(), "it must be at least 1");
        }
        if self.accumulate == 0 {
            return refuse("`training.accumulate`", self.accumulate.to_string(), "it must be at least 1");
        }
        if !(learning_rate > 0.0 && learning_rate < 1.0) {
            return refuse(
                "`training.optimizer.learning_rate`",
                learning_rate.to_string(),
                "it must be above 0 and below 1",
            );
        }
        if !(0.0..=1.0).contains(&self.warmup) {
            return refuse("`training.warmup`", self.warmup.to_string(), "it is a share of the steps, from 0 to 1");
        }
        if !(0.0..1.0).contains(&weight_decay) {
            return refuse(
                "`training.optimizer.weight_decay`",
                weight_decay.to_string(),
                "it must be from 0 to below 1",
            );
        }
        if !(0.0..=100.0).contains(&table_rate) {
            return refuse(
                "`training.optimizer.table_rate`",
                table_rate.to_string(),
                "it is a multiple of the learning rate, from 0 to 100",
            );
        }
        if clip.is_nan() || clip < 0.0 {
            return refuse("`training.optimizer.clip`", clip.to_string(), "it must be 0 (never) or above");
        }
        Ok(())
    }
}
