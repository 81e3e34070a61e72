//! Which instruction sets and multipliers run here, and that a missing one is an error instead of a silent skip.

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
    expected.push("portable");
    assert_eq!(found, expected);
    assert_eq!(Kernels::best().name(), expected[0]);
    assert!(found.iter().all(|name| KERNEL_NAMES.contains(name)));
}

#[test]
fn every_multiplier_of_this_cpu_is_found() {
    let found: Vec<&str> = Multiplier::supported().iter().map(|multiplier| multiplier.name()).collect();
    println!("multipliers that run here: {}", found.join(", "));
    let sets: Vec<&str> = Kernels::supported().iter().map(|kernels| kernels.name()).collect();
    let mut expected = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        let vnni = sets.contains(&"avx512") && is_x86_feature_detected!("avx512vnni");
        expected.extend(vnni.then_some("avx512-vnni"));
        expected.extend(sets.contains(&"avx2").then_some("avx2"));
    }
    expected.push("portable");
    assert_eq!(found, expected);
    assert!(found.iter().all(|name| Multiplier::NAMES.contains(name)));
    assert_eq!(Kernels::best().multiplier().name(), expected[0], "the best kernels have the best multiplier");
    // An instruction set brings the best multiplier that needs no better set.
    for kernels in Kernels::supported() {
        let best = match kernels.name() {
            "avx512" => expected[0],
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

#[test]
fn the_environment_variable_selects_the_kernels() {
    let run = |value: &str| {
        let program = std::env::current_exe().expect("this test's own path");
        let output = std::process::Command::new(program)
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
