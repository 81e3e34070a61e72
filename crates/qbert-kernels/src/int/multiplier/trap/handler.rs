//! The handler of SIGILL: decodes the refused instruction, finds its operands, has it computed, and steps over it.
//!
//! It runs in the middle of anything, so it takes no memory and no locks. What a thread's tiles hold is in a thread-local
//! without initialisation or destructor.

use std::cell::UnsafeCell;
use std::fmt::{self, Write};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use iced_x86::{Code, Decoder, DecoderError, DecoderOptions, Instruction, OpKind, Register};

use super::tiles::{Fault, Tiles};
use super::vectors::{Vectors, dot_products, prepare};

/// Proof that SIGILL is handled here.
#[derive(Clone, Copy)]
pub(crate) struct Handler(());

/// How many instructions were emulated, on all threads.
static EMULATED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The tiles of a thread.
    static TILES: UnsafeCell<Tiles> = const { UnsafeCell::new(Tiles::new()) };
}

/// How many instructions were emulated in this process so far.
pub(crate) fn emulated() -> u64 {
    EMULATED.load(Ordering::Relaxed)
}

/// How often this thread's tiles were configured by an emulated instruction.
pub(crate) fn configurations() -> u64 {
    // SAFETY: only the handler changes the tiles, and nothing in this line is an instruction that it handles.
    TILES.with(|tiles| unsafe { (*tiles.get()).configurations })
}

impl Handler {
    /// Handles SIGILL from now on, for all threads of this process.
    pub(crate) fn install() -> Self {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(|| {
            // The decoder makes its tables when it is first used, which takes memory: here, not in the handler.
            let tilerelease = decode(&[0xC4, 0xE2, 0x78, 0x49, 0xC0], 0).expect("a whole instruction");
            assert_eq!(tilerelease.code(), Code::VEX_Tilerelease);
            prepare();
            // SAFETY: all zeros are a valid action with an empty mask. The handler has the signature that SA_SIGINFO asks
            // for, and stays there for ever.
            let result = unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = on_illegal_instruction as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO;
                libc::sigaction(libc::SIGILL, &raw const action, std::ptr::null_mut())
            };
            assert_eq!(result, 0, "no handler of SIGILL: {}", std::io::Error::last_os_error());
        });
        Self(())
    }
}

/// The beginning of what Linux hands to a handler on x86-64. The kernel defines it, so it is the same for every C
/// library.
#[repr(C)]
struct Frame {
    flags: u64,
    link: u64,
    stack: [u64; 3],
    /// In the kernel's order: [`REGISTER_PLACES`].
    registers: [u64; 23],
    /// Where the vector registers are saved.
    vectors: *mut u8,
}

/// Where the kernel has the registers that the CPU numbers from 0 (rax) to 15 (r15).
const REGISTER_PLACES: [usize; 16] = [13, 14, 12, 11, 15, 10, 9, 8, 0, 1, 2, 3, 4, 5, 6, 7];
/// Where it has the address of the instruction.
const RIP: usize = 16;
/// No instruction is longer.
const LONGEST: usize = 15;

extern "C" fn on_illegal_instruction(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: Linux hands over such a frame, and nobody else looks at it until this function returns.
    let frame = unsafe { &mut *context.cast::<Frame>() };
    match step(frame) {
        Ok(()) => {
            EMULATED.fetch_add(1, Ordering::Relaxed);
        }
        Err(refusal) => end_process(refusal, frame.registers[RIP]),
    }
}

/// Why an instruction is not emulated.
enum Refusal {
    /// There is no such code here.
    Unknown,
    /// The CPU would refuse it, too.
    Fault(Code, Fault),
}

/// Emulates the instruction at which the thread stopped.
fn step(frame: &mut Frame) -> Result<(), Refusal> {
    let instruction = fetch(frame.registers[RIP]).ok_or(Refusal::Unknown)?;
    match instruction.code() {
        Code::VEX_Vpdpbusd_ymm_ymm_ymmm256 => execute_on_vectors(frame, &instruction)?,
        _ => execute_on_tiles(frame, &instruction)?,
    }
    frame.registers[RIP] = instruction.next_ip();
    Ok(())
}

/// The instruction at an address that the CPU has just read it from.
fn fetch(address: u64) -> Option<Instruction> {
    const PAGE: u64 = 4096;
    let read = |length: usize| {
        let first = std::ptr::with_exposed_provenance(address as usize);
        // SAFETY: the CPU has read the instruction there. What is read beyond it is in the same page, see below.
        decode(unsafe { std::slice::from_raw_parts(first, length) }, address)
    };
    // The next page may not exist, so it is read only if the instruction does not end in this one.
    let in_page = (PAGE - address % PAGE) as usize;
    read(in_page.min(LONGEST)).or_else(|| if in_page < LONGEST { read(LONGEST) } else { None })
}

fn decode(bytes: &[u8], address: u64) -> Option<Instruction> {
    let mut decoder = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE);
    let instruction = decoder.decode();
    (decoder.last_error() == DecoderError::None).then_some(instruction)
}

/// Executes an instruction of the tile unit.
fn execute_on_tiles(frame: &Frame, instruction: &Instruction) -> Result<(), Refusal> {
    let code = instruction.code();
    let operands = Operands { frame, instruction };
    let tile = |operand: u32| instruction.op_register(operand) as usize - Register::TMM0 as usize;
    TILES.with(|tiles| {
        // SAFETY: the thread stopped at an instruction, so that nothing else on it uses the tiles.
        let tiles = unsafe { &mut *tiles.get() };
        // SAFETY: the instruction itself would read or write these addresses; who wrote it promises that it may.
        let done = unsafe {
            match code {
                Code::VEX_Ldtilecfg_m512 => tiles.configure(&pointer::<[u8; 64]>(operands.address()?).read_unaligned()),
                Code::VEX_Sttilecfg_m512 => {
                    pointer::<[u8; 64]>(operands.address()?).write_unaligned(tiles.configuration());
                    Ok(())
                }
                Code::VEX_Tilerelease => {
                    tiles.release();
                    Ok(())
                }
                Code::VEX_Tilezero_tmm => tiles.zero(tile(0)),
                Code::VEX_Tileloadd_tmm_sibmem | Code::VEX_Tileloaddt1_tmm_sibmem => {
                    let (start, stride) = operands.rows()?;
                    tiles.load(tile(0), |row| pointer(row_address(start, stride, row)))
                }
                Code::VEX_Tilestored_sibmem_tmm => {
                    let (start, stride) = operands.rows()?;
                    tiles.store(tile(1), |row| pointer(row_address(start, stride, row)))
                }
                Code::VEX_Tdpbssd_tmm_tmm_tmm => tiles.multiply_bytes::<true, true>(tile(0), tile(1), tile(2)),
                Code::VEX_Tdpbsud_tmm_tmm_tmm => tiles.multiply_bytes::<true, false>(tile(0), tile(1), tile(2)),
                Code::VEX_Tdpbusd_tmm_tmm_tmm => tiles.multiply_bytes::<false, true>(tile(0), tile(1), tile(2)),
                Code::VEX_Tdpbuud_tmm_tmm_tmm => tiles.multiply_bytes::<false, false>(tile(0), tile(1), tile(2)),
                Code::VEX_Tdpbf16ps_tmm_tmm_tmm => tiles.multiply_bf16(tile(0), tile(1), tile(2)),
                _ => return Err(Refusal::Unknown),
            }
        };
        done.map_err(|fault| Refusal::Fault(code, fault))
    })
}

/// Executes `vpdpbusd` on 256-bit registers.
fn execute_on_vectors(frame: &Frame, instruction: &Instruction) -> Result<(), Refusal> {
    let register = |operand: u32| instruction.op_register(operand) as usize - Register::YMM0 as usize;
    // SAFETY: Linux has handed over the area together with the frame; nothing else uses it.
    let mut vectors = unsafe { Vectors::new(frame.vectors) }.ok_or(Refusal::Unknown)?;
    let last = if instruction.op2_kind() == OpKind::Memory {
        let address = Operands { frame, instruction }.address()?;
        // SAFETY: the instruction itself would read this address; who wrote it promises that it may.
        unsafe { pointer::<[u8; 32]>(address).read_unaligned() }
    } else {
        vectors.read(register(2))
    };
    let (sums, factors) = (vectors.read(register(0)), vectors.read(register(1)));
    vectors.write(register(0), dot_products(sums, factors, last));
    Ok(())
}

fn row_address(start: u64, stride: u64, row: usize) -> u64 {
    start.wrapping_add(stride.wrapping_mul(row as u64))
}

fn pointer<T>(address: u64) -> *mut T {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// What an instruction's memory operand refers to.
struct Operands<'a> {
    frame: &'a Frame,
    instruction: &'a Instruction,
}

impl Operands<'_> {
    /// The address of an ordinary operand.
    fn address(&self) -> Result<u64, Refusal> {
        let (start, offset) = self.parts()?;
        Ok(start.wrapping_add(offset))
    }

    /// The address of a tile's first row, and how far it is to the next: the index register, scaled.
    fn rows(&self) -> Result<(u64, u64), Refusal> {
        self.parts()
    }

    /// Base with displacement, and scaled index.
    fn parts(&self) -> Result<(u64, u64), Refusal> {
        if self.instruction.segment_prefix() != Register::None {
            return Err(Refusal::Unknown);
        }
        let base = match self.instruction.memory_base() {
            // The decoder has added it to the displacement.
            Register::RIP => 0,
            register => self.register(register)?,
        };
        let index = self.register(self.instruction.memory_index())?;
        let scaled = index.wrapping_mul(u64::from(self.instruction.memory_index_scale()));
        Ok((base.wrapping_add(self.instruction.memory_displacement64()), scaled))
    }

    fn register(&self, register: Register) -> Result<u64, Refusal> {
        if register == Register::None {
            return Ok(0);
        }
        let number = (register as usize).wrapping_sub(Register::RAX as usize);
        let place = REGISTER_PLACES.get(number).ok_or(Refusal::Unknown)?;
        Ok(self.frame.registers[*place])
    }
}

/// A text of limited length, without memory of its own.
struct Message {
    bytes: [u8; 512],
    length: usize,
}

impl Write for Message {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let length = text.len().min(self.bytes.len() - self.length);
        self.bytes[self.length..][..length].copy_from_slice(&text.as_bytes()[..length]);
        self.length += length;
        Ok(())
    }
}

/// Says why and aborts: a test cannot fail from inside a handler, and the thread cannot go on.
fn end_process(refusal: Refusal, address: u64) -> ! {
    let mut message = Message { bytes: [0; 512], length: 0 };
    // Writing to the message never fails.
    let _ = match refusal {
        Refusal::Fault(code, fault) => {
            writeln!(message, "emulated instruction {code:?} at {address:#x}: a CPU would refuse it: {fault}")
        }
        Refusal::Unknown => {
            // SAFETY: the CPU has read the instruction's first byte.
            let first = unsafe { *std::ptr::with_exposed_provenance::<u8>(address as usize) };
            writeln!(message, "illegal instruction at {address:#x}, first byte {first:#04x}: it is not emulated")
        }
    };
    // SAFETY: the bytes are there; both functions may be called in a handler.
    unsafe {
        libc::write(libc::STDERR_FILENO, message.bytes.as_ptr().cast(), message.length);
        libc::abort()
    }
}
