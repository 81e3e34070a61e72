//! The `qbert-paper` command. `qbert-paper reproduce` makes the rows of the paper's tables on a checkpoint and data.

mod command;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use qbert_cli::Verbosity;

/// The Q-BERT paper's tables and figures, on models and data of your own.
#[derive(Debug, Parser)]
#[command(name = "qbert-paper", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    output: Verbosity,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Reproduce(Box<command::Options>),
}

fn main() -> ExitCode {
    let matches = qbert_cli::matches_of(Arguments::command());
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let Verb::Reproduce(options) = arguments.verb;
    qbert_cli::execute("qbert-paper", arguments.output, || command::run(&options, arguments.output.quiet))
}
