//! `qbert eval`: a model on a data file. Checkpoints run on the training engine, which multiplies integers if they are
//! quantized; packed models run on the runtime. Data, metrics and predictions are the same.

use std::path::{Path, PathBuf};

use clap::Args;
use qbert_model::atomic;
use qbert_pipeline::packed_evaluation::evaluate_packed;
use qbert_pipeline::{Error, ErrorKind, Result};
use qbert_runtime::{Session, SessionOptions};
use qbert_tasks::{DataSource, Dataset, mapping_note};
use qbert_train::evaluate::{Details, Evaluate, Evaluated, Evaluation, Predictions, evaluate};
use qbert_train::qat::files::is_quantized;

use super::progress::Progress;
use super::reading::Reading;
use super::table::Table;
use super::{compute, model, versioned_json};

/// Evaluate a fine-tuned, quantized or packed model on a data file.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qbert eval tuned --task sst2 --data dev.tsv
  qbert eval tuned --task conll03 --data eng.testa --json
  qbert eval small/model.qbert --task sst2 --data dev.tsv
  qbert eval tuned --task squad --data dev-v1.1.json --predictions answers.json

Predictions: one JSON line per text or sentence; for questions one JSON object, as the official
SQuAD script reads it.")]
pub(crate) struct Options {
    /// Checkpoint directory, hub id, or packed model.
    model: String,
    /// The data file.
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    #[command(flatten)]
    reading: Reading,
    /// Evaluate the f32 masters of a quantized checkpoint instead of the quantized model.
    #[arg(long, help_heading = "Run")]
    masters: bool,
    /// Write the model's predictions to this file.
    #[arg(long, value_name = "FILE", help_heading = "Run")]
    predictions: Option<PathBuf>,
    /// Threads [default: one per core].
    #[arg(long, help_heading = "Run")]
    threads: Option<usize>,
    /// Print all metrics as JSON.
    #[arg(long, help_heading = "Run")]
    json: bool,
}

pub(crate) fn run(options: &Options, quiet: bool) -> Result<String> {
    if let Some(path) = &options.predictions {
        atomic::check_file(path)?;
    }
    let (found, what) =
        if Path::new(&options.model).is_file() { packed(options, quiet)? } else { checkpoint(options, quiet)? };
    if let Some(path) = &options.predictions {
        write_predictions(path, &found)?;
    }
    Ok(if options.json { versioned_json("qbert-evaluation", &found.evaluation) } else { text(&found.evaluation, what) })
}

/// The evaluation of a checkpoint, and what was evaluated.
fn checkpoint(options: &Options, quiet: bool) -> Result<(Evaluated, &'static str)> {
    let directory = model::directory(&options.model, quiet)?;
    let files = std::slice::from_ref(&options.data);
    let data = options.reading.source(files, &directory)?;
    let what = match (is_quantized(&directory)?, options.masters) {
        (true, false) => "quantized",
        (true, true) => "the f32 masters of a quantized checkpoint",
        (false, false) => "full precision",
        (false, true) => {
            let message =
                format!("--masters: {} is not a quantized checkpoint, so it has no masters", directory.display());
            return Err(Error::new(ErrorKind::BadInput, message, "leave the flag out".to_owned()));
        }
    };
    let compute = compute(options.threads)?;
    let model = Evaluate { model: &directory, masters: options.masters };
    let mut progress = Progress::new("eval", quiet);
    Ok((evaluate(model, &data, &compute, |done, total| progress.at(done, total, ""))?, what))
}

/// The same of a packed model.
fn packed(options: &Options, quiet: bool) -> Result<(Evaluated, &'static str)> {
    if options.masters {
        let hint = "evaluate the directory that the model was packed from".to_owned();
        return Err(Error::new(ErrorKind::BadInput, "--masters: a packed model has no masters", hint));
    }
    let task = options.reading.task()?;
    let mut settings = SessionOptions::default();
    settings.threads = options.threads.unwrap_or(settings.threads);
    let session = Session::open(&options.model, settings)?;
    let max_len = {
        let config = session.config();
        options.reading.max_len_within(config.max_positions, config.embedder.as_ref())?
    };
    let read = options.reading.options(true)?;
    let data = DataSource { task, files: vec![options.data.clone()], read, max_len };
    let mut progress = Progress::new("eval", quiet);
    Ok((evaluate_packed(&session, &data, |done, total| progress.at(done, total, ""))?, "packed"))
}

fn text(evaluation: &Evaluation, what: &str) -> String {
    let headline = match &evaluation.details {
        Details::Entities(report) if report.plain_tags => {
            format!("{} {:.2}, word accuracy {:.2}", evaluation.metric, evaluation.value, 100.0 * report.word_accuracy)
        }
        Details::Values(report) => format!(
            "pearson {:.2}, spearman {:.2}, squared error {:.4}",
            100.0 * report.pearson,
            100.0 * report.spearman,
            report.mean_squared_error
        ),
        Details::Similarity(report) => {
            format!("spearman {:.2}, pearson {:.2}", 100.0 * report.spearman, 100.0 * report.pearson)
        }
        Details::Retrieval(report) => format!(
            "nDCG@10 {:.2}, recall@10 {:.2}, recall@100 {:.2}, MRR@10 {:.2} over {} documents",
            100.0 * report.ndcg_at_10,
            100.0 * report.recall_at_10,
            100.0 * report.recall_at_100,
            100.0 * report.mrr_at_10,
            report.documents
        ),
        Details::Probe(report) => {
            format!("linear probe: accuracy {:.2}, trained on {} texts", 100.0 * report.accuracy, report.learned_from)
        }
        Details::Squad(report) => format!("EM {:.2}, F1 {:.2}", report.exact_match, report.f1),
        _ => format!("{} {:.2}", evaluation.metric, evaluation.value),
    };
    let mut table = Table::new(["", "precision", "recall", "f1", "count"]);
    let percent = |share: f64| format!("{:.2}", 100.0 * share);
    let per_class = evaluation.details.per_class();
    for class in per_class {
        let scores = &class.scores;
        let (precision, recall, f1) = (percent(scores.precision), percent(scores.recall), percent(scores.f1));
        table.row([class.name.clone(), precision, recall, f1, scores.support.to_string()]);
    }
    let classes = if per_class.is_empty() { String::new() } else { format!("\n{table}") };
    let left_out = evaluation.left_out.map(|left_out| format!("{left_out}\n")).unwrap_or_default();
    let mapping = mapping_note(&evaluation.label_map).map(|note| format!("{note}\n")).unwrap_or_default();
    format!("{headline} on {} examples ({what})\n{left_out}{mapping}{classes}", evaluation.examples)
}

fn write_predictions(path: &Path, found: &Evaluated) -> Result<()> {
    let name = |id: usize| found.data.labels.name(id).unwrap_or("?");
    atomic::write_file(path, |writer| match (&found.predictions, found.data.features.dataset()) {
        (Predictions::Labels(labels), Dataset::Classify(data)) => {
            for (example, (label, probability)) in data.examples.iter().zip(labels) {
                let line = serde_json::json!({"id": example.id, "label": name(*label), "probability": probability});
                writeln!(writer, "{line}")?;
            }
            Ok(())
        }
        (Predictions::LabelSets(sets), Dataset::MultiLabel(data)) => {
            for (example, set) in data.examples.iter().zip(sets) {
                let labels: Vec<&str> = set.iter().map(|&label| name(label)).collect();
                writeln!(writer, "{}", serde_json::json!({"id": example.id, "labels": labels}))?;
            }
            Ok(())
        }
        (Predictions::Values(values), Dataset::Values(data)) => {
            for (example, value) in data.examples.iter().zip(values) {
                writeln!(writer, "{}", serde_json::json!({"id": example.id, "score": value}))?;
            }
            Ok(())
        }
        (Predictions::Tags(sentences), Dataset::Ner(data)) => {
            for (sentence, tags) in data.sentences.iter().zip(sentences) {
                let tags: Vec<&str> = tags.iter().map(|&tag| name(tag)).collect();
                writeln!(writer, "{}", serde_json::json!({"words": sentence.words, "tags": tags}))?;
            }
            Ok(())
        }
        (Predictions::Answers(answers), Dataset::Qa(data)) => {
            let pairs = data.examples.iter().zip(answers);
            let all: serde_json::Map<_, _> = pairs.map(|(e, (text, _))| (e.id.clone(), text.as_str().into())).collect();
            writeln!(writer, "{:#}", serde_json::Value::Object(all))
        }
        (Predictions::Vectors(vectors), Dataset::Embed(data)) => {
            for (text, vector) in data.texts.iter().zip(vectors) {
                writeln!(writer, "{}", serde_json::json!({"text": text, "vector": vector}))?;
            }
            Ok(())
        }
        _ => Err(std::io::Error::other("predictions of another kind of task")),
    })?;
    Ok(())
}
