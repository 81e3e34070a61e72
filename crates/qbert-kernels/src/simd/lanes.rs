//! Operations on the bits of lanes that the sets have no method for: plain Rust on arrays, of which the compiler makes
//! vectors again.

use super::{MAX_LANES, Simd};

/// The bits of a vector's lanes.
#[inline(always)]
pub(super) fn lanes<S: Simd>(simd: S, vector: S::F32) -> [u32; MAX_LANES] {
    let mut floats = [0.0; MAX_LANES];
    simd.store(&mut floats, vector);
    floats.map(f32::to_bits)
}

/// The vector whose lanes have these bits.
#[inline(always)]
pub(super) fn vector<S: Simd>(simd: S, lane: impl Fn(usize) -> u32) -> S::F32 {
    let mut floats = [0.0; MAX_LANES];
    for (index, float) in floats.iter_mut().enumerate().take(S::LANES) {
        *float = f32::from_bits(lane(index));
    }
    simd.load(&floats)
}
