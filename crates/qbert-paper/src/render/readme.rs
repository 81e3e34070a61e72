//! A short version of the results for a README, placed between two markers in that file.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Component, Path, PathBuf};

use qbert_quant::Precision;
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

/// A column: what a user would choose between.
struct Width {
    title: &'static str,
    /// The method's name in the results.
    method: &'static str,
    /// The model's name in the results of speed.
    bench: &'static str,
}

const WIDTHS: [Width; 4] = [
    Width { title: "4 bits", method: "q-bert:4", bench: "qbert 4" },
    Width { title: "3 bits", method: "q-bert:3", bench: "qbert 3" },
    Width { title: "2/3 bits", method: "q-bert:2/3", bench: "qbert 2,3" },
    Width { title: "2 bits", method: "q-bert:2", bench: "qbert 2" },
];

/// What the speeds are compared with: names in the results, and in print. The fastest of them counts.
const PEERS: [(&str, &str); 3] = [
    ("openvino-f32", "OpenVINO int8"),
    ("openvino-bf16", "OpenVINO int8 with bf16"),
    ("onnxruntime", "ONNX Runtime int8"),
];

/// Where the results of speed are: in a directory, one file for each kind of CPU whose name begins with that of the model.
const SPEEDS: (&str, &str) = ("speed", "minilm-l6.");

/// The work of `qbert bench infer` that is shown, and its tokens.
const WORK: (&str, &str) = ("B", "128 tokens");

/// A cell with nothing in it.
const NONE: &str = "–";

/// What a README says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Block {
    /// The table and what to know about it.
    table: String,
    figure: Option<Named>,
}

impl Block {
    /// From all results, their figures, and the speeds in the directory next to them, if any.
    pub(super) fn new(all: &[Collected], accuracy: &[Named], beside: &Path) -> Result<Self> {
        let of = |task: Task| accuracy.iter().find(|figure| figure.file.ends_with(&format!("-{task}.svg")));
        let table = table(all, &Speeds::read_all(beside)?)?;
        Ok(Self { table, figure: of(Task::Sst2).or(accuracy.first()).cloned() })
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
        let mut text = String::new();
        if let Some(figure) = &self.figure {
            let task = Task::ALL.into_iter().find(|task| figure.file.ends_with(&format!("-{task}.svg")));
            let title = task.map_or(String::new(), |task| format!("**{}.** ", task_title(task)));
            let _ = write!(text, "{}\n\n{title}{}\n\n", figure.image(&directory), figure.drawing.caption);
        }
        let _ = writeln!(text, "{}\nEvery row with its error: [{way}]({way}).", self.table);
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

/// Ways to quantize with optimal ranges, the best first: distilled, trained, calibrated only.
fn preferred() -> Vec<Variant> {
    let plain = Variant::trained(Ranges::Optimal);
    let ends = [plain.distilled(), plain, Variant::untrained(Ranges::Optimal)];
    ends.into_iter().flat_map(|variant| [variant, variant.compensated()]).collect()
}

/// A task's row at one width, in the best way that it was run.
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
        preferred().into_iter().find_map(|variant| {
            let sample = collected.sample(name, variant)?;
            Some(Cell { variant, value: sample.mean(metric)?, deviation: sample.deviation(metric), row })
        })
    };
    WIDTHS.iter().map(|width| Ok(cell(&method_name(&width.method.parse::<Method>()?, None)))).collect()
}

/// A task with its cells; those without any are left out.
struct Line<'a> {
    collected: &'a Collected,
    cells: Vec<Option<Cell<'a>>>,
    /// How most of its cells were made.
    usual: Variant,
}

fn lines(all: &[Collected]) -> Result<Vec<Line<'_>>> {
    let mut lines = Vec::new();
    for collected in all {
        let cells = cells(collected)?;
        let usual = preferred().into_iter().find(|own| cells.iter().flatten().any(|cell| cell.variant == *own));
        lines.extend(usual.map(|usual| Line { collected, cells, usual }));
    }
    Ok(lines)
}

/// Accuracy, size and speed at every width, and what to know about them.
fn table(all: &[Collected], speeds: &[Speeds]) -> Result<String> {
    let lines = lines(all)?;
    let Some(first) = lines.first() else { return Ok("Nothing was run yet.\n".to_owned()) };
    let mut table = MarkdownTable::new(["", "full precision"].into_iter().chain(WIDTHS.map(|width| width.title)));
    for Line { collected, cells, usual } in &lines {
        let full = collected.full(collected.metric());
        let title = format!("{}, {}", task_title(collected.task), metric_title(collected.metric()));
        let shown = cells.iter().map(|cell| cell.as_ref().map_or(NONE.to_owned(), |cell| score(cell, full, *usual)));
        table.row([title, format!("{full:.2}")].into_iter().chain(shown));
    }
    table.row(encoders(&lines));
    table.row(files(first));
    for row in speeds.iter().filter_map(Speeds::row) {
        table.row(row);
    }
    let speed = speeds.iter().find_map(Speeds::note).unwrap_or_default();
    Ok(format!(
        "{table}\nScores are on the dev sets. Brackets show the change from full precision, with the standard deviation if there \
         are several seeds. {}{}{}{speed}\n",
        treatments(&lines),
        other_widths(&lines),
        limits(&lines),
    ))
}

fn score(cell: &Cell<'_>, full: f64, usual: Variant) -> String {
    let spread = cell.deviation.map_or(String::new(), |deviation| format!(" ± {deviation:.2}"));
    let other = if cell.variant == usual { String::new() } else { format!(", {}", treatment(cell.variant)) };
    format!("**{:.2}** ({}{spread}{other})", cell.value, signed(cell.value - full))
}

/// With a real minus sign.
fn signed(value: f64) -> String {
    format!("{value:+.2}").replace('-', "−")
}

/// How many times smaller the encoder is: one number, or the smallest and the largest of all tasks.
fn encoders(lines: &[Line<'_>]) -> Vec<String> {
    let times = |index: usize| {
        let cells = lines.iter().filter_map(|line| line.cells[index].as_ref());
        let mut found: Vec<f64> = cells.map(|cell| cell.row.sizes.compression.encoder).collect();
        found.sort_by(f64::total_cmp);
        let mut ends: Vec<String> = found.first().into_iter().chain(found.last()).map(|t| format!("{t:.1}")).collect();
        ends.dedup();
        if ends.is_empty() { NONE.to_owned() } else { format!("{}×", ends.join("–")) }
    };
    let row = ["encoder, times smaller".to_owned(), "1×".to_owned()];
    row.into_iter().chain((0..WIDTHS.len()).map(times)).collect()
}

/// The bytes of the first task's files; other tasks differ by their head only.
fn files(line: &Line<'_>) -> Vec<String> {
    let mb = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
    let file = |cell: &Cell<'_>| format!("{} ({:.1}×)", mb(cell.row.sizes.file_bytes), cell.row.sizes.compression.file);
    let cells = line.cells.iter().map(|cell| cell.as_ref().map_or(NONE.to_owned(), file));
    ["file".to_owned(), mb(line.collected.any().sizes.f32_bytes)].into_iter().chain(cells).collect()
}

/// A variant without its ranges, which are the same in the whole table.
fn treatment(variant: Variant) -> String {
    let end = match (variant.trained, variant.distill) {
        (false, _) => "calibrated only",
        (true, false) => "trained",
        (true, true) => "trained with distillation",
    };
    format!("{}{end}", if variant.compensate { "compensated rounding, " } else { "" })
}

/// How the models were made, task by task where they differ.
fn treatments(lines: &[Line<'_>]) -> String {
    let mut groups: Vec<(Variant, Vec<&str>)> = Vec::new();
    for line in lines {
        let title = task_title(line.collected.task);
        match groups.iter_mut().find(|(variant, _)| *variant == line.usual) {
            Some((_, tasks)) => tasks.push(title),
            None => groups.push((line.usual, vec![title])),
        }
    }
    let texts = groups.iter().map(|(variant, tasks)| format!("{}: {}", tasks.join(", "), treatment(*variant)));
    format!("{}. ", texts.collect::<Vec<_>>().join("; "))
}

/// The width of activations and embeddings, where all rows of the table have the same.
fn other_widths(lines: &[Line<'_>]) -> String {
    let bits = lines.iter().flat_map(|line| line.cells.iter().flatten()).map(|cell| &cell.row.settings.bits);
    let mut widths: Vec<Precision> = bits.flat_map(|bits| [bits.word, bits.position, bits.activations]).collect();
    widths.dedup();
    if let [width] = widths[..] { format!("Activations and embeddings have {width} bits.") } else { String::new() }
}

/// Which tasks were scored on a part of their dev sets.
fn limits(lines: &[Line<'_>]) -> String {
    let any = lines.iter().map(|line| line.collected.any());
    let limited = any.filter_map(|row| Some((task_title(row.settings.task), row.settings.max_dev?)));
    limited.map(|(title, most)| format!(" {title} is scored on the first {most} examples of its dev set.")).collect()
}

/// The fields of one CPU's results that are used here.
#[derive(Debug, Deserialize)]
struct Speeds {
    cpu: Cpu,
    #[serde(default)]
    file_bytes: BTreeMap<String, u64>,
    works: Vec<Work>,
}

#[derive(Debug, Deserialize)]
struct Cpu {
    kind: String,
}

#[derive(Debug, Deserialize)]
struct Work {
    work: String,
    threads: usize,
    ms: BTreeMap<String, f64>,
}

impl Speeds {
    /// Those of every CPU in the directory, in the order of file names; none without the directory.
    fn read_all(beside: &Path) -> Result<Vec<Self>> {
        let directory = beside.join(SPEEDS.0);
        if !directory.exists() {
            return Ok(Vec::new());
        }
        let entries = std::fs::read_dir(&directory).map_err(crate::result::io(&directory, "read"))?;
        let mut paths = Vec::new();
        for entry in entries {
            let path = entry.map_err(crate::result::io(&directory, "read"))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with(SPEEDS.1) && name.ends_with(".json") {
                paths.push(path);
            }
        }
        paths.sort();
        paths.iter().map(|path| Self::read(path)).collect()
    }

    fn read(path: &Path) -> Result<Self> {
        serde_json::from_value(figures::json(path)?.1).map_err(|error| {
            let hint = "make it again: its own `command` says how".to_owned();
            Error::new(ErrorKind::BadInput, format!("{}: {error}", path.display()), hint)
        })
    }

    /// The work that is shown, with the most threads that it was measured with, and the fastest peer: its name and time.
    fn shown(&self) -> Option<(&Work, &'static str, f64)> {
        let works = self.works.iter().filter(|work| work.work == WORK.0);
        let work = works.max_by_key(|work| work.threads)?;
        let peers = PEERS.iter().filter_map(|(name, title)| Some((*title, *work.ms.get(*name)?)));
        let (title, ms) = peers.min_by(|one, other| one.1.total_cmp(&other.1))?;
        Some((work, title, ms))
    }

    fn row(&self) -> Option<Vec<String>> {
        let (work, peer, peer_ms) = self.shown()?;
        let cell = |width: &Width| match work.ms.get(width.bench) {
            Some(&ms) if ms > 0.0 => format!("{} (**{:.2}×**)", significant(ms, 3), peer_ms / ms),
            _ => NONE.to_owned(),
        };
        let (tokens, kind, theirs) = (WORK.1, &self.cpu.kind, significant(peer_ms, 3));
        let title = format!("ms for {tokens} on {kind} (times as fast as {peer}, {theirs} ms)");
        Some([title, NONE.to_owned()].into_iter().chain(WIDTHS.iter().map(cell)).collect())
    }

    fn note(&self) -> Option<String> {
        let (work, ..) = self.shown()?;
        let plural = if work.threads == 1 { "thread" } else { "threads" };
        let bytes =
            || WIDTHS.iter().filter_map(|width| self.file_bytes.get(width.bench)).map(|&bytes| bytes as f64 / 1e6);
        let files = match (bytes().reduce(f64::min), bytes().reduce(f64::max)) {
            (Some(least), Some(most)) => format!(" (files of {least:.1} to {most:.1} MB)"),
            _ => String::new(),
        };
        Some(format!(" Speed: {} {plural}, with the word embedding at 4 bits{files}.", work.threads))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_marks_is_replaced() {
        let block = Block { table: "| a |\n".to_owned(), figure: None };
        let put = |text: &str| block.put_into(text, Path::new("README.md"), Path::new("docs/results/paper.md"));
        let new = put("before <!-- results --> old <!-- /results --> after").unwrap();
        let end = "\nEvery row with its error: [docs/results/paper.md](docs/results/paper.md).\n";
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
        assert_eq!(link("README.md", "docs/results/paper.md"), "docs/results/paper.md");
        assert_eq!(link("pages/a/readme.md", "pages/results.md"), "../results.md");
        assert_eq!(link("x/README.md", "y z/page.md"), "../y%20z/page.md");
        assert_eq!(link("/one/README.md", "/one/page.md"), "page.md");
    }
}
