//! What bad data says to a person: one snapshot of message and hint for every kind of fault.

use qbert_tasks::{Columns, Error, LabelSource, Labels, ReadOptions, Task, read};

/// One bad file.
struct Case {
    name: &'static str,
    task: Task,
    file: &'static str,
    content: &'static [u8],
}

const fn case(name: &'static str, task: Task, file: &'static str, content: &'static [u8]) -> Case {
    Case { name, task, file, content }
}

fn explain(error: &Error) -> String {
    match error.hint() {
        Some(hint) => format!("error: {error}\nhint: {hint}"),
        None => format!("error: {error}"),
    }
}

/// The message for a bad file, with the temporary directory left out.
fn message(case: &Case, options: &ReadOptions) -> String {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join(case.file);
    std::fs::write(&path, case.content).expect("written");
    let error = read(case.task, &[&path], options).map(|data| data.len()).expect_err(case.name);
    let prefix = format!("{}/", directory.path().display());
    format!("## {}\n{}\n", case.name, explain(&error).replace(&prefix, ""))
}

fn messages(cases: &[Case]) -> String {
    cases.iter().map(|case| message(case, &ReadOptions::default())).collect::<Vec<_>>().join("\n")
}

#[test]
fn tables() {
    use Task::{Classify, Mnli, Pair, Sst2};
    let report = messages(&[
        case("empty file", Sst2, "dev.tsv", b""),
        case("only a byte-order mark", Sst2, "dev.tsv", b"\xef\xbb\xbf"),
        case("header only", Sst2, "dev.tsv", b"sentence\tlabel\n"),
        case("wrong column count", Sst2, "dev.tsv", b"sentence\tlabel\na lamp\t1\na\tb\tc\n"),
        case("no label column in the row", Sst2, "dev.tsv", b"sentence\tlabel\na lamp\n"),
        case("unknown label", Sst2, "dev.tsv", b"sentence\tlabel\na lamp\t1\nan owl\tpostive\n"),
        case("number out of range", Sst2, "dev.tsv", b"sentence\tlabel\na lamp\t2\n"),
        case("missing label", Sst2, "dev.tsv", b"sentence\tlabel\na lamp\t\n"),
        case("unknown MNLI label", Mnli, "dev.tsv", b"sentence1\tsentence2\tgold_label\na\tb\tentails\n"),
        case("no second text", Pair, "dev.tsv", b"sentence1\tlabel\na\tb\n"),
        case("no label column", Classify, "dev.tsv", b"text\tstars\na\t1\n"),
        case("no text column", Classify, "dev.csv", b"review,label\na,1\n"),
        case("column twice", Classify, "dev.csv", b"text,label,text\na,1,b\n"),
        case("invalid UTF-8", Classify, "dev.tsv", b"text\tlabel\na\t1\n\xffb\t1\n"),
        case("UTF-16", Classify, "dev.tsv", b"\xff\xfet\0e\0x\0t\0\n\0"),
        case("NUL byte", Classify, "dev.tsv", b"text\tlabel\na\t1\nb\0\t1\n"),
        case("quote never closed", Classify, "dev.csv", b"text,label\n\"a,1\nb,2\n"),
        case("text after a quote", Classify, "dev.csv", b"text,label\n\"a\"b,1\n"),
        case("unknown ending", Classify, "dev.parquet", b"PAR1"),
        case("half a JSON line", Classify, "dev.jsonl", b"{\"text\": \"a\", \"label\": 1}\n{\"text\": \"a\n"),
        case("a JSON list", Classify, "dev.jsonl", b"[1, 2]\n"),
        case("a text that is a number", Classify, "dev.jsonl", b"{\"text\": 5, \"label\": 1}\n"),
        case("a label that is a fraction", Classify, "dev.jsonl", b"{\"text\": \"a\", \"label\": 1.5}\n"),
        case("values of a regression", Classify, "dev.tsv", b"text\tlabel\na\t1\nb\t3.75\nc\t-2\n"),
        case("key missing later", Classify, "dev.jsonl", b"{\"text\": \"a\", \"label\": 1}\n{\"label\": 1}\n"),
        case("label null", Classify, "dev.jsonl", b"{\"text\": \"a\", \"label\": null}\n"),
        case("blank jsonl", Classify, "dev.jsonl", b"\n  \n"),
    ]);
    insta::assert_snapshot!(report);
}

#[test]
fn entities() {
    use Task::{Conll03, Ner};
    let report = messages(&[
        case("empty file", Ner, "dev.conll", b""),
        case("only blank lines", Ner, "dev.conll", b"\n-DOCSTART- -X- O O\n\n"),
        case("wrong column count", Ner, "dev.conll", b"Mira NNP B-PER\nowl O\n"),
        case("words only", Ner, "dev.conll", b"Mira\nowl\n"),
        case("not a tag", Ner, "dev.conll", b"Mira B-PER\nowl NN\n"),
        case("a dash", Ner, "dev.conll", b"Mira -\nof O\nOstby I-LOC\n"),
        case("parts of speech for entities", Conll03, "dev.conll", b"Mira NNP\nowl NN\n"),
        case("unknown type", Conll03, "dev.conll", b"Mira NNP I-NP I-PERS\n"),
        case("invalid UTF-8", Ner, "dev.conll", b"Mira B-PER\n\n\xe9t\xe9 O\n"),
        case("NUL byte", Ner, "dev.conll", b"Mi\0ra B-PER\n"),
    ]);
    insta::assert_snapshot!(report);
}

#[test]
fn questions() {
    use Task::Squad;
    let paragraph = br#"{"data": [{"paragraphs": [{"context": "An owl.", "qas": 5}]}]}"#;
    let no_answers =
        br#"{"data": [{"paragraphs": [{"context": "An owl.", "qas": [{"id": "q1", "question": "Who?"}]}]}]}"#;
    let empty_answers = br#"{"data": [{"paragraphs": [{"context": "An owl.", "qas": [{"id": "q1", "question": "Who?", "answers": []}]}]}]}"#;
    let shifted = br#"{"data": [{"paragraphs": [{"context": "The old owl.", "qas": [{"id": "q1", "question": "Who?", "answers": [{"text": "owl", "answer_start": 7}]}]}]}]}"#;
    let nowhere = br#"{"data": [{"paragraphs": [{"context": "The old owl.", "qas": [{"id": "q1", "question": "Who?", "answers": [{"text": "heron", "answer_start": 400}]}]}]}]}"#;
    let negative = br#"{"data": [{"paragraphs": [{"context": "The owl.", "qas": [{"id": "q1", "question": "Who?", "answers": [{"text": "owl", "answer_start": -1}]}]}]}]}"#;
    let empty_text = br#"{"data": [{"paragraphs": [{"context": "The owl.", "qas": [{"id": "q1", "question": "Who?", "answers": [{"text": "", "answer_start": 0}]}]}]}]}"#;
    let twice = br#"{"data": [{"paragraphs": [{"context": "The owl.", "qas": [{"id": "q1", "question": "Who?", "answers": [{"text": "owl", "answer_start": 4}]}, {"id": "q1", "question": "Who?", "answers": [{"text": "owl", "answer_start": 4}]}]}]}]}"#;
    let no_id = br#"{"data": [{"paragraphs": [{"context": "The owl.", "qas": []}]}, {"paragraphs": [{"context": "x", "qas": [{"question": "Who?"}]}]}]}"#;
    let report = messages(&[
        case("empty file", Squad, "dev.json", b" \n"),
        case("cut short", Squad, "dev.json", b"{\"data\": [\n{\"paragraphs\""),
        case("a list", Squad, "dev.json", b"[]"),
        case("data is a string", Squad, "dev.json", b"{\"data\": \"squad\"}"),
        case("no articles", Squad, "dev.json", b"{\"data\": []}"),
        case("an article is a number", Squad, "dev.json", b"{\"data\": [7]}"),
        case("no paragraphs", Squad, "dev.json", b"{\"data\": [{\"title\": \"x\"}]}"),
        case("no context", Squad, "dev.json", b"{\"data\": [{\"paragraphs\": [{\"qas\": []}]}]}"),
        case("qas is a number", Squad, "dev.json", paragraph),
        case("no id", Squad, "dev.json", no_id),
        case("no answers key", Squad, "dev.json", no_answers),
        case("no answer", Squad, "dev.json", empty_answers),
        case("answer one character off", Squad, "dev.json", shifted),
        case("answer nowhere", Squad, "dev.json", nowhere),
        case("negative offset", Squad, "dev.json", negative),
        case("empty answer", Squad, "dev.json", empty_text),
        case("the same id twice", Squad, "dev.json", twice),
        case("invalid UTF-8", Squad, "dev.json", b"{\"data\":\n\"\xff\"}"),
        case("NUL byte", Squad, "dev.json", b"{\"data\":\n\0}"),
    ]);
    insta::assert_snapshot!(report);
}

#[test]
fn options() {
    let file = case("column asked for is not there", Task::Classify, "dev.tsv", b"text\tgold_label\na\t1\n");
    let columns = Columns { label: Some("gold-label".into()), ..Columns::default() };
    let asked = ReadOptions { columns, ..ReadOptions::default() };
    let headless =
        case("no header", Task::Classify, "dev.tsv", b"A long first line that is no header at all, really\t1\n");
    let columns = Columns { text: Some("comment".into()), ..Columns::default() };
    let asked_text = ReadOptions { columns, ..ReadOptions::default() };
    let given = Labels::new(["good", "bad"]).unwrap();
    let given = ReadOptions { labels: LabelSource::Given(given), ..ReadOptions::default() };
    let label = case("label not among the given", Task::Classify, "dev.tsv", b"text\tlabel\na\tgoof\n");
    let tag = case("tag not among the given", Task::Ner, "dev.conll", b"Mira B-PER\n");
    let report =
        [message(&file, &asked), message(&headless, &asked_text), message(&label, &given), message(&tag, &given)];
    let report = report.join("\n");
    insta::assert_snapshot!(report);
}

#[test]
fn missing_files_and_tasks() {
    let none: [&str; 0] = [];
    let missing = read(Task::Sst2, &["no/such/file.tsv"], &ReadOptions::default()).unwrap_err();
    let directory = read(Task::Squad, &["tests"], &ReadOptions::default()).unwrap_err();
    let no_files = read(Task::Sst2, &none, &ReadOptions::default()).unwrap_err();
    let far = "translate".parse::<Task>().unwrap_err();
    let near = "connl03".parse::<Task>().unwrap_err();
    let report: Vec<String> = [missing, directory, no_files, far, near].iter().map(explain).collect();
    let report = report.join("\n\n");
    insta::assert_snapshot!(report);
}
