//! The progress of a run, on stderr: the stage, what it does, the time left.

use std::sync::Arc;
use std::time::{Duration, Instant};

use qbert_pipeline::run::{Event, Stage, Watch};
use qbert_train::evaluate::Evaluation;
use qbert_train::sensitivity::{Settings, Step};
use qbert_train::trainer::{self, StepRecord};

use super::super::progress::{Progress, Sink, duration};
use super::super::{note, stop};

/// Shows the progress of a run.
pub(super) struct RunProgress {
    quiet: bool,
    /// The progress of the current stage, and when it started.
    current: Option<(Progress, Instant)>,
    /// What the bar counts, to restart it when that changes.
    counted: String,
    save_every: Option<Duration>,
    /// Where it is shown; `None` for stderr.
    sink: Option<Arc<dyn Sink>>,
}

impl RunProgress {
    /// `save_every`: how often states are saved, if not as usual.
    pub(super) fn new(quiet: bool, save_every: Option<Duration>, sink: Option<Arc<dyn Sink>>) -> Self {
        Self { quiet, current: None, counted: String::new(), save_every, sink }
    }

    fn line(&self, text: &str) {
        match &self.current {
            Some((progress, _)) => progress.say(text),
            None if self.sink.is_some() => self.sink.iter().for_each(|sink| sink.say(text)),
            None if self.quiet => {}
            None => note(text),
        }
    }

    fn current(&mut self) -> Option<&mut Progress> {
        self.current.as_mut().map(|(progress, _)| progress)
    }

    fn begin(&mut self, stage: Stage) {
        // The old one first: dropping it gives up its hold on Ctrl-C.
        self.current = None;
        let progress = Progress::shown_by(self.sink.as_ref(), name(stage), self.quiet);
        let progress = if stage.keeps_state() { progress.stoppable() } else { progress };
        self.current = Some((progress, Instant::now()));
    }
}

/// A stage with its number.
fn name(stage: Stage) -> String {
    format!("[{}/{}] {stage}", stage.number(), Stage::ALL.len())
}

impl Watch for RunProgress {
    fn stage(&mut self, stage: Stage, event: Event<'_>) {
        match event {
            Event::Begins(why) => {
                self.begin(stage);
                let why = why.map(|why| format!(" again: {why}")).unwrap_or_default();
                self.line(&format!("{}{why}", name(stage)));
            }
            Event::Skipped(why) => self.line(&format!("{}: {why}", name(stage))),
            Event::Done => {
                let seconds = self.current.as_ref().map_or(0.0, |(_, begun)| begun.elapsed().as_secs_f64());
                self.line(&format!("{}: done in {}", name(stage), duration(seconds)));
                self.current = None;
            }
        }
    }

    fn analysis(&mut self, step: Step, settings: &Settings) {
        if let Some(progress) = self.current() {
            progress.analysis(&step, settings);
        }
    }

    fn progress(&mut self, done: usize, total: usize, what: &str) {
        if self.counted != what {
            what.clone_into(&mut self.counted);
            if let Some(progress) = self.current() {
                progress.restart();
            }
        }
        if let Some(progress) = self.current() {
            progress.at(done, total, what);
        }
    }

    fn say(&mut self, text: &str) {
        self.line(text);
    }
}

impl trainer::Watch for RunProgress {
    fn step(&mut self, record: &StepRecord, total: usize) {
        if let Some(progress) = self.current() {
            trainer::Watch::step(progress, record, total);
        }
    }

    fn full_precision(&mut self, evaluation: &Evaluation) {
        if let Some(progress) = self.current() {
            progress.full_precision(evaluation);
        }
    }

    fn evaluated(&mut self, epoch: usize, evaluation: &Evaluation, best: bool) {
        if let Some(progress) = self.current() {
            progress.evaluated(epoch, evaluation, best);
        }
    }

    fn stop(&mut self) -> bool {
        self.sink.as_ref().map_or_else(stop::is_asked, |sink| sink.is_stopped())
    }

    fn save_every(&self) -> Option<Duration> {
        self.save_every
    }
}
