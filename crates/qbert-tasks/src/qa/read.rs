//! Question answering in SQuAD's JSON layout (v1.1; the extra keys of v2.0 are tolerated).
//!
//! `data` → articles → `paragraphs` → `qas` → `answers` with `text` and `answer_start`, the latter in Unicode code
//! points. Every answer is checked against its context, because a shifted offset would silently train the model on
//! wrong spans. Questions marked `is_impossible` are not part of the v1.1 task that the paper uses: if answers are
//! required they are skipped and counted, otherwise they are kept as questions to answer.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::{QaAnswer, QaData, QaExample};
use crate::files::jsonl::describe;
use crate::files::lines::whole_file;
use crate::{Error, Result};

const LAYOUT: &str =
    "SQuAD's layout is data: [{paragraphs: [{context, qas: [{id, question, answers: [{text, answer_start}]}]}]}]";

pub(crate) fn read(paths: &[&Path], require_answers: bool) -> Result<QaData> {
    let mut data = QaData { examples: Vec::new(), skipped: 0 };
    for path in paths {
        let text = whole_file(path)?;
        let before = data.examples.len() + data.skipped;
        read_text(path, &text, require_answers, &mut data)?;
        if data.examples.len() + data.skipped == before {
            return Err(Error::NoExamples { path: path.to_path_buf(), what: "only articles without questions" });
        }
    }
    Ok(data)
}

/// The position in the file, for errors.
struct Place<'a> {
    path: &'a Path,
    article: usize,
    paragraph: Option<usize>,
    question: Option<String>,
}

impl Place<'_> {
    fn fault(&self, problem: String) -> Error {
        let mut at = format!("article {}", self.article);
        if let Some(paragraph) = self.paragraph {
            at.push_str(&format!(", paragraph {paragraph}"));
        }
        if let Some(question) = &self.question {
            at.push_str(&format!(", question {question}"));
        }
        Error::JsonLayout { path: self.path.to_owned(), at, problem, layout: LAYOUT }
    }

    fn object<'v>(&self, value: &'v Value) -> Result<&'v Map<String, Value>> {
        value.as_object().ok_or_else(|| self.fault(format!("{} where an object was expected", describe(value))))
    }

    fn list<'v>(&self, object: &'v Map<String, Value>, key: &str) -> Result<&'v [Value]> {
        match object.get(key) {
            Some(Value::Array(list)) => Ok(list),
            Some(other) => Err(self.fault(format!("{key:?} is {}, not a list", describe(other)))),
            None => Err(self.fault(format!("the key {key:?} is missing"))),
        }
    }

    fn string<'v>(&self, object: &'v Map<String, Value>, key: &str) -> Result<&'v str> {
        match object.get(key) {
            Some(Value::String(text)) => Ok(text),
            Some(other) => Err(self.fault(format!("{key:?} is {}, not a string", describe(other)))),
            None => Err(self.fault(format!("the key {key:?} is missing"))),
        }
    }
}

fn read_text(path: &Path, text: &str, require_answers: bool, data: &mut QaData) -> Result<()> {
    if text.trim().is_empty() {
        return Err(Error::Empty { path: path.to_owned() });
    }
    let root: Value = serde_json::from_str(text).map_err(|error| json_fault(path, &error))?;
    let no_data = |problem: String| Error::JsonLayout {
        path: path.to_owned(),
        at: "top level".to_owned(),
        problem,
        layout: LAYOUT,
    };
    let articles = match root.get("data") {
        Some(Value::Array(articles)) => articles,
        Some(other) => return Err(no_data(format!("\"data\" is {}, not a list", describe(other)))),
        None => return Err(no_data("the key \"data\" is missing".to_owned())),
    };
    let mut seen = HashSet::new();
    for (index, article) in articles.iter().enumerate() {
        let mut place = Place { path, article: index + 1, paragraph: None, question: None };
        let article = place.object(article)?;
        let title = article.get("title").and_then(Value::as_str).unwrap_or_default();
        for (index, paragraph) in place.list(article, "paragraphs")?.iter().enumerate() {
            place.paragraph = Some(index + 1);
            place.question = None;
            read_paragraph(&mut place, title, paragraph, require_answers, (data, &mut seen))?;
        }
    }
    Ok(())
}

fn json_fault(path: &Path, error: &serde_json::Error) -> Error {
    let text = error.to_string();
    let message = text.split(" at line ").next().unwrap_or(&text).to_owned();
    Error::Json {
        path: path.to_owned(),
        line: error.line(),
        problem: format!("{message} at column {}", error.column()),
    }
}

fn read_paragraph(
    place: &mut Place<'_>,
    title: &str,
    paragraph: &Value,
    require_answers: bool,
    (data, seen): (&mut QaData, &mut HashSet<String>),
) -> Result<()> {
    let paragraph = place.object(paragraph)?;
    let context: Arc<str> = place.string(paragraph, "context")?.into();
    for (index, question) in place.list(paragraph, "qas")?.iter().enumerate() {
        place.question = Some((index + 1).to_string());
        let object = place.object(question)?;
        let id = question_id(place, object)?;
        place.question = Some(format!("{id:?}"));
        if !seen.insert(id.clone()) {
            return Err(Error::DuplicateId { path: place.path.to_owned(), id });
        }
        if require_answers && object.get("is_impossible") == Some(&Value::Bool(true)) {
            data.skipped += 1;
            continue;
        }
        let question = place.string(object, "question")?.to_owned();
        let answers = read_answers(place, &id, object, &context, require_answers)?;
        data.examples.push(QaExample { id, title: title.to_owned(), context: Arc::clone(&context), question, answers });
    }
    Ok(())
}

/// The id, which some files give as a number.
fn question_id(place: &Place<'_>, object: &Map<String, Value>) -> Result<String> {
    match object.get("id") {
        Some(Value::Number(number)) => Ok(number.to_string()),
        _ => place.string(object, "id").map(str::to_owned),
    }
}

fn read_answers(
    place: &Place<'_>,
    id: &str,
    object: &Map<String, Value>,
    context: &str,
    required: bool,
) -> Result<Vec<QaAnswer>> {
    if !required && !object.contains_key("answers") {
        return Ok(Vec::new());
    }
    let list = place.list(object, "answers")?;
    if required && list.is_empty() {
        return Err(place.fault("there is no answer".to_owned()));
    }
    list.iter().map(|answer| read_answer(place, id, answer, context)).collect()
}

fn read_answer(place: &Place<'_>, id: &str, answer: &Value, context: &str) -> Result<QaAnswer> {
    let answer = place.object(answer)?;
    let text = place.string(answer, "text")?;
    let Some(start) = answer.get("answer_start").and_then(Value::as_u64).and_then(|start| usize::try_from(start).ok())
    else {
        let found = answer.get("answer_start").map_or_else(|| "missing".to_owned(), describe);
        return Err(place.fault(format!("\"answer_start\" is {found}, not a character offset")));
    };
    if text.is_empty() {
        return Err(place.fault("the answer's text is empty".to_owned()));
    }
    let rest = context.char_indices().nth(start).map_or("", |(byte, _)| &context[byte..]);
    if rest.starts_with(text) {
        return Ok(QaAnswer { text: text.to_owned(), start });
    }
    Err(Error::AnswerOffset {
        path: place.path.to_owned(),
        id: id.to_owned(),
        offset: start,
        expected: text.to_owned(),
        found: rest.chars().take(text.chars().count()).collect(),
        elsewhere: nearest_occurrence(context, text, start),
    })
}

/// The character offset nearest to `wanted` at which `text` stands in `context`; the earlier of two equally near.
fn nearest_occurrence(context: &str, text: &str, wanted: usize) -> Option<usize> {
    let offsets = context.match_indices(text).map(|(byte, _)| context[..byte].chars().count());
    offsets.min_by_key(|offset| offset.abs_diff(wanted))
}
