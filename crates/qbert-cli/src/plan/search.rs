//! `qbert plan --max-drop`: plans are measured until the smallest one that keeps the limit is known.

use std::fmt::Write as _;
use std::path::Path;

use qbert_documents::{MeasuredDrop, PlanSearch, TriedPlan};
use qbert_model::lock::DirectoryLock;
use qbert_pipeline::planning::Model;
use qbert_pipeline::planning::search::{FILE, FoundPlan, Rounding, Search, SearchData, Watch, find, tried_in_words};
use qbert_pipeline::{Result, hashes};

use super::Options;
use crate::compute;
use crate::progress::Progress;
use crate::table::{Table, file_size};

pub(super) fn run(options: &Options, model: &Model<'_>, quiet: bool) -> Result<FoundPlan> {
    let request = options.request()?;
    let out = options.out.as_deref().and_then(Path::parent).filter(|folder| !folder.as_os_str().is_empty());
    let out = out.unwrap_or(Path::new("."));
    let source = options.reading.source(&options.train, model.directory)?;
    let data = SearchData::read(model.directory, &source, options.dev.as_deref().unwrap_or(Path::new("")))?;
    let failed = |source| qbert_model::Error::Io { path: out.to_owned(), action: "create the directory", source };
    std::fs::create_dir_all(out).map_err(failed)?;
    let _lock = DirectoryLock::exclusive(out)?;
    let search = Search {
        request: &request,
        model: *model,
        model_hash: hashes::model(model.directory)?,
        data,
        rounding: Rounding::default(),
        full_precision: None,
        memory: out.join(FILE),
    };
    let mut shown = Shown { progress: Progress::new("plan", quiet), counted: String::new() };
    find(&search, &compute(options.threads)?, &mut shown)
}

/// Shows a search on stderr.
struct Shown {
    progress: Progress,
    /// What the bar counts, to restart it when that changes.
    counted: String,
}

impl Watch for Shown {
    fn progress(&mut self, done: usize, total: usize, what: &str) {
        if self.counted != what {
            what.clone_into(&mut self.counted);
            self.progress.restart();
        }
        // The last step is not shown, since the result follows at once.
        if done < total {
            self.progress.at(done, total, what);
        }
    }

    fn tried(&mut self, search: &PlanSearch, plan: &TriedPlan) {
        self.progress.say(&tried_in_words(search, plan));
    }

    fn starts_over(&mut self) {
        self.progress.say("model, data or details of the plan have changed: all plans are measured again");
    }
}

/// Every plan tried, in the order of trying.
pub(crate) fn text(search: &PlanSearch) -> String {
    let has_trained = search.plans.iter().any(|plan| plan.trained.is_some());
    let mut titles = vec!["", "file", "divergence", "expected", "drop", "interval"];
    if has_trained {
        titles.extend(["trained", "interval"]);
    }
    let mut table = Table::with_titles(titles.into_iter().chain([""]).map(str::to_owned));
    let interval = |own: &MeasuredDrop| format!("{:.2} to {:.2}", own.low, own.high);
    for (index, plan) in search.plans.iter().enumerate() {
        let measured = plan.measured.as_ref();
        let trained = plan.trained.as_ref().map(|own| &own.measured);
        let mut row = vec![
            format!("plan {}", index + 1),
            file_size(plan.bytes),
            format!("{:.4}", plan.divergence),
            plan.predicted.map_or("–".to_owned(), |drop| format!("{drop:.2}")),
            measured.map_or("–".to_owned(), |own| format!("{:.2}", own.drop)),
            measured.map_or(String::new(), interval),
        ];
        if has_trained {
            row.push(trained.map_or(String::new(), |own| format!("{:.2}", own.drop)));
            row.push(trained.map_or(String::new(), interval));
        }
        let holds = trained.or(measured).is_some_and(|own| search.judged(own) <= search.max_drop);
        let verdict = if holds { "holds" } else { "misses" };
        row.push(if plan.chosen { format!("{verdict}, chosen") } else { verdict.to_owned() });
        table.push(row);
    }
    let PlanSearch { metric, full_precision, examples, interval, .. } = search;
    let mut text = format!(
        "plans tried; drop in points from {metric} {full_precision:.2} in full precision, on {examples} examples; each end of \
         an interval is {:.1} % sure\n{table}",
        100.0 * interval
    );
    let _ = writeln!(text, "{}\n", search.outcome);
    text
}
