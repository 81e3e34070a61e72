//! The weight files of a checkpoint directory: finding them, mapping them, and listing their tensors.
//!
//! Nothing is trusted: a file may be a git-LFS pointer, a pickle or truncated, or refer to tensors outside itself.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use qbert_kernels::FileBytes;
use qbert_quant::shorten;
use safetensors::{Dtype, SafeTensors};

use crate::error::{Error, Result, read_at_most};
use crate::family::Family;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// The longest header of a weight file, and the longest index, in bytes: some hundred thousand tensors.
const LARGEST_HEADER: u64 = 16 << 20;

/// One tensor of a mapped file.
#[derive(Debug, Clone)]
pub(crate) struct StoredTensor {
    pub(crate) file: usize,
    pub(crate) file_name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    bytes: std::ops::Range<usize>,
}

/// The mapped weight files of one checkpoint and the tensors in them, by canonical name.
#[derive(Debug)]
pub(crate) struct WeightFiles {
    family: &'static Family,
    files: Vec<(PathBuf, FileBytes)>,
    tensors: BTreeMap<String, StoredTensor>,
}

impl WeightFiles {
    pub(crate) fn open(directory: &Path, family: &'static Family) -> Result<Self> {
        let mut opened = Self { family, files: Vec::new(), tensors: BTreeMap::new() };
        if directory.join(SINGLE).exists() {
            opened.add(&directory.join(SINGLE), None)?;
        } else if directory.join(INDEX).exists() {
            let index_path = directory.join(INDEX);
            let index = Index::read(&index_path)?;
            for (shard, names) in &index.shards {
                opened.add(&directory.join(shard), Some((&index_path, names)))?;
            }
        } else {
            return Err(no_weights(directory));
        }
        opened.untie();
        opened.split();
        Ok(opened)
    }

    pub(crate) fn tensors(&self) -> &BTreeMap<String, StoredTensor> {
        &self.tensors
    }

    pub(crate) fn path(&self, tensor: &StoredTensor) -> &Path {
        &self.files[tensor.file].0
    }

    /// The file to name in an error about a tensor that is in no file.
    pub(crate) fn first_path(&self) -> &Path {
        self.files.first().map_or(Path::new(SINGLE), |(path, _)| path)
    }

    pub(crate) fn bytes(&self, tensor: &StoredTensor) -> &[u8] {
        &self.files[tensor.file].1[tensor.bytes.clone()]
    }

    /// Refuses weights that something wrote into since they were opened: what was read of them may be anything.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        match self.files.iter().find(|(_, bytes)| bytes.is_changed()) {
            None => Ok(()),
            Some((path, _)) => Err(Error::Changed { path: path.clone() }),
        }
    }

    /// Maps one file and adds its tensors. From a shard, exactly those that the index lists for it.
    fn add(&mut self, path: &Path, shard: Option<(&Path, &Vec<String>)>) -> Result<()> {
        if let Some((index, _)) = shard.filter(|_| !path.exists()) {
            let problem = format!("the shard {} is not there", path.display());
            return Err(Error::Damaged { path: index.to_owned(), problem });
        }
        let map = FileBytes::map(path).map_err(Error::io(path, "open the weights"))?;
        refuse_foreign(path, &map)?;
        let damaged = |problem: String| Error::Damaged { path: path.to_owned(), problem };
        if let Some(length) =
            map.first_chunk().map(|length| u64::from_le_bytes(*length)).filter(|&l| l > LARGEST_HEADER)
        {
            return Err(damaged(format!("a header of {length} bytes; at most {LARGEST_HEADER}")));
        }
        let parsed = SafeTensors::deserialize(&map)
            .map_err(|error| damaged(format!("not a complete safetensors file: {}", shorten(&error.to_string()))))?;
        let start = map.as_ptr() as usize;
        let mut found = Vec::new();
        for (name, view) in parsed.iter() {
            let from = view.data().as_ptr() as usize - start;
            let bytes = from..from + view.data().len();
            let stored = StoredTensor {
                file: self.files.len(),
                file_name: name.to_owned(),
                dtype: view.dtype(),
                shape: view.shape().to_vec(),
                bytes,
            };
            found.push((name.to_owned(), stored));
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        if let Some((index, names)) = shard {
            if let Some(absent) = names.iter().find(|n| found.binary_search_by(|f| f.0.cmp(n)).is_err()) {
                let index = index.display();
                return Err(damaged(format!("tensor `{}` is not in this file, but {index} says so", shorten(absent))));
            }
            // The index lists the names of a shard in order.
            found.retain(|(name, _)| names.binary_search(name).is_ok());
        }
        for (name, stored) in found {
            self.insert(path, &name, stored)?;
        }
        self.files.push((path.to_owned(), map));
        Ok(())
    }

    /// Gives weights that two layers share, and that the file has under the other one's name, the name of the table.
    fn untie(&mut self) {
        let [word, tied] =
            [self.family.tensors.word, self.family.tensors.tied_word].map(|name| format!("{name}.weight"));
        if !self.tensors.contains_key(&word)
            && let Some(stored) = self.tensors.remove(&tied)
        {
            self.tensors.insert(word, stored);
        }
    }

    /// Turns tensors that have the rows of query, key and value into three, of a third of the rows each.
    fn split(&mut self) {
        let fused: Vec<(String, [String; 3])> =
            self.tensors.keys().filter_map(|name| Some((name.clone(), self.family.split_name(name)?))).collect();
        for (name, parts) in fused {
            let Some(whole) = self.tensors.get(&name).cloned() else { continue };
            // Any other number of rows is refused as a missing tensor of similar name.
            if !whole.shape.first().is_some_and(|rows| rows.is_multiple_of(3)) {
                continue;
            }
            self.tensors.remove(&name);
            let (length, mut shape) = (whole.bytes.len() / 3, whole.shape.clone());
            shape[0] /= 3;
            for (index, part) in parts.into_iter().enumerate() {
                let start = whole.bytes.start + index * length;
                let own = StoredTensor { shape: shape.clone(), bytes: start..start + length, ..whole.clone() };
                self.tensors.insert(part, own);
            }
        }
    }

    fn insert(&mut self, path: &Path, name: &str, stored: StoredTensor) -> Result<()> {
        let canonical = self.family.canonical_name(name);
        if let Some(earlier) = self.tensors.insert(canonical.clone(), stored) {
            let (first, second) = (earlier.file_name, name.to_owned());
            return Err(Error::DuplicateTensor { path: path.to_owned(), canonical, first, second });
        }
        Ok(())
    }
}

/// Which tensors are in which shard, shards and names in order.
struct Index {
    shards: BTreeMap<String, Vec<String>>,
}

impl Index {
    fn read(path: &Path) -> Result<Self> {
        #[derive(serde::Deserialize)]
        struct Raw {
            weight_map: BTreeMap<String, String>,
        }
        let damaged = |problem: String| Error::Damaged { path: path.to_owned(), problem };
        let text = read_at_most(LARGEST_HEADER, path, "read the index of shards")?;
        refuse_foreign(path, &text)?;
        let raw: Raw = serde_json::from_slice(&text)
            .map_err(|e| damaged(format!("not an index of shards: {}", shorten(&e.to_string()))))?;
        let mut shards: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (tensor, shard) in raw.weight_map {
            // A shard is a file beside the index; a path could point anywhere on the disk.
            if Path::new(&shard).file_name().is_none_or(|f| f != shard.as_str()) {
                return Err(damaged(format!(
                    "tensor `{}` is said to be in `{}`, which is not a file name",
                    shorten(&tensor),
                    shorten(&shard)
                )));
            }
            shards.entry(shard).or_default().push(tensor);
        }
        Ok(Self { shards })
    }
}

/// Refuses common files that are not weights, by their first bytes.
fn refuse_foreign(path: &Path, bytes: &[u8]) -> Result<()> {
    if bytes.is_empty() {
        return Err(Error::Damaged { path: path.to_owned(), problem: "the file is empty".to_owned() });
    }
    if bytes.starts_with(b"version https://git-lfs") {
        return Err(Error::LfsPointer { path: path.to_owned() });
    }
    // A zip archive (torch.save since 1.6) or a bare pickle of protocol 2 and later.
    if bytes.starts_with(b"PK\x03\x04") || bytes.starts_with(b"\x80\x02") || bytes.starts_with(b"\x80\x04") {
        return Err(pickle(path));
    }
    Ok(())
}

fn pickle(path: &Path) -> Error {
    let reason = "this is a pickle, which can run any program when it is opened; only safetensors are read".to_owned();
    Error::UnsupportedWeights { path: path.to_owned(), reason }
}

/// Explains why a directory has no safetensors.
fn no_weights(directory: &Path) -> Error {
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .map(|entries| entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect())
        .unwrap_or_default();
    names.sort();
    let with_end = |ends: &[&str]| names.iter().find(|n| ends.iter().any(|end| n.ends_with(end)));
    if let Some(name) = with_end(&[".bin", ".pt", ".pth", ".ckpt", ".bin.index.json"]) {
        return pickle(&directory.join(name));
    }
    if let Some(name) = with_end(&[".h5", ".msgpack", ".ckpt.index", ".onnx"]) {
        let reason = "weights of another framework; only safetensors are read".to_owned();
        return Error::UnsupportedWeights { path: directory.join(name), reason };
    }
    Error::MissingFile { directory: directory.to_owned(), missing: SINGLE.to_owned() }
}
