//! `qbert predict`: a packed model answers arguments, lines or JSON objects.
//!
//! Unlike the other commands it prints as it goes: a program that feeds it line by line gets each answer before it sends
//! the next line.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, ErrorKind as IoErrorKind, Read, Write};
use std::path::PathBuf;

use clap::Args;
use qbert_pipeline::{Error, ErrorKind, Result};
use qbert_runtime::{
    Answers, Classification, Error as RuntimeError, Head, Input, Prediction, Session, SessionOptions, Tagging,
    TaskError,
};
use qbert_tasks::files::{LONGEST_LINE, read_line_limited};
use serde_json::Value;
use serde_json::value::RawValue;

#[cfg(feature = "parquet")]
use super::parquet_rows::{Answering, RowFormat, RowOptions, answer_rows};
use super::{note, one_line, printable, stop};

/// The largest number of inputs in one batch.
const TOGETHER: usize = 256;

/// Ask a packed model: labels, entities or answers.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qbert predict model.qbert \"a film to remember\"
  qbert predict model.qbert --json < lines.txt
  qbert predict model.qbert --jsonl < objects.jsonl
  qbert predict entailment.qbert \"two owls sleep\" --text2 \"birds are asleep\"
  qbert predict answers.qbert \"who saw the owls?\" --context \"Mira saw two owls.\"
  qbert predict model.qbert --data reviews.parquet --column text=review --out answers.parquet

Without TEXT, every line of standard input is a text. With --jsonl, every line is a JSON object with the keys
text, text and text2, words, or question and context; its `id` is copied to the answer as it is written.
A line that cannot be answered ends the run, after the lines before it have been answered. With --keep-going, its
error stands in its place, and the run ends with exit code 2.
With --data, the inputs are columns of Parquet files, named as the keys above. The output has all columns of the
input and those of the answers, named as with --json. Memory does not grow with the number of rows.
Offsets count characters (Unicode code points), from 0.")]
pub(crate) struct Options {
    /// The packed model.
    model: PathBuf,
    /// Texts or questions.
    text: Vec<String>,
    /// The second text of every pair, for models trained on pairs.
    #[arg(long, value_name = "TEXT", conflicts_with = "context")]
    text2: Option<String>,
    /// The text to find answers in, for models that answer questions.
    #[arg(long, value_name = "TEXT")]
    context: Option<String>,
    /// Read one JSON object per line, and print one per line.
    #[arg(long, conflicts_with_all = ["text", "text2", "context"])]
    jsonl: bool,
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
    /// Answer the other inputs if one cannot be answered, and print its error in its place.
    #[arg(long)]
    keep_going: bool,
    /// Longest sequence in tokens; as long as the model takes if not given.
    #[arg(long)]
    max_len: Option<usize>,
    /// Longest input in bytes for models of entities and questions; 1 MiB if not given. Texts to classify are cut instead.
    #[arg(long, value_name = "BYTES")]
    max_input_bytes: Option<usize>,
    /// Threads; as many as there are cores if not given.
    #[arg(long)]
    threads: Option<usize>,
    #[cfg(feature = "parquet")]
    #[command(flatten)]
    rows: RowOptions,
    /// Write the rows with their answers to this Parquet file.
    #[cfg(feature = "parquet")]
    #[arg(long, value_name = "FILE", requires = "data", help_heading = "Parquet", conflicts_with_all = ["jsonl", "json", "text2", "context"])]
    out: Option<PathBuf>,
    /// The format of --data and --out.
    #[cfg(feature = "parquet")]
    #[arg(long, value_enum, requires = "data", help_heading = "Parquet")]
    format: Option<RowFormat>,
}

/// One input or why there is none, and how messages and answers refer to it.
struct Item {
    input: Result<Input>,
    /// As it is written: a number in it may have any length.
    id: Option<Box<RawValue>>,
    /// The line of standard input, counted from 1; `None` for an argument.
    line: Option<usize>,
}

pub(crate) fn run(options: &Options, quiet: bool) -> Result<String> {
    #[cfg(feature = "parquet")]
    if !options.rows.data.is_empty() {
        return options.answer_files(quiet);
    }
    let asking = Asking::new(options, quiet)?;
    let answered =
        if options.text.is_empty() { asking.each_line(std::io::stdin().lock()) } else { asking.each_argument() };
    match answered {
        Ok(()) => asking.summary().map(|()| String::new()),
        // The reader closed the pipe because it has seen enough.
        Err(Failure::ClosedPipe) => Ok(String::new()),
        Err(Failure::Error(error)) => Err(error),
    }
}

/// Why printing answers ended early.
enum Failure {
    ClosedPipe,
    Error(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl Options {
    /// Answers the rows of Parquet files.
    #[cfg(feature = "parquet")]
    fn answer_files(&self, quiet: bool) -> Result<String> {
        let Some(out) = &self.out else {
            return Err(bad("--data without --out", "name the Parquet file to write with --out FILE"));
        };
        qbert_model::atomic::check_file(out)?;
        let asking = Asking::new(self, quiet)?;
        let answering = Answering {
            session: &asking.session,
            keeps_going: self.keep_going,
            quiet,
            refusal: &|error| self.refusal(error),
            was_cut: &was_cut,
        };
        let found = answer_rows(&self.rows, out, &answering)?;
        let Tally { asked, cut, failed } = &asking.tally;
        asked.set(found.rows);
        cut.set(found.cut);
        failed.set(found.failed);
        if !quiet {
            note(&format!("{}: {} rows", out.display(), found.rows));
        }
        asking.summary().map(|()| String::new())
    }

    fn input(&self, text: &str) -> Input {
        match (&self.text2, &self.context) {
            (Some(text2), _) => Input::pair(text, text2),
            (None, Some(context)) => Input::question(text, context),
            (None, None) => Input::text(text),
        }
    }

    fn item(&self, number: usize, line: &[u8]) -> Item {
        let (input, id) = match std::str::from_utf8(line) {
            _ if line.len() > LONGEST_LINE => (Err(too_long()), None),
            Err(_) => (Err(bad("not valid UTF-8", "save the text as UTF-8")), None),
            Ok(text) if self.jsonl => object(text),
            Ok(text) => (Ok(self.input(text)), None),
        };
        Item { input, id, line: Some(number) }
    }

    /// The runtime's error about an input, with a hint that speaks of flags or keys.
    fn refusal(&self, error: RuntimeError) -> Error {
        let hint = match &error {
            RuntimeError::WrongTask { head, .. } => self.hint_for(*head).map(str::to_owned).or(error.hint()),
            RuntimeError::SingleTexts { .. } if self.jsonl => Some("leave `text2` out of the object".to_owned()),
            RuntimeError::SingleTexts { .. } => Some("leave --text2 out".to_owned()),
            RuntimeError::Task(TaskError::MaxLen { .. }) if self.max_len.is_some() => {
                return Error::from(error).about("--max-len");
            }
            _ => error.hint(),
        };
        let error = Error::from(error);
        Error::new(error.kind(), error.to_string(), hint)
    }

    fn hint_for(&self, head: Head) -> Option<&'static str> {
        match (head, self.jsonl) {
            (Head::SequenceClassification, true) => Some("an object for this model has text, or text and text2"),
            (Head::SequenceClassification, false) => Some("leave --context out; a second text is given with --text2"),
            (Head::TokenClassification, true) => Some("an object for this model has text, or words"),
            (Head::TokenClassification, false) => Some("leave --context and --text2 out"),
            (Head::QuestionAnswering, true) => Some("an object for this model has question and context"),
            (Head::QuestionAnswering, false) => {
                Some("TEXT is the question; give the text that answers it with --context TEXT")
            }
            (Head::None, _) => None,
        }
    }
}

fn bad(problem: &str, hint: &str) -> Error {
    Error::new(ErrorKind::BadInput, problem.to_owned(), hint.to_owned())
}

fn too_long() -> Error {
    bad(&format!("the line has more than {} MiB", LONGEST_LINE >> 20), "break it into shorter ones")
}

/// The input and the id of a line that is a JSON object.
fn object(text: &str) -> (Result<Input>, Option<Box<RawValue>>) {
    let wrong = |problem: &str| bad(problem, "an object has text, text and text2, words, or question and context");
    let invalid = |error: serde_json::Error| wrong(&format!("not valid JSON: {error}"));
    let value: Value = match serde_json::from_str(text).map_err(invalid) {
        Ok(value) => value,
        Err(error) => return (Err(error), None),
    };
    if !value.is_object() {
        return (Err(wrong("not a JSON object")), None);
    }
    let mut parts: HashMap<String, Box<RawValue>> = serde_json::from_str(text).unwrap_or_default();
    (serde_json::from_value(value).map_err(|error| wrong(&error.to_string())), parts.remove("id"))
}

/// How a message about an item begins.
fn place(line: Option<usize>) -> String {
    line.map(|number| format!("standard input, line {number}: ")).unwrap_or_default()
}

/// The open model and how its input arrives.
struct Asking<'a> {
    options: &'a Options,
    session: Session,
    quiet: bool,
    /// Whether to print no (more) warnings.
    is_silent: Cell<bool>,
    tally: Tally,
}

/// What became of the inputs so far.
#[derive(Default)]
struct Tally {
    asked: Cell<usize>,
    cut: Cell<usize>,
    failed: Cell<usize>,
}

fn count(cell: &Cell<usize>) {
    cell.set(cell.get() + 1);
}

impl<'a> Asking<'a> {
    fn new(options: &'a Options, quiet: bool) -> Result<Self> {
        let mut settings = SessionOptions::default().max_len(options.max_len);
        settings.threads = options.threads.unwrap_or(settings.threads);
        settings.max_input_bytes = options.max_input_bytes.unwrap_or(settings.max_input_bytes);
        let session = Session::open(&options.model, settings).map_err(|error| match error {
            RuntimeError::MaxLen { .. } => Error::from(error).about("--max-len"),
            RuntimeError::Kernel(error) => super::kernel_error(error),
            _ => Error::from(error),
        })?;
        Ok(Self { options, session, quiet, is_silent: Cell::new(quiet), tally: Tally::default() })
    }

    /// Says what the answers do not show: texts that were cut, and inputs that have no answer.
    fn summary(&self) -> Result<()> {
        let Tally { asked, cut, failed } = &self.tally;
        let (asked, cut, failed) = (asked.get(), cut.get(), failed.get());
        if cut > 0 && !self.quiet {
            let most = self.session.max_len();
            note(&format!("note: {cut} of {asked} inputs were cut to fit sequences of {most} tokens"));
        }
        if failed > 0 {
            let message = format!("{failed} of {asked} inputs could not be answered");
            return Err(bad(&message, "their errors stand in the places of their answers"));
        }
        Ok(())
    }

    /// The item, refused if the model cannot answer it. Warns once about answers that mean little.
    fn checked(&self, item: Item) -> std::result::Result<Item, Failure> {
        let warning = item.input.as_ref().ok().map(|input| self.session.check(input)).transpose();
        match warning.map(Option::flatten) {
            Ok(Some(warning)) if !self.is_silent.replace(true) => {
                let hint = if self.options.jsonl { "give objects with text and text2" } else { "give it with --text2" };
                note(&format!("warning: {}{warning}: {hint}", place(item.line)));
            }
            Ok(_) => {}
            Err(error) => return self.kept(Item { input: Err(self.options.refusal(error)), ..item }),
        }
        self.kept(item)
    }

    /// The item, unless it is a bad one that ends the run.
    fn kept(&self, item: Item) -> std::result::Result<Item, Failure> {
        match item.input {
            Err(error) if !self.options.keep_going => Err(Failure::Error(placed(error, item.line))),
            input => Ok(Item { input, ..item }),
        }
    }

    fn each_argument(&self) -> std::result::Result<(), Failure> {
        let item = |text: &String| self.checked(Item { input: Ok(self.options.input(text)), id: None, line: None });
        let items = self.options.text.iter().map(item).collect::<std::result::Result<_, _>>()?;
        self.answer(items)
    }

    /// Answers lines as they arrive. Lines that have arrived together are answered together.
    fn each_line(&self, input: impl Read) -> std::result::Result<(), Failure> {
        let mut waiting = Vec::new();
        let ended = self.read_lines(input, &mut waiting);
        // A bad line ends the run, but the lines before it are answered.
        self.answer(waiting)?;
        ended
    }

    /// Reads lines up to the end or a bad one. Leaves items that are not answered yet in `waiting`.
    fn read_lines(&self, input: impl Read, waiting: &mut Vec<Item>) -> std::result::Result<(), Failure> {
        let mut reader = BufReader::with_capacity(1 << 16, input);
        let (mut number, mut line) = (0, Vec::new());
        loop {
            line.clear();
            if read_line_limited(&mut reader, &mut line).map_err(|error| unreadable(&error))? == 0 {
                return Ok(());
            }
            number += 1;
            if line.len() > LONGEST_LINE && self.options.keep_going {
                skip_line(&mut reader).map_err(|error| unreadable(&error))?;
            }
            let text = line.strip_suffix(b"\n").unwrap_or(&line);
            let text = text.strip_suffix(b"\r").unwrap_or(text);
            if !(self.options.jsonl && text.trim_ascii().is_empty()) {
                waiting.push(self.checked(self.options.item(number, text))?);
            }
            if waiting.len() == TOGETHER || !reader.buffer().contains(&b'\n') {
                self.answer(std::mem::take(waiting))?;
            }
        }
    }

    /// Answers items in one batch and prints the answers, up to the first one that fails unless failures are kept.
    fn answer(&self, items: Vec<Item>) -> std::result::Result<(), Failure> {
        let _item = stop::Item::begin();
        let inputs: Vec<&Input> = items.iter().filter_map(|item| item.input.as_ref().ok()).collect();
        let mut results = self.session.predict_each(inputs).into_iter();
        let (mut text, mut failure) = (String::new(), None);
        for item in items {
            let answered = match item.input {
                Ok(input) => match results.next() {
                    Some(result) => result.map_err(|error| self.options.refusal(error)).map(|answer| (input, answer)),
                    None => break,
                },
                Err(error) => Err(error),
            };
            count(&self.tally.asked);
            let shown =
                Shown { id: item.id.as_deref(), line: item.line, as_json: self.options.json || self.options.jsonl };
            match answered {
                Ok((input, prediction)) => {
                    if was_cut(&prediction) {
                        count(&self.tally.cut);
                    }
                    text += &shown.answer(&input, &prediction);
                }
                Err(error) if self.options.keep_going => {
                    count(&self.tally.failed);
                    text += &shown.failure(&error);
                }
                Err(error) => {
                    failure = Some(placed(error, item.line));
                    break;
                }
            }
        }
        print(&text)?;
        failure.map_or(Ok(()), |error| Err(error.into()))
    }
}

/// The error with the place that it is about.
fn placed(error: Error, line: Option<usize>) -> Error {
    let hint = error.hint().map(str::to_owned);
    Error::new(error.kind(), format!("{}{error}", place(line)), hint)
}

fn unreadable(error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Environment, format!("cannot read the standard input: {error}"), None)
}

/// Reads to the end of the line without keeping it.
fn skip_line(reader: &mut impl BufRead) -> std::io::Result<()> {
    reader.skip_until(b'\n').map(drop)
}

fn was_cut(prediction: &Prediction) -> bool {
    match prediction {
        Prediction::Classification(found) => found.removed > 0,
        Prediction::LabelSet(found) => found.removed > 0,
        Prediction::Score(found) => found.removed > 0,
        Prediction::Tagging(found) => found.removed > 0,
        Prediction::Answers(found) => found.removed > 0,
        _ => false,
    }
}

fn print(text: &str) -> std::result::Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(printable(text).as_bytes()).and_then(|()| stdout.flush()).map_err(|error| match error.kind() {
        IoErrorKind::BrokenPipe => Failure::ClosedPipe,
        _ => Failure::Error(Error::new(ErrorKind::Environment, format!("cannot write to stdout: {error}"), None)),
    })
}

/// How the result of one item is printed.
struct Shown<'a> {
    id: Option<&'a RawValue>,
    line: Option<usize>,
    as_json: bool,
}

impl Shown<'_> {
    fn answer(&self, input: &Input, prediction: &Prediction) -> String {
        if self.as_json {
            self.object(&serde_json::to_value(prediction).unwrap_or_default())
        } else {
            for_people(input, prediction)
        }
    }

    fn failure(&self, error: &Error) -> String {
        if !self.as_json {
            return format!("error: {}{error}\n", place(self.line));
        }
        let mut value = serde_json::json!({ "error": error.to_string() });
        if let (Some(line), Value::Object(fields)) = (self.line, &mut value) {
            fields.insert("line".to_owned(), line.into());
        }
        self.object(&value)
    }

    /// A JSON object with the id first, as it is written.
    fn object(&self, value: &Value) -> String {
        let text = value.to_string();
        match (self.id, text.strip_prefix('{')) {
            (Some(id), Some(rest)) => format!("{{\"id\":{id},{rest}\n"),
            _ => text + "\n",
        }
    }
}

fn cut_note(removed: usize) -> String {
    if removed > 0 { format!("  (the last {removed} pieces were cut off)") } else { String::new() }
}

fn for_people(input: &Input, prediction: &Prediction) -> String {
    let shown = match input {
        Input::Text { text } => text.clone(),
        Input::Pair { text, text2 } => format!("{text} | {text2}"),
        Input::Words { words } => words.join(" "),
        Input::Question { question, .. } => question.clone(),
        _ => String::new(),
    };
    let mut text = String::new();
    match prediction {
        Prediction::Classification(Classification { label, probability, removed, .. }) => {
            let cut = cut_note(*removed);
            let _ = writeln!(text, "{}  {:.2} %  {shown}{cut}", one_line(label), 100.0 * probability);
        }
        Prediction::LabelSet(found) => {
            let named = |label: &String| {
                let own = found.scores.iter().find(|score| score.label == *label);
                format!("{} {:.2} %", one_line(label), 100.0 * own.map_or(0.0, |score| score.probability))
            };
            let labels: Vec<String> = found.labels.iter().map(named).collect();
            let labels = if labels.is_empty() { "no label".to_owned() } else { labels.join(", ") };
            let _ = writeln!(text, "{labels}  {shown}{}", cut_note(found.removed));
        }
        Prediction::Score(found) => {
            let _ = writeln!(text, "{:.4}  {shown}{}", found.score, cut_note(found.removed));
        }
        Prediction::Tagging(Tagging { entities, .. }) => {
            let _ = writeln!(text, "{shown}");
            for entity in entities {
                let (place, sure) = (&entity.characters, 100.0 * entity.probability);
                let kind = one_line(&entity.kind);
                let _ = writeln!(text, "  {kind}  {}  {}..{}  {sure:.2} %", entity.text, place.start, place.end);
            }
        }
        Prediction::Answers(Answers { answers, .. }) => {
            let _ = writeln!(text, "{shown}");
            if let Some(best) = answers.first() {
                let (place, sure) = (&best.characters, 100.0 * best.probability);
                let _ = writeln!(text, "  {}  {}..{}  {sure:.2} %", best.text, place.start, place.end);
            }
        }
        _ => {}
    }
    text
}
