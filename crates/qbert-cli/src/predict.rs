//! `qbert predict`: a packed model answers, from arguments, lines or JSON objects.
//!
//! Unlike the other verbs it writes as it goes: whoever feeds it line by line gets each answer before the next line.

use std::cell::Cell;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, ErrorKind as IoErrorKind, Read, Write};
use std::path::PathBuf;

use clap::Args;
use qbert_model::Head;
use qbert_pipeline::{Error, ErrorKind, Result};
use qbert_runtime::{
    Answers, Classification, Error as RuntimeError, Input, Prediction, Session, SessionOptions, Tagging,
};
use qbert_tasks::{Error as TaskError, Kind, Task};
use serde_json::Value;

use super::note;

/// The most inputs that are answered together.
const TOGETHER: usize = 256;

/// Ask a packed model.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qbert predict model.qbert \"a film to remember\"
  qbert predict model.qbert --json < lines.txt
  qbert predict model.qbert --jsonl < objects.jsonl
  qbert predict entailment.qbert \"two owls sleep\" --text2 \"birds are asleep\"
  qbert predict answers.qbert \"who saw the owls?\" --context \"Mira saw two owls.\"

Without TEXT every line of the standard input is one. With --jsonl every line is an object with the keys
text, text and text2, words, or question and context; its `id` is part of the answer.
A line that cannot be answered ends the run, after the answers to the lines before it.
Offsets count characters (Unicode code points), from 0.")]
pub(crate) struct Options {
    /// The packed model.
    model: PathBuf,
    /// Texts, or questions.
    text: Vec<String>,
    /// The second text of every pair; for models of pairs.
    #[arg(long, value_name = "TEXT", conflicts_with = "context")]
    text2: Option<String>,
    /// Where answers are looked for; for models that answer questions.
    #[arg(long, value_name = "TEXT")]
    context: Option<String>,
    /// Read JSON objects, one per line; print the same.
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

/// One question to the model, and what stands for it in messages and answers.
struct Item {
    input: Input,
    id: Option<Value>,
    /// The line of the standard input, from 1; none for an argument.
    line: Option<usize>,
}

pub(crate) fn run(options: &Options, quiet: bool) -> Result<String> {
    let asking = Asking::new(options, quiet)?;
    let answered =
        if options.text.is_empty() { asking.each_line(std::io::stdin().lock()) } else { asking.each_argument() };
    match answered {
        // Whoever closed the pipe has seen enough.
        Ok(()) | Err(Failure::Closed) => Ok(String::new()),
        Err(Failure::Said(error)) => Err(error),
    }
}

enum Failure {
    Closed,
    Said(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Said(error)
    }
}

impl Options {
    fn input(&self, text: &str) -> Input {
        let text = text.to_owned();
        match (&self.text2, &self.context) {
            (Some(text2), _) => Input::Pair { text, text2: text2.clone() },
            (None, Some(context)) => Input::Question { question: text, context: context.clone() },
            (None, None) => Input::Text { text },
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
        if let Some(problem) = problem_of(&value) {
            return Err(wrong(&problem));
        }
        let id = value.get("id").cloned();
        let input = serde_json::from_value(value).map_err(|_| wrong("an object that asks nothing"))?;
        Ok(Item { input, id, line: Some(number) })
    }

    /// An error about one item: says which, and what to do in the terms of how it was given.
    fn refusal(&self, item: &Item, error: RuntimeError) -> Error {
        let hint = match &error {
            RuntimeError::WrongTask { head, .. } => self.hint_for(*head).map(str::to_owned).or(error.hint()),
            // It is too short for any item.
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

/// Where an item stands, as messages begin.
fn place(line: Option<usize>) -> String {
    line.map(|number| format!("standard input, line {number}: ")).unwrap_or_default()
}

/// What is wrong with an object as a question to a model. Keys without a value count as absent.
fn problem_of(value: &Value) -> Option<String> {
    if !value.is_object() {
        return Some("not a JSON object".to_owned());
    }
    let given = |key: &str| value.get(key).filter(|value| !value.is_null());
    let no_string = |key: &str| {
        let is_wrong = given(key).is_some_and(|value| !value.is_string());
        is_wrong.then(|| format!("`{key}` is not a string"))
    };
    let without = |key: &str, other: &str| {
        (given(key).is_some() && given(other).is_none()).then(|| format!("`{key}` without `{other}`"))
    };
    if given("text").is_some() {
        return no_string("text").or_else(|| no_string("text2"));
    }
    if let Some(words) = given("words") {
        let is_list = words.as_array().is_some_and(|words| words.iter().all(Value::is_string));
        return (!is_list).then(|| "`words` is not a list of strings".to_owned());
    }
    let question = without("question", "context").or_else(|| without("context", "question"));
    question.or_else(|| no_string("question")).or_else(|| no_string("context")).or_else(|| without("text2", "text"))
}

/// The opened model and how it is asked.
struct Asking<'a> {
    options: &'a Options,
    session: Session,
    /// What the model was trained for, if its file says so.
    task: Option<Task>,
    /// Whether nothing (more) is said about texts that lack the second one.
    is_silent: Cell<bool>,
}

impl<'a> Asking<'a> {
    fn new(options: &'a Options, quiet: bool) -> Result<Self> {
        let threads = options.threads.unwrap_or(SessionOptions::default().threads);
        let session = Session::open(&options.model, SessionOptions { threads, max_len: options.max_len });
        let session = session.map_err(|error| match error {
            RuntimeError::MaxLen { .. } => Error::from(error).about("--max-len"),
            RuntimeError::Kernel(_) => Error::from(error).about("--threads"),
            _ => Error::from(error),
        })?;
        let task = session.model().task().parse().ok();
        Ok(Self { options, session, task, is_silent: Cell::new(quiet) })
    }

    /// Pairs and single texts look alike to a classifier, but the answer to the wrong one means nothing.
    fn check(&self, item: &Item) -> Result<()> {
        let Some(task) = self.task else { return Ok(()) };
        let (model, is_object) = (self.options.model.display(), self.options.jsonl);
        match (task.kind(), &item.input) {
            (Kind::Classify, Input::Pair { .. }) => {
                let message = format!("{}a pair of texts, but {model} is for single ones ({task})", place(item.line));
                let hint = if is_object { "leave `text2` out of the object" } else { "leave --text2 out" };
                Err(Error::new(ErrorKind::BadInput, message, hint.to_owned()))
            }
            (Kind::Pair, Input::Text { .. }) => {
                if !self.is_silent.replace(true) {
                    let hint = if is_object { "give objects with text and text2" } else { "give it with --text2" };
                    let place = place(item.line);
                    note(&format!("warning: {place}a text without the second one that {model} ({task}) needs: {hint}"));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn each_argument(&self) -> std::result::Result<(), Failure> {
        let item = |text: &String| Item { input: self.options.input(text), id: None, line: None };
        let items: Vec<Item> = self.options.text.iter().map(item).collect();
        items.iter().try_for_each(|item| self.check(item))?;
        self.answer(items)
    }

    /// Answers lines as they come: those that are there already together.
    fn each_line(&self, input: impl Read) -> std::result::Result<(), Failure> {
        let mut waiting = Vec::new();
        let ended = self.read_lines(input, &mut waiting);
        // A bad line ends the reading, but the good ones before it have their answers.
        self.answer(waiting)?;
        ended
    }

    /// Reads lines up to the end or a bad one; what is not answered yet is left in `waiting`.
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

    /// Answers items together. If the model refuses, they are asked one by one: so those before the culprit have their
    /// answers, and the error says which it is.
    fn answer(&self, items: Vec<Item>) -> std::result::Result<(), Failure> {
        let inputs: Vec<Input> = items.iter().map(|item| item.input.clone()).collect();
        if let Ok(predictions) = self.session.predict(&inputs) {
            return write(self.options, items.iter().zip(&predictions));
        }
        for item in &items {
            let predictions = self.session.predict(std::slice::from_ref(&item.input));
            let predictions = predictions.map_err(|error| self.options.refusal(item, error))?;
            write(self.options, std::iter::once(item).zip(&predictions))?;
        }
        Ok(())
    }
}

fn unreadable(number: usize, error: &std::io::Error) -> Error {
    if error.kind() == IoErrorKind::InvalidData {
        let message = format!("{}not valid UTF-8", place(Some(number)));
        return Error::new(ErrorKind::BadInput, message, "save the text as UTF-8".to_owned());
    }
    Error::new(ErrorKind::Environment, format!("cannot read the standard input: {error}"), None)
}

fn write<'a>(
    options: &Options,
    answers: impl Iterator<Item = (&'a Item, &'a Prediction)>,
) -> std::result::Result<(), Failure> {
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
        IoErrorKind::BrokenPipe => Failure::Closed,
        _ => Failure::Said(Error::new(ErrorKind::Environment, format!("cannot write to stdout: {error}"), None)),
    })
}

fn for_people(input: &Input, prediction: &Prediction) -> String {
    let shown = match input {
        Input::Text { text } => text.clone(),
        Input::Pair { text, text2 } => format!("{text} | {text2}"),
        Input::Words { words } => words.join(" "),
        Input::Question { question, .. } => question.clone(),
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
    }
    text
}
