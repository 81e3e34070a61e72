//! NEON: four lanes. Every 64-bit ARM CPU that runs an operating system has it.

use std::arch::aarch64::*;
use std::arch::asm;

use super::{Kernel, Simd, Transpose};

/// Proof that the CPU has NEON: only [`Simd::detect`] makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Neon(());

#[target_feature(enable = "neon")]
fn with_features<K: Kernel>(simd: Neon, kernel: K) -> K::Output {
    kernel.run(simd)
}

#[target_feature(enable = "neon")]
#[inline(never)]
fn with_features_apart<K: Kernel>(simd: Neon, kernel: K) -> K::Output {
    kernel.run(simd)
}

/// Calls a value-only intrinsic.
macro_rules! vector {
    ($call:expr) => {{
        // SAFETY: `self` exists only on CPUs with the features this intrinsic needs.
        unsafe { $call }
    }};
}

/// Ones followed by zeros: a window at offset `4 - count` masks the first `count` lanes.
static MASK_WINDOW: [u32; 8] = [u32::MAX, u32::MAX, u32::MAX, u32::MAX, 0, 0, 0, 0];

/// Prefetches the cache line at an address, which need not be valid.
#[inline(always)]
pub(crate) fn prefetch(address: *const u8) {
    // SAFETY: a prefetch never faults, whatever the address.
    unsafe { asm!("prfm pldl1keep, [{}]", in(reg) address, options(readonly, nostack, preserves_flags)) }
}

impl Neon {
    #[inline(always)]
    fn first(self, count: usize) -> uint32x4_t {
        let window = &MASK_WINDOW[4 - count..8 - count];
        // SAFETY: `self` proves NEON; the window is four readable integers.
        unsafe { vld1q_u32(window.as_ptr()) }
    }
}

impl Simd for Neon {
    type F32 = float32x4_t;
    type U32 = uint32x4_t;
    const LANES: usize = 4;
    const TILE_ROWS: usize = 12;

    fn detect() -> Option<Self> {
        std::arch::is_aarch64_feature_detected!("neon").then_some(Self(()))
    }

    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        vector!(with_features(self, kernel))
    }
    #[inline(always)]
    fn vectorize_apart<K: Kernel>(self, kernel: K) -> K::Output {
        vector!(with_features_apart(self, kernel))
    }

    #[inline(always)]
    fn bf16_rounded(self, numbers: float32x4_t) -> float32x4_t {
        vector!({
            let bits = vreinterpretq_u32_f32(numbers);
            let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
            let up = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
            let normal = vtstq_u32(bits, vdupq_n_u32(0x7f80_0000));
            let finite = vbslq_u32(normal, up, vandq_u32(bits, vdupq_n_u32(1 << 31)));
            let number = vceqq_f32(numbers, numbers);
            let all = vbslq_u32(number, finite, vorrq_u32(bits, vdupq_n_u32(0x40_0000)));
            vreinterpretq_f32_u32(vandq_u32(all, vdupq_n_u32(0xffff_0000)))
        })
    }
    #[inline(always)]
    fn bf16_joined(self, low: float32x4_t, high: float32x4_t) -> float32x4_t {
        vector!({
            let low = vshrq_n_u32::<16>(vreinterpretq_u32_f32(low));
            vreinterpretq_f32_u32(vorrq_u32(low, vreinterpretq_u32_f32(high)))
        })
    }
    #[inline(always)]
    fn separated(self, first: float32x4_t, second: float32x4_t) -> (float32x4_t, float32x4_t) {
        vector!((vuzp1q_f32(first, second), vuzp2q_f32(first, second)))
    }
    #[inline(always)]
    fn bf16_halves(self, pairs: float32x4_t) -> (float32x4_t, float32x4_t) {
        vector!({
            let pairs = vreinterpretq_u32_f32(pairs);
            let high = vandq_u32(pairs, vdupq_n_u32(0xffff_0000));
            (vreinterpretq_f32_u32(high), vreinterpretq_f32_u32(vshlq_n_u32::<16>(pairs)))
        })
    }

    #[inline(always)]
    fn splat(self, value: f32) -> float32x4_t {
        vector!(vdupq_n_f32(value))
    }
    #[inline(always)]
    fn add(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vector!(vaddq_f32(a, b))
    }
    #[inline(always)]
    fn sub(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vector!(vsubq_f32(a, b))
    }
    #[inline(always)]
    fn mul(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vector!(vmulq_f32(a, b))
    }
    #[inline(always)]
    fn div(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vector!(vdivq_f32(a, b))
    }
    // Not `fmax` and `fmin`: as on x86, the result is the second operand when either is NaN.
    #[inline(always)]
    fn max(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vector!(vbslq_f32(vcgtq_f32(a, b), a, b))
    }
    #[inline(always)]
    fn min(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vector!(vbslq_f32(vcltq_f32(a, b), a, b))
    }
    #[inline(always)]
    fn sqrt(self, a: float32x4_t) -> float32x4_t {
        vector!(vsqrtq_f32(a))
    }
    #[inline(always)]
    fn abs(self, a: float32x4_t) -> float32x4_t {
        vector!(vabsq_f32(a))
    }
    #[inline(always)]
    fn mul_add(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        vector!(vfmaq_f32(c, a, b))
    }
    #[inline(always)]
    fn neg_mul_add(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        vector!(vfmsq_f32(c, a, b))
    }
    #[inline(always)]
    fn select_less(self, a: float32x4_t, b: float32x4_t, yes: float32x4_t, no: float32x4_t) -> float32x4_t {
        vector!(vbslq_f32(vcltq_f32(a, b), yes, no))
    }
    #[inline(always)]
    fn select_first(self, count: usize, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vector!(vbslq_f32(self.first(count), a, b))
    }
    #[inline(always)]
    fn round(self, a: float32x4_t) -> float32x4_t {
        vector!(vrndnq_f32(a))
    }
    #[inline(always)]
    fn mul_exp2_integer(self, a: float32x4_t, n: float32x4_t) -> float32x4_t {
        vector!({
            let exponent = vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127));
            vmulq_f32(a, vreinterpretq_f32_s32(vshlq_n_s32::<23>(exponent)))
        })
    }
    #[inline(always)]
    fn reduce_sum(self, a: float32x4_t) -> f32 {
        vector!({
            let two = vadd_f32(vget_low_f32(a), vget_high_f32(a));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        })
    }
    #[inline(always)]
    fn reduce_max(self, a: float32x4_t) -> f32 {
        vector!({
            let two = Simd::max(self, a, vextq_f32::<2>(a, a));
            vgetq_lane_f32::<0>(Simd::max(self, two, vextq_f32::<1>(two, two)))
        })
    }

    #[inline(always)]
    fn splat_u32(self, value: u32) -> uint32x4_t {
        vector!(vdupq_n_u32(value))
    }
    #[inline(always)]
    fn count_from(self, start: u32) -> uint32x4_t {
        const COUNT: [u32; 4] = [0, 1, 2, 3];
        // SAFETY: `self` proves NEON; the array has four integers.
        unsafe { vaddq_u32(vdupq_n_u32(start), vld1q_u32(COUNT.as_ptr())) }
    }
    #[inline(always)]
    fn xor_u32(self, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        vector!(veorq_u32(a, b))
    }
    #[inline(always)]
    fn mul_wide_u32(self, a: uint32x4_t, b: uint32x4_t) -> (uint32x4_t, uint32x4_t) {
        vector!({
            let first = vreinterpretq_u32_u64(vmull_u32(vget_low_u32(a), vget_low_u32(b)));
            let last = vreinterpretq_u32_u64(vmull_high_u32(a, b));
            (vuzp2q_u32(first, last), vuzp1q_u32(first, last))
        })
    }
    #[inline(always)]
    fn zero_below(self, a: uint32x4_t, limit: uint32x4_t, value: float32x4_t) -> float32x4_t {
        vector!(vreinterpretq_f32_u32(vandq_u32(vcgeq_u32(a, limit), vreinterpretq_u32_f32(value))))
    }

    #[inline(always)]
    fn add_i32(self, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        vector!(vaddq_u32(a, b))
    }
    #[inline(always)]
    fn sub_i32(self, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        vector!(vsubq_u32(a, b))
    }
    #[inline(always)]
    fn max_i32(self, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        vector!(vreinterpretq_u32_s32(vmaxq_s32(vreinterpretq_s32_u32(a), vreinterpretq_s32_u32(b))))
    }
    #[inline(always)]
    fn to_f32(self, a: uint32x4_t) -> float32x4_t {
        vector!(vcvtq_f32_s32(vreinterpretq_s32_u32(a)))
    }
    #[inline(always)]
    fn to_i32(self, a: float32x4_t) -> uint32x4_t {
        vector!(vreinterpretq_u32_s32(vcvtnq_s32_f32(a)))
    }
    #[inline(always)]
    fn reduce_add_i32(self, a: uint32x4_t) -> i32 {
        vector!(vaddvq_u32(a).cast_signed())
    }
    #[inline(always)]
    fn reduce_max_i32(self, a: uint32x4_t) -> i32 {
        vector!(vmaxvq_s32(vreinterpretq_s32_u32(a)))
    }
    #[inline(always)]
    unsafe fn load_i32_ptr(self, pointer: *const i32) -> uint32x4_t {
        // SAFETY: the features as above; the caller promises 4 readable integers.
        unsafe { vld1q_u32(pointer.cast()) }
    }
    #[inline(always)]
    unsafe fn load_i8_ptr(self, pointer: *const i8) -> uint32x4_t {
        // SAFETY: the features as above; the caller promises 4 readable bytes.
        unsafe {
            let bytes = pointer.cast::<u32>().read_unaligned();
            let halves = vmovl_s8(vcreate_s8(u64::from(bytes)));
            vreinterpretq_u32_s32(vmovl_s16(vget_low_s16(halves)))
        }
    }
    #[inline(always)]
    unsafe fn load_u8_as_f32_ptr(self, pointer: *const u8) -> float32x4_t {
        // SAFETY: the features as above; the caller promises 4 readable bytes.
        unsafe {
            let bytes = pointer.cast::<u32>().read_unaligned();
            let halves = vmovl_u8(vcreate_u8(u64::from(bytes)));
            vcvtq_f32_u32(vmovl_u16(vget_low_u16(halves)))
        }
    }
    #[inline(always)]
    unsafe fn store_i8_ptr(self, pointer: *mut i8, value: uint32x4_t) {
        // SAFETY: the features as above; the caller promises 4 writable bytes.
        unsafe {
            let halves = vmovn_u32(value);
            let bytes = vreinterpret_u32_u8(vmovn_u16(vcombine_u16(halves, halves)));
            pointer.cast::<u32>().write_unaligned(vget_lane_u32::<0>(bytes));
        }
    }

    #[inline(always)]
    fn prefetch(self, address: *const f32) {
        prefetch(address.cast());
    }
    #[inline(always)]
    fn prefetch_far(self, address: *const f32) {
        // SAFETY: a prefetch never faults, whatever the address.
        unsafe { asm!("prfm pldl2keep, [{}]", in(reg) address, options(readonly, nostack, preserves_flags)) }
    }
    #[inline(always)]
    unsafe fn load_ptr(self, pointer: *const f32) -> float32x4_t {
        // SAFETY: the features as above; the caller promises 4 readable floats.
        unsafe { vld1q_f32(pointer) }
    }
    #[inline(always)]
    unsafe fn store_ptr(self, pointer: *mut f32, value: float32x4_t) {
        // SAFETY: the features as above; the caller promises 4 writable floats.
        unsafe { vst1q_f32(pointer, value) }
    }
    #[inline(always)]
    unsafe fn load_first_ptr(self, pointer: *const f32, count: usize) -> float32x4_t {
        // SAFETY: the features as above; the caller promises `count` readable floats, and no branch reads more.
        unsafe {
            let zeros = vdupq_n_f32(0.0);
            match count {
                0 => zeros,
                1 => vld1q_lane_f32::<0>(pointer, zeros),
                2 => vcombine_f32(vld1_f32(pointer), vget_low_f32(zeros)),
                3 => vld1q_lane_f32::<2>(pointer.add(2), vcombine_f32(vld1_f32(pointer), vget_low_f32(zeros))),
                _ => vld1q_f32(pointer),
            }
        }
    }
    #[inline(always)]
    unsafe fn store_first_ptr(self, pointer: *mut f32, count: usize, value: float32x4_t) {
        // SAFETY: the features as above; the caller promises `count` writable floats, and no branch writes more.
        unsafe {
            match count {
                0 => {}
                1 => vst1q_lane_f32::<0>(pointer, value),
                2 => vst1_f32(pointer, vget_low_f32(value)),
                3 => {
                    vst1_f32(pointer, vget_low_f32(value));
                    vst1q_lane_f32::<2>(pointer.add(2), value);
                }
                _ => vst1q_f32(pointer, value),
            }
        }
    }

    #[inline(always)]
    unsafe fn transpose_block(self, block: Transpose) {
        let Transpose { source, source_row, rows, cols, target, target_row } = block;
        // SAFETY: the features as above; exactly `rows × cols` floats are read and `cols` rows of four written, as the caller promises.
        unsafe {
            let mut block = [vdupq_n_f32(0.0); 4];
            for (i, row) in block.iter_mut().enumerate() {
                if i < rows {
                    *row = self.load_first_ptr(source.add(i * source_row), cols);
                }
            }
            for (j, column) in transposed(block).into_iter().enumerate() {
                if j < cols {
                    vst1q_f32(target.add(j * target_row), column);
                }
            }
        }
    }
}

/// Transposes 4 × 4 floats: first single lanes, then pairs of lanes, change places between rows.
#[target_feature(enable = "neon")]
#[inline]
fn transposed(rows: [float32x4_t; 4]) -> [float32x4_t; 4] {
    let pairs = |row: float32x4_t| vreinterpretq_f64_f32(row);
    let lanes = |row: float64x2_t| vreinterpretq_f32_f64(row);
    let [a, b, c, d] = rows;
    let (even_ab, odd_ab) = (pairs(vtrn1q_f32(a, b)), pairs(vtrn2q_f32(a, b)));
    let (even_cd, odd_cd) = (pairs(vtrn1q_f32(c, d)), pairs(vtrn2q_f32(c, d)));
    [
        lanes(vtrn1q_f64(even_ab, even_cd)),
        lanes(vtrn1q_f64(odd_ab, odd_cd)),
        lanes(vtrn2q_f64(even_ab, even_cd)),
        lanes(vtrn2q_f64(odd_ab, odd_cd)),
    ]
}
