//! Rotary positions: queries and keys are turned by angles that grow with the position.
//!
//! Dimensions `i` and `i + D/2` of a head are a point of a plane, which position `p` turns by `p·θ^(-2i/D)`. Frequencies
//! and angles are rounded to f32 as `transformers` does; sine and cosine are those of the rounded angle. A turned value
//! is two products and a sum, each rounded, on every CPU.

use crate::compute::{Compute, ROW_CHUNK};

/// Sines and cosines of all angles up to some position. They grow with the longest sequence seen.
#[derive(Debug, Clone, PartialEq)]
pub struct Rotary {
    theta: f32,
    half: usize,
    /// `[positions, D/2]`
    cosines: Vec<f32>,
    sines: Vec<f32>,
}

/// Which way to turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// By the angles: forward passes.
    Forward,
    /// By the negative angles, which is the derivative: backward passes.
    Back,
}

impl Rotary {
    /// Angles with this base for heads of this width, which is even. There are none yet.
    pub fn new(theta: f32, head_size: usize) -> Self {
        Self { theta, half: head_size / 2, cosines: Vec::new(), sines: Vec::new() }
    }

    /// The base.
    pub fn theta(&self) -> f32 {
        self.theta
    }

    /// The memory of the table.
    pub fn bytes(&self) -> usize {
        (self.cosines.capacity() + self.sines.capacity()) * size_of::<f32>()
    }

    /// Computes the angles of sequences of up to `longest` tokens, where they are not there.
    pub fn extend(&mut self, longest: usize) {
        let known = self.cosines.len() / self.half.max(1);
        if known >= longest {
            return;
        }
        let frequencies: Vec<f32> = (0..self.half).map(|index| frequency(self.theta, index, 2 * self.half)).collect();
        for position in known..longest {
            let angles = frequencies.iter().map(|frequency| f64::from(position as f32 * frequency));
            for angle in angles {
                self.cosines.push(libm::cos(angle) as f32);
                self.sines.push(libm::sin(angle) as f32);
            }
        }
    }

    /// Turns every head of a row, which is whole heads one after the other.
    ///
    /// # Panics
    /// If the table is shorter, or the row is not whole heads.
    fn turn(&self, position: usize, turn: Turn, row: &mut [f32]) {
        let own = position * self.half..(position + 1) * self.half;
        let (cosines, sines) = (&self.cosines[own.clone()], &self.sines[own]);
        assert!(row.len().is_multiple_of(2 * self.half), "{} values for heads of {}", row.len(), 2 * self.half);
        for head in row.chunks_exact_mut(2 * self.half) {
            let (first, second) = head.split_at_mut(self.half);
            let angles = cosines.iter().zip(sines);
            for ((a, b), (&cosine, &sine)) in first.iter_mut().zip(second).zip(angles) {
                let sine = if turn == Turn::Forward { sine } else { -sine };
                (*a, *b) = (*a * cosine - *b * sine, *b * cosine + *a * sine);
            }
        }
    }
}

/// `θ^(-2i/D)`, rounded where `transformers` rounds it.
fn frequency(theta: f32, index: usize, head_size: usize) -> f32 {
    let exponent = (2 * index) as f32 / head_size as f32;
    1.0 / libm::pow(f64::from(theta), f64::from(exponent)) as f32
}

impl Compute {
    /// Turns the first `columns` of every row of `width` values, over all threads; `positions` has one entry per row.
    ///
    /// # Panics
    /// When shapes do not fit together, or the angles of a position were not computed.
    pub fn rotate(
        &self,
        rotary: &Rotary,
        turn: Turn,
        positions: &[u32],
        rows: &mut [f32],
        (width, columns): (usize, usize),
    ) {
        assert!(rows.len() == positions.len() * width && columns <= width, "{columns} of {width} columns");
        self.threads().for_each_chunk([rows], [ROW_CHUNK * width], |chunk, [part]| {
            for (index, row) in part.chunks_exact_mut(width).enumerate() {
                let position = positions[chunk * ROW_CHUNK + index] as usize;
                rotary.turn(position, turn, &mut row[..columns]);
            }
        });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]
mod tests {
    use super::*;

    #[test]
    fn turning_keeps_lengths_and_turning_back_undoes_it() {
        let compute = Compute::detect(2).unwrap();
        let mut rotary = Rotary::new(10_000.0, 8);
        rotary.extend(3);
        rotary.extend(70);
        let (width, columns) = (24, 16);
        let positions: Vec<u32> = (0..70).collect();
        let before: Vec<f32> = (0..70 * width).map(|index| (index as f32 * 0.37).sin()).collect();
        let mut rows = before.clone();
        compute.rotate(&rotary, Turn::Forward, &positions, &mut rows, (width, columns));
        assert_eq!(rows[..width], before[..width], "the first position is not turned");
        for (turned, row) in rows.chunks_exact(width).zip(before.chunks_exact(width)) {
            assert_eq!(turned[columns..], row[columns..]);
            let length = |row: &[f32]| row.iter().map(|x| x * x).sum::<f32>();
            assert!((length(turned) - length(row)).abs() < 1e-4);
        }
        // A product of two turned rows depends on the distance alone.
        let product = |a: usize, b: usize| {
            let [mut q, mut k] = [before[..8].to_vec(), before[8..16].to_vec()];
            rotary.turn(a, Turn::Forward, &mut q);
            rotary.turn(b, Turn::Forward, &mut k);
            q.iter().zip(&k).map(|(x, y)| x * y).sum::<f32>()
        };
        assert!((product(3, 9) - product(53, 59)).abs() < 1e-4);
        assert!((product(3, 9) - product(9, 3)).abs() > 1e-3);
        compute.rotate(&rotary, Turn::Back, &positions, &mut rows, (width, columns));
        assert!(rows.iter().zip(&before).all(|(a, b)| (a - b).abs() < 1e-5));
    }

    #[test]
    fn frequencies_are_those_of_transformers() {
        // 1 / 160000^(2i/64) in f32, from torch.
        assert_eq!(frequency(160_000.0, 0, 64), 1.0);
        assert!((f64::from(frequency(160_000.0, 31, 64)) - 160_000.0_f64.powf(-62.0 / 64.0)).abs() < 1e-12);
    }
}
