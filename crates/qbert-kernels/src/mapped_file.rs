//! A file seen as bytes without being read: the one use of `unsafe` that is not arithmetic.
//!
//! Mapping a file is `unsafe` because another process could change it meanwhile. It lives here, in the one crate
//! where `unsafe` is allowed, behind a safe function with the rule its callers follow: weight files are replaced
//! by renaming a complete new file over them (never edited in place), so a mapping always sees one whole version.
//! Do not map a file that something else appends to or truncates.

use std::fs::File;
use std::ops::Deref;
use std::path::Path;

/// The bytes of a file, mapped into memory read-only.
#[derive(Debug)]
pub struct MappedFile {
    // None for an empty file, which cannot be mapped everywhere.
    map: Option<memmap2::Mmap>,
}

impl MappedFile {
    /// Maps the whole file at `path`.
    ///
    /// # Errors
    /// Whatever the system says when the file cannot be opened or mapped.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        let file = File::open(path)?;
        if file.metadata()?.len() == 0 {
            return Ok(Self { map: None });
        }
        // SAFETY: the mapping is private to this value, read-only, and only ever seen as `&[u8]`. Weight files are
        // replaced by rename, so the mapped inode does not change under us; the module documentation states the rule.
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
