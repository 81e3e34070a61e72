//! A file as a slice of bytes, mapped rather than read.
//!
//! Mapping a file is `unsafe` because another process could change the file while it is mapped. It is done here, in the
//! only crate that allows `unsafe`, behind a safe function. Callers follow one rule: a weight file is replaced by renaming
//! a complete new file over it and never edited in place, so a mapping always sees one whole version. Do not map a file
//! that something else appends to or truncates.

use std::fs::File;
use std::ops::Deref;
use std::path::Path;

/// The bytes of a file, mapped into memory read-only.
#[derive(Debug)]
pub struct MappedFile {
    // None for an empty file, which some systems cannot map.
    map: Option<memmap2::Mmap>,
}

impl MappedFile {
    /// Maps the whole file at `path`.
    ///
    /// # Errors
    /// When the file cannot be opened or mapped.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        let file = File::open(path)?;
        if file.metadata()?.len() == 0 {
            return Ok(Self { map: None });
        }
        // SAFETY: the mapping belongs to this value, is read-only, and is only ever used as `&[u8]`. Weight files are
        // replaced by renaming, so the mapped file does not change; the module documentation states the rule.
        let map = unsafe { memmap2::Mmap::map(&file)? };
        Ok(Self { map: Some(map) })
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }
}
