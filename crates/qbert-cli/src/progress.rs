//! Progress of long jobs, on stderr: a bar with the time left on a terminal, plain lines elsewhere, nothing when quiet.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use qbert_train::evaluate::Evaluation;
use qbert_train::sensitivity::{Settings, Step};
use qbert_train::trainer::{StepRecord, Watch};

use super::{is_verbose, note, stop};

/// The time between two plain lines, and with `--verbose`.
const LINE_EVERY: Duration = Duration::from_secs(15);
const VERBOSE_LINE_EVERY: Duration = Duration::from_secs(2);

/// Where a program that embeds the command shows progress, instead of stderr. It is called on the job's thread.
pub trait Sink: Send + Sync {
    /// `done` of `total` are done in the part of the job called `what`; `message` has details.
    fn at(&self, what: &str, done: usize, total: usize, message: &str);
    /// A line for the user.
    fn say(&self, text: &str);
    /// Whether the job should save its state and stop.
    fn is_stopped(&self) -> bool;
}

/// Shows where a job is.
pub struct Progress {
    sink: Option<Arc<dyn Sink>>,
    bar: Option<ProgressBar>,
    quiet: bool,
    what: String,
    stoppable: bool,
    begun: Option<(Instant, usize)>,
    last_line: Instant,
    loss: f64,
    /// The most passes that a run of an analysis took so far.
    passes: Option<usize>,
    /// The metric in full precision, to compare with.
    reference: Option<f64>,
    save_every: Option<Duration>,
}

impl Progress {
    /// A bar, or a line now and then if stderr is not a terminal; nothing with `quiet`.
    pub fn new(what: impl Into<String>, quiet: bool) -> Self {
        let what = what.into();
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new(0);
            let style = ProgressStyle::with_template("{prefix} {bar:30} {pos}/{len} {msg}  {elapsed}{left}");
            if let Ok(style) = style {
                bar.set_style(style.with_key("left", write_left));
            }
            bar.set_prefix(what.clone());
            bar
        });
        let last_line = Instant::now();
        Self {
            sink: None,
            bar,
            quiet,
            what,
            stoppable: false,
            begun: None,
            last_line,
            loss: f64::NAN,
            passes: None,
            reference: None,
            save_every: None,
        }
    }

    /// Shows it there, or on stderr if there is no sink.
    pub(crate) fn shown_by(sink: Option<&Arc<dyn Sink>>, what: impl Into<String>, quiet: bool) -> Self {
        let mut progress = Self::new(what, quiet || sink.is_some());
        progress.sink = sink.cloned();
        progress
    }

    /// The same for a job that saves its state on Ctrl-C.
    pub fn stoppable(mut self) -> Self {
        if self.sink.is_none() {
            stop::set_stateful(true);
        }
        self.stoppable = true;
        self
    }

    /// The same for a job whose state is saved this often, if not as usual.
    pub(crate) fn saving_every(mut self, interval: Option<Duration>) -> Self {
        self.save_every = interval;
        self
    }

    /// `done` of `total` are done; `message` has details.
    pub fn at(&mut self, done: usize, total: usize, message: &str) {
        if let Some(sink) = &self.sink {
            return sink.at(&self.what, done, total, message);
        }
        let is_first = self.begun.is_none();
        let (begun, first) = *self.begun.get_or_insert((Instant::now(), done));
        if let Some(bar) = &self.bar {
            bar.set_length(total as u64);
            if is_first {
                // A resumed run did its first steps earlier.
                bar.set_position(first as u64);
                bar.reset_eta();
            }
            bar.set_position(done as u64);
            bar.set_message(message.to_owned());
        } else if !self.quiet && (self.last_line.elapsed() >= line_every() || done == total) {
            self.last_line = Instant::now();
            let left = left(done.saturating_sub(first), total.saturating_sub(done), begun.elapsed());
            note(&format!("{} {done}/{total} {message}{left}", self.what));
        }
    }

    /// Starts to count something else.
    pub fn restart(&mut self) {
        self.begun = None;
        if let Some(bar) = &self.bar {
            bar.reset();
        }
    }

    /// A pass of an analysis. The layers of a run go together, so those in progress count by their passes. How many passes a
    /// run needs is known after the first run; until then the limit is taken.
    pub fn analysis(&mut self, step: &Step, settings: &Settings) {
        let Step { run, passes, layers_left, done, total, loss } = *step;
        if layers_left == 0 {
            self.passes = Some(self.passes.unwrap_or(0).max(passes));
        }
        let of_run = self.passes.unwrap_or(settings.stop.iterations + settings.trace).max(passes + 1);
        let runs = settings.runs;
        let place =
            format!("layers  run {}/{runs}, pass {passes}, {layers_left} layers to go, loss {loss:.4}", run + 1);
        self.at(done + layers_left * passes / of_run, total, &place);
    }

    /// Whether the job was asked to save its state and stop.
    pub(crate) fn is_stopped(&self) -> bool {
        self.sink.as_ref().map_or_else(stop::is_asked, |sink| sink.is_stopped())
    }

    /// Prints a line above the bar.
    pub fn say(&self, text: &str) {
        if let Some(sink) = &self.sink {
            return sink.say(text);
        }
        match &self.bar {
            // Before anything is counted there is no bar to stay above.
            Some(bar) if self.begun.is_some() => bar.println(text),
            _ if self.quiet => {}
            _ => note(text),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        if self.stoppable && self.sink.is_none() {
            stop::set_stateful(false);
        }
    }
}

fn line_every() -> Duration {
    if is_verbose() { VERBOSE_LINE_EVERY } else { LINE_EVERY }
}

impl Watch for Progress {
    fn note(&mut self, text: &str) {
        self.say(text);
    }

    fn step(&mut self, record: &StepRecord, total: usize) {
        // A moving average, since the loss of single batches varies a lot.
        self.loss = if self.loss.is_nan() { record.loss } else { 0.98 * self.loss + 0.02 * record.loss };
        let message = format!("epoch {:.2}  loss {:.4}", record.epoch, self.loss);
        self.at(record.step, total, &message);
    }

    fn full_precision(&mut self, evaluation: &Evaluation) {
        self.reference = Some(evaluation.value);
        self.say(&format!("full precision: dev {} {:.2}", evaluation.metric, evaluation.value));
    }

    fn evaluated(&mut self, epoch: usize, evaluation: &Evaluation, best: bool) {
        let note = if best && epoch > 0 { ", the best so far" } else { "" };
        let drop = self.reference.map_or(String::new(), |full| format!(" ({:+.2})", evaluation.value - full));
        let when = if epoch == 0 { "quantized, not trained".to_owned() } else { format!("epoch {epoch}") };
        self.say(&format!("{when}: dev {} {:.2}{drop}{note}", evaluation.metric, evaluation.value));
    }

    fn stop(&mut self) -> bool {
        self.stoppable && self.is_stopped()
    }

    fn save_every(&self) -> Option<Duration> {
        self.save_every
    }
}

/// The time left in a line, if `done` took `elapsed`; nothing as long as there is no estimate.
fn left(done: usize, to_do: usize, elapsed: Duration) -> String {
    match done {
        0 => String::new(),
        done => format!("  left {}", duration(elapsed.as_secs_f64() * to_do as f64 / done as f64)),
    }
}

/// The time left beside a bar; nothing as long as there is no estimate.
fn write_left(state: &ProgressState, writer: &mut dyn std::fmt::Write) {
    let seconds = state.eta().as_secs_f64();
    if seconds > 0.0 {
        let _ = write!(writer, " (left {})", duration(seconds));
    }
}

/// Seconds in words.
pub fn duration(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_not_shown_before_it_is_known() {
        assert_eq!(left(0, 6, Duration::from_secs(30)), "");
        assert_eq!(left(2, 4, Duration::from_secs(30)), "  left 1 min 0 s");
        assert_eq!(left(6, 0, Duration::from_secs(30)), "  left 0 s");
    }
}
