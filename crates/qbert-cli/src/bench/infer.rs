//! `qbert bench infer`: the speed of a packed model, on the workloads and in the fields of the compared programs' script.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use qbert_kernels::Threads;
use qbert_model::Config;
use qbert_pipeline::packing::{CalibrationData, Packing, PartWidths, middle_layers, plan_by_widths};
use qbert_pipeline::{Error, ErrorKind, Result};
use qbert_quant::{BitWidth, Precision, RangeMethod};
use qbert_runtime::{Scope, Session, SessionOptions, Tokens};
use qbert_train::Batch;
use qbert_train::random::Stream;

use super::classifier::peak_rss_mib;
use crate::machine::Computer;
use crate::{compute, model, note};

/// Runs before the first measured one; one is enough if it takes the whole budget.
const WARM: usize = 2;

/// A packed model's forward pass: A 1x32, B 1x128, C 1x384, D 32x128 tokens.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qbert bench infer --model model.qbert --threads 1 2 --json
  qbert bench infer --model minilm --bits 2,3 --work BD --json
  qbert bench infer --model minilm --bits 8 --save eight.qbert

A checkpoint is first packed in memory, without training: every layer at the first width, the middle
third of the layers at the second, the word embedding at 4 bits, positions and types at 8, activations
at 8. All tokens' final hidden states are computed, unless --first-token-only is given.")]
pub(crate) struct Options {
    /// Packed model, checkpoint directory, hub id, or `minilm`.
    #[arg(long)]
    model: String,
    /// Widths of a checkpoint's layers: one, or a second one for the middle layers; 32 for f32 [default: 2,3].
    #[arg(long, value_delimiter = ',', value_name = "N[,N]")]
    bits: Vec<Precision>,
    /// Numbers of threads to measure.
    #[arg(long, num_args = 1.., default_values_t = [1, 2])]
    threads: Vec<usize>,
    /// Works to measure, by letter.
    #[arg(long, default_value = "ABCD")]
    work: String,
    /// Seconds for each measurement.
    #[arg(long, default_value_t = 3.0)]
    budget: f64,
    /// Runs of each measurement, at least.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Write the checkpoint, as it was packed, to this file, to measure it again without packing.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Leave out the other tokens after the last layer's attention, as a classifier of texts may.
    #[arg(long)]
    first_token_only: bool,
    /// Print one JSON line per measurement.
    #[arg(long)]
    json: bool,
}

/// One measurement, in the fields of the compared programs' script and some more.
#[derive(Debug, serde::Serialize)]
struct Measurement {
    peer: String,
    work: char,
    tokens: String,
    threads: usize,
    ms: f64,
    best_ms: f64,
    n: usize,
    bits: String,
    first_token_only: bool,
    file_bytes: usize,
    peak_rss_mib: Option<f64>,
    #[serde(flatten)]
    computer: Computer,
}

pub(crate) fn run(options: &Options, quiet: bool) -> Result<String> {
    let works = options.work.chars().map(work).collect::<Result<Vec<_>>>()?;
    let bytes = bytes(options, quiet)?;
    let mut text = if options.json { String::new() } else { format!("{}\n", Computer::here()?) };
    for &threads in &options.threads {
        let options_of = SessionOptions::default().threads(threads);
        let session = Session::from_bytes(&options.model, bytes.clone(), options_of)?;
        check_lengths(&works, session.config().max_positions)?;
        for &work in &works {
            let found = measure(options, &session, work)?;
            if options.json {
                text += &serde_json::to_string(&found).unwrap_or_default();
            } else {
                let Measurement { work, tokens, threads, ms, best_ms, n, .. } = &found;
                text += &format!("{work} {tokens}, {threads} threads: {ms:.3} ms (best {best_ms:.3} of {n})");
            }
            text.push('\n');
        }
    }
    Ok(text)
}

/// A workload, named by a letter.
#[derive(Debug, Clone, Copy)]
struct Work {
    letter: char,
    sequences: usize,
    /// Tokens per sequence.
    length: usize,
}

/// Refuses workloads with sequences that are too long for the model.
fn check_lengths(works: &[Work], positions: usize) -> Result<()> {
    let Some(Work { letter, length, .. }) = works.iter().find(|work| work.length > positions) else { return Ok(()) };
    let fitting: String = works.iter().filter(|work| work.length <= positions).map(|work| work.letter).collect();
    let message = format!("--work: {letter} has sequences of {length} tokens, but the model takes at most {positions}");
    let hint = if fitting.is_empty() {
        "choose a shorter one (A has 32 tokens, B and D 128, C 384), or a model with more positions".to_owned()
    } else {
        format!("--work {fitting} fits")
    };
    Err(Error::new(ErrorKind::BadInput, message, hint))
}

fn work(letter: char) -> Result<Work> {
    let work = |sequences, length| Ok(Work { letter, sequences, length });
    match letter {
        'A' => work(1, 32),
        'B' => work(1, 128),
        'C' => work(1, 384),
        'D' => work(32, 128),
        other => {
            let message = format!("--work: there is no work {other}");
            Err(Error::new(ErrorKind::BadInput, message, "the works are A, B, C and D".to_owned()))
        }
    }
}

/// The packed model: the file itself, or a checkpoint packed now.
fn bytes(options: &Options, quiet: bool) -> Result<Vec<u8>> {
    let path = Path::new(&options.model);
    if path.is_file() {
        if !options.bits.is_empty() {
            let hint = "leave --bits out, or give the checkpoint".to_owned();
            return Err(Error::new(ErrorKind::BadInput, "--bits: a packed model has its own widths", hint));
        }
        if options.save.is_some() {
            let hint = "leave --save out: this is such a file".to_owned();
            return Err(Error::new(ErrorKind::BadInput, "--save: the model is packed already", hint));
        }
        let failed = |source| qbert_model::Error::Io { path: path.to_owned(), action: "read", source };
        return Ok(std::fs::read(path).map_err(failed)?);
    }
    let directory = model::directory(&options.model, quiet)?;
    let config = Config::read(&directory.join("config.json"))?;
    let layers = options.bits.first().copied().unwrap_or(Precision::Bits(BitWidth::TWO));
    let usual = Some(Precision::Bits(BitWidth::THREE));
    let middle = if options.bits.is_empty() { usual } else { options.bits.get(1).copied() };
    // A model in full precision is so in every part.
    let unless_full = |width| if layers == Precision::Full { layers } else { Precision::Bits(width) };
    let widths = PartWidths {
        layers,
        middle_layers: middle,
        word_embedding: unless_full(BitWidth::FOUR).into(),
        other_embeddings: unless_full(BitWidth::EIGHT).into(),
        activations: unless_full(BitWidth::EIGHT),
        range: RangeMethod::MinMax,
    };
    if let (Some(bits), false) = (middle, quiet) {
        note(&format!("layers {:?} at {bits} bits, the others at {layers}", middle_layers(config.layers)));
    }
    let plan = plan_by_widths(&config, &widths)?;
    let (ids, offsets) = tokens(&config, 8, config.max_positions.min(64));
    let batch = Batch { segments: vec![0; ids.len()], input_ids: ids, offsets, ..Batch::new() };
    let data = CalibrationData::Batches(std::slice::from_ref(&batch));
    let packing = Packing::by_plan(&directory, plan, Some(data), &compute(Some(Threads::available()))?)?;
    let bytes = packing.bytes(&options.model)?;
    if let Some(file) = &options.save {
        qbert_model::atomic::write_file(file, |writer| writer.write_all(&bytes))?;
    }
    Ok(bytes)
}

/// Random tokens between `[CLS]` and `[SEP]`, always the same.
fn tokens(config: &Config, sequences: usize, length: usize) -> (Vec<u32>, Vec<usize>) {
    let mut stream = Stream::new(1, "bench infer", 0);
    let mut ids = Vec::with_capacity(sequences * length);
    for index in 0..sequences * length {
        let id = match index % length {
            0 => 101.min(config.vocab_size - 1),
            last if last == length - 1 => 102.min(config.vocab_size - 1),
            _ => stream.below(config.vocab_size),
        };
        ids.push(id as u32);
    }
    (ids, (0..=sequences).map(|sequence| sequence * length).collect())
}

fn measure(options: &Options, session: &Session, work: Work) -> Result<Measurement> {
    let Work { letter, sequences, length } = work;
    let (ids, offsets) = tokens(session.config(), sequences, length);
    let segments = vec![0; ids.len()];
    let scope = if options.first_token_only { Scope::Scores } else { Scope::Hidden };
    let run = || session.forward(Tokens { ids: &ids, segments: &segments, offsets: &offsets }, scope).map(drop);
    let budget = Duration::try_from_secs_f64(options.budget).unwrap_or(Duration::ZERO);
    let begun = Instant::now();
    for warm in 0..WARM {
        if warm == 0 || begun.elapsed() < budget {
            run()?;
        }
    }
    let mut times = Vec::new();
    let end = Instant::now() + budget;
    while times.len() < options.runs as usize || Instant::now() < end {
        let start = Instant::now();
        run()?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    let rounded = |ms: f64| (ms * 1e3).round() / 1e3;
    Ok(Measurement {
        peer: format!("qbert-{}", session.compute().kernels().multiplier().name()),
        work: letter,
        tokens: format!("{sequences}x{length}"),
        threads: session.compute().threads().count(),
        ms: rounded(times[times.len() / 2]),
        best_ms: rounded(times[0]),
        n: times.len(),
        bits: widths(session),
        first_token_only: options.first_token_only,
        file_bytes: session.model().file_len(),
        peak_rss_mib: peak_rss_mib(),
        computer: Computer::with(session.compute().kernels()),
    })
}

/// The widths that encoder layers have, narrowest first.
fn widths(session: &Session) -> String {
    let sites = session.plan().sites().filter(|(site, _)| site.layer().is_some());
    let mut widths: Vec<Precision> = sites.map(|(_, plan)| plan.bits).collect();
    widths.sort_unstable();
    widths.dedup();
    widths.iter().map(Precision::to_string).collect::<Vec<_>>().join(",")
}
