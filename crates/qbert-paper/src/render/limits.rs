//! The data behind the figures, and how small a difference it can show.

use qbert_tasks::Task;

use super::collect::{Collected, binomial};
use super::markdown::MarkdownTable;
use super::task_title;
use crate::paper::Printed;
use qbert_pipeline::Result;

/// What the figures rest on.
pub(super) fn limits(all: &[Collected]) -> Result<String> {
    let header =
        ["task", "full precision", "paper's", "dev examples", "one standard error", "training sequences", "data"];
    let mut table = MarkdownTable::new(header);
    for collected in all {
        let any = collected.any();
        let metric = collected.metric();
        let full = collected.full(metric);
        let paper = Printed::Main.rows()?.first().and_then(|row| row.figure(collected.task, metric));
        let sequences = collected.rows.iter().filter_map(|row| row.training.as_ref()).map(|own| own.sequences).max();
        let first =
            |most: Option<usize>| most.map_or(", the whole set".to_owned(), |_| ", the first ones only".to_owned());
        table.row([
            task_title(collected.task).to_owned(),
            format!("{metric} {full:.2}"),
            paper.map_or("–".to_owned(), |value| format!("{value:.2}")),
            format!("{}{}", any.examples, first(any.settings.max_dev)),
            format!("{:.2} points", binomial(full, any.counted).sqrt()),
            sequences.map_or("–".to_owned(), |count| count.to_string()),
            data(collected.task).to_owned(),
        ]);
    }
    Ok(format!(
        "{table}\nOne standard error is that of the full-precision score, due to the choice of dev examples alone. On a small \
         dev set, differences of this size mean nothing; a conclusion needs several seeds or a larger set. The dev sets were \
         also used to choose the fine-tuned checkpoints. No score here comes from a test set.\n"
    ))
}

/// Where a task's data differs from the paper's.
fn data(task: Task) -> &'static str {
    match task {
        Task::Sst2 => "GLUE's whole training set and dev set",
        Task::Mnli => "a subset of the training set; the matched dev set (the mismatched one is not used)",
        Task::Conll03 => "the whole English training set and eng.testa",
        Task::Squad => "a subset of the training set, extra paragraphs and SQuADShifts; the dev set of v1.1",
        Task::Classify
        | Task::Pair
        | Task::Multilabel
        | Task::Score
        | Task::ScorePair
        | Task::Embed
        | Task::Ner
        | Task::Qa => "the user's own",
    }
}
