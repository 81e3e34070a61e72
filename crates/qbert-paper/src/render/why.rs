//! Explains the drops: how far each plan moves the weights, compared with what is lost.
//!
//! The errors of `weight-errors-TASK.json` were measured without any training, so they are independent of the drops.
//! A conclusion is printed only if the numbers of every task support it.

use std::fmt::Write as _;
use std::path::Path;

use qbert_quant::rank_correlation;
use qbert_report::significant;
use serde_json::Value;

use super::beyond::printed_order;
use super::collect::{Collected, Variant};
use super::figures::json;
use super::markdown::MarkdownTable;
use super::task_title;
use crate::rows::Ranges;
use crate::weight_error::{WeightError, WeightErrors};
use qbert_pipeline::{Error, ErrorKind, Result};

/// A correlation of at least this much counts as one.
const CLEAR: f64 = 0.7;

/// A change of at most this many points counts as no change.
const UNCHANGED: f64 = 0.5;

/// Significant digits of an error.
const DIGITS: usize = 3;

const INTRODUCTION: &str = "\
The relative squared error of the encoder's weights, `‖W − Q(W)‖² / ‖W‖²`, is measured before training. 0 means no change;
above 1, the quantized weights are further from the original ones than zeros would be.
";

/// A task with both its rows and its errors.
struct Explained<'a> {
    collected: &'a Collected,
    errors: WeightErrors,
}

/// The section; empty where no errors were measured.
pub(super) fn section(beside: &Path, all: &[Collected]) -> Result<String> {
    let mut tasks = Vec::new();
    for collected in all {
        let path = beside.join(format!("weight-errors-{}.json", collected.task));
        if path.exists() {
            let errors = WeightErrors::read(&path)?;
            if errors.model.sha256 != collected.any().settings.model.sha256 || errors.task != collected.task {
                let message = format!("{}: belongs to another model or task than the rows", path.display());
                let hint =
                    "create it again for the rows' model with `qbert-paper reproduce … --weight-errors`".to_owned();
                return Err(Error::new(ErrorKind::BadInput, message, hint));
            }
            tasks.push(Explained { collected, errors });
        }
    }
    if tasks.is_empty() {
        return Ok(String::new());
    }
    let mut text = format!("## Why: what quantization does to the weights\n\n{INTRODUCTION}\n");
    let bullets = [
        follows(&tasks),
        groups(&tasks),
        worse_than_nothing(&tasks),
        reversed(&tasks),
        embeddings(&tasks),
        training_itself(&tasks),
    ];
    bullets.iter().flatten().for_each(|bullet| {
        let _ = writeln!(text, "- {bullet}");
    });
    text += &by_matrix(beside)?;
    for task in &tasks {
        let title = task_title(task.collected.task);
        let _ = write!(
            text,
            "\n### {title}: errors and drops\n\n{}\n{}\nThe errors are from `results/weight-errors-{}.json`, made by\n\n\
             ```text\n{}\n```\n",
            task.table()?,
            task.matrices(),
            task.collected.task,
            task.errors.command
        );
    }
    Ok(text)
}

impl Explained<'_> {
    fn title(&self) -> &'static str {
        task_title(self.collected.task)
    }

    fn encoder(&self, name: &str, ranges: Ranges) -> Option<f64> {
        self.errors.get(name, ranges).map(|found| found.encoder)
    }

    fn drop(&self, name: &str, variant: Variant) -> Option<f64> {
        self.collected.loss(name, variant).map(|(lost, _)| lost)
    }

    /// Errors of the plans that differ in the encoder, not only in the embedding.
    fn of_encoder(&self) -> impl Iterator<Item = &WeightError> {
        self.errors.rows.iter().filter(|found| !found.name.contains("embedding"))
    }

    /// Plans that differ in the encoder, in the paper's order.
    fn plans(&self) -> Result<Vec<&str>> {
        let order = printed_order()?;
        let mut names: Vec<&str> = Vec::new();
        for found in self.of_encoder() {
            if !names.contains(&found.name.as_str()) {
                names.push(&found.name);
            }
        }
        names.sort_by_key(|name| order.iter().position(|known| known == name).unwrap_or(order.len()));
        Ok(names)
    }

    fn table(&self) -> Result<MarkdownTable> {
        let mut header = vec!["row".to_owned()];
        for ranges in ["min/max", "optimal"] {
            header.extend(["error", "drop, not trained", "drop, trained"].map(|what| format!("{ranges}: {what}")));
        }
        let mut table = MarkdownTable::new(header);
        for name in self.plans()? {
            let mut cells = vec![format!("`{name}`")];
            for ranges in Ranges::ALL {
                let error = self.encoder(name, ranges);
                cells.push(error.map_or("–".to_owned(), |error| significant(error, DIGITS)));
                for variant in [Variant::untrained(ranges), Variant::trained(ranges)] {
                    let lost = self.drop(name, variant);
                    cells.push(lost.map_or("not run".to_owned(), |lost| format!("{lost:.2}")));
                }
            }
            table.row(cells);
        }
        Ok(table)
    }

    /// Where the error is, at 4 bits in 128 groups.
    fn matrices(&self) -> MarkdownTable {
        let mut table = MarkdownTable::new([
            "4 bits, 128 groups",
            "largest weight, in standard deviations",
            "error, min/max",
            "error, optimal",
        ]);
        for (matrix, largest) in &self.errors.largest_weights {
            let error = |ranges| {
                let found = self.errors.get("qbert-4", ranges).and_then(|found| found.matrices.get(matrix));
                found.map_or("–".to_owned(), |&error| significant(error, DIGITS))
            };
            table.row([matrix.clone(), format!("{largest:.1}"), error(Ranges::MinMax), error(Ranges::Optimal)]);
        }
        table
    }

    /// Rank correlation of error and drop over the plans with both kinds of ranges, and how many there are.
    fn correlation(&self, variant: fn(Ranges) -> Variant) -> Option<(f64, usize)> {
        let pairs: Vec<(f64, f64)> = self
            .of_encoder()
            .filter_map(|found| Some((found.encoder, self.drop(&found.name, variant(found.ranges))?)))
            .collect();
        let (errors, drops): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
        // With a handful of rows a correlation says nothing.
        let known = rank_correlation(&errors, &drops).filter(|_| pairs.len() >= 6)?;
        Some((known, pairs.len()))
    }
}

/// The matrices that min/max ranges harm, from `ranges-by-matrix.json`; empty without the file.
fn by_matrix(beside: &Path) -> Result<String> {
    let path = beside.join("ranges-by-matrix.json");
    if !path.exists() {
        return Ok(String::new());
    }
    let (_, value) = json(&path)?;
    let results: Vec<&Value> = value["results"].as_array().into_iter().flatten().collect();
    let title = |result: &Value| {
        let name = result["task"].as_str().unwrap_or_default();
        name.parse().map_or(name.to_owned(), |task| task_title(task).to_owned())
    };
    let places = results.first().and_then(|result| result["cases"].as_array()).into_iter().flatten();
    let mut table =
        MarkdownTable::new(std::iter::once("min/max ranges in".to_owned()).chain(results.iter().map(|one| title(one))));
    let figure = |value: &Value| value.as_f64().map_or("–".to_owned(), |value| format!("{value:.2}"));
    let full = results.iter().map(|result| figure(&result["full_precision"]));
    table.row(std::iter::once("(full precision)".to_owned()).chain(full));
    for place in places.map(|case| &case["min_max"]) {
        let of_task = |result: &&Value| {
            let case = result["cases"].as_array().into_iter().flatten().find(|case| case["min_max"] == *place);
            case.map_or("–".to_owned(), |case| figure(&case["value"]))
        };
        let name = place.as_str().unwrap_or_default().to_owned();
        table.row(std::iter::once(name).chain(results.iter().map(of_task)));
    }
    Ok(format!(
        "\n### Where min/max ranges do harm\n\nQuantized to {} bits in 128 groups and calibrated, not trained: min/max ranges in \
         some matrices, optimal ranges in all others.\n\n{table}\nMade from `results/ranges-by-matrix.json`, which is made \
         by\n\n```text\n{}\n```\n",
        value["bits"],
        value["command"].as_str().unwrap_or_default()
    ))
}

/// Whether the drops follow the errors.
fn follows(tasks: &[Explained<'_>]) -> Option<String> {
    let of_all = |variant: fn(Ranges) -> Variant| {
        let known = tasks.iter().filter_map(|task| Some((task.title(), task.correlation(variant)?)));
        let known: Vec<(&str, (f64, usize))> = known.collect();
        let clear = known.iter().all(|(_, (value, _))| *value >= CLEAR);
        let text = known.iter().map(|(title, (value, plans))| format!("{title} {value:.2} over {plans} plans"));
        (!known.is_empty()).then(|| (clear, text.collect::<Vec<_>>().join(", ")))
    };
    let sentence = |when: &str, found: Option<(bool, String)>| {
        let (clear, text) = found?;
        let verb = if clear { "follows" } else { "does not follow" };
        let end = if clear { "" } else { " everywhere" };
        Some(format!("{when} the drop {verb} the error of the weights{end}: rank correlation {text}."))
    };
    let all = [sentence("After training", of_all(Variant::trained)), sentence("Before it", of_all(Variant::untrained))];
    let all: Vec<String> = all.into_iter().flatten().collect();
    (!all.is_empty()).then(|| format!("**Errors and drops.** {}", all.join(" ")))
}

/// How many times smaller 128 groups make the error than one.
fn groups(tasks: &[Explained<'_>]) -> Option<String> {
    let (mut parts, mut explained) = (Vec::new(), true);
    for task in tasks {
        let gain = |bits: u8, ranges| {
            let one = task.encoder(&format!("directq-{bits}"), ranges)?;
            Some(one / task.encoder(&format!("qbert-{bits}"), ranges)?)
        };
        let gains = |ranges| [4, 3, 2].into_iter().map(|bits| gain(bits, ranges)).collect::<Option<Vec<f64>>>();
        let (Some(min_max), Some(optimal)) = (gains(Ranges::MinMax), gains(Ranges::Optimal)) else {
            explained = false;
            continue;
        };
        // What is gained beyond a factor of 1 must be mostly gone.
        explained &= min_max.iter().zip(&optimal).all(|(one, other)| other - 1.0 <= (one - 1.0) / 2.0);
        let text = |gains: &[f64]| gains.iter().map(|gain| significant(*gain, DIGITS)).collect::<Vec<_>>().join(", ");
        parts.push(format!(
            "{} {} with min/max and {} with optimal ranges",
            task.title(),
            text(&min_max),
            text(&optimal)
        ));
    }
    let conclusion = if explained {
        " Groups keep a few large weights from widening the range of all others. Optimal ranges already do that, so most of \
         the paper's gain from groups is a gain over min/max ranges."
    } else {
        ""
    };
    (!parts.is_empty()).then(|| {
        format!(
            "**Groups.** 128 groups instead of one reduce the error at 4, 3 and 2 bits by a factor of: {}.{conclusion}",
            parts.join("; ")
        )
    })
}

/// Plans whose quantized weights are worse than zeros.
fn worse_than_nothing(tasks: &[Explained<'_>]) -> Option<String> {
    let mut parts = Vec::new();
    for task in tasks {
        let above = |ranges: Ranges| {
            let rows = task.of_encoder().filter(|found| found.ranges == ranges && found.encoder > 1.0);
            let names: Vec<String> =
                rows.map(|found| format!("`{}` {}", found.name, significant(found.encoder, DIGITS))).collect();
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        };
        parts.push(format!(
            "{} with min/max ranges {}; with optimal ranges {}",
            task.title(),
            above(Ranges::MinMax),
            above(Ranges::Optimal)
        ));
    }
    (!parts.is_empty()).then(|| {
        format!(
            "**Worse than zeros.** Plans with an error above 1, where training has to start over: {}.",
            parts.join(". ")
        )
    })
}

/// What sensitivity is for.
fn reversed(tasks: &[Explained<'_>]) -> Option<String> {
    let mut parts = Vec::new();
    for task in tasks {
        let cost = |name: &str, ranges| task.errors.get(name, ranges).and_then(|found| found.cost);
        let ratio = |ranges| Some(cost("qbert-mp-2-3-rev", ranges)? / cost("qbert-mp-2-3", ranges)?);
        if let (Some(min_max), Some(optimal)) = (ratio(Ranges::MinMax), ratio(Ranges::Optimal)) {
            parts.push(format!("{} {min_max:.1} with min/max and {optimal:.1} with optimal ranges", task.title()));
        }
    }
    (!parts.is_empty()).then(|| {
        format!(
            "**Mixed precision.** The error of 2/3 MP-rev divided by that of 2/3 MP at the same size, weighted by the \
             sensitivity Ω of each layer: {}.",
            parts.join("; ")
        )
    })
}

/// Table 3 (a).
fn embeddings(tasks: &[Explained<'_>]) -> Option<String> {
    let mut parts = Vec::new();
    for task in tasks {
        let found = |ranges| task.errors.get("qbert-8-embedding-4-4-layerwise", ranges);
        if let (Some(min_max), Some(optimal)) = (found(Ranges::MinMax), found(Ranges::Optimal)) {
            parts.push(format!(
                "{} word {} and position {} with min/max, {} and {} with optimal ranges",
                task.title(),
                significant(min_max.word, DIGITS),
                significant(min_max.position, DIGITS),
                significant(optimal.word, DIGITS),
                significant(optimal.position, DIGITS)
            ));
        }
    }
    let text = "**Embeddings.** 4 bits in one group leave an error of:";
    (!parts.is_empty()).then(|| format!("{text} {}.", parts.join("; ")))
}

/// What training alone changes: plans whose quantization changes nothing.
fn training_itself(tasks: &[Explained<'_>]) -> Option<String> {
    let mut parts = Vec::new();
    for task in tasks {
        for (ranges, name) in [(Ranges::MinMax, "min/max"), (Ranges::Optimal, "optimal")] {
            let drop = |variant| task.drop("qbert-8", variant);
            if let (Some(before), Some(after)) = (drop(Variant::untrained(ranges)), drop(Variant::trained(ranges)))
                && before.abs() < UNCHANGED
            {
                parts
                    .push(format!("{}, {name} ranges, {before:.2} before and {after:.2} after training", task.title()));
            }
        }
    }
    (!parts.is_empty()).then(|| {
        format!(
            "**Training itself.** At 8 bits, quantization alone loses almost nothing, so any change comes from training on the \
             labels, which rows of every other width had too. Points below full precision: {}.",
            parts.join("; ")
        )
    })
}
