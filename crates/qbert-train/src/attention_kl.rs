//! How far the attention of two models diverges, per head and layer (paper, §5.2, Fig. 5).
//!
//! For every token the probabilities with which it attends to the others are a distribution; the divergence
//! KL(first ‖ second) of the two models' distributions is averaged over all tokens of a sample of the data.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use qbert_documents::{AttentionKl, LayerDivergence};
use qbert_kernels::Compute;
use qbert_tasks::{DataSource, SharedData};
use serde::{Deserialize, Serialize};

use crate::batch::Batch;
use crate::bert::Activations;
use crate::error::{Error, Result};
use crate::fingerprint;
use crate::loading::{Loaded, read_data};
use crate::ops::attention;
use crate::qat::Quantization;
use crate::sensitivity::settings::sample_size;
use crate::sensitivity::work::Sample;

/// What to compare.
#[derive(Debug, Clone)]
pub struct Job {
    /// The reference, normally the full-precision model.
    pub first: PathBuf,
    /// The other one, normally a quantized checkpoint.
    pub second: PathBuf,
    /// The data whose tokens the divergence is averaged over, of the task of both.
    pub data: DataSource,
    /// Sample and seed.
    pub settings: Settings,
}

/// The settings of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Share of the data.
    pub fraction: f64,
    /// Most sequences in the sample; `None` for no limit, as in the paper.
    pub max_examples: Option<usize>,
    /// Seed of the sample.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { fraction: 0.1, max_examples: Some(2000), seed: 1 }
    }
}

/// A model of the comparison; quantized, if its directory says so.
struct Side<'a> {
    loaded: &'a Loaded,
    quantization: Option<Quantization>,
    activations: Activations,
}

impl<'a> Side<'a> {
    fn new(loaded: &'a Loaded, model: &Path, compute: &Compute) -> Result<Self> {
        let quantization = loaded.as_quantized(model, compute)?;
        Ok(Self { loaded, quantization, activations: Activations::for_training() })
    }

    fn forward(&mut self, compute: &Compute, batch: &Batch) {
        let weights = self.loaded.model_weights(self.quantization.as_ref());
        weights.answer(&self.loaded.bert, compute, batch, &mut self.activations);
    }

    fn attention(&self, layer: usize) -> attention::Side<'_> {
        let own = &self.activations.layers[layer];
        let treatment = attention::Treatment {
            quantized: own.quantized.as_ref().map(|notes| notes.attention),
            bias: self.activations.bias.as_ref(),
            ..attention::Treatment::default()
        };
        attention::Side { qkv: &own.qkv, probabilities: &own.probabilities, treatment }
    }

    fn hash(&self) -> String {
        let weights = self.loaded.model_weights(self.quantization.as_ref());
        fingerprint::weights(weights.values())
    }
}

/// Compares two models; `watch` gets the number of batches that are done, and of all.
///
/// # Errors
/// A setting out of range; models that cannot be compared; any fault of models or data.
pub fn attention_kl(job: &Job, compute: &Compute, watch: &mut dyn FnMut(usize, usize)) -> Result<AttentionKl> {
    attention_kl_from(&mut SharedData::default(), job, compute, watch)
}

/// As [`attention_kl`], with data that may have been read for another step.
///
/// # Errors
/// As [`attention_kl`].
pub fn attention_kl_from(
    shared: &mut SharedData,
    job: &Job,
    compute: &Compute,
    watch: &mut dyn FnMut(usize, usize),
) -> Result<AttentionKl> {
    let settings = &job.settings;
    if !(settings.fraction > 0.0 && settings.fraction <= 1.0) {
        let (name, value) = ("`attention.fraction`", settings.fraction.to_string());
        return Err(Error::Setting { name, value, rule: "it must be above 0 and at most 1" });
    }
    let mut open = |model: &Path| Loaded::with_data(model, read_data(model, &job.data, shared)?);
    let loaded = [open(&job.first)?, open(&job.second)?];
    let data = fingerprint::data(&loaded[0].data.features)?;
    comparable(job, &loaded, &data)?;
    let mut sides = [Side::new(&loaded[0], &job.first, compute)?, Side::new(&loaded[1], &job.second, compute)?];
    let features = &loaded[0].data.features;
    let (count, _) = sample_size(settings.fraction, settings.max_examples, features.len());
    let sample = Sample::draw(features, count, settings.seed, 0)?;
    let (layers, heads) = (loaded[0].bert.config().layers, loaded[0].bert.config().heads);
    let mut sums = vec![vec![0.0; heads]; layers];
    let (mut tokens, total) = (0, sample.batches().len());
    for (done, (batch, _)) in sample.batches().iter().enumerate() {
        for side in &mut sides {
            side.loaded.bert.check(batch)?;
            side.forward(compute, batch);
        }
        for (layer, sums) in sums.iter_mut().enumerate() {
            let of_sides = sides.each_ref().map(|side| side.attention(layer));
            let heads = sides[0].loaded.bert.heads(layer);
            let found = attention::divergences(compute, heads, batch, of_sides, divergence);
            sums.iter_mut().zip(found).for_each(|(sum, found)| *sum += found);
        }
        tokens += batch.tokens();
        watch(done + 1, total);
    }
    let layer = |(layer, sums): (usize, Vec<f64>)| {
        let heads: Vec<f64> = sums.into_iter().map(|sum| sum / tokens.max(1) as f64).collect();
        let mean = heads.iter().sum::<f64>() / heads.len().max(1) as f64;
        LayerDivergence { layer, heads, mean }
    };
    Ok(AttentionKl {
        task: job.data.task.name().to_owned(),
        models: [sides[0].hash(), sides[1].hash()],
        data,
        settings: serde_json::json!(settings),
        examples: sample.examples(),
        tokens,
        layers: sums.into_iter().enumerate().map(layer).collect(),
    })
}

/// Two models have comparable attention when they have the same heads and cut the text into the same tokens.
fn comparable(job: &Job, loaded: &[Loaded; 2], data: &serde_json::Value) -> Result<()> {
    let misfit = |problem: String| Err(qbert_model::Error::Head { path: job.second.clone(), problem }.into());
    let [first, second] = loaded.each_ref().map(|side| side.bert.config());
    let first_name = job.first.display();
    if (first.layers, first.heads) != (second.layers, second.heads) {
        let (a, b) = ((first.layers, first.heads), (second.layers, second.heads));
        return misfit(format!(
            "{} layers of {} heads cannot be compared with the {} layers of {} heads of {first_name}",
            b.0, b.1, a.0, a.1
        ));
    }
    let [first_features, second_features] = loaded.each_ref().map(|side| &side.data.features);
    if !Arc::ptr_eq(first_features, second_features) && fingerprint::data(second_features)? != *data {
        return misfit(format!("it cuts the data into other tokens, or has other labels, than {first_name}"));
    }
    Ok(())
}

/// The sum of the divergences of some rows.
fn divergence(first: &[f32], second: &[f32]) -> f64 {
    first.iter().zip(second).map(|(p, q)| term(*p, *q)).sum()
}

/// `p·ln(p/q)`. A softmax in f32 can underflow to zero where its true value cannot be; the smallest f32 stands for it.
fn term(p: f32, q: f32) -> f64 {
    if p == 0.0 {
        return 0.0;
    }
    f64::from(p) * libm::log(f64::from(p) / f64::from(q.max(f32::MIN_POSITIVE)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergences_of_rows_are_added_per_head() {
        let mut batch = Batch::new();
        batch.push(&[1, 2], &[0, 0]);
        batch.push(&[3], &[0]);
        // Two heads; the first sequence has 2 × 2 rows per head, the second one row of one.
        let first = [0.5, 0.5, 1.0, 0.0, 0.25, 0.75, 0.5, 0.5, 1.0, 1.0];
        let second = [0.5, 0.5, 0.5, 0.5, 0.75, 0.25, 0.5, 0.5, 1.0, 1.0];
        let compute = Compute::detect(2).expect("kernels");
        let heads = attention::Heads { count: 2, width: 1, window: None };
        let side =
            |probabilities| attention::Side { qkv: &[], probabilities, treatment: attention::Treatment::default() };
        let sums = attention::divergences(&compute, heads, &batch, [side(&first), side(&second)], divergence);
        let expected = [2f64.ln(), 0.25 * (1.0 / 3.0f64).ln() + 0.75 * 3f64.ln()];
        for (sum, expected) in sums.iter().zip(expected) {
            assert!((sum - expected).abs() < 1e-12, "{sums:?}");
        }
        assert!(term(0.5, 0.0).is_finite() && term(0.5, 0.0) > 40.0);
    }
}
