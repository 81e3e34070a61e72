//! Products of bf16: every set that multiplies them gives the bits of plain loops.

use super::same_bits::Numbers;
use crate::simd::Bf16Set;
use crate::{Compute, Kernels, MatMut, MatRef, ProductPrecision, Start, Threads};

/// Terms that are summed before they are added to what is there.
const BLOCK: usize = 512;

fn without_subnormals(x: f32) -> f32 {
    if x.is_subnormal() { 0.0_f32.copysign(x) } else { x }
}

/// To bf16 by the definition: of the two neighbours the nearer one, of two equally near ones the even one.
fn rounded(x: f32) -> f32 {
    let x = without_subnormals(x);
    if x.is_nan() {
        return x;
    }
    let below = f32::from_bits(x.to_bits() & 0xffff_0000);
    let above = f32::from_bits((x.to_bits() & 0xffff_0000).wrapping_add(0x1_0000));
    let even = below.to_bits() >> 16 & 1 == 0;
    // Beyond the largest number the next one would be 2^128.
    let size = |y: f32| if y.is_infinite() { 2.0_f64.powi(128) } else { f64::from(y).abs() };
    match (size(x) - size(below)).total_cmp(&(size(above) - size(x))) {
        _ if below == x => x,
        std::cmp::Ordering::Less => below,
        std::cmp::Ordering::Equal if even => below,
        _ => above,
    }
}

/// One element of a product.
fn element(a: impl Fn(usize) -> f32, b: impl Fn(usize) -> f32, depth: usize, start: f32) -> f32 {
    let (a, b) = (|k| if k < depth { rounded(a(k)) } else { 0.0 }, |k| if k < depth { rounded(b(k)) } else { 0.0 });
    let mut total = start;
    for (index, from) in (0..depth.max(1)).step_by(BLOCK).enumerate() {
        let mut sum = 0.0;
        for k in (from..depth.min(from + BLOCK)).step_by(2) {
            sum = without_subnormals(a(k + 1).mul_add(b(k + 1), sum));
            sum = without_subnormals(a(k).mul_add(b(k), sum));
        }
        total = if index == 0 && start == 0.0 { sum } else { sum + total };
    }
    total
}

fn compute(set: Bf16Set, threads: usize) -> Compute {
    let kernels = Kernels::best().with_bf16(set);
    Compute::new(kernels, Threads::new(threads).expect("threads")).with_products(ProductPrecision::Bf16)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| if value.is_nan() { u32::MAX } else { value.to_bits() }).collect()
}

#[test]
fn every_set_gives_the_bits_of_plain_loops() {
    let names: Vec<&str> = Bf16Set::supported().iter().map(|set| set.name()).collect();
    println!("sets: {names:?}");
    // All are above the size up to which products stay in f32: odd depths, edges of tiles, panels and blocks.
    for (m, n, k) in [(70, 65, 67), (13, 33, 1025), (97, 401, 270), (411, 390, 33), (5, 390, 513)] {
        for numbers in Numbers::ALL {
            let (a, b, bias) = (numbers.take(m * k, 1), numbers.take(n * k, 2), numbers.take(n, 3));
            let before = numbers.take(m * n, 4);
            let mut want = [vec![0.0; m * n], vec![0.0; m * n], vec![0.0; m * n]];
            for i in 0..m {
                for j in 0..n {
                    want[0][i * n + j] = element(|d| a[i * k + d], |d| b[j * k + d], k, bias[j]);
                    want[1][i * n + j] = element(|d| a[i * k + d], |d| b[d * n + j], k, 0.0);
                    want[2][i * n + j] = element(|d| a[d * m + i], |d| b[d * n + j], k, before[i * n + j]);
                }
            }
            for (set, threads) in Bf16Set::supported().into_iter().flat_map(|set| [(set, 1), (set, 2)]) {
                let compute = compute(set, threads);
                let mut c = [vec![0.0; m * n], vec![0.0; m * n], before.clone()];
                let [nt, nn, tn] = &mut c;
                let (row_a, column_a) = (MatRef::new(&a, m, k), MatRef::new(&a, k, m));
                let (row_b, column_b) = (MatRef::new(&b, k, n), MatRef::new(&b, n, k));
                compute.gemm_nt(row_a, column_b, Start::Bias(&bias), MatMut::new(nt, m, n));
                compute.gemm_nn(row_a, row_b, Start::ZERO, MatMut::new(nn, m, n));
                compute.gemm_tn(column_a, row_b, Start::ACCUMULATE, MatMut::new(tn, m, n));
                for (form, (got, want)) in ["nt", "nn", "tn"].iter().zip(c.iter().zip(&want)) {
                    let (got, want) = (bits(got), bits(want));
                    let differs = (0..got.len()).find(|&index| got[index] != want[index]);
                    let told = differs.map(|index| (index / n, index % n, got[index], want[index]));
                    assert_eq!(told, None, "{} {form} {m}×{n}×{k} {numbers:?} on {threads} threads", set.name());
                }
            }
        }
    }
}

#[test]
fn small_products_stay_in_f32() {
    let (a, b) = (Numbers::Usual.take(64 * 64, 1), Numbers::Usual.take(64 * 64, 2));
    let products = [ProductPrecision::F32, ProductPrecision::Bf16].map(|precision| {
        let compute = Compute::new(Kernels::best(), Threads::new(1).expect("threads")).with_products(precision);
        let mut c = vec![0.0; 64 * 64];
        compute.gemm_nn(MatRef::new(&a, 64, 64), MatRef::new(&b, 64, 64), Start::ZERO, MatMut::new(&mut c, 64, 64));
        c
    });
    assert!(products[0] == products[1]);
}
