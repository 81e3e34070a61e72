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
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
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
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        lines += &format!("{} {name}\n", file(&path)?);
    }
    Ok(text(&lines))
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
    fn a_known_sum() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(sha256(&b""[..]).unwrap(), empty);
    }
}
