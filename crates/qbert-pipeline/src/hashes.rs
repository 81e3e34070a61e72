//! What identifies files and models: sha256 of the content alone, so that a directory can be moved.
//!
//! A run's record knows a model by [`model`]: everything that decides what it computes. A packed file names the weights it
//! was made from by [`weights`]. Training and analysis know a model by the values in memory instead
//! ([`qbert_train::sensitivity::model_hash`]).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use qbert_model::TokenizerFiles;
use qbert_train::qat::files as quantized;
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

/// The sha256 of a file, or of the names and hashes of everything in a directory: data may be either.
///
/// # Errors
/// A file that cannot be read.
pub fn file(path: &Path) -> Result<String> {
    if path.is_dir() {
        let files = files_named(path, |_| true)?;
        let lines = files.iter().map(|(name, path)| Ok(format!("{name}\0{}\n", file(path)?)));
        return Ok(text(&lines.collect::<Result<String>>()?));
    }
    let failed = |source| Error::from(qbert_model::Error::Io { path: path.to_owned(), action: "read", source });
    sha256(File::open(path).map_err(failed)?).map_err(failed)
}

/// The sha256 of a text.
pub fn text(text: &str) -> String {
    hexadecimal(Sha256::new_with_prefix(text))
}

/// The files of a directory whose names are wanted, in the order of their names.
fn files_named(directory: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<(String, PathBuf)>> {
    let failed = |source| {
        let (path, action) = (directory.to_owned(), "list the directory");
        Error::from(qbert_model::Error::Io { path, action, source })
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if wanted(&name) {
            files.push((name, path));
        }
    }
    files.sort();
    Ok(files)
}

/// Whether a checkpoint's file of this name holds weights.
fn is_weights(name: &str) -> bool {
    name.starts_with("model") && name.ends_with(".safetensors")
}

/// The files of a checkpoint directory that decide what the model computes, in the order of their names.
fn model_files(directory: &Path) -> Result<Vec<(String, PathBuf)>> {
    let of_quantization = [quantized::PLAN, quantized::RANGES, quantized::ACTIVATIONS];
    files_named(directory, |name| {
        let index = name.starts_with("model") && name.ends_with(".index.json");
        let tokenizer = TokenizerFiles::NAMES.contains(&name);
        is_weights(name) || index || of_quantization.contains(&name) || name == "config.json" || tokenizer
    })
}

/// One hash of everything in a checkpoint directory that decides what the model computes.
///
/// # Errors
/// A directory or file that cannot be read.
pub fn model(directory: &Path) -> Result<String> {
    let mut lines = String::new();
    for (name, path) in model_files(directory)? {
        lines += &line(&name, &file(&path)?);
    }
    Ok(text(&lines))
}

/// A file's share of a model's hash.
fn line(name: &str, sha256: &str) -> String {
    format!("{sha256} {name}\n")
}

/// The sha256 of a checkpoint's weight files, one after the other in the order of their names.
///
/// # Errors
/// A directory or file that cannot be read.
pub fn weights(directory: &Path) -> Result<String> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        |source| Error::from(qbert_model::Error::Io { path, action: "read", source })
    };
    let mut all: Box<dyn Read> = Box::new(std::io::empty());
    for (_, path) in files_named(directory, is_weights)? {
        all = Box::new(all.chain(File::open(&path).map_err(failed(&path))?));
    }
    sha256(all).map_err(failed(directory))
}

/// What identifies a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelHashes {
    /// The sha256 of the weight files, as [`weights`] computes it.
    pub weights: String,
    /// The hash of all files, as [`model`] computes it.
    pub files: String,
}

/// Both hashes of a checkpoint, reading every file once.
///
/// # Errors
/// A directory or file that cannot be read.
pub fn model_and_weights(directory: &Path) -> Result<ModelHashes> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        |source| Error::from(qbert_model::Error::Io { path, action: "read", source })
    };
    let files = model_files(directory)?;
    // The hash of a single weight file is its own; those of several go through one more hash on the way.
    let is_split = files.iter().filter(|(name, _)| is_weights(name)).count() > 1;
    let (mut lines, mut single, mut all) = (String::new(), None, Sha256::new());
    for (name, path) in &files {
        let opened = File::open(path).map_err(failed(path))?;
        let sum =
            if is_split && is_weights(name) { sha256(Also { reader: opened, also: &mut all }) } else { sha256(opened) };
        let sum = sum.map_err(failed(path))?;
        lines += &line(name, &sum);
        if is_weights(name) {
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

/// The hashes of a job's models, each computed once.
#[derive(Debug, Default)]
pub struct KnownHashes {
    known: BTreeMap<PathBuf, String>,
}

impl KnownHashes {
    /// The hash of the model in a directory, as [`model`] computes it.
    ///
    /// # Errors
    /// As [`model`].
    pub fn of(&mut self, directory: &Path) -> Result<String> {
        if let Some(known) = self.known.get(directory) {
            return Ok(known.clone());
        }
        let found = model(directory)?;
        self.known.insert(directory.to_owned(), found.clone());
        Ok(found)
    }

    /// Takes a hash that is known already.
    pub fn insert(&mut self, directory: &Path, hash: &str) {
        self.known.insert(directory.to_owned(), hash.to_owned());
    }

    /// Forgets a directory whose files are about to change.
    pub fn forget(&mut self, directory: &Path) {
        self.known.remove(directory);
    }
}

/// Hashes of some files of a run, by their names relative to its directory.
///
/// # Errors
/// A file that cannot be read.
pub fn files(directory: &Path, names: &[impl AsRef<str>]) -> Result<BTreeMap<String, String>> {
    names.iter().map(|name| Ok((name.as_ref().to_owned(), file(&directory.join(name.as_ref()))?))).collect()
}

/// The names of all files that a training left in a folder of a run, relative to the run's directory.
///
/// # Errors
/// A folder that cannot be listed.
pub fn training_files(directory: &Path, folder: &str) -> Result<Vec<String>> {
    let of_model = model_files(&directory.join(folder))?.into_iter().map(|(name, _)| name);
    let of_training = ["metrics.json", "train.jsonl"].map(str::to_owned);
    Ok(of_model.chain(of_training).map(|name| format!("{folder}/{name}")).collect())
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
            assert_eq!(both.weights, weights(directory).unwrap());
        }
    }

    #[test]
    fn a_model_is_hashed_once_until_its_files_change() {
        let home = tempfile::tempdir().unwrap();
        let write = |text: &str| std::fs::write(home.path().join("config.json"), text).unwrap();
        write("{}");
        let mut hashes = KnownHashes::default();
        let before = hashes.of(home.path()).unwrap();
        write("{ }");
        assert_eq!(hashes.of(home.path()).unwrap(), before);
        hashes.forget(home.path());
        assert_ne!(hashes.of(home.path()).unwrap(), before);
    }

    #[test]
    fn a_directory_of_data_is_known_by_everything_in_it() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("qrels")).unwrap();
        std::fs::write(home.path().join("corpus.jsonl"), "a").unwrap();
        std::fs::write(home.path().join("qrels/test.tsv"), "b").unwrap();
        let before = file(home.path()).unwrap();
        assert_eq!(file(home.path()).unwrap(), before);
        std::fs::write(home.path().join("qrels/test.tsv"), "c").unwrap();
        assert_ne!(file(home.path()).unwrap(), before);
        assert!(file(&home.path().join("missing")).is_err());
    }

    #[test]
    fn a_known_sum() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(sha256(&b""[..]).unwrap(), empty);
    }
}
