//! The model card: `README.md` in the form of the Hugging Face hub, with its metadata on top.

use std::fmt::Write as _;

use qbert_documents::Summary;
use qbert_tasks::{InputShape, Output, Profile};

use super::Job;
use super::context::Context;
use super::summary::{Results, is_quantized};
use crate::packing::FILE_NAME;

/// The hub id of the original model, if it is known.
fn base_model(job: &Job) -> Option<&str> {
    if job.model == "minilm" {
        return Some("sentence-transformers/all-MiniLM-L6-v2");
    }
    let is_id = job.model.split('/').count() == 2 && !std::path::Path::new(&job.model).exists();
    is_id.then(|| job.model.split('@').next().unwrap_or(&job.model))
}

/// Text quoted for YAML.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The card.
pub(super) fn text(context: &Context<'_>, results: &Results) -> String {
    let job = context.job;
    let summary = &results.summary;
    let name = format!("{} quantized for {}", job.model, job.data.task);
    let terms = context.terms();
    let relation = if context.finetunes() { "finetune" } else { "quantized" };
    let mut text = front_matter(job, summary, relation) + &terms.lines() + &results_of(job, summary, &name);
    let _ = writeln!(text, "\n# {name}\n");
    let _ = writeln!(
        text,
        "A BERT for {}, packed into one file (`{FILE_NAME}`) that qbert predicts from on an ordinary CPU: {}. Made by {}.",
        job.data.task.kind().profile().purpose,
        summary.bits,
        summary.method
    );
    text += &figures(summary);
    text += &labels(results);
    text += &usage(job.data.task.kind().profile());
    let _ = writeln!(text, "\n## How it was made\n\n```sh\n{}\n```\n", job.command);
    let _ = writeln!(
        text,
        "`plan.toml` says how many bits each part has, `provenance.json` which data and seeds it came from, `report.html` \
         everything that was measured. The same command gives the same model."
    );
    if terms.license.is_none() {
        text += "\n## Licence\n\nThe licence of the original model and the terms of the training data apply. Add `license:` to the top of \
                 this file before you publish the model.\n";
    }
    if is_quantized(results.packed.plan()) {
        let _ = writeln!(
            text,
            "\n## Limits\n\nThe model knows what the model it was made from and the training data taught it. Its {} was measured \
             on the dev data by which the best epoch was chosen, so other data may give less.",
            summary.metric
        );
    }
    text
}

fn front_matter(job: &Job, summary: &Summary, relation: &str) -> String {
    let mut text = "---\nlibrary_name: qbert\n".to_owned();
    let _ = writeln!(text, "pipeline_tag: {}", job.data.task.kind().profile().hub_task);
    if let Some(base) = base_model(job) {
        let _ = writeln!(text, "base_model: {}\nbase_model_relation: {relation}", quoted(base));
    }
    text += "tags:\n  - bert\n  - quantized\n  - q-bert\n";
    let _ = writeln!(text, "metrics:\n  - {}", summary.metric);
    text
}

/// The end of the front matter: the measured result.
fn results_of(job: &Job, summary: &Summary, name: &str) -> String {
    let mut text = String::new();
    if let Some(value) = summary.trained.or(summary.post_training) {
        let dev = job.dev.file_name().unwrap_or_default().to_string_lossy();
        let _ = writeln!(
            text,
            "model-index:\n  - name: {}\n    results:\n      - task:\n          type: {}\n        dataset:\n          name: {}\n          \
             type: {}\n        metrics:\n          - type: {}\n            value: {value:.2}",
            quoted(name),
            job.data.task.kind().profile().hub_task,
            quoted(&dev),
            job.data.task,
            summary.metric
        );
    }
    text + "---\n"
}

fn figures(summary: &Summary) -> String {
    let mut text = "\n| | full precision | this model |\n|---|---|---|\n".to_owned();
    let number = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.2}"));
    let value = summary.trained.or(summary.post_training);
    let _ = writeln!(text, "| {} on dev | {} | {} |", summary.metric, number(summary.full_precision), number(value));
    if let Some(size) = summary.file_size {
        let megabytes = |bytes: f64| format!("{:.2} MB", bytes / 1e6);
        let _ = writeln!(text, "| size | {} | {} |", megabytes(size.full), megabytes(size.quantized));
    }
    if let Some(speed) = &summary.speed {
        let full = speed.full.map_or("–".to_owned(), |value| format!("{value:.0}"));
        let _ = writeln!(text, "| {} | {full} | {:.0} |", speed.unit, speed.quantized);
        let _ = writeln!(text, "\nSpeed with {}.", speed.setting);
    }
    text
}

fn labels(results: &Results) -> String {
    let labels = results.packed.labels();
    if labels.is_empty() {
        return String::new();
    }
    let labels: Vec<String> = labels.iter().map(|label| format!("`{}`", label.replace('`', "'"))).collect();
    format!("\nLabels: {}.\n", labels.join(", "))
}

fn usage(profile: &Profile) -> String {
    let (text, pair) = ("\"a text\"", "\"a text\" --text2 \"another\"");
    let python_pair = "\"a text\", text_pair=\"another\"";
    let (arguments, call, python) = match (profile.input, profile.output) {
        (InputShape::Text, Output::Sequence) => (text, "session.classify(&[\"a text\"])?", text),
        (InputShape::Text, Output::LabelSet) => (text, "session.label_sets(&[\"a text\"])?", text),
        (InputShape::Text, Output::Vector) => return usage_of_vectors(),
        (InputShape::Text, Output::Value) => (text, "session.score(&[\"a text\"])?", text),
        (InputShape::Pair, Output::Value) => (pair, "session.score_pairs(&[(\"a text\", \"another\")])?", python_pair),
        (InputShape::Pair, _) => (pair, "session.classify_pairs(&[(\"a text\", \"another\")])?", python_pair),
        (InputShape::Text, _) => (text, "session.tag_texts(&[\"a text\"])?", text),
        (InputShape::Question, _) => (
            "\"a question?\" --context \"a text\"",
            "session.answer(&[(\"a question?\", \"a text\")])?",
            "question=\"a question?\", context=\"a text\"",
        ),
    };
    format!(
        "\n## Use\n\n```python\nimport qbert\n\nmodel = qbert.load(\"{FILE_NAME}\")\nmodel({python})\n```\n\n\
         ```sh\nqbert predict {FILE_NAME} {arguments}\n```\n\n```rust\nuse qbert_runtime::{{Session, SessionOptions}};\n\n\
         let session = Session::open(\"{FILE_NAME}\", SessionOptions::default())?;\nlet found = {call};\n```\n"
    )
}

/// A model of vectors answers other verbs.
fn usage_of_vectors() -> String {
    format!(
        "\n## Use\n\n```python\nimport qbert\n\nmodel = qbert.load(\"{FILE_NAME}\")\nmodel.embed([\"a text\", \"another\"])\n```\n\n\
         ```sh\nqbert embed {FILE_NAME} \"a text\" \"another\" --out vectors.npy\n```\n\n```rust\nuse qbert_runtime::{{Session, SessionOptions}};\n\n\
         let session = Session::open(\"{FILE_NAME}\", SessionOptions::default())?;\nlet found = session.embed_as(None, &[\"a text\"])?;\n```\n"
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use qbert_tasks::{DataSource, Task};

    use super::*;

    #[test]
    fn a_card_says_how_the_model_relates_to_its_base() {
        let data = DataSource::new(Task::Sst2, ["train.tsv"]);
        let job = Job::new("org/bert@main", Path::new("bert"), data, Path::new("dev.tsv"), Path::new("run"));
        let summary = Summary { metric: "accuracy".to_owned(), ..Summary::default() };
        for relation in ["finetune", "quantized"] {
            let text = front_matter(&job, &summary, relation);
            assert!(text.contains(&format!("base_model: \"org/bert\"\nbase_model_relation: {relation}\n")), "{text}");
        }
        let local = Job { model: "bert".to_owned(), ..job };
        assert!(!front_matter(&local, &summary, "finetune").contains("base_model"));
    }
}
