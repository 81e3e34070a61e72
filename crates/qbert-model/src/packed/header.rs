//! The frame of a packed file: a safetensors header, tensors without gaps, and a checksum for each part.
//!
//! This module does not use the safetensors crate, for three reasons: tensors are ordered by alignment, the header's
//! checksum is verified before it is parsed, and no number in it can overflow. Any safetensors reader can open the file.

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;

use qbert_quant::{shorten, shorten_list};
use serde_json::{Map, Value, json};

mod parse;

use parse::{RawEntry, RawHeader};

/// The last tensor: checksums of all the others, of the header, and of itself.
pub(super) const CHECKSUMS: &str = "checksums";
/// The data begins at a multiple of this, a cache line.
const ALIGNMENT: usize = 64;
const LENGTH_BYTES: usize = 8;
const METADATA: &str = "__metadata__";
/// No model's header comes near this; a larger one is damaged and refused before it is read. The tokenizer, which may be
/// larger, is a tensor.
const LARGEST_HEADER: u64 = 16 << 20;

/// The number formats of a packed file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    U8,
    Bf16,
    F32,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::U8 => "U8",
            Self::Bf16 => "BF16",
            Self::F32 => "F32",
        }
    }

    fn size(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }
}

/// One tensor of a file that is read.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) shape: Vec<usize>,
    /// Where it lies in the file.
    pub(super) bytes: Range<usize>,
}

/// One tensor of a file that is written.
#[derive(Debug)]
pub(super) struct NewTensor {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: Vec<u8>,
}

/// A header, checked.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) metadata: BTreeMap<String, String>,
    /// In the order of the data; without the checksums.
    pub(super) tensors: Vec<Entry>,
}

/// What is wrong with a file's frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// It is not a packed model.
    Foreign(String),
    /// It is a damaged packed model.
    Damaged(String),
}

impl Header {
    /// Reads the frame and compares every checksum.
    pub(super) fn read(file: &[u8]) -> Result<Self, Problem> {
        let end = header_end(file)?;
        // The header's own checksum comes first, so that later errors are not due to flipped bits in the header.
        let sum = |place: usize| {
            let at = file.len().checked_sub(4 * place)?;
            Some(u32::from_le_bytes(*file.get(at..)?.first_chunk()?))
        };
        if sum(2) != Some(crc32fast::hash(&file[..end])) {
            return Err(explain(file, end));
        }
        let mut header = parse(file, end).map_err(Problem::Damaged)?;
        let length = header.tensors.last().map_or(end, |tensor| tensor.bytes.end);
        if length != file.len() {
            return Err(Problem::Damaged(format!("{} bytes after the last tensor", file.len().abs_diff(length))));
        }
        let sums = header.tensors.pop().filter(|tensor| tensor.name == CHECKSUMS);
        let sums = sums.ok_or_else(|| Problem::Damaged("the last tensor is not `checksums`".to_owned()))?;
        compare(file, &header.tensors, &file[sums.bytes])?;
        Ok(header)
    }
}

/// Where the header ends; refuses what cannot be one.
fn header_end(file: &[u8]) -> Result<usize, Problem> {
    if file.is_empty() {
        return Err(Problem::Damaged("the file is empty".to_owned()));
    }
    let foreign = || Problem::Foreign("this is not a packed model".to_owned());
    let (length, rest) = file.split_first_chunk::<LENGTH_BYTES>().ok_or_else(foreign)?;
    let length = u64::from_le_bytes(*length);
    if length > LARGEST_HEADER || rest.first() != Some(&b'{') {
        return Err(foreign());
    }
    let end = LENGTH_BYTES + length as usize;
    if end > file.len() {
        return Err(Problem::Damaged(format!("cut short: {} bytes of a header of {length}", rest.len())));
    }
    Ok(end)
}

/// Explains why a header does not match its checksum.
fn explain(file: &[u8], end: usize) -> Problem {
    let Ok(header) = parse(file, end) else {
        return Problem::Damaged("the header is damaged: it does not match its checksum".to_owned());
    };
    if header.metadata.get("format").is_none_or(|format| format != "qbert") {
        return Problem::Foreign("this is a safetensors file, but not a packed model".to_owned());
    }
    let expected = header.tensors.last().map_or(end, |tensor| tensor.bytes.end);
    if expected > file.len() {
        return Problem::Damaged(format!("cut short: {} bytes of {expected}", file.len()));
    }
    Problem::Damaged("the header does not match its checksum: a bit flipped there, or bytes were added".to_owned())
}

/// Compares the checksums of the tensors and of the list of checksums itself.
fn compare(file: &[u8], tensors: &[Entry], sums: &[u8]) -> Result<(), Problem> {
    let (sums, rest) = sums.as_chunks::<4>();
    if !rest.is_empty() || sums.len() != tensors.len() + 2 {
        return Err(Problem::Damaged(format!("{} checksums for {} tensors", sums.len(), tensors.len())));
    }
    let (last, others) = sums.split_last().ok_or_else(|| Problem::Damaged("no checksums".to_owned()))?;
    if u32::from_le_bytes(*last) != crc32fast::hash(others.as_flattened()) {
        return Err(Problem::Damaged("the list of checksums is damaged".to_owned()));
    }
    for (tensor, sum) in tensors.iter().zip(others) {
        if crc32fast::hash(&file[tensor.bytes.clone()]) != u32::from_le_bytes(*sum) {
            let name = shorten(&tensor.name);
            return Err(Problem::Damaged(format!("tensor `{name}` is damaged: it does not match its checksum")));
        }
    }
    Ok(())
}

/// Reads the JSON; tensors must follow each other without gaps, and their lengths fit their shapes.
fn parse(file: &[u8], end: usize) -> Result<Header, String> {
    let RawHeader { metadata, tensors } = serde_json::from_slice(&file[LENGTH_BYTES..end])
        .map_err(|error| format!("the header cannot be read: {}", shorten(&error.to_string())))?;
    let tensors = tensors.into_iter().map(|(name, raw)| entry(name, &raw, end));
    let mut header = Header { metadata, tensors: tensors.collect::<Result<_, _>>()? };
    header.tensors.sort_by_key(|tensor| (tensor.bytes.start, tensor.bytes.end));
    let mut next = end;
    for tensor in &header.tensors {
        if tensor.bytes.start != next {
            let (name, start) = (shorten(&tensor.name), tensor.bytes.start);
            return Err(format!("tensor `{name}` begins at byte {start} instead of {next}"));
        }
        next = tensor.bytes.end;
    }
    Ok(header)
}

fn entry(name: String, raw: &RawEntry, data: usize) -> Result<Entry, String> {
    let kind = [Kind::U8, Kind::Bf16, Kind::F32].into_iter().find(|kind| kind.name() == raw.dtype);
    let kind = kind.ok_or_else(|| format!("tensor `{}` is stored as {}", shorten(&name), shorten(&raw.dtype)))?;
    let place = |offset: u64| usize::try_from(offset).ok()?.checked_add(data);
    let bytes = place(raw.data_offsets[0]).zip(place(raw.data_offsets[1]));
    let shape: Option<Vec<usize>> = raw.shape.iter().map(|&side| usize::try_from(side).ok()).collect();
    let count = shape.as_ref().and_then(|shape| shape.iter().try_fold(kind.size(), |a, &b| a.checked_mul(b)));
    match (bytes, shape, count) {
        (Some((from, to)), Some(shape), Some(count)) if to.checked_sub(from) == Some(count) => {
            Ok(Entry { name, kind, shape, bytes: from..to })
        }
        _ => {
            let (name, shape) = (shorten(&name), shorten_list(&raw.shape));
            Err(format!("tensor `{name}` has shape {shape} and bytes {:?}", raw.data_offsets))
        }
    }
}

/// Writes a whole file: header, tensors in this order, checksums. The same input gives the same bytes.
pub(super) fn write(
    target: &mut dyn Write,
    metadata: &BTreeMap<String, String>,
    tensors: &[NewTensor],
) -> std::io::Result<()> {
    let header = header_bytes(metadata, tensors);
    target.write_all(&header)?;
    let mut sums = Vec::with_capacity(4 * (tensors.len() + 2));
    for tensor in tensors {
        target.write_all(&tensor.bytes)?;
        sums.extend(crc32fast::hash(&tensor.bytes).to_le_bytes());
    }
    sums.extend(crc32fast::hash(&header).to_le_bytes());
    sums.extend(crc32fast::hash(&sums).to_le_bytes());
    target.write_all(&sums)
}

fn header_bytes(metadata: &BTreeMap<String, String>, tensors: &[NewTensor]) -> Vec<u8> {
    let mut json = Map::new();
    json.insert(METADATA.to_owned(), json!(metadata));
    let mut start = 0;
    let mut add = |name: &str, kind: Kind, shape: &[usize], length: usize| {
        let offsets = [start, start + length];
        start += length;
        json.insert(name.to_owned(), json!({ "dtype": kind.name(), "shape": shape, "data_offsets": offsets }));
    };
    for tensor in tensors {
        add(&tensor.name, tensor.kind, &tensor.shape, tensor.bytes.len());
    }
    let sums = 4 * (tensors.len() + 2);
    add(CHECKSUMS, Kind::U8, &[sums], sums);
    let mut text = Value::Object(json).to_string().into_bytes();
    // The format pads the JSON with spaces, so that the data begins at a cache line.
    text.resize((LENGTH_BYTES + text.len()).next_multiple_of(ALIGNMENT) - LENGTH_BYTES, b' ');
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut text);
    bytes
}
