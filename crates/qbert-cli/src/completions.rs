//! `qbert completions`: what a shell needs to complete verbs, flags and their values.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

/// Print a completion script for a shell.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  source <(qbert completions bash)
  qbert completions zsh > ~/.zfunc/_qbert
  qbert completions fish > ~/.config/fish/completions/qbert.fish")]
pub(crate) struct Options {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

pub(crate) fn run(options: &Options) -> String {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut super::Arguments::command(), "qbert", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}
