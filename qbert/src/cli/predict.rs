//! `qbert predict`: a packed model answers, from arguments, lines or JSON objects.
//!
//! Unlike the other verbs it writes as it goes: whoever feeds it line by line gets each answer before the next line.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, ErrorKind as IoErrorKind, Read, Write};
use std::path::PathBuf;

use clap::Args;
use qbert::runtime::{Answers, Classification, Input, Prediction, Session, SessionOptions, Tagging};
use qbert::{Error, ErrorKind, Result};
use serde_json::Value;

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
Offsets count characters (Unicode code points), from 0.")]
pub(crate) struct Options {
    /// The packed model.
    model: PathBuf,
    /// Texts, or questions.
    text: Vec<String>,
    /// The second text of every pair.
    #[arg(long, value_name = "TEXT", conflicts_with = "context")]
    text2: Option<String>,
    /// Where answers are looked for.
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
}

pub(crate) fn run(options: &Options) -> Result<String> {
    let usual = SessionOptions::default();
    let threads = options.threads.unwrap_or(usual.threads);
    let session = Session::open(&options.model, SessionOptions { threads, max_len: options.max_len })?;
    let answered = if options.text.is_empty() {
        each_line(options, &session, std::io::stdin().lock())
    } else {
        let items = options.text.iter().map(|text| Item { input: options.input(text), id: None });
        answer(options, &session, &items.collect::<Vec<_>>())
    };
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
            return Ok(Item { input: self.input(line), id: None });
        }
        let wrong = |problem: &str| {
            let hint = "an object has text, text and text2, words, or question and context".to_owned();
            Error::new(ErrorKind::BadInput, format!("standard input, line {number}: {problem}"), hint)
        };
        let value: Value = serde_json::from_str(line).map_err(|error| wrong(&format!("not valid JSON: {error}")))?;
        let id = value.get("id").cloned();
        let input = serde_json::from_value(value).map_err(|_| wrong("an object that asks nothing"))?;
        Ok(Item { input, id })
    }
}

/// Answers lines as they come: those that are there already together.
fn each_line(options: &Options, session: &Session, input: impl Read) -> std::result::Result<(), Failure> {
    let mut reader = BufReader::with_capacity(1 << 16, input);
    let (mut items, mut number, mut line) = (Vec::new(), 0, String::new());
    loop {
        line.clear();
        let read = reader.read_line(&mut line).map_err(|error| unreadable(number + 1, &error))?;
        if read > 0 {
            number += 1;
            let text = line.strip_suffix('\n').unwrap_or(&line);
            let text = text.strip_suffix('\r').unwrap_or(text);
            if !(options.jsonl && text.trim().is_empty()) {
                items.push(options.item(number, text)?);
            }
            if items.len() < TOGETHER && reader.buffer().contains(&b'\n') {
                continue;
            }
        }
        if !items.is_empty() {
            answer(options, session, &items)?;
            items.clear();
        }
        if read == 0 {
            return Ok(());
        }
    }
}

fn unreadable(number: usize, error: &std::io::Error) -> Error {
    if error.kind() == IoErrorKind::InvalidData {
        let message = format!("standard input, line {number}: not valid UTF-8");
        return Error::new(ErrorKind::BadInput, message, "save the text as UTF-8".to_owned());
    }
    Error::new(ErrorKind::Environment, format!("cannot read the standard input: {error}"), None)
}

fn answer(options: &Options, session: &Session, items: &[Item]) -> std::result::Result<(), Failure> {
    let inputs: Vec<Input> = items.iter().map(|item| item.input.clone()).collect();
    let predictions = session.predict(&inputs).map_err(Error::from)?;
    let mut text = String::new();
    for (item, prediction) in items.iter().zip(&predictions) {
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
