//! Which plan to try next. The plans worth trying are the knapsack's frontier: rungs of a ladder, larger and less divergent
//! one after the other. The search looks for the lowest rung whose measured drop keeps the limit.
//!
//! The first two trials are the ends. Then the search closes in between the lowest rung that keeps the limit and the highest
//! one below it that does not. Where to try is predicted by [`Fit`]; if a prediction errs on the same side twice, the middle
//! is tried, so that a bad prediction costs little. It ends when the two rungs are neighbours or nearly of the same size.
//!
//! Measurements are noisy: a smaller plan may keep a limit that a larger one misses. What was measured decides. So if both
//! ends miss the limit, a few rungs between them are tried before the search gives up.
//!
//! The next trial follows from the trials so far and nothing else, so an interrupted search continues as if nothing had
//! happened.

use super::fit::Fit;

/// Two plans whose files differ by less than this share are as good as one: noise decides between them.
const RESOLUTION: f64 = 0.005;
/// No trial is closer to an end of the interval than this share of it.
const MARGIN: f64 = 0.1;
/// Where to look, as shares of the way from the smallest to the largest file, if both ends miss the limit.
const PROBES: [f64; 3] = [0.75, 0.5, 0.25];

/// A plan of the frontier.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rung {
    pub(super) bytes: u64,
    pub(super) divergence: f64,
}

/// A measured plan.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Trial {
    /// Its place on the ladder.
    pub(super) rung: usize,
    /// The drop that is held against the limit.
    pub(super) judged: f64,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Measure this rung.
    Try(usize),
    /// This one it is.
    Found {
        rung: usize,
        /// Whether all smaller plans are ruled out, but for those of nearly the same size.
        narrowed: bool,
    },
    /// No plan that was tried keeps the limit. This one comes nearest.
    Nothing { nearest: usize },
}

/// The next step of a search with so many more trials to make. Trials are in the order they were made.
pub(super) fn next(rungs: &[Rung], trials: &[Trial], limit: f64, tries_left: usize) -> Next {
    let is_tried = |rung: usize| trials.iter().any(|trial| trial.rung == rung);
    let holding = trials.iter().filter(|trial| trial.judged <= limit).map(|trial| trial.rung).min();
    let Some(high) = holding else {
        let probes = PROBES.map(|share| rung_at(rungs, share, 0, rungs.len() - 1));
        let untried = [0, rungs.len() - 1].into_iter().chain(probes).find(|&rung| !is_tried(rung));
        return match untried {
            Some(rung) if tries_left > 0 => Next::Try(rung),
            _ => Next::Nothing { nearest: nearest(trials) },
        };
    };
    let missing = trials.iter().filter(|trial| trial.judged > limit && trial.rung < high);
    let Some(low) = missing.map(|trial| trial.rung).max() else {
        return match high {
            0 => Next::Found { rung: 0, narrowed: true },
            _ if tries_left == 0 => Next::Found { rung: high, narrowed: false },
            _ => Next::Try(0),
        };
    };
    let gap = rungs[high].bytes - rungs[low].bytes;
    let narrowed = high - low == 1 || gap as f64 <= RESOLUTION * rungs[high].bytes as f64;
    if narrowed || tries_left == 0 {
        return Next::Found { rung: high, narrowed };
    }
    Next::Try(guess(rungs, trials, limit, (low, high)))
}

/// The trial with the least drop; of equal ones the smallest.
fn nearest(trials: &[Trial]) -> usize {
    let least = trials.iter().min_by(|one, other| one.judged.total_cmp(&other.judged).then(one.rung.cmp(&other.rung)));
    least.map_or(0, |trial| trial.rung)
}

/// The first rung at this share of the way between two rungs, in bytes.
fn rung_at(rungs: &[Rung], share: f64, low: usize, high: usize) -> usize {
    let bytes = rungs[low].bytes as f64 + share * (rungs[high].bytes - rungs[low].bytes) as f64;
    rungs.partition_point(|rung| (rung.bytes as f64) < bytes).clamp(low, high)
}

/// A rung between two that are not neighbours.
fn guess(rungs: &[Rung], trials: &[Trial], limit: f64, (low, high): (usize, usize)) -> usize {
    let at = |share: f64| rung_at(rungs, share, low, high).clamp(low + 1, high - 1);
    let verdict = |trial: &Trial| trial.judged <= limit;
    if let [.., before, last] = trials
        && verdict(before) == verdict(last)
    {
        return at(0.5);
    }
    let Some(fit) = Fit::new(trials.iter().map(|trial| (rungs[trial.rung].divergence, trial.judged))) else {
        return at(0.5);
    };
    let expected = (low + 1..high).find(|&rung| fit.at(rungs[rung].divergence) <= limit).unwrap_or(high - 1);
    expected.clamp(at(MARGIN), at(1.0 - MARGIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(state: &mut u64) -> f64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 40) as f64 / (1_u64 << 24) as f64
    }

    /// A ladder as a model has it: each step costs some bytes, and divergence falls to about a quarter per bit.
    fn ladder(state: &mut u64) -> Vec<Rung> {
        let count = 2 + (random(state) * 400.0) as usize;
        let (mut bytes, mut divergence) = (9_000_000, 2.0);
        let mut rungs = Vec::new();
        for _ in 0..count {
            rungs.push(Rung { bytes, divergence });
            bytes += 18_432 * (1 + (random(state) * 4.0) as u64);
            divergence *= 1.0 - 0.05 * random(state) - 1e-6;
        }
        rungs
    }

    /// Searches to the end; returns all trials and the result.
    fn search(rungs: &[Rung], limit: f64, tries: usize, drop: impl Fn(usize) -> f64) -> (Vec<Trial>, Next) {
        let mut trials: Vec<Trial> = Vec::new();
        loop {
            match next(rungs, &trials, limit, tries - trials.len()) {
                Next::Try(rung) => {
                    assert!(trials.iter().all(|trial| trial.rung != rung), "nothing is measured twice");
                    trials.push(Trial { rung, judged: drop(rung) });
                }
                end => return (trials, end),
            }
        }
    }

    #[test]
    fn the_smallest_plan_that_keeps_the_limit_is_found() {
        let mut state = 1;
        for _ in 0..300 {
            let rungs = ladder(&mut state);
            let (bend, floor) = (0.4 + 1.2 * random(&mut state), 0.4 * random(&mut state));
            let drop = |rung: usize| 0.3 * floor + 5.0 * libm::pow(rungs[rung].divergence, bend);
            let limit = 0.05 + 3.0 * random(&mut state);
            let (trials, end) = search(&rungs, limit, 60, drop);
            let smallest = (0..rungs.len()).find(|&rung| drop(rung) <= limit);
            match (end, smallest) {
                (Next::Found { rung, narrowed }, Some(smallest)) => {
                    assert!(narrowed && drop(rung) <= limit);
                    let (found, best) = (rungs[rung].bytes as f64, rungs[smallest].bytes as f64);
                    assert!(found <= best * (1.0 + RESOLUTION + 1e-9), "{found} {best}");
                }
                (Next::Nothing { nearest }, None) => assert_eq!(nearest, rungs.len() - 1),
                other => panic!("{other:?}"),
            }
            assert!(trials.len() <= 16, "{} trials", trials.len());
        }
    }

    #[test]
    fn with_noise_what_was_measured_decides_and_the_search_is_the_same_every_time() {
        let mut state = 9;
        let (mut trials_of_all, mut searches) = (0, 0);
        for _ in 0..300 {
            let rungs = ladder(&mut state);
            let noise: Vec<f64> = rungs.iter().map(|_| 0.6 * (random(&mut state) - 0.5)).collect();
            let drop = |rung: usize| 3.0 * rungs[rung].divergence + noise[rung];
            let (trials, end) = search(&rungs, 0.5, 12, drop);
            assert_eq!((trials.clone(), end), search(&rungs, 0.5, 12, drop));
            assert!(trials.len() <= 12);
            let held: Vec<usize> = trials.iter().filter(|t| t.judged <= 0.5).map(|t| t.rung).collect();
            match end {
                Next::Found { rung, .. } => assert_eq!(Some(&rung), held.iter().min()),
                Next::Nothing { nearest } => {
                    assert!(held.is_empty());
                    assert!(trials.iter().all(|trial| trial.judged >= drop(nearest)));
                }
                Next::Try(_) => unreachable!("the search is at its end"),
            }
            // Interrupted anywhere, it goes on as it would have gone.
            for done in 0..trials.len() {
                assert_eq!(next(&rungs, &trials[..done], 0.5, 12 - done), Next::Try(trials[done].rung));
            }
            (trials_of_all, searches) = (trials_of_all + trials.len(), searches + 1);
        }
        assert!(trials_of_all < 9 * searches, "{trials_of_all} trials in {searches} searches");
    }

    #[test]
    fn ends_and_few_tries_are_minded() {
        let rungs: Vec<Rung> =
            (0..5).map(|step| Rung { bytes: 1000 + 100 * step, divergence: 1.0 / (step + 1) as f64 }).collect();
        let all = |drop: f64| search(&rungs, 0.5, 12, move |_| drop);
        assert_eq!(all(0.5), (vec![Trial { rung: 0, judged: 0.5 }], Next::Found { rung: 0, narrowed: true }));
        let (trials, end) = all(0.75);
        assert_eq!((trials.len(), end), (5, Next::Nothing { nearest: 0 }), "of equal ones the smallest");
        // Only the middle keeps the limit: noise, but measured.
        let (trials, end) = search(&rungs, 0.5, 12, |rung| if rung == 2 { 0.25 } else { 1.0 });
        assert_eq!((trials.len(), end), (5, Next::Found { rung: 2, narrowed: true }));
        let steep = |rung: usize| if rung >= 3 { 0.0 } else { 2.0 };
        assert_eq!(search(&rungs, 0.5, 2, steep).1, Next::Found { rung: 4, narrowed: false });
        assert_eq!(search(&rungs, 0.5, 1, steep).1, Next::Nothing { nearest: 0 });
        assert_eq!(search(&rungs[..1], 0.5, 12, |_| 1.0).1, Next::Nothing { nearest: 0 });
        assert_eq!(search(&rungs[..1], 0.5, 12, |_| 0.0).1, Next::Found { rung: 0, narrowed: true });
        assert_eq!(next(&rungs, &[Trial { rung: 3, judged: 0.0 }], 0.5, 3), Next::Try(0), "of an earlier search");
    }
}
