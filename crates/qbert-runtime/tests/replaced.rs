//! What becomes of a session whose file is overwritten, cut short or replaced while it is open.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

#[path = "common/all.rs"]
mod common;

use std::path::{Path, PathBuf};

use common::{ALL_WIDTHS, packed};
use qbert_model::Head;
use qbert_runtime::{Error, ModelError, Session, SessionOptions, Storage};

const TEXTS: [&str; 2] = ["the owl of ostby", "who saw two owls ?"];

fn model(home: &Path) -> PathBuf {
    let path = home.join("model.qbert");
    std::fs::write(&path, packed(Head::SequenceClassification, 48, ALL_WIDTHS[0])).unwrap();
    path
}

fn open(path: &Path, storage: Storage) -> Session {
    Session::open(path, SessionOptions::default().threads(1).storage(storage)).unwrap()
}

fn answers(session: &Session) -> Vec<Vec<u64>> {
    let bits = |found: &qbert_runtime::Classification| found.scores.iter().map(|s| s.probability.to_bits()).collect();
    session.classify(&TEXTS).unwrap().iter().map(bits).collect()
}

/// Writes zeros into the same file, as many as it has bytes: like `cp` of another model over it.
fn overwrite(path: &Path) {
    let zeros = vec![0; std::fs::metadata(path).unwrap().len() as usize];
    // A file system may count time in steps of some milliseconds.
    std::thread::sleep(std::time::Duration::from_millis(50));
    std::fs::write(path, zeros).unwrap();
}

#[test]
fn point_16_a_small_model_is_in_memory_and_survives_everything() {
    for storage in [Storage::Auto, Storage::Memory] {
        let home = tempfile::tempdir().unwrap();
        let path = model(home.path());
        let session = open(&path, storage);
        assert!(session.model().is_in_memory());
        let before = answers(&session);
        overwrite(&path);
        assert_eq!(answers(&session), before, "overwritten");
        std::fs::write(&path, "").unwrap();
        assert_eq!(answers(&session), before, "cut short");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(answers(&session), before, "removed");
        session.model().verify().unwrap();
    }
}

fn assert_changed(error: &Error) {
    let source = match error {
        Error::Item { source, .. } => source,
        other => other,
    };
    assert!(matches!(source, Error::Model(ModelError::Changed { .. })), "{error:?}");
    assert!(error.to_string().contains("model.qbert") && error.hint().unwrap().contains("rename"), "{error}");
}

#[test]
fn point_16_a_mapped_model_that_is_overwritten_gives_errors_instead_of_answers() {
    let home = tempfile::tempdir().unwrap();
    let path = model(home.path());
    let session = open(&path, Storage::Mapped);
    assert!(!session.model().is_in_memory());
    answers(&session);
    overwrite(&path);
    assert_changed(&session.classify(&TEXTS).unwrap_err());
    assert_changed(&session.embed(&TEXTS, qbert_runtime::Pooling::Mean).unwrap_err());
    assert_changed(&session.hidden_states(&TEXTS).unwrap_err());
    for result in session.predict_each(TEXTS) {
        assert_changed(&result.unwrap_err());
    }
}

#[test]
fn point_16_a_mapped_model_that_is_cut_short_gives_errors_instead_of_a_signal() {
    let home = tempfile::tempdir().unwrap();
    let path = model(home.path());
    let session = open(&path, Storage::Mapped);
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(64).unwrap();
    assert_changed(&session.classify(&TEXTS).unwrap_err());
}

#[test]
fn point_16_a_mapped_model_may_be_replaced_by_renaming() {
    let home = tempfile::tempdir().unwrap();
    let path = model(home.path());
    let session = open(&path, Storage::Mapped);
    let before = answers(&session);
    let beside = home.path().join("new.qbert");
    std::fs::write(&beside, "not even a model").unwrap();
    std::fs::rename(&beside, &path).unwrap();
    assert_eq!(answers(&session), before);
    session.model().verify().unwrap();
}

#[test]
fn every_storage_gives_the_same_bits() {
    let home = tempfile::tempdir().unwrap();
    let path = model(home.path());
    let [auto, memory, mapped] = [Storage::Auto, Storage::Memory, Storage::Mapped].map(|s| answers(&open(&path, s)));
    assert_eq!(auto, memory);
    assert_eq!(auto, mapped);
}
