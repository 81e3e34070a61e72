//! The numbered lines of a text file, for every reader except SQuAD's.
//!
//! `BufRead::lines` does not say which line is not UTF-8, leaves a byte-order mark on the first column's name, and
//! accepts NUL bytes.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use crate::{Error, Result};

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

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
        let read = self.reader.read_until(b'\n', &mut self.buffer);
        let read = read.map_err(|source| Error::Io { path: self.path.clone(), source })?;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
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
    let bytes = std::fs::read(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
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
