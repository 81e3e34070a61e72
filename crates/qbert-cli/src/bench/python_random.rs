//! Python's shuffle, so that a benchmark computes on the same sentences as the script it is compared with. Use
//! [`qbert_train::random`] for everything else.

/// `random.Random(seed).shuffle(items)` of Python: MT19937 seeded with one word, indices by rejection.
pub(super) fn shuffle<T>(items: &mut [T], seed: u32) {
    let mut generator = MersenneTwister::new(seed);
    for last in (1..items.len()).rev() {
        let bound = last as u32 + 1;
        let bits = 32 - bound.leading_zeros();
        let index = loop {
            let drawn = generator.next() >> (32 - bits);
            if drawn < bound {
                break drawn;
            }
        };
        items.swap(last, index as usize);
    }
}

/// MT19937 (Matsumoto and Nishimura 1998), seeded by array as Python does.
struct MersenneTwister {
    state: [u32; 624],
    next: usize,
}

impl MersenneTwister {
    fn new(seed: u32) -> Self {
        let mut state = [0u32; 624];
        state[0] = 19_650_218;
        for i in 1..624 {
            state[i] = (state[i - 1] ^ (state[i - 1] >> 30)).wrapping_mul(1_812_433_253).wrapping_add(i as u32);
        }
        let mut at = 1;
        let advance = |state: &mut [u32; 624], at: &mut usize| {
            *at += 1;
            if *at == 624 {
                state[0] = state[623];
                *at = 1;
            }
        };
        for _ in 0..624 {
            let before = state[at - 1];
            state[at] = (state[at] ^ (before ^ (before >> 30)).wrapping_mul(1_664_525)).wrapping_add(seed);
            advance(&mut state, &mut at);
        }
        for _ in 0..623 {
            let before = state[at - 1];
            let mixed = state[at] ^ (before ^ (before >> 30)).wrapping_mul(1_566_083_941);
            state[at] = mixed.wrapping_sub(at as u32);
            advance(&mut state, &mut at);
        }
        state[0] = 0x8000_0000;
        Self { state, next: 624 }
    }

    fn next(&mut self) -> u32 {
        if self.next == 624 {
            for i in 0..624 {
                let y = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % 624] & 0x7fff_ffff);
                let odd = if y & 1 == 1 { 0x9908_b0df } else { 0 };
                self.state[i] = self.state[(i + 397) % 624] ^ (y >> 1) ^ odd;
            }
            self.next = 0;
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `import random; r = random.Random(0); [r.getrandbits(32) for _ in range(3)]`, and a shuffle of `range(10)`.
    #[test]
    fn the_generator_is_pythons() {
        let mut generator = MersenneTwister::new(0);
        assert_eq!(
            [generator.next(), generator.next(), generator.next()],
            [3_626_764_237, 1_654_615_998, 3_255_389_356]
        );
        let mut items: Vec<u32> = (0..10).collect();
        shuffle(&mut items, 0);
        assert_eq!(items, [7, 8, 1, 5, 3, 4, 2, 0, 9, 6]);
    }
}
