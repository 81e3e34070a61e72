//! Dropout without a stored mask: a counter-based generator (Philox 4×32, ten rounds; Salmon et al., "Parallel random
//! numbers: as easy as 1, 2, 3", SC 2011) gives every element its own random number, so the forward and the backward
//! pass, every thread and every instruction set draw the same mask from the same key.
//!
//! Counter words: block, site, low and high half of the step; key words: the two halves of the
//! seed. One evaluation gives four numbers; element `e` takes word `(e % 64) / 16` of block
//! `(e / 64) · 16 + e % 16`, so that sixteen neighbouring elements are one vector of blocks.

use crate::cpu::Kernels;
use crate::simd::{Kernel, Simd};

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;
/// Elements that share sixteen blocks.
const GROUP: usize = 64;
const WORD: usize = 16;

/// Which random numbers: one stream per seed, step and place in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DropoutKey {
    seed: u64,
    step: u64,
    site: u32,
}

impl DropoutKey {
    /// The stream of one dropout `site` in one `step` of the run with this `seed`.
    pub fn new(seed: u64, step: u64, site: u32) -> Self {
        Self { seed, step, site }
    }
}

/// Philox for `LANES` blocks at once, starting at `block`.
#[inline(always)]
fn philox<S: Simd>(simd: S, key: DropoutKey, block: u32) -> [S::U32; 4] {
    let mut counter = [
        simd.count_from(block),
        simd.splat_u32(key.site),
        simd.splat_u32(key.step as u32),
        simd.splat_u32((key.step >> 32) as u32),
    ];
    let mut keys = [key.seed as u32, (key.seed >> 32) as u32];
    let multipliers = [simd.splat_u32(MULTIPLIERS[0]), simd.splat_u32(MULTIPLIERS[1])];
    for _ in 0..ROUNDS {
        let (high0, low0) = simd.mul_wide_u32(counter[0], multipliers[0]);
        let (high1, low1) = simd.mul_wide_u32(counter[2], multipliers[1]);
        counter = [
            simd.xor_u32(simd.xor_u32(high1, counter[1]), simd.splat_u32(keys[0])),
            low1,
            simd.xor_u32(simd.xor_u32(high0, counter[3]), simd.splat_u32(keys[1])),
            low0,
        ];
        keys = [keys[0].wrapping_add(KEY_STEPS[0]), keys[1].wrapping_add(KEY_STEPS[1])];
    }
    counter
}

struct Dropout<'a> {
    data: &'a mut [f32],
    key: DropoutKey,
    /// Index of `data[0]` in the whole tensor.
    offset: usize,
    /// Numbers below this are dropped.
    threshold: u32,
    scale: f32,
}

impl Dropout<'_> {
    /// One whole group of 64 elements.
    #[inline(always)]
    fn group<S: Simd>(&self, simd: S, index: usize, data: &mut [f32; GROUP]) {
        let (threshold, scale) = (simd.splat_u32(self.threshold), simd.splat(self.scale));
        let mut first = 0;
        while first < WORD {
            let words = philox(simd, self.key, (index * WORD + first) as u32);
            for (word, numbers) in words.into_iter().enumerate() {
                let part = &mut data[word * WORD + first..][..S::LANES];
                let value = simd.mul(simd.load(part), scale);
                simd.store(part, simd.zero_below(numbers, threshold, value));
            }
            first += S::LANES;
        }
    }
}

impl Kernel for Dropout<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let data = std::mem::take(&mut self.data);
        let mut done = 0;
        while done < data.len() {
            let position = self.offset + done;
            let (index, inside) = (position / GROUP, position % GROUP);
            let count = (GROUP - inside).min(data.len() - done);
            let part = &mut data[done..done + count];
            if let Ok(whole) = <&mut [f32; GROUP]>::try_from(&mut *part) {
                self.group(simd, index, whole);
            } else {
                let mut padded = [0.0; GROUP];
                padded[inside..inside + count].copy_from_slice(part);
                self.group(simd, index, &mut padded);
                part.copy_from_slice(&padded[inside..inside + count]);
            }
            done += count;
        }
    }
}

/// The most elements one tensor may have, so that block numbers do not repeat.
const MAX_ELEMENTS: usize = (u32::MAX as usize / WORD) * GROUP;

impl Kernels {
    /// Sets each element to 0 with probability `rate` and multiplies the others by
    /// `1 / (1 - rate)`, in place. `offset` is the index of `data[0]` in the whole tensor: chunks
    /// of a tensor get the mask the whole would get. A dropped element becomes 0 whatever it was;
    /// the rate is exact to 2⁻³².
    ///
    /// # Panics
    /// When `rate` is not in `0.0..1.0`, or the tensor has more than 2³⁴ elements.
    pub fn dropout(self, data: &mut [f32], key: DropoutKey, offset: usize, rate: f32) {
        assert!((0.0..1.0).contains(&rate), "dropout rate {rate} is not in 0.0..1.0");
        let end = offset.saturating_add(data.len());
        assert!(end <= MAX_ELEMENTS, "dropout over {end} elements, at most {MAX_ELEMENTS}");
        if rate == 0.0 {
            return;
        }
        let threshold = (f64::from(rate) * 4_294_967_296.0).round() as u32;
        let scale = (1.0 / (1.0 - f64::from(rate))) as f32;
        self.run(Dropout { data, key, offset, threshold, scale });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::portable::Portable;

    /// The generator's authors publish this result for counter 0, key 0 (and the others below).
    #[test]
    fn philox_gives_the_published_numbers() {
        let simd = Portable::ANYWHERE;
        let zero = philox(simd, DropoutKey::new(0, 0, 0), 0).map(|word| word[0]);
        assert_eq!(zero, [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let ones = DropoutKey::new(u64::MAX, u64::MAX, u32::MAX);
        let ones = philox(simd, ones, u32::MAX).map(|word| word[0]);
        assert_eq!(ones, [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let pi = DropoutKey::new(0x299f_31d0_a409_3822, 0x0370_7344_1319_8a2e, 0x85a3_08d3);
        let pi = philox(simd, pi, 0x243f_6a88).map(|word| word[0]);
        assert_eq!(pi, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }
}
