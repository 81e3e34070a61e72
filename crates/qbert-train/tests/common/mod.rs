//! Reading the goldens that the PyTorch twin wrote (`reference/train/`).

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]
#![allow(dead_code, reason = "every test binary uses its own part")]

pub(crate) mod derivative;
pub(crate) mod training;

use std::path::{Path, PathBuf};

use qbert_kernels::Compute;
use qbert_train::{Batch, Targets};
use safetensors::{Dtype, SafeTensors};

pub(crate) fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens")
}

/// A golden file.
pub(crate) struct Golden {
    bytes: Vec<u8>,
}

impl Golden {
    pub(crate) fn open(name: &str) -> Self {
        Self::at(&goldens().join(name))
    }

    pub(crate) fn at(path: &Path) -> Self {
        Self { bytes: std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())) }
    }

    fn file(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.bytes).unwrap()
    }

    /// Numbers of any float type, as f64.
    pub(crate) fn floats(&self, name: &str) -> Vec<f64> {
        let file = self.file();
        let tensor = file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        match tensor.dtype() {
            Dtype::F64 => tensor.data().as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b)).collect(),
            Dtype::F32 => tensor.data().as_chunks::<4>().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect(),
            other => panic!("{name} is {other:?}"),
        }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.file().tensor(name).is_ok()
    }

    pub(crate) fn integers(&self, name: &str) -> Vec<i64> {
        let file = self.file();
        let tensor = file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(tensor.dtype(), Dtype::I64, "{name}");
        tensor.data().as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b)).collect()
    }

    /// The batch that every golden file repeats.
    pub(crate) fn batch(&self) -> Batch {
        let unsigned =
            |name: &str| self.integers(name).into_iter().map(|v| u32::try_from(v).unwrap()).collect::<Vec<_>>();
        let has = |name: &str| self.file().tensor(name).is_ok();
        let offsets: Vec<usize> = self.integers("offsets").into_iter().map(|v| v as usize).collect();
        let input_ids = unsigned("input_ids");
        let targets = if has("start_labels") {
            Targets::Spans(unsigned("start_labels").into_iter().zip(unsigned("end_labels")).collect())
        } else if self.integers("labels").len() == input_ids.len() {
            Targets::Tokens(self.integers("labels").into_iter().map(|v| u32::try_from(v).ok()).collect())
        } else {
            Targets::Sequences(unsigned("labels"))
        };
        let segments = self.integers("segments").into_iter().map(|v| v as u8).collect();
        Batch { input_ids, segments, offsets, targets, part: None }
    }
}

pub(crate) fn compute(threads: usize) -> Compute {
    Compute::detect(threads).unwrap()
}

/// The largest difference between two runs of numbers.
pub(crate) fn distance(ours: &[f32], theirs: &[f64]) -> f64 {
    assert_eq!(ours.len(), theirs.len());
    ours.iter().zip(theirs).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max)
}

pub(crate) fn largest(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |m, v| m.max(v.abs()))
}
