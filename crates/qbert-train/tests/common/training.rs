//! A data set that a tiny model can learn, and somebody who watches it learn and can stop it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use qbert_train::evaluate::Evaluation;
use qbert_train::trainer::{StepRecord, Watch};

use super::goldens;

/// Stops a run after some steps, as a crash would: by unwinding out of the middle of it.
#[derive(Default)]
pub(crate) struct Observer {
    pub(crate) stop_after: Option<usize>,
    /// Asks the run to stop after this step.
    pub(crate) ask_after: Option<usize>,
    pub(crate) losses: Vec<f64>,
    /// Every evaluation: the epoch, the figure, whether it was the best.
    pub(crate) evaluations: Vec<(usize, f64, bool)>,
    pub(crate) full_precision: Option<f64>,
}

struct Stopped;

impl Watch for Observer {
    fn step(&mut self, record: &StepRecord, _: usize) {
        self.losses.push(record.loss);
        if Some(record.step) == self.stop_after {
            std::panic::resume_unwind(Box::new(Stopped));
        }
    }

    fn full_precision(&mut self, evaluation: &Evaluation) {
        self.full_precision = Some(evaluation.value);
    }

    fn evaluated(&mut self, epoch: usize, evaluation: &Evaluation, best: bool) {
        self.evaluations.push((epoch, evaluation.value, best));
    }

    fn stop(&mut self) -> bool {
        self.ask_after == Some(self.losses.len())
    }
}

/// A data set that a tiny model can learn: the label says which of two words occurs.
pub(crate) fn data(home: &Path, name: &str, examples: usize, seed: usize) -> PathBuf {
    let vocabulary = std::fs::read_to_string(goldens().join("tiny-sequence/vocab.txt")).unwrap();
    let words: Vec<&str> = vocabulary.lines().filter(|word| word.chars().all(char::is_alphabetic)).collect();
    let mut text = "sentence\tlabel\n".to_owned();
    for example in 0..examples {
        let at = |offset: usize| words[2 + (example * 7 + offset * 5 + seed) % (words.len() - 2)];
        let label = (example * 13 + seed) % 2;
        let filler: Vec<&str> = (0..example % 5 + 1).map(at).collect();
        writeln!(text, "{} {} {}\t{label}", at(9), words[label], filler.join(" ")).unwrap();
    }
    let path = home.join(name);
    std::fs::write(&path, text).unwrap();
    path
}
