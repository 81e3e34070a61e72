//! The numbered lines of a text file, for every reader except SQuAD's.
//!
//! `BufRead::lines` does not say which line is not UTF-8, leaves a byte-order mark on the first column's name, and
//! accepts NUL bytes.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use crate::{Error, Result};

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The longest line of a data file or of standard input, in bytes. A longer one is refused before it is in memory.
pub const LONGEST_LINE: usize = 16 << 20;

/// The longest file that is read whole (SQuAD's layout), in bytes.
const LONGEST_FILE: usize = 1 << 30;

/// Appends the next line with its line break to `line`, as `read_until` does, but at most [`LONGEST_LINE`] bytes and one
/// more: a longer line is `line.len() > LONGEST_LINE` for the caller to refuse. Returns the number of bytes, 0 at the end.
///
/// # Errors
/// As the reader.
pub fn read_line_limited(reader: &mut impl BufRead, line: &mut Vec<u8>) -> std::io::Result<usize> {
    let room = (LONGEST_LINE + 1).saturating_sub(line.len());
    reader.take(room as u64).read_until(b'\n', line)
}

/// A file of at most `limit` bytes. Reads no more than that, whatever the file is.
pub(crate) fn read_limited(path: &Path, limit: usize) -> Result<Vec<u8>> {
    let wrong = |source| Error::Io { path: path.to_owned(), source };
    let file = File::open(path).map_err(wrong)?;
    let mut bytes = Vec::new();
    file.take(limit as u64 + 1).read_to_end(&mut bytes).map_err(wrong)?;
    if bytes.len() > limit {
        return Err(Error::TooLong { path: path.to_owned(), line: None, limit });
    }
    Ok(bytes)
}

/// A file read line by line.
pub(crate) struct Lines {
    path: PathBuf,
    reader: BufReader<File>,
    buffer: Vec<u8>,
    number: usize,
}

impl Lines {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), reader: BufReader::new(file), buffer: Vec::new(), number: 0 })
    }

    /// The next line without its line end, and its number from 1; `None` at the end of the file.
    pub(crate) fn next_line(&mut self) -> Result<Option<(usize, &str)>> {
        self.buffer.clear();
        let read = read_line_limited(&mut self.reader, &mut self.buffer);
        let read = read.map_err(|source| Error::Io { path: self.path.clone(), source })?;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        if self.buffer.len() > LONGEST_LINE {
            return Err(Error::TooLong { path: self.path.clone(), line: Some(self.number), limit: LONGEST_LINE });
        }
        let line = checked_line(&self.path, self.number, &self.buffer)?;
        Ok(Some((self.number, line)))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn checked_line<'a>(path: &Path, number: usize, bytes: &'a [u8]) -> Result<&'a str> {
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
    let bytes = if number == 1 { bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes) } else { bytes };
    if bytes.contains(&0) {
        return Err(Error::NulByte { path: path.to_owned(), line: number });
    }
    std::str::from_utf8(bytes).map_err(|_| Error::InvalidUtf8 { path: path.to_owned(), line: number })
}

/// A whole file as text, for formats that are not made of lines, with the same checks and line numbers.
pub(crate) fn whole_file(path: &Path) -> Result<String> {
    let bytes = read_limited(path, LONGEST_FILE)?;
    let bytes = match bytes.strip_prefix(BYTE_ORDER_MARK) {
        Some(rest) => rest.to_vec(),
        None => bytes,
    };
    let line_of = |position: usize| 1 + bytes[..position].iter().filter(|&&byte| byte == b'\n').count();
    if let Some(position) = bytes.iter().position(|&byte| byte == 0) {
        return Err(Error::NulByte { path: path.to_owned(), line: line_of(position) });
    }
    if let Err(error) = std::str::from_utf8(&bytes) {
        return Err(Error::InvalidUtf8 { path: path.to_owned(), line: line_of(error.valid_up_to()) });
    }
    String::from_utf8(bytes).map_err(|_| Error::InvalidUtf8 { path: path.to_owned(), line: 1 })
}
