//! Whether packed models say what the quantized checkpoints say that they were packed from, on data files: every score and
//! every answer compared.
//!
//! ```text
//! cargo run --release -p qbert-paper --example faithful -- DIRECTORY TASK FILE [DIRECTORY TASK FILE …] \
//!     > results/faithful.json
//! ```
//!
//! A directory is one that `qbert quantize` wrote, with the packed model in it. The directory is computed by the training
//! engine, the file by the runtime, both on all cores. Ends with an error when a score differs. Those of
//! `results/faithful.json` were made by
//!
//! ```text
//! qbert plan --model tuned --sensitivity results/sensitivity-TASK.json --bits 2,3 --high 2 --groups 128 \
//!     --embedding-bits 4,8 --embedding-groups 128 --out plan.toml            (and with --bits 8 --groups 128)
//! qbert quantize --model tuned --plan plan.toml --task TASK --train FILE --dev FILE --max-train 1024 --epochs 0 --out DIRECTORY
//! ```

use std::error::Error;
use std::io::Write;
use std::path::Path;

use qbert_kernels::{Compute, Threads};
use qbert_model::PackedModel;
use qbert_pipeline::packed_evaluation;
use qbert_quant::{Plan, Precision};
use qbert_runtime::{Session, SessionOptions};
use qbert_tasks::{DataSource, Task, TaskData};
use qbert_train::evaluate::{Predictions, scores_with};
use qbert_train::loading::Loaded;
use serde_json::{Value, json};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (cases, rest) = arguments.as_chunks::<3>();
    if cases.is_empty() || !rest.is_empty() {
        return Err("usage: faithful DIRECTORY TASK FILE [DIRECTORY TASK FILE …]".into());
    }
    let compute = Compute::detect(Threads::available())?;
    let results = cases.iter().map(|[directory, task, data]| compare(directory.as_ref(), task, data, &compute));
    let results = results.collect::<Result<Vec<Value>, _>>()?;
    let name = |path: &String| Path::new(path).file_name().map_or(path.clone(), |name| name.to_string_lossy().into());
    let named: Vec<String> = cases.iter().flatten().map(name).collect();
    let report = json!({
        "what": "scores of the quantized checkpoint (training engine) against those of its packed file (integer runtime)",
        "command": format!("cargo run --release -p qbert-paper --example faithful -- {}", named.join(" ")),
        "kernels": compute.kernels().multiplier().name(),
        "threads": compute.threads().count(),
        "results": results,
    });
    writeln!(std::io::stdout(), "{report:#}")?;
    let faithful = results.iter().all(|result| result["differing_scores"] == 0 && result["differing_answers"] == 0);
    if faithful { Ok(()) } else { Err("the packed model is not the quantized one".into()) }
}

fn compare(directory: &Path, task: &str, data: &str, compute: &Compute) -> Result<Value, Box<dyn Error>> {
    let task: Task = task.parse()?;
    let loaded = Loaded::open(directory, &DataSource::new(task, [data]))?;
    let Some(quantization) = loaded.as_quantized(directory, compute)? else {
        return Err(format!("{}: not written by qbert quantize", directory.display()).into());
    };
    let bert = &loaded.bert;
    let TaskData { features, labels, .. } = &*loaded.data;
    let weights = loaded.model_weights(Some(&quantization));
    let trained = scores_with(bert, compute, weights, features, |_| {})?;
    let packed = PackedModel::open(&directory.join("model.qbert"))?;
    let session = Session::new(packed, SessionOptions::default().compute(compute.clone()))?;
    let packed = packed_evaluation::scores(&session, features, |_, _| {})?;
    let pairs = || trained.iter().flatten().zip(packed.iter().flatten());
    let answers = [&trained, &packed].map(|scores| features.predict(scores, bert.outputs()));
    let [trained_answers, packed_answers] = answers;
    let (trained_answers, packed_answers) = (trained_answers?, packed_answers?);
    Ok(json!({
        "task": task.to_string(),
        "encoder_bits": encoder_bits(session.plan()),
        "embedding_bits": [session.plan().embedding().word.bits, session.plan().embedding().position.bits],
        "sequences": features.len(),
        "scores": pairs().count(),
        "differing_scores": pairs().filter(|(a, b)| a.to_bits() != b.to_bits()).count(),
        "largest_difference": pairs().map(|(a, b)| (a - b).abs()).fold(0.0, f32::max),
        "answers": count(&trained_answers),
        "differing_answers": differing(&trained_answers, &packed_answers),
        "checkpoint": features.score(&trained_answers, labels)?.value,
        "packed": features.score(&packed_answers, labels)?.value,
    }))
}

/// The width of each layer's first matrix.
fn encoder_bits(plan: &Plan) -> Vec<Precision> {
    plan.layers().iter().map(|layer| layer.query.bits).collect()
}

/// Texts, sentences or questions.
fn count(answers: &Predictions) -> usize {
    match answers {
        Predictions::Labels(all) => all.len(),
        Predictions::LabelSets(all) => all.len(),
        Predictions::Values(all) => all.len(),
        Predictions::Tags(all) => all.len(),
        Predictions::Answers(all) => all.len(),
        Predictions::Vectors(all) => all.len(),
    }
}

/// How many labels, tagged sentences or answers differ.
fn differing(a: &Predictions, b: &Predictions) -> usize {
    match (a, b) {
        (Predictions::Labels(a), Predictions::Labels(b)) => a.iter().zip(b).filter(|(a, b)| a.0 != b.0).count(),
        (Predictions::LabelSets(a), Predictions::LabelSets(b)) => a.iter().zip(b).filter(|(a, b)| a != b).count(),
        (Predictions::Values(a), Predictions::Values(b)) => a.iter().zip(b).filter(|(a, b)| a != b).count(),
        (Predictions::Tags(a), Predictions::Tags(b)) => a.iter().zip(b).filter(|(a, b)| a != b).count(),
        (Predictions::Answers(a), Predictions::Answers(b)) => a.iter().zip(b).filter(|(a, b)| a.0 != b.0).count(),
        _ => usize::MAX,
    }
}
