#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

fuzz_target!(|data: &[u8]| {
    qbert_fuzz::packed::run(data);
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    qbert_fuzz::packed::mutate(data, size, max_size, seed, fuzzer_mutate)
});
