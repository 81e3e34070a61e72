//! The rules of the house that no compiler checks: crates depend only on crates above them, and `unsafe` is
//! forbidden everywhere but in `qbert-kernels`.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Every crate there is or will be, in dependency order; ARCHITECTURE.md explains it.
const ORDER: [&str; 15] = [
    "qbert-documents",
    "qbert-quant",
    "qbert-kernels",
    "qbert-hessian",
    "qbert-model",
    "qbert-tasks",
    "qbert-runtime",
    "qbert-server",
    "qbert-train",
    "qbert-report",
    "qbert-pipeline",
    "qbert",
    "qbert-cli",
    "qbert-python",
    "qbert-paper",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn manifest(path: &Path) -> toml::Table {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.parse().unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Each member with the qbert crates it depends on.
fn members() -> BTreeMap<String, Vec<String>> {
    let workspace = manifest(&root().join("Cargo.toml"));
    let names = workspace["workspace"]["members"].as_array().unwrap().iter().map(|m| m.as_str().unwrap().to_owned());
    names
        .map(|folder| {
            let own = manifest(&root().join(&folder).join("Cargo.toml"));
            let name = own["package"]["name"].as_str().unwrap().to_owned();
            assert_eq!(folder, format!("crates/{name}"), "folder name = crate name");
            let tables = ["dependencies", "dev-dependencies", "build-dependencies"];
            let dependencies = tables.iter().filter_map(|t| own.get(*t)?.as_table()).flat_map(|t| t.keys());
            let ours = dependencies.filter(|d| d.starts_with("qbert")).cloned().collect();
            (name, ours)
        })
        .collect()
}

fn place(name: &str) -> usize {
    ORDER.iter().position(|n| *n == name).unwrap_or_else(|| panic!("{name} has no place in the order"))
}

#[test]
fn crates_depend_only_on_crates_above_them() {
    for (name, dependencies) in members() {
        for dependency in dependencies {
            assert!(place(&dependency) < place(&name), "{name} depends on {dependency}, which is not above it");
        }
    }
}

#[test]
fn a_deployed_runtime_never_reaches_training() {
    let members = members();
    let mut reached = vec!["qbert-runtime".to_owned(), "qbert-server".to_owned()];
    let mut next = 0;
    while let Some(name) = reached.get(next).cloned() {
        for dependency in members.get(&name).into_iter().flatten() {
            assert!(!["qbert-train", "qbert-hessian"].contains(&dependency.as_str()), "{name} reaches {dependency}");
            reached.push(dependency.clone());
        }
        next += 1;
    }
}

#[test]
fn unsafe_is_forbidden_outside_the_kernels() {
    let workspace = manifest(&root().join("Cargo.toml"));
    assert_eq!(workspace["workspace"]["lints"]["rust"]["unsafe_code"].as_str(), Some("forbid"));
    for name in members().keys().filter(|name| *name != "qbert-kernels") {
        let own = manifest(&root().join("crates").join(name).join("Cargo.toml"));
        let inherits = own.get("lints").and_then(|l| l.get("workspace")).and_then(toml::Value::as_bool);
        assert_eq!(inherits, Some(true), "{name} does not take the workspace's lints");
    }
}

#[test]
fn the_product_is_one_binary() {
    for name in members().keys() {
        let folder = root().join("crates").join(name);
        let has_binary = folder.join("src/main.rs").exists() || folder.join("src/bin").exists();
        assert_eq!(has_binary, ["qbert-cli", "qbert-paper"].contains(&name.as_str()), "{name}");
    }
}
