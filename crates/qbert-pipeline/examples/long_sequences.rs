//! Time and memory of long sequences: ModernBERT-base's shape with random weights, at 512, 2,048 and 8,192 tokens.
//!
//! ```text
//! cargo run --release -p qbert-pipeline --example long_sequences -- all RESULT.json
//! ```
//!
//! Every point is a process of its own, so that its peak memory is its own. `infer` is one pass of the packed model (4-bit
//! weights, 8-bit activations), the best of three; `train` is one step in f32: forward, backward and optimizer.

#![allow(clippy::print_stdout, reason = "a program for people")]

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use qbert_kernels::{Compute, Machine, Threads};
use qbert_model::{
    Checkpoint, Config, Head, PackedModel, ParameterLayout, Parameters, Storage, TokenizerFiles, write_checkpoint,
};
use qbert_pipeline::packing::Packing;
use qbert_quant::{ActivationPlan, BitWidth, GroupSpec, Plan, Precision, RangeMethod};
use qbert_runtime::{Scope, Session, SessionOptions, Tokens};
use qbert_train::bert::{Activations, BackwardBuffers, Mode, Pass};
use qbert_train::optimizer::{Optimizer, OptimizerSettings};
use qbert_train::qat::{Calibration, Quantization, files};
use qbert_train::random::Stream;
use qbert_train::{Batch, Bert, Targets};
use serde_json::{Value, json};

const TOKENS: [usize; 3] = [512, 2048, 8192];
const VOCABULARY: usize = 50_368;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["all", out] => all(Path::new(out)),
        ["pack", directory] => pack(Path::new(directory)),
        ["infer", directory, tokens] => print(&infer(Path::new(directory), tokens.parse()?)?),
        ["train", tokens] => print(&train(tokens.parse()?)?),
        _ => Err("all RESULT.json | pack DIR | infer DIR TOKENS | train TOKENS".into()),
    }
}

fn print(value: &Value) -> Outcome<()> {
    println!("{value}");
    Ok(())
}

/// Runs every point and writes the result.
fn all(out: &Path) -> Outcome<()> {
    let directory = std::env::temp_dir().join(format!("qbert-long-sequences-{}", std::process::id()));
    let path = directory.display().to_string();
    run(&["pack", &path])?;
    let mut points = Vec::new();
    for what in ["infer", "train"] {
        for tokens in TOKENS.map(|tokens| tokens.to_string()) {
            let point = if what == "infer" { run(&[what, &path, &tokens])? } else { run(&[what, &tokens])? };
            println!("{point}");
            points.push(point);
        }
    }
    std::fs::remove_dir_all(&directory)?;
    let result = json!({
        "what": "one sequence through the shape of ModernBERT-base (22 layers, 768 wide, random weights): seconds and peak memory",
        "command": "cargo run --release -p qbert-pipeline --example long_sequences -- all results/long-sequences.json",
        "machine": Machine::here().name(),
        "kernels": Compute::detect(1)?.kernels().to_string(),
        "threads": Threads::available(),
        "points": points,
    });
    std::fs::write(out, format!("{result:#}\n"))?;
    Ok(())
}

/// Runs one point in a process of its own.
fn run(arguments: &[&str]) -> Outcome<Value> {
    let output = Command::new(std::env::current_exe()?).args(arguments).output()?;
    if !output.status.success() {
        return Err(format!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let text = String::from_utf8(output.stdout)?;
    Ok(if text.trim().is_empty() { Value::Null } else { serde_json::from_str(&text)? })
}

fn config() -> Outcome<Config> {
    let text = json!({
        "model_type": "modernbert", "architectures": ["ModernBertForSequenceClassification"], "vocab_size": VOCABULARY,
        "hidden_size": 768, "num_hidden_layers": 22, "num_attention_heads": 12, "intermediate_size": 1152,
        "max_position_embeddings": 8192, "global_attn_every_n_layers": 3, "local_attention": 128,
        "id2label": {"0": "no", "1": "yes"},
    });
    Ok(Config::parse(text.to_string().as_bytes(), Path::new("config.json"))?)
}

fn weights(config: &Config) -> Parameters {
    let layout = ParameterLayout::new(config, Head::SequenceClassification, 2, false);
    let mut weights = Parameters::zeros(layout.clone().into());
    Stream::new(1, "weights", 0).fill_normal(weights.values_mut(), 0.02);
    for parameter in layout.parameters().iter().filter(|parameter| parameter.role.module.is_norm()) {
        weights.values_mut()[parameter.span.clone()].fill(1.0);
    }
    weights
}

fn batch(tokens: usize) -> Batch {
    let mut stream = Stream::new(2, "tokens", 0);
    let ids: Vec<u32> = (0..tokens).map(|_| stream.below(VOCABULARY) as u32).collect();
    let mut batch = Batch::new();
    batch.push(&ids, &vec![0; tokens]);
    batch.targets = Targets::Sequences(vec![1]);
    batch
}

/// Writes `DIR/model.qbert`: 4-bit weights, 8-bit activations with the ranges of one short batch.
fn pack(directory: &Path) -> Outcome<()> {
    let (config, compute) = (config()?, Compute::detect(Threads::available())?);
    let tokens = directory.join("tokenizer");
    std::fs::create_dir_all(&tokens)?;
    let words: Vec<String> = (5..VOCABULARY).map(|index| format!("w{index}")).collect();
    std::fs::write(tokens.join("vocab.txt"), format!("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n{}\n", words.join("\n")))?;
    let (checkpoint, files) = (directory.join("checkpoint"), TokenizerFiles::read(&tokens)?);
    write_checkpoint(&checkpoint, &config, &weights(&config), &config.labels, &files)?;

    let four = Precision::Bits(BitWidth::new(4)?);
    let plan = Plan::uniform(config.layers, four, GroupSpec::Count(64), RangeMethod::MinMax)
        .with_activation(ActivationPlan { bits: Precision::Bits(BitWidth::EIGHT), range: RangeMethod::MinMax });
    let mut masters = Checkpoint::open(&checkpoint)?.load()?;
    let bert = Bert::new(&config, masters.layout().clone())?;
    let mut quantization = Quantization::new(plan, &config, masters.layout())?;
    let batches = [batch(256)];
    let calibration =
        Calibration { bert: &bert, compute: &compute, batches: &batches, compensate: false, fit_steps: 0 };
    quantization.calibrate(masters.values_mut(), calibration)?;
    files::write(&checkpoint, &quantization)?;
    std::fs::write(directory.join("model.qbert"), Packing::quantized(&checkpoint)?.bytes("model.qbert")?)?;
    Ok(std::fs::remove_dir_all(&checkpoint)?)
}

fn infer(directory: &Path, tokens: usize) -> Outcome<Value> {
    let compute = Compute::detect(Threads::available())?;
    let model = PackedModel::open_in(Storage::Memory, &directory.join("model.qbert"))?;
    let file = model.file_len();
    let session = Session::new(model, SessionOptions::default().compute(compute))?;
    let asked = batch(tokens);
    let asked = Tokens { ids: &asked.input_ids, segments: &asked.segments, offsets: &asked.offsets };
    let before = memory("VmRSS")?;
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let start = Instant::now();
        let output = session.forward(asked, Scope::All)?;
        best = best.min(start.elapsed().as_secs_f64());
        if output.logits().iter().any(|score| !score.is_finite()) {
            return Err("a score is not a number".into());
        }
    }
    point("infer", tokens, best, before, file)
}

fn train(tokens: usize) -> Outcome<Value> {
    let (config, compute) = (config()?, Compute::detect(Threads::available())?);
    let mut weights = weights(&config);
    let bert = Bert::new(&config, weights.layout().clone())?;
    let mut optimizer = Optimizer::new(OptimizerSettings::default(), weights.layout());
    let mut gradients = vec![0.0; weights.values().len()];
    let (mut activations, mut buffers) = (Activations::for_training(), BackwardBuffers::default());
    let batch = batch(tokens);
    bert.check(&batch)?;
    let before = memory("VmRSS")?;
    let start = Instant::now();
    let mode = Mode::Train { seed: 1, step: 0 };
    bert.forward(&compute, weights.values(), &batch, mode, &mut activations);
    let loss = bert.loss(&batch, &activations, 1.0, &mut buffers);
    let pass = Pass { compute: &compute, weights: weights.values(), batch: &batch, mode };
    bert.backward(pass, &activations, &mut buffers, &mut gradients);
    optimizer.step(&compute, 1e-5, weights.values_mut(), &gradients);
    let seconds = start.elapsed().as_secs_f64();
    if !loss.mean.is_finite() {
        return Err("the loss is not a number".into());
    }
    point("train", tokens, seconds, before, 4 * weights.values().len())
}

/// What was measured: memory in MiB, before the sequence and at its peak.
fn point(what: &str, tokens: usize, seconds: f64, before: f64, weights: usize) -> Outcome<Value> {
    let rounded = |value: f64, digits: f64| (value * digits).round() / digits;
    Ok(json!({
        "what": what, "tokens": tokens, "seconds": rounded(seconds, 1000.0),
        "peak_mib": rounded(memory("VmHWM")?, 1.0), "before_mib": rounded(before, 1.0),
        "weights_mib": rounded(weights as f64 / f64::from(1 << 20), 1.0),
    }))
}

/// A number of `/proc/self/status` in MiB.
fn memory(key: &str) -> Outcome<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    let kib = line.and_then(|line| line.split_whitespace().next()).ok_or("no such number")?;
    Ok(kib.parse::<f64>()? / 1024.0)
}
