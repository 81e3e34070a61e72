//! `qbert run`: from a checkpoint and data to a packed model and a report; without arguments, the quick-start.

mod progress;
pub(crate) mod quickstart;
mod text;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use qbert_pipeline::planning::PlanRequest;
use qbert_pipeline::planning::search::{DropLimit, WIDTHS};
use qbert_pipeline::run::{Finished, Job, help, run as run_job};
use qbert_pipeline::{Error, ErrorKind, Result};
use qbert_quant::{Precision, TableWidth};
use qbert_runtime::{Classification, Session, SessionOptions};
use qbert_tasks::Task;
use qbert_train::qat::weights::WeightRanges;

use self::progress::RunProgress;
use self::quickstart::{Hit, Quickstart};
use super::progress::Sink;
use super::reading::limit;
use super::training::Training;
use super::{compute, model, note, plan, print, ranks, stop, versioned_json};

/// Fine-tune, analyze, plan, quantize, pack, evaluate and report in one go.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qbert run                            the quick-start: a small BERT on movie reviews, in minutes
  qbert run --task embed               the same for vectors of texts, without labels
  qbert run --model minilm --task sst2 --train train.tsv --dev dev.tsv --out run
  qbert run --model ./bert --task ner --train a.conll --dev b.conll --bits 2,4 --high 4 --out run
  qbert run --model tuned --task classify --train a.csv --dev b.csv --bits 4 --out run
  qbert run --model tuned --task sst2 --train train.tsv --dev dev.tsv --max-drop 0.5 --out run

The same command again does what is left: after Ctrl-C or a crash it continues; after an edit of
plan.toml it quantizes by the edited plan; with other settings it repeats what depends on them and
moves the old results to old/. A model that has a head for the task is not fine-tuned. One width
(--bits 4) needs no analysis. The exit code is 3 if no plan keeps --max-drop. docs/guide/run.md describes every file.")]
#[command(mut_arg("model", |argument| argument.required(false).help("Checkpoint directory, hub id, or `minilm` [default: minilm]")))]
#[command(mut_arg("train", |argument| argument.required(false)))]
#[command(mut_arg("dev", |argument| argument.required(false)))]
#[command(mut_arg("task", |argument| argument.required(false)))]
#[command(mut_arg("out", |argument| argument.required(false).help("Directory of the run [default: run]")))]
#[command(mut_arg("epochs", |argument| argument.help("Passes over the data in fine-tuning")))]
#[command(mut_arg("lr", |argument| argument.help("Highest learning rate in fine-tuning")))]
pub(crate) struct Options {
    #[command(flatten)]
    training: Training,
    /// A run always resumes; accepted because the verbs of single stages have it.
    #[arg(long, hide = true)]
    resume: bool,
    /// Fine-tune even if the model has a head for the task.
    #[arg(long, help_heading = "Run")]
    finetune: bool,
    /// Leave out the loss landscape and the divergence of attention.
    #[arg(long, help_heading = "Run")]
    no_figures: bool,
    /// Do not measure the speed; then every run writes the same bytes.
    #[arg(long, help_heading = "Run")]
    no_speed: bool,
    /// Licence for the model card, such as apache-2.0 [default: the original model's, if its card says].
    #[arg(long, value_name = "ID", help_heading = "Run")]
    license: Option<String>,
    /// Languages for the model card: en,de [default: the original model's, if its card says].
    #[arg(long, value_delimiter = ',', value_name = "CODE[,CODE]", help_heading = "Run")]
    language: Vec<String>,
    #[command(flatten)]
    analysis: AnalysisFlags,
    #[command(flatten)]
    plan: PlanFlags,
    #[command(flatten)]
    quantization: QuantizationFlags,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Analysis")]
struct AnalysisFlags {
    /// Samples of the data, each with its own starting vectors [default: 10].
    #[arg(long)]
    runs: Option<usize>,
    /// Most sequences in a sample, or `all` for no limit [default: 256].
    #[arg(long, value_name = "N")]
    max_examples: Option<String>,
    /// Most products per eigenvalue [default: 50].
    #[arg(long)]
    iterations: Option<usize>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Plan")]
struct PlanFlags {
    /// Widths to choose from, low to high, or one for all layers: 1 to 8, 1.6 (ternary), or 32 for none [default: 2,3].
    #[arg(long, value_delimiter = ',', value_name = "N[,N]", conflicts_with = "own_plan")]
    bits: Vec<Precision>,
    /// This many layers, the most sensitive, get the higher width [default: half of them].
    #[arg(long, value_delimiter = ',', value_name = "N[,N]", conflicts_with_all = ["size", "budget", "own_plan"])]
    high: Vec<usize>,
    /// As many of the most sensitive layers get a higher width as fit in a packed file of this size.
    #[arg(long, value_name = "MB", conflicts_with_all = ["budget", "own_plan"])]
    size: Option<f64>,
    /// The widths with the least sensitivity times squared quantization error in a packed file of this size.
    #[arg(long, value_name = "MB", conflicts_with = "own_plan")]
    budget: Option<f64>,
    /// The smallest packed file whose metric drops by at most this many points on the dev data: plans are measured, and
    /// trained until one keeps the limit [widths by default: 2,3,4,8].
    #[arg(long, value_name = "POINTS", conflicts_with_all = ["high", "size", "budget", "own_plan"])]
    max_drop: Option<f64>,
    /// How sure the drop should be within --max-drop, above 0.5 and below 1: the upper end of its interval decides.
    #[arg(long, value_name = "SHARE", requires = "max_drop")]
    confidence: Option<f64>,
    /// Most plans to measure with --max-drop [default: 12].
    #[arg(long, value_name = "N", requires = "max_drop")]
    tries: Option<usize>,
    /// Groups per encoder matrix: a number, `head` or `neuron` [default: 128].
    #[arg(long, conflicts_with = "own_plan")]
    groups: Option<String>,
    /// How ranges of weights are found: `mse`, `min-max` or `percentile:99.9` [default: mse].
    #[arg(long, conflicts_with = "own_plan")]
    range: Option<String>,
    /// Width of the word, position and type embedding: one number for all, or WORD,REST; 8/6 stores the word embedding as product codes, a byte for six values [default: 4,8].
    #[arg(long, value_delimiter = ',', value_name = "N[,N]", conflicts_with = "own_plan")]
    embedding_bits: Vec<TableWidth>,
    /// Width of the activations between the matrices: 1 to 8, or 32 to leave them in f32 [default: 8].
    #[arg(long, value_name = "N", conflicts_with = "own_plan")]
    activation_bits: Option<Precision>,
    /// How ranges of activations are found: `min-max`, `mse` or `percentile:99.99` [default: min-max].
    #[arg(long, value_name = "HOW", conflicts_with = "own_plan")]
    activation_range: Option<String>,
    /// Use this plan instead of making one.
    #[arg(long = "plan", id = "own_plan", value_name = "FILE")]
    own: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Quantization-aware training")]
struct QuantizationFlags {
    /// Passes over the data; 0 calibrates only [default: the task's recipe].
    #[arg(long, value_name = "N")]
    qat_epochs: Option<usize>,
    /// Highest learning rate [default: the task's].
    #[arg(long, value_name = "LR")]
    qat_lr: Option<f64>,
    /// Take only the first N training examples, or `all` [default: as many as --max-train].
    #[arg(long, value_name = "N")]
    qat_max_train: Option<String>,
    /// Learn from the labels only, not from the full-precision model.
    #[arg(long)]
    no_distill: bool,
    /// Round each weight to its nearest code, instead of compensating for the errors of the others.
    #[arg(long)]
    no_compensate: bool,
    /// How weight ranges change in training: `learn` by gradient, at 10 times the learning rate or another multiple
    /// (`learn:3`), or `follow` the weights [default: learn].
    #[arg(long, value_name = "HOW")]
    weight_ranges: Option<WeightRanges>,
    /// With --task embed: learn from the pairs of the training files, too, not from the texts alone. Pairs with a score
    /// should have cosines in the order of their scores, others should be nearest to each other.
    #[arg(long)]
    learn_pairs: bool,
}

/// Does the run for a program that shows its progress itself; `command` is what the program was asked, for the record.
pub(crate) fn embedded(options: &Options, command: &str, sink: Arc<dyn Sink>) -> Result<Finished> {
    let mut job = options.job(None, true)?;
    command.clone_into(&mut job.command);
    let progress = &mut RunProgress::new(true, options.training.save_every(), Some(sink));
    run_job(&job, &compute(options.training.threads)?, progress)
}

/// What the quick-start's model predicts for our own sentences.
#[derive(Debug, serde::Serialize)]
struct Said {
    text: &'static str,
    #[serde(flatten)]
    answer: Classification,
}

pub(crate) fn run(options: &Options, quiet: bool) -> Result<String> {
    let quick = options.quickstart()?;
    let job = options.job(quick, quiet)?;
    let compute = compute(options.training.threads)?;
    ranks::lead_alone();
    if !compute.writes() {
        help(&job, &compute, &mut RunProgress::new(quiet, options.training.save_every(), None))?;
        return Ok(String::new());
    }
    if !quiet {
        note(&text::beginning(&job, compute.threads().count(), quick.is_some()));
    }
    let finished = run_job(&job, &compute, &mut RunProgress::new(quiet, options.training.save_every(), None))?;
    let threads = compute.threads().count();
    let said = if quick == Some(Quickstart::Labels) { ask(&finished, threads)? } else { Vec::new() };
    let hits = if quick == Some(Quickstart::Vectors) { quickstart::search(&finished, threads)? } else { Vec::new() };
    let text = if options.training.json {
        #[derive(serde::Serialize)]
        struct Printed<'a> {
            #[serde(flatten)]
            finished: &'a Finished,
            #[serde(skip_serializing_if = "<[Said]>::is_empty")]
            predictions: &'a [Said],
            #[serde(skip_serializing_if = "<[Hit]>::is_empty")]
            found: &'a [Hit],
        }
        versioned_json("qbert-run", &Printed { finished: &finished, predictions: &said, found: &hits })
    } else {
        text::end(&finished, &job, &said, &hits)
    };
    match finished.search.filter(|search| !search.holds) {
        None => Ok(text),
        Some(search) => {
            // The run is done all the same.
            print(&text);
            let hint = "allow a larger --max-drop, offer wider --bits, or train longer: --qat-epochs".to_owned();
            Err(Error::new(ErrorKind::MissedLimit, format!("--max-drop: {}", search.outcome), hint))
        }
    }
}

fn ask(finished: &Finished, threads: usize) -> Result<Vec<Said>> {
    let session = Session::open(&finished.packed, SessionOptions::default().threads(threads))?;
    let answers = session.classify(&quickstart::SENTENCES)?;
    Ok(quickstart::SENTENCES.into_iter().zip(answers).map(|(text, answer)| Said { text, answer }).collect())
}

impl Options {
    /// The quick-start that is asked for: neither train nor dev is given, and no task or that of vectors. One of the two
    /// files alone is a mistake.
    fn quickstart(&self) -> Result<Option<Quickstart>> {
        let Training { train, dev, reading, .. } = &self.training;
        let task = reading.optional_task()?;
        match (task, train.is_empty() && dev.is_none()) {
            (None, true) => return Ok(Some(Quickstart::Labels)),
            (Some(Task::Embed), true) => return Ok(Some(Quickstart::Vectors)),
            _ => {}
        }
        let given = [("--task", task.is_some()), ("--train", !train.is_empty()), ("--dev", dev.is_some())];
        let missing: Vec<&str> = given.iter().filter(|(_, given)| !given).map(|(flag, _)| *flag).collect();
        if missing.is_empty() {
            return Ok(None);
        }
        let verb = if missing.len() == 1 { "is" } else { "are" };
        let missing = missing.join(" and ");
        let message = format!("--task, --train and --dev belong together, and {missing} {verb} missing");
        let hint = "give all three; with none of them, or --task embed alone, `qbert run` is a quick-start".to_owned();
        Err(Error::new(ErrorKind::BadInput, message, hint))
    }

    fn job(&self, quick: Option<Quickstart>, quiet: bool) -> Result<Job> {
        let training = &self.training;
        let out = training.out.as_deref().unwrap_or(Path::new("run"));
        let mut job = if let Some(quick) = quick {
            if !quiet {
                note("fetching MiniLM and the movie-review snippets, unless they are in the cache");
            }
            let other = training.model.as_deref().map(|name| Ok::<_, Error>((name, model::directory(name, quiet)?)));
            let other = other.transpose()?;
            quick.job(other.as_ref().map(|(name, path)| (*name, path.as_path())), out)?
        } else {
            let name = training.model.as_deref().unwrap_or("minilm");
            let directory = model::directory(name, quiet)?;
            let data = training.reading.source(&training.train, &directory)?;
            Job::new(name, &directory, data, training.dev.as_deref().unwrap_or(Path::new("")), out)
        };
        self.apply(&mut job)?;
        if let Some(quick) = quick {
            let note = quick.note(&job);
            job.notes.push(note);
        }
        job.command = stop::command();
        Ok(job)
    }

    /// Applies the given flags over the defaults.
    fn apply(&self, job: &mut Job) -> Result<()> {
        let Training { recipe, max_train, .. } = &self.training;
        recipe.apply(&mut job.finetune.settings);
        recipe.apply_to_both(&mut job.quantize.settings);
        job.finetune.settings.precision = recipe.precision(&job.path(qbert_pipeline::run::FINETUNED))?;
        job.quantize.settings.precision = recipe.precision(&job.path(qbert_pipeline::run::CHECKPOINT))?;
        job.finetune.max_train = max_train.or(job.finetune.max_train);
        job.quantize.max_train = max_train.or(job.quantize.max_train);
        let own = &self.quantization;
        job.quantize.settings.epochs = own.qat_epochs.unwrap_or(job.quantize.settings.epochs);
        let rate = &mut job.quantize.settings.optimizer.learning_rate;
        *rate = own.qat_lr.unwrap_or(*rate);
        if let Some(text) = &own.qat_max_train {
            job.quantize.max_train = limit("--qat-max-train", text)?;
        }
        if own.no_distill {
            job.qat.distillation = None;
        }
        job.qat.compensate &= !own.no_compensate;
        job.qat.learn_pairs |= own.learn_pairs;
        job.qat.weight_ranges = own.weight_ranges.unwrap_or(job.qat.weight_ranges);
        let analysis = &self.analysis;
        job.analysis.runs = analysis.runs.unwrap_or(job.analysis.runs);
        job.analysis.stop.iterations = analysis.iterations.unwrap_or(job.analysis.stop.iterations);
        job.analysis.seed = recipe.seed.unwrap_or(job.analysis.seed);
        if let Some(text) = &analysis.max_examples {
            job.analysis.max_examples = limit("--max-examples", text)?;
        }
        self.plan.apply(&mut job.plan)?;
        job.own_plan.clone_from(&self.plan.own);
        job.always_finetune = self.finetune;
        job.speed = !self.no_speed;
        job.license.clone_from(&self.license);
        job.languages.clone_from(&self.language);
        if self.no_figures {
            job.figures = None;
        }
        Ok(())
    }
}

impl PlanFlags {
    fn apply(&self, request: &mut PlanRequest) -> Result<()> {
        if !self.bits.is_empty() {
            request.bits.clone_from(&self.bits);
        } else if self.max_drop.is_some() {
            request.bits = WIDTHS.map(Precision::Bits).to_vec();
        }
        request.max_drop = self.max_drop.map(|points| DropLimit {
            confidence: self.confidence,
            tries: self.tries.unwrap_or(DropLimit::TRIES),
            ..DropLimit::new(points)
        });
        if !self.embedding_bits.is_empty() {
            request.embedding_bits.clone_from(&self.embedding_bits);
        }
        request.high.clone_from(&self.high);
        (request.size, request.budget) = (self.size, self.budget);
        request.groups = plan::parse_if("--groups", self.groups.as_deref())?;
        request.range = plan::parse_if("--range", self.range.as_deref())?;
        request.activation_bits = self.activation_bits;
        request.activation_range = plan::parse_if("--activation-range", self.activation_range.as_deref())?;
        Ok(())
    }
}
