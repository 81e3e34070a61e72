//! AVX-512 (F, BW, DQ, VL): sixteen lanes, masks for the tails of rows.

use std::arch::x86_64::*;

use super::{Kernel, Simd, Transpose};

/// Proof that the CPU has AVX-512 F, BW, DQ and VL: only [`Simd::detect`] makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Avx512(());

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn with_features<K: Kernel>(simd: Avx512, kernel: K) -> K::Output {
    kernel.run(simd)
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
#[inline(never)]
fn with_features_apart<K: Kernel>(simd: Avx512, kernel: K) -> K::Output {
    kernel.run(simd)
}

/// A mask of the first `count` lanes.
#[inline(always)]
fn first(count: usize) -> __mmask16 {
    debug_assert!(count <= 16);
    ((1_u32 << count) - 1) as __mmask16
}

/// Calls a value-only intrinsic.
macro_rules! vector {
    ($call:expr) => {{
        // SAFETY: `self` exists only on CPUs with the features this intrinsic needs.
        unsafe { $call }
    }};
}

impl Simd for Avx512 {
    type F32 = __m512;
    type U32 = __m512i;
    const LANES: usize = 16;
    const TILE_ROWS: usize = 12;

    fn detect() -> Option<Self> {
        let present = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma");
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
    fn splat(self, value: f32) -> __m512 {
        vector!(_mm512_set1_ps(value))
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        vector!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        vector!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        vector!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        vector!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        vector!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        vector!(_mm512_min_ps(a, b))
    }
    #[inline(always)]
    fn sqrt(self, a: __m512) -> __m512 {
        vector!(_mm512_sqrt_ps(a))
    }
    #[inline(always)]
    fn abs(self, a: __m512) -> __m512 {
        vector!(_mm512_abs_ps(a))
    }
    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        vector!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn neg_mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        vector!(_mm512_fnmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn select_less(self, a: __m512, b: __m512, yes: __m512, no: __m512) -> __m512 {
        vector!(_mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), no, yes))
    }
    #[inline(always)]
    fn select_first(self, count: usize, a: __m512, b: __m512) -> __m512 {
        vector!(_mm512_mask_blend_ps(first(count), b, a))
    }
    #[inline(always)]
    fn round(self, a: __m512) -> __m512 {
        vector!(_mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a))
    }
    #[inline(always)]
    fn mul_exp2_integer(self, a: __m512, n: __m512) -> __m512 {
        vector!(_mm512_scalef_ps(a, n))
    }
    #[inline(always)]
    fn reduce_sum(self, a: __m512) -> f32 {
        // Written out, because the order of `_mm512_reduce_add_ps` is not documented.
        vector!({
            let eight = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        })
    }
    #[inline(always)]
    fn reduce_max(self, a: __m512) -> f32 {
        vector!(_mm512_reduce_max_ps(a))
    }

    #[inline(always)]
    fn splat_u32(self, value: u32) -> __m512i {
        vector!(_mm512_set1_epi32(value.cast_signed()))
    }
    #[inline(always)]
    fn count_from(self, start: u32) -> __m512i {
        vector!(_mm512_add_epi32(
            _mm512_set1_epi32(start.cast_signed()),
            _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
        ))
    }
    #[inline(always)]
    fn xor_u32(self, a: __m512i, b: __m512i) -> __m512i {
        vector!(_mm512_xor_si512(a, b))
    }
    #[inline(always)]
    fn mul_wide_u32(self, a: __m512i, b: __m512i) -> (__m512i, __m512i) {
        // The 32×32→64 multiply reads even lanes only: odd lanes are shifted down and multiplied
        // separately, then high and low halves are put back in place.
        vector!({
            let even = _mm512_mul_epu32(a, b);
            let odd = _mm512_mul_epu32(_mm512_srli_epi64::<32>(a), _mm512_srli_epi64::<32>(b));
            let high = _mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64::<32>(even), odd);
            let low = _mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64::<32>(odd));
            (high, low)
        })
    }
    #[inline(always)]
    fn zero_below(self, a: __m512i, limit: __m512i, value: __m512) -> __m512 {
        vector!(_mm512_maskz_mov_ps(_mm512_cmpge_epu32_mask(a, limit), value))
    }

    #[inline(always)]
    fn add_i32(self, a: __m512i, b: __m512i) -> __m512i {
        vector!(_mm512_add_epi32(a, b))
    }
    #[inline(always)]
    fn sub_i32(self, a: __m512i, b: __m512i) -> __m512i {
        vector!(_mm512_sub_epi32(a, b))
    }
    #[inline(always)]
    fn max_i32(self, a: __m512i, b: __m512i) -> __m512i {
        vector!(_mm512_max_epi32(a, b))
    }
    #[inline(always)]
    fn to_f32(self, a: __m512i) -> __m512 {
        vector!(_mm512_cvtepi32_ps(a))
    }
    #[inline(always)]
    fn to_i32(self, a: __m512) -> __m512i {
        vector!(_mm512_cvtps_epi32(a))
    }
    #[inline(always)]
    fn reduce_add_i32(self, a: __m512i) -> i32 {
        vector!(_mm512_reduce_add_epi32(a))
    }
    #[inline(always)]
    fn reduce_max_i32(self, a: __m512i) -> i32 {
        vector!(_mm512_reduce_max_epi32(a))
    }
    #[inline(always)]
    unsafe fn load_i32_ptr(self, pointer: *const i32) -> __m512i {
        // SAFETY: the features as above; the caller promises 16 readable integers.
        unsafe { _mm512_loadu_si512(pointer.cast()) }
    }
    #[inline(always)]
    unsafe fn load_i8_ptr(self, pointer: *const i8) -> __m512i {
        // SAFETY: the features as above; the caller promises 16 readable bytes.
        unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(pointer.cast())) }
    }
    #[inline(always)]
    unsafe fn load_u8_as_f32_ptr(self, pointer: *const u8) -> __m512 {
        // SAFETY: the features as above; the caller promises 16 readable bytes.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(pointer.cast()))) }
    }
    #[inline(always)]
    unsafe fn store_i8_ptr(self, pointer: *mut i8, value: __m512i) {
        // SAFETY: the features as above; the caller promises 16 writable bytes.
        unsafe { _mm_storeu_si128(pointer.cast(), _mm512_cvtepi32_epi8(value)) }
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
    unsafe fn load_ptr(self, pointer: *const f32) -> __m512 {
        // SAFETY: the features as above; the caller promises 16 readable floats.
        unsafe { _mm512_loadu_ps(pointer) }
    }
    #[inline(always)]
    unsafe fn store_ptr(self, pointer: *mut f32, value: __m512) {
        // SAFETY: the features as above; the caller promises 16 writable floats.
        unsafe { _mm512_storeu_ps(pointer, value) }
    }
    #[inline(always)]
    unsafe fn load_first_ptr(self, pointer: *const f32, count: usize) -> __m512 {
        // SAFETY: the features as above; masked-off lanes are not accessed.
        unsafe { _mm512_maskz_loadu_ps(first(count), pointer) }
    }
    #[inline(always)]
    unsafe fn store_first_ptr(self, pointer: *mut f32, count: usize, value: __m512) {
        // SAFETY: the features as above; masked-off lanes are not accessed.
        unsafe { _mm512_mask_storeu_ps(pointer, first(count), value) }
    }

    #[inline(always)]
    unsafe fn transpose_block(self, block: Transpose) {
        let Transpose { source, source_row, rows, cols, target, target_row } = block;
        let mask = first(cols);
        // SAFETY: the features as above; exactly `rows × cols` floats are read and `cols` rows of
        // sixteen written, as the caller promises.
        unsafe {
            let mut block = [_mm512_setzero_ps(); 16];
            for (i, row) in block.iter_mut().enumerate() {
                if i < rows {
                    *row = _mm512_maskz_loadu_ps(mask, source.add(i * source_row));
                }
            }
            transpose_in_quarters(&mut block);
            for (j, column) in block.iter().enumerate() {
                if j < cols {
                    _mm512_storeu_ps(target.add(j * target_row), *column);
                }
            }
        }
    }
}

/// Transposes 16 × 16 floats: pairs of rows, then fours, give 4 × 4 blocks inside the 128-bit
/// quarters; two rounds of moving whole quarters put the blocks in place.
///
/// # Safety
/// The CPU must have AVX-512F.
#[inline(always)]
unsafe fn transpose_in_quarters(rows: &mut [__m512; 16]) {
    // SAFETY: the caller promises AVX-512F.
    unsafe {
        for four in rows.chunks_exact_mut(4) {
            let low01 = _mm512_unpacklo_ps(four[0], four[1]);
            let high01 = _mm512_unpackhi_ps(four[0], four[1]);
            let low23 = _mm512_unpacklo_ps(four[2], four[3]);
            let high23 = _mm512_unpackhi_ps(four[2], four[3]);
            four[0] = _mm512_shuffle_ps::<0b01_00_01_00>(low01, low23);
            four[1] = _mm512_shuffle_ps::<0b11_10_11_10>(low01, low23);
            four[2] = _mm512_shuffle_ps::<0b01_00_01_00>(high01, high23);
            four[3] = _mm512_shuffle_ps::<0b11_10_11_10>(high01, high23);
        }
        // Now quarter q of rows[4·i + r] holds column 4·q + r of rows 4·i .. 4·i + 3.
        for r in 0..4 {
            let (a, b, c, d) = (rows[r], rows[4 + r], rows[8 + r], rows[12 + r]);
            let even_ab = _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b);
            let odd_ab = _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b);
            let even_cd = _mm512_shuffle_f32x4::<0b10_00_10_00>(c, d);
            let odd_cd = _mm512_shuffle_f32x4::<0b11_01_11_01>(c, d);
            rows[r] = _mm512_shuffle_f32x4::<0b10_00_10_00>(even_ab, even_cd);
            rows[8 + r] = _mm512_shuffle_f32x4::<0b11_01_11_01>(even_ab, even_cd);
            rows[4 + r] = _mm512_shuffle_f32x4::<0b10_00_10_00>(odd_ab, odd_cd);
            rows[12 + r] = _mm512_shuffle_f32x4::<0b11_01_11_01>(odd_ab, odd_cd);
        }
    }
}
