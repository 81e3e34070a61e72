//! Ctrl-C: long jobs save their state first; everything else ends at once, since files are written whole or not at all.
//!
//! The first Ctrl-C during a job that keeps a state lets the job finish its step, save and stop. The second one, or the first
//! at any other time, ends the program. The exit code is 130 either way.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{complain_text, note};

/// The exit code that shells expect after Ctrl-C.
pub const EXIT_CODE: u8 = 130;

static ASKED: AtomicBool = AtomicBool::new(false);
static PROGRAM: OnceLock<&str> = OnceLock::new();
static STATEFUL: AtomicBool = AtomicBool::new(false);

/// The name of the program that is running.
fn program() -> &'static str {
    PROGRAM.get().unwrap_or(&"qbert")
}

/// Handles Ctrl-C from here on. If the system does not allow it, Ctrl-C ends the program as usual.
pub fn watch(program: &'static str) {
    let _ = PROGRAM.set(program);
    let _ = ctrlc::set_handler(|| {
        if STATEFUL.load(Ordering::SeqCst) && !ASKED.swap(true, Ordering::SeqCst) {
            note("\nstopping after this step; press Ctrl-C again to stop at once");
            return;
        }
        complain_text("interrupted", resume_hint().as_deref());
        std::process::exit(i32::from(EXIT_CODE));
    });
}

/// Whether the job should save its state and stop.
pub fn is_asked() -> bool {
    ASKED.load(Ordering::SeqCst)
}

/// Sets whether the current job checks [`is_asked`].
pub fn set_stateful(stateful: bool) {
    STATEFUL.store(stateful, Ordering::SeqCst);
}

/// The command that continues where this one stopped; `None` for commands that start over.
pub fn resume_hint() -> Option<String> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let verb = words.iter().find(|word| !word.starts_with('-'))?;
    let resume = match verb.as_str() {
        "run" | "reproduce" => "",
        "finetune" | "quantize" | "analyze" => " --resume",
        _ => return None,
    };
    let there = words.iter().any(|word| word == "--resume");
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    Some(format!("to continue: {} {}{}", program(), words.join(" "), if there { "" } else { resume }))
}

/// The command for the record, without flags for output and threads, which change no result.
pub fn command() -> String {
    let mut words = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(word) = arguments.next() {
        match word.as_str() {
            "-q" | "--quiet" | "-v" | "--verbose" | "--json" | "--resume" => {}
            "--threads" => drop(arguments.next()),
            word if word.starts_with("--threads=") => {}
            word => words.push(quoted(word)),
        }
    }
    std::iter::once(program().to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

/// A word, quoted for the shell.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:=+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn words_are_quoted_as_a_shell_reads_them() {
        for (word, expected) in [("--lr", "--lr"), ("a b", "'a b'"), ("it's", "'it'\\''s'"), ("", "''"), ("$x", "'$x'")]
        {
            assert_eq!(quoted(word), expected);
        }
    }
}
