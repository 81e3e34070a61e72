//! Renders the results page from the result files; no number in it is typed by hand.
//!
//! The page has the paper's headline, every comparison with its standard error and a verdict, what the data can show,
//! the paper's figures, and for each task the paper's tables with our columns next to the paper's. Figures are files next
//! to the page. A short version can go into a README.

mod agreement;
mod beyond;
mod collect;
mod compare;
mod figures;
mod headline;
mod limits;
mod markdown;
mod readme;
mod tables;
mod why;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use qbert_tasks::Task;

use self::collect::{Collected, Variant};
use super::result::io;
use qbert_pipeline::Result;

/// The introduction; the command that makes the page goes between the two parts.
const INTRODUCTION: [&str; 2] = [
    "\
# The paper's tables, measured here

This page is rendered by

```text
",
    "
```

Do not edit it by hand. The paper's numbers are for BERT-base, ours for another model with its own budget, so compare the *drop*
from each one's own full precision. The commands name checkpoints and directories; `results/README.md` says what the names stand for.

- **min/max**: a group's range goes from its smallest to its largest weight. This is our reading of the paper.
- **optimal**: the range with the least squared error.
- **compensated**: weights are rounded so that they compensate for each other's errors. The paper does not do this.
- **distilled**: the model also learns from the full-precision model. The paper does not do this.
- **not trained**: quantized and calibrated only.
- **not run**: there is no result.

Scores after training are those of the last epoch. In tables of scores, ± is the standard deviation over n seeds.
",
];

/// Everything rendered from a directory of results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The page, in Markdown.
    pub page: String,
    /// SVG files by their names in the directory `figures` beside the page.
    pub figures: Vec<(String, String)>,
    block: readme::Block,
}

impl Rendered {
    /// The text of a README with a short version of the results between its markers `<!-- results -->` and
    /// `<!-- /results -->`. `file` and `page` are the paths of README and page; links are relative to them.
    ///
    /// # Errors
    /// The markers are missing.
    pub fn readme(&self, text: &str, file: &Path, page: &Path) -> Result<String> {
        self.block.put_into(text, file, page)
    }

    /// Where the figures of a page are written, in their order.
    pub fn figure_paths(&self, page: &Path) -> impl Iterator<Item = PathBuf> {
        let directory = page.with_file_name(figures::DIRECTORY);
        self.figures.iter().map(move |(name, _)| directory.join(name))
    }

    /// Writes the figures, the page, and the results in a README, if one is given; each file atomically, and
    /// nothing if the README has no markers.
    ///
    /// # Errors
    /// A README without markers, or files that cannot be read or written.
    pub fn write(&self, page: &Path, readme: Option<&Path>) -> Result<()> {
        let replace = |file| -> Result<(&Path, String)> {
            let text = std::fs::read_to_string(file).map_err(io(file, "read"))?;
            Ok((file, self.readme(&text, file, page)?))
        };
        let replaced = readme.map(replace).transpose()?;
        let write = |path: &Path, text: &str| -> Result<()> {
            Ok(qbert_model::atomic::write_file(path, |writer| writer.write_all(text.as_bytes()))?)
        };
        for (path, (_, svg)) in self.figure_paths(page).zip(&self.figures) {
            write(&path, svg)?;
        }
        write(page, &self.page)?;
        replaced.map_or(Ok(()), |(file, text)| write(file, &text))
    }
}

/// Renders page and figures from a directory of results and the files next to it: `sensitivity-TASK.json`,
/// `weight-errors-TASK.json`, `landscape-TASK.json`, `attention-kl-TASK.json`, and `speed/minilm-l6.*.json` for a README.
///
/// `command` is the command that makes the page; the page prints it.
///
/// # Errors
/// No results, results that cannot be read, or results of different models in one task.
pub fn render(directory: &Path, command: &str) -> Result<Rendered> {
    let all = Collected::read(directory)?;
    let beside = directory.parent().unwrap_or(directory);
    let variants = shown(&all);
    let (paper, mut drawn) = figures::paper(beside, &all)?;
    let mut text = INTRODUCTION.join(command);
    let _ = write!(text, "\n## The headline\n\n{}", headline::headline(&all)?);
    let _ = write!(text, "\n## What agrees with the paper and what does not\n\n{}", agreement::agreement(&all)?);
    let _ = write!(text, "\n## Beyond the paper: ranges, compensation, distillation\n\n{}", beyond::beyond(&all)?);
    let _ = write!(text, "\n{}", why::section(beside, &all)?);
    let _ = write!(text, "\n## The data, and what it can show\n\n{}", limits::limits(&all)?);
    let mut accuracy = Vec::new();
    for collected in &all {
        let figure = figures::accuracy(collected, &variants)?;
        let _ = write!(text, "\n{}", tables::section(collected, figure.as_ref())?);
        accuracy.extend(figure);
    }
    let _ = write!(text, "\n{paper}");
    while let Some(place) = text.find("\n\n\n") {
        text.remove(place);
    }
    let block = readme::Block::new(&all, &accuracy, beside)?;
    accuracy.append(&mut drawn);
    let figures = accuracy.into_iter().map(|named| (named.file, named.drawing.svg)).collect();
    Ok(Rendered { page: text.trim_end().to_owned() + "\n", figures, block })
}

/// A task's name in print.
fn task_title(task: Task) -> &'static str {
    match task {
        Task::Sst2 => "SST-2",
        Task::Mnli => "MNLI",
        Task::Conll03 => "CoNLL-03",
        Task::Squad => "SQuAD",
        other => other.name(),
    }
}

/// A metric's name in print.
fn metric_title(metric: &str) -> &str {
    match metric {
        "f1" => "F1",
        "exact_match" => "EM",
        other => other,
    }
}

/// The variants to show: the plain ones, and all others that were run.
fn shown(all: &[Collected]) -> Vec<Variant> {
    let ran = |variant: &Variant| all.iter().any(|collected| collected.has(*variant));
    Variant::all().into_iter().filter(|variant| variant.is_plain() || ran(variant)).collect()
}
