//! Writes a tiny model of every kind into a directory, for tests with clients of other languages: `tiny_models DIR`.

#![allow(clippy::unwrap_used, reason = "a tool for tests")]

#[path = "../tests/common/mod.rs"]
mod common;

fn main() {
    let directory = std::path::PathBuf::from(std::env::args().nth(1).expect("a directory"));
    common::NAMES.iter().for_each(|name| common::write_model(&directory, name, 48));
}
