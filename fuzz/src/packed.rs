//! Packed models with right checksums: the damage that a checksum finds is found by tests, so it is not looked for here.

use qbert_model::Head;
use qbert_runtime::{EmbedOptions, Session, SessionOptions};
use serde_json::Value;

const LENGTH: usize = 8;

/// Opens the file and asks it something. Whether it could be opened.
pub fn run(data: &[u8]) -> bool {
    let mut bytes = data.to_vec();
    seal(&mut bytes);
    let Ok(session) = Session::from_bytes("fuzz.qbert", bytes, SessionOptions::default().threads(1)) else {
        return false;
    };
    let long = "owl saw the owl of ostby , ".repeat(200);
    for text in ["", "the owl of ostby saw two owls .", "\u{1b}[2J \u{fffd} 貓頭鷹 \u{200f}", &long] {
        // An answer or an error, whichever it is.
        match session.head() {
            Head::None => drop(session.embed(&[text], EmbedOptions::default())),
            Head::SequenceClassification => drop(session.classify(&[text])),
            Head::TokenClassification => drop(session.tag_texts(&[text])),
            Head::QuestionAnswering => drop(session.answer(&[("who saw the owl ?", text)])),
        }
    }
    true
}

/// Where the header ends, if the file is long enough for the one it claims.
fn header_end(bytes: &[u8]) -> Option<usize> {
    let length = u64::from_le_bytes(*bytes.first_chunk::<LENGTH>()?);
    let end = LENGTH.checked_add(usize::try_from(length).ok()?)?;
    (end <= bytes.len()).then_some(end)
}

/// Puts the checksums right, as far as the file has a place for them.
pub fn seal(bytes: &mut [u8]) -> Option<()> {
    let end = header_end(bytes)?;
    let header: Value = serde_json::from_slice(&bytes[LENGTH..end]).ok()?;
    let mut spans: Vec<(usize, usize)> = Vec::new();
    for (name, entry) in header.as_object()? {
        if name == "__metadata__" || name == "checksums" {
            continue;
        }
        let offsets = entry.get("data_offsets")?.as_array()?;
        let [start, stop] = [offsets.first()?, offsets.get(1)?].map(|at| at.as_u64().and_then(|at| at.try_into().ok()));
        spans.push((end.checked_add(start?)?, end.checked_add(stop?)?));
    }
    spans.sort_unstable();
    let mut sums = Vec::new();
    for (start, stop) in spans {
        sums.extend(crc32fast::hash(bytes.get(start..stop)?).to_le_bytes());
    }
    sums.extend(crc32fast::hash(&bytes[..end]).to_le_bytes());
    sums.extend(crc32fast::hash(&sums).to_le_bytes());
    let at = bytes.len().checked_sub(sums.len()).filter(|&at| at >= end)?;
    bytes[at..].copy_from_slice(&sums);
    Some(())
}

/// Mutates the header or the data with `change`, and keeps the frame: the length in front, the data where it begins.
///
/// `change` gets a buffer and how much of it is in use, and returns how much of it is in use then.
pub fn mutate(
    data: &mut [u8],
    size: usize,
    most: usize,
    seed: u32,
    change: impl Fn(&mut [u8], usize, usize) -> usize,
) -> usize {
    let Some(end) = header_end(&data[..size]).filter(|_| seed % 4 != 0) else {
        return change(data, size, most);
    };
    let (header, rest) = (data[LENGTH..end].to_vec(), data[end..size].to_vec());
    let (mut header, mut rest) = (header.trim_ascii_end().to_vec(), rest);
    let part = if seed % 4 == 3 { &mut rest } else { &mut header };
    let (length, room) = (part.len(), part.len() + 256);
    part.resize(room, 0);
    let now = change(part, length, room);
    part.truncate(now);
    // The data begins at a multiple of a cache line.
    header.resize((LENGTH + header.len()).next_multiple_of(64) - LENGTH, b' ');
    let mut file = crate::safetensors(&header, &rest);
    file.truncate(most);
    seal(&mut file);
    data[..file.len()].copy_from_slice(&file);
    file.len()
}
