//! The page's figures: accuracy against size of every task, and the paper's own figures from the files beside the
//! results.
//!
//! `qbert_report` draws them; this module decides what to draw. Each figure is shown with the command that made its data:
//! the command recorded in the file, or one reconstructed from the file's settings.

use std::path::Path;

use qbert_report::figure::{self, Compared, Curve, Drawing, Look, SizeCurves, SizePoint};
use qbert_report::read;
use qbert_tasks::Task;
use serde_json::Value;

use super::collect::{Collected, Sample, Variant, name_of};
use super::{metric_title, task_title};
use crate::paper::Printed;
use crate::result::{RowResult, io};
use crate::rows::method_name;
use qbert_pipeline::{Error, ErrorKind, Result};

/// The directory of figures, beside the page.
pub(super) const DIRECTORY: &str = "figures";

/// A figure with its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    /// The file's name in [`DIRECTORY`].
    pub(super) file: String,
    pub(super) drawing: Drawing,
}

impl Named {
    fn new(kind: &str, task: Task, drawing: Drawing) -> Self {
        Self { file: format!("{kind}-{task}.svg"), drawing }
    }

    /// The image in Markdown; `directory` is the path from the page to [`DIRECTORY`].
    pub(super) fn image(&self, directory: &str) -> String {
        let alt: String = self.drawing.description.chars().filter(|c| !matches!(c, '[' | ']' | '\n')).collect();
        format!("![{alt}]({directory}/{})", self.file)
    }
}

/// A method in a figure: its name in files, the name of its column, the look of its marks.
struct Shown {
    name: String,
    column: String,
    look: Look,
}

/// The methods of the paper's main table, and those of its mixed ones that have another number of layers at the higher
/// width.
fn methods(collected: &Collected) -> Result<Vec<Shown>> {
    let mut methods = Vec::new();
    for row in Printed::Main.rows()?.into_iter().filter(|row| !row.method.is_full()) {
        let name = method_name(&row.method, None);
        let mixed = row.method.is_mixed();
        let width = row.widths[0];
        let look = match (mixed, row.label) {
            (true, _) => Look::Ringed,
            (false, "DirectQ") => Look::Hollow,
            (false, _) => Look::Filled,
        };
        let column = if mixed { width.to_owned() } else { format!("{width} bits") };
        if mixed {
            let start = format!("{name}-high");
            let mut others: Vec<&str> =
                collected.rows.iter().map(name_of).filter(|other| other.starts_with(&start)).collect();
            others.dedup();
            methods.extend(others.into_iter().map(|other| Shown {
                name: other.to_owned(),
                column: format!("{width}, {} high", &other[start.len()..]),
                look,
            }));
        }
        methods.push(Shown { name, column, look });
    }
    Ok(methods)
}

/// Accuracy against size; `None` when nothing but the baseline was run. `variants` are those of all tasks.
pub(super) fn accuracy(collected: &Collected, variants: &[Variant]) -> Result<Option<Named>> {
    let methods = methods(collected)?;
    let metric = collected.metric();
    let point = |shown: &Shown, sample: &Sample| {
        Some(SizePoint {
            name: shown.column.clone(),
            look: shown.look,
            mib: collected.sized(&shown.name)?.sizes.paper_mib.encoder,
            value: sample.mean(metric)?,
            deviation: sample.deviation(metric),
        })
    };
    let curve = |(kind, &variant): (usize, &Variant)| Curve {
        name: variant.text(),
        kind,
        dashed: !variant.trained,
        points: methods.iter().filter_map(|shown| point(shown, &collected.sample(&shown.name, variant)?)).collect(),
    };
    let curves = SizeCurves {
        metric: metric_title(metric).to_owned(),
        full: collected.full(metric),
        looks: vec![
            (Look::Filled, "Q-BERT, one width".to_owned()),
            (Look::Ringed, "Q-BERT, mixed precision".to_owned()),
            (Look::Hollow, "DirectQ: one group for a matrix".to_owned()),
        ],
        curves: variants.iter().enumerate().map(curve).collect(),
    };
    let drawing = figure::accuracy_against_size(&curves);
    Ok(drawing.map(|drawing| Named::new("accuracy", collected.task, drawing)))
}

/// A kind of file that a figure of the paper is made from.
struct PaperFigure {
    /// The file is `STEM-TASK.json`.
    stem: &'static str,
    /// The figure's name, here and in its file.
    name: &'static str,
    title: &'static str,
    draw: fn(&str, &str) -> qbert_report::Result<Option<Drawing>>,
    command: fn(&Value) -> String,
}

const ATTENTION: &str = "attention-kl";

const PAPER: [PaperFigure; 3] = [
    PaperFigure {
        stem: "sensitivity",
        name: "eigenvalues",
        title: "Fig. 2: the largest eigenvalue of each layer",
        draw: |text, file| Ok(figure::eigenvalues(&read::sensitivity(text, file)?)),
        command: analyze_command,
    },
    PaperFigure {
        stem: "landscape",
        name: "landscape",
        title: "Fig. 1, 3 and 6: the loss around the model",
        draw: |text, file| Ok(figure::landscape(&read::landscape(text, file)?)),
        command: landscape_command,
    },
    PaperFigure {
        stem: ATTENTION,
        name: ATTENTION,
        title: "Fig. 5: how far attention moves",
        draw: |text, file| Ok(figure::attention_kl(&read::attention(text, file)?)),
        command: attention_command,
    },
];

/// The section of the paper's figures, and the figures; both empty when there are no files. `beside` is the directory
/// of the files.
pub(super) fn paper(beside: &Path, all: &[Collected]) -> Result<(String, Vec<Named>)> {
    let (mut text, mut figures) = (String::new(), Vec::new());
    for kind in &PAPER {
        let mut parts = String::new();
        for task in Task::ALL {
            let path = beside.join(format!("{}-{task}.json", kind.stem));
            let collected = all.iter().find(|collected| collected.task == task);
            let several = if kind.stem == ATTENTION { models(beside, task, collected)? } else { None };
            let found = if several.is_some() { several } else { one(kind, task, &path, collected)? };
            if let Some((part, figure)) = found {
                parts += &part;
                figures.push(figure);
            }
        }
        if !parts.is_empty() {
            text += &format!("### {}\n\n{parts}", kind.title);
        }
    }
    if !text.is_empty() {
        let introduction = "Layers are counted from 0. In the commands, words in capitals stand for files and directories: \
                            the fine-tuned model, its quantized checkpoint, the data, the directory of \
                            `sensitivity.json`.\n\n";
        text = format!("## The paper's figures\n\n{introduction}{text}");
    }
    Ok((text, figures))
}

fn one(kind: &PaperFigure, task: Task, path: &Path, rows: Option<&Collected>) -> Result<Option<(String, Named)>> {
    if !path.exists() {
        return Ok(None);
    }
    let (content, value) = json_of(path, task)?;
    let Some(drawing) = (kind.draw)(&content, &path.display().to_string())? else { return Ok(None) };
    let figure = Named::new(kind.name, task, drawing);
    let command = command(kind.command, &value, rows);
    let part = format!(
        "{}\n\n**{}.** {} Data: `results/{}-{task}.json`, made by\n\n```text\n{command}\n```\n\n",
        figure.image(DIRECTORY),
        task_title(task),
        figure.drawing.caption,
        kind.stem,
    );
    Ok(Some((part, figure)))
}

/// The figure of `attention-kl-TASK.ROW.json`, the files of several rows of a task together; `None` without any.
fn models(beside: &Path, task: Task, rows: Option<&Collected>) -> Result<Option<(String, Named)>> {
    let start = format!("{ATTENTION}-{task}.");
    // A directory without a parent in its name has an empty one.
    let directory = if beside.as_os_str().is_empty() { Path::new(".") } else { beside };
    let entries = std::fs::read_dir(directory).map_err(io(directory, "read"))?;
    let mut names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.retain(|name| name.starts_with(&start) && name.ends_with(".json") && name.len() > start.len() + 5);
    names.sort();
    let (mut compared, mut commands) = (Vec::new(), String::new());
    for name in &names {
        let row = &name[start.len()..name.len() - ".json".len()];
        let path = beside.join(name);
        let (content, value) = json_of(&path, task)?;
        let attention = read::attention(&content, &path.display().to_string())?;
        compared.push(Compared { name: row.to_owned(), attention });
        commands +=
            &command(attention_command, &value, rows).replace("QUANTIZED", row).replace("attention-kl.json", name);
        commands.push('\n');
    }
    let Some(drawing) = figure::attention_of_models(&compared) else { return Ok(None) };
    let figure = Named::new(ATTENTION, task, drawing);
    let part = format!(
        "{}\n\n**{}.** {} The models are rows made with `qbert-paper reproduce … --keep`. The data was made by\n\n\
         ```text\n{commands}```\n\n",
        figure.image(DIRECTORY),
        task_title(task),
        figure.drawing.caption,
    );
    Ok(Some((part, figure)))
}

/// The command recorded in a file, or one reconstructed from its settings.
fn command(make: fn(&Value) -> String, value: &Value, rows: Option<&Collected>) -> String {
    match value["command"].as_str() {
        Some(command) => command.to_owned(),
        None => make(value).replace("DATA", &data(value, rows)),
    }
}

/// Reads a JSON file and checks its task.
fn json_of(path: &Path, task: Task) -> Result<(String, Value)> {
    let (content, value) = json(path)?;
    let found = value["task"].as_str().unwrap_or_default();
    if found != task.name() {
        let message = format!("{}: its task is {found:?}, expected {task}", path.display());
        let hint = "rename the file: its name ends with its task".to_owned();
        return Err(Error::new(ErrorKind::BadInput, message, hint));
    }
    Ok((content, value))
}

/// Reads a JSON file: its text and its value.
pub(super) fn json(path: &Path) -> Result<(String, Value)> {
    let content = std::fs::read_to_string(path).map_err(io(path, "read"))?;
    let value = serde_json::from_str(&content).map_err(|error| {
        let hint = "the file is damaged or was edited: create it again".to_owned();
        Error::new(ErrorKind::BadInput, format!("{}: {error}", path.display()), hint)
    })?;
    Ok((content, value))
}

/// The names of the data that a file was made from: those of the rows, where their number of sequences is the same.
fn data(value: &Value, rows: Option<&Collected>) -> String {
    let sequences = value["data"]["sequences"].as_u64();
    let same = |row: &&RowResult| {
        let whole = row.settings.max_train.is_none();
        whole && sequences.is_some() && row.training.as_ref().map(|training| training.sequences) == sequences
    };
    let row = rows.and_then(|collected| collected.rows.iter().find(same));
    let names = row.map(|row| row.settings.train.iter().map(|source| source.name.as_str()).collect::<Vec<_>>());
    names.filter(|names| !names.is_empty()).map_or("TRAIN".to_owned(), |names| names.join(" "))
}

/// A setting as a flag; empty if the file lacks it.
fn flag(name: &str, value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => format!(" --{name} {text}"),
        other => format!(" --{name} {other}"),
    }
}

/// `--max-examples`; `null` means no limit.
fn most(settings: &Value) -> String {
    match settings.get("max_examples") {
        None => String::new(),
        Some(Value::Null) => " --max-examples all".to_owned(),
        Some(number) => flag("max-examples", number),
    }
}

fn task_and_data(value: &Value) -> String {
    format!("{} --data DATA{}", flag("task", &value["task"]), flag("max-len", &value["max_len"]))
}

fn stop(settings: &Value) -> String {
    flag("tol", &settings["stop"]["tolerance"]) + &flag("iterations", &settings["stop"]["iterations"])
}

fn analyze_command(value: &Value) -> String {
    let settings = &value["settings"];
    let trace = &settings["trace"];
    let trace = if trace.as_u64() == Some(0) { String::new() } else { flag("trace", trace) };
    format!(
        "qbert analyze --model TUNED{}{}{}{}{}{}{}{trace} --out ANALYSIS",
        task_and_data(value),
        flag("runs", &settings["runs"]),
        flag("fraction", &settings["fraction"]),
        most(settings),
        flag("method", &settings["method"]),
        stop(settings),
        flag("seed", &settings["seed"]),
    )
}

fn landscape_command(value: &Value) -> String {
    let settings = &value["settings"];
    let layers = value["layers"].as_array().into_iter().flatten().filter_map(|layer| layer["layer"].as_u64());
    let layers: String = layers.map(|layer| format!(" {layer}")).collect();
    format!(
        "qbert landscape --model TUNED{} --layer{layers}{}{}{}{}{} --out landscape.json",
        task_and_data(value),
        flag("points", &settings["points"]),
        flag("extent", &settings["extent"]),
        most(settings),
        stop(settings),
        flag("seed", &settings["seed"]),
    )
}

fn attention_command(value: &Value) -> String {
    let settings = &value["settings"];
    format!(
        "qbert attention-kl TUNED QUANTIZED{}{}{}{} --out attention-kl.json",
        task_and_data(value),
        flag("fraction", &settings["fraction"]),
        most(settings),
        flag("seed", &settings["seed"]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_the_settings_of_the_file() {
        let file = serde_json::json!({
            "task": "sst2", "max_len": 128,
            "settings": {"runs": 10, "fraction": 0.1, "max_examples": null, "method": "lanczos",
                "stop": {"iterations": 50, "tolerance": 0.01}, "trace": 0, "seed": 1}
        });
        assert_eq!(
            analyze_command(&file),
            "qbert analyze --model TUNED --task sst2 --data DATA --max-len 128 --runs 10 --fraction 0.1 --max-examples all \
             --method lanczos --tol 0.01 --iterations 50 --seed 1 --out ANALYSIS"
        );
        let file = serde_json::json!({
            "task": "ner", "layers": [{"layer": 0}, {"layer": 5}],
            "settings": {"points": 21, "extent": 0.5, "max_examples": 64, "stop": {"iterations": 40, "tolerance": 0.05},
                "seed": 2}
        });
        assert_eq!(
            landscape_command(&file),
            "qbert landscape --model TUNED --task ner --data DATA --layer 0 5 --points 21 --extent 0.5 --max-examples 64 \
             --tol 0.05 --iterations 40 --seed 2 --out landscape.json"
        );
    }
}
