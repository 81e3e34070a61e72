//! The loss over the plane of a layer's first two Hessian eigenvectors, all other layers fixed (paper, Fig. 1, 3, 6).

use std::path::PathBuf;
use std::sync::Arc;

use qbert_documents::{LayerLandscape, LossLandscapes};
use qbert_hessian::landscape::{Landscape, landscape, place};
use qbert_hessian::{Eigenpair, Lanczos, Method as _, Stop};
use qbert_kernels::Compute;
use qbert_tasks::{DataSource, TaskData};
use serde::{Deserialize, Serialize};

use crate::batch::Targets;
use crate::bert::{Activations, BackwardBuffers, HessianPass, Mode};
use crate::error::{Error, Result};
use crate::fingerprint;
use crate::loading::Loaded;
use crate::ops::distill::answer_divergence;
use crate::random::Stream;
use crate::sensitivity::work::{Sample, Wanted};

/// Everything landscapes are computed from.
#[derive(Debug, Clone)]
pub struct Job {
    /// Fine-tuned checkpoint.
    pub model: PathBuf,
    /// Data of its task, whose loss is shown.
    pub data: DataSource,
    /// The layers, counted from 0.
    pub layers: Vec<usize>,
    /// Grid, sample and seed.
    pub settings: Settings,
}

/// The settings of a landscape.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Points along each direction: an odd number, so that the model itself is in the middle.
    pub points: usize,
    /// Length of the longest step along each direction, in the norm of the weights' change.
    pub extent: f64,
    /// Most sequences in the sample; `None` for no limit.
    pub max_examples: Option<usize>,
    /// When the search for eigenvectors stops.
    pub stop: Stop,
    /// Seed of the sample and the starting vectors.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            points: 21,
            extent: 0.5,
            max_examples: Some(64),
            stop: Stop { iterations: 40, tolerance: 0.05 },
            seed: 1,
        }
    }
}

impl Settings {
    fn check(&self) -> Result<()> {
        let refuse = |name, value: String, rule| Err(Error::Setting { name, value, rule });
        if !(3..=201).contains(&self.points) || self.points.is_multiple_of(2) {
            let rule = "it must be odd, as the model itself is in the middle, and from 3 to 201";
            return refuse("`landscape.points`", self.points.to_string(), rule);
        }
        if !(self.extent > 0.0 && self.extent.is_finite()) {
            return refuse("`landscape.extent`", self.extent.to_string(), "it must be above 0");
        }
        if self.max_examples == Some(0) {
            return refuse("`landscape.max_examples`", "0".to_owned(), "it must be at least 1");
        }
        Ok(())
    }
}

/// Gets progress: the kind of work, how much is done, and of how much.
pub type Watch<'a> = &'a mut dyn FnMut(&str, usize, usize);

/// Computes the landscapes of the requested layers.
pub fn landscapes(job: &Job, compute: &Compute, watch: Watch<'_>) -> Result<LossLandscapes> {
    job.settings.check()?;
    landscapes_of(job, &Loaded::open(&job.model, &job.data)?, compute, watch)
}

/// As [`landscapes`], on data that was read earlier.
///
/// # Errors
/// As [`landscapes`]; data that was not read for this model.
pub fn landscapes_on(job: &Job, data: Arc<TaskData>, compute: &Compute, watch: Watch<'_>) -> Result<LossLandscapes> {
    job.settings.check()?;
    landscapes_of(job, &Loaded::with_data(&job.model, data)?, compute, watch)
}

fn landscapes_of(job: &Job, loaded: &Loaded, compute: &Compute, watch: Watch<'_>) -> Result<LossLandscapes> {
    let count = loaded.bert.config().distinct_layers();
    if let Some(&layer) = job.layers.iter().find(|&&layer| layer >= count) {
        let rule = "the model has fewer layers than that (they are counted from 0)";
        return Err(Error::Setting { name: "`landscape.layers`", value: layer.to_string(), rule });
    }
    let settings = &job.settings;
    let most = settings.max_examples.unwrap_or(loaded.data.features.len());
    let sample = Sample::draw(&loaded.data.features, most, settings.seed, 0)?;
    sample.batches().iter().try_for_each(|(batch, _)| loaded.bert.check(batch))?;
    let activations = Activations::for_evaluation();
    let mut plane = Plane { loaded, compute, sample: &sample, activations, own_vectors: Vec::new() };
    plane.keep_own_vectors();
    let pairs = plane.directions(&job.layers, settings, watch)?;
    let loss = plane.loss(loaded.weights.values());
    let mut layers = Vec::new();
    for (&layer, pairs) in job.layers.iter().zip(pairs) {
        layers.push(plane.layer(layer, &pairs, settings, watch)?);
    }
    Ok(LossLandscapes {
        task: job.data.task.name().to_owned(),
        model: fingerprint::weights(loaded.weights.values()),
        data: fingerprint::data(&loaded.data.features)?,
        settings: serde_json::json!(settings),
        examples: sample.examples(),
        loss,
        layers,
    })
}

struct Plane<'a> {
    loaded: &'a Loaded,
    compute: &'a Compute,
    sample: &'a Sample,
    activations: Activations,
    /// The model's own vectors of every batch, where that is what others are compared with.
    own_vectors: Vec<Vec<f32>>,
}

impl Plane<'_> {
    fn keep_own_vectors(&mut self) {
        let (bert, weights) = (&self.loaded.bert, self.loaded.weights.values());
        for (batch, _) in
            self.sample.batches().iter().filter(|(batch, _)| matches!(batch.targets, Targets::Vectors { .. }))
        {
            bert.forward(self.compute, weights, batch, Mode::Evaluate, &mut self.activations);
            self.own_vectors.push(self.activations.logits.clone());
        }
    }

    /// The first two eigenvectors of every layer, all layers in lock step.
    fn directions(&self, layers: &[usize], settings: &Settings, watch: Watch<'_>) -> Result<Vec<Vec<Eigenpair>>> {
        let spans = self.loaded.bert.layout().layers();
        let mut methods: Vec<(usize, Lanczos)> = Vec::new();
        for &layer in layers {
            let mut start = vec![0.0; spans[layer].len()];
            Stream::new(settings.seed, "analysis start", layer as u64).fill_normal(&mut start, 1.0);
            methods.push((layer, Lanczos::for_eigenvectors(&start, settings.stop, 2)));
        }
        let mut products: Vec<Vec<f32>> = layers.iter().map(|&layer| vec![0.0; spans[layer].len()]).collect();
        let mut pass = HessianPass::new();
        let mut passes = 0;
        while methods.iter().any(|(_, method)| method.vector().is_some()) {
            let mut wanted = Vec::with_capacity(methods.len());
            for ((layer, method), product) in methods.iter().zip(&mut products) {
                wanted.extend(method.vector().map(|vector| Wanted { layer: *layer, vector, product }));
            }
            self.sample.products(self.loaded, self.compute, &mut pass, 0, &mut wanted)?;
            for ((_, method), product) in methods.iter_mut().zip(&products) {
                if method.vector().is_some() {
                    method.advance(product);
                }
            }
            passes += 1;
            watch("eigenvectors, pass", passes, settings.stop.iterations);
        }
        Ok(methods.iter().map(|(_, method)| method.eigenpairs(2)).collect())
    }

    /// Mean loss over the sample.
    fn loss(&mut self, weights: &[f32]) -> f64 {
        let mut buffers = BackwardBuffers::default();
        let mut loss = 0.0;
        for (index, (batch, share)) in self.sample.batches().iter().enumerate() {
            let bert = &self.loaded.bert;
            bert.forward(self.compute, weights, batch, Mode::Evaluate, &mut self.activations);
            if let Some(own) = self.own_vectors.get(index) {
                let (distance, count) = answer_divergence((&self.activations.logits, own), batch, bert.outputs());
                loss += share * distance / count.max(1) as f64;
                continue;
            }
            loss += share * bert.loss(batch, &self.activations, 1.0, &mut buffers).mean;
        }
        loss
    }

    fn layer(
        &mut self,
        layer: usize,
        pairs: &[Eigenpair],
        settings: &Settings,
        watch: Watch<'_>,
    ) -> Result<LayerLandscape> {
        let [first, second] = pairs else {
            let problem = format!("layer {layer} has no two directions of curvature: its loss does not change");
            return Err(Error::Batch { problem });
        };
        let span = self.loaded.bert.layout().layers()[layer].clone();
        let mut weights = self.loaded.weights.values().to_vec();
        let base = weights[span.clone()].to_vec();
        let total = (settings.points | 1).pow(2);
        let mut done = 0;
        let Landscape { rows, columns, losses } = landscape(settings.extent, settings.points, |row, column| {
            place(&base, (row, &first.vector), (column, &second.vector), &mut weights[span.clone()]);
            done += 1;
            watch(&format!("layer {layer}, point"), done, total);
            Ok::<f64, Error>(self.loss(&weights))
        })?;
        let eigenvalues = pairs.iter().map(|pair| pair.value).collect();
        let residuals = pairs.iter().map(|pair| pair.residual).collect();
        Ok(LayerLandscape { layer, eigenvalues, residuals, rows, columns, losses })
    }
}
