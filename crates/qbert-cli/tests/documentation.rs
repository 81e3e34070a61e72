//! What no compiler checks about the documentation: links lead somewhere, files that are named exist, and every page and
//! result is in its index. Links to other sites are not followed.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All files below a directory whose names end with `ending`, by their paths from the root.
fn files(below: &str, ending: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut directories = vec![PathBuf::from(below)];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(root().join(&directory)).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let path = directory.join(&name);
            if entry.file_type().unwrap().is_dir() {
                directories.push(path);
            } else if name.ends_with(ending) {
                found.push(path.to_str().unwrap().replace('\\', "/"));
            }
        }
    }
    found.sort();
    found
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn pages() -> Vec<String> {
    let mut pages = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(str::to_owned).to_vec();
    pages.extend(["docs", "examples", "reference", "results", "crates"].iter().flat_map(|below| files(below, ".md")));
    pages
}

/// The text without its blocks of code, whose brackets are not links.
fn prose(text: &str) -> String {
    let mut inside = false;
    let lines = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        inside ^= fence;
        !inside && !fence
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// What stands between each `start` and the next `end`.
fn between<'a>(text: &'a str, start: &'a str, end: char) -> impl Iterator<Item = &'a str> {
    text.split(start).skip(1).filter_map(move |rest| rest.split_once(end)).map(|(inner, _)| inner)
}

/// The anchor that GitHub gives a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn has_anchor(page: &Path, wanted: &str) -> bool {
    let text = prose(&std::fs::read_to_string(page).unwrap());
    text.lines().filter(|line| line.starts_with('#')).any(|line| anchor(line.trim_start_matches('#')) == wanted)
}

#[test]
fn relative_links_lead_somewhere() {
    let mut broken = Vec::new();
    for page in pages() {
        let text = prose(&read(&page));
        for link in between(&text, "](", ')').filter(|link| !link.contains("://")) {
            let (target, wanted) = link.split_once('#').unwrap_or((link, ""));
            let here = root().join(&page);
            let file = if target.is_empty() { here } else { here.parent().unwrap().join(target) };
            if !file.exists() || (!wanted.is_empty() && !has_anchor(&file, wanted)) {
                broken.push(format!("{page}: {link}"));
            }
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
}

/// Whether a piece of code in a page is the path of one file of the repository: no pattern, no placeholder in capitals.
fn is_path(code: &str) -> bool {
    let starts = ["crates/", "docs/", "examples/", "reference/", "results/"];
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_./-".contains(c);
    starts.iter().any(|start| code.starts_with(start)) && code.replace("README", "").chars().all(plain)
}

#[test]
fn files_that_pages_name_exist() {
    let mut missing = Vec::new();
    for page in pages() {
        let text = prose(&read(&page));
        for line in text.lines() {
            let codes = line.split('`').skip(1).step_by(2);
            // `file.rs::name` is a test in a file.
            let paths =
                codes.map(|code| code.split_once("::").map_or(code, |(path, _)| path)).filter(|code| is_path(code));
            missing.extend(paths.filter(|path| !root().join(path).exists()).map(|path| format!("{page}: {path}")));
        }
    }
    assert!(missing.is_empty(), "files that do not exist:\n{}", missing.join("\n"));
}

/// Help texts, messages and comments send readers to pages.
#[test]
fn pages_that_sources_name_exist() {
    let mut missing = Vec::new();
    for source in files("crates", ".rs").into_iter().filter(|source| source.contains("/src/")) {
        let text = read(&source);
        for rest in text.split("docs/").skip(1) {
            let name: String = rest.chars().take_while(|c| c.is_ascii_alphanumeric() || "_./-".contains(*c)).collect();
            let page = format!("docs/{}", name.trim_end_matches('.'));
            if page.ends_with(".md") && !root().join(&page).exists() {
                missing.push(format!("{source}: {page}"));
            }
        }
    }
    assert!(missing.is_empty(), "pages that do not exist:\n{}", missing.join("\n"));
}

#[test]
fn every_page_is_in_the_index() {
    let index = read("docs/README.md");
    for page in files("docs", ".md").iter().filter(|page| *page != "docs/README.md") {
        let link = page.strip_prefix("docs/").unwrap();
        assert!(index.contains(&format!("]({link})")), "docs/README.md does not list {page}");
    }
}

#[test]
fn every_result_is_in_the_index() {
    let index = read("results/README.md");
    for entry in std::fs::read_dir(root().join("results")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let task = ["sst2", "mnli", "conll03", "squad"].into_iter().find(|task| name.contains(task));
        let mut names = vec![name.clone()];
        names.extend(task.map(|task| name.replace(task, "TASK")));
        names.extend(task.map(|task| format!("{}TASK.ROW.json", name.split(task).next().unwrap())));
        let listed =
            names.iter().any(|name| index.contains(&format!("`{name}`")) || index.contains(&format!("`{name}/")));
        assert!(listed || name == "README.md", "results/README.md does not list {name}");
    }
}
