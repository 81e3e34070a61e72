//! The state of an analysis that survives a crash, and the parts that several processes write.
//!
//! The state is one file, written whole or not at all: the results so far, and the vectors of the layers in progress. States
//! and parts have a checksum of all their bytes: a damaged one is refused, since it would give another result.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use qbert_documents::{AnalysisRun, AnalysisSubject};
use qbert_model::{FloatTensor, sealed};
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};

use super::file::Found;
use super::settings::{Settings, Shard};
use super::work::{LayerState, RunWork};
use crate::error::{Error, Result};
use crate::state::read_sealed;

/// The `format` field of a finished part.
const PART_FORMAT: &str = "qbert-sensitivity-part";
const PART_VERSION: u32 = 1;
const METADATA: &str = "analysis";

/// The results so far, of the whole analysis or of a shard. A finished part is written as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) format: String,
    pub(super) version: u32,
    /// The checksum of a finished part's file.
    pub(super) crc32: String,
    #[serde(flatten)]
    pub(super) subject: AnalysisSubject,
    pub(super) settings: Settings,
    pub(super) shard: Shard,
    pub(super) runs: Vec<AnalysisRun>,
    pub(super) found: Vec<Found>,
}

impl Part {
    pub(super) fn new(subject: AnalysisSubject, settings: Settings, shard: Shard) -> Self {
        let (format, crc32) = (PART_FORMAT.to_owned(), sealed::BLANK.to_owned());
        Self { format, version: PART_VERSION, crc32, subject, settings, shard, runs: Vec::new(), found: Vec::new() }
    }

    pub(super) fn has(&self, run: usize, layer: usize) -> bool {
        self.found.iter().any(|found| (found.run, found.layer) == (run, layer))
    }

    /// Sorted by run and layer, whatever the order they were found in.
    pub(super) fn sort(&mut self) {
        self.found.sort_by_key(|found| (found.run, found.layer));
        self.runs.sort_by_key(|info| info.run);
    }

    /// Why two parts do not belong to the same analysis.
    pub(super) fn difference(&self, other: &Self) -> Option<String> {
        let different = |what: &str, ours: String, theirs: String| Some(format!("{what}: {ours} and {theirs}"));
        if self.subject.model != other.subject.model {
            return different("another model", self.subject.model.clone(), other.subject.model.clone());
        }
        if self.subject != other.subject {
            return different("other data", data(&self.subject), data(&other.subject));
        }
        if self.settings != other.settings {
            return different("other settings", as_json(&self.settings), as_json(&other.settings));
        }
        None
    }

    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).map_err(|error| bad(path, error.to_string()))?;
        Ok(sealed::write_json(path, text + "\n")?)
    }

    pub(super) fn read(path: &Path) -> Result<Self> {
        let bytes = read_sealed(path, path)?;
        let part: Self =
            serde_json::from_slice(&bytes).map_err(|error| bad(path, format!("not a part of an analysis: {error}")))?;
        if part.format != PART_FORMAT || part.version != PART_VERSION {
            let (format, version) = (&part.format, part.version);
            let wanted = PART_VERSION;
            return Err(bad(path, format!("{format} {version} where {PART_FORMAT} {wanted} is expected")));
        }
        Ok(part)
    }
}

fn as_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn data(subject: &AnalysisSubject) -> String {
    format!("{} {} up to {} tokens", subject.task, subject.data, subject.max_len)
}

fn bad(path: &Path, problem: String) -> Error {
    Error::Sensitivity { path: path.to_owned(), problem }
}

#[derive(Serialize, Deserialize)]
struct Saved {
    part: Part,
    /// The run in progress.
    current: Option<Current>,
}

#[derive(Serialize, Deserialize)]
struct Current {
    run: usize,
    layers: Vec<LayerState>,
    vectors: Vec<usize>,
}

/// Layers in progress, as saved.
pub(super) struct Interrupted {
    pub(super) run: usize,
    pub(super) layers: Vec<(LayerState, Vec<Vec<f32>>)>,
}

/// The state's file.
pub(super) fn path(out: &Path, shard: Shard) -> PathBuf {
    out.join(if shard == Shard::WHOLE {
        "analysis.safetensors".to_owned()
    } else {
        format!("analysis.{}-of-{}.safetensors", shard.part, shard.of)
    })
}

/// Saves the results and the work in progress.
pub(super) fn save(path: &Path, part: &Part, run: Option<(usize, &RunWork<'_>)>) -> Result<()> {
    let works = run.map(|(_, work)| work.works()).unwrap_or_default();
    let vectors: Vec<Vec<&[f32]>> = works.iter().map(|work| work.vectors()).collect();
    #[derive(Serialize)]
    struct SavedRef<'a> {
        part: &'a Part,
        current: Option<CurrentRef<'a>>,
    }
    #[derive(Serialize)]
    struct CurrentRef<'a> {
        run: usize,
        layers: Vec<&'a LayerState>,
        vectors: Vec<usize>,
    }
    let current = run.map(|(run, _)| CurrentRef {
        run,
        layers: works.iter().map(|work| work.state()).collect(),
        vectors: vectors.iter().map(Vec::len).collect(),
    });
    let text = serde_json::to_string(&SavedRef { part, current }).map_err(|error| bad(path, error.to_string()))?;
    let shapes: Vec<[usize; 1]> = vectors.iter().map(|own| [own.first().map_or(0, |vector| vector.len())]).collect();
    let tensors = vectors.iter().zip(&shapes).enumerate().flat_map(|(work, (own, shape))| {
        own.iter().enumerate().map(move |(index, &values)| (tensor_name(work, index), FloatTensor { shape, values }))
    });
    Ok(sealed::write_tensors(path, tensors, HashMap::from([(METADATA.to_owned(), text)]))?)
}

fn tensor_name(work: usize, index: usize) -> String {
    format!("{work}.{index}")
}

/// Reads a saved state.
pub(super) fn load(path: &Path) -> Result<(Part, Option<Interrupted>)> {
    parse(path, &read_sealed(path, path)?)
}

/// The state in the bytes of a file.
pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<(Part, Option<Interrupted>)> {
    let damaged = |problem: String| Error::Resume { path: path.to_owned(), problem: format!("damaged: {problem}") };
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(|error| damaged(error.to_string()))?;
    let text = header.metadata().as_ref().and_then(|metadata| metadata.get(METADATA));
    let text = text.ok_or_else(|| damaged("not the state of an analysis".to_owned()))?;
    let saved: Saved = serde_json::from_str(text).map_err(|error| damaged(error.to_string()))?;
    let file = SafeTensors::deserialize(bytes).map_err(|error| damaged(error.to_string()))?;
    let Some(Current { run, layers, vectors }) = saved.current else { return Ok((saved.part, None)) };
    let mut restored = Vec::new();
    for (work, (layer, count)) in layers.into_iter().zip(vectors).enumerate() {
        let own = (0..count).map(|index| {
            let tensor = file.tensor(&tensor_name(work, index)).map_err(|error| damaged(error.to_string()))?;
            if tensor.dtype() != Dtype::F32 {
                return Err(damaged(format!("a vector of {:?}", tensor.dtype())));
            }
            Ok(tensor.data().as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)).collect())
        });
        restored.push((layer, own.collect::<Result<Vec<Vec<f32>>>>()?));
    }
    Ok((saved.part, Some(Interrupted { run, layers: restored })))
}
