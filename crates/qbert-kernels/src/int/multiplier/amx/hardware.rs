//! The tile unit itself. Its intrinsics are not stable in Rust, so every instruction is a line of `asm!`.
//!
//! Linux gives a process its tiles only when it asks; [`TileUnit::detect`] does so once. CPUID's leaf 0x1D, which
//! describes the tiles, is not asked: virtual machines hide it, and palette 1 is eight tiles of 16 rows of 64 bytes by
//! definition.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::cell::Cell;
use std::sync::OnceLock;

#[cfg(all(test, target_os = "linux"))]
use super::super::trap::Handler;
use super::{ROW_BYTES, Shape, TileUnit, agrees_with_software};

/// Proof that the CPU has AMX with bytes, that the system lets this process use it, and that it computes the right sums.
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
    pub(super) fn trapped(_: Handler) -> Self {
        // Otherwise some instructions would run and others be refused, and they would not share their tiles.
        assert!(!cpu_has_tiles(), "this CPU has AMX, but Linux refuses its use, or its sums are wrong");
        Self(())
    }
}

impl TileUnit for Hardware {
    fn detect() -> Option<Self> {
        static PERMITTED: OnceLock<bool> = OnceLock::new();
        let unit = Self(());
        PERMITTED.get_or_init(|| cpu_has_tiles() && ask_for_tiles() && agrees_with_software(unit)).then_some(unit)
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
    unsafe fn load_rows<const T: usize>(self, rows: *const u8, stride: usize) {
        // SAFETY: the proof says that the instruction may be executed, and the caller promises the rows. No compiled code
        // uses tiles, so that their content stays from one instruction to the next.
        unsafe {
            asm!("tileloadd tmm{tile}, [{rows} + {stride}]", tile = const T, rows = in(reg) rows, stride = in(reg) stride,
                options(nostack, preserves_flags, readonly));
        }
    }

    #[inline(always)]
    unsafe fn multiply<const SUMS: usize, const ROWS: usize, const WEIGHTS: usize>(self) {
        // SAFETY: as above.
        unsafe {
            asm!("tdpbsud tmm{sums}, tmm{rows}, tmm{weights}", sums = const SUMS, rows = const ROWS, weights = const WEIGHTS,
                options(nomem, nostack, preserves_flags));
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

/// Whether the CPU has tiles of bytes and the system saves them between threads.
pub(super) fn cpu_has_tiles() -> bool {
    const OSXSAVE: u32 = 1 << 27;
    const AMX_TILE: u32 = 1 << 24;
    const AMX_INT8: u32 = 1 << 25;
    /// Configuration and content of tiles.
    const STATE: u64 = 1 << 17 | 1 << 18;
    let saves_state = __cpuid(1).ecx & OSXSAVE != 0;
    if !saves_state || __cpuid(0).eax < 7 {
        return false;
    }
    let features = __cpuid_count(7, 0).edx;
    // SAFETY: OSXSAVE says that the instruction exists.
    features & AMX_TILE != 0 && features & AMX_INT8 != 0 && unsafe { _xgetbv(0) } & STATE == STATE
}

/// Asks Linux for the use of tiles by all threads of this process. It may refuse, for example when a thread has a signal
/// stack that is too small for them.
#[cfg(target_os = "linux")]
pub(super) fn ask_for_tiles() -> bool {
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
pub(super) fn ask_for_tiles() -> bool {
    false
}
