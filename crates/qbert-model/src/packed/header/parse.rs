//! The JSON of a header, read straight into what is kept of it.
//!
//! A tree of JSON values takes some sixty times the bytes of its text. Here a header takes no more than its text, and the
//! number of its parts is limited while they are read.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::METADATA;

/// More tensors than 256 layers have.
const MOST_TENSORS: usize = 1 << 13;
/// The format has seven entries of metadata.
const MOST_METADATA: usize = 64;
/// The format's tensors have one or two dimensions.
const MOST_DIMENSIONS: usize = 8;

/// What the header says, unchecked but for the limits above and for names that appear twice.
pub(super) struct RawHeader {
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) tensors: BTreeMap<String, RawEntry>,
}

/// What it says about one tensor.
#[derive(serde::Deserialize)]
pub(super) struct RawEntry {
    pub(super) dtype: String,
    #[serde(deserialize_with = "dimensions")]
    pub(super) shape: Vec<u64>,
    pub(super) data_offsets: [u64; 2],
}

struct Metadata(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = RawHeader;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object of tensors")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<RawHeader, M::Error> {
        let (mut metadata, mut tensors) = (None, BTreeMap::new());
        while let Some(name) = map.next_key::<String>()? {
            if name == METADATA {
                let Metadata(found) = map.next_value()?;
                if metadata.replace(found).is_some() {
                    return Err(M::Error::custom("the metadata appears twice"));
                }
                continue;
            }
            if tensors.len() == MOST_TENSORS {
                return Err(M::Error::custom(format_args!("more than {MOST_TENSORS} tensors")));
            }
            let entry: RawEntry = map.next_value()?;
            if tensors.contains_key(&name) {
                return Err(M::Error::custom(format_args!("tensor `{name}` appears twice")));
            }
            tensors.insert(name, entry);
        }
        Ok(RawHeader { metadata: metadata.unwrap_or_default(), tensors })
    }
}

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MetadataVisitor)
    }
}

struct MetadataVisitor;

impl<'de> Visitor<'de> for MetadataVisitor {
    type Value = Metadata;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("metadata as an object of strings")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Metadata, M::Error> {
        let mut metadata = BTreeMap::new();
        while let Some((key, value)) = map.next_entry::<String, String>()? {
            if metadata.len() == MOST_METADATA {
                return Err(M::Error::custom(format_args!("more than {MOST_METADATA} entries of metadata")));
            }
            metadata.insert(key, value);
        }
        Ok(Metadata(metadata))
    }
}

fn dimensions<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u64>, D::Error> {
    deserializer.deserialize_seq(DimensionsVisitor)
}

struct DimensionsVisitor;

impl<'de> Visitor<'de> for DimensionsVisitor {
    type Value = Vec<u64>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a shape as a list of whole numbers")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut sequence: S) -> Result<Vec<u64>, S::Error> {
        let mut shape = Vec::new();
        while let Some(side) = sequence.next_element()? {
            if shape.len() == MOST_DIMENSIONS {
                return Err(S::Error::custom(format_args!("a shape of more than {MOST_DIMENSIONS} dimensions")));
            }
            shape.push(side);
        }
        Ok(shape)
    }
}
