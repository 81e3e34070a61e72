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

/// The first byte chooses a file, or a whole report; the rest is its text.
pub fn run(data: &[u8]) {
    let Some((&choice, text)) = data.split_first() else { return };
    let Some(name) = NAMES.get(usize::from(choice) % (NAMES.len() + 1)) else {
        if let Ok(report) = read::report(&String::from_utf8_lossy(text), "report.json") {
            let rendered = report.render();
            assert!(!rendered.html.contains("<script>alert"), "text of the data reached the page as it is");
        }
        return;
    };
    let directory = crate::directory("report");
    let path = directory.join(name);
    crate::write(&path, text);
    if let Ok(report) = read::directory(&directory) {
        drop(report.render());
    }
    let _ = std::fs::remove_file(path);
}
