//! Instructions one by one, and whole layers and attention on the multipliers that may be emulated.

use std::arch::asm;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use super::super::amx::{Amx, Hardware};
use super::super::avx_vnni::AvxVnni;
use super::super::portable::Portable;
use super::*;
use crate::int::{Codes, LinearInput, LinearLayer, LinearOutput, LinearParams, PackedWeights, Quantizer, pack};
use crate::tests::{codes, compute, context, noise, sums};

/// Runs a check, and says how the instructions in question were executed.
fn observed<M: Trappable>(name: &str, check: impl Fn(Trapped<M>)) {
    let Some(multiplier) = Trapped::<M>::detect() else {
        println!("{name}: NOT RUN, the CPU lacks instructions that are not emulated");
        return;
    };
    let before = emulated();
    check(multiplier);
    let count = emulated() - before;
    if M::detect().is_some() {
        println!("{name}: the CPU has executed the instructions");
    } else {
        println!("{name}: {count} instructions emulated meanwhile");
        assert!(count > 0, "{name}: nothing was emulated");
    }
}

type Tile = Trapped<Amx<Hardware, Portable>>;

fn with_tiles(check: impl Fn(Tile)) {
    observed("amx-trapped", check);
}

/// A configuration with rows and bytes per row of the first tiles.
fn configure(_: Tile, shapes: &[(usize, usize)]) {
    let mut bytes = [0_u8; 64];
    bytes[0] = 1;
    for (tile, &(rows, row_bytes)) in shapes.iter().enumerate() {
        (bytes[16 + 2 * tile], bytes[48 + tile]) = (row_bytes as u8, rows as u8);
    }
    // SAFETY: the instruction reads 64 bytes, and is executed or emulated, as the multiplier proves.
    unsafe { asm!("ldtilecfg [{}]", in(reg) bytes.as_ptr(), options(nostack, preserves_flags)) };
}

fn release(_: Tile) {
    // SAFETY: the instruction touches tiles only, and is executed or emulated.
    unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
}

fn bytes(length: usize, seed: u32) -> Vec<u8> {
    codes(length, seed, 256)
}

/// One product of random tiles: `instruction` on tiles 0, 1 and 2, between loads and a store whose operands have all
/// their parts.
macro_rules! product {
    ($instruction:literal, $rows:expr, $cells:expr, $columns:expr, $sums:expr, $a:expr, $b:expr) => {{
        let (rows, cells, columns): (usize, usize, usize) = ($rows, $cells, $columns);
        let (sums, a, b): (&mut [u8], &[u8], &[u8]) = ($sums, $a, $b);
        assert!(sums.len() == rows * columns * 4 && a.len() == rows * cells * 4 && b.len() == cells * columns * 4);
        // SAFETY: the slices have as many bytes as the tiles take, and the caller has configured the tiles.
        unsafe {
            asm!(
                "tileloadd tmm0, [{sums} + {sums_stride}*4]",
                "tileloaddt1 tmm1, [{a_before} + {a_stride}*2 + 100]",
                "tileloadd tmm2, [{b_behind} + {b_stride} - 70000]",
                $instruction,
                "tilestored [{sums} + {sums_stride}*4], tmm0",
                sums = in(reg) sums.as_mut_ptr(), sums_stride = in(reg) columns,
                a_before = in(reg) a.as_ptr().wrapping_sub(100), a_stride = in(reg) 2 * cells,
                b_behind = in(reg) b.as_ptr().wrapping_add(70_000), b_stride = in(reg) 4 * columns,
                options(nostack, preserves_flags),
            );
        }
    }};
}

const SHAPES: [(usize, usize, usize); 8] =
    [(16, 16, 16), (1, 1, 1), (3, 5, 7), (16, 1, 9), (1, 16, 2), (7, 16, 16), (16, 3, 16), (2, 13, 11)];

#[test]
fn products_of_bytes_have_the_signs_of_their_names() {
    with_tiles(|multiplier| {
        for (seed, (rows, cells, columns)) in (1..).zip(SHAPES) {
            let (start, a, b) = (
                bytes(rows * columns * 4, seed),
                bytes(rows * cells * 4, seed + 9),
                bytes(cells * columns * 4, seed + 20),
            );
            let expected = |signed_a: bool, signed_b: bool| -> Vec<u8> {
                let wide = |byte: u8, signed: bool| i64::from(byte) - if signed && byte > 127 { 256 } else { 0 };
                let elements = (0..rows * columns).map(|place| {
                    let (row, column) = (place / columns, place % columns);
                    let terms = (0..cells * 4).map(|input| {
                        let b = b[(input / 4 * columns + column) * 4 + input % 4];
                        wide(a[row * cells * 4 + input], signed_a) * wide(b, signed_b)
                    });
                    let before = i32::from_le_bytes(start.as_chunks().0[place]);
                    (i64::from(before) + terms.sum::<i64>()) as i32
                });
                elements.flat_map(i32::to_le_bytes).collect()
            };
            configure(multiplier, &[(rows, 4 * columns), (rows, 4 * cells), (cells, 4 * columns)]);
            let mut sums = [(); 4].map(|()| start.clone());
            product!("tdpbssd tmm0, tmm1, tmm2", rows, cells, columns, &mut sums[0], &a, &b);
            product!("tdpbsud tmm0, tmm1, tmm2", rows, cells, columns, &mut sums[1], &a, &b);
            product!("tdpbusd tmm0, tmm1, tmm2", rows, cells, columns, &mut sums[2], &a, &b);
            product!("tdpbuud tmm0, tmm1, tmm2", rows, cells, columns, &mut sums[3], &a, &b);
            release(multiplier);
            let all = [expected(true, true), expected(true, false), expected(false, true), expected(false, false)];
            assert!(sums == all, "{rows}×{cells}×{columns}");
        }
    });
}

/// Numbers of all sizes, small ones among them, whose sums are rounded.
#[test]
fn products_of_bf16_round_as_the_manual_says() {
    fn flush(value: f32) -> f32 {
        if value.is_subnormal() { 0.0_f32.copysign(value) } else { value }
    }
    with_tiles(|multiplier| {
        for (seed, (rows, cells, columns)) in (1..).zip(SHAPES) {
            // Exponents from 2^-67 to 2^-60 give products that are barely normal, or not; others are ordinary.
            let number = |index: usize, bits: u8, least: u16| {
                let bits = u16::from(bits);
                let exponent = least + bits % 8 + if index.is_multiple_of(3) { 60 } else { 0 };
                let (sign, rest) = (bits & 0x80, (bits * 37 + index as u16) & 0x7F);
                ((sign << 8) | (exponent << 7) | rest).to_le_bytes()
            };
            let numbers = |length: usize, seed: u32| -> Vec<u8> {
                bytes(length, seed).into_iter().enumerate().flat_map(|(i, bits)| number(i, bits, 60)).collect()
            };
            let (a, b) = (numbers(rows * cells * 2, seed), numbers(cells * columns * 2, seed + 9));
            let start: Vec<u8> =
                noise(rows * columns, seed).into_iter().flat_map(|x| (x * 1e-30).to_le_bytes()).collect();
            let value = |bytes: &[u8], index: usize| f32::from_le_bytes([0, 0, bytes[2 * index], bytes[2 * index + 1]]);
            let expected = (0..rows * columns).flat_map(|place| {
                let (row, column) = (place / columns, place % columns);
                let [first, second] = [0, 1].map(|part| {
                    (0..cells).fold(0.0_f32, |sum, cell| {
                        let a = value(&a, (row * cells + cell) * 2 + part);
                        let b = value(&b, (cell * columns + column) * 2 + part);
                        flush(flush(a).mul_add(flush(b), sum))
                    })
                });
                let before = flush(f32::from_le_bytes(start.as_chunks().0[place]));
                flush(before + flush(first + second)).to_le_bytes()
            });
            let expected: Vec<u8> = expected.collect();
            configure(multiplier, &[(rows, 4 * columns), (rows, 4 * cells), (cells, 4 * columns)]);
            let mut sums = start.clone();
            product!("tdpbf16ps tmm0, tmm1, tmm2", rows, cells, columns, &mut sums, &a, &b);
            release(multiplier);
            assert!(sums == expected, "{rows}×{cells}×{columns}");
        }
    });
}

/// Every register can be a base or a stride, also a negative one; without a stride all rows are the same.
#[test]
fn rows_lie_where_base_and_stride_say() {
    with_tiles(|multiplier| {
        let source = bytes(5 * 12, 3);
        let reversed: Vec<u8> = source.chunks(12).rev().flatten().copied().collect();
        macro_rules! with_registers {
            ($($base:tt $stride:tt),*) => {$({
                let mut found = [[0xEE_u8; 20]; 5];
                // SAFETY: five rows of twelve bytes each, upwards from the first or downwards from the last.
                unsafe {
                    asm!(
                        concat!("tileloadd tmm3, [", $base, " + ", $stride, "]"),
                        concat!("mov ", $base, ", {target}"),
                        concat!("mov ", $stride, ", 20"),
                        concat!("tilestored [", $base, " + ", $stride, "*1], tmm3"),
                        target = in(reg) found.as_mut_ptr(),
                        inout($base) source.as_ptr().wrapping_add(48) => _, inout($stride) -12_isize => _,
                        options(nostack, preserves_flags),
                    );
                }
                for (found, expected) in found.iter().zip(reversed.chunks(12)) {
                    assert_eq!((&found[..12], &found[12..]), (expected, &[0xEE; 8][..]), "{} {}", $base, $stride);
                }
            })*};
        }
        configure(multiplier, &[(0, 0), (0, 0), (0, 0), (5, 12)]);
        with_registers!(
            "rax" "rcx", "rcx" "rdx", "rdx" "rsi", "rsi" "rdi", "rdi" "r8", "r8" "r9", "r9" "r10", "r10" "r11",
            "r11" "r12", "r12" "r13", "r13" "r14", "r14" "r15", "r15" "rax"
        );
        // Two registers that the compiler keeps for itself: they change places with others for one instruction.
        let mut found = [0xEE_u8; 60];
        // SAFETY: five rows of twelve bytes each; both registers get their values back.
        unsafe {
            asm!(
                "xchg rbx, rax",
                "xchg rbp, rcx",
                "tileloadd tmm3, [rbp + rbx]",
                "xchg rbx, rax",
                "xchg rbp, rcx",
                "tilestored [{target} + {stride}], tmm3",
                in("rax") 12_usize, in("rcx") source.as_ptr(), target = in(reg) found.as_mut_ptr(), stride = in(reg) 12_usize,
                options(nostack, preserves_flags),
            );
        }
        assert_eq!(found, source[..]);
        let mut found = [[0xEE_u8; 12]; 5];
        // SAFETY: twelve bytes are read, and five rows of twelve written.
        unsafe {
            asm!(
                "tilezero tmm3",
                "tilestored [{target} + {stride}], tmm3",
                "tileloadd tmm3, [{source}]",
                "tilestored [{target} + {stride}], tmm3",
                target = in(reg) found.as_mut_ptr(), stride = in(reg) 12_usize, source = in(reg) source.as_ptr(),
                options(nostack, preserves_flags),
            );
        }
        release(multiplier);
        assert!(found.iter().all(|row| row == &source[..12]), "{found:?}");
    });
}

/// `vpdpbusd` with every register in every place, and with an operand in memory.
#[test]
fn products_of_vectors_use_the_registers_that_they_name() {
    observed::<AvxVnni>("avx-vnni-trapped", |_| {
        let all = bytes(16 * 32, 5);
        let registers: [[u8; 32]; 16] = std::array::from_fn(|register| all.as_chunks().0[register]);
        let dot = |sums: usize, a: usize, b: &[u8; 32]| -> [u8; 32] {
            let mut result = registers[sums];
            for (place, sum) in result.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let terms =
                    (4 * place..4 * place + 4).map(|i| i32::from(registers[a][i]) * i32::from(b[i].cast_signed()));
                *sum = i32::from_le_bytes(*sum).wrapping_add(terms.sum()).to_le_bytes();
            }
            result
        };
        /// Loads all registers, executes, and stores all registers.
        macro_rules! run {
            ($($instruction:tt)*) => {{
                let mut found = registers;
                // SAFETY: the CPU has AVX2, as the multiplier proves; sixteen registers are read and written.
                unsafe {
                    asm!(
                        "vmovdqu ymm0, [{0}]", "vmovdqu ymm1, [{0} + 32]", "vmovdqu ymm2, [{0} + 64]",
                        "vmovdqu ymm3, [{0} + 96]", "vmovdqu ymm4, [{0} + 128]", "vmovdqu ymm5, [{0} + 160]",
                        "vmovdqu ymm6, [{0} + 192]", "vmovdqu ymm7, [{0} + 224]", "vmovdqu ymm8, [{0} + 256]",
                        "vmovdqu ymm9, [{0} + 288]", "vmovdqu ymm10, [{0} + 320]", "vmovdqu ymm11, [{0} + 352]",
                        "vmovdqu ymm12, [{0} + 384]", "vmovdqu ymm13, [{0} + 416]", "vmovdqu ymm14, [{0} + 448]",
                        "vmovdqu ymm15, [{0} + 480]",
                        $($instruction)*,
                        "vmovdqu [{0}], ymm0", "vmovdqu [{0} + 32], ymm1", "vmovdqu [{0} + 64], ymm2",
                        "vmovdqu [{0} + 96], ymm3", "vmovdqu [{0} + 128], ymm4", "vmovdqu [{0} + 160], ymm5",
                        "vmovdqu [{0} + 192], ymm6", "vmovdqu [{0} + 224], ymm7", "vmovdqu [{0} + 256], ymm8",
                        "vmovdqu [{0} + 288], ymm9", "vmovdqu [{0} + 320], ymm10", "vmovdqu [{0} + 352], ymm11",
                        "vmovdqu [{0} + 384], ymm12", "vmovdqu [{0} + 416], ymm13", "vmovdqu [{0} + 448], ymm14",
                        "vmovdqu [{0} + 480], ymm15",
                        in(reg) found.as_mut_ptr(), in("rcx") 3_usize,
                        out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _, out("ymm4") _, out("ymm5") _,
                        out("ymm6") _, out("ymm7") _, out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
                        out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
                        options(nostack, preserves_flags),
                    );
                }
                found
            }};
        }
        macro_rules! check {
            ($($sums:literal $a:literal $b:literal),*) => {$({
                let mut expected = registers;
                expected[$sums] = dot($sums, $a, &registers[$b]);
                let found = run!(concat!("{{vex}} vpdpbusd ymm", $sums, ", ymm", $a, ", ymm", $b));
                assert!(found == expected, "registers {}, {} and {}", $sums, $a, $b);
            })*};
        }
        check!(
            0 1 2, 1 2 3, 2 3 4, 3 4 5, 4 5 6, 5 6 7, 6 7 8, 7 8 9, 8 9 10, 9 10 11, 10 11 12, 11 12 13, 12 13 14,
            13 14 15, 14 15 0, 15 0 1, 4 4 4, 9 9 2, 9 2 9
        );
        let mut expected = registers;
        expected[6] = dot(6, 11, &all[101..].as_chunks().0[0]);
        assert!(run!("{{vex}} vpdpbusd ymm6, ymm11, [{0} + rcx*8 + 77]") == expected, "an operand in memory");
    });
}

/// The bits of a register beyond those that an instruction names become zero, and those that are zero already stay so.
#[test]
fn products_of_vectors_clear_what_lies_beyond() {
    observed::<AvxVnni>("avx-vnni-trapped", |_| {
        let mut found = [0x11_u8; 64];
        // 0x11·0x11·4 in every sum, before which 0x1111_1111 was.
        let expected = (0x1111_1111_u32 + 4 * 0x11 * 0x11).to_le_bytes();
        // SAFETY: the CPU has AVX2, as the multiplier proves; 32 bytes are read and written.
        unsafe {
            asm!(
                "vmovdqu ymm6, [{0}]",
                "vzeroupper",
                "{{vex}} vpdpbusd ymm6, ymm6, [{0}]",
                "vmovdqu [{0}], ymm6",
                in(reg) found.as_mut_ptr(), out("ymm6") _, options(nostack, preserves_flags),
            );
        }
        let (lower, upper) = found.split_at(16);
        assert!(lower.as_chunks().0.iter().all(|sum| *sum == expected) && upper[..16] == [0; 16], "{found:?}");
        if is_x86_feature_detected!("avx512f") {
            let mut found = [0x11_u8; 64];
            // SAFETY: the CPU has AVX-512; 64 bytes are read and written.
            unsafe {
                asm!(
                    "vmovdqu64 zmm6, [{0}]",
                    "{{vex}} vpdpbusd ymm6, ymm6, ymm6",
                    "vmovdqu64 [{0}], zmm6",
                    in(reg) found.as_mut_ptr(), out("zmm6") _, options(nostack, preserves_flags),
                );
            }
            let (lower, upper) = found.split_at(32);
            assert!(lower.as_chunks().0.iter().all(|sum| *sum == expected) && upper == [0; 32], "{found:?}");
        } else {
            println!("registers of 512 bits: NOT RUN, the CPU has none");
        }
    });
}

/// Runs a check on every multiplier that may be emulated, by name.
fn for_every_trapped(check: impl Fn(&str)) {
    observed::<Amx<Hardware, Portable>>("amx-trapped", |_| check("amx-trapped"));
    observed::<AvxVnni>("avx-vnni-trapped", |_| check("avx-vnni-trapped"));
}

/// Shapes around every edge: cells of 4 inputs, tiles of 64 inputs, 16 neurons and 16 rows, panels of 32 neurons.
#[test]
fn layers_of_every_width_and_shape_have_the_portable_sums() {
    let shapes =
        [(1, 1, 1), (2, 3, 17), (3, 31, 15), (7, 65, 31), (13, 127, 64), (16, 64, 32), (17, 96, 65), (40, 40, 33)];
    for_every_trapped(|name| {
        let portable = compute("portable", 1);
        let [alone, together] = [1, 3].map(|threads| compute(&format!("portable+{name}"), threads));
        for shape in shapes {
            for bits in 1..=8 {
                let expected = sums(&portable, bits, shape);
                assert!(sums(&alone, bits, shape) == expected, "{name}: {bits} bits, {shape:?}");
            }
            assert!(sums(&together, 3, shape) == sums(&portable, 3, shape), "{name}: three threads, {shape:?}");
        }
    });
}

/// The largest products of either sign, where saturating arithmetic would show.
#[test]
fn layers_of_extreme_codes_have_the_portable_sums() {
    for_every_trapped(|name| {
        for (weight, code, zero_point) in [(255, 255, 0), (255, 0, 255), (255, 255, 255), (0, 255, 0), (255, 0, 0)] {
            for (tokens, inputs, neurons) in [(1, 1024, 16), (3, 129, 18), (18, 128, 32)] {
                let sums = |kernels: &str| {
                    let compute = compute(kernels, 1);
                    let packed = pack(&vec![weight; neurons * inputs], 8, neurons, inputs).expect("a good matrix");
                    let weights = PackedWeights::new(8, neurons, inputs, &packed).expect("just packed");
                    let zeros = vec![0.0; neurons];
                    let params = LinearParams::new(compute.kernels(), &weights, &zeros, &zeros, &zeros);
                    let codes = Codes::from_codes(&vec![code; tokens * inputs], inputs);
                    let input = LinearInput { codes: &codes, quantizer: Quantizer::new(1.0, zero_point) };
                    let mut sums = vec![0; tokens * neurons];
                    let output = LinearOutput::Sums(&mut sums);
                    compute.linear(input, [LinearLayer { weights, params: &params, output }]);
                    sums
                };
                let expected = (i32::from(code) - i32::from(zero_point)) * i32::from(weight) * inputs as i32;
                let found = sums(&format!("portable+{name}"));
                assert!(found.iter().all(|&sum| sum == expected), "{name}: {tokens}×{inputs}→{neurons}");
                assert_eq!(found, sums("portable"));
            }
        }
    });
}

#[test]
fn attention_has_the_portable_codes() {
    let small: [(usize, usize, &[usize]); 6] =
        [(1, 1, &[1]), (2, 3, &[5, 0, 16]), (3, 16, &[31, 2]), (2, 33, &[33, 7]), (1, 64, &[40]), (1, 130, &[18])];
    let large: [(usize, usize, &[usize]); 3] = [(4, 32, &[31, 2, 33]), (2, 64, &[70]), (2, 130, &[5, 65])];
    for_every_trapped(|name| {
        let portable = compute("portable", 1);
        let [alone, together] = [1, 3].map(|threads| compute(&format!("portable+{name}"), threads));
        // One tile instruction does what hundreds of others do, so only tiles can be given more.
        let more = if name.starts_with("amx") { &large[..] } else { &[] };
        for &(heads, size, lengths) in small.iter().chain(more) {
            let expected = context(&portable, heads, size, lengths);
            for compute in [&alone, &together] {
                let found = context(compute, heads, size, lengths);
                assert!(found == expected, "{name}: {heads} heads of {size}, lengths {lengths:?}");
            }
        }
    });
}

/// A refused instruction ends the process. So this test starts itself again in processes that execute one.
#[test]
fn a_refused_instruction_ends_the_process_and_says_why() {
    const VARIABLE: &str = "QBERT_TEST_REFUSED_INSTRUCTION";
    let multiplier = Tile::detect().expect("it runs anywhere");
    match std::env::var(VARIABLE).as_deref() {
        Ok("ldtilecfg") => configure(multiplier, &[(17, 64)]),
        // SAFETY: the process ends here.
        Ok("tilezero") => unsafe { asm!("tilezero tmm5", options(nomem, nostack, preserves_flags)) },
        // SAFETY: the process ends here.
        Ok("ud2") => unsafe { asm!("ud2", options(nomem, nostack, preserves_flags)) },
        _ => {
            let (_, module) = module_path!().split_once("::").expect("a module of a crate");
            let this_test = format!("{module}::a_refused_instruction_ends_the_process_and_says_why");
            for (instruction, signal, message) in [
                ("ldtilecfg", libc::SIGSEGV, "VEX_Ldtilecfg_m512"),
                ("ldtilecfg", libc::SIGSEGV, "a CPU would refuse it: #GP, tile 0: more than 16 rows"),
                ("tilezero", libc::SIGILL, "a CPU would refuse it: #UD, tile 5: no tiles are configured"),
                ("ud2", libc::SIGILL, "first byte 0x0f: it is not emulated"),
            ] {
                let program = std::env::current_exe().expect("a program");
                let mut command = Command::new(program);
                command.args([&this_test, "--exact", "--nocapture"]).env(VARIABLE, instruction);
                let output = command.output().expect("the program starts again");
                let (ended_by, text) = (output.status.signal(), String::from_utf8_lossy(&output.stderr));
                let refused_by_the_cpu = Amx::<Hardware, Portable>::detect().is_some() && ended_by == Some(signal);
                let refused_here = ended_by == Some(libc::SIGABRT) && text.contains(message);
                assert!(refused_by_the_cpu || refused_here, "{instruction}: {ended_by:?}, {text}");
            }
            return;
        }
    }
    panic!("not refused");
}
