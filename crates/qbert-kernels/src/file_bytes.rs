//! The bytes of a file, read into memory of their own or mapped.
//!
//! Bytes in memory stay what they were when the file was read, whatever happens to the file. Mapped bytes take no memory
//! of their own, but they are the file's: a program that writes into the file changes them, and where it cuts the file
//! short, reading them ends the process. A mapped file must therefore be replaced by renaming a complete new file over it,
//! which leaves the mapping on the old one. [`FileBytes::is_changed`] notices most violations afterwards; it cannot
//! prevent any.
//!
//! Mapping is `unsafe` for this reason. It is done here, in the only crate that allows `unsafe`, behind a safe function.

use std::fs::{File, Metadata};
use std::io::{Error, ErrorKind, Read};
use std::ops::Deref;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::SystemTime;

use memmap2::{Mmap, MmapMut};

/// The bytes of a file, read-only. They begin at a page, so what is aligned in the file is aligned in memory.
#[derive(Debug)]
pub struct FileBytes {
    // None for an empty file, which some systems cannot map.
    bytes: Option<Mmap>,
    /// What the bytes belong to; `None` where they are in memory of their own.
    file: Option<MappedFile>,
}

/// A file that was mapped, and what it looked like then.
#[derive(Debug)]
struct MappedFile {
    file: File,
    length: u64,
    /// `None` where the file system keeps no time.
    modified: Option<SystemTime>,
    /// Once noticed, a change stays known.
    changed: AtomicBool,
}

impl FileBytes {
    /// Reads the whole file at `path` into memory.
    ///
    /// # Errors
    /// When the file cannot be opened or read, there is no memory for it, or its length changes meanwhile.
    pub fn read(path: &Path) -> std::io::Result<Self> {
        let mut file = File::open(path)?;
        let Some(length) = length_to_map(&file.metadata()?)? else { return Ok(Self { bytes: None, file: None }) };
        let mut bytes = MmapMut::map_anon(length)?;
        let cut = |error: Error| match error.kind() {
            ErrorKind::UnexpectedEof => Error::new(ErrorKind::UnexpectedEof, "it became shorter while it was read"),
            _ => error,
        };
        file.read_exact(&mut bytes).map_err(cut)?;
        if file.read(&mut [0])? != 0 {
            return Err(Error::other("it became longer while it was read"));
        }
        Ok(Self { bytes: Some(bytes.make_read_only()?), file: None })
    }

    /// Maps the whole file at `path`.
    ///
    /// # Errors
    /// When the file cannot be opened or mapped.
    pub fn map(path: &Path) -> std::io::Result<Self> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if length_to_map(&metadata)?.is_none() {
            return Ok(Self { bytes: None, file: None });
        }
        // SAFETY: the mapping belongs to this value, is read-only, and is only ever used as `&[u8]`. The module
        // documentation states the rule that files are replaced by renaming, so that a mapped file does not change.
        let bytes = unsafe { Mmap::map(&file)? };
        let (length, modified) = (metadata.len(), metadata.modified().ok());
        let file = MappedFile { file, length, modified, changed: AtomicBool::new(false) };
        Ok(Self { bytes: Some(bytes), file: Some(file) })
    }

    /// Whether the bytes are in memory of their own.
    pub fn is_in_memory(&self) -> bool {
        self.file.is_none()
    }

    /// Whether something wrote into the mapped file since it was opened, by its length and the time of its last change:
    /// one call of the system. Never true of bytes in memory, or after another file took the name of a mapped one.
    pub fn is_changed(&self) -> bool {
        let Some(MappedFile { file, length, modified, changed }) = &self.file else { return false };
        if !changed.load(Relaxed) {
            let same = file.metadata().is_ok_and(|now| now.len() == *length && now.modified().ok() == *modified);
            changed.store(!same, Relaxed);
        }
        changed.load(Relaxed)
    }
}

/// The length, `None` for an empty file.
fn length_to_map(metadata: &Metadata) -> std::io::Result<Option<usize>> {
    let length = usize::try_from(metadata.len()).map_err(|_| Error::from(ErrorKind::FileTooLarge))?;
    Ok((length > 0).then_some(length))
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.as_deref().unwrap_or_default()
    }
}
