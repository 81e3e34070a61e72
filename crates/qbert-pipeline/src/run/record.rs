//! `run.json`: what the run is of, and what every stage was made from.
//!
//! A stage is recorded twice: when it starts, with its inputs, to which all of its files belong from then on; and when it is
//! done, with hashes of its results. In between it is in progress and can be continued.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{RECORD, Stage, hashes, write_json};
use crate::error::{Error, ErrorKind, Result};

const FORMAT: &str = "qbert-run";

/// The file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Record {
    format: String,
    version: u32,
    /// Model, task and data.
    pub(super) run: Value,
    stages: BTreeMap<Stage, Entry>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Entry {
    inputs: Value,
    /// Hashes of the results; absent while the stage is in progress. An empty one is of a file that goes on to change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    results: Option<BTreeMap<String, String>>,
}

/// Where a stage stands with the inputs it would have now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StageStatus {
    /// It was never started.
    New,
    /// It was started with these inputs.
    Begun,
    /// It is done with these inputs, and its results are there.
    Done {
        /// Whether a result has changed since.
        edited: bool,
    },
    /// It is done with these inputs, but a result is missing.
    Missing(String),
    /// It was started or done with other inputs; the first that differs.
    Other(String),
}

impl Record {
    pub(super) fn new(run: Value) -> Self {
        Self { format: FORMAT.to_owned(), version: 1, run, stages: BTreeMap::new() }
    }

    /// Reads the file of a directory; `None` if there is none.
    pub(super) fn read(out: &Path) -> Result<Option<Self>> {
        let path = out.join(RECORD);
        if !path.exists() {
            return Ok(None);
        }
        let wrong = |problem: String| {
            let hint = "give another `run.out`, or delete the directory to start again".to_owned();
            Error::new(ErrorKind::BadInput, format!("{}: {problem}", path.display()), hint)
        };
        let text = super::context::read_text(&path)?;
        let record: Self =
            serde_json::from_str(&text).map_err(|error| wrong(format!("not the record of a run: {error}")))?;
        if record.format != FORMAT || record.version != 1 {
            let (format, version) = (&record.format, record.version);
            return Err(wrong(format!("{format} {version}, but this program reads {FORMAT} 1")));
        }
        Ok(Some(record))
    }

    pub(super) fn write(&self, out: &Path) -> Result<()> {
        write_json(&out.join(RECORD), self)
    }

    /// Where a stage with these inputs stands.
    pub(super) fn status(&self, out: &Path, stage: Stage, inputs: &Value) -> Result<StageStatus> {
        let Some(entry) = self.stages.get(&stage) else { return Ok(StageStatus::New) };
        if entry.inputs != *inputs {
            return Ok(StageStatus::Other(qbert_train::state::difference(&entry.inputs, inputs)));
        }
        let Some(results) = &entry.results else { return Ok(StageStatus::Begun) };
        if let Some(name) = results.keys().find(|name| !out.join(name).is_file()) {
            return Ok(StageStatus::Missing(name.clone()));
        }
        Ok(StageStatus::Done { edited: self.edited(out, stage)? })
    }

    /// Whether a result of a finished stage has changed since. A missing one has not.
    pub(super) fn edited(&self, out: &Path, stage: Stage) -> Result<bool> {
        let results = self.stages.get(&stage).and_then(|entry| entry.results.as_ref());
        for (name, hash) in results.into_iter().flatten() {
            let path = out.join(name);
            if !hash.is_empty() && path.is_file() && hashes::file(&path)? != *hash {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The inputs that a stage was last started with.
    pub(super) fn inputs(&self, stage: Stage) -> Option<&Value> {
        self.stages.get(&stage).map(|entry| &entry.inputs)
    }

    pub(super) fn begin(&mut self, stage: Stage, inputs: Value) {
        self.stages.insert(stage, Entry { inputs, results: None });
    }

    pub(super) fn finish(&mut self, stage: Stage, results: BTreeMap<String, String>) {
        if let Some(entry) = self.stages.get_mut(&stage) {
            entry.results = Some(results);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_stage_is_passed_over_only_with_the_same_inputs_and_its_results() {
        let home = tempfile::tempdir().unwrap();
        let out = home.path();
        let mut record = Record::new(json!({"task": "sst2"}));
        let (one, other) = (json!({"epochs": 1, "rate": 8e-5}), json!({"epochs": 2, "rate": 8e-5}));
        let status = |record: &Record, inputs: &Value| record.status(out, Stage::Plan, inputs).unwrap();
        assert_eq!(status(&record, &one), StageStatus::New);
        record.begin(Stage::Plan, one.clone());
        assert_eq!(status(&record, &one), StageStatus::Begun);
        assert_eq!(status(&record, &other), StageStatus::Other("`epochs` was 1, now it is 2".to_owned()));
        std::fs::write(out.join("plan.toml"), "a").unwrap();
        record.finish(Stage::Plan, hashes::files(out, &["plan.toml"]).unwrap());
        record.write(out).unwrap();
        let record = Record::read(out).unwrap().unwrap();
        assert_eq!(status(&record, &one), StageStatus::Done { edited: false });
        std::fs::write(out.join("plan.toml"), "b").unwrap();
        assert_eq!(status(&record, &one), StageStatus::Done { edited: true });
        std::fs::remove_file(out.join("plan.toml")).unwrap();
        assert_eq!(status(&record, &one), StageStatus::Missing("plan.toml".to_owned()));
    }

    #[test]
    fn what_is_no_record_is_refused() {
        let home = tempfile::tempdir().unwrap();
        assert!(Record::read(home.path()).unwrap().is_none());
        for (text, problem) in [
            ("{", "not the record of a run"),
            (r#"{"format": "qbert-run", "version": 2, "run": {}, "stages": {}}"#, "reads qbert-run 1"),
        ] {
            std::fs::write(home.path().join(RECORD), text).unwrap();
            let error = Record::read(home.path()).unwrap_err();
            assert!(error.to_string().contains(problem), "{error}");
        }
    }
}
