//! Eigenvalues and eigenvectors of a symmetric tridiagonal matrix: what Lanczos reduces a large matrix to.
//!
//! Implicit QL iteration with Wilkinson's shift and plane rotations, as every textbook of numerical linear algebra
//! describes it (Golub and Van Loan, §8.3). The matrices here have at most some hundred rows.

/// Eigenvalues in ascending order, each with its eigenvector.
pub(crate) fn eigen(diagonal: &[f64], off_diagonal: &[f64]) -> Vec<(f64, Vec<f64>)> {
    let size = diagonal.len();
    let mut d = diagonal.to_vec();
    let mut e: Vec<f64> = off_diagonal.iter().copied().take(size.saturating_sub(1)).chain([0.0]).collect();
    // Column j of `vectors` (stored as a row) is the eigenvector of d[j].
    let mut vectors: Vec<Vec<f64>> =
        (0..size).map(|i| (0..size).map(|j| f64::from(u8::from(i == j))).collect()).collect();
    for low in 0..size {
        // 60 sweeps are far beyond what any matrix needs; without a limit NaN would run for ever.
        for _ in 0..60 {
            let high = (low..size - 1).find(|&i| negligible(e[i], d[i], d[i + 1])).unwrap_or(size - 1);
            if high == low {
                break;
            }
            sweep(&mut d, &mut e, &mut vectors, low, high);
        }
    }
    let mut pairs: Vec<(f64, Vec<f64>)> = d.into_iter().zip(vectors).collect();
    pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
    pairs
}

fn negligible(off: f64, above: f64, below: f64) -> bool {
    off.abs() <= f64::EPSILON * (above.abs() + below.abs())
}

/// One implicit QL sweep over the unreduced block `low..=high`, chasing the bulge upwards from its lower end.
fn sweep(d: &mut [f64], e: &mut [f64], vectors: &mut [Vec<f64>], low: usize, high: usize) {
    let half = (d[low + 1] - d[low]) / (2.0 * e[low]);
    let root = libm::hypot(half, 1.0);
    let mut g = d[high] - d[low] + e[low] / (half + root.copysign(half));
    let (mut sine, mut cosine, mut carried) = (1.0, 1.0, 0.0);
    for i in (low..high).rev() {
        let (f, b) = (sine * e[i], cosine * e[i]);
        let length = libm::hypot(f, g);
        e[i + 1] = length;
        if length == 0.0 {
            d[i + 1] -= carried;
            e[high] = 0.0;
            return;
        }
        (sine, cosine) = (f / length, g / length);
        let kept = d[i + 1] - carried;
        let turned = (d[i] - kept) * sine + 2.0 * cosine * b;
        carried = sine * turned;
        d[i + 1] = kept + carried;
        g = cosine * turned - b;
        let (left, right) = vectors.split_at_mut(i + 1);
        for (x, y) in left[i].iter_mut().zip(&mut right[0]) {
            (*x, *y) = (cosine * *x - sine * *y, sine * *x + cosine * *y);
        }
    }
    d[low] -= carried;
    e[low] = g;
    e[high] = 0.0;
}
