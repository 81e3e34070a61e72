//! What drop a sum of divergences lets expect: a curve that never falls, through the plans measured so far.
//!
//! Measured drops are noisy, but more divergence means more drop. So neighbours in the wrong order are averaged (isotonic
//! regression by pooling), with straight lines between them. Beyond the measured plans the curve is level: nothing is known
//! there, and a line prolonged from two noisy points would claim too much.

/// A curve that never falls.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fit {
    /// Rising in both.
    points: Vec<(f64, f64)>,
}

impl Fit {
    /// The curve through pairs of divergence and drop, in any order; `None` for fewer than two.
    pub(super) fn new(pairs: impl IntoIterator<Item = (f64, f64)>) -> Option<Self> {
        let mut pairs: Vec<(f64, f64)> = pairs.into_iter().collect();
        if pairs.len() < 2 {
            return None;
        }
        pairs.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.total_cmp(&other.1)));
        // Each pool: the sum of its drops, and its divergences.
        let mut pools: Vec<(f64, Vec<f64>)> = Vec::new();
        for (divergence, drop) in pairs {
            pools.push((drop, vec![divergence]));
            while let [.., before, last] = &pools[..] {
                let mean = |pool: &(f64, Vec<f64>)| pool.0 / pool.1.len() as f64;
                if mean(before) <= mean(last) {
                    break;
                }
                if let Some((sum, members)) = pools.pop()
                    && let Some(before) = pools.last_mut()
                {
                    before.0 += sum;
                    before.1.extend(members);
                }
            }
        }
        let points = pools.into_iter().flat_map(|(sum, members)| {
            let mean = sum / members.len() as f64;
            members.into_iter().map(move |divergence| (divergence, mean))
        });
        Some(Self { points: points.collect() })
    }

    /// The drop to expect of a divergence.
    pub(super) fn at(&self, divergence: f64) -> f64 {
        let after = self.points.partition_point(|point| point.0 < divergence);
        match (after.checked_sub(1).and_then(|before| self.points.get(before)), self.points.get(after)) {
            (Some(before), Some(after)) => {
                let share = (divergence - before.0) / (after.0 - before.0);
                before.1 + share * (after.1 - before.1)
            }
            (Some(one), None) | (None, Some(one)) => one.1,
            (None, None) => f64::NAN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curve_goes_through_what_rises_and_averages_what_does_not() {
        let fit = Fit::new([(4.0, 3.0), (0.0, 0.0), (2.0, 1.0)]).unwrap();
        for (divergence, drop) in [(-1.0, 0.0), (0.0, 0.0), (1.0, 0.5), (2.0, 1.0), (3.0, 2.0), (4.0, 3.0), (9.0, 3.0)]
        {
            assert_eq!(fit.at(divergence), drop, "{divergence}");
        }
        // The second and third are in the wrong order: both are taken for their mean.
        let fit = Fit::new([(0.0, -0.25), (1.0, 1.0), (2.0, 0.5), (4.0, 3.0)]).unwrap();
        assert_eq!([fit.at(0.0), fit.at(1.0), fit.at(1.5), fit.at(2.0), fit.at(3.0)], [-0.25, 0.75, 0.75, 0.75, 1.875]);
        assert_eq!(Fit::new([(1.0, 1.0)]), None);
        // Equal divergences have one drop.
        let fit = Fit::new([(1.0, 2.0), (1.0, 0.0), (1.0, 1.0)]).unwrap();
        assert!(fit.at(1.0).is_finite() && fit.at(0.5).is_finite());
    }

    #[test]
    fn the_curve_never_falls() {
        let mut state = 3_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f64 / (1_u64 << 24) as f64
        };
        for count in 2..20 {
            let fit = Fit::new((0..count).map(|_| (random(), random()))).unwrap();
            let drops: Vec<f64> = (0..100).map(|step| fit.at(f64::from(step) / 99.0)).collect();
            assert!(drops.windows(2).all(|pair| pair[0] <= pair[1] + 1e-12), "{drops:?}");
        }
    }
}
