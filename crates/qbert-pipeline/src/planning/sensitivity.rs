//! Reads the sensitivities that `qbert analyze` writes; errors name file and layer.

use std::path::Path;

use qbert_documents::{
    AnalyzedLayer, Error as DocumentError, MeasuredSites, MeasuredWidth, Sensitivity, number::known,
};
use qbert_model::Checkpoint;
use qbert_quant::LayerSensitivity;
use qbert_train::sensitivity::model_hash;

use crate::error::{Error, ErrorKind, Result};

/// What a plan needs of a sensitivity file: few fields, so that files written by hand work, too.
#[derive(Debug)]
pub struct Measured {
    /// The task it was measured on, if the file says so.
    pub task: Option<String>,
    /// The hash of the weights it was measured on, if the file says so.
    pub model: Option<String>,
    /// One entry for each encoder layer of the model.
    pub layers: Vec<LayerSensitivity>,
    /// What quantizing one matrix at a time does, if that was measured.
    pub sites: Option<MeasuredSites>,
}

const WRITTEN_BY: &str = "give the sensitivity.json that `qbert analyze` wrote";

/// Reads the file for a model of this many encoder layers.
///
/// # Errors
/// A file that cannot be read, is no sensitivity file, or is of another model; the error names file and layer.
pub fn read(path: &Path, model_layers: usize) -> Result<Measured> {
    let file: Sensitivity = qbert_documents::read(path).map_err(|error| match &error {
        DocumentError::Syntax { .. } | DocumentError::Field { .. } | DocumentError::Format { .. } => {
            wrong(error.to_string(), WRITTEN_BY)
        }
        _ => Error::from(error),
    })?;
    let name = path.display();
    for (expected, layer) in file.layers.iter().enumerate() {
        if layer.layer != expected {
            let message = format!("{name}: layer {} where layer {expected} should be", layer.layer);
            return Err(wrong(message, "every layer must be there once, in order, counted from 0"));
        }
    }
    let of_measured = file.measured.iter().flat_map(|own| &own.sites).map(|site| site.layer + 1).max();
    let found = if file.layers.is_empty() { of_measured.unwrap_or(0) } else { file.layers.len() };
    if found != model_layers {
        let message = format!("{name}: sensitivities of {found} layers, but the model has {model_layers}");
        return Err(wrong(message, "give the file that was measured on this model"));
    }
    let mut layers = file.layers.iter().map(|layer| check(layer, path)).collect::<Result<Vec<LayerSensitivity>>>()?;
    layers.resize(model_layers, LayerSensitivity::default());
    if let Some(sites) = &file.measured {
        let sums = |figure: fn(&MeasuredWidth) -> f64| {
            let problem = || format!("{name}: `measured` does not have every layer with a divergence and an error");
            sites.by_layer(model_layers, figure).ok_or_else(|| wrong(problem(), WRITTEN_BY))
        };
        let (divergences, errors) = (sums(|own| own.divergence)?, sums(|own| own.error)?);
        for (layer, (divergence, error)) in layers.iter_mut().zip(divergences.into_iter().zip(errors)) {
            (layer.divergence, layer.error) = (Some(divergence), Some(error));
        }
    }
    // A file made by hand need not name what it was measured on.
    let named = |name: String| Some(name).filter(|name| !name.is_empty());
    Ok(Measured { task: named(file.subject.task), model: named(file.subject.model), layers, sites: file.measured })
}

impl Measured {
    /// Whether it was measured on other weights than those in this directory, all of which are read for it. `None` if the
    /// file does not say what it was measured on, or there are no weights.
    pub fn is_of_other_weights(&self, directory: &Path) -> Option<bool> {
        let measured_on = self.model.as_deref()?;
        let weights = Checkpoint::open(directory).and_then(|checkpoint| checkpoint.load()).ok()?;
        Some(model_hash(&weights) != measured_on)
    }
}

fn check(layer: &AnalyzedLayer, path: &Path) -> Result<LayerSensitivity> {
    let (name, number) = (path.display(), layer.layer);
    let again = "measure this layer again: resuming the analysis keeps what is done";
    let measured = |what: &str, value: f64| {
        let absent = || wrong(format!("{name}: layer {number}: {what} is missing or not a number"), again);
        known(value).ok_or_else(absent)
    };
    let (mean, std) = (measured("mean", layer.mean)?, measured("std", layer.std)?);
    if std < 0.0 {
        return Err(wrong(
            format!("{name}: layer {number}: std is {std}, but a standard deviation is never negative"),
            again,
        ));
    }
    let sensitivity = LayerSensitivity { mean, std, trace: layer.trace, ..LayerSensitivity::default() };
    // Otherwise an edit of omega alone would silently change nothing.
    let (said, follows) = (if layer.omega.is_nan() { sensitivity.omega() } else { layer.omega }, sensitivity.omega());
    if (said - follows).abs() > 1e-6 * follows.abs().max(f64::MIN_POSITIVE) {
        let message = format!("{name}: layer {number}: omega is {said}, but |mean| + std is {follows}");
        return Err(wrong(message, "change mean or std: omega follows from them"));
    }
    Ok(sensitivity)
}

fn wrong(message: String, hint: &str) -> Error {
    Error::new(ErrorKind::BadInput, message, hint.to_owned())
}
