//! Ctrl-C: long jobs are asked to save their state and end; everything else ends at once, since it writes nothing by halves.
//!
//! The first Ctrl-C during a job that keeps a state is a question, which the job answers after its next step. The second
//! one, or the first at any other time, ends the program. The exit code is 130 either way.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{complain_text, note};

/// What shells expect of a program that Ctrl-C ended.
pub const EXIT_CODE: u8 = 130;

static ASKED: AtomicBool = AtomicBool::new(false);
static PROGRAM: OnceLock<&str> = OnceLock::new();
static STATEFUL: AtomicBool = AtomicBool::new(false);

/// The name of the program that is running.
fn program() -> &'static str {
    PROGRAM.get().unwrap_or(&"qbert")
}

/// From here on Ctrl-C is ours. Where the system does not allow it, Ctrl-C ends the program as ever.
pub fn watch(program: &'static str) {
    let _ = PROGRAM.set(program);
    let _ = ctrlc::set_handler(|| {
        if STATEFUL.load(Ordering::SeqCst) && !ASKED.swap(true, Ordering::SeqCst) {
            note("\nstopping after this step; once more to stop at once");
            return;
        }
        complain_text("interrupted", resume_hint().as_deref());
        std::process::exit(i32::from(EXIT_CODE));
    });
}

/// Whether the job at hand should save its state and end.
pub fn is_asked() -> bool {
    ASKED.load(Ordering::SeqCst)
}

/// Says whether the job at hand looks at [`is_asked`].
pub fn set_stateful(stateful: bool) {
    STATEFUL.store(stateful, Ordering::SeqCst);
}

/// The command that goes on where this one ended; nothing for commands that start over.
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
    Some(format!("to go on: {} {}{}", program(), words.join(" "), if there { "" } else { resume }))
}

/// What was typed, without what only says how much is shown or how many threads there are: for the record.
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

/// A word as a shell reads it back.
fn quoted(word: &str) -> String {
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
