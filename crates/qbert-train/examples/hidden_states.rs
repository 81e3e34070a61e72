//! The last hidden states of a checkpoint, one JSON list per line: `hidden_states DIRECTORY < ids.jsonl`.
//!
//! A line is a list of token ids. `reference/train/real_weights.py` compares the output with `transformers`.

use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::Arc;

use qbert_kernels::Compute;
use qbert_model::Checkpoint;
use qbert_train::bert::{Activations, Mode};
use qbert_train::{Batch, Bert};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args().nth(1).ok_or("usage: hidden_states DIRECTORY < ids.jsonl")?;
    let checkpoint = Checkpoint::open(Path::new(&directory))?;
    let weights = checkpoint.load()?;
    let bert = Bert::new(checkpoint.config(), Arc::clone(weights.layout()))?;
    let compute = Compute::detect(2)?;
    let mut activations = Activations::for_evaluation();
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for line in std::io::stdin().lock().lines() {
        let ids: Vec<u32> = serde_json::from_str(&line?)?;
        let mut batch = Batch::new();
        batch.push(&ids, &vec![0; ids.len()]);
        bert.check(&batch)?;
        bert.forward(&compute, weights.values(), &batch, Mode::Evaluate, &mut activations);
        writeln!(out, "{}", serde_json::to_string(activations.last_hidden(checkpoint.config()))?)?;
    }
    Ok(())
}
