//! The files that a report is made from, as a directory or one at a time.

use qbert_report::read;

const NAMES: [&str; 10] = [
    "summary.json",
    "models.json",
    "sensitivity.json",
    "plan.toml",
    "landscape.json",
    "attention-kl.json",
    "metrics.json",
    "changes.json",
    "provenance.json",
    "train.jsonl",
];

/// The first byte chooses a file, or a whole report; the rest is its text. Whether there is a report.
pub fn run(data: &[u8]) -> bool {
    let Some((&choice, text)) = data.split_first() else { return false };
    let Some(name) = NAMES.get(usize::from(choice) % (NAMES.len() + 1)) else {
        let Ok(report) = read::report(&String::from_utf8_lossy(text), "report.json") else { return false };
        let rendered = report.render();
        assert!(!rendered.html.contains("<script>alert"), "text of the data reached the page as it is");
        return true;
    };
    let directory = crate::directory("report");
    let path = directory.join(name);
    crate::write(&path, text);
    let report = read::directory(&directory);
    let _ = std::fs::remove_file(path);
    report.map(|report| drop(report.render())).is_ok()
}
