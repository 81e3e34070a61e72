//! The command line: what was typed → what it means → one function per verb.
//!
//! The library part is for the other commands of this workspace, which share its flags, progress bars and exit codes.
//!
//! A verb takes its options and returns what goes to stdout as text; everything else (progress, errors, hints) goes to
//! stderr. Exit codes: 0 done, 1 the machine failed, 2 the input is wrong, 3 a limit that the user set is missed, 130
//! interrupted, 143 terminated. A closed pipe is no error.

mod analyze;
mod assets;
mod attention_kl;
mod bench;
mod compare;
mod completions;
mod data;
mod describe;
mod eval;
mod fetch;
mod finetune;
mod flags;
mod inspect;
mod inspect_packed;
pub mod jobs;
mod landscape;
mod machine;
pub mod model;
mod numbers;
mod pack;
#[cfg(feature = "parquet")]
mod parquet_rows;
mod plan;
mod predict;
pub mod progress;
mod prune;
mod quantize;
mod ranks;
pub mod reading;
mod report;
mod run;
#[cfg(feature = "serve")]
mod serve;
pub mod stop;
pub mod table;
mod training;
mod vectors;

pub use flags::in_flags;
pub use quantize::WhichWeights;

use std::borrow::Cow;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{ArgMatches, Args, Command, CommandFactory, FromArgMatches, Parser, Subcommand};
use qbert_kernels::KernelError;
use qbert_pipeline::{Error, ErrorKind, Result};

const EXAMPLES: &str = "\
Examples:
  qbert run                                            the quick-start: everything, in minutes
  qbert run --model minilm --task sst2 --train train.tsv --dev dev.tsv --out run
  qbert fetch minilm                                   a small BERT to try things with
  qbert inspect minilm                                 what a checkpoint is, what it could shrink to
  qbert plan --model minilm --bits 2 --out plan.toml   bits for every part, to read and edit
  qbert data --task sst2 --model minilm train.tsv      what is in a data file, checked by line
  qbert finetune --model minilm --task sst2 --train train.tsv --dev dev.tsv --out tuned
  qbert quantize --model tuned --plan plan.toml --task sst2 --train train.tsv --dev dev.tsv --out small
  qbert eval tuned --task sst2 --data dev.tsv
  qbert compare tuned small/model.qbert --task sst2 --data dev.tsv
  qbert predict small/model.qbert \"a film to remember\"   ask the packed model
  qbert serve small/model.qbert                        the same over HTTP, with a page to try it
  qbert analyze --model tuned --task sst2 --data train.tsv --out analysis

Exit codes: 0 done, 1 the machine failed (disk, network, a missing program), 2 wrong input, 3 a limit
that you set is missed (`compare`, --max-drop), 130 interrupted (Ctrl-C), 143 terminated (SIGTERM); what is done
is kept, and the hint says how to continue.
Colours appear only on a terminal, and never if NO_COLOR is set.";

/// Quantize BERT models for ordinary CPUs with the method of the Q-BERT paper.
#[derive(Debug, Parser)]
#[command(name = "qbert", version, after_help = EXAMPLES, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    output: Verbosity,
}

/// How much a command prints.
#[derive(Debug, Clone, Copy, Args)]
pub struct Verbosity {
    /// Print only results and errors.
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Print more: kernels and threads, progress every two seconds, the causes of errors.
    #[arg(short, long, global = true, conflicts_with = "quiet")]
    pub verbose: bool,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Run(Box<run::Options>),
    Fetch(fetch::Options),
    Inspect(inspect::Options),
    Plan(plan::Options),
    Data(data::Options),
    Prune(prune::Options),
    Finetune(finetune::Options),
    Quantize(quantize::Options),
    Pack(pack::Options),
    Predict(predict::Options),
    Embed(vectors::Embed),
    Similarity(vectors::Similarity),
    Rank(vectors::Rank),
    Search(vectors::Search),
    Eval(eval::Options),
    Compare(compare::Options),
    #[cfg(feature = "serve")]
    Serve(Box<serve::Options>),
    Analyze(analyze::Options),
    Landscape(landscape::Options),
    AttentionKl(attention_kl::Options),
    Report(report::Options),
    Bench(bench::Options),
    Completions(completions::Options),
}

/// The `qbert` command: reads the arguments, runs the verb and returns the exit code.
pub fn main() -> ExitCode {
    let matches = matches_of(Arguments::command());
    let Arguments { verb, output } = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let _world = match ranks::join(verb.is_shared_by_ranks()) {
        Ok(world) => world,
        Err(error) => return ExitCode::from(complain(&error)),
    };
    // Others than rank 0 say what they do only when everything is wanted.
    let quiet = output.quiet || (ranks::helper().is_some() && !output.verbose);
    execute("qbert", output, || run_verb(verb, quiet))
}

impl Verb {
    /// Whether several processes that MPI starts do this together.
    fn is_shared_by_ranks(&self) -> bool {
        match self {
            Self::Run(_) | Self::Finetune(_) | Self::Quantize(_) => true,
            Self::Analyze(options) => options.is_shared_by_ranks(),
            _ => false,
        }
    }
}

/// The same for a program that is not the command itself: `arguments` are the words after `qbert`, and the exit code is
/// returned as a number. Wrong usage, `--help` and `--version` end the process.
pub fn main_with(arguments: Vec<String>) -> u8 {
    let words = std::iter::once("qbert".to_owned()).chain(arguments.iter().cloned());
    let matches = numbers::with_clear_errors(Arguments::command()).get_matches_from(words);
    stop::set_arguments(arguments);
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    exit_code("qbert", arguments.output, || run_verb(arguments.verb, arguments.output.quiet))
}

/// Parses the arguments. Wrong usage prints a suggestion and exits with 2; `--help` and `--version` exit with 0.
pub fn matches_of(command: Command) -> ArgMatches {
    numbers::with_clear_errors(command).get_matches()
}

/// Runs a command: handles signals, prints results to stdout, errors and hints to stderr, and returns the exit code.
///
/// `program` is its name in hints and records.
pub fn execute(program: &'static str, output: Verbosity, command: impl FnOnce() -> Result<String>) -> ExitCode {
    ExitCode::from(exit_code(program, output, command))
}

fn exit_code(program: &'static str, output: Verbosity, command: impl FnOnce() -> Result<String>) -> u8 {
    VERBOSE.store(output.verbose, Ordering::Relaxed);
    stop::watch(program);
    match command() {
        Ok(_) if ranks::helper().is_some() => 0,
        Ok(output) => print(&output),
        Err(error) => complain(&error),
    }
}

fn run_verb(verb: Verb, quiet: bool) -> Result<String> {
    match verb {
        Verb::Run(options) => run::run(&options, quiet),
        Verb::Fetch(options) => fetch::run(&options, quiet),
        Verb::Inspect(options) => inspect::run(&options, quiet),
        Verb::Plan(options) => plan::run(&options, quiet),
        Verb::Data(options) => data::run(&options, quiet),
        Verb::Prune(options) => prune::run(&options, quiet),
        Verb::Finetune(options) => finetune::run(&options, quiet),
        Verb::Quantize(options) => quantize::run(&options, quiet),
        Verb::Pack(options) => pack::run(&options, quiet),
        Verb::Predict(options) => predict::run(&options, quiet),
        Verb::Embed(options) => vectors::run_embed(&options, quiet),
        Verb::Similarity(options) => vectors::run_similarity(&options),
        Verb::Rank(options) => vectors::run_rank(&options),
        Verb::Search(options) => vectors::run_search(&options, quiet),
        Verb::Eval(options) => eval::run(&options, quiet),
        Verb::Compare(options) => compare::run(&options, quiet),
        #[cfg(feature = "serve")]
        Verb::Serve(options) => serve::run(&options, quiet),
        Verb::Analyze(options) => analyze::run(&options, quiet),
        Verb::Landscape(options) => landscape::run(&options, quiet),
        Verb::AttentionKl(options) => attention_kl::run(&options, quiet),
        Verb::Report(options) => report::run(&options),
        Verb::Bench(options) => bench::run(&options, quiet),
        Verb::Completions(options) => Ok(completions::run(&options)),
    }
}

/// Prints to stdout. A closed pipe is not an error: the reader has seen enough.
fn print(output: &str) -> u8 {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(printable(output).as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            complain_text(&format!("cannot write to stdout: {error}"), None);
            1
        }
        _ => 0,
    }
}

fn complain(error: &Error) -> u8 {
    let is_interrupted = error.kind() == ErrorKind::Interrupted;
    let is_reported = ranks::before_complaint(error) == ranks::Complaint::Report;
    let resume = if is_interrupted { stop::resume_hint() } else { None };
    let hint = resume.or_else(|| error.hint().map(flags::in_flags));
    if is_reported {
        complain_text(&flags::in_flags(&error.to_string()), hint.as_deref());
    }
    if is_verbose() && is_reported {
        let mut cause = std::error::Error::source(error).and_then(std::error::Error::source);
        while let Some(error) = cause {
            note(&format!("cause: {}", flags::in_flags(&error.to_string())));
            cause = error.source();
        }
    }
    let code = match error.kind() {
        ErrorKind::BadInput => 2,
        ErrorKind::MissedLimit => 3,
        ErrorKind::Interrupted => stop::exit_code(),
        _ => 1,
    };
    ranks::after_complaint(error, code);
    code
}

fn complain_text(message: &str, hint: Option<&str>) {
    let (error, hint_word) = (painted("error:", "1;31"), painted("hint:", "1;36"));
    let hint = hint.map(|hint| format!("\n{hint_word} {}", printable(hint))).unwrap_or_default();
    to_stderr(&format!("{error} {}{hint}", printable(message)));
}

/// Text in a colour if stderr is a terminal that shows colours and `NO_COLOR` is not set.
fn painted(text: &str, code: &str) -> String {
    let objects = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
    if objects || dumb || !std::io::stderr().is_terminal() {
        return text.to_owned();
    }
    format!("\u{1b}[{code}m{text}\u{1b}[0m")
}

static VERBOSE: AtomicBool = AtomicBool::new(false);

/// Whether `--verbose` is set.
fn is_verbose() -> bool {
    VERBOSE.load(Ordering::Relaxed)
}

/// Prints a line to stderr.
pub fn note(text: &str) {
    to_stderr(&printable(text));
}

/// If this fails, there is nobody left to tell.
fn to_stderr(text: &str) {
    let from = ranks::helper().map(|rank| format!("[rank {rank}] ")).unwrap_or_default();
    let _ = writeln!(std::io::stderr().lock(), "{from}{text}");
}

/// Text that does nothing to a terminal but appear on it. Labels, paths and provenance come from files that anybody may have
/// made: a control character among them could clear the screen or fake a line. Each becomes its JSON escape (`\u001b`), so
/// that JSON stays the same JSON.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let acts = |c: char| {
        let turns_round = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        (c.is_control() && c != '\n' && c != '\t') || turns_round
    };
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if acts(c) {
            safe += &format!("\\u{:04x}", u32::from(c));
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

/// A name from a file for the middle of a line: a line break in it must not begin a line of its own.
pub(crate) fn one_line(name: &str) -> String {
    name.replace('\n', "\\n").replace('\t', "\\t")
}

/// The threads and kernels to compute with: the given number of threads, or one per core; and the ranks to share work with.
pub fn compute(threads: Option<usize>) -> Result<qbert_kernels::Compute> {
    let threads = threads.unwrap_or_else(qbert_kernels::Threads::available);
    let compute = qbert_kernels::Compute::detect(threads).map_err(kernel_error)?;
    if is_verbose() {
        note(&format!("computing with {} on {threads} threads", compute.kernels()));
    }
    Ok(ranks::current().map_or(compute.clone(), |ranks| compute.with_ranks(Arc::clone(ranks))))
}

/// The error of kernels or threads, with the flag or variable that asked for them.
fn kernel_error(error: KernelError) -> Error {
    let is_about_threads = matches!(error, KernelError::ThreadCount { .. } | KernelError::ThreadStart { .. });
    Error::from(error).about(if is_about_threads { "--threads" } else { "QBERT_KERNELS" })
}

/// What `--json` prints: a value with the name and the version of its form, and a final line break. The forms are described
/// in `docs/reference/schemas/`; the version goes up when a field changes its meaning or goes away.
fn versioned_json(format: &str, value: &impl serde::Serialize) -> String {
    #[derive(serde::Serialize)]
    struct Versioned<'a, T> {
        format: &'a str,
        version: u32,
        #[serde(flatten)]
        value: &'a T,
    }
    json(&Versioned { format, version: 1, value })
}

/// A value as JSON text with a final line break.
pub fn json(value: &impl serde::Serialize) -> String {
    match serde_json::to_string_pretty(value) {
        Ok(text) => text + "\n",
        // Maps with text keys and plain numbers always serialize.
        Err(error) => format!("{{\"error\": \"{error}\"}}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::{one_line, printable};

    #[test]
    fn escape_sequences_never_reach_the_terminal() {
        assert_eq!(printable("ok\t\nü 字"), "ok\t\nü 字");
        assert_eq!(printable("a\u{1b}[2Jb\r\u{9b}m\u{7}"), "a\\u001b[2Jb\\u000d\\u009bm\\u0007");
        assert_eq!(printable("ab\u{202e}dc"), "ab\\u202edc");
        assert_eq!(one_line("a\nfake\tline"), "a\\nfake\\tline");
        let json = serde_json::json!({ "label": "\u{9b}31m\u{1b}" }).to_string();
        let back: serde_json::Value = serde_json::from_str(&printable(&json)).unwrap_or_default();
        assert_eq!(back["label"], "\u{9b}31m\u{1b}");
    }
}
