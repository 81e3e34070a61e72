//! Reads the sensitivities that `qbert analyze` writes; errors name file and layer.

use std::path::Path;

use qbert_model::Checkpoint;
use qbert_quant::LayerSensitivity;
use qbert_train::sensitivity::{FORMAT, VERSION, model_hash};
use serde::Deserialize;

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
}

const WRITTEN_BY: &str = "give the sensitivity.json that `qbert analyze` wrote";

#[derive(Debug, Deserialize)]
struct Header {
    format: Option<serde_json::Value>,
    version: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
struct File {
    task: Option<String>,
    model: Option<String>,
    layers: Vec<Layer>,
}

/// JSON has no NaN: where a number could not be measured there is null.
#[derive(Debug, Deserialize)]
struct Layer {
    layer: usize,
    mean: Option<f64>,
    std: Option<f64>,
    omega: Option<f64>,
    trace: Option<f64>,
}

/// Reads the file for a model of this many encoder layers.
///
/// # Errors
/// A file that cannot be read, is no sensitivity file, or is of another model; the error names file and layer.
pub fn read(path: &Path, model_layers: usize) -> Result<Measured> {
    let text = std::fs::read(path).map_err(|source| {
        let action = "read the sensitivities";
        Error::from(qbert_model::Error::Io { path: path.to_owned(), action, source })
    })?;
    let file = parse(&text, path)?;
    let name = path.display();
    for (expected, layer) in file.layers.iter().enumerate() {
        if layer.layer != expected {
            let message = format!("{name}: layer {} where layer {expected} should be", layer.layer);
            return Err(wrong(message, "every layer must be there once, in order, counted from 0"));
        }
    }
    let found = file.layers.len();
    if found != model_layers {
        let message = format!("{name}: sensitivities of {found} layers, but the model has {model_layers}");
        return Err(wrong(message, "give the file that was measured on this model"));
    }
    let layers: Result<Vec<LayerSensitivity>> = file.layers.iter().map(|layer| check(layer, path)).collect();
    Ok(Measured { task: file.task, model: file.model, layers: layers? })
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

fn parse(text: &[u8], path: &Path) -> Result<File> {
    let name = path.display();
    let at = |error: &serde_json::Error| format!("{name}:{}:{}", error.line(), error.column());
    // What the parser says, without the place that is said before it.
    let says = |error: &serde_json::Error| {
        let text = error.to_string();
        text.rsplit_once(" at line ").map_or(text.clone(), |(text, _)| text.to_owned())
    };
    let header: Header = serde_json::from_slice(text).map_err(|error| {
        let what = if error.is_data() { "not a sensitivity file" } else { "not valid JSON" };
        wrong(format!("{}: {what}: {}", at(&error), says(&error)), WRITTEN_BY)
    })?;
    if header.format.as_ref().and_then(|format| format.as_str()) != Some(FORMAT) {
        let found = header.format.map_or_else(|| "no format".to_owned(), |format| format!("format {format}"));
        return Err(wrong(format!("{name}: {found}, not \"{FORMAT}\""), WRITTEN_BY));
    }
    if header.version.as_ref().and_then(serde_json::Value::as_u64) != Some(u64::from(VERSION)) {
        let found = header.version.map_or_else(|| "no version".to_owned(), |version| format!("version {version}"));
        let message = format!("{name}: {found} of the sensitivity format is not known");
        return Err(wrong(message, &format!("this program reads version {VERSION}")));
    }
    serde_json::from_slice(text).map_err(|error| wrong(format!("{}: {}", at(&error), says(&error)), WRITTEN_BY))
}

fn check(layer: &Layer, path: &Path) -> Result<LayerSensitivity> {
    let (name, number) = (path.display(), layer.layer);
    let again = "measure this layer again: resuming the analysis keeps what is done";
    let measured = |what: &str, value: Option<f64>| {
        let absent = || wrong(format!("{name}: layer {number}: {what} is missing or not a number"), again);
        value.filter(|value| value.is_finite()).ok_or_else(absent)
    };
    let (mean, std) = (measured("mean", layer.mean)?, measured("std", layer.std)?);
    if std < 0.0 {
        return Err(wrong(
            format!("{name}: layer {number}: std is {std}, but a standard deviation is never negative"),
            again,
        ));
    }
    let sensitivity = LayerSensitivity { mean, std, trace: layer.trace };
    // Otherwise an edit of omega alone would silently change nothing.
    let (said, follows) = (layer.omega.unwrap_or(sensitivity.omega()), sensitivity.omega());
    if (said - follows).abs() > 1e-6 * follows.abs().max(f64::MIN_POSITIVE) {
        let message = format!("{name}: layer {number}: omega is {said}, but |mean| + std is {follows}");
        return Err(wrong(message, "change mean or std: omega follows from them"));
    }
    Ok(sensitivity)
}

fn wrong(message: String, hint: &str) -> Error {
    Error::new(ErrorKind::BadInput, message, hint.to_owned())
}
