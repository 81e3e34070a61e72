//! The values of `--model`: a directory, the word `minilm`, or a hub id.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use crate::assets::{Asset, cache_directory, fetch};
use qbert_model::hub::{HubOptions, resolve};
use qbert_pipeline::Result;

/// The directory of a model, which is fetched first if necessary.
pub fn directory(name: &str, quiet: bool) -> Result<PathBuf> {
    if name == "minilm" && !Path::new(name).exists() {
        return Ok(fetch(Asset::Minilm, &cache_directory()?)?.path);
    }
    let progress = !quiet && std::io::stderr().is_terminal();
    Ok(resolve(name, &HubOptions { progress, ..HubOptions::default() })?)
}
