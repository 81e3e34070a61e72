//! The same weights on every CPU: a short fine-tuning and a short quantization-aware training, with products in f32 and in
//! bf16, give the bytes whose sha256 `same_bits.txt` lists, with every implementation that runs here.
//!
//! A change that is meant to change training writes the list again:
//!
//! ```sh
//! QBERT_WRITE_SAME_BITS=1 cargo test -p qbert-train --test same_bits
//! ```

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::fmt::Write as _;
use std::path::Path;

use common::goldens;
use common::training::{Observer, data};
use qbert_kernels::{Compute, Kernels, Threads};
use qbert_quant::{GroupSpec, Plan, Precision, RangeMethod};
use qbert_tasks::{DataSource, Task};
use qbert_train::finetune::{Finetune, finetune, recipe};
use qbert_train::qat::run::{Quantize, quantize};
use qbert_train::qat::student::QatSettings;
use qbert_train::trainer::{TrainingPrecision, recorded_precision};
use sha2::{Digest, Sha256};

const LIST: &str = include_str!("same_bits.txt");

/// A line of the list for every file that holds numbers.
fn list(compute: &Compute) -> String {
    let [f32, bf16] = [TrainingPrecision::F32, TrainingPrecision::Bf16].map(|precision| files(compute, precision));
    f32 + &bf16
}

fn files(compute: &Compute, precision: TrainingPrecision) -> String {
    let home = tempfile::tempdir().unwrap();
    let mut settings = recipe(Task::Sst2);
    (settings.epochs, settings.batch, settings.precision) = (1, 8, precision);
    if precision == TrainingPrecision::Bf16 {
        (settings.epochs, settings.batch) = (2, 32);
    }
    settings.optimizer.learning_rate = 5e-3;
    let mut job = Finetune {
        model: goldens().join("tiny-sequence"),
        data: DataSource { max_len: 20, ..DataSource::new(Task::Sst2, [data(home.path(), "train.tsv", 60, 1)]) },
        dev: data(home.path(), "dev.tsv", 20, 2),
        out: home.path().join("tuned"),
        max_train: None,
        settings,
        resume: false,
    };
    let mut list = String::new();
    let mut add = |directory: &Path, names: &[&str]| {
        for name in names {
            let bytes = std::fs::read(directory.join(name)).unwrap();
            let stage = directory.file_name().unwrap().to_str().unwrap();
            let of_precision = if precision == TrainingPrecision::F32 { "" } else { "bf16/" };
            write!(list, "{of_precision}{stage}/{name} ").unwrap();
            Sha256::digest(bytes).iter().for_each(|byte| write!(list, "{byte:02x}").unwrap());
            list.push('\n');
        }
    };
    finetune(&job, compute, &mut Observer::default()).unwrap();
    add(&job.out, &["model.safetensors", "train.jsonl"]);
    job.model = std::mem::replace(&mut job.out, home.path().join("quantized"));
    job.settings.optimizer.learning_rate = 1e-3;
    let mut plan = Plan::uniform(3, Precision::from_number(2).unwrap(), GroupSpec::Count(4), RangeMethod::Mse);
    for (site, width) in qbert_quant::Site::all(3).zip([2, 3, 4, 8, 32].into_iter().cycle()) {
        if site.layer().is_some() {
            plan.site_mut(site).unwrap().bits = Precision::from_number(width).unwrap();
        }
    }
    let settings = QatSettings { calibration: 4, ..QatSettings::default() };
    let quantized = Quantize { job, plan, settings };
    quantize(&quantized, compute, &mut Observer::default()).unwrap();
    let names = ["model.safetensors", "ranges.safetensors", "activations.json", "train.jsonl"];
    add(&quantized.job.out, &names);
    list
}

#[test]
fn every_implementation_trains_the_listed_weights() {
    if std::env::var_os("QBERT_WRITE_SAME_BITS").is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/same_bits.txt");
        let portable = Kernels::by_name("portable").unwrap();
        std::fs::write(&path, list(&Compute::new(portable, Threads::single()))).unwrap();
        println!("wrote {}; run the test again without the variable", path.display());
        return;
    }
    for kernels in Kernels::supported() {
        // AMX adds products of bf16 in another order; naming another multiplier does without it.
        let kernels = Kernels::by_name(&format!("{}+portable", kernels.name())).unwrap();
        for threads in [1, 2] {
            let found = list(&Compute::new(kernels, Threads::new(threads).unwrap()));
            assert_eq!(found, LIST, "{} on {threads} threads", kernels.name());
        }
    }
}

#[test]
fn products_in_bf16_change_the_weights() {
    let compute = Compute::new(Kernels::best(), Threads::single());
    let mut jobs = Vec::new();
    for precision in [TrainingPrecision::F32, TrainingPrecision::Bf16] {
        let home = tempfile::tempdir().unwrap();
        let mut settings = recipe(Task::Sst2);
        (settings.epochs, settings.batch, settings.precision) = (1, 32, precision);
        let job = Finetune {
            model: goldens().join("tiny-sequence"),
            data: DataSource { max_len: 20, ..DataSource::new(Task::Sst2, [data(home.path(), "train.tsv", 60, 1)]) },
            dev: data(home.path(), "dev.tsv", 20, 2),
            out: home.path().join("tuned"),
            max_train: None,
            settings,
            resume: false,
        };
        assert_eq!(recorded_precision(&job.out), None);
        finetune(&job, &compute, &mut Observer::default()).unwrap();
        assert_eq!(recorded_precision(&job.out), Some(precision), "the metrics say it");
        jobs.push(std::fs::read(job.out.join("model.safetensors")).unwrap());
    }
    assert!(jobs[0] != jobs[1]);
}
