//! The settings of a training run.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
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
}

impl Settings {
    /// Refuses settings that make no sense; errors call them `training.batch` and so on.
    pub fn check(&self) -> Result<()> {
        let refuse = |name, value: String, rule| Err(Error::Setting { name, value, rule });
        let OptimizerSettings { learning_rate, weight_decay, clip, .. } = self.optimizer;
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
        if clip.is_nan() || clip < 0.0 {
            return refuse("`training.optimizer.clip`", clip.to_string(), "it must be 0 (never) or above");
        }
        Ok(())
    }
}
