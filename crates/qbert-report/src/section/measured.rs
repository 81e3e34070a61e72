//! Sensitivity by measurement: what quantizing one matrix at a time does to the answers, and how well other measures predict
//! it.

use qbert_documents::{BitCount, LayerMetric, MeasuredSites};
use qbert_quant::rank_correlation;

use crate::content::{Block, DataTable, Figure, Section};
use crate::data::{Report, SensitivityPart};
use crate::plot::axis::{self, Bands};
use crate::plot::canvas::{Anchor, Area, Canvas, text_width};
use crate::plot::palette::STEPS;
use crate::text::{fixed, significant};

/// The measured divergence.
const MEASURED: &str = "kl";

/// A measure for people.
fn title(name: &str) -> &str {
    match name {
        "omega" => "Ω = |mean λ| + std λ",
        "mean" => "|mean λ|",
        "trace" => "|trace|",
        "trace-error" => "|trace| × weight error",
        MEASURED => "measured divergence",
        other => other,
    }
}

/// Its rank correlation with the measured divergence; `None` for that itself.
fn agreement(metric: &LayerMetric, metrics: &[LayerMetric]) -> Option<f64> {
    let measured = metrics.iter().find(|other| other.name == MEASURED)?;
    (metric.name != MEASURED).then(|| rank_correlation(&metric.values, &measured.values))?
}

/// One row of bars for each measure, each on a scale of its own: only the order of the layers can be compared.
fn draw_metrics(width: f64, metrics: &[LayerMetric]) -> Canvas {
    let row = if width < 500.0 { 74.0 } else { 88.0 };
    let mut canvas = Canvas::new(width, row * metrics.len() as f64 + 40.0);
    let layers = metrics.iter().map(|metric| metric.values.len()).max().unwrap_or(0);
    let area = Area { left: 8.0, top: 0.0, width: width - 16.0, height: 0.0 };
    let bands = Bands::new(layers, area.left, area.right());
    for (index, metric) in metrics.iter().enumerate() {
        let (top, bottom) = (row * index as f64 + 18.0, row * (index + 1) as f64 - 6.0);
        let correlation = agreement(metric, metrics).map(|value| format!(", rank correlation {}", fixed(value, 2)));
        let name = format!("{}{}", title(&metric.name), correlation.unwrap_or_default());
        canvas.text("name", (area.left, top - 6.0), Anchor::Start, &name);
        let highest = metric.values.iter().copied().fold(0.0, f64::max);
        for (layer, &value) in metric.values.iter().enumerate() {
            let share = if highest > 0.0 { (value / highest).clamp(0.0, 1.0) } else { 0.0 };
            let (half, height) = ((bands.width * 0.34).min(30.0), share * (bottom - top - 4.0));
            let bar = Area { left: bands.middle(layer) - half, top: bottom - height, width: 2.0 * half, height };
            let class = if metric.name == MEASURED { "fill2" } else { "fill1" };
            canvas.rect(class, bar, Some(&format!("layer {layer}: {}", significant(value, 4))));
        }
        canvas.line("rule", (area.left, bottom), (area.right(), bottom));
    }
    let names: Vec<String> = (0..layers).map(|layer| layer.to_string()).collect();
    let bottom = row * metrics.len() as f64 - 6.0;
    axis::named(&mut canvas, bands, bottom, &names);
    canvas.text("name", (area.right(), bottom + 34.0), Anchor::End, "layer");
    canvas
}

/// The divergence of every matrix at the lowest width: rows are matrices, columns layers, darker is more.
struct Map {
    matrices: Vec<String>,
    layers: usize,
    /// By matrix, then by layer.
    values: Vec<Vec<Option<f64>>>,
    bits: BitCount,
}

impl Map {
    fn of(measured: &MeasuredSites) -> Option<Self> {
        let layers = measured.sites.iter().map(|site| site.layer + 1).max().filter(|layers| *layers <= 1000)?;
        let matrix = |site: &str| site.rsplit('.').next().unwrap_or(site).to_owned();
        let mut matrices: Vec<String> = Vec::new();
        for site in &measured.sites {
            let name = matrix(&site.site);
            if !matrices.contains(&name) {
                matrices.push(name);
            }
        }
        let mut values = vec![vec![None; layers]; matrices.len()];
        let mut bits = None;
        for site in &measured.sites {
            let (Some(width), Some(row)) =
                (site.widths.first(), matrices.iter().position(|m| *m == matrix(&site.site)))
            else {
                continue;
            };
            bits = bits.or(Some(width.bits));
            values[row][site.layer] = Some(width.divergence).filter(|value| value.is_finite());
        }
        Some(Self { matrices, layers, values, bits: bits? })
    }

    /// The largest divergence, and where it is.
    fn largest(&self) -> Option<(f64, &str, usize)> {
        let rows = self.matrices.iter().zip(&self.values);
        let cells = rows.flat_map(|(name, row)| row.iter().enumerate().map(move |(layer, value)| (name, layer, value)));
        let known = cells.filter_map(|(name, layer, value)| Some(((*value)?, name.as_str(), layer)));
        known.max_by(|one, other| one.0.total_cmp(&other.0))
    }

    fn draw(&self, width: f64) -> Canvas {
        let cell = if width < 500.0 { 22.0 } else { 26.0 };
        let widest = self.matrices.iter().map(|name| text_width(name, 11.0)).fold(0.0, f64::max);
        let left = (widest + 12.0).clamp(48.0, if width < 500.0 { 104.0 } else { 160.0 });
        let height = cell * self.matrices.len() as f64;
        let mut canvas = Canvas::new(width, height + 52.0);
        let bands = Bands::new(self.layers, left, width - 8.0);
        let largest = self.largest().map_or(1.0, |(value, ..)| value).max(f64::MIN_POSITIVE);
        for (row, (name, values)) in self.matrices.iter().zip(&self.values).enumerate() {
            let top = 8.0 + cell * row as f64;
            canvas.text("tick", (left - 8.0, top + cell / 2.0 + 4.0), Anchor::End, name);
            for (layer, value) in values.iter().enumerate() {
                let Some(value) = *value else { continue };
                let step = ((value / largest).clamp(0.0, 1.0).sqrt() * (STEPS - 1) as f64).round() as usize;
                let area = Area { left: bands.left(layer), top, width: bands.width, height: cell };
                let said = format!("layer {layer}, {name}: {}", significant(value, 3));
                canvas.rect(&format!("cell s{step}"), area, Some(&said));
                let text = significant(value, 2);
                if text_width(&text, 11.0) < bands.width - 4.0 {
                    let place = (area.left + area.width / 2.0, top + cell / 2.0 + 4.0);
                    canvas.text(&format!("small t{step}"), place, Anchor::Middle, &text);
                }
            }
        }
        let names: Vec<String> = (0..self.layers).map(|layer| layer.to_string()).collect();
        axis::named(&mut canvas, bands, 8.0 + height, &names);
        canvas.text("name", (width - 8.0, 8.0 + height + 34.0), Anchor::End, "layer");
        canvas
    }
}

fn table(measured: &MeasuredSites) -> DataTable {
    let widths: Vec<BitCount> =
        measured.sites.first().iter().flat_map(|site| &site.widths).map(|own| own.bits).collect();
    let head: Vec<String> = std::iter::once("matrix".to_owned())
        .chain(widths.iter().map(|bits| format!("#divergence, {bits} bits")))
        .chain(widths.iter().map(|bits| format!("#weight error, {bits} bits")))
        .collect();
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    let mut table = DataTable::new("Divergence per matrix", &head);
    for site in &measured.sites {
        let mut row = vec![site.site.clone()];
        let at = |bits: &BitCount| site.widths.iter().find(|own| own.bits == *bits);
        row.extend(widths.iter().map(|bits| significant(at(bits).map_or(f64::NAN, |own| own.divergence), 3)));
        row.extend(widths.iter().map(|bits| significant(at(bits).map_or(f64::NAN, |own| own.error), 3)));
        table.row(row);
    }
    table
}

fn map_figure(measured: &MeasuredSites) -> Option<Figure> {
    let map = Map::of(measured)?;
    let (value, matrix, layer) = map.largest()?;
    let caption = format!(
        "How far the answers move, in nats, when one matrix at a time has {} {} and the rest full precision ({} sequences). \
         Darker is further; {matrix} of layer {layer} costs most ({}).",
        map.bits,
        if map.bits.get() == 1.0 { "bit" } else { "bits" },
        measured.examples,
        significant(value, 3)
    );
    let figure = Figure::drawn("measured", caption.clone(), caption, |width| map.draw(width));
    Some(figure.with_table(table(measured)))
}

fn metrics_figure(sensitivity: &SensitivityPart) -> Option<Figure> {
    let metrics = &sensitivity.metrics;
    let best = metrics.iter().filter_map(|metric| Some((agreement(metric, metrics)?, metric)));
    let (correlation, metric) = best.max_by(|one, other| one.0.total_cmp(&other.0))?;
    let caption = format!(
        "Every measure of sensitivity, layer by layer, each on its own scale. {} comes nearest to the order that was \
         measured (rank correlation {}; 1 is the same order, 0 no relation).",
        title(&metric.name),
        fixed(correlation, 2)
    );
    Some(Figure::drawn("measures", caption.clone(), caption, |width| draw_metrics(width, metrics)))
}

/// The section.
pub(super) fn section(report: &Report) -> Option<Section> {
    let sensitivity = report.sensitivity.as_ref()?;
    let map = map_figure(sensitivity.measured.as_ref()?)?;
    let blocks = std::iter::once(map).chain(metrics_figure(sensitivity)).map(Block::Figure).collect();
    Some(Section { id: "measured", title: "Measured sensitivity", blocks })
}
