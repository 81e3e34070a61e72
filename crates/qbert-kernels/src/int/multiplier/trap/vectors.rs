//! What AVX-VNNI's `vpdpbusd` does to the vector registers that Linux has saved for the interrupted thread.
//!
//! The kernel writes them as `xsave` does, in its standard format: first the layout of `fxsave` with the lower halves of
//! the 256-bit registers, then a header that says which components are there, then the components. What the handler
//! changes there is in the registers when the thread goes on.

use std::arch::x86_64::__cpuid_count;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A component of the saved state, by its bit in the header, which has the 256-bit registers' halves.
const LOWER: u64 = 1 << 1;
const UPPER: u64 = 1 << 2;
/// The upper halves of the first sixteen 512-bit registers.
const BEYOND: u64 = 1 << 6;

// Places in the area, from its start.
const LOWER_HALVES: usize = 160;
const SOFTWARE: usize = 464;
const HEADER: usize = 512;
const UPPER_HALVES: usize = 576;

/// What the kernel writes at [`SOFTWARE`] when the area is not that of `fxsave` alone.
const EXTENDED: u32 = 0x4650_5853;

const REGISTERS: usize = 16;
const HALF: usize = 16;

/// Where the upper halves of 512-bit registers are; the CPU decides.
static BEYOND_HALVES: AtomicUsize = AtomicUsize::new(0);

/// Asks the CPU for places in the area, because a handler should not: virtual machines take long to answer.
pub(super) fn prepare() {
    // Sub-leaf 6 describes the component; its place is 0 where the CPU has no AVX-512.
    BEYOND_HALVES.store(__cpuid_count(0xD, 6).ebx as usize, Ordering::Relaxed);
}

/// The saved registers of the interrupted thread.
pub(super) struct Vectors {
    area: *mut u8,
}

impl Vectors {
    /// The registers in an area, or `None` when it has no 256-bit registers.
    ///
    /// # Safety
    /// The area must be the one that Linux has handed to this handler, and not be used otherwise while the result lives.
    pub(super) unsafe fn new(area: *mut u8) -> Option<Self> {
        if area.is_null() {
            return None;
        }
        // SAFETY: an area has at least 512 bytes; four at this place are for software.
        let magic = unsafe { area.add(SOFTWARE).cast::<u32>().read_unaligned() };
        // SAFETY: as above; the components that the kernel has saved follow 8 bytes later.
        let saved = unsafe { area.add(SOFTWARE + 8).cast::<u64>().read_unaligned() };
        (magic == EXTENDED && saved & (LOWER | UPPER) == LOWER | UPPER).then_some(Self { area })
    }

    /// Which components are not in their initial state, zero.
    fn components(&mut self) -> &mut u64 {
        // SAFETY: the extended area has a header of 64 bytes, aligned as the area is, which begins with this.
        unsafe { &mut *self.area.add(HEADER).cast::<u64>() }
    }

    fn halves(&mut self, place: usize) -> &mut [[u8; HALF]; REGISTERS] {
        // SAFETY: both components are in the area (`new`), at these places in the standard format.
        unsafe { &mut *self.area.add(place).cast() }
    }

    /// A 256-bit register.
    pub(super) fn read(&mut self, register: usize) -> [u8; 2 * HALF] {
        let present = *self.components();
        let mut bytes = [0; 2 * HALF];
        for (part, (component, place)) in [(LOWER, LOWER_HALVES), (UPPER, UPPER_HALVES)].into_iter().enumerate() {
            if present & component != 0 {
                bytes[part * HALF..][..HALF].copy_from_slice(&self.halves(place)[register]);
            }
        }
        bytes
    }

    /// Changes a 256-bit register, and makes the bits beyond it zero, as every instruction of AVX does.
    pub(super) fn write(&mut self, register: usize, bytes: [u8; 2 * HALF]) {
        for (part, (component, place)) in [(LOWER, LOWER_HALVES), (UPPER, UPPER_HALVES)].into_iter().enumerate() {
            if *self.components() & component == 0 {
                self.halves(place).fill([0; HALF]);
                *self.components() |= component;
            }
            self.halves(place)[register].copy_from_slice(&bytes[part * HALF..][..HALF]);
        }
        let beyond = BEYOND_HALVES.load(Ordering::Relaxed);
        if *self.components() & BEYOND != 0 && beyond != 0 {
            // SAFETY: the header says that the component is in the area, and the CPU where: 32 bytes for each register.
            unsafe { self.area.add(beyond + 32 * register).write_bytes(0, 32) };
        }
    }
}

/// `vpdpbusd`: four unsigned bytes of `a` with four signed ones of `b`, added to a 32-bit integer that wraps.
pub(super) fn dot_products(sums: [u8; 32], a: [u8; 32], b: [u8; 32]) -> [u8; 32] {
    let mut results = [0; 32];
    let factors = a.as_chunks::<4>().0.iter().zip(b.as_chunks::<4>().0);
    for ((result, before), (a, b)) in results.as_chunks_mut::<4>().0.iter_mut().zip(sums.as_chunks().0).zip(factors) {
        let products = a.iter().zip(b).map(|(&a, &b)| i32::from(a) * i32::from(b.cast_signed()));
        *result = i32::from_le_bytes(*before).wrapping_add(products.sum()).to_le_bytes();
    }
    results
}
