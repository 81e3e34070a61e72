//! Files with a checksum of all their bytes, so that a damaged one is never taken for a good one.
//!
//! For what a program writes for itself and reads back later: the states of unfinished jobs. Not for results, which people
//! may edit. The checksum is a field of the file's own JSON (the metadata of a safetensors file, or a JSON file's top
//! level), so a file keeps its format. It is the CRC-32 of the file with zeros in the checksum's place.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use crate::atomic;
use crate::error::{Error, Result};

/// The name of the checksum's field.
pub const FIELD: &str = "crc32";
/// Its value before the checksum is known. A type that is written with [`write_json`] has it in a field `crc32`.
pub const BLANK: &str = "00000000";

/// Writes a safetensors file with a checksum. The old one stays until the new one is complete and on disk.
///
/// # Errors
/// As [`atomic::write_tensors`].
pub fn write_tensors<N: AsRef<str> + Ord + std::fmt::Display, V: safetensors::View>(
    path: &Path,
    tensors: impl IntoIterator<Item = (N, V)>,
    mut metadata: HashMap<String, String>,
) -> Result<()> {
    metadata.insert(FIELD.to_owned(), BLANK.to_owned());
    atomic::write_tensors_then(path, tensors, metadata, seal_tensors)
}

/// Writes JSON text that has a blank checksum. The old file stays until the new one is complete and on disk.
///
/// # Errors
/// A file that cannot be written.
pub fn write_json(path: &Path, text: String) -> Result<()> {
    let mut bytes = text.into_bytes();
    if let Some(place) = place_in(&bytes) {
        let sum = crc32fast::hash(&bytes);
        bytes[place..place + BLANK.len()].copy_from_slice(shown(sum).as_bytes());
    }
    atomic::write_file(path, |writer| writer.write_all(&bytes))
}

/// Reads a file and checks it. The checksum is blank in what is returned.
///
/// # Errors
/// [`Error::Checksum`] for a file that was changed, or has no checksum; a file that cannot be read.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = std::fs::read(path).map_err(Error::io(path, "read"))?;
    let refuse = |problem: &str| Err(Error::Checksum { path: path.to_owned(), problem: problem.to_owned() });
    let Some(place) = place_in(&bytes) else {
        return refuse("damaged, or written by an older version of qbert: it has no checksum");
    };
    let place = place..place + BLANK.len();
    let stored = bytes[place.clone()].to_vec();
    bytes[place].copy_from_slice(BLANK.as_bytes());
    if shown(crc32fast::hash(&bytes)).as_bytes() != stored {
        return refuse("damaged: it is not what was written (wrong checksum)");
    }
    Ok(bytes)
}

fn shown(sum: u32) -> String {
    format!("{sum:08x}")
}

/// Where the checksum begins: the text after `"crc32":`. Inside a text of the JSON the quotes would be escaped.
fn place_in(bytes: &[u8]) -> Option<usize> {
    let key = format!("\"{FIELD}\":");
    let after = bytes.windows(key.len()).position(|window| window == key.as_bytes())? + key.len();
    let rest = &bytes[after..];
    let spaces = rest.iter().take_while(|&&byte| byte == b' ').count();
    let is_text = rest.get(spaces) == Some(&b'"') && rest.get(spaces + 1 + BLANK.len()) == Some(&b'"');
    is_text.then_some(after + spaces + 1)
}

/// Puts the checksum into a safetensors file that was written with a blank one.
fn seal_tensors(path: &Path) -> std::io::Result<()> {
    let mut file = File::options().read(true).write(true).open(path)?;
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let mut sum = crc32fast::Hasher::new();
    sum.update(&length);
    let mut header = Vec::new();
    (&mut file).take(u64::from_le_bytes(length)).read_to_end(&mut header)?;
    sum.update(&header);
    let place = place_in(&header).ok_or_else(|| std::io::Error::other("the checksum has no place in the header"))?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            read => sum.update(&buffer[..read]),
        }
    }
    file.seek(SeekFrom::Start((length.len() + place) as u64))?;
    file.write_all(shown(sum.finalize()).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that reads well, and is refused with any byte changed and at any other length.
    fn check_every_byte(path: &Path) {
        let whole = std::fs::read(path).unwrap();
        read(path).unwrap();
        for index in 0..whole.len() {
            for flip in [1, 0x20, 0x80] {
                let mut damaged = whole.clone();
                damaged[index] ^= flip;
                std::fs::write(path, &damaged).unwrap();
                assert!(matches!(read(path), Err(Error::Checksum { .. })), "byte {index} ^ {flip:#x}");
            }
            std::fs::write(path, &whole[..index]).unwrap();
            assert!(matches!(read(path), Err(Error::Checksum { .. })), "cut to {index}");
        }
        std::fs::write(path, [&whole[..], b"\n"].concat()).unwrap();
        assert!(matches!(read(path), Err(Error::Checksum { .. })), "longer");
    }

    #[test]
    fn a_changed_byte_is_found_wherever_it_is() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("state.safetensors");
        let values = [1.5, -0.0, f32::MIN_POSITIVE, f32::NAN];
        let metadata = HashMap::from([("position".to_owned(), r#"{"crc32":"ffffffff","steps":3}"#.to_owned())]);
        let tensor = crate::FloatTensor { shape: &[4], values: &values };
        write_tensors(&path, [("weights", tensor)], metadata).unwrap();
        let bytes = read(&path).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let expected: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(file.tensor("weights").unwrap().data(), expected, "to the last bit");
        check_every_byte(&path);

        let path = home.path().join("part.json");
        write_json(&path, format!("{{\n  \"format\": \"x\",\n  \"{FIELD}\": \"{BLANK}\",\n  \"value\": 0.1\n}}\n"))
            .unwrap();
        check_every_byte(&path);
    }

    #[test]
    fn a_file_without_a_checksum_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("state.safetensors");
        let tensor = crate::FloatTensor { shape: &[1], values: &[1.0] };
        atomic::write_tensors(&path, [("weights", tensor)], HashMap::new()).unwrap();
        let refused = read(&path).unwrap_err().to_string();
        assert!(refused.contains("it has no checksum"), "{refused}");
    }
}
