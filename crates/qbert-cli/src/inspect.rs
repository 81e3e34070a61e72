//! `qbert inspect`: what a checkpoint is, checked tensor by tensor, and what it could shrink to; or what a packed model
//! is (`inspect_packed`).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clap::Args;
use qbert_model::Checkpoint;
use qbert_model::sizes::file_size as weight_bytes;
use qbert_pipeline::Result;
use qbert_pipeline::planning::besides_weights;
use qbert_quant::size::mebibytes;
use qbert_quant::{BitWidth, GroupSpec, Plan, Precision, RangeMethod};
use qbert_tasks::Tokenizer;

use super::describe::Described;
use super::machine::Computer;
use super::table::{Table, file_size, size};
use super::{inspect_packed, model, versioned_json};

/// Show what a checkpoint or a packed model holds, and check all of it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qbert inspect minilm
  qbert inspect ./my-finetuned-bert --json
  qbert inspect small/model.qbert")]
pub(crate) struct Options {
    /// Checkpoint directory, hub id, `minilm`, or a packed model.
    model: String,
    /// Print as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options, quiet: bool) -> Result<String> {
    let path = std::path::Path::new(&options.model);
    if path.is_file() {
        return inspect_packed::run(path, options.json);
    }
    let directory = model::directory(&options.model, quiet)?;
    let checkpoint = Checkpoint::open(&directory)?;
    let parameters = match checkpoint.unsupported_head() {
        None => checkpoint.load()?,
        // The rest is worth a look all the same.
        Some(_) => checkpoint.load_for(checkpoint.head(), 0)?.parameters,
    };
    let tokenizer = Tokenizer::for_model(&directory, checkpoint.config().vocab_size)?;
    let report = Report::new(&checkpoint, parameters.values().len(), tokenizer.vocab_size())?;
    Ok(if options.json { versioned_json("qbert-checkpoint", &report) } else { report.text() })
}

#[derive(Debug, serde::Serialize)]
struct Report {
    directory: String,
    #[serde(flatten)]
    described: Described,
    tokenizer_size: usize,
    parameters: usize,
    f32_bytes: usize,
    stored_as: BTreeMap<String, usize>,
    unused_tensors: Vec<String>,
    /// What would run the model here.
    #[serde(flatten)]
    computer: Computer,
    sizes: Vec<Size>,
}

/// The sizes at one width for all layers.
#[derive(Debug, serde::Serialize)]
struct Size {
    bits: Precision,
    groups: GroupSpec,
    paper_total_mib: f64,
    paper_encoder_mib: f64,
    file_bytes: u64,
}

impl Report {
    fn new(checkpoint: &Checkpoint, parameters: usize, tokenizer_size: usize) -> Result<Self> {
        let config = checkpoint.config();
        let layout = checkpoint.layout();
        let shape = config.shape(Some(&layout));
        let narrowest = config.hidden_size.min(config.intermediate_size).min(config.embedding_size);
        let groups = GroupSpec::default_for(narrowest);
        let besides = besides_weights(checkpoint.directory(), &shape)?;
        let size = |width: Precision| -> Result<Size> {
            let plan = Plan::uniform(config.distinct_layers(), width, groups, RangeMethod::Mse);
            let paper = shape.paper_size(&plan)?;
            let (paper_total_mib, paper_encoder_mib) = (paper.total(), paper.without_embedding());
            let file_bytes = weight_bytes(&shape, &plan)?.total() + besides;
            Ok(Size { bits: width, groups, paper_total_mib, paper_encoder_mib, file_bytes })
        };
        let widths = [BitWidth::EIGHT, BitWidth::FOUR, BitWidth::THREE, BitWidth::TWO];
        Ok(Self {
            directory: checkpoint.directory().display().to_string(),
            described: Described::new(config, checkpoint.head(), checkpoint.labels())
                .with_unsupported_head(checkpoint.unsupported_head()),
            tokenizer_size,
            parameters,
            f32_bytes: 4 * parameters,
            stored_as: checkpoint.dtypes(),
            unused_tensors: checkpoint.unused(&layout),
            computer: Computer::here()?,
            sizes: widths.map(Precision::Bits).into_iter().map(size).collect::<Result<_>>()?,
        })
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let stored: Vec<String> = self.stored_as.iter().map(|(dtype, count)| format!("{count} in {dtype}")).collect();
        let _ = writeln!(text, "{}", self.directory);
        text += &self.described.lines();
        let (count, mib) = (self.parameters, mebibytes(8 * self.f32_bytes as u64));
        let _ = writeln!(text, "  parameters  {count}, {} in f32, all finite", size(mib));
        let _ = writeln!(text, "  tensors     {}", stored.join(", "));
        if !self.unused_tensors.is_empty() {
            let _ = writeln!(text, "  not used    {}", self.unused_tensors.join(", "));
        }
        text += &self.computer.lines();
        let mut table = Table::new(["bits", "paper's size", "encoder only", "packed file", "smaller by"]);
        for at in &self.sizes {
            table.row([
                at.bits.to_string(),
                size(at.paper_total_mib),
                size(at.paper_encoder_mib),
                file_size(at.file_bytes),
                format!("{:.1}x", self.f32_bytes as f64 / at.file_bytes as f64),
            ]);
        }
        let groups = self.sizes.first().map_or_else(String::new, |size| size.groups.to_string());
        let _ = write!(text, "\nwhat it could shrink to ({groups} groups, embedding and activations 8 bit)\n{table}");
        text
    }
}
