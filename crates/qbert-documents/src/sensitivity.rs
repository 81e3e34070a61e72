//! `sensitivity.json`: the eigenvalues of each layer's Hessian over several runs (paper, §3.2).

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::bits::BitCount;
use crate::document::{Document, Header};
use crate::number;

/// What an analysis found.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Sensitivity {
    /// What was analyzed.
    #[serde(flatten)]
    pub subject: AnalysisSubject,
    /// The settings of the analysis, as its own type writes them.
    #[serde(default)]
    pub settings: Value,
    /// Every layer, in order; none where only divergences were measured.
    pub layers: Vec<AnalyzedLayer>,
    /// Layers from the most to the least sensitive.
    #[serde(default)]
    pub ranking: Vec<usize>,
    /// Spearman's correlation of Ω between the first and the second half of the runs: 1 means that the ranking is stable.
    #[serde(default)]
    pub agreement_of_halves: Option<f64>,
    /// Every run.
    #[serde(default, deserialize_with = "runs_or_none")]
    pub runs: Vec<AnalysisRun>,
    /// What a reader should know before trusting a plan made from this.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// What quantizing one matrix at a time does to the answers, if that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<MeasuredSites>,
}

/// What quantizing one matrix at a time does to the answers.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct MeasuredSites {
    /// The settings of the measurement, as its own type writes them.
    #[serde(default)]
    pub settings: Value,
    /// Size and hash of the data.
    #[serde(default)]
    pub data: Value,
    /// Longest sequence in tokens.
    #[serde(default)]
    pub max_len: usize,
    /// Sequences that were looked at.
    #[serde(default)]
    pub examples: usize,
    /// Their tokens.
    #[serde(default)]
    pub tokens: usize,
    /// Every matrix of the encoder, layer by layer.
    pub sites: Vec<MeasuredSite>,
}

/// One matrix of the encoder.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct MeasuredSite {
    /// Its name in plans, such as `layer.0.query`.
    pub site: String,
    /// Its layer, counted from 0.
    pub layer: usize,
    /// Its number of weights.
    pub parameters: usize,
    /// Every width that was measured, lowest first.
    pub widths: Vec<MeasuredWidth>,
}

/// One matrix at one width, the rest of the model in full precision.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct MeasuredWidth {
    /// The width.
    pub bits: BitCount,
    /// The mean divergence of the answers from those in full precision, in nats.
    #[serde(default = "number::unknown", deserialize_with = "number::one")]
    pub divergence: f64,
    /// The squared error of the weights, `‖W − Q(W)‖²`.
    #[serde(default = "number::unknown", deserialize_with = "number::one")]
    pub error: f64,
}

impl MeasuredSites {
    /// For each of this many layers, the sum of a figure over its matrices at the lowest width; `None` where a layer has
    /// none or a figure is unknown.
    pub fn by_layer(&self, layers: usize, figure: impl Fn(&MeasuredWidth) -> f64) -> Option<Vec<f64>> {
        let mut sums = vec![None; layers];
        for site in &self.sites {
            let sum: &mut Option<f64> = sums.get_mut(site.layer)?;
            *sum = Some(sum.unwrap_or(0.0) + figure(site.widths.first()?));
        }
        sums.into_iter().map(|sum| sum.filter(|sum| sum.is_finite())).collect()
    }
}

impl Document for Sensitivity {
    const HEADER: Option<Header> = Some(Header { format: "qbert-sensitivity", version: 1 });
}

/// What was analyzed.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AnalysisSubject {
    /// The task's name.
    pub task: String,
    /// Hash of the model's weights.
    pub model: String,
    /// Parameters of each encoder layer.
    pub layer_parameters: Vec<usize>,
    /// Size and hash of the data.
    pub data: Value,
    /// Longest sequence in tokens.
    pub max_len: usize,
}

/// One layer over all runs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct AnalyzedLayer {
    /// The layer, counted from 0.
    pub layer: usize,
    /// The eigenvalue of largest magnitude in every run, with its sign.
    #[serde(default, deserialize_with = "number::list")]
    pub eigenvalues: Vec<f64>,
    /// Their mean.
    #[serde(default = "number::unknown", deserialize_with = "number::one")]
    pub mean: f64,
    /// Their standard deviation (of the runs themselves: divided by their number).
    #[serde(default = "number::unknown", deserialize_with = "number::one")]
    pub std: f64,
    /// Ω = |mean| + std (Eq. 2).
    #[serde(default = "number::unknown", deserialize_with = "number::one")]
    pub omega: f64,
    /// Lowest eigenvalue in every run; empty with power iteration.
    #[serde(default, deserialize_with = "number::list")]
    pub lowest: Vec<f64>,
    /// Hessian-vector products in every run.
    #[serde(default)]
    pub iterations: Vec<usize>,
    /// Distance within which there is an eigenvalue, in every run.
    #[serde(default, deserialize_with = "number::list")]
    pub residuals: Vec<f64>,
    /// Runs that reached the tolerance.
    #[serde(default)]
    pub converged: usize,
    /// Mean trace over the runs, divided by the number of the layer's parameters.
    #[serde(default)]
    pub trace: Option<f64>,
}

/// What one run looked at.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AnalysisRun {
    /// The run, counted from 0.
    pub run: usize,
    /// Sequences.
    pub examples: usize,
    /// Their tokens.
    pub tokens: usize,
    /// Mean loss over them.
    pub loss: f64,
}

/// No plan depends on the runs, so a file written by hand may say anything here.
fn runs_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<AnalysisRun>, D::Error> {
    Ok(serde_json::from_value(Value::deserialize(deserializer)?).unwrap_or_default())
}

/// How sensitive every layer is by one measure.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LayerMetric {
    /// Its name in plans: `omega`, `mean`, `trace`, `trace-error`, `kl`.
    pub name: String,
    /// A figure for every layer, in order; larger is more sensitive.
    #[serde(deserialize_with = "number::list")]
    pub values: Vec<f64>,
}

impl Sensitivity {
    /// Every measure that the file has for all layers, the measured divergence last.
    pub fn metrics(&self) -> Vec<LayerMetric> {
        let of_sites = self.measured.iter().flat_map(|own| &own.sites).map(|site| site.layer + 1).max();
        let layers = if self.layers.is_empty() { of_sites.unwrap_or(0) } else { self.layers.len() };
        let curvature = |figure: fn(&AnalyzedLayer) -> Option<f64>| -> Option<Vec<f64>> {
            (!self.layers.is_empty()).then(|| self.layers.iter().map(figure).collect())?
        };
        let measured = |figure: fn(&MeasuredWidth) -> f64| self.measured.as_ref()?.by_layer(layers, figure);
        let (trace, error) = (curvature(|layer| layer.trace.map(f64::abs)), measured(|own| own.error));
        let pairs = trace.iter().zip(&error).next();
        let product = pairs.map(|(trace, error)| trace.iter().zip(error).map(|(trace, error)| trace * error).collect());
        let all = [
            ("omega", curvature(|layer| Some(layer.omega))),
            ("mean", curvature(|layer| Some(layer.mean.abs()))),
            ("trace", trace.clone()),
            ("trace-error", product),
            ("kl", measured(|own| own.divergence)),
        ];
        let metric = |(name, values): (&str, Option<Vec<f64>>)| {
            let values = values.filter(|values| values.iter().all(|value| value.is_finite()))?;
            Some(LayerMetric { name: name.to_owned(), values })
        };
        all.into_iter().filter_map(metric).collect()
    }

    /// Checks what a complete analysis has: every layer once and in order, with finite figures, and a ranking of them all.
    ///
    /// # Errors
    /// The first thing that is wrong, in words.
    pub fn check(&self) -> Result<(), String> {
        if self.layers.is_empty() {
            return match &self.measured {
                Some(_) => {
                    Err("it has no eigenvalues, only measured divergences (`qbert analyze --method kl`)".to_owned())
                }
                None => Err("there are no layers".to_owned()),
            };
        }
        for (index, layer) in self.layers.iter().enumerate() {
            if layer.layer != index {
                return Err(format!("layer {} where layer {index} should be", layer.layer));
            }
            if ![layer.mean, layer.std, layer.omega].iter().all(|value| value.is_finite()) {
                return Err(format!("layer {index}: mean, std or omega is not a finite number"));
            }
        }
        let mut ranked = self.ranking.clone();
        ranked.sort_unstable();
        if !ranked.into_iter().eq(0..self.layers.len()) {
            return Err("the ranking does not have every layer once".to_owned());
        }
        Ok(())
    }
}
