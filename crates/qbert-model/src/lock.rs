//! A directory for one job at a time: two jobs that write into the same directory would undo each other's work.
//!
//! The system's lock on the directory itself, which ends with the process, so that nothing is left behind after a
//! `kill -9`. Not needed for a single file: it is written whole or not at all, under a temporary name of its own.

use std::fs::{File, TryLockError};
use std::path::Path;

use crate::error::{Error, Result};

/// Holds a directory as long as it lives.
#[derive(Debug)]
pub struct DirectoryLock {
    /// `None` where the system or the file system has no locks on directories.
    _held: Option<File>,
}

impl DirectoryLock {
    /// Takes the directory for this job alone.
    ///
    /// # Errors
    /// [`Error::Locked`] if another job has it.
    pub fn exclusive(directory: &Path) -> Result<Self> {
        Self::take(directory, File::try_lock)
    }

    /// Takes the directory together with jobs that write other files into it.
    ///
    /// # Errors
    /// [`Error::Locked`] if another job has it for itself.
    pub fn shared(directory: &Path) -> Result<Self> {
        Self::take(directory, File::try_lock_shared)
    }

    fn take(directory: &Path, lock: fn(&File) -> std::result::Result<(), TryLockError>) -> Result<Self> {
        let Ok(opened) = File::open(directory) else { return Ok(Self { _held: None }) };
        match lock(&opened) {
            Ok(()) => Ok(Self { _held: Some(opened) }),
            Err(TryLockError::WouldBlock) => {
                Err(Error::Locked { path: directory.to_owned(), holder: holder_of(&opened) })
            }
            Err(TryLockError::Error(_)) => Ok(Self { _held: None }),
        }
    }
}

/// The process that has locked a file, if the system tells.
#[cfg(target_os = "linux")]
fn holder_of(file: &File) -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    let inode = file.metadata().ok()?.ino().to_string();
    // Lines such as `1: FLOCK  ADVISORY  WRITE 4711 08:02:1310722 0 EOF`.
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let holder = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, process, place, ..] = words[..] else { return None };
        process.parse().ok().filter(|&process| process > 0 && place.rsplit(':').next() == Some(&inode))
    };
    locks.lines().find_map(holder)
}

#[cfg(not(target_os = "linux"))]
fn holder_of(_: &File) -> Option<u32> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_taken_by_one_job_or_shared_by_several() {
        let home = tempfile::tempdir().unwrap();
        let alone = DirectoryLock::exclusive(home.path()).unwrap();
        for refused in [DirectoryLock::exclusive(home.path()), DirectoryLock::shared(home.path())] {
            let refused = refused.unwrap_err();
            assert!(refused.to_string().contains("is at work in this directory"), "{refused}");
            assert!(refused.hint().is_some());
            if cfg!(target_os = "linux") && std::path::Path::new("/proc/locks").exists() {
                let own = format!("process {}", std::process::id());
                assert!(refused.to_string().contains(&own), "{refused}");
            }
        }
        drop(alone);
        let together = [DirectoryLock::shared(home.path()).unwrap(), DirectoryLock::shared(home.path()).unwrap()];
        assert!(DirectoryLock::exclusive(home.path()).is_err());
        drop(together);
        DirectoryLock::exclusive(home.path()).unwrap();
    }
}
