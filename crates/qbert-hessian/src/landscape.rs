//! The loss over a plane of two directions (Fig. 1, 3 and 6 of the paper).

use serde::{Deserialize, Serialize};

/// A grid of losses: `losses[i][j]` is at `rows[i]` times the first direction and `columns[j]` times the second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Landscape {
    /// Steps along the first direction.
    pub rows: Vec<f64>,
    /// Steps along the second direction.
    pub columns: Vec<f64>,
    /// The losses.
    pub losses: Vec<Vec<f64>>,
}

/// Computes the grid of `points × points` losses from `−extent` to `extent` in both directions; an even number of points
/// is raised by one, so that the middle is the model itself.
///
/// # Errors
/// As `loss`.
pub fn landscape<E>(
    extent: f64,
    points: usize,
    mut loss: impl FnMut(f64, f64) -> Result<f64, E>,
) -> Result<Landscape, E> {
    let half = points.max(1) / 2;
    let steps: Vec<f64> = (0..=2 * half).map(|i| extent * (i as f64 - half as f64) / half.max(1) as f64).collect();
    let mut losses = Vec::with_capacity(steps.len());
    for &row in &steps {
        losses.push(steps.iter().map(|&column| loss(row, column)).collect::<Result<Vec<_>, E>>()?);
    }
    Ok(Landscape { rows: steps.clone(), columns: steps, losses })
}

/// `base + row·first + column·second`, the place of a grid point.
///
/// # Panics
/// If the lengths differ.
pub fn place(base: &[f32], (row, first): (f64, &[f32]), (column, second): (f64, &[f32]), out: &mut [f32]) {
    let lengths = [first.len(), second.len(), out.len()];
    assert!(lengths.iter().all(|&length| length == base.len()), "directions of {lengths:?} for {} weights", base.len());
    for (index, value) in out.iter_mut().enumerate() {
        let moved = row * f64::from(first[index]) + column * f64::from(second[index]);
        *value = (f64::from(base[index]) + moved) as f32;
    }
}
