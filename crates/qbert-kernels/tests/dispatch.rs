//! Which instruction sets and multipliers run here, and that a missing one is an error instead of a silent skip.

use std::process::Command;

use qbert_kernels::int::Multiplier;
use qbert_kernels::{KERNEL_NAMES, KernelError, Kernels, Threads};

#[test]
fn every_instruction_set_of_this_cpu_is_found() {
    let found: Vec<&str> = Kernels::supported().iter().map(|kernels| kernels.name()).collect();
    println!("kernels that run here: {}", found.join(", "));
    let mut expected = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        let avx512 = avx2
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        expected.extend(avx512.then_some("avx512"));
        expected.extend(avx2.then_some("avx2"));
    }
    #[cfg(target_arch = "aarch64")]
    expected.push("neon");
    expected.push("portable");
    assert_eq!(found, expected);
    assert_eq!(Kernels::best().name(), expected[0]);
    assert!(found.iter().all(|name| KERNEL_NAMES.contains(name)));
}

/// Whether Linux says that the CPU has tiles. There is no other way to ask but the one that the kernels use.
#[cfg(target_arch = "x86_64")]
fn has_tiles() -> bool {
    std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains(" amx_int8"))
}

#[test]
fn every_multiplier_of_this_cpu_is_found() {
    let found: Vec<&str> = Multiplier::supported().iter().map(|multiplier| multiplier.name()).collect();
    println!("multipliers that run here: {}", found.join(", "));
    let mut expected = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        let sets: Vec<&str> = Kernels::supported().iter().map(|kernels| kernels.name()).collect();
        let (avx512, avx2) = (sets.contains(&"avx512"), sets.contains(&"avx2"));
        let vnni = avx512 && is_x86_feature_detected!("avx512vnni");
        let amx = vnni && has_tiles();
        expected.extend(amx.then_some("amx"));
        expected.extend(vnni.then_some("avx512-vnni"));
        expected.extend(avx512.then_some("avx512"));
        expected.extend((avx2 && is_x86_feature_detected!("avxvnni")).then_some("avx-vnni"));
        expected.extend(avx2.then_some("avx2"));
    }
    #[cfg(target_arch = "aarch64")]
    {
        expected.extend(std::arch::is_aarch64_feature_detected!("i8mm").then_some("neon-i8mm"));
        expected.extend(std::arch::is_aarch64_feature_detected!("dotprod").then_some("neon-dotprod"));
        expected.push("neon");
    }
    expected.extend(["portable", "amx-software"]);
    assert_eq!(found, expected);
    assert!(found.iter().all(|name| Multiplier::NAMES.contains(name)));
    assert_eq!(Kernels::best().multiplier().name(), expected[0], "the best kernels have the best multiplier");
    // An instruction set brings the best multiplier that needs no better set.
    for kernels in Kernels::supported() {
        let best = match kernels.name() {
            "avx512" | "neon" => expected[0],
            "avx2" if expected.contains(&"avx-vnni") => "avx-vnni",
            "avx2" => "avx2",
            _ => "portable",
        };
        assert_eq!(kernels.multiplier().name(), best, "{}", kernels.name());
    }
}

#[test]
fn kernels_are_found_by_name_or_refused() {
    for kernels in Kernels::supported() {
        assert_eq!(Kernels::by_name(kernels.name()).expect("a supported name"), kernels);
        for multiplier in Multiplier::supported() {
            let both = format!("{}+{}", kernels.name(), multiplier.name());
            let found = Kernels::by_name(&both).expect("supported names");
            assert_eq!(found, kernels.with_multiplier(multiplier));
            assert_eq!(found.to_string(), both);
        }
    }
    for (name, wrong) in [("sse9", "sse9"), ("portable+mmx", "mmx"), ("portable+", ""), ("+portable", "")] {
        let error = Kernels::by_name(name).expect_err("no such kernels");
        assert!(matches!(&error, KernelError::UnknownKernels { name, .. } if name == wrong), "{error}");
        assert!(error.to_string().contains("portable"), "{error}: names what there is");
        assert!(error.hint().is_some_and(|hint| hint.contains("QBERT_KERNELS")), "{error}");
    }
}

/// A name that this crate knows but this CPU lacks is an error of its own, whichever list it stands in.
#[test]
fn known_names_that_this_cpu_lacks_are_refused() {
    let sets: Vec<&str> = Kernels::supported().iter().map(|kernels| kernels.name()).collect();
    for name in KERNEL_NAMES.iter().filter(|name| !sets.contains(name)) {
        let error = Kernels::by_name(name).expect_err("an instruction set of another CPU");
        assert!(matches!(&error, KernelError::UnsupportedKernels { supported, .. } if *supported == sets), "{error}");
    }
    let multipliers: Vec<&str> = Multiplier::supported().iter().map(|multiplier| multiplier.name()).collect();
    for name in Multiplier::NAMES.iter().filter(|name| !multipliers.contains(name)) {
        let error = Kernels::by_name(&format!("portable+{name}")).expect_err("a multiplier of another CPU");
        let expected = &multipliers;
        assert!(
            matches!(&error, KernelError::UnsupportedKernels { supported, .. } if supported == expected),
            "{error}"
        );
    }
}

#[test]
fn impossible_thread_counts_are_errors() {
    for count in [0, 1_000_000] {
        let error = Threads::new(count).expect_err("an impossible count");
        assert!(error.to_string().contains(&count.to_string()), "{error}");
        assert!(error.hint().is_some());
    }
    assert!(Threads::available() >= 1);
}

/// Prints what `detect` chose; the test below runs it in processes of its own.
#[test]
fn child_prints_what_is_detected() {
    match Kernels::detect() {
        Ok(kernels) => println!("detected <{kernels}>"),
        Err(error) => println!("refused <{error}>"),
    }
}

/// This test program, to be run again: by the emulator that `QBERT_TEST_RUNNER` names, if any (`reference/arm.sh` sets it).
fn this_program() -> Command {
    let program = std::env::current_exe().expect("this test's own path");
    let runner = std::env::var("QBERT_TEST_RUNNER").unwrap_or_default();
    let mut words = runner.split_whitespace();
    let Some(emulator) = words.next() else { return Command::new(program) };
    let mut command = Command::new(emulator);
    command.args(words).arg(program);
    command
}

#[test]
fn the_environment_variable_selects_the_kernels() {
    let run = |value: &str| {
        let output = this_program()
            .args(["--exact", "child_prints_what_is_detected", "--nocapture"])
            .env(qbert_kernels::KERNELS_VARIABLE, value)
            .output()
            .expect("this test, run again");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let named = |kernels: Kernels| format!("detected <{kernels}>");
    for kernels in Kernels::supported() {
        assert!(run(kernels.name()).contains(&named(kernels)));
        let both = format!("{}+portable", kernels.name());
        assert!(run(&both).contains(&format!("detected <{both}>")));
    }
    assert!(run("").contains(&named(Kernels::best())));
    assert!(run("mmx").contains("refused <unknown instruction set \"mmx\"; this CPU supports "));
    assert!(run("portable+mmx").contains("refused <unknown integer multiplier \"mmx\"; this CPU supports "));
}
