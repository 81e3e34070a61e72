//! Whether a packed model says what the quantized checkpoint says that it was packed from, on a data file: the largest
//! difference of scores, and every answer that differs.
//!
//! `cargo run --release -p qbert --example faithful -- DIRECTORY MODEL.qbert TASK FILE`

use std::error::Error;
use std::io::Write;
use std::path::Path;

use qbert::kernels::{Compute, Threads};
use qbert::packed_evaluation;
use qbert::runtime::{Session, SessionOptions};
use qbert::tasks::{ReadOptions, Task};
use qbert::train::evaluate::{Predictions, predict, scores_with};
use qbert::train::loading::Loaded;
use qbert::train::qat::files;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, packed, task, data] = &arguments[..] else {
        return Err("usage: faithful DIRECTORY MODEL.qbert TASK FILE".into());
    };
    let (directory, task): (&Path, Task) = (directory.as_ref(), task.parse()?);
    let compute = Compute::detect(Threads::available())?;
    let loaded = Loaded::open(directory, task, &[data.into()], &ReadOptions::default(), task.default_max_len())?;
    let quantization = files::read(directory, loaded.bert.config(), loaded.bert.layout())?;
    let mut values = loaded.weights.values().to_vec();
    quantization.weights().quantize(&compute, loaded.weights.values(), None, &mut values)?;
    let fake = scores_with(&loaded.bert, &compute, (&values, quantization.ranges()), &loaded.features, |_| {})?;
    let session = Session::open(packed, SessionOptions::default())?;
    let found = packed_evaluation::scores(&session, &loaded.features, |_, _| {})?;

    let mut differences: Vec<f32> =
        fake.iter().flatten().zip(found.iter().flatten()).map(|(a, b)| (a - b).abs()).collect();
    differences.sort_by(f32::total_cmp);
    let at = |share: f64| differences.get(((differences.len() - 1) as f64 * share) as usize).copied().unwrap_or(0.0);
    let outputs = loaded.bert.outputs();
    let [fake, found] = [&fake, &found].map(|scores| predict(&loaded.features, scores, outputs));
    let differing = differing(&fake?, &found?);
    writeln!(
        std::io::stdout(),
        "{} sequences, {} scores: differences median {:e}, 99 % {:e}, largest {:e}; {differing} answers differ",
        loaded.features.len(),
        differences.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    )?;
    Ok(())
}

/// How many labels, tagged sentences or answers differ.
fn differing(a: &Predictions, b: &Predictions) -> usize {
    match (a, b) {
        (Predictions::Labels(a), Predictions::Labels(b)) => a.iter().zip(b).filter(|(a, b)| a.0 != b.0).count(),
        (Predictions::Tags(a), Predictions::Tags(b)) => a.iter().zip(b).filter(|(a, b)| a != b).count(),
        (Predictions::Answers(a), Predictions::Answers(b)) => a.iter().zip(b).filter(|(a, b)| a.0 != b.0).count(),
        _ => usize::MAX,
    }
}
