//! Which instruction sets run here, and that a missing one is an error instead of a silent skip.

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
fn kernels_are_found_by_name_or_refused() {
    for kernels in Kernels::supported() {
        let same = Kernels::by_name(kernels.name()).expect("a supported name");
        assert_eq!(same.name(), kernels.name());
    }
    let error = Kernels::by_name("sse9").expect_err("no such instruction set");
    assert!(matches!(&error, KernelError::UnknownKernels { name } if name == "sse9"));
    assert!(error.hint().is_some_and(|hint| hint.contains("avx2")), "{error}");
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
        Ok(kernels) => println!("detected <{}>", kernels.name()),
        Err(error) => println!("refused <{error}>"),
    }
}

#[test]
fn the_environment_variable_forces_an_instruction_set() {
    let run = |value: &str| {
        let program = std::env::current_exe().expect("this test's own path");
        let output = std::process::Command::new(program)
            .args(["--exact", "child_prints_what_is_detected", "--nocapture"])
            .env(qbert_kernels::KERNELS_VARIABLE, value)
            .output()
            .expect("this test, run again");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    for kernels in Kernels::supported() {
        assert!(run(kernels.name()).contains(&format!("detected <{}>", kernels.name())));
    }
    assert!(run("").contains(&format!("detected <{}>", Kernels::best().name())));
    assert!(run("mmx").contains("refused <unknown instruction set \"mmx\">"));
}
