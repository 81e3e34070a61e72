//! Which plan to train. Training takes back a part of the drop, so a smaller plan than the search's may do; how small, only
//! training tells.
//!
//! The first plan to train is the smallest one that drops by no more than [`EXPECTED_RECOVERY`] times the limit without
//! training. If it misses the limit, the next one follows from how much training took back. The last resort is the plan that
//! keeps the limit without training: training keeps the best epoch, so it does not get worse. That makes
//! [`MOST_TRAININGS`] trainings at most.
//!
//! If the first plan keeps the limit, one smaller plan is trained where training surely took back more than expected: the
//! upper end of the drop's interval says what it left at most. A small dev set has a wide interval, so the search ends there.
//! If the smaller plan misses the limit, the first one is the result, and its training is repeated.

use std::ops::Range;

use super::fit::Fit;
use super::ladder::{Rung, Trial};

/// A plan that was trained.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Trained {
    /// Its place on the ladder, and the drop that is held against the limit.
    pub(super) trial: Trial,
    /// The upper end of the drop's interval.
    pub(super) upper: f64,
}

/// How many times the limit the drop may be before training.
pub(super) const EXPECTED_RECOVERY: f64 = 2.0;
/// The most plans that are trained.
pub(super) const MOST_TRAININGS: usize = 3;
/// Of the limit, what a plan aims at that is trained after another.
const AIM: f64 = 0.8;

/// What is known of the plans.
#[derive(Debug, Clone, Copy)]
pub(super) struct Climb<'a> {
    pub(super) rungs: &'a [Rung],
    /// Without training.
    pub(super) measured: &'a [Trial],
    /// After training.
    pub(super) trained: &'a [Trained],
    pub(super) limit: f64,
    /// The plan to begin with.
    pub(super) start: usize,
    /// The plan that keeps the limit without training, or the nearest.
    pub(super) top: usize,
}

impl Climb<'_> {
    /// The next plan to train; `None` if there is none left.
    pub(super) fn next(&self) -> Option<usize> {
        let Self { trained, start, top, .. } = *self;
        let Some(highest) = trained.iter().map(|own| own.trial.rung).max() else { return Some(start.min(top)) };
        if let [Trained { trial, upper }] = *trained {
            return if self.smallest_holding().is_some() {
                self.should_keep(trial.rung, upper, 0..trial.rung)
            } else {
                (highest < top).then(|| self.should_keep(trial.rung, trial.judged, trial.rung + 1..top).unwrap_or(top))
            };
        }
        let is_left = self.smallest_holding().is_none() && trained.len() < MOST_TRAININGS && highest < top;
        is_left.then_some(top)
    }

    /// The smallest plan that keeps the limit after training.
    pub(super) fn smallest_holding(&self) -> Option<usize> {
        self.trained.iter().filter(|own| own.trial.judged <= self.limit).map(|own| own.trial.rung).min()
    }

    /// The smallest of some plans that should keep the limit, if training leaves the same share of the drop as it left of
    /// another plan's.
    fn should_keep(&self, other: usize, left: f64, mut among: Range<usize>) -> Option<usize> {
        let Self { rungs, measured, limit, .. } = *self;
        let fit = Fit::new(measured.iter().map(|trial| (rungs[trial.rung].divergence, trial.judged)))?;
        let before = fit.at(rungs[other].divergence);
        let share = if before > 0.0 { (left / before).clamp(0.0, 1.0) } else { 1.0 };
        among.find(|&rung| share * fit.at(rungs[rung].divergence) <= AIM * limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rungs() -> Vec<Rung> {
        (0..41).map(|step| Rung { bytes: 1000 + 10 * step, divergence: 4.0 - 0.1 * step as f64 }).collect()
    }

    /// Trains until none is left; the drop without training is the divergence, and the interval reaches so far above the drop
    /// after training. Returns the plans that were trained, and the one that is chosen.
    fn train(limit: f64, interval: f64, recovered: impl Fn(usize) -> f64) -> (Vec<usize>, Option<usize>) {
        let rungs = rungs();
        let measured: Vec<Trial> =
            [0, 10, 20, 30, 40].map(|rung| Trial { rung, judged: rungs[rung].divergence }).to_vec();
        let within = |points: f64| rungs.iter().position(|rung| rung.divergence <= points + 1e-9);
        let (start, top) = (within(2.0 * limit).unwrap_or(40), within(limit).unwrap_or(40));
        let mut trained: Vec<Trained> = Vec::new();
        loop {
            let climb = Climb { rungs: &rungs, measured: &measured, trained: &trained, limit, start, top };
            let Some(rung) = climb.next() else {
                return (trained.iter().map(|own| own.trial.rung).collect(), climb.smallest_holding());
            };
            let judged = (rungs[rung].divergence * recovered(rung) * 1e9).round() / 1e9;
            trained.push(Trained { trial: Trial { rung, judged }, upper: judged + interval });
        }
    }

    #[test]
    fn a_plan_that_training_saves_is_trained_once() {
        assert_eq!(train(1.0, 0.0, |_| 0.4), (vec![20], Some(20)));
        // Training takes back nearly everything, but the dev set is too small to tell.
        assert_eq!(train(1.0, 1.0, |_| 0.1), (vec![20], Some(20)));
    }

    #[test]
    fn one_smaller_plan_is_trained_if_training_takes_back_more_than_expected() {
        // At most 0.3 of 2.0 points are left, so 0.8 of 5.3: more than the smallest plan drops by.
        assert_eq!(train(1.0, 0.1, |_| 0.1), (vec![20, 0], Some(0)));
        // At most 0.6 of 2.0 are left, so 0.8 of 2.7.
        assert_eq!(train(1.0, 0.2, |_| 0.2), (vec![20, 14], Some(14)));
        // The smaller one misses: the first is the result.
        assert_eq!(train(1.0, 0.2, |rung| if rung == 20 { 0.2 } else { 0.5 }), (vec![20, 14], Some(20)));
    }

    #[test]
    fn what_training_takes_back_decides_the_second_and_the_safe_plan_is_the_last() {
        // Three quarters are left: 0.75 · 1.0 would do, with some room 30 · 0.1 is tried.
        assert_eq!(train(1.0, 0.0, |_| 0.75), (vec![20, 30], Some(30)));
        let (all, chosen) = train(1.0, 0.0, |_| 0.6);
        assert!(chosen == Some(all[1]) && all.len() == 2 && all[1] > 20 && all[1] < 30, "{all:?}");
        // Training helps the first plan only.
        assert_eq!(train(1.0, 0.0, |rung| if rung == 20 { 0.6 } else { 1.0 }).0.last(), Some(&30));
        // Training does not help at all: at once the plan that needs none.
        assert_eq!(train(1.0, 0.0, |_| 1.0), (vec![20, 30], Some(30)));
    }

    #[test]
    fn it_ends_where_nothing_keeps_the_limit() {
        let (all, chosen) = train(0.5, 0.0, |_| 5.0);
        assert!(chosen.is_none() && all.len() <= MOST_TRAININGS, "{all:?}");
        assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "{all:?}");
    }
}
