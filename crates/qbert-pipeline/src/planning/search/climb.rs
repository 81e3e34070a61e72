//! Which plan to train. Training takes back a part of the drop, so a smaller plan than the search's may do; how small, only
//! training tells.
//!
//! The first plan to train is the smallest one that drops by no more than [`EXPECTED_RECOVERY`] times the limit without
//! training. If it misses the limit, the next one follows from how much training took back. The last resort is the plan that
//! keeps the limit without training: training keeps the best epoch, so it does not get worse. That makes
//! [`MOST_TRAININGS`] trainings at most, and none after the first that keeps the limit: a search downwards would cost a
//! training for each step.

use super::fit::Fit;
use super::ladder::{Rung, Trial};

/// How many times the limit the drop may be before training.
pub(super) const EXPECTED_RECOVERY: f64 = 2.0;
/// The most plans that are trained.
pub(super) const MOST_TRAININGS: usize = 3;
/// Of the limit, what the second plan to train aims at.
const AIM: f64 = 0.8;

/// What is known of the plans.
#[derive(Debug, Clone, Copy)]
pub(super) struct Climb<'a> {
    pub(super) rungs: &'a [Rung],
    /// Without training.
    pub(super) measured: &'a [Trial],
    /// After training, in the order of training; all of them miss the limit.
    pub(super) missed: &'a [Trial],
    pub(super) limit: f64,
    /// The plan to begin with.
    pub(super) start: usize,
    /// The plan that keeps the limit without training, or the nearest.
    pub(super) top: usize,
}

impl Climb<'_> {
    /// The next plan to train; `None` if there is none left.
    pub(super) fn next(&self) -> Option<usize> {
        let Self { missed, start, top, .. } = *self;
        let Some(highest) = missed.iter().map(|trial| trial.rung).max() else { return Some(start.min(top)) };
        if missed.len() >= MOST_TRAININGS || highest >= top {
            return None;
        }
        Some(if missed.len() == 1 { self.second(missed[0]) } else { top })
    }

    /// The smallest plan that should keep the limit if training takes back the same share as before.
    fn second(&self, first: Trial) -> usize {
        let Self { rungs, measured, limit, top, .. } = *self;
        let pairs = measured.iter().map(|trial| (rungs[trial.rung].divergence, trial.judged));
        let Some(fit) = Fit::new(pairs) else { return top };
        let before = fit.at(rungs[first.rung].divergence);
        let kept = if before > 0.0 { (first.judged / before).clamp(0.0, 1.0) } else { 1.0 };
        let keeps = |&rung: &usize| kept * fit.at(rungs[rung].divergence) <= AIM * limit;
        (first.rung + 1..top).find(keeps).unwrap_or(top)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rungs() -> Vec<Rung> {
        (0..41).map(|step| Rung { bytes: 1000 + 10 * step, divergence: 4.0 - 0.1 * step as f64 }).collect()
    }

    /// Trains until a plan keeps the limit or none is left; the drop without training is the divergence.
    fn train(limit: f64, recovered: impl Fn(usize) -> f64) -> (Vec<usize>, bool) {
        let rungs = rungs();
        let measured: Vec<Trial> =
            [0, 10, 20, 30, 40].map(|rung| Trial { rung, judged: rungs[rung].divergence }).to_vec();
        let within = |points: f64| rungs.iter().position(|rung| rung.divergence <= points + 1e-9);
        let (start, top) = (within(2.0 * limit).unwrap_or(40), within(limit).unwrap_or(40));
        let mut missed = Vec::new();
        let mut all = Vec::new();
        loop {
            let climb = Climb { rungs: &rungs, measured: &measured, missed: &missed, limit, start, top };
            let Some(rung) = climb.next() else { return (all, false) };
            all.push(rung);
            let judged = rungs[rung].divergence * recovered(rung);
            if judged <= limit + 1e-9 {
                return (all, true);
            }
            missed.push(Trial { rung, judged });
        }
    }

    #[test]
    fn a_plan_that_training_saves_is_trained_once() {
        assert_eq!(train(1.0, |_| 0.4), (vec![20], true));
    }

    #[test]
    fn what_training_takes_back_decides_the_second_and_the_safe_plan_is_the_last() {
        // Three quarters are left: 0.75 · 1.0 would do, with some room 30 · 0.1 is tried.
        assert_eq!(train(1.0, |_| 0.75), (vec![20, 30], true));
        let (all, holds) = train(1.0, |_| 0.6);
        assert!(holds && all.len() == 2 && all[1] > 20 && all[1] < 30, "{all:?}");
        // Training helps the first plan only.
        assert_eq!(train(1.0, |rung| if rung == 20 { 0.6 } else { 1.0 }).0.last(), Some(&30));
        // Training does not help at all: at once the plan that needs none.
        assert_eq!(train(1.0, |_| 1.0), (vec![20, 30], true));
    }

    #[test]
    fn it_ends_where_nothing_keeps_the_limit() {
        let (all, holds) = train(0.5, |_| 5.0);
        assert!(!holds && all.len() <= MOST_TRAININGS, "{all:?}");
        assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "{all:?}");
    }
}
