//! `provenance.json`: how results were made.

use serde::{Deserialize, Serialize};

use crate::document::{Document, Header};

/// How the results were made.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Provenance {
    /// Command lines in the order they were run.
    pub commands: Vec<String>,
    /// Seeds, versions, hashes.
    pub facts: Vec<Fact>,
}

impl Document for Provenance {
    const HEADER: Option<Header> = Some(Header { format: "qbert-provenance", version: 1 });
}

/// One line of provenance.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Fact {
    /// What it belongs to, such as `fine-tuning`.
    pub group: String,
    /// What it is, such as `seed`.
    pub name: String,
    /// Its value.
    pub value: String,
}
