//! Reading a packed model: everything is checked once, against the configuration and the plan.

use std::collections::BTreeMap;
use std::path::Path;

use qbert_quant::{
    ActivationParams, Affine, Axis, BitWidth, Layout as MatrixLayout, Plan, Precision, Range, Site, SitedTensor,
    shorten, shorten_list,
};

use super::header::{Entry, Header, Kind, Problem};
use super::{LayerActivations, ModelBytes, PackedModel, StoredCodes, StoredSite, VERSION};
use crate::config::Config;
use crate::embedder::Embedder;
use crate::error::{Error, Result};
use crate::layout::{Parameter, ParameterLayout};

/// The longest text of the metadata, the configuration aside: a plan of 256 layers is a tenth of it.
const LARGEST_TEXT: u64 = 1 << 20;

/// Checks the frame, its checksums and the version.
pub(super) fn check_frame(path: &Path, bytes: &[u8]) -> Result<Header> {
    if bytes.starts_with(b"version https://git-lfs") {
        return Err(Error::LfsPointer { path: path.to_owned() });
    }
    let header = Header::read(bytes).map_err(|problem| match problem {
        Problem::Foreign(problem) => Error::NotPacked { path: path.to_owned(), problem },
        Problem::Damaged(problem) => Error::Damaged { path: path.to_owned(), problem },
    })?;
    let format = header.metadata.get("format");
    if format.is_none_or(|format| format != "qbert") {
        let problem = "this is a safetensors file, but not a packed model".to_owned();
        return Err(Error::NotPacked { path: path.to_owned(), problem });
    }
    match header.metadata.get("version") {
        Some(version) if *version == VERSION.to_string() => Ok(header),
        version => {
            let found = version.map_or("no version".into(), |version| shorten(version));
            let problem = format!("a packed model of version {found}, and only version {VERSION} is read");
            Err(Error::NotPacked { path: path.to_owned(), problem })
        }
    }
}

pub(super) fn read(path: &Path, bytes: ModelBytes) -> Result<PackedModel> {
    let header = check_frame(path, &bytes)?;
    let sizes = header.tensors.iter().map(|tensor| (tensor.name.clone(), tensor.bytes.len())).collect();
    let mut reader = Reader::new(path, &bytes, header);
    let mut config = Config::parse(reader.text("config")?.as_bytes(), path)?;
    config.embedder = reader.embedder(&config)?;
    let plan = Plan::parse(reader.text("plan")?, &format!("{}: the plan inside", path.display()))?;
    plan.check_layers(config.distinct_layers()).map_err(|error| reader.damaged(error.to_string()))?;
    let layout = reader.layout(&config)?;
    let labels = if layout.head().has_labels() { config.labels.clone() } else { Vec::new() };
    let provenance = reader.provenance()?;
    let task = reader.text("task")?.to_owned();
    let mut sites = BTreeMap::new();
    for tensor in &config.shape(None).tensors {
        sites.insert(tensor.site, reader.site(tensor, &layout, &plan, config.heads)?);
    }
    let mut floats = BTreeMap::new();
    for Parameter { role, name, shape, .. } in layout.parameters().iter().filter(|p| p.role.site().is_none()) {
        floats.insert(*role, reader.floats(name, shape)?.bytes);
    }
    let activations = match plan.activation().bits {
        Precision::Full => None,
        Precision::Bits(BitWidth::EIGHT) => {
            Some((0..config.layers).map(|layer| reader.activations(layer)).collect::<Result<Vec<_>>>()?)
        }
        Precision::Bits(bits) => {
            return Err(reader.damaged(format!("activations of {bits} bits; only 8 are supported")));
        }
    };
    let has_options = reader.metadata.contains_key("tokenizer_options");
    let tokenizer_options = has_options.then(|| reader.text("tokenizer_options").map(str::to_owned)).transpose()?;
    let name = if tokenizer_options.is_some() { "vocabulary" } else { "tokenizer" };
    let tokenizer = reader.take(name, Kind::U8)?.bytes;
    reader.nothing_left()?;
    let path = path.to_owned();
    Ok(PackedModel {
        path,
        config,
        layout,
        labels,
        task,
        plan,
        provenance,
        tokenizer_options,
        tokenizer,
        sites,
        floats,
        activations,
        sizes,
        bytes,
    })
}

/// The parts of a file that are not yet read.
struct Reader<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    metadata: BTreeMap<String, String>,
    tensors: BTreeMap<String, Entry>,
}

impl<'a> Reader<'a> {
    fn new(path: &'a Path, bytes: &'a [u8], header: Header) -> Self {
        let tensors = header.tensors.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
        Self { path, bytes, metadata: header.metadata, tensors }
    }

    fn damaged(&self, problem: String) -> Error {
        Error::Damaged { path: self.path.to_owned(), problem }
    }

    fn text(&self, key: &str) -> Result<&str> {
        let text = self.metadata.get(key).ok_or_else(|| self.damaged(format!("the metadata has no `{key}`")))?;
        let most = if key == "config" { Config::LARGEST_FILE } else { LARGEST_TEXT };
        if text.len() as u64 > most {
            return Err(self.damaged(format!("`{key}` in the metadata has {} bytes; at most {most}", text.len())));
        }
        Ok(text)
    }

    fn provenance(&self) -> Result<BTreeMap<String, String>> {
        serde_json::from_str(self.text("provenance")?)
            .map_err(|error| self.damaged(format!("`provenance`: {}", shorten(&error.to_string()))))
    }

    /// How texts become vectors; files from before this was kept have nothing.
    fn embedder(&self, config: &Config) -> Result<Option<Embedder>> {
        if !self.metadata.contains_key("embedder") {
            return Ok(None);
        }
        let found: Embedder = serde_json::from_str(self.text("embedder")?)
            .map_err(|error| self.damaged(format!("`embedder`: {}", shorten(&error.to_string()))))?;
        let fits = |number: Option<usize>, most: usize| number.is_none_or(|number| (1..=most).contains(&number));
        if !fits(found.dimensions, config.hidden_size) || !fits(found.max_length, usize::MAX) {
            return Err(self.damaged("`embedder`: its sizes do not fit the model".to_owned()));
        }
        Ok(Some(found))
    }

    /// The layout, from the configuration and the tensors in the file.
    fn layout(&self, config: &Config) -> Result<ParameterLayout> {
        let head =
            config.declared_head.ok_or_else(|| self.damaged("`architectures` names no known head".to_owned()))?;
        let pooler = config.family.class(head).pooler_weight();
        let outputs = head.outputs(config.labels.len());
        if let Some(what) = config.unsupported_head(head, outputs) {
            return Err(Error::unsupported_head(self.path, &what));
        }
        Ok(ParameterLayout::new(config, head, outputs, pooler.is_some_and(|name| self.tensors.contains_key(&name))))
    }

    /// A tensor of this name and format; each is taken once.
    fn take(&mut self, name: &str, kind: Kind) -> Result<Entry> {
        match self.tensors.remove(name) {
            Some(entry) if entry.kind == kind => Ok(entry),
            Some(entry) => Err(self.damaged(format!("tensor `{name}` is stored as {:?}, not as {kind:?}", entry.kind))),
            None => Err(self.damaged(format!("tensor `{name}` is missing"))),
        }
    }

    /// A tensor of finite floats in this shape.
    fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Entry> {
        let entry = self.take(name, Kind::F32)?;
        self.check_shape(&entry, shape)?;
        let bad = self.values(&entry).position(|value| !value.is_finite());
        match bad {
            None => Ok(entry),
            Some(index) => {
                let value = self.values(&entry).nth(index).unwrap_or_default();
                Err(Error::NotFinite { path: self.path.to_owned(), tensor: name.to_owned(), index, value })
            }
        }
    }

    fn check_shape(&self, entry: &Entry, shape: &[usize]) -> Result<()> {
        if entry.shape == shape {
            return Ok(());
        }
        let (name, found, asked) = (&entry.name, shorten_list(&entry.shape), shorten_list(shape));
        Err(self.damaged(format!("tensor `{name}` has shape {found}, the model asks for {asked}")))
    }

    fn values(&self, entry: &Entry) -> impl Iterator<Item = f32> + use<'a> {
        self.bytes[entry.bytes.clone()].as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes))
    }

    fn site(
        &mut self,
        tensor: &SitedTensor,
        parameters: &ParameterLayout,
        plan: &Plan,
        heads: usize,
    ) -> Result<StoredSite> {
        let SitedTensor { site, rows, cols, axis, .. } = *tensor;
        let planned = plan.site(site)?;
        let Precision::Bits(bits) = planned.bits else {
            let parameter = parameters.site(site).ok_or_else(|| self.damaged(format!("no weights for {site}")))?;
            let bytes = self.floats(&parameter.name, &[rows, cols])?.bytes;
            return Ok(StoredSite::Full { cols, bytes });
        };
        let layout = planned
            .layout(rows, cols, axis, heads)
            .map_err(|source| qbert_quant::Error::AtSite { site, source: Box::new(source) })?;
        let bytes = self.take(&format!("{site}.codes"), Kind::U8)?.bytes;
        let codebook = match planned.product {
            Some(_) => Some(self.take(&format!("{site}.codebook"), Kind::U8)?.bytes),
            None => None,
        };
        let product = planned.product.zip(codebook);
        let codes = StoredCodes { bits, product, bytes };
        self.check_codes(tensor, &codes)?;
        let affines = match layout.axis() {
            Axis::TableRows => self.row_affines(site, layout, bits)?,
            Axis::Rows | Axis::Columns => self.group_affines(site, layout, bits)?,
        };
        Ok(StoredSite::Codes { codes, layout, affines })
    }

    /// One quantizer per group, from its step and offset.
    fn group_affines(&mut self, site: Site, layout: MatrixLayout, bits: BitWidth) -> Result<Vec<Affine>> {
        let groups = self.floats(&format!("{site}.groups"), &[layout.groups().count(), 2])?;
        let numbers: Vec<f32> = self.values(&groups).collect();
        let affines = numbers.as_chunks::<2>().0.iter().map(|&[step, low]| Affine::new(low, step, bits));
        let affines: std::result::Result<Vec<Affine>, _> = affines.collect();
        affines.map_err(|error| self.damaged(format!("{site}: {error}")))
    }

    /// One quantizer per row of a table, from the ends of its range in bf16.
    fn row_affines(&mut self, site: Site, layout: MatrixLayout, bits: BitWidth) -> Result<Vec<Affine>> {
        let name = format!("{site}.ranges");
        let entry = self.take(&name, Kind::Bf16)?;
        let shape = [layout.rows(), 2];
        self.check_shape(&entry, &shape)?;
        let (ends, _) = self.bytes[entry.bytes].as_chunks::<4>();
        let end = |bytes: [u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16);
        let affine =
            |&[a, b, c, d]: &[u8; 4]| Range::new(end([a, b]), end([c, d])).map(|range| Affine::from_range(range, bits));
        let affines: std::result::Result<Vec<Affine>, _> = ends.iter().map(affine).collect();
        affines.map_err(|error| self.damaged(format!("{name}: {error}")))
    }

    /// Checks the length, and that the padding is zero.
    fn check_codes(&self, tensor: &SitedTensor, codes: &StoredCodes) -> Result<()> {
        let SitedTensor { site, rows, cols, .. } = *tensor;
        let checked = match site {
            Site::Layer(..) => codes.matrix(self.bytes, rows, cols).and_then(|weights| weights.check_padding()),
            Site::Embedding(_) => codes.table(self.bytes, rows, cols).and_then(|table| {
                table.check_padding()?;
                table.check_codes(codes.bits.max_code())
            }),
        };
        checked.map_err(|error| self.damaged(format!("{site}: {error}")))
    }

    fn activations(&mut self, layer: usize) -> Result<LayerActivations> {
        let name = format!("layer.{layer}.activations");
        let entry = self.floats(&name, &[LayerActivations::NAMES.len(), 2])?;
        let numbers: Vec<f32> = self.values(&entry).collect();
        let mut params = [ActivationParams::ZERO; 7];
        for (index, &[step, zero]) in numbers.as_chunks::<2>().0.iter().enumerate() {
            let what = LayerActivations::NAMES[index];
            if !(0.0..=255.0).contains(&zero) || zero.fract() != 0.0 {
                return Err(self.damaged(format!("{name}: the zero point {zero} of `{what}` is no code")));
            }
            params[index] = ActivationParams::new(step, zero as u8)
                .map_err(|error| self.damaged(format!("{name}: `{what}`: {error}")))?;
        }
        Ok(LayerActivations::from_array(params))
    }

    fn nothing_left(&self) -> Result<()> {
        match self.tensors.keys().next() {
            None => Ok(()),
            Some(name) => Err(self.damaged(format!("tensor `{}` belongs to no part of the model", shorten(name)))),
        }
    }
}
