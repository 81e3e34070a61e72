//! `qbert run` and `qbert analyze` as calls, for a program that has its own way to show progress and errors, such as the
//! Python package. Settings are given as flags, so that every flag is available there with the same meaning and checks.

use std::sync::Arc;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use qbert_documents::Sensitivity;
use qbert_pipeline::run::Finished;
use qbert_pipeline::{Error, ErrorKind, Result};
use qbert_train::sensitivity::Outcome;

use crate::progress::Sink;
use crate::{analyze, numbers, run};

/// What `qbert run` does with these flags. `command` is what the program was asked, for the record.
///
/// # Errors
/// Wrong flags, and whatever goes wrong in the run. A limit that is missed is not an error: see [`Finished::search`].
pub fn run(flags: &[String], command: &str, sink: Arc<dyn Sink>) -> Result<Finished> {
    run::embedded(&parsed("run", flags)?, command, sink)
}

/// What `qbert analyze` does with these flags, without `--shard` and `--merge`.
///
/// # Errors
/// Wrong flags, and whatever goes wrong in the analysis.
pub fn analyze(flags: &[String], sink: &Arc<dyn Sink>) -> Result<Sensitivity> {
    match analyze::perform(&parsed("analyze", flags)?, Some(sink), true)? {
        Outcome::Whole(found) => Ok(*found),
        Outcome::Part(path) => {
            let message = format!("{}: only a part of the analysis", path.display());
            Err(Error::new(ErrorKind::BadInput, message, "leave --shard out".to_owned()))
        }
    }
}

fn parsed<T: Args + FromArgMatches>(verb: &'static str, flags: &[String]) -> Result<T> {
    let command = T::augment_args(Command::new(verb).no_binary_name(true));
    let matches: ArgMatches = numbers::with_clear_errors(command).try_get_matches_from(flags).map_err(refusal)?;
    T::from_arg_matches(&matches).map_err(refusal)
}

/// The first paragraph of what clap would print; the rest is about usage on a command line.
fn refusal(error: clap::Error) -> Error {
    let text = error.render().to_string();
    let paragraph = text.split("\n\n").next().unwrap_or_default();
    let message: Vec<&str> = paragraph.lines().map(str::trim).collect();
    let message = message.join(" ");
    Error::new(ErrorKind::BadInput, message.strip_prefix("error: ").unwrap_or(&message), None)
}
