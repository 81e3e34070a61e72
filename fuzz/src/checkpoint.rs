//! A checkpoint directory: `config.json`, the header of `model.safetensors`, and its data, with a zero byte between.

use qbert_model::Checkpoint;

/// Opens the directory and loads every tensor. Whether that succeeds.
pub fn run(data: &[u8]) -> bool {
    let [config, header, tensors] = crate::parts(data);
    let directory = crate::directory("checkpoint");
    crate::write(&directory.join("config.json"), config);
    crate::write(&directory.join("model.safetensors"), &crate::safetensors(header, tensors));
    let Ok(checkpoint) = Checkpoint::open(&directory) else { return false };
    let (labels, layout) = (checkpoint.labels(), checkpoint.layout());
    let _ = (labels.len(), checkpoint.unused(&layout), checkpoint.dtypes());
    let Ok(parameters) = checkpoint.load() else { return false };
    assert!(parameters.values().iter().all(|value| value.is_finite()), "a weight that is not finite");
    true
}
