//! What the fuzz targets do with their bytes, and the files they start from.
//!
//! Everything that reads what others wrote must answer any bytes with a result or an error: no panic, no more than ten
//! seconds, less than 1 GB of memory for less than 1 MB of input. CONTRIBUTING.md says how to run the targets.

pub mod checkpoint;
pub mod inputs;
pub mod kernels;
pub mod models;
pub mod packed;
pub mod plan;
pub mod readers;
pub mod report;
pub mod states;
pub mod tokenizer;

use std::path::PathBuf;

/// A directory in memory for targets whose code reads files, one per process.
pub fn directory(name: &str) -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    let root = if memory.is_dir() { memory } else { std::env::temp_dir() };
    let directory = root.join(format!("qbert-fuzz-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory for the target's files");
    directory
}

/// Writes a file of a target.
pub fn write(path: &std::path::Path, bytes: &[u8]) {
    std::fs::write(path, bytes).expect("a file of the target");
}

/// Splits an input at zero bytes, which no text has; missing parts are empty.
pub fn parts<const N: usize>(data: &[u8]) -> [&[u8]; N] {
    let mut rest = data.splitn(N, |&byte| byte == 0);
    std::array::from_fn(|_| rest.next().unwrap_or_default())
}

/// The bytes of a safetensors file with this header and this data.
pub fn safetensors(header: &[u8], data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header);
    bytes.extend(data);
    bytes
}
