//! Instructions that this CPU lacks, executed in tests.
//!
//! A CPU refuses an instruction that it does not know, and Linux sends SIGILL. The handler here decodes the instruction
//! at that address, computes what Intel's manual says on the registers and the memory of the interrupted thread, and lets
//! the thread go on behind it. So the very bytes that the compiler makes of `asm!` and intrinsics are executed, with
//! their operands and addresses; only the arithmetic is this module's. A manual's refusals (`#GP`, `#UD`) end the process
//! with a message.
//!
//! Where the CPU has the instructions, nothing is refused and they run natively. Nothing can be learnt here about speed.

mod handler;
mod tests;
mod tiles;
mod vectors;

use super::Multiply;
use crate::int::tile::{Rows, TileAddresses};
use crate::simd::InstructionSet;
pub(super) use handler::configurations;
pub(crate) use handler::{Handler, emulated};

/// A multiplier whose instructions run natively where the CPU has them, and are emulated elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Trapped<M>(M);

/// A multiplier whose instructions the handler knows.
pub(super) trait Trappable: Multiply {
    /// The multiplier without the instructions in question, or `None` where the CPU lacks others that it needs.
    fn trapped(handler: Handler) -> Option<Self>;
}

impl<M: Trappable> Multiply for Trapped<M> {
    const OWN_ORDER: bool = M::OWN_ORDER;
    const OWN_ROWS: bool = M::OWN_ROWS;

    fn detect() -> Option<Self> {
        M::detect().or_else(|| M::trapped(Handler::install())).map(Self)
    }

    fn instruction_set(self) -> InstructionSet {
        self.0.instruction_set()
    }

    fn rows(self, bits: u8) -> usize {
        self.0.rows(bits)
    }

    fn padded_steps(self, steps: usize) -> usize {
        self.0.padded_steps(steps)
    }

    fn begin(self) {
        self.0.begin();
    }

    fn end(self) {
        self.0.end();
    }

    fn widen(self, bits: u8, packed: &[u8], cells: &mut [u8]) {
        self.0.widen(bits, packed, cells);
    }

    fn rearrange(self, bits: u8, cells: &mut [u8]) {
        self.0.rearrange(bits, cells);
    }

    fn arranged_bytes(self, steps: usize) -> usize {
        self.0.arranged_bytes(steps)
    }

    fn arrange(self, rows: Rows<'_>, arranged: &mut [i8]) {
        self.0.arrange(rows, arranged);
    }

    unsafe fn multiply(self, tile: &TileAddresses) {
        // SAFETY: passed on from the caller.
        unsafe { self.0.multiply(tile) }
    }
}
