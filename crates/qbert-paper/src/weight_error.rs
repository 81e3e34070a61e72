//! How far each row's plan moves the weights before any training: the measurement that explains the drops.
//!
//! An error is relative, `‖W - Q(W)‖² / ‖W‖²`: 0 is no change, and above 1 the quantized weights are further from the
//! weights than zeros would be. Weighted by the layers' sensitivities, it is the cost that mixed precision
//! minimizes.

use std::collections::BTreeMap;
use std::path::Path;

use qbert_kernels::Threads;
use qbert_model::{Checkpoint, Parameters};
use qbert_quant::{Embedding, Matrix, Site};
use qbert_tasks::Task;
use serde::{Deserialize, Serialize};

use super::result::{Source, check_format, read_json, write_json};
use super::rows::{PaperTable, Ranges, Recipe, Row, Selection};
use super::study::Study;
use qbert_pipeline::Result;
use qbert_pipeline::planning::{SiteError, plan_errors};

/// The `format` field of the file.
const FORMAT: &str = "qbert-weight-errors";
/// Its version.
const VERSION: u32 = 1;

/// The errors of all plans.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WeightErrors {
    format: String,
    version: u32,
    /// The command that makes it.
    pub command: String,
    /// The task.
    pub task: Task,
    /// The fine-tuned model.
    pub model: Source,
    /// Where the order of the layers comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sensitivity: Option<Source>,
    /// The largest weight of each kind of matrix over all layers, in standard deviations of its matrix.
    pub largest_weights: BTreeMap<String, f64>,
    /// One entry for each method and kind of range.
    pub rows: Vec<WeightError>,
}

/// The errors of one plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WeightError {
    /// The method's name in files.
    pub name: String,
    /// Ranges of the weights.
    pub ranges: Ranges,
    /// Relative error of all matrices of the encoder together.
    pub encoder: f64,
    /// The same of each layer.
    pub layers: Vec<f64>,
    /// The same of each kind of matrix, over all layers.
    pub matrices: BTreeMap<String, f64>,
    /// Relative error of the word embedding.
    pub word: f64,
    /// Relative error of the position embedding.
    pub position: f64,
    /// `Σ Ω ‖W - Q(W)‖²` over the layers, where their sensitivities are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
}

impl WeightErrors {
    /// Reads the file.
    ///
    /// # Errors
    /// When the file cannot be read or has another format or version.
    pub fn read(path: &Path) -> Result<Self> {
        let hint = "create it again with `qbert-paper reproduce … --weight-errors`";
        let errors: Self = read_json(path, "weight-errors file", hint)?;
        check_format(path, (&errors.format, errors.version), (FORMAT, VERSION), hint)?;
        Ok(errors)
    }

    /// Writes it, whole or not at all.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        write_json(path, self)
    }

    /// The errors of a method's plan.
    pub fn get(&self, name: &str, ranges: Ranges) -> Option<&WeightError> {
        self.rows.iter().find(|row| row.name == name && row.ranges == ranges)
    }
}

impl Study {
    /// Measures the plans of these rows, each plan once. `watch` is called with the plans done and the total.
    ///
    /// # Errors
    /// As [`Study::plan`]; weights that cannot be read or quantized.
    pub fn weight_errors(
        &self,
        rows: &[Row],
        threads: &Threads,
        mut watch: impl FnMut(usize, usize),
    ) -> Result<WeightErrors> {
        let parameters = Checkpoint::open(&self.experiment.model)?.load()?;
        let mut plans: Vec<(&Row, Ranges)> = Vec::new();
        for row in rows {
            let Some(ranges) = row.treatment.ranges() else { continue };
            if plans.iter().all(|(other, known)| (other.name(), *known) != (row.name(), ranges)) {
                plans.push((row, ranges));
            }
        }
        let mut measured = Vec::with_capacity(plans.len());
        for &(row, ranges) in &plans {
            let sites = plan_errors(&parameters, &self.shape, &self.plan(row)?, threads)?;
            measured.push(self.weight_error(row.name(), ranges, &sites));
            watch(measured.len(), plans.len());
        }
        // The command names methods only if some are left out.
        let everything = Selection {
            tables: PaperTable::ALL.to_vec(),
            ranges: vec![Ranges::MinMax],
            compensate: vec![false],
            distill: vec![false],
            recipe: Recipe::default(),
            seeds: Vec::new(),
            trained: false,
            names: Vec::new(),
        };
        let mut named: Vec<String> = Vec::new();
        for (row, _) in plans {
            if !named.contains(&row.name()) {
                named.push(row.name());
            }
        }
        if self.rows(&everything)?.iter().skip(1).all(|row| named.contains(&row.name())) {
            named.clear();
        }
        Ok(WeightErrors {
            format: FORMAT.to_owned(),
            version: VERSION,
            command: self.errors_command(&named),
            task: self.experiment.data.task,
            model: self.model.clone(),
            sensitivity: self.sensitivity.clone(),
            largest_weights: largest_weights(&parameters, self.layers),
            rows: measured,
        })
    }

    fn weight_error(&self, name: String, ranges: Ranges, sites: &[SiteError]) -> WeightError {
        let relative = |wanted: &dyn Fn(Site) -> bool| {
            let all = sites.iter().filter(|own| wanted(own.site));
            let (error, weights) = all.fold((0.0, 0.0), |sums, own| (sums.0 + own.error, sums.1 + own.weights));
            if weights > 0.0 { error / weights } else { 0.0 }
        };
        let cost = self.experiment.sensitivity.as_ref().map(|measured| {
            let omega = |site: Site| site.layer().map_or(0.0, |layer| measured.layers[layer].omega());
            sites.iter().map(|own| omega(own.site) * own.error).sum()
        });
        WeightError {
            name,
            ranges,
            encoder: relative(&|site| site.layer().is_some()),
            layers: (0..self.layers).map(|layer| relative(&|site| site.layer() == Some(layer))).collect(),
            matrices: Matrix::ALL
                .into_iter()
                .map(|kind| {
                    (kind.name().to_owned(), relative(&|site| matches!(site, Site::Layer(_, own) if own == kind)))
                })
                .collect(),
            word: relative(&|site| site == Site::Embedding(Embedding::Word)),
            position: relative(&|site| site == Site::Embedding(Embedding::Position)),
            cost,
        }
    }
}

fn largest_weights(parameters: &Parameters, layers: usize) -> BTreeMap<String, f64> {
    let in_deviations = |site: Site| {
        let weights = parameters.get(parameters.layout().site(site)?);
        let count = weights.len().max(1) as f64;
        let mean = weights.iter().map(|&weight| f64::from(weight)).sum::<f64>() / count;
        let variance = weights.iter().map(|&weight| (f64::from(weight) - mean).powi(2)).sum::<f64>() / count;
        let largest = weights.iter().map(|&weight| f64::from(weight).abs()).fold(0.0, f64::max);
        (variance > 0.0).then(|| largest / variance.sqrt())
    };
    let largest =
        |kind: Matrix| (0..layers).filter_map(|layer| in_deviations(Site::Layer(layer, kind))).fold(0.0, f64::max);
    Matrix::ALL.into_iter().map(|kind| (kind.name().to_owned(), largest(kind))).collect()
}
