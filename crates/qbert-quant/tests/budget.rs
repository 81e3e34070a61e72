//! The exact optimum within a size: against brute force, a textbook's table and hostile numbers.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

use proptest::prelude::*;
use qbert_quant::allocate::budget::{Granularity, OpenSite, within};
use qbert_quant::allocate::knapsack::{Choice, Solution, solve};
use qbert_quant::size::group_bytes;
use qbert_quant::{
    Error, GroupSpec, Matrix, ModelShape, Precision, RangeMethod, Site, SitePlan, SizeBudget, TransformerDimensions,
    Widths,
};

fn bits(number: i32) -> Precision {
    Precision::from_number(number).unwrap()
}

fn widths(numbers: &[i32]) -> Widths {
    Widths::new(numbers.iter().map(|&number| bits(number)).collect()).unwrap()
}

/// A small generator with a seed: the cases are the same on every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Every combination in turn; the best by cost, then bytes, then from the last item on the lower index.
fn brute_force(items: &[Vec<Choice>], room: SizeBudget) -> Option<Solution> {
    let mut best: Option<Solution> = None;
    let mut choices = vec![0; items.len()];
    loop {
        let taken: Vec<Choice> = items.iter().zip(&choices).map(|(item, &choice)| item[choice]).collect();
        let bytes: u64 = taken.iter().map(|choice| choice.bytes).sum();
        let cost = taken.iter().fold(0.0, |sum, choice| sum + choice.cost);
        let key = |solution: &Solution| {
            (solution.cost, solution.bytes, solution.choices.iter().rev().copied().collect::<Vec<_>>())
        };
        let found = Solution { choices: choices.clone(), bytes, cost };
        if bytes + room.fixed <= room.limit && best.as_ref().is_none_or(|best| key(&found) < key(best)) {
            best = Some(found);
        }
        let Some(place) = (0..items.len()).find(|&place| choices[place] + 1 < items[place].len()) else {
            return best;
        };
        choices[..place].fill(0);
        choices[place] += 1;
    }
}

/// A small random problem. Costs are whole numbers or multiples of 1/64, so that sums are exact and ties are ties.
fn small_problem(random: &mut Random) -> (Vec<Vec<Choice>>, SizeBudget) {
    let items = 1 + random.below(6);
    let (sizes, costs) = ([3, 12, 1000][random.below(3) as usize], [1, 4, 30, 1 << 20][random.below(4) as usize]);
    let alike = random.below(3) == 0;
    let shapes: Vec<u64> = (0..5).map(|_| random.below(sizes)).collect();
    let mut items: Vec<Vec<Choice>> = (0..items)
        .map(|_| {
            let choices = if alike { 3 } else { 1 + random.below(4) };
            let bytes = |choice: usize, random: &mut Random| if alike { shapes[choice] } else { random.below(sizes) };
            (0..choices as usize)
                .map(|choice| Choice { bytes: bytes(choice, random), cost: random.below(costs) as f64 / 64.0 })
                .collect()
        })
        .collect();
    if random.below(4) == 0 {
        // What quantization gives: sizes rise with the width, costs fall.
        for item in &mut items {
            let mut bytes: Vec<u64> = item.iter().map(|choice| choice.bytes).collect();
            let mut costs: Vec<f64> = item.iter().map(|choice| choice.cost).collect();
            bytes.sort_unstable();
            costs.sort_by(|one, other| other.total_cmp(one));
            *item = bytes.into_iter().zip(costs).map(|(bytes, cost)| Choice { bytes, cost }).collect();
        }
    }
    if random.below(4) == 0 {
        // Nothing but ties.
        let first = items[0].clone();
        items.fill(first);
    }
    let sum = |of: fn(&[Choice]) -> u64| items.iter().map(|item| of(item)).sum::<u64>();
    let least = sum(|item| item.iter().map(|choice| choice.bytes).min().unwrap());
    let most = sum(|item| item.iter().map(|choice| choice.bytes).max().unwrap());
    let fixed = random.below(50);
    let some: u64 = items.iter().map(|item| item[random.below(item.len() as u64) as usize].bytes).sum();
    let limit = match random.below(6) {
        0 => (least + fixed).saturating_sub(1 + random.below(3)),
        1 => least + fixed,
        2 => most + fixed,
        3 => some + fixed,
        _ => fixed + least + random.below(most - least + 1),
    };
    (items, SizeBudget { limit, fixed })
}

#[test]
fn the_solver_equals_brute_force() {
    let mut random = Random(4);
    let (mut infeasible, mut exact, mut tied) = (0, 0, 0);
    for case in 0..6000 {
        let (items, room) = small_problem(&mut random);
        let expected = brute_force(&items, room);
        let found = solve(&items, room);
        match expected {
            Some(expected) => {
                assert_eq!(found.as_ref(), Ok(&expected), "case {case}: {items:?} {room:?}");
                exact += usize::from(expected.bytes + room.fixed == room.limit);
                let reversed: Vec<Vec<Choice>> = items.iter().rev().cloned().collect();
                let turned: Vec<usize> = brute_force(&reversed, room).unwrap().choices.into_iter().rev().collect();
                tied += usize::from(turned != expected.choices);
            }
            None => {
                let smallest: u64 = items.iter().map(|item| item.iter().map(|c| c.bytes).min().unwrap()).sum();
                let smallest = smallest + room.fixed;
                assert_eq!(found, Err(Error::OverBudget { limit: room.limit, smallest }), "case {case}");
                infeasible += 1;
            }
        }
    }
    // The cases are of every kind.
    assert!(infeasible > 500 && exact > 1000 && tied > 100, "{infeasible} {exact} {tied}");
}

#[test]
fn any_granularity_equals_brute_force() {
    let mut random = Random(5);
    let three = widths(&[2, 3, 4]);
    for case in 0..200 {
        let granularity = Granularity::ALL[case % 3];
        let matrices: &[Matrix] =
            if granularity == Granularity::Site { &[Matrix::Key, Matrix::Value, Matrix::Output] } else { &Matrix::ALL };
        let sites: Vec<OpenSite> = (0..2)
            .flat_map(|layer| matrices.iter().map(move |&matrix| (layer, matrix)))
            .map(|(layer, matrix)| {
                let choice = |bytes| Choice { bytes, cost: random.below(20) as f64 };
                OpenSite { layer, matrix, choices: [2, 3, 4].map(choice).to_vec() }
            })
            .collect();
        let limit = 2 * sites.len() as u64 + random.below(2 * sites.len() as u64 + 1);
        let found = within(&sites, &three, granularity, SizeBudget { limit: limit + 5, fixed: 5 }).unwrap();
        assert_eq!(cost_of(&sites, &found.widths), found.cost);
        assert!(found.bytes <= limit + 5);
        assert_eq!(found.cost, best_of_all(&sites, granularity, limit), "case {case}: {sites:?} {limit}");
        for (site, width) in sites.iter().zip(&found.widths) {
            let alike = sites.iter().zip(&found.widths).filter(|(other, _)| one_part(granularity, site, other));
            assert!(alike.into_iter().all(|(_, other)| other == width), "case {case}");
        }
    }
}

fn one_part(granularity: Granularity, one: &OpenSite, other: &OpenSite) -> bool {
    let module = one.matrix.is_attention() == other.matrix.is_attention();
    one.layer == other.layer
        && (granularity == Granularity::Layer
            || granularity == Granularity::Module && module
            || one.matrix == other.matrix)
}

fn cost_of(sites: &[OpenSite], widths: &[Precision]) -> f64 {
    sites.iter().zip(widths).map(|(site, width)| site.choices[width.number() as usize - 2].cost).sum()
}

/// The least cost over all assignments of widths to the sites that respect the granularity.
fn best_of_all(sites: &[OpenSite], granularity: Granularity, limit: u64) -> f64 {
    let mut parts: Vec<usize> = Vec::new();
    for site in sites {
        let first = sites.iter().position(|other| one_part(granularity, other, site)).unwrap();
        parts.push(first);
    }
    let mut leaders = parts.clone();
    leaders.dedup();
    leaders.sort_unstable();
    leaders.dedup();
    let mut best = f64::INFINITY;
    for number in 0..3_usize.pow(leaders.len() as u32) {
        let level = |part: usize| number / 3_usize.pow(leaders.iter().position(|&l| l == part).unwrap() as u32) % 3;
        let taken: Vec<Choice> = sites.iter().zip(&parts).map(|(site, &part)| site.choices[level(part)]).collect();
        if taken.iter().map(|choice| choice.bytes).sum::<u64>() <= limit {
            best = best.min(taken.iter().map(|choice| choice.cost).sum());
        }
    }
    best
}

/// Layers, hidden and feed-forward width.
type Dimensions = (usize, usize, usize);

/// The sites of a BERT with random sensitivities, errors that fall by about four with each bit, and true sizes.
fn encoder(dimensions: Dimensions, numbers: &[i32], random: &mut Random) -> Vec<OpenSite> {
    let (layers, hidden, intermediate) = dimensions;
    let shape = ModelShape::transformer(&TransformerDimensions {
        vocabulary: 100,
        positions: 64,
        types: 2,
        embedding: hidden,
        hidden,
        intermediate,
        layers,
        heads: 1,
        uncounted: 0,
    });
    let mut sites = Vec::new();
    for layer in 0..layers {
        let sensitivity = (6.0 * random.fraction()).exp();
        for matrix in Matrix::ALL {
            let spread = sensitivity * (1.0 + random.fraction());
            let choice = |&number: &i32| {
                let site = SitePlan::new(bits(number), GroupSpec::Count(128), RangeMethod::Mse);
                let error = if number == 32 { 0.0 } else { 0.25_f64.powi(number) };
                let cost = spread * error * (1.0 + 0.3 * random.fraction());
                Choice { bytes: site_bytes(&shape, Site::Layer(layer, matrix), &site), cost }
            };
            sites.push(OpenSite { layer, matrix, choices: numbers.iter().map(choice).collect() });
        }
    }
    sites
}

/// Bytes of a site without the padding of any real layout; the solver takes whatever it is given.
fn site_bytes(shape: &ModelShape, site: Site, plan: &SitePlan) -> u64 {
    let tensor = shape.tensors.iter().find(|tensor| tensor.site == site).unwrap();
    let layout = shape.layout(tensor, plan).unwrap();
    let ranges = if plan.bits == Precision::Full { 0 } else { group_bytes(layout) };
    (layout.elements() as u64 * plan.bits.number() as u64).div_ceil(8) + ranges
}

#[test]
fn large_models_are_solved_exactly() {
    let mut random = Random(6);
    let mut compared = 0;
    let cases: [(Dimensions, &[i32]); 4] = [
        ((24, 1024, 4096), &[2, 3, 4, 6, 8]),
        ((24, 1024, 4096), &[1, 2, 3, 4, 5, 6, 7, 8, 32]),
        ((12, 769, 3001), &[1, 2, 3, 5, 32]),
        ((6, 384, 1536), &[2, 3, 4]),
    ];
    for (dimensions, numbers) in cases {
        let sites = encoder(dimensions, numbers, &mut random);
        let offered = widths(numbers);
        let size = |level: usize| sites.iter().map(|site| site.choices[level].bytes).sum::<u64>();
        for part in [0.0, 0.01, 0.31, 0.5, 0.77, 1.0] {
            let limit = size(0) + (part * (size(numbers.len() - 1) - size(0)) as f64) as u64;
            let found = within(&sites, &offered, Granularity::Site, SizeBudget { limit, fixed: 0 }).unwrap();
            assert!(found.bytes <= limit);
            let level = |width: Precision| numbers.iter().position(|&n| bits(n) == width).unwrap();
            let taken: Vec<usize> = found.widths.iter().map(|&width| level(width)).collect();
            let bytes: u64 = sites.iter().zip(&taken).map(|(site, &taken)| site.choices[taken].bytes).sum();
            assert_eq!(bytes, found.bytes);
            no_exchange_helps(&sites, &taken, limit);
            if let Some(least) = least_cost_by_table(&sites, limit) {
                assert!((found.cost - least).abs() <= 1e-12 * least, "{} {least}", found.cost);
                compared += 1;
            }
        }
    }
    assert!(compared >= 12, "{compared}");
}

/// The least cost by the textbook's table over all numbers of bytes, in units of their common divisor; `None` where
/// the table would be huge.
fn least_cost_by_table(sites: &[OpenSite], limit: u64) -> Option<f64> {
    let smallest = |site: &OpenSite| site.choices.iter().map(|choice| choice.bytes).min().unwrap();
    let extra = |site: &OpenSite, choice: &Choice| choice.bytes - smallest(site);
    let all = sites.iter().flat_map(|site| site.choices.iter().map(move |choice| extra(site, choice)));
    let unit = all.fold(0, |mut a, mut b| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    });
    let room = ((limit - sites.iter().map(smallest).sum::<u64>()) / unit) as usize;
    if room > 10_000 {
        return None;
    }
    let mut least = vec![0.0; room + 1];
    for site in sites {
        let within = |bytes: usize| {
            let all = site.choices.iter().map(|choice| ((extra(site, choice) / unit) as usize, choice.cost));
            let fitting = all.filter(|&(more, _)| more <= bytes);
            fitting.map(|(more, cost)| least[bytes - more] + cost).fold(f64::INFINITY, f64::min)
        };
        least = (0..=room).map(within).collect();
    }
    Some(least[room])
}

/// Changing any one site, or any two, within the limit makes nothing cheaper.
fn no_exchange_helps(sites: &[OpenSite], taken: &[usize], limit: u64) {
    let total: u64 = sites.iter().zip(taken).map(|(site, &taken)| site.choices[taken].bytes).sum();
    let change = |index: usize, level: usize| {
        let (from, to) = (sites[index].choices[taken[index]], sites[index].choices[level]);
        (to.bytes as i64 - from.bytes as i64, to.cost - from.cost)
    };
    let levels = sites[0].choices.len();
    for one in 0..sites.len() {
        for other in one..sites.len() {
            for (a, b) in (0..levels).flat_map(|a| (0..levels).map(move |b| (a, b))) {
                let (first, second) = (change(one, a), if one == other { (0, 0.0) } else { change(other, b) });
                let fits = total as i64 + first.0 + second.0 <= limit as i64;
                assert!(!fits || first.1 + second.1 > -1e-12, "sites {one}, {other} to {a}, {b}");
            }
        }
    }
}

#[test]
fn wrong_choices_are_refused() {
    let room = SizeBudget { limit: 10, fixed: 0 };
    let costs = |cost: f64| vec![vec![Choice { bytes: 1, cost: 0.0 }], vec![Choice { bytes: 1, cost }]];
    for bad in [f64::NAN, f64::INFINITY, -1.0] {
        let error = solve(&costs(bad), room).unwrap_err();
        assert_eq!(error.to_string(), format!("item 1: {bad} is not a valid cost"));
    }
    assert_eq!(solve(&[vec![]], room), Err(Error::Choice { item: 0, cost: None }));
    assert_eq!(solve(&[], room), Ok(Solution { choices: vec![], bytes: 0, cost: 0.0 }));
    assert_eq!(solve(&[], SizeBudget { limit: 1, fixed: 2 }), Err(Error::OverBudget { limit: 1, smallest: 2 }));
    let site = |choices| [OpenSite { layer: 3, matrix: Matrix::Key, choices }];
    let pair = widths(&[2, 3]);
    let refused = |choices| within(&site(choices), &pair, Granularity::Site, room).unwrap_err().to_string();
    assert_eq!(refused(vec![Choice { bytes: 1, cost: 0.0 }]), "layer.3.key: choices: 2 elements expected, 1 found");
    assert_eq!(refused(vec![Choice { bytes: 1, cost: -1.0 }; 2]), "layer.3.key: -1 is not a valid cost");
}

fn any_choice() -> impl Strategy<Value = Choice> {
    let bytes = prop_oneof![0_u64..20, 0_u64..1_000_000, Just(u64::MAX / 4)];
    let cost = prop_oneof![Just(0.0), 0.0..1.0, 1e-300..1e-290, 1e200..1e300];
    (bytes, cost).prop_map(|(bytes, cost)| Choice { bytes, cost })
}

proptest! {
    #[test]
    fn the_limit_is_never_exceeded(
        items in prop::collection::vec(prop::collection::vec(any_choice(), 1..6), 1..12),
        limit in prop_oneof![0_u64..200, 0_u64..5_000_000, Just(u64::MAX)],
        fixed in prop_oneof![Just(0_u64), 0_u64..100],
    ) {
        let least: u128 = items.iter().map(|item| u128::from(item.iter().map(|c| c.bytes).min().unwrap())).sum();
        let least = least + u128::from(fixed);
        match solve(&items, SizeBudget { limit, fixed }) {
            Ok(found) => {
                let taken: Vec<Choice> = items.iter().zip(&found.choices).map(|(item, &c)| item[c]).collect();
                let bytes: u128 = taken.iter().map(|choice| u128::from(choice.bytes)).sum();
                prop_assert_eq!(bytes, u128::from(found.bytes));
                prop_assert!(bytes + u128::from(fixed) <= u128::from(limit));
                prop_assert_eq!(taken.iter().fold(0.0, |sum, choice| sum + choice.cost), found.cost);
            }
            Err(Error::OverBudget { .. }) => prop_assert!(least > u128::from(limit)),
            Err(other) => prop_assert!(false, "{}", other),
        }
    }
}
