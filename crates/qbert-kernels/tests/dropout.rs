//! Dropout: the rate, independence of streams, and one mask for every instruction set and split.

mod common;

use common::{LENGTHS, for_every_kernel, noise};
use qbert_kernels::{DropoutKey, Kernels};

fn mask(kernels: Kernels, length: usize, key: DropoutKey, rate: f32) -> Vec<f32> {
    let mut data = vec![1.0; length];
    kernels.dropout(&mut data, key, 0, rate);
    data
}

#[test]
fn the_rate_is_met_and_the_mean_kept() {
    let kernels = Kernels::best();
    let length = 1_000_000;
    for rate in [0.01_f32, 0.1, 0.5, 0.9] {
        let data = mask(kernels, length, DropoutKey::new(3, 7, 1), rate);
        let dropped = data.iter().filter(|&&x| x == 0.0).count() as f64 / length as f64;
        let deviation = (f64::from(rate) * (1.0 - f64::from(rate)) / length as f64).sqrt();
        assert!((dropped - f64::from(rate)).abs() < 5.0 * deviation, "{rate}: {dropped}");
        let kept = 1.0 / (1.0 - rate);
        assert!(data.iter().all(|&x| x == 0.0 || (x - kept).abs() < 1e-6));
    }
}

/// Neighbours, the same place in the next row, and other streams must not go together: the number
/// of common drops is binomial when they are independent.
#[test]
fn places_and_streams_are_independent() {
    let kernels = Kernels::best();
    let (length, rate) = (1_000_000, 0.3);
    let base = mask(kernels, length, DropoutKey::new(1, 1, 1), rate);
    let common = |other: &[f32]| {
        let both = base.iter().zip(other).filter(|(a, b)| **a == 0.0 && **b == 0.0).count();
        both as f64 / other.len() as f64
    };
    let expected = f64::from(rate) * f64::from(rate);
    let deviation = (expected * (1.0 - expected) / length as f64).sqrt();
    for shift in [1, 2, 8, 15, 16, 17, 32, 64, 128, 384, 1024] {
        let got = common(&base[shift..]);
        assert!((got - expected).abs() < 5.0 * deviation, "shift {shift}: {got}");
    }
    let keys = [(2, 1, 1), (1, 2, 1), (1, 1, 2), (1 << 40, 1, 1), (1, 1 << 40, 1)];
    for (seed, step, site) in keys {
        let got = common(&mask(kernels, length, DropoutKey::new(seed, step, site), rate));
        assert!((got - expected).abs() < 5.0 * deviation, "{seed} {step} {site}: {got}");
    }
}

#[test]
fn every_instruction_set_draws_the_same_mask() {
    let key = DropoutKey::new(0x0123_4567_89ab_cdef, 42, 9);
    for length in LENGTHS {
        let data = noise(length, 1, 1.0);
        let run = |kernels: Kernels| {
            let mut data = data.clone();
            kernels.dropout(&mut data, key, 5, 0.25);
            data.iter().map(|x| x.to_bits()).collect::<Vec<u32>>()
        };
        let want = run(Kernels::by_name("portable").expect("always there"));
        for_every_kernel(|kernels| assert_eq!(run(kernels), want, "{} {length}", kernels.name()));
    }
}

#[test]
fn parts_of_a_tensor_get_the_mask_of_the_whole() {
    for_every_kernel(|kernels| {
        let key = DropoutKey::new(1, 2, 3);
        let whole = mask(kernels, 1000, key, 0.4);
        for cut in [1, 15, 16, 63, 64, 65, 100, 500, 999] {
            let mut parts = vec![1.0; 1000];
            let (first, second) = parts.split_at_mut(cut);
            kernels.dropout(first, key, 0, 0.4);
            kernels.dropout(second, key, cut, 0.4);
            assert_eq!(parts, whole, "cut at {cut}");
        }
    });
}

#[test]
fn nothing_is_dropped_at_rate_zero_and_nan_is_dropped_like_any_number() {
    for_every_kernel(|kernels| {
        let data = noise(100, 1, 1.0);
        let mut same = data.clone();
        kernels.dropout(&mut same, DropoutKey::new(1, 1, 1), 0, 0.0);
        assert_eq!(same, data);
        let mut bad = vec![f32::NAN; 1000];
        kernels.dropout(&mut bad, DropoutKey::new(1, 1, 1), 0, 0.5);
        let zeros = bad.iter().filter(|&&x| x == 0.0).count();
        assert!((400..600).contains(&zeros), "{zeros}");
    });
}

#[test]
#[should_panic(expected = "dropout rate 1 is not in 0.0..1.0")]
fn a_rate_of_one_is_refused() {
    Kernels::best().dropout(&mut [1.0], DropoutKey::new(1, 1, 1), 0, 1.0);
}
