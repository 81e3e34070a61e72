//! Where min/max ranges do their harm: models calibrated at one width, with min/max ranges in some matrices and optimal
//! ranges in all others, judged without any training.
//!
//! ```text
//! cargo run --release -p qbert-paper --example ranges_by_matrix -- BITS MODEL TASK TRAIN[,TRAIN] DEV \
//!     [MODEL TASK TRAIN DEV …] > results/ranges-by-matrix.json
//! ```
//!
//! A model is a fine-tuned checkpoint. Groups are the paper's 128, embeddings have 8 bits with optimal ranges, activations
//! 8 bits. `qbert-paper reproduce --render` puts the results into `docs/results/paper.md`.

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};

use qbert_kernels::{Compute, Threads};
use qbert_model::Checkpoint;
use qbert_quant::{Matrix, Plan, RangeMethod, Site};
use qbert_tasks::{DataSource, Task};
use qbert_train::evaluate::Evaluation;
use qbert_train::finetune::Finetune;
use qbert_train::qat::method::Method;
use qbert_train::qat::run::{Judging, Quantize, full_precision, quantize_with, recipe};
use qbert_train::qat::student::QatSettings;
use qbert_train::trainer::{Settings, StepRecord, Watch};
use serde_json::{Value, json};

/// Which matrices have min/max ranges.
type Where = fn(usize, Matrix) -> bool;

const CASES: [(&str, Where); 6] = [
    ("nowhere", |_, _| false),
    ("self-attention", |_, matrix| !matches!(matrix, Matrix::Intermediate | Matrix::Output)),
    ("everywhere but the feed-forward output", |_, matrix| matrix != Matrix::Output),
    ("the feed-forward output of the first layer", |layer, matrix| layer == 0 && matrix == Matrix::Output),
    ("the feed-forward output", |_, matrix| matrix == Matrix::Output),
    ("everywhere", |_, _| true),
];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let usage = "usage: ranges_by_matrix BITS MODEL TASK TRAIN[,TRAIN] DEV [MODEL TASK TRAIN DEV …]";
    let (bits, given) = arguments.split_first().ok_or(usage)?;
    let bits: u8 = bits.parse().map_err(|_| usage)?;
    let (models, rest) = given.as_chunks::<4>();
    if models.is_empty() || !rest.is_empty() {
        return Err(usage.into());
    }
    let compute = Compute::detect(Threads::available())?;
    let results = models.iter().map(|[model, task, train, dev]| {
        let task: Task = task.parse()?;
        let train = train.split(',').map(PathBuf::from).collect();
        measure(bits, Finetune { model: model.into(), dev: dev.into(), ..job(task, train) }, &compute)
    });
    let results = results.collect::<Result<Vec<Value>, Box<dyn Error>>>()?;
    let name = |path: &str| Path::new(path).file_name().map_or(path.into(), |name| name.to_string_lossy().into_owned());
    let named: Vec<String> = given.iter().map(|word| word.split(',').map(name).collect::<Vec<_>>().join(",")).collect();
    let report = json!({
        "what": "quantized and calibrated, not trained: min/max ranges in some matrices, optimal ranges in all others",
        "command": format!("cargo run --release -p qbert-paper --example ranges_by_matrix -- {bits} {}", named.join(" ")),
        "bits": bits,
        "results": results,
    });
    writeln!(std::io::stdout(), "{report:#}")?;
    Ok(())
}

fn job(task: Task, train: Vec<PathBuf>) -> Finetune {
    Finetune {
        model: PathBuf::new(),
        data: DataSource::new(task, train),
        dev: PathBuf::new(),
        out: PathBuf::new(),
        max_train: None,
        settings: Settings { steps: Some(0), epochs: 0, ..recipe(task) },
        resume: false,
    }
}

fn measure(bits: u8, job: Finetune, compute: &Compute) -> Result<Value, Box<dyn Error>> {
    let layers = Checkpoint::open(&job.model)?.config().layers;
    let full: Evaluation = full_precision(&job, None, compute, |_, _| {})?;
    let mut cases = Vec::new();
    for (place, min_max) in CASES {
        let scratch = tempfile::tempdir()?;
        let job = Finetune { out: scratch.path().join("model"), ..job.clone() };
        let settings = QatSettings { compensate: false, distillation: None, ..QatSettings::default() };
        let plan = plan(bits, layers, min_max)?;
        let judging = Judging { full_precision: Some(full.value), ..Judging::default() };
        let outcome = quantize_with(&Quantize { job, plan, settings }, judging, compute, &mut Silent)?;
        writeln!(std::io::stderr(), "min/max {place}: {:.2}", outcome.best)?;
        cases.push(json!({ "min_max": place, "value": outcome.best }));
    }
    Ok(json!({ "task": job.data.task, "metric": full.metric, "full_precision": full.value, "cases": cases }))
}

fn plan(bits: u8, layers: usize, min_max: Where) -> Result<Plan, Box<dyn Error>> {
    let method: Method = format!("q-bert:{bits}").parse()?;
    let mut plan = method.plan(layers, &[], RangeMethod::Mse)?;
    for layer in 0..layers {
        for matrix in Matrix::ALL.into_iter().filter(|&matrix| min_max(layer, matrix)) {
            plan.site_mut(Site::Layer(layer, matrix))?.range = RangeMethod::MinMax;
        }
    }
    Ok(plan)
}

struct Silent;

impl Watch for Silent {
    fn step(&mut self, _: &StepRecord, _: usize) {}

    fn evaluated(&mut self, _: usize, _: &Evaluation, _: bool) {}
}
