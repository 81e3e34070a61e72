//! The portable set: lanes as a plain array, which the compiler turns into whatever vectors the target always has. It is
//! the reference for the other sets, to the last bit, and the fallback elsewhere.

use super::fused::multiply_add;
use super::{Kernel, Simd};

/// Runs on any CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Array<const LANES: usize, const TILE_ROWS: usize>(());

pub(crate) type Portable = Array<8, 2>;

impl Portable {
    pub(crate) const ANYWHERE: Self = Self(());
}

/// The set that stands in for narrow vectors in unit tests.
#[cfg(test)]
pub(crate) type Narrow = Array<4, 10>;

/// The set that stands in for the widest vectors in unit tests.
#[cfg(test)]
pub(crate) type Wide = Array<16, 12>;

macro_rules! lanes {
    ($lane:ident => $value:expr) => {{
        let mut out = [Default::default(); LANES];
        let mut $lane = 0;
        while $lane < LANES {
            out[$lane] = $value;
            $lane += 1;
        }
        out
    }};
}

impl<const LANES: usize, const TILE_ROWS: usize> Simd for Array<LANES, TILE_ROWS> {
    type F32 = [f32; LANES];
    type U32 = [u32; LANES];
    const LANES: usize = LANES;
    const TILE_ROWS: usize = TILE_ROWS;

    fn detect() -> Option<Self> {
        Some(Self(()))
    }

    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }
    #[inline(never)]
    fn vectorize_apart<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F32 {
        [value; LANES]
    }
    #[inline(always)]
    fn add(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        lanes!(i => a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        lanes!(i => a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        lanes!(i => a[i] * b[i])
    }
    #[inline(always)]
    fn div(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        lanes!(i => a[i] / b[i])
    }
    // As the x86 instructions do: the second operand when either is NaN.
    #[inline(always)]
    fn max(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        lanes!(i => if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn min(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        lanes!(i => if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn sqrt(self, a: Self::F32) -> Self::F32 {
        lanes!(i => a[i].sqrt())
    }
    #[inline(always)]
    fn abs(self, a: Self::F32) -> Self::F32 {
        lanes!(i => a[i].abs())
    }
    #[inline(always)]
    fn mul_add(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32 {
        lanes!(i => multiply_add(a[i], b[i], c[i]))
    }
    #[inline(always)]
    fn neg_mul_add(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32 {
        lanes!(i => multiply_add(-a[i], b[i], c[i]))
    }
    #[inline(always)]
    fn select_less(self, a: Self::F32, b: Self::F32, yes: Self::F32, no: Self::F32) -> Self::F32 {
        lanes!(i => if a[i] < b[i] { yes[i] } else { no[i] })
    }
    #[inline(always)]
    fn select_first(self, count: usize, a: Self::F32, b: Self::F32) -> Self::F32 {
        lanes!(i => if i < count { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn round(self, a: Self::F32) -> Self::F32 {
        // Adding 1.5·2^23 leaves no fraction bits: the addition itself rounds, ties to even. It loses the sign of a
        // zero.
        const SHIFT: f32 = 12_582_912.0;
        lanes!(i => ((a[i] + SHIFT) - SHIFT).copysign(a[i]))
    }
    #[inline(always)]
    fn mul_exp2_integer(self, a: Self::F32, n: Self::F32) -> Self::F32 {
        lanes!(i => a[i] * f32::from_bits(((n[i] as i32).wrapping_add(127) as u32) << 23))
    }
    #[inline(always)]
    fn reduce_sum(self, a: Self::F32) -> f32 {
        // A tree: the upper half of the lanes is added to the lower half until one is left.
        let mut sums = a;
        let mut width = LANES / 2;
        while width > 0 {
            for lane in 0..width {
                sums[lane] += sums[lane + width];
            }
            width /= 2;
        }
        sums[0]
    }
    #[inline(always)]
    fn reduce_max(self, a: Self::F32) -> f32 {
        a.iter().fold(f32::NEG_INFINITY, |m, &v| m.max(v))
    }

    #[inline(always)]
    fn splat_u32(self, value: u32) -> Self::U32 {
        [value; LANES]
    }
    #[inline(always)]
    fn count_from(self, start: u32) -> Self::U32 {
        lanes!(i => start.wrapping_add(i as u32))
    }
    #[inline(always)]
    fn xor_u32(self, a: Self::U32, b: Self::U32) -> Self::U32 {
        lanes!(i => a[i] ^ b[i])
    }
    #[inline(always)]
    fn mul_wide_u32(self, a: Self::U32, b: Self::U32) -> (Self::U32, Self::U32) {
        (lanes!(i => ((u64::from(a[i]) * u64::from(b[i])) >> 32) as u32), lanes!(i => a[i].wrapping_mul(b[i])))
    }
    #[inline(always)]
    fn zero_below(self, a: Self::U32, limit: Self::U32, value: Self::F32) -> Self::F32 {
        lanes!(i => if a[i] < limit[i] { 0.0 } else { value[i] })
    }

    #[inline(always)]
    fn add_i32(self, a: Self::U32, b: Self::U32) -> Self::U32 {
        lanes!(i => a[i].wrapping_add(b[i]))
    }
    #[inline(always)]
    fn sub_i32(self, a: Self::U32, b: Self::U32) -> Self::U32 {
        lanes!(i => a[i].wrapping_sub(b[i]))
    }
    #[inline(always)]
    fn max_i32(self, a: Self::U32, b: Self::U32) -> Self::U32 {
        lanes!(i => if a[i].cast_signed() > b[i].cast_signed() { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn to_f32(self, a: Self::U32) -> Self::F32 {
        lanes!(i => a[i].cast_signed() as f32)
    }
    #[inline(always)]
    fn to_i32(self, a: Self::F32) -> Self::U32 {
        // As `round`: the low bits of the shifted number are the integer itself, modulo 2^22.
        const SHIFT: f32 = 12_582_912.0;
        lanes!(i => (a[i] + SHIFT).to_bits().wrapping_sub(SHIFT.to_bits()))
    }
    #[inline(always)]
    fn reduce_add_i32(self, a: Self::U32) -> i32 {
        a.iter().fold(0_u32, |sum, &lane| sum.wrapping_add(lane)).cast_signed()
    }
    #[inline(always)]
    fn reduce_max_i32(self, a: Self::U32) -> i32 {
        a.iter().fold(i32::MIN, |max, &lane| max.max(lane.cast_signed()))
    }
    #[inline(always)]
    unsafe fn load_i32_ptr(self, pointer: *const i32) -> Self::U32 {
        // SAFETY: the caller promises LANES readable integers.
        unsafe { pointer.cast::<[u32; LANES]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_i8_ptr(self, pointer: *const i8) -> Self::U32 {
        // SAFETY: the caller promises LANES readable bytes.
        let bytes = unsafe { pointer.cast::<[i8; LANES]>().read_unaligned() };
        lanes!(i => i32::from(bytes[i]).cast_unsigned())
    }
    #[inline(always)]
    unsafe fn load_u8_as_f32_ptr(self, pointer: *const u8) -> Self::F32 {
        // SAFETY: the caller promises LANES readable bytes.
        let bytes = unsafe { pointer.cast::<[u8; LANES]>().read_unaligned() };
        lanes!(i => f32::from(bytes[i]))
    }
    #[inline(always)]
    unsafe fn store_i8_ptr(self, pointer: *mut i8, value: Self::U32) {
        let bytes: [i8; LANES] = lanes!(i => value[i] as i8);
        // SAFETY: the caller promises LANES writable bytes.
        unsafe { pointer.cast::<[i8; LANES]>().write_unaligned(bytes) }
    }

    #[inline(always)]
    unsafe fn load_ptr(self, pointer: *const f32) -> Self::F32 {
        // SAFETY: the caller promises LANES readable floats.
        unsafe { pointer.cast::<[f32; LANES]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_ptr(self, pointer: *mut f32, value: Self::F32) {
        // SAFETY: the caller promises LANES writable floats.
        unsafe { pointer.cast::<[f32; LANES]>().write_unaligned(value) }
    }
    #[inline(always)]
    unsafe fn load_first_ptr(self, pointer: *const f32, count: usize) -> Self::F32 {
        let mut out = [0.0; LANES];
        // SAFETY: the caller promises `count` readable floats, and `count <= LANES`.
        unsafe { std::ptr::copy_nonoverlapping(pointer, out.as_mut_ptr(), count) };
        out
    }
    #[inline(always)]
    unsafe fn store_first_ptr(self, pointer: *mut f32, count: usize, value: Self::F32) {
        // SAFETY: the caller promises `count` writable floats, and `count <= LANES`.
        unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), pointer, count) };
    }
}
