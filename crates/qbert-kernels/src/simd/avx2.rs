//! AVX2 with FMA: eight lanes.

use std::arch::x86_64::*;

use super::{Kernel, Simd};

/// Proof that the CPU has AVX2 and FMA: only [`Simd::detect`] makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Avx2(());

#[target_feature(enable = "avx2,fma")]
fn with_features<K: Kernel>(simd: Avx2, kernel: K) -> K::Output {
    kernel.run(simd)
}

#[target_feature(enable = "avx2,fma")]
#[inline(never)]
fn with_features_apart<K: Kernel>(simd: Avx2, kernel: K) -> K::Output {
    kernel.run(simd)
}

/// Ones followed by zeros: a window at offset `8 - count` masks the first `count` lanes.
static MASK_WINDOW: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

/// Calls a value-only intrinsic.
macro_rules! vector {
    ($call:expr) => {{
        // SAFETY: `self` exists only on CPUs with the features this intrinsic needs.
        unsafe { $call }
    }};
}

impl Avx2 {
    #[inline(always)]
    fn first(self, count: usize) -> __m256i {
        let window = &MASK_WINDOW[8 - count..16 - count];
        // SAFETY: `self` proves AVX2; the window is eight readable integers.
        unsafe { _mm256_loadu_si256(window.as_ptr().cast()) }
    }
}

impl Simd for Avx2 {
    type F32 = __m256;
    type U32 = __m256i;
    const LANES: usize = 8;
    const TILE_ROWS: usize = 6;

    fn detect() -> Option<Self> {
        let present = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        present.then_some(Self(()))
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
    fn bf16_rounded(self, numbers: __m256) -> __m256 {
        vector!({
            let bits = _mm256_castps_si256(numbers);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
            let exponent = _mm256_and_si256(bits, _mm256_set1_epi32(0x7f80_0000));
            let small = _mm256_cmpeq_epi32(exponent, _mm256_setzero_si256());
            let zero = _mm256_and_si256(bits, _mm256_set1_epi32(i32::MIN));
            let finite = _mm256_blendv_epi8(up, zero, small);
            let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(numbers, numbers));
            let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x40_0000));
            let all = _mm256_blendv_epi8(finite, quiet, nan);
            _mm256_castsi256_ps(_mm256_and_si256(all, _mm256_set1_epi32(0xffff_0000_u32 as i32)))
        })
    }
    #[inline(always)]
    fn bf16_joined(self, low: __m256, high: __m256) -> __m256 {
        vector!({
            let low = _mm256_srli_epi32::<16>(_mm256_castps_si256(low));
            _mm256_castsi256_ps(_mm256_or_si256(low, _mm256_castps_si256(high)))
        })
    }
    #[inline(always)]
    fn separated(self, first: __m256, second: __m256) -> (__m256, __m256) {
        vector!({
            let even = _mm256_castps_pd(_mm256_shuffle_ps::<0b10_00_10_00>(first, second));
            let odd = _mm256_castps_pd(_mm256_shuffle_ps::<0b11_01_11_01>(first, second));
            let in_order = |pairs| _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(pairs));
            (in_order(even), in_order(odd))
        })
    }
    #[inline(always)]
    fn bf16_halves(self, pairs: __m256) -> (__m256, __m256) {
        vector!({
            let pairs = _mm256_castps_si256(pairs);
            let high = _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff_0000_u32 as i32));
            (_mm256_castsi256_ps(high), _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs)))
        })
    }

    #[inline(always)]
    fn splat(self, value: f32) -> __m256 {
        vector!(_mm256_set1_ps(value))
    }
    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        vector!(_mm256_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        vector!(_mm256_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        vector!(_mm256_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        vector!(_mm256_div_ps(a, b))
    }
    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        vector!(_mm256_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        vector!(_mm256_min_ps(a, b))
    }
    #[inline(always)]
    fn sqrt(self, a: __m256) -> __m256 {
        vector!(_mm256_sqrt_ps(a))
    }
    #[inline(always)]
    fn abs(self, a: __m256) -> __m256 {
        vector!(_mm256_andnot_ps(_mm256_set1_ps(-0.0), a))
    }
    #[inline(always)]
    fn mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        vector!(_mm256_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn neg_mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        vector!(_mm256_fnmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn select_less(self, a: __m256, b: __m256, yes: __m256, no: __m256) -> __m256 {
        vector!(_mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b)))
    }
    #[inline(always)]
    fn select_first(self, count: usize, a: __m256, b: __m256) -> __m256 {
        let mask = self.first(count);
        vector!(_mm256_blendv_ps(b, a, _mm256_castsi256_ps(mask)))
    }
    #[inline(always)]
    fn round(self, a: __m256) -> __m256 {
        vector!(_mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a))
    }
    #[inline(always)]
    fn mul_exp2_integer(self, a: __m256, n: __m256) -> __m256 {
        vector!({
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent)))
        })
    }
    #[inline(always)]
    fn reduce_sum(self, a: __m256) -> f32 {
        vector!({
            let four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        })
    }
    #[inline(always)]
    fn reduce_max(self, a: __m256) -> f32 {
        vector!({
            let four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        })
    }

    #[inline(always)]
    fn splat_u32(self, value: u32) -> __m256i {
        vector!(_mm256_set1_epi32(value.cast_signed()))
    }
    #[inline(always)]
    fn count_from(self, start: u32) -> __m256i {
        vector!(_mm256_add_epi32(_mm256_set1_epi32(start.cast_signed()), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),))
    }
    #[inline(always)]
    fn xor_u32(self, a: __m256i, b: __m256i) -> __m256i {
        vector!(_mm256_xor_si256(a, b))
    }
    #[inline(always)]
    fn mul_wide_u32(self, a: __m256i, b: __m256i) -> (__m256i, __m256i) {
        // See avx512.rs: the multiply reads even lanes only.
        vector!({
            let even = _mm256_mul_epu32(a, b);
            let odd = _mm256_mul_epu32(_mm256_srli_epi64::<32>(a), _mm256_srli_epi64::<32>(b));
            let high = _mm256_blend_epi32::<0xAA>(_mm256_srli_epi64::<32>(even), odd);
            let low = _mm256_blend_epi32::<0xAA>(even, _mm256_slli_epi64::<32>(odd));
            (high, low)
        })
    }
    #[inline(always)]
    fn zero_below(self, a: __m256i, limit: __m256i, value: __m256) -> __m256 {
        // AVX2 has no unsigned comparison: a >= limit exactly when max(a, limit) == a.
        vector!({
            let keep = _mm256_cmpeq_epi32(_mm256_max_epu32(a, limit), a);
            _mm256_and_ps(_mm256_castsi256_ps(keep), value)
        })
    }

    #[inline(always)]
    fn add_i32(self, a: __m256i, b: __m256i) -> __m256i {
        vector!(_mm256_add_epi32(a, b))
    }
    #[inline(always)]
    fn sub_i32(self, a: __m256i, b: __m256i) -> __m256i {
        vector!(_mm256_sub_epi32(a, b))
    }
    #[inline(always)]
    fn max_i32(self, a: __m256i, b: __m256i) -> __m256i {
        vector!(_mm256_max_epi32(a, b))
    }
    #[inline(always)]
    fn to_f32(self, a: __m256i) -> __m256 {
        vector!(_mm256_cvtepi32_ps(a))
    }
    #[inline(always)]
    fn to_i32(self, a: __m256) -> __m256i {
        vector!(_mm256_cvtps_epi32(a))
    }
    #[inline(always)]
    fn reduce_add_i32(self, a: __m256i) -> i32 {
        vector!({
            let four = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256::<1>(a));
            let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
            _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two)))
        })
    }
    #[inline(always)]
    fn reduce_max_i32(self, a: __m256i) -> i32 {
        vector!({
            let four = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256::<1>(a));
            let two = _mm_max_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
            _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two)))
        })
    }
    #[inline(always)]
    unsafe fn load_i32_ptr(self, pointer: *const i32) -> __m256i {
        // SAFETY: the features as above; the caller promises 8 readable integers.
        unsafe { _mm256_loadu_si256(pointer.cast()) }
    }
    #[inline(always)]
    unsafe fn load_i8_ptr(self, pointer: *const i8) -> __m256i {
        // SAFETY: the features as above; the caller promises 8 readable bytes.
        unsafe { _mm256_cvtepi8_epi32(_mm_loadl_epi64(pointer.cast())) }
    }
    #[inline(always)]
    unsafe fn load_u8_as_f32_ptr(self, pointer: *const u8) -> __m256 {
        // SAFETY: the features as above; the caller promises 8 readable bytes.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(pointer.cast()))) }
    }
    #[inline(always)]
    unsafe fn store_i8_ptr(self, pointer: *mut i8, value: __m256i) {
        // SAFETY: the features as above; the caller promises 8 writable bytes. The saturating packs change nothing in
        // the range the caller promises.
        unsafe {
            let halves = _mm_packs_epi32(_mm256_castsi256_si128(value), _mm256_extracti128_si256::<1>(value));
            _mm_storel_epi64(pointer.cast(), _mm_packs_epi16(halves, halves));
        }
    }

    #[inline(always)]
    fn prefetch(self, address: *const f32) {
        // SAFETY: a prefetch never faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
    #[inline(always)]
    fn prefetch_far(self, address: *const f32) {
        // SAFETY: a prefetch never faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) }
    }
    #[inline(always)]
    unsafe fn load_ptr(self, pointer: *const f32) -> __m256 {
        // SAFETY: the features as above; the caller promises 8 readable floats.
        unsafe { _mm256_loadu_ps(pointer) }
    }
    #[inline(always)]
    unsafe fn store_ptr(self, pointer: *mut f32, value: __m256) {
        // SAFETY: the features as above; the caller promises 8 writable floats.
        unsafe { _mm256_storeu_ps(pointer, value) }
    }
    #[inline(always)]
    unsafe fn load_first_ptr(self, pointer: *const f32, count: usize) -> __m256 {
        // SAFETY: the features as above; masked-off lanes are not accessed.
        unsafe { _mm256_maskload_ps(pointer, self.first(count)) }
    }
    #[inline(always)]
    unsafe fn store_first_ptr(self, pointer: *mut f32, count: usize, value: __m256) {
        // SAFETY: the features as above; masked-off lanes are not accessed.
        unsafe { _mm256_maskstore_ps(pointer, self.first(count), value) }
    }
}
