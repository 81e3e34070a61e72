//! `qbert pack`: a checkpoint in, one file for predictions out.

use std::path::{Path, PathBuf};

use clap::Args;
use qbert_model::Checkpoint;
use qbert_pipeline::packing::{CalibrationData, FILE_NAME, Packing, PartWidths, plan_by_widths};
use qbert_pipeline::planning;
use qbert_pipeline::{Error, ErrorKind, Result};
use qbert_quant::{BitWidth, Plan, Precision, RangeMethod, TableWidth};
use qbert_tasks::{DataSource, Task};
use qbert_train::loading::Loaded;
use qbert_train::qat::files::is_quantized;

use super::progress::Progress;
use super::reading::Reading;
use super::table::beside_f32;
use super::{compute, model, plan, stop, versioned_json};

/// Pack a checkpoint into one small file for `qbert predict`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qbert pack small --out model.qbert                     a directory that `qbert quantize` wrote
  qbert pack tuned --plan plan.toml --calibrate train.tsv --task sst2 --out model.qbert
  qbert pack tuned --bits 4 --activation-bits 32 --out model.qbert

A quantized directory has its own plan and ranges. Any other checkpoint is quantized as the plan says,
without training: activation ranges are learned from the first 1,024 examples of --calibrate, or
activations stay in f32.")]
#[command(mut_arg("task", |argument| argument.required(false)))]
pub(crate) struct Options {
    /// Checkpoint directory, or a hub id.
    model: String,
    /// File to write.
    #[arg(long, value_name = "FILE", default_value = FILE_NAME)]
    out: PathBuf,
    /// What is quantized how: a file that `qbert plan` wrote.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["bits", "embedding_bits", "range"])]
    plan: Option<PathBuf>,
    /// Width of every encoder layer: 1 to 8, 1.6 (ternary), or 32 for none; a second one for the middle third of the layers: 2,3.
    #[arg(long, value_delimiter = ',', value_name = "N[,N]")]
    bits: Vec<Precision>,
    /// Width of the embedding tables: one number, or WORD,REST; 8/6 stores the word table as product codes, a byte for six values [default: 8].
    #[arg(long, value_delimiter = ',', value_name = "N[,N]", requires = "bits")]
    embedding_bits: Vec<TableWidth>,
    /// How ranges of weights are found: `mse`, `min-max` or `percentile:99.9` [default: mse].
    #[arg(long, requires = "bits")]
    range: Option<String>,
    /// Width of activations, instead of the plan's: 8, or 32 for f32.
    #[arg(long, value_name = "N")]
    activation_bits: Option<Precision>,
    /// File to learn activation ranges from.
    #[arg(long, value_name = "FILE")]
    calibrate: Option<PathBuf>,
    #[command(flatten)]
    reading: Reading,
    /// Threads [default: one per core].
    #[arg(long, help_heading = "Run")]
    threads: Option<usize>,
    /// Print the result as JSON.
    #[arg(long, help_heading = "Run")]
    json: bool,
}

#[derive(Debug, serde::Serialize)]
struct Packed {
    file: String,
    bytes: u64,
    f32_bytes: usize,
}

pub(crate) fn run(options: &Options, quiet: bool) -> Result<String> {
    let directory = model::directory(&options.model, quiet)?;
    let (task, given) = (options.reading.optional_task()?, plan(options, &directory)?);
    let mut packing = match given {
        None if is_quantized(&directory)? => Packing::quantized(&directory)?,
        None => {
            let message = format!("{}: not a directory that `qbert quantize` wrote", directory.display());
            let hint = "give --plan, or --bits with --calibrate (or --activation-bits 32)".to_owned();
            return Err(Error::new(ErrorKind::BadInput, message, hint));
        }
        Some(plan) => by_plan(options, &directory, plan, task, quiet)?,
    };
    packing.note("command", &stop::command());
    if let Some(task) = task {
        packing = packing.for_task(task.name());
    }
    let bytes = packing.write(&options.out)?;
    let f32_bytes = 4 * Checkpoint::open(&directory)?.layout().len();
    let packed = Packed { file: options.out.display().to_string(), bytes, f32_bytes };
    Ok(if options.json { versioned_json("qbert-pack", &packed) } else { text_of(&packed) })
}

fn text_of(packed: &Packed) -> String {
    format!("{}: {}\n", packed.file, beside_f32(packed.bytes, packed.f32_bytes as u64))
}

/// The plan from the flags; `None` if there is none.
fn plan(options: &Options, directory: &Path) -> Result<Option<Plan>> {
    let activation = |plan: Plan| -> Result<Plan> {
        let Some(bits) = options.activation_bits else { return Ok(plan) };
        let mut activation = *plan.activation();
        activation.bits = bits;
        Ok(plan.with_activation(activation))
    };
    if let Some(path) = &options.plan {
        return activation(planning::read(path)?).map(Some);
    }
    let Some(&layers) = options.bits.first() else {
        if options.activation_bits.is_some() {
            let message = "--activation-bits without --plan or --bits";
            let hint = "add one of them: it decides the widths of the weights".to_owned();
            return Err(Error::new(ErrorKind::BadInput, message, hint));
        }
        return Ok(None);
    };
    let range = options.range.as_deref().map_or(Ok(RangeMethod::Mse), |text| plan::parse("--range", text))?;
    let config = qbert_model::Config::read(&directory.join("config.json"))?;
    let eight = TableWidth::from(Precision::Bits(BitWidth::EIGHT));
    let widths = PartWidths {
        layers,
        middle_layers: options.bits.get(1).copied(),
        word_embedding: options.embedding_bits.first().copied().unwrap_or(eight),
        other_embeddings: options.embedding_bits.last().map_or(eight, |width| width.bits.into()),
        activations: options.activation_bits.unwrap_or(Precision::Bits(BitWidth::EIGHT)),
        range,
    };
    Ok(Some(plan_by_widths(&config, &widths)?))
}

fn by_plan(options: &Options, directory: &Path, plan: Plan, task: Option<Task>, quiet: bool) -> Result<Packing> {
    let compute = compute(options.threads)?;
    let Some(file) = &options.calibrate else {
        return Packing::by_plan(directory, plan, None, &compute);
    };
    let Some(task) = task else {
        let hint = "say how the file is read: --task sst2".to_owned();
        return Err(Error::new(ErrorKind::BadInput, "--calibrate without --task", hint));
    };
    let (files, read) = (vec![file.clone()], options.reading.options(false)?);
    let source = DataSource { task, files, read, max_len: options.reading.max_len(directory)? };
    let loaded = Loaded::open(directory, &source)?;
    let mut progress = Progress::new("calibrate", quiet);
    progress.say("calibrate: weights first, then activations");
    let data = CalibrationData::Examples(&loaded.data.features);
    Packing::by_plan_watched(directory, plan, Some(data), &compute, &mut |done, total| {
        progress.at(done, total, "batches");
    })
}
