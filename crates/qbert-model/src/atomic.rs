//! Atomic writes: a file or directory is replaced completely or not at all.
//!
//! Everything qbert writes goes through here. Content is written beside its target under a hidden temporary name,
//! flushed to disk, and renamed over the target. After a crash, a full disk or a `kill -9`, the old content is still
//! there. A temporary name is unique, and locked while its writer lives: [`remove_leftovers`] removes only what a killed
//! writer left. Symbolic links are followed. Anything that is not a regular file (a pipe, `/dev/stdout`) is written to directly,
//! because renaming would replace it.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// How temporary names begin and end.
const PREFIX: &str = ".qbert-";
const SUFFIX: &str = ".tmp";

/// Writes a file through `fill`. The old content stays until the new content is complete and on disk.
pub fn write_file(path: &Path, fill: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
    write_seekable(path, |file| {
        let mut writer = BufWriter::with_capacity(1 << 20, file);
        fill(&mut writer).and_then(|()| writer.flush()).map_err(Error::io(path, "write"))
    })
}

/// The same for content that takes a file rather than a stream, or fails for reasons of its own.
///
/// # Errors
/// Those of `fill`; a path where no file can be written; a full disk.
pub fn write_seekable<T, E: From<Error>>(
    path: &Path,
    fill: impl FnOnce(&mut File) -> std::result::Result<T, E>,
) -> std::result::Result<T, E> {
    check_file(path)?;
    if is_special(path) {
        let open = File::options().write(true).open(path);
        return fill(&mut open.map_err(Error::io(path, "open"))?);
    }
    let path = &followed(path);
    let parent = parent_of(path);
    std::fs::create_dir_all(&parent).map_err(Error::io(&parent, "create the directory"))?;
    let mut temporary = temporary_file(&parent).map_err(Error::io(path, "create a file beside it"))?;
    let found = fill(temporary.as_file_mut())?;
    temporary.as_file().sync_all().map_err(Error::io(path, "flush to the disk"))?;
    temporary.persist(path).map_err(|error| Error::io(path, "put in place")(error.error))?;
    sync_directory(&parent)?;
    Ok(found)
}

/// Writes a safetensors file. The old one stays until the new one is complete and on disk.
pub fn write_tensors<N: AsRef<str> + Ord + std::fmt::Display, V: safetensors::View>(
    path: &Path,
    tensors: impl IntoIterator<Item = (N, V)>,
    metadata: std::collections::HashMap<String, String>,
) -> Result<()> {
    write_tensors_then(path, tensors, metadata, |_| Ok(()))
}

/// The same. `finish` may change the complete file before it is put in place.
pub(crate) fn write_tensors_then<N: AsRef<str> + Ord + std::fmt::Display, V: safetensors::View>(
    path: &Path,
    tensors: impl IntoIterator<Item = (N, V)>,
    metadata: std::collections::HashMap<String, String>,
    finish: impl FnOnce(&Path) -> std::io::Result<()>,
) -> Result<()> {
    check_file(path)?;
    if is_special(path) {
        let problem = "this is no file, and tensors can be written into a file only".to_owned();
        return Err(Error::Target { path: path.to_owned(), problem });
    }
    let path = &followed(path);
    let parent = parent_of(path);
    std::fs::create_dir_all(&parent).map_err(Error::io(&parent, "create the directory"))?;
    // safetensors creates a temporary file of its own beside its target. In our temporary directory it is cleaned up.
    let (temporary, _held) = temporary_directory(&parent).map_err(Error::io(path, "create a directory beside it"))?;
    let complete = temporary.path().join("tensors");
    safetensors::serialize_to_file(tensors, Some(metadata), &complete).map_err(|error| match error {
        safetensors::SafeTensorError::IoError(source) => Error::io(path, "write")(source),
        other => Error::Damaged { path: path.to_owned(), problem: other.to_string() },
    })?;
    finish(&complete).map_err(Error::io(path, "write"))?;
    let put_in_place = || {
        widen_file_permissions(&complete)?;
        File::open(&complete)?.sync_all()?;
        std::fs::rename(&complete, path)
    };
    put_in_place().map_err(Error::io(path, "put in place"))?;
    sync_directory(&parent)
}

/// Refuses a path where no file can be written. Call it before computing the content.
///
/// # Errors
/// [`Error::Target`] for a directory, and for a path that leads through a file.
pub fn check_file(path: &Path) -> Result<()> {
    let refused = |problem: String| Err(Error::Target { path: path.to_owned(), problem });
    if path.is_dir() {
        return refused("this is a directory, and a file is to be written here".to_owned());
    }
    let nearest = path.ancestors().skip(1).find(|way| !way.as_os_str().is_empty() && way.exists());
    match nearest {
        Some(way) if !way.is_dir() => refused(format!("{} is a file, not a directory", way.display())),
        _ => Ok(()),
    }
}

/// Whether the path is something else than a file or a directory: a pipe, a device.
fn is_special(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// The end of a chain of symbolic links, whether or not a file is there.
fn followed(path: &Path) -> PathBuf {
    /// The limit of Linux.
    const MOST_LINKS: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        let Ok(next) = std::fs::read_link(&path) else { break };
        path = parent_of(&path).join(next);
    }
    path
}

/// Fills a new directory with `fill` and replaces `target` by it in one step.
///
/// An existing directory is replaced only if `may_replace` accepts the name of everything in it, so none of the user's
/// own files are lost.
pub fn write_directory(
    target: &Path,
    may_replace: impl Fn(&str) -> bool,
    fill: impl FnOnce(&Path) -> Result<()>,
) -> Result<()> {
    let parent = parent_of(target);
    std::fs::create_dir_all(&parent).map_err(Error::io(&parent, "create the directory"))?;
    check_replaceable(target, may_replace)?;
    let (temporary, _held) = temporary_directory(&parent).map_err(Error::io(target, "create a directory beside it"))?;
    // Temporary directories are private; the result should be as open as any other directory of the user.
    widen_permissions(temporary.path()).map_err(Error::io(target, "set permissions"))?;
    fill(temporary.path())?;
    for entry in read_directory(temporary.path())? {
        File::open(&entry).and_then(|f| f.sync_all()).map_err(Error::io(target, "flush to the disk"))?;
    }
    sync_directory(temporary.path())?;
    if target.exists() {
        exchange(temporary.path(), target).map_err(Error::io(target, "put in place"))?;
        // The temporary name now refers to the old directory; dropping `temporary` removes it.
    } else {
        std::fs::rename(temporary.path(), target).map_err(Error::io(target, "put in place"))?;
        // The temporary directory was renamed, so there is nothing to remove.
        let _ = temporary.keep();
    }
    sync_directory(&parent)
}

/// Removes the temporary files of writers that were killed. Those of a live writer are locked and stay.
pub fn remove_leftovers(directory: &Path) -> Result<()> {
    for path in read_directory(directory)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with(PREFIX) && name.ends_with(SUFFIX) {
            remove_leftover(&path).or_else(accept_missing).map_err(Error::io(&path, "remove"))?;
        }
    }
    Ok(())
}

fn remove_leftover(path: &Path) -> std::io::Result<()> {
    let is_directory = path.is_dir();
    let held = File::options().read(true).write(!is_directory).open(path)?;
    // Without the lock the writer may be alive, or the file system has no locks: what is left over harms nobody.
    if held.try_lock().is_err() {
        return Ok(());
    }
    if is_directory { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }
}

/// Its writer put it in place meanwhile.
fn accept_missing(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

fn check_replaceable(target: &Path, may_replace: impl Fn(&str) -> bool) -> Result<()> {
    if !target.exists() {
        return Ok(());
    }
    if !target.is_dir() {
        let problem = "this is a file, and a directory is to be written here".to_owned();
        return Err(Error::Target { path: target.to_owned(), problem });
    }
    for entry in read_directory(target)? {
        let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !may_replace(&name) {
            let problem = format!("the directory holds `{name}`, which is not part of a checkpoint and would be lost");
            return Err(Error::Target { path: target.to_owned(), problem });
        }
    }
    Ok(())
}

fn read_directory(directory: &Path) -> Result<Vec<PathBuf>> {
    let list = || std::fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>();
    let mut paths = list().map_err(Error::io(directory, "list the directory"))?;
    paths.sort();
    Ok(paths)
}

/// A new temporary file, locked.
fn temporary_file(parent: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    loop {
        let temporary = file_builder().tempfile_in(parent)?;
        if is_held(temporary.as_file(), temporary.path()) {
            return Ok(temporary);
        }
    }
}

/// A new temporary directory, and its lock.
fn temporary_directory(parent: &Path) -> std::io::Result<(tempfile::TempDir, Option<File>)> {
    loop {
        let temporary = directory_builder().tempdir_in(parent)?;
        // Only Unix can open a directory.
        let Ok(held) = File::open(temporary.path()) else { return Ok((temporary, None)) };
        if is_held(&held, temporary.path()) {
            return Ok((temporary, Some(held)));
        }
    }
}

/// Locks something temporary. False if [`remove_leftovers`] of another process was faster.
fn is_held(file: &File, path: &Path) -> bool {
    !matches!(file.try_lock(), Err(std::fs::TryLockError::WouldBlock)) && path.exists()
}

fn directory_builder() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(PREFIX).suffix(SUFFIX);
    builder
}

fn file_builder() -> tempfile::Builder<'static, 'static> {
    let mut builder = directory_builder();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // The user's umask applies, as for any new file.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    builder
}

/// Gives a file the permissions that a new file of this user would have.
#[cfg(unix)]
fn widen_file_permissions(path: &Path) -> std::io::Result<()> {
    let sample = file_builder().tempfile_in(parent_of(path))?;
    std::fs::set_permissions(path, sample.as_file().metadata()?.permissions())
}

#[cfg(not(unix))]
fn widen_file_permissions(_: &Path) -> std::io::Result<()> {
    Ok(())
}

#[cfg(unix)]
fn widen_permissions(directory: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755))
}

#[cfg(not(unix))]
fn widen_permissions(_: &Path) -> std::io::Result<()> {
    Ok(())
}

fn parent_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Makes a rename durable, on systems that can open a directory for that.
fn sync_directory(directory: &Path) -> Result<()> {
    if cfg!(unix) {
        File::open(directory).and_then(|d| d.sync_all()).map_err(Error::io(directory, "flush to the disk"))?;
    }
    Ok(())
}

/// Swaps two directories, in one step where the system can, so that there is always one in place.
#[cfg(target_os = "linux")]
fn exchange(new: &Path, target: &Path) -> std::io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    match renameat_with(CWD, new, CWD, target, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        // Some file systems cannot swap.
        Err(_) => exchange_in_two_steps(new, target),
    }
}

#[cfg(not(target_os = "linux"))]
fn exchange(new: &Path, target: &Path) -> std::io::Result<()> {
    exchange_in_two_steps(new, target)
}

fn exchange_in_two_steps(new: &Path, target: &Path) -> std::io::Result<()> {
    let old = new.with_extension("old");
    std::fs::rename(target, &old)?;
    if let Err(error) = std::fs::rename(new, target) {
        std::fs::rename(&old, target)?;
        return Err(error);
    }
    std::fs::rename(&old, new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(directory)
            .unwrap()
            .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_failed_write_leaves_the_old_file_and_no_litter() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("file.json");
        write_file(&path, |w| w.write_all(b"old")).unwrap();
        let failed = write_file(&path, |w| {
            w.write_all(&[b'x'; 3_000_000])?;
            Err(std::io::Error::other("disk full"))
        });
        assert!(failed.unwrap_err().to_string().contains("file.json"));
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(contents(home.path()), ["file.json"]);
    }

    #[test]
    fn a_directory_is_replaced_whole_or_kept() {
        let home = tempfile::tempdir().unwrap();
        let target = home.path().join("model");
        let fill = |text: &'static str| {
            move |d: &Path| std::fs::write(d.join("config.json"), text).map_err(Error::io(d, "write"))
        };
        write_directory(&target, |_| true, fill("one")).unwrap();
        write_directory(&target, |n| n == "config.json", fill("two")).unwrap();
        assert_eq!(std::fs::read(target.join("config.json")).unwrap(), b"two");
        let failed = write_directory(
            &target,
            |_| true,
            |d| {
                fill("three")(d)?;
                Err(Error::Target { path: d.to_owned(), problem: "stop".into() })
            },
        );
        assert!(failed.is_err());
        assert_eq!(std::fs::read(target.join("config.json")).unwrap(), b"two");
        std::fs::write(target.join("notes.txt"), "mine").unwrap();
        let refused = write_directory(&target, |n| n == "config.json", fill("four")).unwrap_err();
        assert!(refused.to_string().contains("notes.txt"), "{refused}");
        assert_eq!(contents(home.path()), ["model"]);
    }

    #[test]
    fn leftovers_of_killed_writers_go_and_those_of_live_ones_stay() {
        let home = tempfile::tempdir().unwrap();
        let (file, (directory, lock)) =
            (temporary_file(home.path()).unwrap(), temporary_directory(home.path()).unwrap());
        std::fs::write(home.path().join(".qbert-killed.tmp"), "x").unwrap();
        std::fs::create_dir(home.path().join(".qbert-also.tmp")).unwrap();
        std::fs::write(home.path().join(".qbert-also.tmp/tensors"), "x").unwrap();
        remove_leftovers(home.path()).unwrap();
        assert!(file.path().exists() && directory.path().exists() && contents(home.path()).len() == 2);
        // Writers go on as if nothing had happened.
        let target = home.path().join("target");
        file.persist(&target).unwrap();
        drop((directory.keep(), lock));
        remove_leftovers(home.path()).unwrap();
        assert_eq!(contents(home.path()), ["target"]);
    }

    #[test]
    fn two_step_exchange_swaps() {
        let home = tempfile::tempdir().unwrap();
        let (a, b) = (home.path().join("a"), home.path().join("b"));
        for (directory, text) in [(&a, "a"), (&b, "b")] {
            std::fs::create_dir(directory).unwrap();
            std::fs::write(directory.join("f"), text).unwrap();
        }
        exchange_in_two_steps(&a, &b).unwrap();
        assert_eq!(std::fs::read(a.join("f")).unwrap(), b"b");
        assert_eq!(std::fs::read(b.join("f")).unwrap(), b"a");
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_and_pipes_and_devices_stay_what_they_are() {
        let home = tempfile::tempdir().unwrap();
        let (link, target) = (home.path().join("link"), home.path().join("there/target"));
        std::fs::create_dir(home.path().join("there")).unwrap();
        std::os::unix::fs::symlink("there/target", &link).unwrap();
        for text in ["new", "newer"] {
            write_file(&link, |w| w.write_all(text.as_bytes())).unwrap();
            assert!(link.is_symlink());
            assert_eq!(std::fs::read_to_string(&target).unwrap(), text);
        }
        let pipe = home.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || std::fs::read_to_string(pipe).unwrap()
        });
        write_file(&pipe, |w| w.write_all(b"through")).unwrap();
        assert_eq!(reader.join().unwrap(), "through");
        let tensor = crate::FloatTensor { shape: &[1], values: &[1.0] };
        let refused = write_tensors(&pipe, [("a", tensor)], std::collections::HashMap::new()).unwrap_err();
        assert!(refused.to_string().contains("no file"), "{refused}");
        assert!(is_special(&pipe));
    }

    #[test]
    fn a_directory_is_not_taken_for_a_file() {
        let home = tempfile::tempdir().unwrap();
        let refused = write_file(home.path(), |w| w.write_all(b"x")).unwrap_err();
        assert!(refused.to_string().contains("this is a directory"), "{refused}");
        let file = home.path().join("file");
        std::fs::write(&file, "x").unwrap();
        let refused = check_file(&file.join("deeper/still")).unwrap_err();
        assert!(refused.to_string().contains("is a file, not a directory"), "{refused}");
        check_file(&home.path().join("new/file")).unwrap();
        check_file(Path::new("plain-name")).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn written_files_are_readable_by_others() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("file.json");
        write_file(&path, |w| w.write_all(b"x")).unwrap();
        let weights = home.path().join("model.safetensors");
        let tensor = crate::FloatTensor { shape: &[2], values: &[1.0, 2.0] };
        write_tensors(&weights, [("a", tensor)], std::collections::HashMap::new()).unwrap();
        for path in [path, weights] {
            let mode = std::fs::metadata(&path).unwrap().permissions().mode();
            assert_ne!(mode & 0o777, 0o600, "{} is as open as the umask allows", path.display());
        }
    }
}
