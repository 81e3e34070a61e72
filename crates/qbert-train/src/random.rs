//! Seeded, named streams of random numbers.
//!
//! A run is repeatable only if every use of random numbers has a stream of its own: drawing one more number for a new head
//! must not change the order of the data. A stream is named after its purpose. Its numbers depend only on the seed, the name
//! and the position (splitmix64), so a stream can be continued anywhere after a crash. Not for secrets.

/// A stream of random numbers.
#[derive(Debug, Clone)]
pub struct Stream {
    state: u64,
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The 64-bit finalizer of splitmix64.
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Stream {
    /// The stream of this name under this seed; `index` numbers streams of one kind (epochs, steps).
    pub fn new(seed: u64, name: &str, index: u64) -> Self {
        let named = name.bytes().fold(mix(seed ^ GOLDEN), |h, byte| mix(h ^ u64::from(byte)).wrapping_add(GOLDEN));
        Self { state: mix(named ^ index.wrapping_mul(GOLDEN)) }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }

    /// A whole number below `bound`, without bias.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = bound as u64;
        // Multiplication method; the rejected sliver makes every value equally likely.
        loop {
            let product = u128::from(self.next_u64()) * u128::from(bound);
            if (product as u64) >= bound.wrapping_neg() % bound {
                return (product >> 64) as usize;
            }
        }
    }

    /// Uniform in (0, 1].
    pub fn uniform(&mut self) -> f64 {
        ((self.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Fills with normally distributed values (Box–Muller).
    pub fn fill_normal(&mut self, values: &mut [f32], deviation: f32) {
        for pair in values.chunks_mut(2) {
            let radius = (-2.0 * libm::log(self.uniform())).sqrt() * f64::from(deviation);
            let angle = std::f64::consts::TAU * self.uniform();
            pair[0] = (radius * libm::cos(angle)) as f32;
            if let Some(second) = pair.get_mut(1) {
                *second = (radius * libm::sin(angle)) as f32;
            }
        }
    }

    /// Shuffles the items (Fisher–Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_repeatable_and_independent() {
        let first = |seed, name, index| Stream::new(seed, name, index).next_u64();
        assert_eq!(first(1, "order", 0), first(1, "order", 0));
        let all = [first(1, "order", 0), first(2, "order", 0), first(1, "head", 0), first(1, "order", 1)];
        let distinct: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
    }

    #[test]
    fn normal_values_have_the_right_moments() {
        let mut values = vec![0.0; 200_001];
        Stream::new(7, "test", 0).fill_normal(&mut values, 0.5);
        let n = values.len() as f64;
        let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
        let variance = values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / n - mean * mean;
        assert!(mean.abs() < 0.005, "{mean}");
        assert!((variance - 0.25).abs() < 0.005, "{variance}");
        assert!(values.iter().all(|v| v.is_finite()));
    }

    #[test]
    fn shuffling_and_bounds_are_fair() {
        let mut counts = [[0u32; 4]; 4];
        let mut stream = Stream::new(3, "fair", 0);
        for _ in 0..40_000 {
            let mut items = [0usize, 1, 2, 3];
            stream.shuffle(&mut items);
            for (place, &item) in items.iter().enumerate() {
                counts[place][item] += 1;
            }
        }
        for count in counts.iter().flatten() {
            assert!((9_600..10_400).contains(count), "{counts:?}");
        }
    }
}
