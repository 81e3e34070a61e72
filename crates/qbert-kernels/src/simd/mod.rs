//! The vector instruction sets behind one trait, so that every kernel is written once.
//!
//! A kernel is a struct that implements [`Kernel`]. Its body is generic over [`Simd`] and `#[inline(always)]`, and
//! [`Simd::vectorize`] runs it inside a function that is compiled with the instruction set's features. A value of a `Simd`
//! type proves that the CPU has those features: only [`Simd::detect`] makes one. Every `unsafe` call of an intrinsic in
//! the implementations relies on that.
//!
//! Adding an instruction set is a file here and a line in the list below. Callers outside this crate see
//! [`crate::Kernels`].

#[cfg(target_arch = "x86_64")]
use crate::amx::Hardware;
#[cfg(test)]
use crate::amx::Software;
#[cfg(any(test, target_arch = "x86_64"))]
use crate::amx::Tiled;
#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))]
use crate::amx::TrappedBf16;
use crate::implementations::implementations;

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
mod bf16;
mod fused;
mod lanes;
pub(crate) mod loops;
pub(crate) mod math;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
pub(crate) mod portable;

implementations! {
    /// An instruction set that this CPU has.
    enum InstructionSet, dispatch $with_set;
    Avx512: avx512::Avx512 = "avx512" if "x86_64";
    Avx2: avx2::Avx2 = "avx2" if "x86_64";
    Neon: neon::Neon = "neon" if "aarch64";
    // Four lanes and a tile taller than a vector, as NEON has: shows that no kernel relies on wider vectors.
    #[cfg(test)] Narrow: portable::Narrow = "narrow";
    // Sixteen lanes, as AVX-512 has: runs its paths through every kernel on CPUs without it.
    #[cfg(test)] Wide: portable::Wide = "wide";
    Portable: portable::Portable = "portable";
}

implementations! {
    /// What multiplies matrices of bf16. The first two have instructions for it; the others compute the bits of the second
    /// one with two fused multiply-adds.
    enum Bf16Set, dispatch $with_bf16_set;
    Amx: Tiled<Hardware, avx512::Avx512Bf16> = "amx-bf16" if "x86_64";
    Avx512Bf16: avx512::Avx512Bf16 = "avx512-bf16" if "x86_64";
    Avx512: avx512::Avx512 = "avx512" if "x86_64";
    Avx2: avx2::Avx2 = "avx2" if "x86_64";
    Neon: neon::Neon = "neon" if "aarch64";
    #[cfg(test)] Narrow: portable::Narrow = "narrow";
    #[cfg(test)] Wide: portable::Wide = "wide";
    Portable: portable::Portable = "portable";
    // The blocks and edges of AMX on any CPU, and its instructions, emulated where the CPU lacks them.
    #[cfg(test)] AmxSoftware: Tiled<Software, portable::Wide> = "amx-bf16-software";
    #[cfg(all(test, target_os = "linux"))] AmxTrapped: TrappedBf16 = "amx-bf16-trapped" if "x86_64";
}
#[expect(
    clippy::single_component_path_imports,
    reason = "this is how a macro becomes visible outside of its module"
)]
pub(crate) use {with_bf16_set, with_set};

impl Bf16Set {
    /// What goes with the float kernels of `set`; AMX's tiles only where they are allowed.
    pub(crate) fn best_for(set: InstructionSet, tiles: bool) -> Self {
        let supported = Self::supported();
        let best = supported.iter().find(|own| Self::goes_with(own.name(), set.name(), tiles));
        best.copied().unwrap_or(Self::Portable(portable::Portable::ANYWHERE))
    }

    /// Whether the entry of this name may be chosen for a float set.
    pub(crate) fn goes_with(name: &str, set: &str, tiles: bool) -> bool {
        match name {
            "amx-bf16" => tiles && set == "avx512",
            _ => name.strip_suffix("-bf16").unwrap_or(name) == set,
        }
    }

    /// Whether an instruction multiplies bf16, so that it is faster than f32.
    pub(crate) fn is_native(self) -> bool {
        self.name().ends_with("-bf16")
    }
}

/// Runs `kernel` on one instruction set.
#[inline]
pub(crate) fn run_on<K: Kernel>(set: InstructionSet, kernel: K) -> K::Output {
    with_set!(set, simd => vectorize(simd, kernel))
}

/// Runs `kernel` with the features of one instruction set.
#[inline(always)]
pub(crate) fn vectorize<S: Simd, K: Kernel>(simd: S, kernel: K) -> K::Output {
    const {
        assert!(S::LANES.is_power_of_two() && S::LANES <= MAX_LANES);
        assert!(0 < S::TILE_ROWS && S::TILE_ROWS <= MAX_TILE_ROWS);
    }
    simd.vectorize(kernel)
}

/// The longest vector: `LANES` is a power of two up to this, so that it divides every block that kernels cut their data
/// into. Buffers on the stack are sized by it. Raise it for an instruction set with longer vectors.
pub(crate) const MAX_LANES: usize = 16;

/// The lanes that sums are spread over, on every instruction set: a float sum depends on its order, so the order must
/// not depend on `LANES`. Sets with shorter vectors take several ([`loops::LaneSums`]).
pub(crate) const SUM_LANES: usize = 16;
const _: () = assert!(MAX_LANES <= SUM_LANES);

/// The tallest GEMM micro-tile. Raise it, and extend the list in `gemm/tile.rs`, for a taller one.
pub(crate) const MAX_TILE_ROWS: usize = 12;

/// A computation that can run on any instruction set.
///
/// Running one is safe: a kernel that holds addresses has an `unsafe` constructor, where the promises are made.
///
/// `run` must be `#[inline(always)]` in every implementation: otherwise its body is compiled without the instruction
/// set's features and every intrinsic becomes a function call.
pub(crate) trait Kernel {
    type Output;
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// A block of `rows × cols` floats (each at most `LANES`) whose transpose goes elsewhere, by address: `cols` rows of
/// `LANES` floats, zero beyond `rows`.
#[derive(Clone, Copy)]
pub(crate) struct Transpose {
    pub(crate) source: *const f32,
    /// Floats between rows of the source.
    pub(crate) source_row: usize,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) target: *mut f32,
    /// Floats between rows of the target.
    pub(crate) target_row: usize,
}

/// One instruction set: vectors of `LANES` 32-bit floats or integers.
///
/// Every set gives the same bits: an operation rounds once, as IEEE 754 says, nothing is flushed to zero, and sums have
/// one order (see [`SUM_LANES`]). Only the sign and the payload of a NaN may differ.
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    type F32: Copy;
    type U32: Copy;
    /// At most [`MAX_LANES`].
    const LANES: usize;
    /// Rows of the GEMM micro-tile that fit the register file (each two vectors wide), at most [`MAX_TILE_ROWS`].
    const TILE_ROWS: usize;

    /// The proof that the CPU has this instruction set, or `None`.
    fn detect() -> Option<Self>;

    /// Runs `kernel` with this instruction set's features enabled.
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output;

    /// The same in a separate function that is never inlined: for inner loops that fill the register file, so that the
    /// code around them does not take registers from them.
    fn vectorize_apart<K: Kernel>(self, kernel: K) -> K::Output;

    fn splat(self, value: f32) -> Self::F32;
    fn add(self, a: Self::F32, b: Self::F32) -> Self::F32;
    fn sub(self, a: Self::F32, b: Self::F32) -> Self::F32;
    fn mul(self, a: Self::F32, b: Self::F32) -> Self::F32;
    fn div(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// Lane by lane `if a > b { a } else { b }`: the second operand when either is NaN, or both are zero.
    fn max(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// Lane by lane `if a < b { a } else { b }`: the second operand when either is NaN, or both are zero.
    fn min(self, a: Self::F32, b: Self::F32) -> Self::F32;
    fn sqrt(self, a: Self::F32) -> Self::F32;
    fn abs(self, a: Self::F32) -> Self::F32;
    /// `a * b + c`, rounded once.
    fn mul_add(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32;
    /// `c - a * b`, rounded once.
    fn neg_mul_add(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32;
    /// Lane by lane `if a < b { yes } else { no }`; a NaN in `a` or `b` gives `no`.
    fn select_less(self, a: Self::F32, b: Self::F32, yes: Self::F32, no: Self::F32) -> Self::F32;
    /// `a` in the first `count` lanes, `b` in the others.
    fn select_first(self, count: usize, a: Self::F32, b: Self::F32) -> Self::F32;
    /// The nearest integer, ties to even, of numbers within ±2^22; the sign of a zero stays.
    fn round(self, a: Self::F32) -> Self::F32;
    /// `a · 2^n` for integer-valued `n` in -126..=127.
    fn mul_exp2_integer(self, a: Self::F32, n: Self::F32) -> Self::F32;
    /// The sum of all lanes by a tree: the upper half is added to the lower half until one is left.
    fn reduce_sum(self, a: Self::F32) -> f32;
    /// The largest lane; unspecified if one is NaN.
    fn reduce_max(self, a: Self::F32) -> f32;

    fn splat_u32(self, value: u32) -> Self::U32;
    /// `[start, start + 1, …]`, wrapping.
    fn count_from(self, start: u32) -> Self::U32;
    fn xor_u32(self, a: Self::U32, b: Self::U32) -> Self::U32;
    /// High and low halves of the 64-bit products.
    fn mul_wide_u32(self, a: Self::U32, b: Self::U32) -> (Self::U32, Self::U32);
    /// Lane by lane `if a < limit { 0.0 } else { value }`, unsigned.
    fn zero_below(self, a: Self::U32, limit: Self::U32, value: Self::F32) -> Self::F32;

    // Integers as 32-bit lanes: additions wrap, so signed and unsigned share them.
    fn add_i32(self, a: Self::U32, b: Self::U32) -> Self::U32;
    fn sub_i32(self, a: Self::U32, b: Self::U32) -> Self::U32;
    /// The larger of each pair of lanes, signed.
    fn max_i32(self, a: Self::U32, b: Self::U32) -> Self::U32;
    /// Lane by lane the nearest float, ties to even, signed.
    fn to_f32(self, a: Self::U32) -> Self::F32;
    /// The nearest integers, ties to even, of numbers within ±2^22.
    fn to_i32(self, a: Self::F32) -> Self::U32;
    fn reduce_add_i32(self, a: Self::U32) -> i32;
    fn reduce_max_i32(self, a: Self::U32) -> i32;
    /// # Safety
    /// `LANES` integers must be readable at `pointer` (no alignment needed).
    unsafe fn load_i32_ptr(self, pointer: *const i32) -> Self::U32;
    /// Signed bytes, one per lane.
    ///
    /// # Safety
    /// `LANES` bytes must be readable at `pointer`.
    unsafe fn load_i8_ptr(self, pointer: *const i8) -> Self::U32;
    /// Unsigned bytes as floats.
    ///
    /// # Safety
    /// `LANES` bytes must be readable at `pointer`.
    unsafe fn load_u8_as_f32_ptr(self, pointer: *const u8) -> Self::F32;
    /// Writes lanes in -128..=127 as bytes.
    ///
    /// # Safety
    /// `LANES` bytes must be writable at `pointer`.
    unsafe fn store_i8_ptr(self, pointer: *mut i8, value: Self::U32);

    /// # Safety
    /// `LANES` floats must be readable at `pointer` (no alignment needed).
    unsafe fn load_ptr(self, pointer: *const f32) -> Self::F32;
    /// # Safety
    /// `LANES` floats must be writable at `pointer` (no alignment needed).
    unsafe fn store_ptr(self, pointer: *mut f32, value: Self::F32);
    /// The first `count` lanes from memory, the others zero.
    ///
    /// # Safety
    /// `count <= LANES` floats must be readable at `pointer`.
    unsafe fn load_first_ptr(self, pointer: *const f32, count: usize) -> Self::F32;
    /// # Safety
    /// `count <= LANES` floats must be writable at `pointer`.
    unsafe fn store_first_ptr(self, pointer: *mut f32, count: usize, value: Self::F32);

    /// Numbers as bf16, two to a lane: those of `low` in the lower halves, those of `high` in the upper ones. Rounded to
    /// nearest, ties to even; subnormal numbers become zero. The result is bits: it may be moved, but not computed with.
    #[inline(always)]
    fn bf16_lane_pairs(self, low: Self::F32, high: Self::F32) -> Self::F32 {
        self.bf16_joined(self.bf16_rounded(low), self.bf16_rounded(high))
    }

    /// The same for neighbours: the first two numbers of `first` in the first lane, the last two of `second` in the last.
    #[inline(always)]
    fn bf16_neighbour_pairs(self, first: Self::F32, second: Self::F32) -> Self::F32 {
        let (low, high) = self.separated(first, second);
        self.bf16_lane_pairs(low, high)
    }

    /// Numbers as bf16, still in lanes of their own: the lower halves are zero.
    #[inline(always)]
    fn bf16_rounded(self, numbers: Self::F32) -> Self::F32 {
        bf16::each_rounded(self, numbers)
    }

    /// Pairs of rounded numbers.
    #[inline(always)]
    fn bf16_joined(self, low: Self::F32, high: Self::F32) -> Self::F32 {
        bf16::joined(self, low, high)
    }

    /// The lanes of `first`, then `second`, at even places, and those at odd places.
    #[inline(always)]
    fn separated(self, first: Self::F32, second: Self::F32) -> (Self::F32, Self::F32) {
        bf16::separated(self, first, second)
    }

    /// The numbers of pairs of bf16: those in the upper halves, and those in the lower ones.
    #[inline(always)]
    fn bf16_halves(self, pairs: Self::F32) -> (Self::F32, Self::F32) {
        bf16::halves(self, pairs)
    }

    /// `sums` plus the products of two pairs of bf16 in every lane: the upper ones are added first, then the lower ones,
    /// each rounded once, and a sum below the smallest normal number becomes zero. That is what x86 CPUs with
    /// AVX512-BF16 compute.
    #[inline(always)]
    fn bf16_add_products(self, a: Self::F32, b: Self::F32, sums: Self::F32) -> Self::F32 {
        bf16::add_products(self, a, b, sums)
    }

    /// Prefetches the cache line at an address, which need not be valid.
    #[inline(always)]
    fn prefetch(self, _address: *const f32) {}

    /// The same into the second-level cache only.
    #[inline(always)]
    fn prefetch_far(self, _address: *const f32) {}

    /// Transposes one block; see [`Transpose`].
    ///
    /// # Safety
    /// The block's source must be readable and its target writable, without overlap.
    #[inline(always)]
    unsafe fn transpose_block(self, block: Transpose) {
        let Transpose { source, source_row, rows, cols, target, target_row } = block;
        for j in 0..cols {
            for i in 0..Self::LANES {
                // SAFETY: i < rows and j < cols where the source is read, j < cols and i < LANES
                // where the target is written.
                unsafe {
                    let value = if i < rows { *source.add(i * source_row + j) } else { 0.0 };
                    *target.add(j * target_row + i) = value;
                }
            }
        }
    }

    /// The first `LANES` elements of a slice; panics when it is shorter.
    #[inline(always)]
    fn load(self, source: &[f32]) -> Self::F32 {
        assert!(source.len() >= Self::LANES);
        // SAFETY: the slice holds at least LANES floats.
        unsafe { self.load_ptr(source.as_ptr()) }
    }

    /// Writes the first `LANES` elements of a slice; panics when it is shorter.
    #[inline(always)]
    fn store(self, target: &mut [f32], value: Self::F32) {
        assert!(target.len() >= Self::LANES);
        // SAFETY: the slice holds at least LANES floats.
        unsafe { self.store_ptr(target.as_mut_ptr(), value) }
    }

    /// All elements of a slice no longer than `LANES`, padded with zeros.
    #[inline(always)]
    fn load_partial(self, source: &[f32]) -> Self::F32 {
        assert!(source.len() <= Self::LANES);
        // SAFETY: exactly the slice's own elements are read.
        unsafe { self.load_first_ptr(source.as_ptr(), source.len()) }
    }

    /// Fills a slice no longer than `LANES` from the first lanes.
    #[inline(always)]
    fn store_partial(self, target: &mut [f32], value: Self::F32) {
        assert!(target.len() <= Self::LANES);
        // SAFETY: exactly the slice's own elements are written.
        unsafe { self.store_first_ptr(target.as_mut_ptr(), target.len(), value) }
    }
}
