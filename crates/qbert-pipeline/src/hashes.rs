//! What identifies files: their sha256, by content only, so that a directory can be moved.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use qbert_model::TokenizerFiles;
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// Lower-case hexadecimal sha256 of everything the reader gives.
pub fn sha256(mut reader: impl Read) -> std::io::Result<String> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match reader.read(&mut buffer)? {
            0 => break,
            read => hasher.update(&buffer[..read]),
        }
    }
    Ok(hexadecimal(hasher))
}

/// The sha256 of a file.
pub fn file(path: &Path) -> Result<String> {
    let failed = |source| Error::from(qbert_model::Error::Io { path: path.to_owned(), action: "read", source });
    sha256(File::open(path).map_err(failed)?).map_err(failed)
}

/// The sha256 of a text.
pub fn text(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Files of a checkpoint directory that decide what the model computes, in the order of their names.
fn model_files(directory: &Path) -> Result<Vec<PathBuf>> {
    let failed = |source| {
        let (path, action) = (directory.to_owned(), "list the directory");
        Error::from(qbert_model::Error::Io { path, action, source })
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let weights = name.starts_with("model") && (name.ends_with(".safetensors") || name.ends_with(".index.json"));
        let of_quantization = ["plan.toml", "ranges.safetensors", "activations.json"].contains(&name.as_str());
        if weights || of_quantization || name == "config.json" || TokenizerFiles::NAMES.contains(&name.as_str()) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// One hash of everything in a checkpoint directory that decides what the model computes.
pub fn model(directory: &Path) -> Result<String> {
    let mut lines = String::new();
    for path in model_files(directory)? {
        lines += &line(&path, &file(&path)?);
    }
    Ok(text(&lines))
}

/// A file's share of a model's hash.
fn line(path: &Path, sha256: &str) -> String {
    format!("{sha256} {}\n", path.file_name().unwrap_or_default().to_string_lossy())
}

/// What identifies a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelHashes {
    /// The sha256 of the weight files, one after the other, as [`crate::packing::weights_hash`] has it.
    pub weights: String,
    /// The hash of all files, as [`model`] has it.
    pub files: String,
}

/// Both hashes of a checkpoint, reading every file once.
pub fn model_and_weights(directory: &Path) -> Result<ModelHashes> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        |source| Error::from(qbert_model::Error::Io { path, action: "read", source })
    };
    let is_weights = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("model") && name.ends_with(".safetensors")
    };
    let paths = model_files(directory)?;
    // The hash of a single weight file is its own; those of several go through one more hash on the way.
    let is_split = paths.iter().filter(|path| is_weights(path)).count() > 1;
    let (mut lines, mut single, mut all) = (String::new(), None, Sha256::new());
    for path in &paths {
        let opened = File::open(path).map_err(failed(path))?;
        let sum =
            if is_split && is_weights(path) { sha256(Also { reader: opened, also: &mut all }) } else { sha256(opened) };
        let sum = sum.map_err(failed(path))?;
        lines += &line(path, &sum);
        if is_weights(path) {
            single = Some(sum);
        }
    }
    let weights = single.filter(|_| !is_split).unwrap_or_else(|| hexadecimal(all));
    Ok(ModelHashes { weights, files: text(&lines) })
}

/// A reader whose bytes go into a further hash.
struct Also<'a, R> {
    reader: R,
    also: &'a mut Sha256,
}

impl<R: Read> Read for Also<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.also.update(&buffer[..read]);
        Ok(read)
    }
}

fn hexadecimal(hasher: Sha256) -> String {
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Hashes of some files of a run, by their names relative to its directory.
pub fn files(directory: &Path, names: &[&str]) -> Result<BTreeMap<String, String>> {
    names.iter().map(|name| Ok(((*name).to_owned(), file(&directory.join(name))?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_known_by_content_and_not_by_place() {
        let home = tempfile::tempdir().unwrap();
        let make = |name: &str, config: &str, note: &str| {
            let directory = home.path().join(name);
            std::fs::create_dir(&directory).unwrap();
            std::fs::write(directory.join("config.json"), config).unwrap();
            std::fs::write(directory.join("model.safetensors"), "weights").unwrap();
            std::fs::write(directory.join("train.jsonl"), note).unwrap();
            model(&directory).unwrap()
        };
        let one = make("one", "{}", "a log");
        assert_eq!(one, make("two", "{}", "another log"), "the log decides nothing");
        assert_ne!(one, make("three", "{ }", "a log"));
    }

    #[test]
    fn one_pass_finds_both_hashes_of_whole_and_split_weights() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path();
        std::fs::write(directory.join("config.json"), "{}").unwrap();
        for name in ["model-1.safetensors", "model-2.safetensors", "model.safetensors.index.json"] {
            std::fs::write(directory.join(name), name).unwrap();
            let both = model_and_weights(directory).unwrap();
            assert_eq!(both.files, model(directory).unwrap());
            assert_eq!(both.weights, crate::packing::weights_hash(directory).unwrap());
        }
    }

    #[test]
    fn a_known_sum() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(sha256(&b""[..]).unwrap(), empty);
    }
}
