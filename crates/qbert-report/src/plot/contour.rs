//! Lines of equal height over a grid, by marching squares.

/// A piece of a line: from and to, as positions in rows and columns of the grid.
pub(crate) type Piece = ((f64, f64), (f64, f64));

/// The line of one height. Squares with a corner that is no number are left out.
pub(crate) fn line(grid: &[Vec<f64>], height: f64) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for (row, pair) in grid.windows(2).enumerate() {
        let columns = pair[0].len().min(pair[1].len());
        for column in 0..columns.saturating_sub(1) {
            let corners = [pair[0][column], pair[0][column + 1], pair[1][column + 1], pair[1][column]];
            if corners.iter().all(|corner| corner.is_finite()) {
                square(&mut pieces, (row as f64, column as f64), corners, height);
            }
        }
    }
    pieces
}

/// Where the line crosses one square; corners go round it.
fn square(pieces: &mut Vec<Piece>, (row, column): (f64, f64), corners: [f64; 4], height: f64) {
    let places = [(row, column), (row, column + 1.0), (row + 1.0, column + 1.0), (row + 1.0, column)];
    let mut crossings = Vec::with_capacity(4);
    for edge in 0..4 {
        let (from, to) = (corners[edge], corners[(edge + 1) % 4]);
        if (from < height) != (to < height) {
            let share = (height - from) / (to - from);
            let (a, b) = (places[edge], places[(edge + 1) % 4]);
            crossings.push((a.0 + share * (b.0 - a.0), a.1 + share * (b.1 - a.1)));
        }
    }
    match crossings[..] {
        [from, to] => pieces.push((from, to)),
        // A saddle: the middle decides which corners belong together.
        [a, b, c, d] => {
            let middle = corners.iter().sum::<f64>() / 4.0;
            if (middle < height) == (corners[0] < height) {
                pieces.extend([(a, b), (c, d)]);
            } else {
                pieces.extend([(d, a), (b, c)]);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_a_bowl_is_its_circle() {
        let at = |index: usize| index as f64 - 10.0;
        let bowl: Vec<Vec<f64>> = (0..21).map(|r| (0..21).map(|c| at(r).powi(2) + at(c).powi(2)).collect()).collect();
        let pieces = line(&bowl, 49.0);
        assert!(pieces.len() > 20);
        for (from, _) in pieces {
            let radius = ((from.0 - 10.0).powi(2) + (from.1 - 10.0).powi(2)).sqrt();
            assert!((radius - 7.0).abs() < 0.1, "{radius}");
        }
    }

    #[test]
    fn saddles_flats_and_holes() {
        assert_eq!(line(&[vec![1.0, 0.0], vec![0.0, 1.0]], 0.5).len(), 2);
        assert!(line(&[vec![1.0, 1.0], vec![1.0, 1.0]], 1.0).is_empty());
        assert!(line(&[vec![1.0, f64::NAN], vec![0.0, 1.0]], 0.5).is_empty());
        assert!(line(&[], 0.5).is_empty() && line(&[vec![]], 0.5).is_empty());
        assert!(line(&[vec![0.0, 1.0], vec![0.0]], 0.5).is_empty());
    }
}
