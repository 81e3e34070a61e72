//! Which integer kernels there are, and which one runs.
//!
//! A multiplier computes tiles of sums ([`Tile`]) and widens packed codes for them. Adding one is a file with a type
//! that implements [`Multiply`], and a line in the list below. All multipliers give the same integers.

mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx_vnni;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
mod neon_dotprod;
#[cfg(target_arch = "aarch64")]
mod neon_i8mm;
mod portable;
#[cfg(test)]
mod rearranged;
#[cfg(any(test, target_arch = "aarch64"))]
mod row_pairs;
#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))]
pub(crate) mod trap;
#[cfg(target_arch = "x86_64")]
mod vnni;

use super::layout::{BLOCK_CELLS, CELL, block_bytes};
use super::tile::{Rows, Tile, TileAddresses};
use crate::error::KernelError;
use crate::implementations::implementations;
use crate::simd::InstructionSet;
use portable::Portable;

/// Calls `function::<BITS>(packed, cells)` for a width below 8, which is thus a constant there; 8-bit codes are copied.
macro_rules! widen_by_width {
    ($bits:expr, $function:ident($packed:ident, $cells:ident)) => {
        match $bits {
            1 => $function::<1>($packed, $cells),
            2 => $function::<2>($packed, $cells),
            3 => $function::<3>($packed, $cells),
            4 => $function::<4>($packed, $cells),
            5 => $function::<5>($packed, $cells),
            6 => $function::<6>($packed, $cells),
            7 => $function::<7>($packed, $cells),
            _ => $cells.copy_from_slice($packed),
        }
    };
}
// The portable code does not need it, and is all that some architectures have.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use widen_by_width;

/// How many cells [`Multiply::padded_steps`] may add: their codes, 60 bytes, fit the space after a matrix of codes.
const MOST_PADDING: usize = 15;

/// An integer kernel. A value is the proof that the CPU can run it.
///
/// The trait says nothing of vectors: an implementation may walk a tile in any order, and keep the widened codes and the
/// rows of activations in orders of its own.
pub(super) trait Multiply: Copy {
    /// Whether the kernel reads codes in another order than the stored cells have. Then [`Multiply::rearrange`] is
    /// called on all cells, and 8-bit weights are copied instead of read in place.
    const OWN_ORDER: bool = false;

    /// Whether the kernel reads rows of activations in another order than they are stored. Then [`Multiply::arrange`] is
    /// called once for each tile of rows, before that tile meets any panel of weights.
    const OWN_ROWS: bool = false;

    /// The proof, or `None` when the CPU lacks the instructions.
    fn detect() -> Option<Self>;

    /// The weakest instruction set of the float kernels with which this kernel is chosen by itself.
    fn instruction_set(self) -> InstructionSet;

    /// Rows of a full tile for codes of this width. Any number up to this must work.
    fn rows(self, bits: u8) -> usize;

    /// The number of cells that a product of `steps` cells must be given: the rest are zero cells, and the codes beside
    /// them are read but do not count. At most [`MOST_PADDING`] more; a padded number stays as it is.
    fn padded_steps(self, steps: usize) -> usize {
        steps
    }

    /// Called on a thread before its products. Other code may have run on it since the last [`Multiply::end`].
    fn begin(self) {}

    /// Called on a thread after its products: it may do something else now, or nothing for long.
    fn end(self) {}

    /// Widens the blocks of one tile of packed codes to a byte per code, cell after cell. `packed` is whole blocks, and
    /// `cells` has exactly their size.
    fn widen(self, bits: u8, packed: &[u8], cells: &mut [u8]);

    /// Puts the cells of one tile of neurons, any number of them, into the kernel's own order.
    fn rearrange(self, _bits: u8, _cells: &mut [u8]) {}

    /// Bytes that a full tile of rows takes in the kernel's own order; for [`Multiply::OWN_ROWS`] only.
    fn arranged_bytes(self, _steps: usize) -> usize {
        0
    }

    /// Writes the rows of one tile in the kernel's own order; for [`Multiply::OWN_ROWS`] only. `arranged` has
    /// [`Multiply::arranged_bytes`], of arbitrary content.
    fn arrange(self, _rows: Rows<'_>, _arranged: &mut [i8]) {}

    /// Computes one tile.
    ///
    /// # Safety
    /// As [`TileAddresses`] says; the tile has at least one row and at most [`Multiply::rows`].
    unsafe fn multiply(self, tile: &TileAddresses);
}

implementations! {
    /// A multiplier that this CPU has.
    enum Choice, dispatch $with_multiplier;
    Amx: amx::Amx<amx::Hardware, vnni::Vnni> = "amx" if "x86_64";
    Vnni: vnni::Vnni = "avx512-vnni" if "x86_64";
    Avx512: avx512::Avx512Pairs = "avx512" if "x86_64";
    AvxVnni: avx_vnni::AvxVnni = "avx-vnni" if "x86_64";
    Avx2: avx2::Avx2Pairs = "avx2" if "x86_64";
    NeonI8mm: neon_i8mm::NeonI8mm = "neon-i8mm" if "aarch64";
    NeonDotprod: neon_dotprod::NeonDotprod = "neon-dotprod" if "aarch64";
    Neon: neon::NeonPairs = "neon" if "aarch64";
    Portable: portable::Portable = "portable";
    // After the portable one, so that it is chosen only by name: AMX's blocks and edges for tests on any CPU.
    AmxSoftware: amx::Amx<amx::Software, portable::Portable> = "amx-software";
    #[cfg(test)] Rearranged: rearranged::Rearranged = "rearranged";
    // The instructions of `amx` and `avx-vnni`, emulated where the CPU lacks them.
    #[cfg(all(test, target_os = "linux"))]
    AmxTrapped: trap::Trapped<amx::Amx<amx::Hardware, portable::Portable>> = "amx-trapped" if "x86_64";
    #[cfg(all(test, target_os = "linux"))]
    AvxVnniTrapped: trap::Trapped<avx_vnni::AvxVnni> = "avx-vnni-trapped" if "x86_64";
}

/// What multiplies codes of activations with codes of weights. Every multiplier gives the same integers.
///
/// [`Kernels`](crate::Kernels) brings the best one for its instruction set;
/// [`Kernels::with_multiplier`](crate::Kernels::with_multiplier) and `QBERT_KERNELS=SET+MULTIPLIER` choose another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multiplier(Choice);

impl Multiplier {
    /// The names of all multipliers on any CPU, best first.
    pub const NAMES: &'static [&'static str] = Choice::NAMES;

    /// Every multiplier this CPU can run, best first.
    pub fn supported() -> Vec<Self> {
        Choice::supported().into_iter().map(Self).collect()
    }

    /// The multiplier of this name.
    ///
    /// # Errors
    /// When there is no such multiplier, or when this CPU lacks the instructions.
    pub fn by_name(name: &str) -> Result<Self, KernelError> {
        let supported = Self::supported();
        supported.iter().find(|multiplier| multiplier.name() == name).copied().ok_or_else(|| {
            let supported = supported.iter().map(|multiplier| multiplier.name()).collect();
            KernelError::no_kernels("integer multiplier", name, Self::NAMES, supported)
        })
    }

    /// The name, one of [`Multiplier::NAMES`].
    pub fn name(self) -> &'static str {
        self.0.name()
    }

    /// The best multiplier that needs nothing beyond `set`: a user who asks for a plain instruction set gets plain
    /// multiplications too.
    pub(crate) fn best_for(set: InstructionSet) -> Self {
        let supported = Choice::supported().into_iter();
        // Instruction sets are ordered as they are listed, best first.
        let allowed = |choice: &Choice| with_multiplier!(*choice, multiplier => multiplier.instruction_set()) >= set;
        Self(supported.into_iter().find(allowed).unwrap_or(Choice::Portable(Portable)))
    }

    /// Whether it uses AMX's tiles.
    pub(crate) fn has_tiles(self) -> bool {
        self.name() == "amx"
    }

    /// Rows of a full tile for codes of this width.
    pub(super) fn rows(self, bits: u8) -> usize {
        with_multiplier!(self.0, multiplier => multiplier.rows(bits))
    }

    /// The number of cells that a product of `steps` cells must be given; the rest are zero.
    pub(super) fn padded_steps(self, steps: usize) -> usize {
        let padded = with_multiplier!(self.0, multiplier => multiplier.padded_steps(steps));
        assert!((steps..=steps + MOST_PADDING).contains(&padded), "{steps} steps padded to {padded}");
        padded
    }

    /// Products on this thread happen while the result lives.
    pub(super) fn begin(self) -> Products {
        with_multiplier!(self.0, multiplier => multiplier.begin());
        Products(self)
    }

    /// Whether 8-bit weights can be multiplied as they are stored.
    pub(super) fn reads_stored_cells(self) -> bool {
        fn own_order<M: Multiply>(_: M) -> bool {
            M::OWN_ORDER
        }
        !with_multiplier!(self.0, multiplier => own_order(multiplier))
    }

    /// Widens the blocks of one tile of packed codes to a byte per code, in the order of the stored cells.
    ///
    /// # Panics
    /// Unless `packed` is whole blocks and `cells` has exactly their size.
    pub(super) fn widen(self, bits: u8, packed: &[u8], cells: &mut [u8]) {
        let blocks = packed.len() / block_bytes(bits);
        assert!(packed.len() == blocks * block_bytes(bits) && cells.len() == blocks * BLOCK_CELLS * CELL);
        with_multiplier!(self.0, multiplier => multiplier.widen(bits, packed, cells));
    }

    /// Puts the cells of one tile of neurons into the order that [`Multiplier::multiply`] reads.
    pub(super) fn rearrange(self, bits: u8, cells: &mut [u8]) {
        assert!(cells.len().is_multiple_of(CELL), "{} bytes are not whole cells", cells.len());
        with_multiplier!(self.0, multiplier => multiplier.rearrange(bits, cells));
    }

    /// Bytes of a full tile of rows in the multiplier's own order, or `None` where it reads rows as they are stored.
    #[inline(always)]
    fn own_rows(self, steps: usize) -> Option<usize> {
        #[inline(always)]
        fn bytes<M: Multiply>(multiplier: M, steps: usize) -> Option<usize> {
            M::OWN_ROWS.then(|| multiplier.arranged_bytes(steps))
        }
        with_multiplier!(self.0, multiplier => bytes(multiplier, steps))
    }

    /// How much room [`Multiplier::arrange`] needs for a tile of rows: none where rows are read as they are stored.
    pub(super) fn arranged_bytes(self, steps: usize) -> usize {
        self.own_rows(steps).unwrap_or(0)
    }

    /// Writes the rows of one tile into `room`, if the multiplier has an order of its own.
    ///
    /// # Panics
    /// Unless there are at least [`Multiplier::arranged_bytes`] of room, and as many codes as `rows` says.
    pub(super) fn arrange(self, rows: Rows<'_>, room: &mut [i8]) {
        if let Some(bytes) = self.own_rows(rows.steps) {
            with_multiplier!(self.0, multiplier => multiplier.arrange(rows, &mut room[..bytes]));
        }
    }

    /// The rows as [`Multiplier::multiply`] reads them: the stored ones, or those that [`Multiplier::arrange`] has put into
    /// `room`.
    pub(super) fn arranged<'a>(self, rows: Rows<'a>, room: &'a [i8]) -> Rows<'a> {
        match self.own_rows(rows.steps) {
            Some(_) => Rows { codes: room, stride: 0, ..rows },
            None => rows,
        }
    }

    /// Computes one tile.
    ///
    /// # Panics
    /// When the tile has no rows or more than [`Multiplier::rows`], or a slice is too short for it.
    // Inlined, so that the tile and its addresses stay in registers: attention's tiles are small.
    #[inline(always)]
    pub(super) fn multiply(self, tile: Tile<'_>) {
        debug_assert!(self.padded_steps(tile.steps) == tile.steps, "{} steps are not padded", tile.steps);
        let most_rows = self.rows(tile.bits);
        let own_rows = self.own_rows(tile.steps);
        let addresses = tile.checked(most_rows, own_rows);
        // SAFETY: the addresses were checked, and the tile's slices stay borrowed until here.
        unsafe { with_multiplier!(self.0, multiplier => multiplier.multiply(&addresses)) };
    }
}

/// A thread's permission to multiply, from [`Multiplier::begin`] on until it is dropped.
pub(super) struct Products(Multiplier);

impl Drop for Products {
    fn drop(&mut self) {
        with_multiplier!(self.0.0, multiplier => multiplier.end());
    }
}
