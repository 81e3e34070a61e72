//! A quantized checkpoint on disk: a Hugging Face checkpoint of the f32 masters with three files beside it.
//!
//! | file | holds |
//! |---|---|
//! | `model.safetensors`, `config.json`, … | the masters: training can go on from them, and `transformers` reads them |
//! | `plan.toml` | the plan |
//! | `ranges.safetensors` | one tensor per quantized site (`layer.0.query`, `embedding.word`), `[groups, 2]` f32: the ends of each group's range; the codebook of a table with product codes (`embedding.word.codebook`), `[256, columns]`, its codes as f32 |
//! | `activations.json` | step and zero point of each activation tensor (`layer.3.inner`); absent when activations stay in f32 |
//!
//! Codes are not stored: they follow from masters and ranges. The packed file holds codes and no masters.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use qbert_model::{Config, FloatTensor, ParameterLayout, atomic};
use qbert_quant::{ActivationParams, Codebook, Plan, Range, Site};
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};

use super::Quantization;
use super::activations::ActivationRanges;
use crate::bert::ActivationTensor;
use crate::error::{Error, Result};

/// The plan's file.
pub const PLAN: &str = "plan.toml";
/// The file of the weights' ranges.
pub const RANGES: &str = "ranges.safetensors";
/// The file of the activations' ranges.
pub const ACTIVATIONS: &str = "activations.json";

/// Whether a directory holds a quantized checkpoint.
///
/// # Errors
/// [`Error::QuantizedFile`] when some of its files are there and others are not: without them the masters would be taken
/// for the model. A plan alone may lie beside any checkpoint.
pub fn is_quantized(directory: &Path) -> Result<bool> {
    let is_there = |name: &&str| directory.join(name).is_file();
    if ![RANGES, ACTIVATIONS].iter().any(is_there) {
        return Ok(false);
    }
    match [PLAN, RANGES].into_iter().find(|name| !is_there(name)) {
        None => Ok(true),
        Some(name) => {
            let problem = "the file is missing, but other files of a quantized checkpoint are there".to_owned();
            Err(Error::QuantizedFile { path: directory.join(name), problem })
        }
    }
}

/// The files that [`write()`] writes.
pub(crate) fn names(quantization: &Quantization) -> impl Iterator<Item = &str> {
    let activations = quantization.ranges().map(|_| ACTIVATIONS);
    [PLAN, RANGES].into_iter().chain(activations)
}

/// Writes what a quantization adds to the checkpoint of the masters; each file whole or not at all.
///
/// # Errors
/// When a file cannot be written.
pub fn write(directory: &Path, quantization: &Quantization) -> Result<()> {
    let text = quantization.plan().to_toml();
    atomic::write_file(&directory.join(PLAN), |writer| writer.write_all(text.as_bytes()))?;
    if let Some(ranges) = quantization.ranges() {
        let stored = Stored { version: 1, bits: 8, tensors: ranges.iter().map(|(n, p)| (n, p.into())).collect() };
        let json = serde_json::to_string_pretty(&stored).map_err(|e| damaged(&directory.join(ACTIVATIONS), e))?;
        atomic::write_file(&directory.join(ACTIVATIONS), |writer| writeln!(writer, "{json}"))?;
    }
    let sites: Vec<(String, [usize; 2], Vec<f32>)> = quantization
        .weights()
        .iter()
        .map(|(site, params)| {
            let ends = params.ranges().iter().flat_map(|range| [range.low(), range.high()]).collect();
            (site.to_string(), [params.ranges().len(), 2], ends)
        })
        .chain(quantization.weights().codebooks().map(|(site, codebook)| {
            let codes: Vec<f32> = codebook.codes().iter().map(|&code| f32::from(code)).collect();
            (codebook_name(site), [Codebook::ENTRIES, codes.len() / Codebook::ENTRIES], codes)
        }))
        .collect();
    let tensors = sites.iter().map(|(name, shape, values)| (name, FloatTensor { shape, values }));
    // A file with neither tensors nor metadata would be one that safetensors cannot read again.
    let none = || HashMap::from([("sites".to_owned(), "none".to_owned())]);
    let metadata = if sites.is_empty() { none() } else { HashMap::new() };
    atomic::write_tensors(&directory.join(RANGES), tensors, metadata)?;
    Ok(())
}

/// Reads what [`write()`] wrote, for the model whose checkpoint lies beside it. Activation ranges are frozen.
///
/// # Errors
/// When a file is missing, damaged, or of another model.
pub fn read(directory: &Path, config: &Config, layout: &ParameterLayout) -> Result<Quantization> {
    let mut quantization = Quantization::new(read_plan(&directory.join(PLAN))?, config, layout)?;
    read_ranges(&directory.join(RANGES), &mut quantization)?;
    if let Some(learner) = quantization.activations_mut() {
        learner.freeze_at(read_activations(&directory.join(ACTIVATIONS), config.layers)?);
    }
    Ok(quantization)
}

/// Reads a plan's file.
///
/// # Errors
/// When it cannot be read or is no plan; the error names file and line.
pub fn read_plan(path: &Path) -> Result<Plan> {
    let bytes = read_file(path)?;
    let text = String::from_utf8(bytes).map_err(|_| damaged(path, "not UTF-8 text"))?;
    Ok(Plan::parse(&text, &path.display().to_string())?)
}

fn read_ranges(path: &Path, quantization: &mut Quantization) -> Result<()> {
    let bytes = read_file(path)?;
    let file = SafeTensors::deserialize(&bytes).map_err(|e| damaged(path, e))?;
    let sites: Vec<_> = quantization.weights().iter().map(|(site, params)| (site, params.ranges().len())).collect();
    for (site, groups) in sites {
        let tensor = file.tensor(&site.to_string()).map_err(|e| damaged(path, format!("{site}: {e}")))?;
        if tensor.dtype() != Dtype::F32 || tensor.shape() != [groups, 2] {
            let problem =
                format!("{site}: {:?} {:?}, but the plan has {groups} groups", tensor.dtype(), tensor.shape());
            return Err(damaged(path, problem));
        }
        let ends: Vec<f32> = tensor.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        let ranges: std::result::Result<Vec<Range>, _> =
            ends.as_chunks::<2>().0.iter().map(|[low, high]| Range::new(*low, *high)).collect();
        let ranges = ranges.map_err(|e| damaged(path, format!("{site}: {e}")))?;
        quantization.weights_mut().set_ranges(site, ranges)?;
    }
    let codebooks: Vec<_> = quantization.weights().codebooks().map(|(site, own)| (site, own.codes().len())).collect();
    for (site, length) in codebooks {
        let name = codebook_name(site);
        let tensor = file.tensor(&name).map_err(|e| damaged(path, format!("{name}: {e}")))?;
        if tensor.dtype() != Dtype::F32 || tensor.shape() != [Codebook::ENTRIES, length / Codebook::ENTRIES] {
            let problem = format!("{name}: {:?} {:?} does not fit the table", tensor.dtype(), tensor.shape());
            return Err(damaged(path, problem));
        }
        let values = tensor.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        let is_code = |value: f32| (0.0..=255.0).contains(&value) && value.fract() == 0.0;
        let codes: Option<Vec<u8>> = values.map(|value| is_code(value).then_some(value as u8)).collect();
        let codes = codes.ok_or_else(|| damaged(path, format!("{name}: an entry that is no code of 8 bits")))?;
        quantization.weights_mut().set_codebook(site, codes)?;
    }
    Ok(())
}

fn codebook_name(site: Site) -> String {
    format!("{site}.codebook")
}

/// `activations.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    version: u32,
    bits: u8,
    tensors: BTreeMap<String, StoredParams>,
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredParams {
    step: f32,
    zero_point: u8,
}

impl From<ActivationParams> for StoredParams {
    fn from(params: ActivationParams) -> Self {
        Self { step: params.step(), zero_point: params.zero_point() }
    }
}

/// Reads the ranges of activations of a model of this many layers.
///
/// # Errors
/// When the file is missing, damaged, or of another model.
pub fn read_activations(path: &Path, layers: usize) -> Result<ActivationRanges> {
    let stored: Stored = serde_json::from_slice(&read_file(path)?).map_err(|e| damaged(path, e))?;
    if stored.version != 1 || stored.bits != 8 {
        let problem =
            format!("version {} with {} bits; this program reads version 1 with 8", stored.version, stored.bits);
        return Err(damaged(path, problem));
    }
    let (found, expected) = (stored.tensors.len(), layers * ActivationTensor::ALL.len());
    if found != expected {
        return Err(damaged(path, format!("{found} tensors, but a model of {layers} layers has {expected}")));
    }
    let mut ranges = ActivationRanges::new(layers);
    for layer in 0..layers {
        for tensor in ActivationTensor::ALL {
            let name = format!("layer.{layer}.{}", tensor.name());
            let Some(own) = stored.tensors.get(&name) else {
                return Err(damaged(path, format!("{name} is missing")));
            };
            let params =
                ActivationParams::new(own.step, own.zero_point).map_err(|e| damaged(path, format!("{name}: {e}")))?;
            let fixed = ActivationParams::PROBABILITIES;
            if !tensor.is_learned() && (own.step, own.zero_point) != (fixed.step(), fixed.zero_point()) {
                return Err(damaged(path, format!("{name}: probabilities have step 1/255 and zero point 0, always")));
            }
            ranges.set(layer, tensor, params);
        }
    }
    Ok(ranges)
}

fn read_file(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|source| Error::Io { path: path.to_owned(), action: "read", source })
}

fn damaged(path: &Path, problem: impl std::fmt::Display) -> Error {
    Error::QuantizedFile { path: PathBuf::from(path), problem: problem.to_string() }
}
