//! The `qbert-paper` command. `qbert-paper reproduce` makes the rows of the paper's tables on a checkpoint and data.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use qbert_kernels::Compute;
use qbert_model::{Checkpoint, atomic};
use qbert_paper::{
    Experiment, Ran, Ranges, Row, RowResult, Selection, Sensitivity, State, Study, Table as PaperTable, Treatment,
    render,
};
use qbert_pipeline::planning;
use qbert_pipeline::{Error, ErrorKind, Result};
use qbert_train::qat::run::recipe;
use qbert_train::trainer::Settings;

use qbert_cli::progress::Progress;
use qbert_cli::reading::Reading;
use qbert_cli::table::Table;
use qbert_cli::{compute, json, model, note};

/// The Q-BERT paper's tables and figures, on models and data of your own.
#[derive(Debug, Parser)]
#[command(name = "qbert-paper", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
    /// Say nothing but results and errors.
    #[arg(short, long, global = true)]
    quiet: bool,
    /// Say more: kernels and threads, progress every other second, the causes of errors.
    #[arg(short, long, global = true, conflicts_with = "quiet")]
    verbose: bool,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Reproduce(Box<Options>),
}

fn main() -> ExitCode {
    let matches = qbert_cli::matches_of(Arguments::command());
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let Verb::Reproduce(options) = arguments.verb;
    qbert_cli::execute("qbert-paper", arguments.verbose, || run(&options, arguments.quiet))
}

/// Make the rows of the paper's tables on a fine-tuned checkpoint; each is a run with a result file of its own.
#[derive(Debug, Args)]
#[command(mut_arg("task", |argument| argument.required(false).required_unless_present("render")))]
#[command(after_help = "\
Examples:
  qbert-paper reproduce --task sst2 --table main --model tuned --train train.tsv --dev dev.tsv \\
      --sensitivity sensitivity.json --steps 500 --seeds 1,2,3 --out results/reproduce
  qbert-paper reproduce … --table main,groups --list          rows, sizes, and which are done
  qbert-paper reproduce … --rows qbert-mp-2-3,directq-2 --ranges optimal --distill
  qbert-paper reproduce … --steps 0                           quantized without training
  qbert-paper reproduce … --weight-errors --out results/weight-errors-sst2.json
  qbert-paper reproduce --render results/reproduce --out docs/results.md --readme README.md

A result is OUT/TASK/ROW.json, written when the row is done. Rows that are done are skipped, an
interrupted one goes on where it was, and several processes may share the work. --table leaves all
tables, --ranges both kinds of ranges if not given.")]
struct Options {
    /// Tables: main (Tab. 1), groups (2), modules (3), reverse (4), embedding (5), headline.
    #[arg(long, value_delimiter = ',', value_name = "TABLE[,TABLE]")]
    table: Vec<String>,
    /// Fine-tuned checkpoint directory, or a hub id.
    #[arg(long, required_unless_present = "render")]
    model: Option<String>,
    /// Files to learn from.
    #[arg(long, required_unless_present = "render", num_args = 1.., value_name = "FILE")]
    train: Vec<PathBuf>,
    /// File to judge by.
    #[arg(long, required_unless_present = "render", value_name = "FILE")]
    dev: Option<PathBuf>,
    /// Sensitivities of the layers, measured by `qbert analyze`, for rows with mixed precision.
    #[arg(long, value_name = "FILE")]
    sensitivity: Option<PathBuf>,
    /// Directory of the results; with --render, the page to write, with --weight-errors, the file.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Make a Markdown page of the results in this directory, with figures beside it, instead of making rows.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["task", "table", "model", "train", "dev", "sensitivity", "list"])]
    render: Option<PathBuf>,
    /// With --render, also put a table of the results between `<!-- results -->` and `<!-- /results -->` of this file.
    #[arg(long, value_name = "FILE", requires = "render")]
    readme: Option<PathBuf>,
    #[command(flatten)]
    reading: Reading,
    #[command(flatten)]
    choice: Choice,
    #[command(flatten)]
    budget: Budget,
    /// Keep the quantized checkpoints, with packed models, beside the results.
    #[arg(long, help_heading = "Run")]
    keep: bool,
    /// Make rows again that were made with other settings.
    #[arg(long, help_heading = "Run")]
    redo: bool,
    /// Only say which rows there are, how large they are, and which are done.
    #[arg(long, help_heading = "Run")]
    list: bool,
    /// Only measure what the plan of each row does to the weights before any training; --out is the file.
    #[arg(long, help_heading = "Run", conflicts_with_all = ["list", "render"])]
    weight_errors: bool,
    /// Threads; as many as there are cores if not given.
    #[arg(long, help_heading = "Run")]
    threads: Option<usize>,
    /// Print results as JSON.
    #[arg(long, help_heading = "Run")]
    json: bool,
}

/// Which rows.
#[derive(Debug, Args)]
#[command(next_help_heading = "Rows")]
struct Choice {
    /// Ranges of the weights: the paper's, those with the least squared error, or every row with both.
    #[arg(long, value_enum, default_value = "both")]
    ranges: WhichRanges,
    /// Round weights so that they make up for each other's errors, which the paper does not do: `no`, `yes`, or every row
    /// `both` ways.
    #[arg(long, value_enum, num_args = 0..=1, default_value = "no", default_missing_value = "yes")]
    compensate: Extra,
    /// Learn from the full-precision model, too, which the paper does not do: `no`, `yes`, or every row `both` ways.
    #[arg(long, value_enum, num_args = 0..=1, default_value = "no", default_missing_value = "yes")]
    distill: Extra,
    /// Seeds; every row is trained once with each.
    #[arg(long, value_delimiter = ',', value_name = "N[,N]", default_value = "1")]
    seeds: Vec<u64>,
    /// Only these rows or methods: qbert-mp-2-3, directq:4.
    #[arg(long, num_args = 1.., value_name = "NAME")]
    rows: Vec<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum WhichRanges {
    MinMax,
    Optimal,
    Both,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Extra {
    No,
    Yes,
    Both,
}

impl Extra {
    fn choices(self) -> Vec<bool> {
        match self {
            Self::No => vec![false],
            Self::Yes => vec![true],
            Self::Both => vec![false, true],
        }
    }
}

/// The same for every row.
#[derive(Debug, Args)]
#[command(next_help_heading = "Budget (the task's own recipe if not given)")]
struct Budget {
    /// Optimizer steps; 0 to quantize without training.
    #[arg(long, conflicts_with = "epochs")]
    steps: Option<usize>,
    /// Passes over the data.
    #[arg(long)]
    epochs: Option<usize>,
    /// Highest learning rate.
    #[arg(long)]
    lr: Option<f64>,
    /// Sequences per batch.
    #[arg(long)]
    batch: Option<usize>,
    /// Learn from the first N examples only.
    #[arg(long, value_name = "N")]
    max_train: Option<usize>,
    /// Judge by the first N examples only.
    #[arg(long, value_name = "N")]
    max_dev: Option<usize>,
}

impl Budget {
    fn apply(&self, mut settings: Settings) -> Settings {
        settings.steps = self.steps;
        settings.epochs = self.epochs.unwrap_or(settings.epochs);
        settings.batch = self.batch.unwrap_or(settings.batch);
        settings.optimizer.learning_rate = self.lr.unwrap_or(settings.optimizer.learning_rate);
        settings
    }
}

impl Choice {
    fn selection(&self, tables: &[String], trained: bool) -> Result<Selection> {
        let tables: Vec<PaperTable> = tables
            .iter()
            .map(|text| text.parse().map_err(|error: Error| error.about("--table")))
            .collect::<Result<_>>()?;
        Ok(Selection {
            tables: if tables.is_empty() { PaperTable::ALL.to_vec() } else { tables },
            ranges: match self.ranges {
                WhichRanges::MinMax => vec![Ranges::MinMax],
                WhichRanges::Optimal => vec![Ranges::Optimal],
                WhichRanges::Both => Ranges::ALL.to_vec(),
            },
            compensate: self.compensate.choices(),
            distill: self.distill.choices(),
            seeds: self.seeds.clone(),
            trained,
            names: self.rows.iter().flat_map(|text| names(text)).collect(),
        })
    }
}

/// Names with commas between them; a comma before an option of a method (`q-bert:4,groups=head`) is part of the name.
fn names(text: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for part in text.split(',') {
        match all.last_mut().filter(|_| part.contains('=')) {
            Some(last) => *last += &format!(",{part}"),
            None => all.push(part.to_owned()),
        }
    }
    all
}

fn run(options: &Options, quiet: bool) -> Result<String> {
    if let Some(directory) = &options.render {
        let (page, readme) = (&options.out, options.readme.as_ref());
        atomic::check_file(page)?;
        let readme_flag = readme.map(|file| format!(" --readme {}", file.display())).unwrap_or_default();
        let (from, to) = (directory.display(), page.display());
        let rendered = render(directory, &format!("qbert-paper reproduce --render {from} --out {to}{readme_flag}"))?;
        rendered.write(page, readme.map(PathBuf::as_path))?;
        let figures = rendered.figures.iter().map(|(name, _)| page.with_file_name("figures").join(name));
        let written = std::iter::once(page.clone()).chain(figures).chain(readme.cloned());
        return Ok(written.map(|path| format!("{}\n", path.display())).collect());
    }
    let experiment = experiment(options, quiet)?;
    let trained = experiment.budget.steps.unwrap_or(experiment.budget.epochs) > 0;
    let selection = options.choice.selection(&options.table, trained)?;
    let study = Study::open(experiment)?;
    let rows = study.rows(&selection)?;
    if options.list {
        return list(&study, &rows, options.json);
    }
    if options.weight_errors {
        return weight_errors(&study, &rows, options, quiet);
    }
    // Said before anything is computed: rows that cannot be made, or were made differently.
    rows.iter().try_for_each(|row| study.check(row))?;
    let compute = compute(options.threads)?;
    let results = all(&study, &rows, &compute, quiet)?;
    Ok(if options.json { json(&results) } else { text(&results) })
}

fn experiment(options: &Options, quiet: bool) -> Result<Experiment> {
    let task = options.reading.task()?;
    let directory = model::directory(options.model.as_deref().unwrap_or_default(), quiet)?;
    let layers = Checkpoint::open(&directory)?.config().layers;
    let sensitivity = options.sensitivity.as_ref().map(|path| {
        let measured = planning::read_sensitivity(path, layers)?;
        if let Some(other) = measured.task.filter(|other| other != task.name()) {
            let message = format!("{}: measured on {other}, but the task is {task}", path.display());
            let hint = "give the sensitivities of this task".to_owned();
            return Err(Error::new(ErrorKind::BadInput, message, hint));
        }
        Ok(Sensitivity { path: path.clone(), layers: measured.layers })
    });
    Ok(Experiment {
        task,
        train: options.train.clone(),
        dev: options.dev.clone().unwrap_or_default(),
        read: options.reading.options(true)?,
        max_len: options.reading.max_len(&directory)?,
        model: directory,
        sensitivity: sensitivity.transpose()?,
        budget: options.budget.apply(recipe(task)),
        max_train: options.budget.max_train,
        max_dev: options.budget.max_dev,
        out: options.out.clone(),
        keep: options.keep,
        redo: options.redo,
    })
}

/// Makes all rows. One that fails does not keep the others from being made; it is an error in the end.
fn all(study: &Study, rows: &[Row], compute: &Compute, quiet: bool) -> Result<Vec<RowResult>> {
    let mut progress = Progress::new("baseline", quiet);
    let ran = study.baseline(compute, |done, total| progress.at(done, total, ""))?;
    drop(progress);
    let (Ran::Before(baseline) | Ran::Now(baseline)) = ran else { return Ok(Vec::new()) };
    let say = |text: String| (!quiet).then(|| note(&text));
    say(format!("baseline: {}", figures(&baseline)));
    let (mut results, mut failed) = (Vec::new(), Vec::new());
    for (index, row) in rows.iter().enumerate() {
        if row.treatment == Treatment::FullPrecision {
            results.push((*baseline).clone());
            continue;
        }
        let place = format!("[{}/{}] {row}", index + 1, rows.len());
        if !matches!(study.state(row)?, State::Done(_)) {
            say(place.clone());
        }
        match study.run(row, &baseline, compute, &mut Progress::new("quantize", quiet).stoppable()) {
            Ok(Ran::Before(result)) => results.push(*result),
            Ok(Ran::Now(result)) => {
                say(format!("{place}: {}", figures(&result)));
                results.push(*result);
            }
            Ok(Ran::Elsewhere) => {
                say(format!("{place}: another process is making it"));
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => return Err(error),
            Err(error) => {
                note(&format!("{place}: error: {error}"));
                failed.push((row.id(), error));
            }
        }
    }
    let count = failed.len();
    match failed.into_iter().next() {
        None => Ok(results),
        Some((id, error)) if count == 1 => Err(error.about(&id)),
        Some((id, error)) => {
            let message = format!("{count} of {} rows could not be made; the first is {id}: {error}", rows.len());
            Err(Error::new(error.kind(), message, error.hint().map(str::to_owned)))
        }
    }
}

/// What quantization does to the weights, without any training.
fn weight_errors(study: &Study, rows: &[Row], options: &Options, quiet: bool) -> Result<String> {
    let mut progress = Progress::new("weights", quiet);
    let compute = compute(options.threads)?;
    let found = study.weight_errors(rows, compute.threads(), |done, total| progress.at(done, total, ""))?;
    drop(progress);
    found.write(&options.out)?;
    if options.json {
        return Ok(json(&found));
    }
    let mut table = Table::new(["plan", "ranges", "encoder", "word embedding", "position embedding"]);
    for row in &found.rows {
        let [encoder, word, position] = [row.encoder, row.word, row.position].map(|value| format!("{value:.4}"));
        table.row([row.name.clone(), row.ranges.name().to_owned(), encoder, word, position]);
    }
    Ok(format!("squared error of the weights, relative to their squares\n{table}\n{}\n", options.out.display()))
}

/// The figures of a row in one line.
fn figures(result: &RowResult) -> String {
    let value = |metrics: &qbert_paper::Metrics| metrics.get(&result.metric).copied().unwrap_or(f64::NAN);
    let full = value(&result.full_precision);
    let beside = |what: &str, own: f64| format!("{what} {own:.2} ({:+.2})", own - full);
    let mut parts = vec![format!("{} {full:.2} in full precision", result.metric)];
    parts.extend(result.post_training.as_ref().map(|own| beside("without training", value(own))));
    parts.extend(result.last.as_ref().map(|own| beside("trained", value(&own.metrics))));
    parts.join(", ")
}

fn text(results: &[RowResult]) -> String {
    let Some(first) = results.first() else { return "nothing was made\n".to_owned() };
    let header = ["row", "not trained", "trained", "drop", "encoder MiB", "times", "file MB"];
    let mut table = Table::new(header);
    for result in results {
        let value = |metrics: Option<&qbert_paper::Metrics>| {
            metrics.and_then(|own| own.get(&result.metric)).map_or("–".to_owned(), |value| format!("{value:.2}"))
        };
        let trained = result.last.as_ref().map(|epoch| &epoch.metrics);
        let drop = result.drop.last.as_ref().or(result.drop.post_training.as_ref());
        let sizes = &result.sizes;
        table.row([
            result.id.clone(),
            value(Some(result.post_training.as_ref().unwrap_or(&result.full_precision))),
            value(trained),
            value(drop),
            format!("{:.2}", sizes.paper_mib.encoder),
            format!("{:.1}", sizes.compression.encoder),
            format!("{:.2}", sizes.file_bytes as f64 / 1e6),
        ]);
    }
    format!("{} on {} examples\n{table}", first.metric, first.examples)
}

/// A row of `--list`.
#[derive(Debug, serde::Serialize)]
struct Listed {
    row: String,
    method: String,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    difference: Option<String>,
    encoder_mib: f64,
    total_mib: f64,
    encoder_times: f64,
    bits: qbert_paper::Bits,
}

fn list(study: &Study, rows: &[Row], as_json: bool) -> Result<String> {
    let listed = rows.iter().map(|row| {
        let (size, [encoder_times, _]) = study.paper_sizes(row)?;
        let (state, difference) = match study.state(row)? {
            State::Done(_) => ("done", None),
            State::Differs(difference) => ("made with other settings", Some(difference)),
            State::Begun => ("begun", None),
            State::Open => ("not yet", None),
        };
        Ok(Listed {
            row: row.id(),
            method: row.method.to_string(),
            state,
            difference,
            encoder_mib: size.encoder,
            total_mib: size.total,
            encoder_times,
            bits: study.settings(row)?.bits,
        })
    });
    let listed = listed.collect::<Result<Vec<Listed>>>()?;
    if as_json {
        return Ok(json(&listed));
    }
    let mut table = Table::new(["row", "bits per layer", "encoder MiB", "times", "with embedding", "state"]);
    for row in &listed {
        let Listed { bits, .. } = row;
        let digits = |all: &[u8]| all.iter().map(u8::to_string).collect::<Vec<_>>().join(" ");
        let (attention, feed_forward) = (digits(&bits.attention), digits(&bits.feed_forward));
        table.row([
            row.row.clone(),
            if attention == feed_forward { attention } else { format!("{attention} | {feed_forward}") },
            format!("{:.2}", row.encoder_mib),
            format!("{:.1}", row.encoder_times),
            format!("{:.2}", row.total_mib),
            row.state.to_owned(),
        ]);
    }
    let done = listed.iter().filter(|row| row.state == "done").count();
    Ok(format!("{table}\n{done} of {} rows are done\n", listed.len()))
}
