//! AVX-512 (F, BW, DQ, VL): sixteen lanes, masks for the tails of rows; with and without its products of bf16.

use std::arch::x86_64::*;

use super::{Kernel, Simd, Transpose, bf16};

/// Proof that the CPU has AVX-512 F, BW, DQ and VL, and with `BF16` also AVX512-BF16: only [`Simd::detect`] makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Set<const BF16: bool>(());

/// The set for every kernel.
pub(crate) type Avx512 = Set<false>;
/// The set for products of bf16, which alone are compiled for it.
pub(crate) type Avx512Bf16 = Set<true>;

/// One function that runs a kernel with these features.
macro_rules! with_features {
    ($name:ident, $features:literal $(, #[$inline:meta])?) => {
        #[target_feature(enable = $features)]
        $(#[$inline])?
        fn $name<const BF16: bool, K: Kernel>(simd: Set<BF16>, kernel: K) -> K::Output {
            kernel.run(simd)
        }
    };
}

with_features!(with_features, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma");
with_features!(with_features_apart, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma", #[inline(never)]);
with_features!(with_bf16, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,avx512bf16");
with_features!(with_bf16_apart, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,avx512bf16", #[inline(never)]);

/// The same bits as integers.
#[inline(always)]
fn words_of(pairs: __m512bh) -> __m512i {
    // SAFETY: both types are 512 bits of anything.
    unsafe { std::mem::transmute(pairs) }
}

/// The same bits as pairs of bf16.
#[inline(always)]
fn bf16_of(pairs: __m512) -> __m512bh {
    // SAFETY: both types are 512 bits of anything.
    unsafe { std::mem::transmute(pairs) }
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

impl<const BF16: bool> Simd for Set<BF16> {
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
            && is_x86_feature_detected!("fma")
            && (!BF16 || is_x86_feature_detected!("avx512bf16"));
        present.then_some(Self(()))
    }

    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        vector!(if BF16 { with_bf16(self, kernel) } else { with_features(self, kernel) })
    }
    #[inline(always)]
    fn vectorize_apart<K: Kernel>(self, kernel: K) -> K::Output {
        vector!(if BF16 { with_bf16_apart(self, kernel) } else { with_features_apart(self, kernel) })
    }

    #[inline(always)]
    fn bf16_lane_pairs(self, low: __m512, high: __m512) -> __m512 {
        if BF16 {
            // The conversion puts sixteen words of `low` before sixteen of `high`; pairs take them in turn.
            vector!({
                let words = words_of(_mm512_cvtne2ps_pbh(high, low));
                let order = _mm512_setr_epi32(
                    0x10_0000, 0x11_0001, 0x12_0002, 0x13_0003, 0x14_0004, 0x15_0005, 0x16_0006, 0x17_0007, 0x18_0008,
                    0x19_0009, 0x1a_000a, 0x1b_000b, 0x1c_000c, 0x1d_000d, 0x1e_000e, 0x1f_000f,
                );
                _mm512_castsi512_ps(_mm512_permutexvar_epi16(order, words))
            })
        } else {
            self.bf16_joined(self.bf16_rounded(low), self.bf16_rounded(high))
        }
    }
    #[inline(always)]
    fn bf16_neighbour_pairs(self, first: __m512, second: __m512) -> __m512 {
        if BF16 {
            vector!(_mm512_castsi512_ps(words_of(_mm512_cvtne2ps_pbh(second, first))))
        } else {
            let (low, high) = self.separated(first, second);
            self.bf16_lane_pairs(low, high)
        }
    }
    #[inline(always)]
    fn bf16_rounded(self, numbers: __m512) -> __m512 {
        vector!({
            let bits = _mm512_castps_si512(numbers);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
            let small = _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(0x7f80_0000));
            let finite = _mm512_mask_and_epi32(up, small, bits, _mm512_set1_epi32(i32::MIN));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(numbers, numbers);
            let all = _mm512_mask_or_epi32(finite, nan, bits, _mm512_set1_epi32(0x40_0000));
            _mm512_castsi512_ps(_mm512_and_si512(all, _mm512_set1_epi32(0xffff_0000_u32 as i32)))
        })
    }
    #[inline(always)]
    fn bf16_joined(self, low: __m512, high: __m512) -> __m512 {
        vector!({
            let low = _mm512_srli_epi32::<16>(_mm512_castps_si512(low));
            _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_castps_si512(high)))
        })
    }
    #[inline(always)]
    fn separated(self, first: __m512, second: __m512) -> (__m512, __m512) {
        vector!({
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
            (_mm512_permutex2var_ps(first, even, second), _mm512_permutex2var_ps(first, odd, second))
        })
    }
    #[inline(always)]
    fn bf16_halves(self, pairs: __m512) -> (__m512, __m512) {
        vector!({
            let pairs = _mm512_castps_si512(pairs);
            let high = _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            (_mm512_castsi512_ps(high), _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)))
        })
    }
    #[inline(always)]
    fn bf16_add_products(self, a: __m512, b: __m512, sums: __m512) -> __m512 {
        if BF16 {
            vector!(_mm512_dpbf16_ps(sums, bf16_of(a), bf16_of(b)))
        } else {
            bf16::add_products(self, a, b, sums)
        }
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
