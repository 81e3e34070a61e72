//! The few vector operations the methods need: f32 in memory, f64 in every sum.

pub(crate) fn dot(a: &[f32], b: &[f32]) -> f64 {
    // Blocks keep the order of the sum fixed and let the compiler use several accumulators.
    let mut sums = [0.0f64; 8];
    let (a_blocks, a_rest) = a.as_chunks::<8>();
    let (b_blocks, b_rest) = b.as_chunks::<8>();
    for (x, y) in a_blocks.iter().zip(b_blocks) {
        for (sum, (x, y)) in sums.iter_mut().zip(x.iter().zip(y)) {
            *sum += f64::from(*x) * f64::from(*y);
        }
    }
    let rest: f64 = a_rest.iter().zip(b_rest).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
    sums.iter().sum::<f64>() + rest
}

pub(crate) fn norm(a: &[f32]) -> f64 {
    dot(a, a).sqrt()
}

/// `y += factor·x`
pub(crate) fn add_scaled(factor: f64, x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = (f64::from(*y) + factor * f64::from(*x)) as f32;
    }
}

/// `x / norm`, or nothing where the norm is zero or no number.
pub(crate) fn normalized(x: &[f32]) -> Option<Vec<f32>> {
    let norm = norm(x);
    (norm > 0.0 && norm.is_finite()).then(|| x.iter().map(|v| (f64::from(*v) / norm) as f32).collect())
}
