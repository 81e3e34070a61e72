//! The vectors of a text's tokens become one vector.

/// The shortest vector that [`unit_length`] scales to length 1, as in PyTorch's `normalize`.
const LEAST_NORM: f64 = 1e-12;

/// How the rows of a text become one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TokenPooling {
    /// Their mean.
    #[default]
    Mean,
    /// The first row.
    First,
    /// The last row.
    Last,
    /// The largest number of each column.
    Max,
    /// Their mean, where row `i`, counted from 1, counts `i` times.
    WeightedMean,
    /// Their sum divided by the square root of their number.
    MeanSqrtLength,
}

impl TokenPooling {
    /// What row `index` counts in the sum, and what the sum of `count` rows is divided by; `None` for the maximum, which is
    /// no sum.
    fn share(self, index: usize, count: usize) -> Option<(f32, f32)> {
        let one_if = |condition: bool| if condition { 1.0 } else { 0.0 };
        match self {
            Self::Mean => Some((1.0, count as f32)),
            Self::First => Some((one_if(index == 0), 1.0)),
            Self::Last => Some((one_if(index + 1 == count), 1.0)),
            Self::WeightedMean => Some(((index + 1) as f32, (count * (count + 1) / 2) as f32)),
            Self::MeanSqrtLength => Some((1.0, (count as f32).sqrt())),
            Self::Max => None,
        }
    }

    /// The vector of these rows, which are as long as `vector`. Sums are over rows in their order, then divided once.
    ///
    /// # Panics
    /// If there is no row.
    pub fn forward(self, rows: &[f32], vector: &mut [f32]) {
        let (width, count) = (vector.len(), rows.len() / vector.len().max(1));
        assert!(count > 0, "no rows to pool");
        match self {
            Self::First => vector.copy_from_slice(&rows[..width]),
            Self::Last => vector.copy_from_slice(&rows[(count - 1) * width..]),
            Self::Max => {
                vector.copy_from_slice(&rows[..width]);
                for row in rows.chunks_exact(width).skip(1) {
                    vector.iter_mut().zip(row).for_each(|(most, &value)| *most = most.max(value));
                }
            }
            Self::Mean | Self::WeightedMean | Self::MeanSqrtLength => {
                vector.fill(0.0);
                let mut divisor = 1.0;
                for (index, row) in rows.chunks_exact(width).enumerate() {
                    let (weight, whole) = self.share(index, count).unwrap_or((0.0, 1.0));
                    divisor = whole;
                    vector.iter_mut().zip(row).for_each(|(sum, value)| *sum += weight * value);
                }
                vector.iter_mut().for_each(|sum| *sum /= divisor);
            }
        }
    }

    /// The gradient of the rows from that of the vector, written to `d_rows`. Where the maximum is reached more than once,
    /// the first row gets the gradient. It is linear in `d_vector`, so with tangents in its place it gives their tangents.
    pub fn backward(self, rows: &[f32], d_vector: &[f32], d_rows: &mut [f32]) {
        let (width, count) = (d_vector.len(), rows.len() / d_vector.len().max(1));
        for (index, d_row) in d_rows.chunks_exact_mut(width).enumerate() {
            match self.share(index, count) {
                Some((weight, divisor)) => {
                    d_row.iter_mut().zip(d_vector).for_each(|(out, d)| *out = weight * d / divisor);
                }
                None => d_row.fill(0.0),
            }
        }
        if self == Self::Max {
            for (column, &d) in d_vector.iter().enumerate() {
                d_rows[largest(rows, width, column) * width + column] = d;
            }
        }
    }

    /// The tangent of the vector, from that of the rows.
    pub fn tangent(self, rows: &[f32], rows_tangent: &[f32], vector_tangent: &mut [f32]) {
        let width = vector_tangent.len();
        if self == Self::Max {
            for (column, out) in vector_tangent.iter_mut().enumerate() {
                *out = rows_tangent[largest(rows, width, column) * width + column];
            }
        } else {
            self.forward(rows_tangent, vector_tangent);
        }
    }
}

/// The first row with the largest number in a column.
fn largest(rows: &[f32], width: usize, column: usize) -> usize {
    let values = rows.iter().skip(column).step_by(width).enumerate();
    values.fold((0, f32::NEG_INFINITY), |best, (row, &value)| if value > best.1 { (row, value) } else { best }).0
}

/// Scales a vector to length 1 and returns the length that it had, at least 1e-12, so that a vector of zeros stays one.
pub fn unit_length(vector: &mut [f32]) -> f64 {
    let squares: f64 = vector.iter().map(|&value| f64::from(value) * f64::from(value)).sum();
    let norm = squares.sqrt().max(LEAST_NORM);
    vector.iter_mut().for_each(|value| *value = (f64::from(*value) / norm) as f32);
    norm
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [TokenPooling; 6] = [
        TokenPooling::Mean,
        TokenPooling::First,
        TokenPooling::Last,
        TokenPooling::Max,
        TokenPooling::WeightedMean,
        TokenPooling::MeanSqrtLength,
    ];
    const ROWS: [f32; 6] = [1.0, 2.0, 3.0, 4.0, 8.0, 0.0];

    fn pooled(pooling: TokenPooling) -> [f32; 2] {
        let mut vector = [f32::NAN; 2];
        pooling.forward(&ROWS, &mut vector);
        vector
    }

    /// The figures follow from the definitions in sentence-transformers' `Pooling`.
    #[test]
    fn each_pooling_is_what_it_says() {
        assert_eq!(pooled(TokenPooling::Mean), [4.0, 2.0]);
        assert_eq!(pooled(TokenPooling::First), [1.0, 2.0]);
        assert_eq!(pooled(TokenPooling::Last), [8.0, 0.0]);
        assert_eq!(pooled(TokenPooling::Max), [8.0, 4.0]);
        assert_eq!(pooled(TokenPooling::WeightedMean), [31.0 / 6.0, 10.0 / 6.0]);
        assert_eq!(pooled(TokenPooling::MeanSqrtLength), [12.0 / 3f32.sqrt(), 6.0 / 3f32.sqrt()]);
    }

    #[test]
    fn the_gradient_is_the_transpose_of_the_tangent() {
        for pooling in ALL {
            let d_vector = [0.5, -2.0];
            let mut d_rows = [f32::NAN; 6];
            pooling.backward(&ROWS, &d_vector, &mut d_rows);
            for index in 0..ROWS.len() {
                let mut direction = [0.0; 6];
                direction[index] = 1.0;
                let mut tangent = [0.0; 2];
                pooling.tangent(&ROWS, &direction, &mut tangent);
                let found: f32 = tangent.iter().zip(&d_vector).map(|(t, d)| t * d).sum();
                assert!((found - d_rows[index]).abs() < 1e-6, "{pooling:?} {index}: {found} {}", d_rows[index]);
            }
        }
    }

    #[test]
    fn vectors_get_length_one_and_zeros_stay() {
        let mut vector = [3.0, 4.0];
        assert_eq!(unit_length(&mut vector), 5.0);
        assert_eq!(vector, [0.6, 0.8]);
        let mut zeros = [0.0; 3];
        unit_length(&mut zeros);
        assert_eq!(zeros, [0.0; 3]);
    }
}
