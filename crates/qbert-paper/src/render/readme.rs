//! A short version of the results for a README, placed between two markers in that file.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Component, Path, PathBuf};

use qbert_report::significant;
use qbert_tasks::Task;
use qbert_train::qat::method::Method;
use serde::Deserialize;

use super::collect::{Collected, Variant};
use super::figures::{self, Named};
use super::markdown::MarkdownTable;
use super::{metric_title, task_title};
use crate::result::RowResult;
use crate::rows::{Ranges, method_name};
use qbert_pipeline::{Error, ErrorKind, Result};

/// The text between these markers is replaced.
const MARKS: [&str; 2] = ["<!-- results -->", "<!-- /results -->"];

/// The columns: what a user would choose between.
const WIDTHS: [(&str, &str); 4] =
    [("4 bits", "q-bert:4"), ("3 bits", "q-bert:3"), ("2/3 bits", "q-bert:2/3"), ("2 bits", "q-bert:2")];

/// The speed that is shown, and the one it is compared with.
const SPEEDS: [(&str, &str); 2] = [("qbert 2,3", "qbert, 2/3 bits"), ("openvino", "OpenVINO, int8")];

/// The workloads of `qbert bench infer`, as sequences × tokens.
const WORKS: [(&str, &str); 4] = [("A", "1×32"), ("B", "1×128"), ("C", "1×384"), ("D", "32×128")];

/// What a README says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Block {
    tables: String,
    figure: Option<Named>,
}

impl Block {
    /// From all results, their figures, and the speeds in the directory next to them, if any.
    pub(super) fn new(all: &[Collected], accuracy: &[Named], beside: &Path) -> Result<Self> {
        let mut tables = accuracies(all)?;
        tables += &speeds(&beside.join("bench-infer.json"))?;
        let of = |task: Task| accuracy.iter().find(|figure| figure.file.ends_with(&format!("-{task}.svg")));
        Ok(Self { tables, figure: of(Task::Sst2).or(accuracy.first()).cloned() })
    }

    /// `text` with the results between its markers; `file` is its path, `page` that of the full page.
    pub(super) fn put_into(&self, text: &str, file: &Path, page: &Path) -> Result<String> {
        let found = MARKS.map(|mark| text.match_indices(mark).map(|(at, _)| at).collect::<Vec<_>>());
        let ([start], [end]) = (&found[0][..], &found[1][..]) else { return Err(unmarked(file)) };
        let start = start + MARKS[0].len();
        let Some(old) = text.get(start..*end) else { return Err(unmarked(file)) };
        let new = self.text(file, page)?;
        let rest = &text[start + old.len()..];
        Ok(format!("{}\n{new}{rest}", &text[..start]))
    }

    fn text(&self, file: &Path, page: &Path) -> Result<String> {
        let way = way(file, page)?;
        let directory = way
            .rsplit_once('/')
            .map_or(figures::DIRECTORY.to_owned(), |(up, _)| format!("{up}/{}", figures::DIRECTORY));
        let mut text = self.tables.clone();
        if let Some(figure) = &self.figure {
            let _ = write!(text, "{}\n\n{}\n\n", figure.image(&directory), figure.drawing.caption);
        }
        let _ = writeln!(text, "[{way}]({way}) has every row, its error, and what it says of the paper.");
        Ok(text)
    }
}

fn unmarked(file: &Path) -> Error {
    let message = format!("{}: no {} and {} after it, each once", file.display(), MARKS[0], MARKS[1]);
    let hint = "put these two lines where the results should go; everything between them is replaced";
    Error::new(ErrorKind::BadInput, message, hint.to_owned())
}

/// The relative link from one file to another.
fn way(from: &Path, to: &Path) -> Result<String> {
    let absolute = |path: &Path| std::path::absolute(path).map_err(crate::result::io(path, "find"));
    let (from, to) = (absolute(from)?, absolute(to)?);
    let from: Vec<Component<'_>> = from.parent().unwrap_or(&from).components().collect();
    let to: Vec<Component<'_>> = to.components().collect();
    let common = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
    let up = std::iter::repeat_n(PathBuf::from(".."), from.len() - common);
    let parts = up.chain(to[common..].iter().map(PathBuf::from)).map(|part| part.to_string_lossy().into_owned());
    Ok(parts.collect::<Vec<_>>().join("/").replace(' ', "%20"))
}

/// Variants with optimal ranges, the preferred one first: distilled, trained, calibrated only.
fn wanted() -> Vec<Variant> {
    let plain = Variant::trained(Ranges::Optimal);
    let ends = [plain.distilled(), plain, Variant::untrained(Ranges::Optimal)];
    ends.into_iter().flat_map(|variant| [variant, variant.compensated()]).collect()
}

/// A row's figure in the preferred variant that was run.
struct Cell<'a> {
    variant: Variant,
    value: f64,
    deviation: Option<f64>,
    row: &'a RowResult,
}

fn cells(collected: &Collected) -> Result<Vec<Option<Cell<'_>>>> {
    let metric = collected.metric();
    let cell = |name: &str| {
        let row = collected.sized(name)?;
        wanted().into_iter().find_map(|variant| {
            let sample = collected.sample(name, variant)?;
            Some(Cell { variant, value: sample.mean(metric)?, deviation: sample.deviation(metric), row })
        })
    };
    WIDTHS.iter().map(|(_, method)| Ok(cell(&method_name(&method.parse::<Method>()?, None)))).collect()
}

/// The task's figures at every width, and the sizes of the first task's files.
fn accuracies(all: &[Collected]) -> Result<String> {
    let header = ["", "full precision"].into_iter().chain(WIDTHS.map(|(title, _)| title)).chain(["quantized by"]);
    let mut table = MarkdownTable::new(header);
    let mut sizes: Option<Vec<String>> = None;
    for collected in all {
        let cells = cells(collected)?;
        let Some(best) = wanted().into_iter().find(|own| cells.iter().flatten().any(|cell| cell.variant == *own))
        else {
            continue;
        };
        let full = collected.full(collected.metric());
        let title = format!("{}, {}", task_title(collected.task), metric_title(collected.metric()));
        let shown = cells.iter().map(|cell| cell.as_ref().map_or("–".to_owned(), |cell| figure(cell, full, best)));
        let line = [title, format!("{full:.2}")].into_iter().chain(shown).chain([how(best)]);
        table.row(line);
        sizes.get_or_insert_with(|| files(collected, &cells));
    }
    let Some(sizes) = sizes else { return Ok("Nothing was run yet.\n\n".to_owned()) };
    table.row(sizes);
    Ok(format!(
        "{table}\nIn brackets: points above or below full precision, with the standard deviation where there are several seeds, \
         and how many times smaller the encoder is; weights have the ranges with the least squared error.{}\n\n",
        others(all)?
    ))
}

/// The widths of activations and embeddings, if all rows of the table share them.
fn others(all: &[Collected]) -> Result<String> {
    let mut widths: Vec<u8> = Vec::new();
    for collected in all {
        for cell in cells(collected)?.into_iter().flatten() {
            let bits = &cell.row.settings.bits;
            widths.extend([bits.word, bits.position, bits.activations]);
        }
    }
    widths.dedup();
    Ok(if let [width] = widths[..] { format!(" Activations and embeddings have {width} bits.") } else { String::new() })
}

fn figure(cell: &Cell<'_>, full: f64, usual: Variant) -> String {
    let spread = cell.deviation.map_or(String::new(), |deviation| format!(" ± {deviation:.2}"));
    let times = cell.row.sizes.compression.encoder;
    let other = if cell.variant == usual { String::new() } else { format!(", {}", how(cell.variant)) };
    format!("**{:.2}** ({}{spread}; {times:.1}×{other})", cell.value, signed(cell.value - full))
}

/// A variant without its ranges, which are the same in the whole table.
fn how(variant: Variant) -> String {
    let start = if variant.compensate { "compensated rounding, " } else { "" };
    let end = match (variant.trained, variant.distill) {
        (false, _) => "calibration only",
        (true, false) => "training",
        (true, true) => "training with distillation",
    };
    format!("{start}{end}")
}

/// With a real minus sign.
fn signed(value: f64) -> String {
    format!("{value:+.2}").replace('-', "−")
}

fn files(collected: &Collected, cells: &[Option<Cell<'_>>]) -> Vec<String> {
    let whole = collected.any().sizes.f32_bytes;
    let mb = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
    let mut line = vec![format!("packed file, {}", task_title(collected.task)), mb(whole)];
    line.extend(cells.iter().map(|cell| {
        cell.as_ref().map_or("–".to_owned(), |cell| {
            format!("{} ({:.1}×)", mb(cell.row.sizes.file_bytes), cell.row.sizes.compression.file)
        })
    }));
    line.push(String::new());
    line
}

/// The fields of `bench-infer.json` that are used here.
#[derive(Debug, Deserialize)]
struct Bench {
    what: String,
    #[serde(default)]
    file_bytes: BTreeMap<String, u64>,
    works: Vec<Work>,
}

#[derive(Debug, Deserialize)]
struct Work {
    work: String,
    threads: usize,
    ms: BTreeMap<String, f64>,
}

/// Speed compared with OpenVINO at the highest measured thread count; empty without the file.
fn speeds(path: &Path) -> Result<String> {
    if !path.exists() {
        return Ok(String::new());
    }
    let bench: Bench = serde_json::from_value(figures::json(path)?.1).map_err(|error| {
        let hint = "create it again with the `command` recorded in it".to_owned();
        Error::new(ErrorKind::BadInput, format!("{}: {error}", path.display()), hint)
    })?;
    let threads = bench.works.iter().map(|work| work.threads).max().unwrap_or(1);
    let both = |work: &&Work| SPEEDS.iter().all(|(name, _)| work.ms.get(*name).is_some_and(|ms| *ms > 0.0));
    let works: Vec<&Work> = bench.works.iter().filter(|work| work.threads == threads).filter(both).collect();
    if works.is_empty() {
        return Ok(String::new());
    }
    let title = |work: &&&Work| {
        let known = WORKS.iter().find(|(name, _)| *name == work.work);
        known.map_or(work.work.clone(), |(_, shape)| format!("{shape} tokens"))
    };
    let mut table =
        MarkdownTable::new(std::iter::once("milliseconds".to_owned()).chain(works.iter().map(|work| title(&work))));
    for (name, shown) in SPEEDS {
        let file = bench.file_bytes.get(name).map_or(String::new(), |&bytes| format!(", {:.1} MB", bytes as f64 / 1e6));
        let cells = works.iter().map(|work| significant(work.ms[name], 3));
        table.row(std::iter::once(format!("{shown}{file}")).chain(cells));
    }
    let ratio = works.iter().map(|work| format!("**{:.2}×**", work.ms[SPEEDS[1].0] / work.ms[SPEEDS[0].0]));
    table.row(std::iter::once("faster by".to_owned()).chain(ratio));
    let plural = if threads == 1 { "thread" } else { "threads" };
    Ok(format!("{table}\n{}; {threads} {plural}, the word embedding at 4 bits.\n\n", bench.what.trim_end_matches('.')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_marks_is_replaced() {
        let block = Block { tables: "| a |\n".to_owned(), figure: None };
        let put = |text: &str| block.put_into(text, Path::new("README.md"), Path::new("docs/results.md"));
        let new = put("before <!-- results --> old <!-- /results --> after").unwrap();
        let end = "[docs/results.md](docs/results.md) has every row, its error, and what it says of the paper.\n";
        assert_eq!(new, format!("before <!-- results -->\n| a |\n{end}<!-- /results --> after"));
        assert_eq!(put(&new).unwrap(), new);
        let twice = "<!-- results --><!-- /results --><!-- results --><!-- /results -->";
        for text in ["", "<!-- results -->", "<!-- /results -->", "<!-- /results --><!-- results -->", twice] {
            let error = put(text).unwrap_err();
            assert!(error.to_string().starts_with("README.md: no <!-- results --> and <!-- /results -->"), "{error}");
        }
    }

    #[test]
    fn links_go_from_file_to_file() {
        let link = |from: &str, to: &str| way(Path::new(from), Path::new(to)).unwrap();
        assert_eq!(link("README.md", "docs/results.md"), "docs/results.md");
        assert_eq!(link("docs/a/readme.md", "docs/results.md"), "../results.md");
        assert_eq!(link("x/README.md", "y z/page.md"), "../y%20z/page.md");
        assert_eq!(link("/one/README.md", "/one/page.md"), "page.md");
    }
}
