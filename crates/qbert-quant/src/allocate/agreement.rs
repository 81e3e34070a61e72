//! How well two measures of sensitivity agree.

/// Spearman's correlation of the ranks, from -1 to 1; equal values share the mean of their ranks. `None` where there is
/// nothing to rank.
pub fn rank_correlation(first: &[f64], second: &[f64]) -> Option<f64> {
    let count = first.len().min(second.len());
    let ranks = |values: &[f64]| -> Vec<f64> {
        let rank = |value: &f64| {
            let below = values.iter().filter(|other| other.total_cmp(value).is_lt()).count();
            let equal = values.iter().filter(|other| other.total_cmp(value).is_eq()).count();
            below as f64 + (equal as f64 - 1.0) / 2.0
        };
        values.iter().map(rank).collect()
    };
    let (first, second) = (ranks(&first[..count]), ranks(&second[..count]));
    let middle = (count as f64 - 1.0) / 2.0;
    let product = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| (a - middle) * (b - middle)).sum() };
    let scale = (product(&first, &first) * product(&second, &second)).sqrt();
    (scale > 0.0).then(|| product(&first, &second) / scale)
}

#[cfg(test)]
mod tests {
    use super::rank_correlation;

    #[test]
    fn equal_values_share_their_rank() {
        // As scipy.stats.spearmanr has it.
        let found = rank_correlation(&[1.0, 2.0, 3.0, 4.0], &[5.0, 5.0, 9.0, 9.0]).unwrap();
        assert!((found - 0.894_427_190_999_915_9).abs() < 1e-15, "{found}");
        assert_eq!(rank_correlation(&[1.0, 2.0, 3.0], &[7.0, 7.0, 7.0]), None);
        assert_eq!(rank_correlation(&[1.0], &[2.0]), None);
    }
}
