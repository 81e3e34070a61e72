//! Writing a checkpoint directory that `transformers` loads: f32 safetensors, config, tokenizer files.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use safetensors::{Dtype, View};

use super::read::TokenizerFiles;
use crate::atomic;
use crate::config::Config;
use crate::embedder::Embedder;
use crate::error::Result;
use crate::head::Head;
use crate::parameters::Parameters;

/// Other files that belong to a checkpoint directory and may be replaced with it.
const OWN_FILES: [&str; 3] = ["config.json", "model.safetensors", "README.md"];

/// Writes `parameters` with the head of their layout and these labels, atomically.
///
/// An existing directory is replaced if it holds nothing but a checkpoint.
pub fn write_checkpoint(
    directory: &Path,
    config: &Config,
    parameters: &Parameters,
    labels: &[String],
    tokenizer: &TokenizerFiles,
) -> Result<()> {
    let names = |name: &str| TokenizerFiles::NAMES.contains(&name) || Embedder::NAMES.contains(&name);
    let known = |name: &str| OWN_FILES.contains(&name) || names(name);
    atomic::write_directory(directory, known, |target| update_checkpoint(target, config, parameters, labels, tokenizer))
}

/// Like [`write_checkpoint`], but into a directory that may hold other files. Each file is replaced atomically, the
/// weights last.
///
/// For the directory of a training run, where only the weights change from one call to the next.
pub fn update_checkpoint(
    directory: &Path,
    config: &Config,
    parameters: &Parameters,
    labels: &[String],
    tokenizer: &TokenizerFiles,
) -> Result<()> {
    let json = config.to_json(parameters.layout().head(), labels);
    atomic::write_file(&directory.join("config.json"), |writer| writeln!(writer, "{json:#}"))?;
    // A model with a head answers by it.
    if let Some(embedder) = config.embedder.as_ref().filter(|_| parameters.layout().head() == Head::None) {
        embedder.write(directory, config.hidden_size)?;
    }
    for (name, bytes) in tokenizer.iter() {
        atomic::write_file(&directory.join(name), |writer| writer.write_all(bytes))?;
    }
    write_weights(&directory.join("model.safetensors"), parameters)
}

/// Writes all parameters under their `transformers` names as one safetensors file.
fn write_weights(path: &Path, parameters: &Parameters) -> Result<()> {
    let layout = parameters.layout();
    let described = layout.file_tensors();
    let tensors = described.iter().map(|tensor| {
        let values = &parameters.values()[tensor.span.clone()];
        (tensor.name.clone(), FloatTensor { shape: &tensor.shape, values })
    });
    // transformers refuses a file whose metadata does not name a framework.
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    atomic::write_tensors(path, tensors, metadata)
}

/// f32 values on their way into a safetensors file, without a copy where the machine allows it.
#[derive(Debug, Clone, Copy)]
pub struct FloatTensor<'a> {
    /// Dimensions, outermost first.
    pub shape: &'a [usize],
    /// The values.
    pub values: &'a [f32],
}

impl View for FloatTensor<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        if cfg!(target_endian = "little") {
            Cow::Borrowed(bytemuck::cast_slice(self.values))
        } else {
            Cow::Owned(self.values.iter().flat_map(|v| v.to_le_bytes()).collect())
        }
    }

    fn data_len(&self) -> usize {
        size_of_val(self.values)
    }
}
