//! `qbert predict`: a packed model answers arguments, lines or JSON objects.
//!
//! Unlike the other commands it prints as it goes: a program that feeds it line by line gets each answer before it sends
//! the next line.

use std::cell::Cell;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, ErrorKind as IoErrorKind, Read, Write};
use std::path::PathBuf;

use clap::Args;
use qbert_pipeline::{Error, ErrorKind, Result};
use qbert_runtime::{
    Answers, Classification, Error as RuntimeError, Head, Input, Prediction, Session, SessionOptions, Tagging,
    TaskError,
};
use serde_json::Value;

use super::{note, stop};

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

Without TEXT, every line of standard input is a text. With --jsonl, every line is a JSON object with the keys
text, text and text2, words, or question and context; its `id` is copied to the answer.
A line that cannot be answered ends the run, after the lines before it have been answered.
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
    /// Longest sequence in tokens; as long as the model takes if not given.
    #[arg(long)]
    max_len: Option<usize>,
    /// Threads; as many as there are cores if not given.
    #[arg(long)]
    threads: Option<usize>,
}

/// One input, and how messages and answers refer to it.
struct Item {
    input: Input,
    id: Option<Value>,
    /// The line of standard input, counted from 1; `None` for an argument.
    line: Option<usize>,
}

pub(crate) fn run(options: &Options, quiet: bool) -> Result<String> {
    let asking = Asking::new(options, quiet)?;
    let answered =
        if options.text.is_empty() { asking.each_line(std::io::stdin().lock()) } else { asking.each_argument() };
    match answered {
        // The reader closed the pipe because it has seen enough.
        Ok(()) | Err(Failure::ClosedPipe) => Ok(String::new()),
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
    fn input(&self, text: &str) -> Input {
        match (&self.text2, &self.context) {
            (Some(text2), _) => Input::pair(text, text2),
            (None, Some(context)) => Input::question(text, context),
            (None, None) => Input::text(text),
        }
    }

    fn item(&self, number: usize, line: &str) -> Result<Item> {
        if !self.jsonl {
            return Ok(Item { input: self.input(line), id: None, line: Some(number) });
        }
        let wrong = |problem: &str| {
            let hint = "an object has text, text and text2, words, or question and context".to_owned();
            Error::new(ErrorKind::BadInput, format!("{}{problem}", place(Some(number))), hint)
        };
        let value: Value = serde_json::from_str(line).map_err(|error| wrong(&format!("not valid JSON: {error}")))?;
        if !value.is_object() {
            return Err(wrong("not a JSON object"));
        }
        let id = value.get("id").cloned();
        let input = serde_json::from_value(value).map_err(|error| wrong(&error.to_string()))?;
        Ok(Item { input, id, line: Some(number) })
    }

    /// The runtime's error about one item, with its line and a hint that speaks of flags or keys.
    fn refusal(&self, item: &Item, error: RuntimeError) -> Error {
        let hint = match &error {
            RuntimeError::WrongTask { head, .. } => self.hint_for(*head).map(str::to_owned).or(error.hint()),
            RuntimeError::SingleTexts { .. } if self.jsonl => Some("leave `text2` out of the object".to_owned()),
            RuntimeError::SingleTexts { .. } => Some("leave --text2 out".to_owned()),
            // It is too short for any item, so the line does not matter.
            RuntimeError::Task(TaskError::MaxLen { .. }) if self.max_len.is_some() => {
                return Error::from(error).about("--max-len");
            }
            _ => error.hint(),
        };
        let error = Error::from(error);
        Error::new(error.kind(), format!("{}{error}", place(item.line)), hint)
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

/// How a message about an item begins.
fn place(line: Option<usize>) -> String {
    line.map(|number| format!("standard input, line {number}: ")).unwrap_or_default()
}

/// The open model and how its input arrives.
struct Asking<'a> {
    options: &'a Options,
    session: Session,
    /// Whether to print no (more) warnings.
    is_silent: Cell<bool>,
}

impl<'a> Asking<'a> {
    fn new(options: &'a Options, quiet: bool) -> Result<Self> {
        let mut settings = SessionOptions::default().max_len(options.max_len);
        settings.threads = options.threads.unwrap_or(settings.threads);
        let session = Session::open(&options.model, settings).map_err(|error| match error {
            RuntimeError::MaxLen { .. } => Error::from(error).about("--max-len"),
            RuntimeError::Kernel(error) => super::kernel_error(error),
            _ => Error::from(error),
        })?;
        Ok(Self { options, session, is_silent: Cell::new(quiet) })
    }

    /// Refuses what the model cannot answer, and warns once about answers that mean little.
    fn check(&self, item: &Item) -> Result<()> {
        let warning = self.session.check(&item.input).map_err(|error| self.options.refusal(item, error))?;
        if let Some(warning) = warning
            && !self.is_silent.replace(true)
        {
            let hint = if self.options.jsonl { "give objects with text and text2" } else { "give it with --text2" };
            note(&format!("warning: {}{warning}: {hint}", place(item.line)));
        }
        Ok(())
    }

    fn each_argument(&self) -> std::result::Result<(), Failure> {
        let item = |text: &String| Item { input: self.options.input(text), id: None, line: None };
        let items: Vec<Item> = self.options.text.iter().map(item).collect();
        items.iter().try_for_each(|item| self.check(item))?;
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
        let (mut number, mut line) = (0, String::new());
        loop {
            line.clear();
            if reader.read_line(&mut line).map_err(|error| unreadable(number + 1, &error))? == 0 {
                return Ok(());
            }
            number += 1;
            let text = line.strip_suffix('\n').unwrap_or(&line);
            let text = text.strip_suffix('\r').unwrap_or(text);
            if !(self.options.jsonl && text.trim().is_empty()) {
                let item = self.options.item(number, text)?;
                self.check(&item)?;
                waiting.push(item);
            }
            if waiting.len() == TOGETHER || !reader.buffer().contains(&b'\n') {
                self.answer(std::mem::take(waiting))?;
            }
        }
    }

    /// Answers items in one batch and prints the answers up to the first one that fails.
    fn answer(&self, items: Vec<Item>) -> std::result::Result<(), Failure> {
        let _item = stop::Item::begin();
        let results = self.session.predict_each(items.iter().map(|item| &item.input));
        let (mut answered, mut failure) = (Vec::with_capacity(items.len()), None);
        for (item, result) in items.iter().zip(results) {
            match result {
                Ok(prediction) => answered.push((item, prediction)),
                Err(error) => {
                    failure = Some(self.options.refusal(item, error));
                    break;
                }
            }
        }
        write(self.options, &answered)?;
        failure.map_or(Ok(()), |error| Err(error.into()))
    }
}

fn unreadable(number: usize, error: &std::io::Error) -> Error {
    if error.kind() == IoErrorKind::InvalidData {
        let message = format!("{}not valid UTF-8", place(Some(number)));
        return Error::new(ErrorKind::BadInput, message, "save the text as UTF-8".to_owned());
    }
    Error::new(ErrorKind::Environment, format!("cannot read the standard input: {error}"), None)
}

fn write(options: &Options, answers: &[(&Item, Prediction)]) -> std::result::Result<(), Failure> {
    let mut text = String::new();
    for (item, prediction) in answers {
        if options.json || options.jsonl {
            let mut value = serde_json::to_value(prediction).unwrap_or_default();
            if let (Some(id), Value::Object(object)) = (&item.id, &mut value) {
                object.shift_insert(0, "id".to_owned(), id.clone());
            }
            let _ = writeln!(text, "{value}");
        } else {
            text += &for_people(&item.input, prediction);
        }
    }
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(|error| match error.kind() {
        IoErrorKind::BrokenPipe => Failure::ClosedPipe,
        _ => Failure::Error(Error::new(ErrorKind::Environment, format!("cannot write to stdout: {error}"), None)),
    })
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
            let cut = if *removed > 0 { format!("  (the last {removed} pieces were cut off)") } else { String::new() };
            let _ = writeln!(text, "{label}  {:.2} %  {shown}{cut}", 100.0 * probability);
        }
        Prediction::Tagging(Tagging { entities, .. }) => {
            let _ = writeln!(text, "{shown}");
            for entity in entities {
                let (place, sure) = (&entity.characters, 100.0 * entity.probability);
                let _ =
                    writeln!(text, "  {}  {}  {}..{}  {sure:.2} %", entity.kind, entity.text, place.start, place.end);
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
