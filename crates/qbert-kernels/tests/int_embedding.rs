//! Embedding lookups from packed rows: the stored order, the values' bits, and what is refused.

mod common;

use common::{for_every_kernel, noise};
use qbert_kernels::int::{Coding, EmbeddingRows, EmbeddingTable, LayoutError};

fn random_codes(length: usize, levels: u32) -> Vec<u8> {
    noise(length, 3, 1.0).iter().map(|value| (((value + 1.0) * 4e6) as u32 % levels) as u8).collect()
}

#[test]
fn rows_are_bit_streams_that_begin_at_whole_bytes() {
    // 5, 2, 7, 1 in three bits: 101 010 111 100, lowest bit first.
    let packed = EmbeddingRows::pack(&[5, 2, 7, 1, 0, 0, 0, 4], 3, 2, 4).expect("a good table");
    assert_eq!(packed, [0xd5, 0x03, 0x00, 0x08]);
}

#[test]
fn values_have_the_formulas_bits_at_every_width() {
    for_every_kernel(|kernels| {
        for bits in 1..=8 {
            for cols in [1, 7, 16, 63, 64, 65, 100, 384] {
                let codes = random_codes(5 * cols, 1 << bits);
                let packed = EmbeddingRows::pack(&codes, bits, 5, cols).expect("a good table");
                let rows = EmbeddingRows::new(bits, 5, cols, &packed).expect("just packed");
                let (steps, lows) = (noise(cols, 1, 0.1), noise(cols, 2, 1.0));
                let table = EmbeddingTable { rows, by_row: false, steps: &steps, lows: &lows };
                for (row, codes) in codes.chunks_exact(cols).enumerate() {
                    assert_eq!(rows.row_codes(row), codes);
                    let values: Vec<f32> =
                        codes.iter().enumerate().map(|(col, &code)| steps[col] * f32::from(code) + lows[col]).collect();
                    let mut out = vec![9.0; cols];
                    kernels.write_embedding(table, row, &mut out);
                    assert_eq!(out, values);
                    kernels.add_embedding(table, row, &mut out);
                    assert_eq!(out, values.iter().map(|value| value + value).collect::<Vec<f32>>());
                }
            }
        }
    });
}

#[test]
fn rows_may_have_steps_and_offsets_of_their_own() {
    for_every_kernel(|kernels| {
        for (bits, cols) in [(2, 7), (3, 65), (4, 384), (8, 16)] {
            let codes = random_codes(5 * cols, 1 << bits);
            let packed = EmbeddingRows::pack(&codes, bits, 5, cols).expect("a good table");
            let rows = EmbeddingRows::new(bits, 5, cols, &packed).expect("just packed");
            let (steps, lows) = (noise(5, 1, 0.1), noise(5, 2, 1.0));
            let table = EmbeddingTable { rows, by_row: true, steps: &steps, lows: &lows };
            for (row, codes) in codes.chunks_exact(cols).enumerate() {
                let values: Vec<f32> = codes.iter().map(|&code| steps[row] * f32::from(code) + lows[row]).collect();
                let mut out = vec![9.0; cols];
                kernels.write_embedding(table, row, &mut out);
                assert_eq!(out, values);
                kernels.add_embedding(table, row, &mut out);
                assert_eq!(out, values.iter().map(|value| value + value).collect::<Vec<f32>>());
            }
        }
    });
}

#[test]
fn what_is_no_table_is_refused() {
    assert_eq!(EmbeddingRows::packed_len(0, 1, 1), Err(LayoutError::Bits { bits: 0 }));
    assert_eq!(EmbeddingRows::packed_len(3, 2, 3), Ok(4));
    for (neurons, inputs) in [(0, 3), (3, 0), (usize::MAX, 9), (1, usize::MAX)] {
        assert_eq!(EmbeddingRows::packed_len(3, neurons, inputs), Err(LayoutError::Shape { neurons, inputs }));
    }
    assert!(matches!(EmbeddingRows::new(3, 2, 3, &[0; 5]), Err(LayoutError::Length { expected: 4, found: 5, .. })));
    let error = EmbeddingRows::pack(&[0, 1, 2, 9], 3, 2, 2).expect_err("9 does not fit");
    assert_eq!(error, LayoutError::Code { neuron: 1, input: 1, code: 9, coding: Coding::Bits(3) });
}

#[test]
fn product_codes_stand_for_the_codes_of_their_entries() {
    for_every_kernel(|kernels| {
        for (values, cols) in [(2, 7), (4, 64), (6, 65), (6, 384), (16, 100), (9, 3)] {
            let parts = usize::div_ceil(cols, values);
            let (bytes, codebook) = (random_codes(5 * parts, 256), random_codes(256 * cols, 256));
            let rows = EmbeddingRows::product(values, 5, cols, &bytes, &codebook).expect("a good table");
            let (steps, lows) = (noise(cols, 1, 0.1), noise(cols, 2, 1.0));
            let table = EmbeddingTable { rows, by_row: false, steps: &steps, lows: &lows };
            for (row, numbers) in bytes.chunks_exact(parts).enumerate() {
                let code = |col: usize| codebook[usize::from(numbers[col / values]) * cols + col];
                assert_eq!(rows.row_codes(row), (0..cols).map(code).collect::<Vec<u8>>());
                let mut out = vec![9.0; cols];
                kernels.write_embedding(table, row, &mut out);
                let value = |col: usize| steps[col] * f32::from(code(col)) + lows[col];
                assert_eq!(out, (0..cols).map(value).collect::<Vec<f32>>());
            }
        }
    });
    let (bytes, codebook) = ([0; 4], [0; 256 * 3]);
    assert!(EmbeddingRows::product(2, 2, 3, &bytes, &codebook).is_ok());
    for (values, rows, cols) in [(0, 2, 3), (2, 0, 3), (2, 2, 0), (2, 3, 3), (2, 2, 4), (1, usize::MAX, 3)] {
        assert!(EmbeddingRows::product(values, rows, cols, &bytes, &codebook).is_err(), "{values} {rows} {cols}");
    }
    assert!(EmbeddingRows::product(2, 2, 3, &bytes, &codebook[1..]).is_err());
}
