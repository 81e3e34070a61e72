//! Everything that can be wrong with data, labels, tokenizer files and lengths.
//!
//! `Display` says what is wrong and where (file, line, question id); [`Error::hint`] says what to do about it; the
//! command line prints it on a line of its own. Nothing here reports bugs of the program itself.

use std::path::PathBuf;

/// A result with this crate's [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Something wrong with what the user provided.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be opened or read.
    #[error("{}: cannot be read: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A task name that does not exist.
    #[error("there is no task named {name:?}")]
    UnknownTask {
        /// The name given.
        name: String,
        /// The most similar task name.
        nearest: Option<String>,
    },
    /// An empty list of files.
    #[error("no data file was given")]
    NoFiles,
    /// A data file without any content.
    #[error("{}: the file is empty", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A data file with a header or markup, but no example in it.
    #[error("{}: the file has no examples, {what}", path.display())]
    NoExamples {
        /// The file.
        path: PathBuf,
        /// What it has instead.
        what: &'static str,
    },
    /// Bytes that are not UTF-8.
    #[error("{}:{line}: the line is not valid UTF-8", path.display())]
    InvalidUtf8 {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// A NUL byte, which text files do not have.
    #[error("{}:{line}: the line has a NUL byte", path.display())]
    NulByte {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// A row with more or fewer fields than the header or the first row.
    #[error("{}:{line}: {}, expected {expected}", path.display(), counted(*found, "column"))]
    ColumnCount {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The number of fields in the header or first row.
        expected: usize,
        /// The number in this row.
        found: usize,
        /// What a row of this format looks like, for the hint.
        layout: &'static str,
    },
    /// A column that the user named but the file does not have.
    #[error("{}: there is no column {name:?}; the columns are {}", path.display(), quoted(available))]
    UnknownColumn {
        /// The file.
        path: PathBuf,
        /// The name given.
        name: String,
        /// The names in the file.
        available: Vec<String>,
        /// The most similar of them.
        nearest: Option<String>,
    },
    /// No column has one of the usual names for a role.
    #[error("{}: found no {role} column among {}", path.display(), quoted(available))]
    NoColumn {
        /// The file.
        path: PathBuf,
        /// `text`, `second text` or `label`.
        role: &'static str,
        /// The names that were tried.
        tried: &'static [&'static str],
        /// The names in the file.
        available: Vec<String>,
    },
    /// A header that repeats a name.
    #[error("{}: the header repeats the column {name:?}", path.display())]
    DuplicateColumn {
        /// The file.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// A CSV field that is not quoted as in RFC 4180.
    #[error("{}:{line}: {problem}", path.display())]
    Quoting {
        /// The file.
        path: PathBuf,
        /// The line of the quote, from 1.
        line: usize,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A label that is not in the list.
    #[error("{}:{line}: unknown label {label:?}; the labels are {}", path.display(), quoted(known))]
    UnknownLabel {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The label found.
        label: String,
        /// The list.
        known: Vec<String>,
        /// The most similar of them.
        nearest: Option<String>,
    },
    /// Labels of the data of which nothing says which output of a head they stand for.
    #[error(
        "{}: nothing says which output stands for which label: the head calls its outputs {}, the labels in the data are {}",
        model.display(), listed(outputs), listed(data)
    )]
    UnclearLabels {
        /// The model.
        model: PathBuf,
        /// The labels in the data.
        data: Vec<String>,
        /// What the head calls its outputs.
        outputs: Vec<String>,
    },
    /// A head for other labels.
    #[error("{}: the model's head is for the labels {}, {whose} are {}", model.display(), listed(outputs), listed(labels))]
    OtherLabels {
        /// The model.
        model: PathBuf,
        /// What the head calls its outputs.
        outputs: Vec<String>,
        /// Where the other labels come from.
        whose: String,
        /// The other labels.
        labels: Vec<String>,
    },
    /// A label that is a number with a fraction, where all labels are numbers.
    #[error("{}:{line}: the label {label} is a value, not a class: all labels are numbers, some with a fraction", path.display())]
    RegressionTarget {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The label.
        label: String,
    },
    /// An example that needs a label and has none.
    #[error("{}:{line}: the label is missing", path.display())]
    MissingLabel {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// Something in the column of entity tags that is not a tag.
    #[error("{}:{line}: {tag:?} is not an entity tag", path.display())]
    BadTag {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The value of the last column.
        tag: String,
    },
    /// A list of labels that is empty, or has an empty or repeated name.
    #[error("invalid list of labels: {problem}")]
    BadLabels {
        /// What is wrong.
        problem: String,
    },
    /// A file name that does not say whether it is tsv, csv or jsonl.
    #[error("{}: the file name does not say whether it is tsv, csv or jsonl", path.display())]
    UnknownFormat {
        /// The file.
        path: PathBuf,
    },
    /// Text that is not JSON.
    #[error("{}:{line}: not valid JSON: {problem}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The parser's message.
        problem: String,
    },
    /// JSON that does not have the expected layout.
    #[error("{}: {at}: {problem}", path.display())]
    JsonLayout {
        /// The file.
        path: PathBuf,
        /// Where: line, or article, paragraph and question.
        at: String,
        /// What is wrong there.
        problem: String,
        /// The expected layout, for the hint.
        layout: &'static str,
    },
    /// A SQuAD answer that is not at its offset in the context.
    #[error("{}: question {id:?}: the answer {expected:?} is not at character {offset} of the context; {found:?} is", path.display())]
    AnswerOffset {
        /// The file.
        path: PathBuf,
        /// The question.
        id: String,
        /// `answer_start`, in code points.
        offset: usize,
        /// The answer's text.
        expected: String,
        /// The context's text there.
        found: String,
        /// The nearest offset at which the answer occurs.
        elsewhere: Option<usize>,
    },
    /// Two questions with the same id.
    #[error("{}: the question id {id:?} occurs twice", path.display())]
    DuplicateId {
        /// The file.
        path: PathBuf,
        /// The id.
        id: String,
    },
    /// A tokenizer or vocabulary file that cannot be used.
    #[error("{name}: not a usable tokenizer: {problem}")]
    Tokenizer {
        /// The file, or a name for the text.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// A vocabulary without one of BERT's special tokens.
    #[error("{name}: the vocabulary has no {token} token")]
    MissingSpecialToken {
        /// The file, or a name for the text.
        name: String,
        /// The token.
        token: &'static str,
    },
    /// A cell that is no value.
    #[error("{}, line {line}: {cell:?} is no value", path.display())]
    NotAValue {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
        /// What stands there.
        cell: String,
    },
    /// The directory of a search beside other files.
    #[error("{}: a search is read on its own, not with other files", path.display())]
    SearchAmongFiles {
        /// The directory, or its file of judgements.
        path: PathBuf,
    },
    /// A judgement of a query or document that does not exist.
    #[error("{}:{line}: no {what} has the id {id:?}", path.display())]
    UnknownId {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
        /// `query` or `document`.
        what: &'static str,
        /// The id.
        id: String,
    },
    /// A directory without a vocabulary.
    #[error("{}: the directory has neither tokenizer.json nor vocab.txt", path.display())]
    NoTokenizer {
        /// The directory.
        path: PathBuf,
    },
    /// A tokenizer in another form.
    #[error("{}: the directory has no tokenizer.json, only {file}", path.display())]
    UnconvertedTokenizer {
        /// The directory.
        path: PathBuf,
        /// What it has.
        file: &'static str,
    },
    /// A vocabulary that does not belong to the model.
    #[error("{}: the tokenizer has {tokens} tokens, but the model's word embedding has {rows} rows", path.display())]
    VocabularyTooLarge {
        /// The directory.
        path: PathBuf,
        /// Tokens.
        tokens: usize,
        /// Rows.
        rows: usize,
    },
    /// A `tokenizer.json` and a `vocab.txt` of different models in one directory.
    #[error("{}: tokenizer.json has {json} tokens, but vocab.txt has {vocab}", path.display())]
    VocabularyMismatch {
        /// The directory.
        path: PathBuf,
        /// Tokens in `tokenizer.json`.
        json: usize,
        /// Lines in `vocab.txt`.
        vocab: usize,
    },
    /// A tokenizer that needs another program or other rules than BERT's WordPiece.
    #[error("{name}: {what}, which is not read; with vocab.txt, the classes that are read are {known}")]
    TokenizerClass {
        /// The file.
        name: String,
        /// The setting and its value.
        what: String,
        /// The classes that are read.
        known: String,
    },
    /// A line, or a whole file, that is longer than any sensible text.
    #[error("{}{}: more than {} MiB", path.display(), line.map(|line| format!(":{line}")).unwrap_or_default(), limit >> 20)]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The line, from 1; `None` for a whole file.
        line: Option<usize>,
        /// The most bytes that are read.
        limit: usize,
    },
    /// A text that is too long to be tokenized in one go.
    #[error("a text of {bytes} bytes without a place to cut it; at most {} MiB can be tokenized in one go", limit >> 20)]
    TextTooLong {
        /// The bytes of the text, or of the part that cannot be cut.
        bytes: usize,
        /// The most bytes.
        limit: usize,
    },
    /// A text that the tokenizer rejects.
    #[error("the text {text:?} cannot be tokenized: {problem}")]
    Tokenization {
        /// The beginning of the text.
        text: String,
        /// The tokenizer's message.
        problem: String,
    },
    /// A maximum length that leaves no room for any text.
    #[error("a maximum length of {max_len} is too small: {what} needs at least {least}")]
    MaxLen {
        /// The length given.
        max_len: usize,
        /// The smallest length that works.
        least: usize,
        /// For what.
        what: &'static str,
    },
    /// A stride that would never reach the end of the text.
    #[error("the document stride is 0")]
    ZeroStride,
    /// Two lists that belong together and differ in length.
    #[error("{what}: found {found}, expected {expected}")]
    Length {
        /// What was counted.
        what: String,
        /// The number expected.
        expected: usize,
        /// The number found.
        found: usize,
    },
    /// A sequence to learn from that has no label.
    #[error("example {sequence} has no label to learn from")]
    Unlabelled {
        /// The sequence, from 0.
        sequence: usize,
    },
    /// Data without labels, so that predictions cannot be scored.
    #[error("the data has no {what} to score against")]
    NothingToScore {
        /// `labels` or `tags`.
        what: &'static str,
    },
    /// Predictions that belong to another kind of task than the data.
    #[error("the predictions are for another kind of task than the data")]
    OtherKind,
    /// A label id that is not in the list of labels.
    #[error("label id {id} is out of range: there are {count} labels")]
    LabelId {
        /// The id.
        id: usize,
        /// The number of labels.
        count: usize,
    },
}

impl Error {
    /// Whether the machine failed (disk, permissions) rather than the input being wrong.
    pub fn is_environment(&self) -> bool {
        use std::io::ErrorKind::{IsADirectory, NotADirectory, NotFound};
        let is_wrong_path = |kind| matches!(kind, NotFound | IsADirectory | NotADirectory);
        matches!(self, Self::Io { source, .. } if !is_wrong_path(source.kind()))
    }

    /// What to do about it, for a `hint:` line; `None` if the message says everything.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Error::Io { .. } => "check the path and the permissions".to_owned(),
            Error::UnknownTask { nearest, .. } => suggestion(nearest.as_deref(), "the tasks are", &task_names()),
            Error::NoFiles => "give at least one file".to_owned(),
            Error::Empty { .. } | Error::NoExamples { .. } => {
                "check that this is the right file and that it is complete".to_owned()
            }
            Error::InvalidUtf8 { .. } => {
                "save the file as UTF-8, for example with `iconv -f latin1 -t utf-8`".to_owned()
            }
            Error::NulByte { .. } => {
                "this does not look like a UTF-8 text file; is it UTF-16, compressed or binary?".to_owned()
            }
            Error::ColumnCount { layout, .. } => format!("check the separators in that line: {layout}"),
            Error::UnknownColumn { nearest, .. } => nearest.as_ref().map_or_else(
                || "the first line must hold the column names".to_owned(),
                |name| format!("did you mean {name:?}?"),
            ),
            Error::NoColumn { role, tried, .. } => {
                let (field, tried) = (column_field(role), tried.join(", "));
                format!(
                    "the first line must hold the column names; set `read.columns.{field}` to the right one (tried: {tried})"
                )
            }
            Error::DuplicateColumn { .. } => "rename one of them".to_owned(),
            Error::Quoting { .. } => {
                "put a csv field with a comma, quote or line break in quotes, and double the quotes inside it"
                    .to_owned()
            }
            Error::UnknownLabel { nearest, .. } => nearest.as_ref().map_or_else(
                || "fix the file, or set `read.labels` to the labels of this data".to_owned(),
                |name| format!("did you mean {name:?}?"),
            ),
            Error::UnclearLabels { data, outputs, .. } => order_hint(data, outputs),
            Error::OtherLabels { .. } => {
                "fine-tune the model for these labels first, or set `read.labels` to DATA=MODEL,…: each label of the data with the model's name for it"
                    .to_owned()
            }
            Error::RegressionTarget { .. } => {
                "for values use the task `score` or `score-pair`; if they are classes all the same, set `read.labels` to the list of them"
                    .to_owned()
            }
            Error::MissingLabel { .. } => "add the label, or remove the example".to_owned(),
            Error::BadTag { .. } => {
                "the last column must be O, or B- or I- (or E-, S-, L-, U-) followed by the entity type; tags without such a mark are fine if no tag has one".to_owned()
            }
            Error::BadLabels { .. } => "give each label once, in the order of the model's outputs".to_owned(),
            Error::UnknownFormat { .. } => {
                "use a name that ends in .tsv, .csv or .jsonl, or set `read.format`".to_owned()
            }
            Error::Json { .. } => "check that the file is complete and valid JSON".to_owned(),
            Error::JsonLayout { layout, .. } => (*layout).to_owned(),
            Error::AnswerOffset { elsewhere, .. } => elsewhere.map_or_else(
                || {
                    "`answer_start` counts Unicode characters, not bytes; the answer does not occur in the context"
                        .to_owned()
                },
                |at| format!("`answer_start` counts Unicode characters, not bytes; the answer is at {at}"),
            ),
            Error::DuplicateId { .. } => "give every question its own id".to_owned(),
            Error::Tokenizer { .. } => "download the checkpoint's tokenizer files again".to_owned(),
            Error::MissingSpecialToken { .. } => {
                "use the tokenizer that belongs to the checkpoint: it has [PAD], [UNK], [CLS] and [SEP], or <pad>, <unk>, <s> and </s>"
                    .to_owned()
            }
            Error::VocabularyTooLarge { .. } => {
                "they belong to different models: copy tokenizer.json or vocab.txt from the original checkpoint"
                    .to_owned()
            }
            Error::NotAValue { .. } => {
                "values are numbers such as 3.5; for names of classes use the task `classify` or `pair`".to_owned()
            }
            Error::SearchAmongFiles { .. } => {
                "give the directory alone, or the files without it".to_owned()
            }
            Error::UnknownId { .. } => {
                "a search has corpus.jsonl and queries.jsonl with `_id` and `text`, and qrels/test.tsv with query, document and grade".to_owned()
            }
            Error::NoTokenizer { .. } => "copy one of them from the original checkpoint".to_owned(),
            Error::UnconvertedTokenizer { path, .. } => {
                let path = path.display();
                format!(
                    "convert it once, with transformers: python -c \"import sys, transformers as t; t.AutoTokenizer.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[1])\" {path}"
                )
            }
            Error::VocabularyMismatch { .. } => "they belong to different models: remove the wrong one".to_owned(),
            Error::TokenizerClass { .. } => {
                "convert the tokenizer to a tokenizer.json, if its class has one, or use another checkpoint".to_owned()
            }
            Error::TooLong { line: Some(_), .. } => "break the line, or check that this is a text file".to_owned(),
            Error::TooLong { line: None, .. } => "check that this is the right file".to_owned(),
            Error::TextTooLong { .. } => "break the text into shorter ones".to_owned(),
            Error::Tokenization { .. } => return None,
            Error::MaxLen { least, .. } => format!("use {least} or more"),
            Error::ZeroStride => "the usual stride is 128".to_owned(),
            Error::Length { .. }
            | Error::LabelId { .. }
            | Error::Unlabelled { .. }
            | Error::NothingToScore { .. }
            | Error::OtherKind => return None,
        };
        Some(hint)
    }
}

/// What to say about labels whose order is not known. It suggests no order, because a copied guess is still a guess.
fn order_hint(data: &[String], outputs: &[String]) -> String {
    let pairs: Vec<String> = data.iter().map(|raw| format!("{raw}=OUTPUT")).collect();
    let pairs = pairs.join(",");
    format!(
        "look it up in the model's documentation, then give `read.labels` {pairs}, with one of {} for each OUTPUT, or `read.labels` with the labels in the order of the outputs",
        listed(outputs)
    )
}

/// A count with its noun: `1 column`, `2 columns`.
fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// The field of [`crate::Columns`] that names the column for a role.
fn column_field(role: &str) -> &'static str {
    match role {
        "label" => "label",
        "second text" => "text2",
        _ => "text",
    }
}

fn task_names() -> Vec<String> {
    crate::Task::ALL.iter().map(|task| task.name().to_owned()).collect()
}

fn suggestion(nearest: Option<&str>, all: &str, names: &[String]) -> String {
    let list = names.join(", ");
    nearest.map_or_else(|| format!("{all} {list}"), |name| format!("did you mean {name:?}? {all} {list}"))
}

/// At most two dozen names.
fn listed(names: &[String]) -> String {
    const SHOWN: usize = 24;
    let shown: Vec<String> = names.iter().take(SHOWN).map(|name| shortened(name, 40)).collect();
    match names.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// At most a dozen names, so that a file without a header does not fill the screen with its first row.
fn quoted(names: &[String]) -> String {
    const SHOWN: usize = 12;
    let shown: Vec<String> = names.iter().take(SHOWN).map(|name| format!("{:?}", shortened(name, 40))).collect();
    match names.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// The beginning of a text, with an ellipsis if it is longer.
pub(crate) fn shortened(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
