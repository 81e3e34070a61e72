//! The multiple-choice knapsack, solved exactly: one choice for every item, least cost within a number of bytes.
//!
//! It is the core of [`super::budget`], kept apart because it knows nothing of models. Item by item it holds the
//! Pareto frontier of (bytes, cost): all combinations for which no other is both smaller and cheaper. Combinations
//! that cannot be completed within the limit, or that a Lagrangian bound shows to end above a solution known
//! already, are dropped. Matrices of one shape and width have equal sizes, so different sums of bytes are few and
//! the frontier of a BERT is small; the bound keeps it small when sizes are irregular.
//!
//! Exact means: of all combinations, up to rounding in the sums of costs. For problems far larger than the sites of
//! a model use an approximation; this one refuses when its memory would grow beyond [`MOST_STATES`].

use super::SizeBudget;
use crate::error::Error;

/// The most combinations remembered over all items, 8 bytes each.
pub const MOST_STATES: usize = 1 << 24;

/// One of the choices of an item.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// What it takes.
    pub bytes: u64,
    /// What it costs: finite and not negative.
    pub cost: f64,
}

/// The best combination.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    /// The index of the choice taken for each item.
    pub choices: Vec<usize>,
    /// The bytes of all items together, without [`SizeBudget::fixed`].
    pub bytes: u64,
    /// The sum of all costs, in the order of the items.
    pub cost: f64,
}

/// Finds the combination of least cost within `budget`. Of several that cost the same the one with the fewest bytes;
/// of those the one whose last item has the lower index, then the last but one, and so on.
///
/// # Errors
/// [`Error::OverBudget`] with the smallest possible size; [`Error::Choice`] for an item with no choices or with a cost
/// that is negative or not finite; [`Error::TooManyStates`] when exactness would take too much memory.
pub fn solve(items: &[Vec<Choice>], budget: SizeBudget) -> Result<Solution, Error> {
    solve_within(items, budget, MOST_STATES)
}

fn solve_within(items: &[Vec<Choice>], budget: SizeBudget, most_states: usize) -> Result<Solution, Error> {
    check(items)?;
    let smallest = |item: &Vec<Choice>| item.iter().map(|choice| choice.bytes).min().unwrap_or(0);
    budget.check(items.iter().map(smallest).fold(0, u64::saturating_add))?;
    // Below the largest number, so that a sum that would overflow is always too large.
    let limit = (budget.limit - budget.fixed).min(u64::MAX - 1);
    let bounds = Bounds::new(items, limit);
    let swept = sweep(items, |index, point| bounds.allow(index, point), most_states)?;
    // Costs fall along the frontier, and all of it is within the limit.
    Ok(swept.solution(swept.frontier.len().saturating_sub(1)))
}

/// Finds every combination that no other beats in both bytes and cost: the solutions of [`solve`] for all budgets at
/// once, from the smallest to the cheapest. Bytes rise and costs fall strictly along it.
///
/// # Errors
/// As [`solve`], but for a budget.
pub fn frontier(items: &[Vec<Choice>]) -> Result<Vec<Solution>, Error> {
    check(items)?;
    let swept = sweep(items, |_, _| true, MOST_STATES)?;
    Ok((0..swept.frontier.len()).map(|place| swept.solution(place)).collect())
}

/// The frontier after all items, and how it was reached.
struct Swept {
    frontier: Vec<Point>,
    steps: Vec<Vec<Step>>,
}

/// Item by item, keeps what no other combination beats and `allow` does not drop.
fn sweep(items: &[Vec<Choice>], allow: impl Fn(usize, Point) -> bool, most_states: usize) -> Result<Swept, Error> {
    let mut frontier = vec![Point { bytes: 0, cost: 0.0 }];
    let mut steps: Vec<Vec<Step>> = Vec::with_capacity(items.len());
    let mut states = 0;
    for (index, item) in items.iter().enumerate() {
        let mut reached = Vec::new();
        let mut how = Vec::new();
        let mut merge = Merge::new(&frontier, item);
        while let Some((point, step)) = merge.next() {
            let improves = reached.last().is_none_or(|last: &Point| point.cost < last.cost);
            if improves && allow(index, point) {
                if states == most_states {
                    return Err(Error::TooManyStates { most: most_states });
                }
                states += 1;
                reached.push(point);
                how.push(step);
            }
        }
        frontier = reached;
        steps.push(how);
    }
    Ok(Swept { frontier, steps })
}

fn check(items: &[Vec<Choice>]) -> Result<(), Error> {
    for (item, choices) in items.iter().enumerate() {
        if choices.is_empty() {
            return Err(Error::Choice { item, cost: None });
        }
        if let Some(bad) = choices.iter().find(|choice| !(choice.cost.is_finite() && choice.cost >= 0.0)) {
            return Err(Error::Choice { item, cost: Some(bad.cost) });
        }
    }
    Ok(())
}

/// A combination of choices for the items so far.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    bytes: u64,
    cost: f64,
}

/// How a point was reached.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// The point of the item before.
    parent: u32,
    choice: u32,
}

/// All points that the choices of one more item lead to, sorted by bytes, then cost, then choice.
///
/// For each choice the points come in order already, so this is a merge of a few sorted lists.
struct Merge<'data> {
    frontier: &'data [Point],
    choices: &'data [Choice],
    /// For each choice, the next point of the frontier.
    next: Vec<usize>,
}

impl<'data> Merge<'data> {
    fn new(frontier: &'data [Point], choices: &'data [Choice]) -> Self {
        Self { frontier, choices, next: vec![0; choices.len()] }
    }

    fn next(&mut self) -> Option<(Point, Step)> {
        let mut best: Option<(Point, usize)> = None;
        for (index, (choice, &parent)) in self.choices.iter().zip(&self.next).enumerate() {
            let Some(point) = self.frontier.get(parent) else { continue };
            let point = Point { bytes: point.bytes.saturating_add(choice.bytes), cost: point.cost + choice.cost };
            if best.is_none_or(|(known, _)| (point.bytes, point.cost) < (known.bytes, known.cost)) {
                best = Some((point, index));
            }
        }
        let (point, choice) = best?;
        let step = Step { parent: self.next[choice] as u32, choice: choice as u32 };
        self.next[choice] += 1;
        Some((point, step))
    }
}

impl Swept {
    /// The combination at a place of the frontier.
    fn solution(&self, mut place: usize) -> Solution {
        let Point { bytes, cost } = self.frontier.get(place).copied().unwrap_or(Point { bytes: 0, cost: 0.0 });
        let mut choices = vec![0; self.steps.len()];
        for (choice, steps) in choices.iter_mut().zip(&self.steps).rev() {
            let step = steps[place];
            (*choice, place) = (step.choice as usize, step.parent as usize);
        }
        Solution { choices, bytes, cost }
    }
}

/// What is known about the items not yet decided, to drop hopeless combinations.
struct Bounds {
    limit: u64,
    /// After each item, the least bytes that the later ones take.
    least_bytes: Vec<u64>,
    /// The price of a byte in the Lagrangian relaxation.
    price: f64,
    /// After each item, the least of `cost + price · bytes` that the later ones add.
    least_sum: Vec<f64>,
    /// The cost of a combination that is within the limit, and a margin for rounding.
    known: f64,
}

impl Bounds {
    fn new(items: &[Vec<Choice>], limit: u64) -> Self {
        let greedy = Greedy::new(items, limit);
        let price = greedy.price;
        let mut least_bytes = vec![0_u64; items.len()];
        let mut least_sum = vec![0.0; items.len()];
        for index in (1..items.len()).rev() {
            let bytes = items[index].iter().map(|choice| choice.bytes).min().unwrap_or(0);
            let sums = items[index].iter().map(|choice| choice.cost + price * choice.bytes as f64);
            least_bytes[index - 1] = least_bytes[index].saturating_add(bytes);
            least_sum[index - 1] = least_sum[index] + sums.fold(f64::INFINITY, f64::min);
        }
        // Far above what rounding in these sums can come to, far below what matters.
        let margin = 1e-9 * (greedy.cost + price * limit as f64);
        Self { limit, least_bytes, price, least_sum, known: greedy.cost + margin }
    }

    /// Whether a combination for the items up to `index` may still lead to the best one.
    ///
    /// However it is completed within the limit, the cost is at least
    /// `cost + Σ min(cost + price · bytes) - price · (limit - bytes)`, because the bytes left are paid for.
    fn allow(&self, index: usize, point: Point) -> bool {
        let left = self.limit.saturating_sub(point.bytes);
        point.bytes.saturating_add(self.least_bytes[index]) <= self.limit
            && point.cost + self.least_sum[index] - self.price * left as f64 <= self.known
    }
}

/// A good combination and the price of a byte, from the convex hulls of the items: the linear relaxation takes the
/// steps along the hulls in the order of what they save per byte, until one does not fit.
struct Greedy {
    cost: f64,
    price: f64,
}

/// A step along the hull of an item.
struct HullStep {
    item: usize,
    from: Choice,
    to: Choice,
}

impl HullStep {
    fn saved_per_byte(&self) -> f64 {
        (self.from.cost - self.to.cost) / (self.to.bytes - self.from.bytes) as f64
    }
}

impl Greedy {
    fn new(items: &[Vec<Choice>], limit: u64) -> Self {
        let hulls: Vec<Vec<Choice>> = items.iter().map(|item| hull(item)).collect();
        let mut taken: Vec<Choice> = hulls.iter().filter_map(|hull| hull.first().copied()).collect();
        let mut bytes = taken.iter().map(|choice| choice.bytes).fold(0, u64::saturating_add);
        let steps = hulls.iter().enumerate();
        let mut steps: Vec<HullStep> = steps
            .flat_map(|(item, hull)| hull.windows(2).map(move |pair| HullStep { item, from: pair[0], to: pair[1] }))
            .collect();
        steps.sort_by(|one, other| other.saved_per_byte().total_cmp(&one.saved_per_byte()));
        let mut price = 0.0;
        for step in &steps {
            // An item whose earlier step did not fit stays where it is.
            if taken[step.item] != step.from {
                continue;
            }
            let after = (bytes - step.from.bytes).saturating_add(step.to.bytes);
            if after <= limit {
                (taken[step.item], bytes) = (step.to, after);
            } else if price == 0.0 {
                price = step.saved_per_byte();
            }
        }
        Self { cost: taken.iter().map(|choice| choice.cost).sum(), price }
    }
}

/// The choices on the lower convex hull of (bytes, cost), from the smallest to the cheapest.
fn hull(item: &[Choice]) -> Vec<Choice> {
    let mut sorted = item.to_vec();
    sorted.sort_by(|one, other| one.bytes.cmp(&other.bytes).then(one.cost.total_cmp(&other.cost)));
    let mut hull: Vec<Choice> = Vec::with_capacity(sorted.len());
    for choice in sorted {
        if hull.last().is_some_and(|last| choice.cost >= last.cost) {
            continue;
        }
        while let [.., before, last] = hull[..] {
            let flat = (before.cost - last.cost) * (choice.bytes - last.bytes) as f64;
            let steep = (last.cost - choice.cost) * (last.bytes - before.bytes) as f64;
            if flat > steep {
                break;
            }
            hull.pop();
        }
        hull.push(choice);
    }
    hull
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(bytes: u64, cost: f64) -> Choice {
        Choice { bytes, cost }
    }

    #[test]
    fn the_hull_keeps_what_the_relaxation_may_take() {
        let item = [
            choice(9, 0.0),
            choice(1, 8.0),
            choice(1, 9.0),
            choice(2, 8.0),
            choice(3, 7.5),
            choice(5, 1.0),
            choice(7, 0.9),
        ];
        assert_eq!(hull(&item), [choice(1, 8.0), choice(5, 1.0), choice(9, 0.0)]);
        assert_eq!(hull(&[choice(4, 2.0)]), [choice(4, 2.0)]);
    }

    #[test]
    fn the_frontier_has_the_solution_of_every_budget() {
        let mut state = 7_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let items: Vec<Vec<Choice>> =
            (0..7).map(|_| (0..4).map(|_| choice(1 + random(12), random(1000) as f64 / 8.0)).collect()).collect();
        let found = frontier(&items).unwrap();
        assert!(found.windows(2).all(|pair| pair[0].bytes < pair[1].bytes && pair[0].cost > pair[1].cost));
        let (smallest, largest) = (found[0].bytes, found[found.len() - 1].bytes);
        assert!(found.len() > 5, "{found:?}");
        for limit in smallest..largest + 3 {
            let best = found.iter().rfind(|point| point.bytes <= limit).unwrap();
            let solved = solve(&items, SizeBudget { limit, fixed: 0 }).unwrap();
            assert_eq!((solved.bytes, solved.cost), (best.bytes, best.cost), "{limit}");
        }
        assert_eq!(frontier(&[]).unwrap().len(), 1, "nothing to choose is one combination");
    }

    #[test]
    fn memory_is_bounded() {
        // Costs and sizes as powers of two: no combination dominates another, and the bound cannot tell.
        let items: Vec<Vec<Choice>> =
            (0..12).map(|i| vec![choice(0, f64::from(1 << i)), choice(1 << i, 0.0)]).collect();
        let budget = SizeBudget { limit: 2000, fixed: 0 };
        let found = solve_within(&items, budget, MOST_STATES).unwrap();
        assert_eq!((found.bytes, found.cost), (2000, 2095.0));
        assert_eq!(solve_within(&items, budget, 1000), Err(Error::TooManyStates { most: 1000 }));
    }
}
