//! Writing a checkpoint directory that `transformers` loads: f32 safetensors, config, tokenizer files.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

use safetensors::{Dtype, View};

use super::read::TokenizerFiles;
use crate::atomic;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::parameters::Parameters;

/// Other files that belong to a checkpoint directory and may be replaced with it.
const OWN_FILES: [&str; 3] = ["config.json", "model.safetensors", "README.md"];

/// Writes `parameters` with the head of their layout and these labels, whole or not at all.
///
/// An existing directory is replaced if it holds nothing but a checkpoint.
pub fn write_checkpoint(
    directory: &Path,
    config: &Config,
    parameters: &Parameters,
    labels: &[String],
    tokenizer: &TokenizerFiles,
) -> Result<()> {
    let known = |name: &str| OWN_FILES.contains(&name) || TokenizerFiles::NAMES.contains(&name);
    atomic::write_directory(directory, known, |target| {
        let json = config.to_json(parameters.layout().head(), labels);
        write(&target.join("config.json"), format!("{json:#}\n").as_bytes())?;
        for (name, bytes) in tokenizer.iter() {
            write(&target.join(name), bytes)?;
        }
        write_weights(&target.join("model.safetensors"), parameters)
    })
}

/// Writes all parameters under their `transformers` names as one safetensors file (not atomic by itself).
fn write_weights(path: &Path, parameters: &Parameters) -> Result<()> {
    let layout = parameters.layout();
    let tensors = layout.parameters().iter().map(|parameter| {
        let values = parameters.get(parameter);
        (layout.file_name(parameter), Tensor { shape: &parameter.shape, values })
    });
    // transformers refuses a file whose metadata does not say which framework's conventions it follows.
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize_to_file(tensors, Some(metadata), path).map_err(|error| match error {
        safetensors::SafeTensorError::IoError(source) => Error::io(path, "write the weights")(source),
        other => Error::Damaged { path: path.to_owned(), problem: other.to_string() },
    })
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = std::fs::File::create(path).map_err(Error::io(path, "create"))?;
    file.write_all(bytes).map_err(Error::io(path, "write"))
}

struct Tensor<'a> {
    shape: &'a [usize],
    values: &'a [f32],
}

impl View for Tensor<'_> {
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
