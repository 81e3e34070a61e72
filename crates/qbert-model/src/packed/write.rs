//! Writing a packed model, atomically.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use qbert_kernels::int::{EmbeddingRows, LayoutError, pack};
use qbert_quant::{Axis, BitWidth, Plan, Precision, QuantizedMatrix, Site, TableWidth};

use super::header::{self, Kind, NewTensor};
use super::{LayerActivations, PackedTokenizer, VERSION, coding_of};
use crate::atomic;
use crate::config::{Config, MOST_LABELS};
use crate::error::{Error, Result};
use crate::layout::Parameter;
use crate::parameters::Parameters;
use crate::role::Module;

/// Everything that goes into a packed model.
#[derive(Debug, Clone, Copy)]
pub struct PackedContents<'a> {
    /// The model's numbers.
    pub config: &'a Config,
    /// All weights with their head. Used for tensors that are never quantized and sites that the plan leaves in f32.
    pub parameters: &'a Parameters,
    /// A classifier's labels, in the order of its outputs; empty for other heads.
    pub labels: &'a [String],
    /// The task's name; may be empty.
    pub task: &'a str,
    /// How each site is quantized.
    pub plan: &'a Plan,
    /// The codes of every site that the plan quantizes.
    pub sites: &'a BTreeMap<Site, QuantizedMatrix>,
    /// One entry per encoder layer; `None` where the plan leaves activations in f32.
    pub activations: Option<&'a [LayerActivations]>,
    /// The tokenizer.
    pub tokenizer: PackedTokenizer<'a>,
    /// Where the model comes from, for people and for reports.
    pub provenance: &'a BTreeMap<String, String>,
}

/// Writes a packed model and returns its size in bytes. An old file stays until the new one is complete and on disk.
///
/// # Errors
/// When the contents do not fit together, or the file cannot be written.
pub fn write_packed(path: &Path, contents: &PackedContents<'_>) -> Result<u64> {
    let (metadata, tensors) = collect(path, contents)?;
    let mut length = 0;
    atomic::write_file(path, |writer| {
        let mut counted = Counted { writer, length: 0 };
        header::write(&mut counted, &metadata, &tensors)?;
        length = counted.length;
        Ok(())
    })?;
    Ok(length)
}

/// The bytes of a packed model in memory; errors call it `name`.
///
/// # Errors
/// When the contents do not fit together.
pub fn packed_bytes(name: &str, contents: &PackedContents<'_>) -> Result<Vec<u8>> {
    let path = Path::new(name);
    let (metadata, tensors) = collect(path, contents)?;
    let mut bytes = Vec::new();
    header::write(&mut bytes, &metadata, &tensors).map_err(Error::io(path, "write"))?;
    Ok(bytes)
}

struct Counted<'a> {
    writer: &'a mut dyn Write,
    length: u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.writer.write(bytes)?;
        self.length += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.writer.flush()
    }
}

/// Metadata and tensors in the order of the file: aligned parts first, parts of arbitrary length last.
fn collect(path: &Path, contents: &PackedContents<'_>) -> Result<(BTreeMap<String, String>, Vec<NewTensor>)> {
    let PackedContents { config, parameters, labels, plan, activations, .. } = *contents;
    plan.check_layers(config.distinct_layers())?;
    let problem = |problem: String| Error::PackedContents { path: path.to_owned(), problem };
    let layout = parameters.layout();
    let output = layout.role(Module::Head.bias()).filter(|_| layout.head().has_labels());
    let outputs = output.map_or(0, |bias| bias.span.len());
    if labels.len() > MOST_LABELS {
        return Err(problem(format!("{} labels; at most {MOST_LABELS} are supported", labels.len())));
    }
    if labels.len() != outputs {
        return Err(problem(format!("{} labels for a head of {outputs} outputs", labels.len())));
    }
    let (mut matrices, mut floats, mut tables) = (Vec::new(), Vec::new(), Vec::new());
    for parameter in layout.parameters() {
        let quantized = match parameter.role.site() {
            Some(site) if plan.site(site)?.bits != Precision::Full => Some(site),
            _ => None,
        };
        match quantized {
            None => floats.push(float_tensor(path, parameter, parameters.get(parameter))?),
            Some(site) => {
                let matrix = contents.sites.get(&site).ok_or_else(|| problem(format!("no codes for {site}")))?;
                check_matrix(parameter, plan, site, matrix, config.heads).map_err(&problem)?;
                let codes = code_tensor(site, matrix).map_err(|error| problem(format!("{site}: {error}")))?;
                let target = if matches!(site, Site::Layer(..)) { &mut matrices } else { &mut tables };
                target.push(codes);
                target.extend(codebook_tensor(site, matrix));
                floats.push(group_tensor(site, matrix));
            }
        }
    }
    check_activations(config, plan, activations).map_err(&problem)?;
    floats.extend(activations.unwrap_or_default().iter().enumerate().map(activation_tensor));
    let (name, text) = match contents.tokenizer {
        PackedTokenizer::Vocabulary { text, .. } => ("vocabulary", text),
        PackedTokenizer::Json(text) => ("tokenizer", text),
    };
    let text = NewTensor { name: name.to_owned(), kind: Kind::U8, shape: vec![text.len()], bytes: text.to_vec() };
    let tensors = matrices.into_iter().chain(floats).chain(tables).chain([text]).collect();
    Ok((metadata(contents, &config.to_json(layout.head(), labels).to_string()), tensors))
}

/// Checks that there is an entry for every layer if the plan quantizes activations, and none otherwise.
fn check_activations(
    config: &Config,
    plan: &Plan,
    activations: Option<&[LayerActivations]>,
) -> std::result::Result<(), String> {
    let layers = config.layers;
    match (plan.activation().bits, activations.map(<[LayerActivations]>::len)) {
        (Precision::Full, None) => Ok(()),
        (Precision::Full, Some(_)) => Err("activation ranges, but the plan leaves activations in f32".to_owned()),
        (Precision::Bits(BitWidth::EIGHT), Some(found)) if found == layers => Ok(()),
        (Precision::Bits(BitWidth::EIGHT), found) => {
            Err(format!("activation ranges of {} layers for a model of {layers}", found.unwrap_or(0)))
        }
        (Precision::Bits(bits), _) => Err(format!("activations of {bits} bits; only 8 and 32 can be packed")),
    }
}

fn metadata(contents: &PackedContents<'_>, config: &str) -> BTreeMap<String, String> {
    let provenance = serde_json::json!(contents.provenance).to_string();
    let mut metadata = BTreeMap::from([
        ("format".to_owned(), "qbert".to_owned()),
        ("version".to_owned(), VERSION.to_string()),
        ("config".to_owned(), config.to_owned()),
        ("plan".to_owned(), contents.plan.to_toml()),
        ("task".to_owned(), contents.task.to_owned()),
        ("provenance".to_owned(), provenance),
    ]);
    if let PackedTokenizer::Vocabulary { options, .. } = contents.tokenizer {
        metadata.insert("tokenizer_options".to_owned(), options.to_owned());
    }
    if let Some(embedder) = &contents.config.embedder {
        metadata.insert("embedder".to_owned(), serde_json::json!(embedder).to_string());
    }
    metadata
}

/// Checks that a matrix has the model's shape and is quantized as planned.
fn check_matrix(
    parameter: &Parameter,
    plan: &Plan,
    site: Site,
    matrix: &QuantizedMatrix,
    heads: usize,
) -> std::result::Result<(), String> {
    let planned = plan.site(site).map_err(|error| error.to_string())?;
    let (found, shape) = (matrix.layout(), parameter.shape.as_slice());
    if [found.rows(), found.cols()] != shape {
        return Err(format!("{site} has codes of {}×{} for weights of {shape:?}", found.rows(), found.cols()));
    }
    if Precision::Bits(matrix.bits()) != planned.bits {
        return Err(format!("{site} has codes of {} bits, planned are {}", matrix.bits(), planned.bits));
    }
    let product = matrix.product().map(|product| product.width);
    if product != planned.product {
        let found = TableWidth { bits: planned.bits, product };
        return Err(format!("{site} has codes of {found} bits, planned are {}", planned.width()));
    }
    let layout = planned.layout(found.rows(), found.cols(), found.axis(), heads);
    if layout.as_ref() != Ok(&found) {
        return Err(format!("{site} has {} groups, planned are {}", found.groups().count(), planned.groups));
    }
    Ok(())
}

fn code_tensor(site: Site, matrix: &QuantizedMatrix) -> std::result::Result<NewTensor, LayoutError> {
    let (bits, rows, cols) = (matrix.bits(), matrix.layout().rows(), matrix.layout().cols());
    let bytes = match (site, matrix.product()) {
        (_, Some(product)) => product.numbers.clone(),
        (Site::Layer(..), None) => pack(matrix.codes(), coding_of(bits), rows, cols)?,
        (Site::Embedding(_), None) => EmbeddingRows::pack(matrix.codes(), bits.whole_bits(), rows, cols)?,
    };
    Ok(NewTensor { name: format!("{site}.codes"), kind: Kind::U8, shape: vec![bytes.len()], bytes })
}

/// The codebook of product codes, where the site has them.
fn codebook_tensor(site: Site, matrix: &QuantizedMatrix) -> Option<NewTensor> {
    let bytes = matrix.product()?.codebook.clone();
    Some(NewTensor { name: format!("{site}.codebook"), kind: Kind::U8, shape: vec![bytes.len()], bytes })
}

/// The step and offset of every group. Rows of a table have the two ends of their ranges instead, which are bf16 numbers.
fn group_tensor(site: Site, matrix: &QuantizedMatrix) -> NewTensor {
    if matrix.layout().axis() == Axis::TableRows {
        let ends = matrix.row_ranges().iter().flat_map(|range| [range.low(), range.high()]);
        let bytes = ends.flat_map(|end| ((end.to_bits() >> 16) as u16).to_le_bytes()).collect();
        let shape = vec![matrix.row_ranges().len(), 2];
        return NewTensor { name: format!("{site}.ranges"), kind: Kind::Bf16, shape, bytes };
    }
    let numbers = matrix.affines().iter().flat_map(|affine| [affine.step(), affine.low()]);
    let shape = vec![matrix.affines().len(), 2];
    NewTensor {
        name: format!("{site}.groups"),
        kind: Kind::F32,
        shape,
        bytes: numbers.flat_map(f32::to_le_bytes).collect(),
    }
}

fn activation_tensor((layer, activations): (usize, &LayerActivations)) -> NewTensor {
    let numbers = activations.to_array().into_iter().flat_map(|p| [p.step(), f32::from(p.zero_point())]);
    NewTensor {
        name: format!("layer.{layer}.activations"),
        kind: Kind::F32,
        shape: vec![LayerActivations::NAMES.len(), 2],
        bytes: numbers.flat_map(f32::to_le_bytes).collect(),
    }
}

fn float_tensor(path: &Path, parameter: &Parameter, values: &[f32]) -> Result<NewTensor> {
    if let Some(index) = values.iter().position(|value| !value.is_finite()) {
        let (path, tensor, value) = (path.to_owned(), parameter.name.clone(), values[index]);
        return Err(Error::NotFinite { path, tensor, index, value });
    }
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Ok(NewTensor { name: parameter.name.clone(), kind: Kind::F32, shape: parameter.shape.clone(), bytes })
}
