//! `docs/results/paper.md` from the result files: no number in it is typed by hand.
//!
//! The page has the paper's headline, every comparison with its standard error and a verdict, what the data can show,
//! the paper's figures, and for each task the paper's tables with our columns beside the paper's. Figures are files beside
//! the page. A README can have the same in a few lines.

mod collect;
mod compare;
mod figures;
mod markdown;
mod readme;
mod tables;
mod why;

use std::fmt::Write as _;
use std::path::Path;

use qbert_tasks::Task;
use qbert_train::qat::method::Method;

use self::collect::{Collected, StandardError, Variant, binomial, name_of};
use self::compare::{CLAIMS, Claim, Difference, ERRORS, LOST, Verdict, difference};
use self::markdown::Table;
use super::paper::Printed;
use super::result::{RowResult, io};
use super::rows::{HEADLINE_COMPRESSION, HEADLINE_DROP, HEADLINE_METHOD, Ranges, method_name};
use qbert_pipeline::Result;

/// The introduction, around the command that renders the page.
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

/// Everything that is made of a directory of results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The page, in Markdown.
    pub page: String,
    /// SVG files by their names in the directory `figures` beside the page.
    pub figures: Vec<(String, String)>,
    block: readme::Block,
}

impl Rendered {
    /// The text of a README with the results in a few lines between its marks `<!-- results -->` and
    /// `<!-- /results -->`. `file` is where the text stands and `page` where the page does, for links.
    ///
    /// # Errors
    /// The marks are not there.
    pub fn readme(&self, text: &str, file: &Path, page: &Path) -> Result<String> {
        self.block.put_into(text, file, page)
    }

    /// Writes the figures, the page, and the results in a README, if one is given; each file whole or not at all, and
    /// nothing when the README has no marks.
    ///
    /// # Errors
    /// A README without marks, or files that cannot be read or written.
    pub fn write(&self, page: &Path, readme: Option<&Path>) -> Result<()> {
        let replace = |file| -> Result<(&Path, String)> {
            let text = std::fs::read_to_string(file).map_err(io(file, "read"))?;
            Ok((file, self.readme(&text, file, page)?))
        };
        let replaced = readme.map(replace).transpose()?;
        let write = |path: &Path, text: &str| -> Result<()> {
            Ok(qbert_model::atomic::write_file(path, |writer| writer.write_all(text.as_bytes()))?)
        };
        let directory = page.with_file_name(figures::DIRECTORY);
        for (name, svg) in &self.figures {
            write(&directory.join(name), svg)?;
        }
        write(page, &self.page)?;
        replaced.map_or(Ok(()), |(file, text)| write(file, &text))
    }
}

/// Page and figures, from a directory of results and the files beside it: `sensitivity-TASK.json`,
/// `weight-errors-TASK.json`, `landscape-TASK.json`, `attention-kl-TASK.json`, and `bench-infer.json` for a README.
///
/// `command` is what makes the page, to be printed there.
///
/// # Errors
/// No results, results that cannot be read, or results of different models in one task.
pub fn render(directory: &Path, command: &str) -> Result<Rendered> {
    let all = Collected::read(directory)?;
    let beside = directory.parent().unwrap_or(directory);
    let variants = shown(&all);
    let (paper, mut drawn) = figures::paper(beside, &all)?;
    let mut text = INTRODUCTION.join(command);
    let _ = write!(text, "\n## The headline\n\n{}", headline(&all)?);
    let _ = write!(text, "\n## What agrees with the paper and what does not\n\n{}", agreement(&all)?);
    let _ = write!(text, "\n## Beyond the paper: ranges, compensation, distillation\n\n{}", beyond(&all)?);
    let _ = write!(text, "\n{}", why::section(beside, &all)?);
    let _ = write!(text, "\n## The data, and what it can show\n\n{}", limits(&all)?);
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

/// The variants to show: the plain ones, and what else was run.
fn shown(all: &[Collected]) -> Vec<Variant> {
    let ran = |variant: &Variant| all.iter().any(|collected| collected.has(*variant));
    Variant::all().into_iter().filter(|variant| variant.is_plain() || ran(variant)).collect()
}

/// Whether 2/3 bits at the headline's compression lose no more than the headline says.
fn headline(all: &[Collected]) -> Result<String> {
    let method: Method = HEADLINE_METHOD.parse()?;
    let plain = method_name(&method, None);
    let mut header = ["task", "row", "encoder, times smaller"].map(str::to_owned).to_vec();
    let variants = shown(all);
    header.extend(variants.iter().map(|variant| format!("drop: {}", variant.text())));
    header.push("verdict".to_owned());
    let mut table = Table::new(header);
    let (mut holds, mut known) = (Vec::new(), 0);
    for collected in all {
        let title = task_title(collected.task);
        let Some(row) = headline_row(collected, &plain) else {
            let empty = std::iter::repeat_n("not run".to_owned(), variants.len() + 3);
            table.row(std::iter::once(title.to_owned()).chain(empty));
            continue;
        };
        known += 1;
        let lost: Vec<_> = variants.iter().map(|&variant| loss(collected, name_of(row), variant)).collect();
        let good = variants.iter().zip(&lost).filter(|(_, lost)| lost.is_some_and(|(lost, _)| lost <= HEADLINE_DROP));
        let good: Vec<String> = good.map(|(variant, _)| variant.text()).collect();
        let times = format!("{:.1}", row.sizes.compression.encoder);
        let mut cells = vec![title.to_owned(), format!("`{}`", name_of(row)), times];
        let number = |(lost, error): (f64, StandardError)| format!("{lost:.2} {error}");
        cells.extend(lost.into_iter().map(|lost| lost.map_or("not run".to_owned(), number)));
        if good.is_empty() {
            cells.push("does not hold".to_owned());
        } else {
            holds.push(title);
            cells.push(format!("holds: {}", good.join("; ")));
        }
        table.row(cells);
    }
    if known == 0 {
        return Ok(format!("No row at 2/3 bits makes the encoder {HEADLINE_COMPRESSION} times smaller or more.\n"));
    }
    let which = if holds.is_empty() { String::new() } else { format!(" ({})", holds.join(", ")) };
    Ok(format!(
        "The claim: at 2/3 bits, encoder weights are at least {HEADLINE_COMPRESSION} times smaller than f32, and at most \
         {HEADLINE_DROP} points are lost. It holds on {} of the {known} tasks that were run{which}.\n\n{table}\n\
         It holds for a variant whose mean drop is at most {HEADLINE_DROP}. ± is the standard error of the drop; errors \
         marked with * are usually too large, as explained below.\n",
        holds.len()
    ))
}

/// Of the plans that are small enough, the largest: the one with the most layers at the higher width.
fn headline_row<'a>(collected: &'a Collected, plain: &str) -> Option<&'a RowResult> {
    let is_headline = |name: &str| name == plain || name.strip_prefix(plain).is_some_and(|s| s.starts_with("-high"));
    let times = |row: &&RowResult| row.sizes.compression.encoder;
    let rows = collected.rows.iter().filter(|row| is_headline(name_of(row)) && times(row) >= HEADLINE_COMPRESSION);
    rows.min_by(|a, b| times(a).total_cmp(&times(b)))
}

/// Points lost against full precision, and their standard error.
fn loss(collected: &Collected, name: &str, variant: Variant) -> Option<(f64, StandardError)> {
    let (metric, sample) = (collected.metric(), collected.sample(name, variant)?);
    let lost = collected.full(metric) - sample.mean(metric)?;
    Some((lost, StandardError::of(metric, &[(1.0, collected.full_sample()), (-1.0, sample)])?))
}

/// The paper's statements, in its own setting and in the others.
fn agreement(all: &[Collected]) -> Result<String> {
    let mut text = format!(
        "Each line is a statement of the paper about a difference between scores, in points of the task's metric. It shows the \
         paper's difference and ours with its standard error, which covers the choice of the dev examples (both models were \
         scored on the same ones) and of the seeds (n). A row with one seed uses the mean variance of the three rows of the \
         task with several seeds and the most similar drop, if there are any. A * marks rows that do not record the \
         outcome of each example: their error assumes different examples (entities for NER), and is usually too large. \
         Questions about one text count as independent.\n\n\
         A difference of at least {ERRORS} standard errors counts: the statement *holds* or *does not hold*. Anything \
         smaller is *within noise*. If all rows of a statement are {LOST} points or more below full precision, *nothing* was \
         *learned*, and their difference means nothing.\n\n"
    );
    let _ = write!(text, "Number of statements, counted once for each task:\n\n{}\n", counts(all)?);
    for variant in shown(all) {
        let (run, rest) = split(all, variant)?;
        let _ = write!(text, "### With {}\n\n", variant.text());
        if !run.is_empty() {
            let _ = write!(text, "{}\n{}", claims(all, variant, &run)?, lists(all, variant, &run)?);
        }
        text += &missing(&run, &rest);
    }
    Ok(text)
}

/// How many statements hold and do not, in every setting.
fn counts(all: &[Collected]) -> Result<Table> {
    let verdicts = [Verdict::Holds, Verdict::WithinNoise, Verdict::DoesNotHold];
    let words = verdicts.iter().map(|verdict| verdict.word()).chain(["nothing learned"]);
    let mut table = Table::new(std::iter::once("with").chain(words));
    for variant in shown(all) {
        let measured = |collected| CLAIMS.iter().map(move |claim| claim.measured(collected, variant));
        let found = all.iter().flat_map(measured).collect::<Result<Vec<Difference>>>()?;
        let count = |is: &dyn Fn(&&Difference) -> bool| found.iter().filter(is).count().to_string();
        let mut cells = vec![variant.text()];
        cells.extend(verdicts.map(|verdict| count(&|difference| difference.verdict() == Some(verdict))));
        cells.push(count(&|difference| **difference == Difference::Lost));
        if found.iter().any(|difference| *difference != Difference::NotRun) {
            table.row(cells);
        }
    }
    Ok(table)
}

/// The statements that some task has the runs for, and the others.
fn split(all: &[Collected], variant: Variant) -> Result<(Vec<Claim>, Vec<Claim>)> {
    let (mut run, mut rest) = (Vec::new(), Vec::new());
    for claim in CLAIMS {
        let found = all.iter().map(|collected| claim.measured(collected, variant)).collect::<Result<Vec<_>>>()?;
        let is_run = found.iter().any(|difference| *difference != Difference::NotRun);
        if is_run { run.push(claim) } else { rest.push(claim) }
    }
    Ok((run, rest))
}

fn missing(run: &[Claim], rest: &[Claim]) -> String {
    match (run, rest) {
        (_, []) => String::new(),
        ([], _) => "No statement has both of its rows.\n\n".to_owned(),
        (_, rest) => {
            let texts: Vec<&str> = rest.iter().map(|claim| claim.text).collect();
            format!("Not run on any task: {}.\n\n", texts.join("; "))
        }
    }
}

fn claims(all: &[Collected], variant: Variant, run: &[Claim]) -> Result<Table> {
    let mut header = ["statement", "table"].map(str::to_owned).to_vec();
    for collected in all {
        let title = task_title(collected.task);
        header.extend([format!("{title}: paper"), format!("{title}: here")]);
    }
    let mut table = Table::new(header);
    for claim in run {
        let mut cells = vec![claim.text.to_owned(), claim.table.number().to_owned()];
        for collected in all {
            let printed = claim.printed(collected.task, collected.metric())?;
            cells.push(printed.map_or("–".to_owned(), |value| format!("{value:+.2}")));
            cells.push(claim.measured(collected, variant)?.with(Verdict::word));
        }
        table.row(cells);
    }
    Ok(table)
}

/// The statements by what became of them, each with its tasks.
fn lists(all: &[Collected], variant: Variant, run: &[Claim]) -> Result<String> {
    let mut text = String::new();
    for verdict in [Verdict::Holds, Verdict::WithinNoise, Verdict::DoesNotHold] {
        let mut found = Vec::new();
        for claim in run {
            let mut tasks = Vec::new();
            for collected in all {
                if claim.measured(collected, variant)?.verdict() == Some(verdict) {
                    tasks.push(task_title(collected.task));
                }
            }
            if !tasks.is_empty() {
                found.push(format!("{} ({})", claim.text, tasks.join(", ")));
            }
        }
        let found = if found.is_empty() { "nothing".to_owned() } else { found.join("; ") };
        let _ = writeln!(text, "- **{}:** {found}.", capital(verdict.word()));
    }
    Ok(text + "\n")
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// What optimal ranges, compensated rounding and distillation change, method by method.
fn beyond(all: &[Collected]) -> Result<String> {
    let effects = effects(all);
    let mut text =
        "The change that each one makes, in points, with its standard error as above. It *helps* or *hurts* if the \
                    difference counts.\n\n"
            .to_owned();
    let mut header = vec!["task".to_owned(), "row".to_owned()];
    header.extend(effects.iter().map(|(what, ..)| what.clone()));
    let mut table = Table::new(header);
    for collected in all {
        let mut names: Vec<&str> = collected.rows.iter().map(name_of).collect();
        let order = printed_order()?;
        names.sort_by_key(|name| order.iter().position(|known| known == name).unwrap_or(order.len()));
        names.dedup();
        for name in names {
            let term = |sign, variant| (sign, name.to_owned(), variant);
            let between = |with, without| difference(collected, &[term(1.0, with), term(-1.0, without)]);
            let found: Vec<Difference> = effects.iter().map(|&(_, with, without)| between(with, without)).collect();
            if found.iter().any(|difference| *difference != Difference::NotRun) {
                let cells = found.iter().map(|difference| difference.with(Verdict::effect));
                table.row([task_title(collected.task).to_owned(), format!("`{name}`")].into_iter().chain(cells));
            }
        }
    }
    let _ = write!(text, "{table}");
    Ok(text)
}

/// What can be set beside what: optimal ranges beside min/max, compensated rounding and distillation beside none. Those
/// that the paper could have had are shown whether they were run or not.
fn effects(all: &[Collected]) -> Vec<(String, Variant, Variant)> {
    let mut effects = Vec::new();
    for with in shown(all) {
        if with.ranges == Ranges::Optimal && with.is_plain() {
            let end = if with.trained { "trained" } else { "not trained" };
            effects.push((format!("optimal ranges, {end}"), with, Variant { ranges: Ranges::MinMax, ..with }));
        }
        if with.compensate && !with.distill {
            let without = Variant { compensate: false, ..with };
            effects.push((format!("compensation, {}", without.text()), with, without));
        }
        if with.distill {
            let without = Variant { distill: false, ..with };
            effects.push((format!("distillation, {}", without.text()), with, without));
        }
    }
    effects
}

/// The names of all rows of the paper's tables, in its order.
fn printed_order() -> Result<Vec<String>> {
    let mut order = Vec::new();
    for printed in Printed::ALL {
        order.extend(printed.rows()?.iter().map(|row| method_name(&row.method, None)));
    }
    Ok(order)
}

/// What the figures rest on.
fn limits(all: &[Collected]) -> Result<String> {
    let header =
        ["task", "full precision", "paper's", "dev examples", "one standard error", "training sequences", "data"];
    let mut table = Table::new(header);
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
        Task::Classify | Task::Pair | Task::Ner | Task::Qa => "the user's own",
    }
}
