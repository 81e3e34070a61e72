//! What a run prints before it starts and when it is done.

use std::fmt::Write as _;

use qbert_pipeline::run::{Finished, Job};
use qbert_tasks::{InputShape, Output};

use super::Said;
use super::quickstart::Hit;
use crate::stop::quoted;
use crate::table::beside_f32;

/// What the run is about to do.
pub(super) fn beginning(job: &Job, threads: usize, quick: bool) -> String {
    let files: Vec<String> = job.data.files.iter().map(|path| path.display().to_string()).collect();
    let mut text = format!(
        "{}: {} for {} on {}, judged by {}; {threads} {}",
        job.out.display(),
        job.model,
        job.data.task,
        files.join(", "),
        job.dev.display(),
        if threads == 1 { "thread" } else { "threads" }
    );
    for line in &job.notes {
        let _ = write!(text, "\n{line}");
    }
    if quick {
        text += "\nIt takes some minutes on two cores. Ctrl-C is safe: the same command continues.";
    }
    text
}

/// The results, and what to do with them.
pub(super) fn end(finished: &Finished, job: &Job, said: &[Said], hits: &[Hit]) -> String {
    let summary = &finished.summary;
    let mut text = finished.search.as_ref().map(crate::plan::search_text).unwrap_or_default();
    let _ = writeln!(text, "{}", finished.packed.display());
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "  {name:<10}  {value}");
    };
    line("method", summary.method.clone());
    line("bits", summary.bits.clone());
    if let Some(value) = summary.trained.or(summary.post_training) {
        let full = summary.full_precision.unwrap_or(f64::NAN);
        let drop = value - full;
        let untrained = summary.trained.and(summary.post_training);
        let untrained = untrained.map(|value| format!("; quantized without training {value:.2}")).unwrap_or_default();
        line(&summary.metric, format!("{value:.2} ({drop:+.2}; full precision {full:.2}{untrained})"));
    }
    if let Some(size) = summary.file_size {
        line("size", beside_f32(size.quantized as u64, size.full as u64));
    }
    if let Some(speed) = &summary.speed {
        let full = speed.full.map(|full| format!(", {:.1} times f32 ({full:.0})", speed.quantized / full));
        let full = full.unwrap_or_default();
        line("speed", format!("{:.0} {}{full}; {}", speed.quantized, speed.unit, speed.setting));
    }
    line("report", finished.report.display().to_string());
    line("card", finished.card.display().to_string());
    if !said.is_empty() {
        text += "\npredictions of the packed model\n";
        for Said { text: sentence, answer } in said {
            let _ = writeln!(text, "  {:<8}  {:>5.1} %  {sentence}", answer.label, 100.0 * answer.probability);
        }
    }
    if !hits.is_empty() {
        text += "\na search among the snippets with the packed model\n";
        let mut query = "";
        for hit in hits {
            if hit.query != query {
                query = hit.query;
                let _ = writeln!(text, "  {query}");
            }
            let _ = writeln!(text, "    {:.2}  {}", hit.similarity, hit.text);
        }
    }
    text + &next(finished, job)
}

fn next(finished: &Finished, job: &Job) -> String {
    // To be pasted into a shell, whatever the path holds.
    let packed = quoted(&finished.packed.to_string_lossy());
    let profile = job.data.task.kind().profile();
    let predict = match profile.input {
        InputShape::Text if profile.output == Output::Vector => format!("qbert embed {packed} \"your text\""),
        InputShape::Text => format!("qbert predict {packed} \"your text\""),
        InputShape::Pair => format!("qbert predict {packed} \"one text\" --text2 \"another\""),
        InputShape::Question => {
            format!("qbert predict {packed} \"your question?\" --context \"a text with the answer\"")
        }
    };
    format!(
        "\nnext\n  {predict}\n  open {} in a browser\n  edit {} and give the same command again: it quantizes by your plan\n",
        finished.report.display(),
        finished.plan.display()
    )
}
