//! Codes and values: the same as element by element, at every row length.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

use qbert_kernels::int::{Codes, Quantizer};
use qbert_kernels::{Compute, Kernels, Threads};

fn code(value: f32, step: f32, zero: u8) -> u8 {
    let zero = f32::from(zero);
    ((value * (1.0 / step)).max(-zero).min(255.0 - zero).round_ties_even() + zero) as u8
}

#[test]
fn values_become_codes_and_codes_values() {
    for kernels in Kernels::supported() {
        for threads in [1, 3] {
            let compute = Compute::new(kernels, Threads::new(threads).unwrap());
            for (rows, cols) in [(0, 5), (1, 1), (3, 17), (33, 64), (50, 100)] {
                let (step, zero) = (0.037_f32, 101);
                let quantizer = Quantizer::new(step, zero);
                let values: Vec<f32> = (0..rows * cols).map(|i| (i as f32 * 0.731).sin() * 6.5).collect();
                let mut codes = Codes::new(cols);
                codes.resize(rows);
                compute.quantize(&values, &mut codes, quantizer);
                let expected: Vec<u8> = values.iter().map(|&value| code(value, step, zero)).collect();
                assert_eq!(codes.to_codes(), expected, "{rows}×{cols}");
                let mut back = vec![0.0; values.len()];
                compute.dequantize(&codes, quantizer, &mut back);
                let expected: Vec<f32> =
                    expected.iter().map(|&code| step * (f32::from(code) - f32::from(zero))).collect();
                assert_eq!(back, expected, "{rows}×{cols}");
            }
        }
    }
}

#[test]
fn some_rows_are_kept() {
    let all: Vec<u8> = (0..70).collect();
    let mut codes = Codes::from_codes(&all, 7);
    codes.keep_rows(&[0, 4, 9]);
    assert_eq!(codes.rows(), 3);
    assert_eq!(codes.to_codes(), [&all[0..7], &all[28..35], &all[63..70]].concat());
    codes.keep_rows(&[]);
    assert_eq!(codes.rows(), 0);
}
