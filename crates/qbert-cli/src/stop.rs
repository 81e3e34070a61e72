//! Ctrl-C and SIGTERM (what containers send): long jobs save their state first; everything else ends at once, since files
//! are written whole or not at all.
//!
//! The first signal during a job that keeps a state lets the job finish its step, save and stop; during an item (an answer
//! to a line) it lets the item finish. The second one, or the first at any other time, ends the program. The exit code is
//! 128 and the signal's number: 130 after Ctrl-C, 143 after SIGTERM. SIGHUP is left alone, because nohup ignores it on
//! purpose.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::{complain_text, note, ranks};

/// The numbers that all systems with signals give them.
const INTERRUPT: u8 = 2;
const TERMINATE: u8 = 15;

/// The first signal that came; 0 for none.
static ASKED: AtomicU8 = AtomicU8::new(0);
static PROGRAM: OnceLock<&str> = OnceLock::new();
static ARGUMENTS: OnceLock<Vec<String>> = OnceLock::new();
static MOMENT: Mutex<Moment> = Mutex::new(Moment::Anytime);

/// When the program can end.
#[derive(Debug, Clone, Copy)]
enum Moment {
    /// At once.
    Anytime,
    /// When the job has seen [`is_asked`] and saved its state.
    AfterStep,
    /// When the item is done.
    AfterItem,
    /// When the server has answered what it began.
    #[cfg(feature = "serve")]
    AfterRequests,
}

fn moment() -> MutexGuard<'static, Moment> {
    MOMENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The name of the program that is running.
fn program() -> &'static str {
    PROGRAM.get().unwrap_or(&"qbert")
}

/// The words of the command after the program's name.
pub(crate) fn arguments() -> Vec<String> {
    match ARGUMENTS.get() {
        Some(given) => given.clone(),
        None => std::env::args().skip(1).collect(),
    }
}

/// Sets these words, where they are not those of the process: the command as a part of another program.
pub(crate) fn set_arguments(arguments: Vec<String>) {
    let _ = ARGUMENTS.set(arguments);
}

/// Handles signals from here on. If the system does not allow it, they end the program as usual.
pub fn watch(program: &'static str) {
    let _ = PROGRAM.set(program);
    let _ = listen();
}

#[cfg(unix)]
fn listen() -> std::io::Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([INTERRUPT, TERMINATE].map(i32::from))?;
    let thread = std::thread::Builder::new().name("signals".to_owned());
    thread.spawn(move || signals.forever().for_each(|signal| received(u8::try_from(signal).unwrap_or(INTERRUPT))))?;
    Ok(())
}

#[cfg(not(unix))]
fn listen() -> Result<(), ctrlc::Error> {
    ctrlc::set_handler(|| received(INTERRUPT))
}

fn received(signal: u8) {
    // Held to the end: an item that is done meanwhile waits, and then sees that it was asked.
    let moment = moment();
    let is_first = ASKED.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst).is_ok();
    match *moment {
        Moment::AfterStep if is_first => {
            let again = if signal == INTERRUPT { "press Ctrl-C again" } else { "send it again" };
            // Rank 0 speaks for all.
            if ranks::helper().is_none() {
                note(&format!("\nstopping after this step; {again} to stop at once"));
            }
        }
        Moment::AfterItem if is_first => {}
        // The server hears the signal too.
        #[cfg(feature = "serve")]
        Moment::AfterRequests if is_first => {}
        _ => end(signal),
    }
}

fn end(signal: u8) -> ! {
    let what = if signal == TERMINATE { "terminated (SIGTERM)" } else { "interrupted" };
    if ranks::helper().is_none() {
        complain_text(what, resume_hint().as_deref());
    }
    std::process::exit(128 + i32::from(signal));
}

/// The exit code of a job that stopped because it was asked to.
pub fn exit_code() -> u8 {
    match ASKED.load(Ordering::SeqCst) {
        0 => 128 + INTERRUPT,
        signal => 128 + signal,
    }
}

/// Whether the job should save its state and stop.
pub fn is_asked() -> bool {
    ASKED.load(Ordering::SeqCst) != 0
}

/// Sets whether the current job checks [`is_asked`].
pub fn set_stateful(stateful: bool) {
    *moment() = if stateful { Moment::AfterStep } else { Moment::Anytime };
}

/// Lets the first signal end a server gracefully; the second one ends the program.
#[cfg(feature = "serve")]
pub(crate) fn set_serving() {
    *moment() = Moment::AfterRequests;
}

/// An item of a stream in progress: a signal does not cut its output off.
#[derive(Debug)]
pub(crate) struct Item(());

impl Item {
    /// From here until it is dropped.
    pub(crate) fn begin() -> Self {
        *moment() = Moment::AfterItem;
        Self(())
    }
}

impl Drop for Item {
    fn drop(&mut self) {
        *moment() = Moment::Anytime;
        match ASKED.load(Ordering::SeqCst) {
            0 => {}
            signal => end(signal),
        }
    }
}

/// The command that continues where this one stopped; `None` for commands that start over.
pub fn resume_hint() -> Option<String> {
    let words = arguments();
    let verb = words.iter().find(|word| !word.starts_with('-'))?;
    let resume = match verb.as_str() {
        "run" | "reproduce" => "",
        // Every plan that was measured is kept.
        "plan" if words.iter().any(|word| word.starts_with("--max-drop")) => "",
        "finetune" | "quantize" | "analyze" => " --resume",
        _ => return None,
    };
    let there = words.iter().any(|word| word == "--resume");
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    Some(format!("to continue: {} {}{}", program(), words.join(" "), if there { "" } else { resume }))
}

/// The command for the record, without flags for output, threads and saving, which change no result.
pub fn command() -> String {
    let mut words = Vec::new();
    let mut arguments = arguments().into_iter();
    while let Some(word) = arguments.next() {
        match word.as_str() {
            "-q" | "--quiet" | "-v" | "--verbose" | "--json" | "--resume" => {}
            "--threads" | "--save-every" => drop(arguments.next()),
            word if word.starts_with("--threads=") || word.starts_with("--save-every=") => {}
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
