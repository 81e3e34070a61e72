//! The outcome in a few numbers, `summary.json`, from the files of the stages.

use std::path::{Path, PathBuf};

use qbert_documents::{BeforeAfter, ModelPoint, Models, PlanSearch, RunMetrics, Summary, TrainingMetrics};
use qbert_model::PackedModel;
use qbert_quant::{GroupSpec, Plan, Precision, RangeMethod, Site};
use serde::Serialize;

use super::context::Context;
use super::evaluate::{read_metrics, read_trained};
use super::speed::Measured;
use super::{FINETUNED, Job, PLAN, Stage, read_summary, verify};
use crate::error::Result;
use crate::packing::FILE_NAME;

/// The file.
pub(super) const FILE: &str = "summary.json";

/// A finished run: its results and where its files are.
#[derive(Debug, Clone, Serialize)]
pub struct Finished {
    /// The outcome.
    #[serde(flatten)]
    pub summary: Summary,
    /// The packed model.
    pub packed: PathBuf,
    /// The plan.
    pub plan: PathBuf,
    /// The report.
    pub report: PathBuf,
    /// The model card.
    pub card: PathBuf,
    /// The run's directory.
    pub directory: PathBuf,
    /// Every plan tried, if the drop of the metric was limited.
    #[serde(skip)]
    pub search: Option<PlanSearch>,
}

impl Finished {
    pub(super) fn read(job: &Job, search: Option<PlanSearch>) -> Result<Self> {
        Ok(Self {
            summary: read_summary(&job.out)?,
            packed: job.path(FILE_NAME),
            plan: job.path(PLAN),
            report: job.path("report.html"),
            card: job.path("README.md"),
            directory: job.out.clone(),
            search,
        })
    }
}

/// What summary, card and provenance are made from.
pub(super) struct Results {
    pub(super) metrics: RunMetrics,
    pub(super) trained: TrainingMetrics,
    pub(super) packed: PackedModel,
    pub(super) summary: Summary,
    /// Whether the plan was edited by hand.
    pub(super) plan_edited: bool,
}

impl Results {
    pub(super) fn gather(context: &Context<'_>) -> Result<Self> {
        let job = context.job;
        let metrics = read_metrics(job)?;
        let trained = read_trained(job)?;
        let packed = PackedModel::open(&job.path(FILE_NAME))?;
        let speed = if job.speed { Some(Measured::read(job)?) } else { None };
        let given = job.own_plan.is_some() || context.record().inputs(Stage::Plan).is_none();
        let plan_edited = context.record().edited(&job.out, Stage::Plan)?;
        let mut method = method(packed.plan());
        if !trained.is_trained() {
            method += ", not trained";
        } else if job.qat.distillation.is_some() {
            method += ", trained with distillation";
        } else {
            method += ", trained on labels only";
        }
        if given || plan_edited {
            method += " (own plan)";
        }
        // The packed model is the one people use; the training engine's metric is in metrics.json.
        let value = metrics.value(RunMetrics::PACKED);
        let is_trained = trained.is_trained();
        let mut summary = Summary {
            task: job.data.task.name().to_owned(),
            model: job.model.clone(),
            method,
            bits: bits(packed.plan()),
            metric: metrics.metric.clone(),
            examples: metrics.examples,
            full_precision: metrics.value(RunMetrics::FULL_PRECISION),
            post_training: if is_trained { metrics.value(RunMetrics::NOT_TRAINED) } else { value },
            trained: value.filter(|_| is_trained),
            file_size: Some(BeforeAfter {
                full: 4.0 * packed.layout().len() as f64,
                quantized: packed.file_len() as f64,
            }),
            paper_size: Some(paper_size(&packed)?),
            speed: speed.as_ref().map(|measured| measured.speed.clone()),
            notes: job.notes.clone(),
        };
        let searched = verify::result(context)?;
        summary.notes.extend(searched.map(|search| format!("The drop was limited. {}.", search.outcome)));
        summary.notes.extend(notes(context, &metrics, &trained));
        summary.notes.extend(speed.map(|measured| measured.note));
        Ok(Self { metrics, trained, packed, summary, plan_edited })
    }

    /// The models of the run by size and metric.
    pub(super) fn models(&self) -> Models {
        let sizes = self.summary.file_size.unwrap_or(BeforeAfter { full: f64::NAN, quantized: f64::NAN });
        let point = |name: &str, method: &str, bytes: f64, stage: &str, this: bool| {
            let (name, method) = (name.to_owned(), method.to_owned());
            self.metrics.value(stage).map(|value| ModelPoint { name, method, bytes, value, this })
        };
        let is_trained = self.trained.is_trained();
        let calibrated = point("not trained", "calibrated", sizes.quantized, RunMetrics::NOT_TRAINED, false);
        let method = if is_trained { "trained" } else { "calibrated" };
        let points = [
            point("f32", "full precision", sizes.full, RunMetrics::FULL_PRECISION, false),
            calibrated.filter(|_| is_trained),
            point("this model", method, sizes.quantized, RunMetrics::PACKED, true),
        ];
        let size = "file; f32 weights alone".to_owned();
        Models { metric: self.metrics.metric.clone(), size, points: points.into_iter().flatten().collect() }
    }
}

/// Notes to read with the numbers.
fn notes(context: &Context<'_>, metrics: &RunMetrics, trained: &TrainingMetrics) -> Vec<String> {
    let mut notes = Vec::new();
    let metric = &metrics.metric;
    if let Some(value) = metrics.value(RunMetrics::PACKED).filter(|value| (value - trained.dev.value).abs() >= 0.005) {
        notes.push(format!(
            "The packed model's {metric} is {value:.2}, the trained one's {:.2}. Both compute the same to the last bit where \
             heads are at most 258 wide; please report a model with smaller heads where they differ.",
            trained.dev.value
        ));
    }
    if !trained.is_trained() && context.job.quantize.settings.epochs > 0 {
        notes.push("Training did not improve on calibration alone, so the calibrated model was kept.".to_owned());
    }
    if context.finetunes() {
        notes.push(format!(
            "The {metric} in full precision is that of the best epoch of {FINETUNED}/ on the same dev data."
        ));
    }
    notes
}

/// Widths of the encoder's matrices with the number of layers that have each, narrowest first; a layer of several widths
/// counts for its widest.
fn layer_widths(plan: &Plan) -> Vec<(Precision, usize)> {
    let mut counts = std::collections::BTreeMap::new();
    for layer in plan.layers() {
        let widest = qbert_quant::Matrix::ALL.iter().map(|&matrix| layer.get(matrix).bits).max();
        *counts.entry(widest.unwrap_or(Precision::Full)).or_insert(0) += 1;
    }
    counts.into_iter().collect()
}

fn encoder_widths(plan: &Plan) -> Vec<Precision> {
    let sites = plan.sites().filter(|(site, _)| site.layer().is_some());
    let mut widths: Vec<Precision> = sites.map(|(_, site)| site.bits).collect();
    widths.sort_unstable();
    widths.dedup();
    widths
}

fn method(plan: &Plan) -> String {
    let one_group = plan.sites().all(|(site, own)| site.layer().is_none() || own.groups == GroupSpec::Count(1));
    match (encoder_widths(plan).len(), one_group) {
        (1, true) => "DirectQ".to_owned(),
        (1, false) => "Q-BERT".to_owned(),
        _ => "Q-BERT mixed precision".to_owned(),
    }
}

/// Widths in words.
pub(super) fn bits(plan: &Plan) -> String {
    let in_words = |bits: Precision| bits.width().map_or("f32".to_owned(), |width| format!("{width}-bit"));
    let widths: Vec<String> = encoder_widths(plan).iter().map(Precision::to_string).collect();
    let mut text =
        if widths == ["32"] { "f32 weights".to_owned() } else { format!("{}-bit weights", widths.join("/")) };
    let layers = layer_widths(plan);
    if let (Some((widest, count)), true) = (layers.last(), layers.len() > 1) {
        text += &format!(" ({count} of {} layers at {widest})", plan.layers().len());
    }
    let tables = plan.embedding();
    let (word, position) = (tables.word.width(), tables.position.bits);
    let word_in_words = match word.product {
        None => in_words(word.bits),
        Some(product) => format!("product-coded (a byte for {product} values)"),
    };
    if word == position.into() {
        text += &format!(", {word_in_words} embedding");
    } else {
        text += &format!(", {word_in_words} word and {} position embedding", in_words(position));
    }
    text + &format!(", {} activations", in_words(plan.activation().bits))
}

/// Bytes as the paper counts them.
fn paper_size(packed: &PackedModel) -> Result<BeforeAfter> {
    let layout = packed.layout();
    let shape = packed.config().shape(Some(layout));
    let all = Plan::uniform(shape.layers, Precision::Full, GroupSpec::Count(1), RangeMethod::MinMax);
    let bytes = |plan: &Plan| {
        let size = shape.paper_size(plan)?;
        Ok::<f64, crate::Error>((size.encoder_bits + size.embedding_bits).div_ceil(8) as f64)
    };
    Ok(BeforeAfter { full: bytes(&all)?, quantized: bytes(packed.plan())? })
}

/// Whether a plan quantizes any matrix of the encoder.
pub(super) fn is_quantized(plan: &Plan) -> bool {
    plan.sites().any(|(site, own)| matches!(site, Site::Layer(..)) && own.bits != Precision::Full)
}

/// The name of a file without its folders, which mean nothing to readers elsewhere.
pub(super) fn shown(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
