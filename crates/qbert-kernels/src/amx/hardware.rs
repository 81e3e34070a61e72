//! The tile unit itself. Its intrinsics are not stable in Rust, so every instruction is a line of `asm!`.
//!
//! Linux gives a process its tiles only when it asks; [`TileUnit::detect`] does so. CPUID's leaf 0x1D, which
//! describes the tiles, is not asked: virtual machines hide it, and palette 1 is eight tiles of 16 rows of 64 bytes by
//! definition.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::cell::Cell;
use std::sync::OnceLock;

use super::{ROW_BYTES, Shape, TileNumbers, TileUnit};
#[cfg(all(test, target_os = "linux"))]
use crate::int::trap::Handler;

/// Proof that the CPU has AMX, that the system lets this process use it, and that it computes the right sums of the numbers
/// that were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Hardware(());

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Configuration {
    fn new(shape: Shape) -> Self {
        let rows: [u8; 16] = std::array::from_fn(|tile| if tile < 8 { shape.rows(tile) } else { 0 });
        // A tile without rows must not have columns either.
        let row_bytes = rows.map(|rows| if rows == 0 { 0 } else { ROW_BYTES as u16 });
        Self { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
    }
}

const _: () = assert!(size_of::<Configuration>() == 64);

thread_local! {
    /// The shape that this thread's tiles have. A thread's tiles are the CPU's registers: the system keeps them apart.
    static SHAPE: Cell<Option<Shape>> = const { Cell::new(None) };
}

#[cfg(all(test, target_os = "linux"))]
impl Hardware {
    /// The unit where the CPU has none: every instruction is refused, and then emulated.
    pub(crate) fn trapped(_: Handler) -> Self {
        // Otherwise some instructions would run and others be refused, and they would not share their tiles.
        assert!(!cpu_has_tiles(), "this CPU has AMX, but Linux refuses its use, or its sums are wrong");
        Self(())
    }

    /// What `sttilecfg` writes: the configuration of this thread's tiles, or zeros.
    pub(crate) fn stored_configuration(self) -> [u8; 64] {
        let mut bytes = [0xFF; 64];
        // SAFETY: the instruction writes 64 bytes; there is a unit, so that it is executed or emulated.
        unsafe { asm!("sttilecfg [{}]", in(reg) bytes.as_mut_ptr(), options(nostack, preserves_flags)) };
        bytes
    }
}

impl TileUnit for Hardware {
    fn detect(numbers: TileNumbers, is_right: fn(Self) -> bool) -> Option<Self> {
        static BYTES: OnceLock<bool> = OnceLock::new();
        static BF16: OnceLock<bool> = OnceLock::new();
        let known = match numbers {
            TileNumbers::Bytes => &BYTES,
            TileNumbers::Bf16 => &BF16,
        };
        let unit = Self(());
        known.get_or_init(|| cpu_multiplies(numbers) && ask_for_tiles() && is_right(unit)).then_some(unit)
    }

    fn forget(self) {
        SHAPE.set(None);
    }

    #[inline(always)]
    fn configure(self, shape: Shape) {
        if SHAPE.get() != Some(shape) {
            SHAPE.set(Some(shape));
            let configuration = Configuration::new(shape);
            // SAFETY: the proof says that the instruction may be executed; it reads 64 bytes.
            unsafe {
                asm!(
                    "ldtilecfg [{}]", in(reg) &raw const configuration,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack, preserves_flags),
                );
            }
        }
    }

    fn release(self) {
        SHAPE.set(None);
        // SAFETY: the proof says that the instruction may be executed; it touches tiles only.
        unsafe {
            asm!(
                "tilerelease",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nomem, nostack, preserves_flags),
            );
        }
    }

    #[inline(always)]
    unsafe fn zero<const T: usize>(self) {
        // SAFETY: the proof says that the instruction may be executed; it touches one tile only.
        unsafe { asm!("tilezero tmm{tile}", tile = const T, options(nomem, nostack, preserves_flags)) };
    }

    #[inline(always)]
    unsafe fn load_rows<const T: usize>(self, rows: *const u8, stride: usize) {
        // SAFETY: the proof says that the instruction may be executed, and the caller promises the rows. No compiled code
        // uses tiles, so that their content stays from one instruction to the next.
        unsafe {
            asm!("tileloadd tmm{tile}, [{rows} + {stride}]", tile = const T, rows = in(reg) rows, stride = in(reg) stride,
                options(nostack, preserves_flags, readonly));
        }
    }

    #[inline(always)]
    unsafe fn multiply_bytes<const SUMS: usize, const ROWS: usize, const WEIGHTS: usize>(self) {
        // SAFETY: as above.
        unsafe {
            asm!("tdpbsud tmm{sums}, tmm{rows}, tmm{weights}", sums = const SUMS, rows = const ROWS, weights = const WEIGHTS,
                options(nomem, nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn multiply_bf16<const SUMS: usize, const ROWS: usize, const COLUMNS: usize>(self) {
        // SAFETY: as above.
        unsafe {
            asm!("tdpbf16ps tmm{sums}, tmm{rows}, tmm{columns}", sums = const SUMS, rows = const ROWS,
                columns = const COLUMNS, options(nomem, nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn store_sums<const T: usize>(self, sums: *mut i32, stride: usize) {
        // SAFETY: as above.
        unsafe {
            asm!("tilestored [{sums} + {stride}], tmm{tile}", tile = const T, sums = in(reg) sums,
                stride = in(reg) stride * size_of::<i32>(), options(nostack, preserves_flags));
        }
    }
}

// CPUID's leaf 7 names the instructions in these bits of edx.
const AMX_BF16: u32 = 1 << 22;
const AMX_TILE: u32 = 1 << 24;
const AMX_INT8: u32 = 1 << 25;

/// Whether the CPU multiplies tiles of these numbers.
fn cpu_multiplies(numbers: TileNumbers) -> bool {
    let feature = match numbers {
        TileNumbers::Bytes => AMX_INT8,
        TileNumbers::Bf16 => AMX_BF16,
    };
    cpu_has_tiles() && __cpuid_count(7, 0).edx & feature != 0
}

/// Whether the CPU has tiles and the system saves them between threads.
pub(crate) fn cpu_has_tiles() -> bool {
    const OSXSAVE: u32 = 1 << 27;
    /// Configuration and content of tiles.
    const STATE: u64 = 1 << 17 | 1 << 18;
    let saves_state = __cpuid(1).ecx & OSXSAVE != 0;
    if !saves_state || __cpuid(0).eax < 7 {
        return false;
    }
    // SAFETY: OSXSAVE says that the instruction exists.
    __cpuid_count(7, 0).edx & AMX_TILE != 0 && unsafe { _xgetbv(0) } & STATE == STATE
}

/// Asks Linux for the use of tiles by all threads of this process. It may refuse, for example when a thread has a signal
/// stack that is too small for them.
#[cfg(target_os = "linux")]
pub(crate) fn ask_for_tiles() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const TILE_DATA: u64 = 18;
    let result: i64;
    // SAFETY: the call changes nothing but this permission; a system call overwrites rcx and r11 only.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM, in("rsi") TILE_DATA,
            out("rcx") _, out("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn ask_for_tiles() -> bool {
    false
}
