//! `model.qbert`: one file with everything a prediction needs, used as it is in memory or in the memory map.
//!
//! The format is specified byte by byte in `docs/reference/format.md`. Opening a file checks all of it: the frame, the checksum of
//! every part, every shape and length against the configuration and the plan, and that every number is usable. After
//! [`PackedModel::open`] nothing can be missing, out of range or damaged, so accessors do not fail.
//!
//! Not for training: the file has no master weights. A quantized checkpoint directory has those.

mod header;
mod read;
mod write;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use qbert_kernels::FileBytes;
use qbert_kernels::int::{Coding, EmbeddingRows, LayoutError, PackedWeights};
use qbert_quant::{ActivationParams, Affine, BitWidth, Layout as MatrixLayout, Plan, ProductWidth, Site};

use crate::config::Config;
use crate::error::Result;
use crate::head::Head;
use crate::layout::ParameterLayout;
use crate::role::Role;

pub use write::{PackedContents, packed_bytes, write_packed};

/// The version of the format that is written, and the only one that is read.
pub const VERSION: u32 = 1;

/// The quantized activation tensors of one encoder layer. Attention probabilities are always in steps of 1/255.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerActivations {
    /// The hidden state that enters query, key and value.
    pub input: ActivationParams,
    /// Queries, with bias.
    pub query: ActivationParams,
    /// Keys, with bias.
    pub key: ActivationParams,
    /// Values, with bias.
    pub value: ActivationParams,
    /// What enters the attention's output matrix.
    pub context: ActivationParams,
    /// What enters the first feed-forward matrix.
    pub middle: ActivationParams,
    /// What enters the second feed-forward matrix, after GELU.
    pub inner: ActivationParams,
}

impl LayerActivations {
    /// The tensors' names, in the order of the file.
    pub const NAMES: [&'static str; 7] = ["input", "query", "key", "value", "context", "middle", "inner"];

    /// From one quantizer per name, in the order of [`LayerActivations::NAMES`].
    pub fn from_array([input, query, key, value, context, middle, inner]: [ActivationParams; 7]) -> Self {
        Self { input, query, key, value, context, middle, inner }
    }

    /// One quantizer per name, in the order of [`LayerActivations::NAMES`].
    pub fn to_array(self) -> [ActivationParams; 7] {
        [self.input, self.query, self.key, self.value, self.context, self.middle, self.inner]
    }
}

/// The tokenizer of a packed model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackedTokenizer<'a> {
    /// BERT's usual tokenizer: one token per line, and the settings of a `tokenizer_config.json` as a JSON object.
    Vocabulary {
        /// `vocab.txt`
        text: &'a [u8],
        /// `do_lower_case`, `strip_accents`, `tokenize_chinese_chars`
        options: &'a str,
    },
    /// Any other tokenizer: the text of a `tokenizer.json`.
    Json(&'a [u8]),
}

/// The weights of one site.
#[derive(Debug, Clone)]
pub enum PackedSite<'a> {
    /// An encoder matrix: tiles of codes and its groups' quantizers.
    Matrix(PackedWeights<'a>, PackedGroups<'a>),
    /// An embedding table: rows of codes and its groups' quantizers, over columns or one per row.
    Table(EmbeddingRows<'a>, PackedGroups<'a>),
    /// A site that the plan leaves in f32: row-major values and the number of columns.
    Full(Cow<'a, [f32]>, usize),
}

/// The quantizers of a site's groups.
#[derive(Debug, Clone, Copy)]
pub struct PackedGroups<'a> {
    layout: MatrixLayout,
    affines: &'a [Affine],
}

impl<'a> PackedGroups<'a> {
    /// Shape and grouping.
    pub fn layout(&self) -> MatrixLayout {
        self.layout
    }

    /// One quantizer per group.
    pub fn affines(&self) -> &'a [Affine] {
        self.affines
    }

    /// `Δ` of every row of a matrix, and of every column of a table, or every row if rows have ranges.
    pub fn steps(&self) -> Vec<f32> {
        self.per_neuron(Affine::step)
    }

    /// `q0` of the same.
    pub fn lows(&self) -> Vec<f32> {
        self.per_neuron(Affine::low)
    }

    fn per_neuron(&self, number: impl Fn(&Affine) -> f32) -> Vec<f32> {
        let groups = self.affines.iter().zip(self.layout.groups().iter());
        groups.flat_map(|(affine, span)| span.map(|_| number(affine)).collect::<Vec<_>>()).collect()
    }
}

/// How matrices store codes of a width. Embedding tables keep whole bits for each code, two for ternary ones, because a
/// row of a table is looked up alone.
pub(crate) fn coding_of(width: BitWidth) -> Coding {
    if width == BitWidth::TERNARY { Coding::Ternary } else { Coding::Bits(width.whole_bits()) }
}

/// Where the bytes of an open model are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Storage {
    /// In memory up to [`Storage::LARGEST_IN_MEMORY`], mapped above.
    #[default]
    Auto,
    /// Read into memory. What happens to the file afterwards does not matter.
    Memory,
    /// Mapped: opens faster, and processes that open the same file share its memory. The file must then be replaced by
    /// renaming another one over it. If something writes into it, [`PackedModel::check_unchanged`] fails; if something
    /// cuts it short, the system may end the process.
    Mapped,
}

impl Storage {
    /// The largest file, in bytes, that [`Storage::Auto`] reads into memory: 256 MiB, more than BERT-base at 8 bits.
    pub const LARGEST_IN_MEMORY: u64 = 256 << 20;

    fn open(self, path: &Path) -> std::io::Result<FileBytes> {
        let mapped = match self {
            Self::Auto => std::fs::metadata(path)?.len() > Self::LARGEST_IN_MEMORY,
            Self::Memory => false,
            Self::Mapped => true,
        };
        if mapped { FileBytes::map(path) } else { FileBytes::read(path) }
    }
}

/// The bytes of a model: a file's, or given by the caller.
#[derive(Debug)]
enum ModelBytes {
    File(FileBytes),
    Owned(Vec<u8>),
}

impl std::ops::Deref for ModelBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::File(bytes) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }
}

/// How one site is stored.
#[derive(Debug)]
enum StoredSite {
    Codes { codes: StoredCodes, layout: MatrixLayout, affines: Vec<Affine> },
    Full { cols: usize, bytes: Range<usize> },
}

/// Where the codes of a site are, and what they stand for.
#[derive(Debug)]
struct StoredCodes {
    bits: BitWidth,
    /// How many values share a code, and where the codebook is.
    product: Option<(ProductWidth, Range<usize>)>,
    bytes: Range<usize>,
}

impl StoredCodes {
    fn matrix<'a>(
        &self,
        file: &'a [u8],
        rows: usize,
        cols: usize,
    ) -> std::result::Result<PackedWeights<'a>, LayoutError> {
        PackedWeights::new(coding_of(self.bits), rows, cols, &file[self.bytes.clone()])
    }

    fn table<'a>(
        &self,
        file: &'a [u8],
        rows: usize,
        cols: usize,
    ) -> std::result::Result<EmbeddingRows<'a>, LayoutError> {
        let bytes = &file[self.bytes.clone()];
        match &self.product {
            None => EmbeddingRows::new(self.bits.whole_bits(), rows, cols, bytes),
            Some((width, codebook)) => {
                EmbeddingRows::product(width.values(), rows, cols, bytes, &file[codebook.clone()])
            }
        }
    }
}

/// An opened packed model. `Send + Sync`: share it between threads.
#[derive(Debug)]
pub struct PackedModel {
    path: PathBuf,
    bytes: ModelBytes,
    config: Config,
    layout: ParameterLayout,
    labels: Vec<String>,
    task: String,
    plan: Plan,
    provenance: BTreeMap<String, String>,
    tokenizer_options: Option<String>,
    tokenizer: Range<usize>,
    sites: BTreeMap<Site, StoredSite>,
    floats: BTreeMap<Role, Range<usize>>,
    activations: Option<Vec<LayerActivations>>,
    sizes: Vec<(String, usize)>,
}

impl PackedModel {
    /// Opens and checks the file at `path`, with [`Storage::Auto`].
    ///
    /// # Errors
    /// When the file cannot be read, is not a packed model, has another version, or is damaged in any way. The error
    /// names the file and the part.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_in(Storage::Auto, path)
    }

    /// Opens and checks the file at `path`. Checksums are verified over the bytes that are used later.
    ///
    /// # Errors
    /// As [`PackedModel::open`].
    pub fn open_in(storage: Storage, path: &Path) -> Result<Self> {
        if path.is_dir() {
            let problem = "this is a directory, not a packed model".to_owned();
            return Err(crate::Error::NotPacked { path: path.to_owned(), problem });
        }
        let bytes = storage.open(path).map_err(crate::Error::io(path, "open the packed model"))?;
        read::read(path, ModelBytes::File(bytes))
    }

    /// Opens a model from bytes in memory; errors call them `name`.
    ///
    /// # Errors
    /// As [`PackedModel::open`].
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<Self> {
        read::read(Path::new(name), ModelBytes::Owned(bytes))
    }

    /// Verifies every checksum again, in case the file changed since it was opened.
    ///
    /// # Errors
    /// As [`PackedModel::open`].
    pub fn verify(&self) -> Result<()> {
        read::check_frame(&self.path, &self.bytes).map(|_| ())
    }

    /// Whether the bytes are in memory of their own, where nothing can change them.
    pub fn is_in_memory(&self) -> bool {
        match &self.bytes {
            ModelBytes::File(bytes) => bytes.is_in_memory(),
            ModelBytes::Owned(_) => true,
        }
    }

    /// Asks the system whether something wrote into a mapped file since it was opened, by its length and the time of its
    /// last change. Costs nothing for a model in memory; [`PackedModel::verify`] compares every byte.
    ///
    /// # Errors
    /// [`Error::Changed`](crate::Error::Changed) from the first change on.
    pub fn check_unchanged(&self) -> Result<()> {
        match &self.bytes {
            ModelBytes::File(bytes) if bytes.is_changed() => Err(crate::Error::Changed { path: self.path.clone() }),
            _ => Ok(()),
        }
    }

    /// The file, or the name given to [`PackedModel::from_bytes`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the whole file.
    pub fn file_len(&self) -> usize {
        self.bytes.len()
    }

    /// Every tensor with its size in bytes, in the order of the file. The header makes up the rest of
    /// [`PackedModel::file_len`].
    pub fn sizes(&self) -> &[(String, usize)] {
        &self.sizes
    }

    /// The configuration, labels included.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The model's parameters, with the shapes they have in f32.
    pub fn layout(&self) -> &ParameterLayout {
        &self.layout
    }

    /// The head.
    pub fn head(&self) -> Head {
        self.layout.head()
    }

    /// The labels of a classifier, in the order of its outputs; empty for other heads.
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// The name of the task given when the model was packed; may be empty.
    pub fn task(&self) -> &str {
        &self.task
    }

    /// The bit plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Where the model comes from, as recorded when it was packed.
    pub fn provenance(&self) -> &BTreeMap<String, String> {
        &self.provenance
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> PackedTokenizer<'_> {
        let bytes = &self.bytes[self.tokenizer.clone()];
        match &self.tokenizer_options {
            Some(options) => PackedTokenizer::Vocabulary { text: bytes, options },
            None => PackedTokenizer::Json(bytes),
        }
    }

    /// The activations' quantizers of every encoder layer; `None` where activations stay in f32.
    pub fn activations(&self) -> Option<&[LayerActivations]> {
        self.activations.as_deref()
    }

    /// The weights of a site; `None` for a layer that the model does not have.
    pub fn site(&self, site: Site) -> Option<PackedSite<'_>> {
        match self.sites.get(&site)? {
            StoredSite::Full { cols, bytes } => Some(PackedSite::Full(self.floats_at(bytes), *cols)),
            StoredSite::Codes { codes, layout, affines } => {
                let groups = PackedGroups { layout: *layout, affines };
                let (rows, cols) = (layout.rows(), layout.cols());
                // Lengths were checked when the file was opened.
                match site {
                    Site::Layer(..) => {
                        codes.matrix(&self.bytes, rows, cols).ok().map(|own| PackedSite::Matrix(own, groups))
                    }
                    Site::Embedding(_) => {
                        codes.table(&self.bytes, rows, cols).ok().map(|own| PackedSite::Table(own, groups))
                    }
                }
            }
        }
    }

    /// The values of a tensor that is never quantized (biases, norms, pooler, head), straight from the file where the
    /// machine allows it.
    pub fn float(&self, role: Role) -> Option<Cow<'_, [f32]>> {
        self.floats.get(&role).map(|bytes| self.floats_at(bytes))
    }

    fn floats_at(&self, bytes: &Range<usize>) -> Cow<'_, [f32]> {
        let bytes = &self.bytes[bytes.clone()];
        match bytemuck::try_cast_slice(bytes) {
            Ok(values) if cfg!(target_endian = "little") => Cow::Borrowed(values),
            _ => Cow::Owned(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()),
        }
    }
}
