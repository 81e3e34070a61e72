//! Eigenvalues per layer over the runs (paper, Fig. 2): every run a mark, its sign a shape.

use crate::content::{Block, DataTable, Figure, Section};
use crate::data::{LayerEigenvalues, Report, SensitivityPart};
use crate::plot::axis::{self, Bands};
use crate::plot::canvas::{Anchor, Area, Canvas};
use crate::plot::scale::{Scale, extent};
use crate::text::{fixed, sentence, significant};

fn finite(values: &[f64]) -> Vec<f64> {
    values.iter().copied().filter(|value| value.is_finite()).collect()
}

/// Mean and deviation of the runs, where the file does not say.
fn moments(layer: &LayerEigenvalues) -> (f64, f64) {
    let values = finite(&layer.eigenvalues);
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let std = (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count).sqrt();
    let known = |given: f64, found: f64| if given.is_finite() { given } else { found };
    (known(layer.mean, mean), known(layer.std, std))
}

/// Ω of a layer (paper, Eq. 2), or NaN.
pub(super) fn omega(layer: &LayerEigenvalues) -> f64 {
    let (mean, std) = moments(layer);
    if layer.omega.is_finite() { layer.omega } else { mean.abs() + std }
}

/// The value below which this share of the sorted values lies.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = share * (sorted.len() - 1) as f64;
    let (low, high) = (at.floor() as usize, at.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * (at - at.floor())
}

/// Layers that differ by orders of magnitude need a scale that shows the small ones too.
fn scale(layers: &[LayerEigenvalues], range: (f64, f64)) -> (Scale, bool) {
    let all = || layers.iter().flat_map(|layer| layer.eigenvalues.iter().copied());
    let (low, high) = extent(all()).unwrap_or((0.0, 1.0));
    let (low, high) = (low.min(0.0), high.max(0.0));
    let tops = layers.iter().filter_map(|layer| extent(layer.eigenvalues.iter().map(|value| value.abs())));
    let tops: Vec<f64> = tops.map(|(_, top)| top).filter(|top| *top > 0.0).collect();
    let (smallest, largest) = extent(tops).unwrap_or((1.0, 1.0));
    if largest / smallest < 30.0 {
        return (Scale::linear((low, high), range, 6), false);
    }
    let threshold = 10f64.powf(smallest.log10().floor()).max(f64::MIN_POSITIVE);
    (Scale::symmetric((low * 1.15, high * 1.15), range, threshold), true)
}

fn draw(width: f64, layers: &[LayerEigenvalues]) -> Canvas {
    let height = if width < 500.0 { 280.0 } else { 320.0 };
    let mut canvas = Canvas::new(width, height + 44.0);
    let area = Area { left: 48.0, top: 24.0, width: width - 56.0, height: height - 24.0 };
    let (y, uneven) = scale(layers, (area.bottom() - 4.0, area.top + 4.0));
    axis::vertical(&mut canvas, area, &y, 8);
    canvas.text(
        "name",
        (4.0, 12.0),
        Anchor::Start,
        if uneven { "largest eigenvalue λ (logarithmic away from 0)" } else { "largest eigenvalue λ" },
    );
    canvas.line("zero", (area.left, y.place(0.0)), (area.right(), y.place(0.0)));
    let bands = Bands::new(layers.len(), area.left, area.right());
    for (index, layer) in layers.iter().enumerate() {
        strip(&mut canvas, layer, bands, index, &y);
    }
    let names: Vec<String> = layers.iter().map(|layer| layer.layer.to_string()).collect();
    axis::named(&mut canvas, bands, area.bottom(), &names);
    canvas.text("name", (area.right(), area.bottom() + 34.0), Anchor::End, "layer");
    canvas
}

fn strip(canvas: &mut Canvas, layer: &LayerEigenvalues, bands: Bands, index: usize, y: &Scale) {
    let values = finite(&layer.eigenvalues);
    let (middle, half) = (bands.middle(index), (bands.width * 0.32).min(34.0));
    let mut sorted = values.clone();
    sorted.sort_by(f64::total_cmp);
    if sorted.len() >= 4 {
        let (low, high) = (y.place(quantile(&sorted, 0.75)), y.place(quantile(&sorted, 0.25)));
        canvas.rect("box", Area { left: middle - half, top: low, width: 2.0 * half, height: high - low }, None);
    }
    let size = if bands.width < 20.0 { 2.2 } else { 3.6 };
    for (run, &value) in layer.eigenvalues.iter().enumerate().filter(|(_, value)| value.is_finite()) {
        // Runs keep their place across the strip, so that equal values stay apart.
        let share = (run as f64 + 0.5) / layer.eigenvalues.len() as f64 - 0.5;
        let (x, height) = (middle + share * 1.6 * half, y.place(value));
        let title = format!("layer {}, run {run}: λ = {}", layer.layer, significant(value, 4));
        if value < 0.0 {
            let points = [(x - size * 1.2, height - size), (x + size * 1.2, height - size), (x, height + size * 1.2)];
            canvas.path("dot2", &points, true, Some(&title));
        } else {
            canvas.circle("dot1", (x, height), size, Some(&title));
        }
    }
    let (mean, _) = moments(layer);
    if mean.is_finite() && !values.is_empty() {
        canvas.line("mean", (middle - half, y.place(mean)), (middle + half, y.place(mean)));
    }
}

fn table(sensitivity: &SensitivityPart) -> DataTable {
    let mut table = DataTable::new(
        "Eigenvalues per layer",
        &[
            "#layer",
            "#runs",
            "#lowest λ",
            "#highest λ",
            "#mean",
            "#std",
            "#Ω",
            "#negative runs",
            "#trace per parameter",
        ],
    );
    for layer in &sensitivity.layers {
        let values = finite(&layer.eigenvalues);
        let (low, high) = extent(values.iter().copied()).unwrap_or((f64::NAN, f64::NAN));
        let (mean, std) = moments(layer);
        table.row([
            layer.layer.to_string(),
            values.len().to_string(),
            significant(low, 3),
            significant(high, 3),
            significant(mean, 3),
            significant(std, 3),
            significant(omega(layer), 3),
            values.iter().filter(|value| **value < 0.0).count().to_string(),
            layer.trace.map_or_else(|| "–".to_owned(), |trace| significant(trace, 3)),
        ]);
    }
    if sensitivity.layers.iter().all(|layer| layer.trace.is_none()) {
        table.head.pop();
        table.rows.iter_mut().for_each(|row| {
            row.pop();
        });
    }
    table
}

/// What the figure means for this model.
fn caption(sensitivity: &SensitivityPart) -> String {
    let layers = &sensitivity.layers;
    let runs = layers.iter().map(|layer| layer.eigenvalues.len()).max().unwrap_or(0);
    let negative = layers.iter().filter(|layer| layer.eigenvalues.iter().any(|value| *value < 0.0)).count();
    let boxes = if runs >= 4 { ", a box the middle half of the runs" } else { "" };
    let sign = match negative {
        0 => "No run found negative curvature: the model sits in a valley.".to_owned(),
        n => format!(
            "In {n} of {} layers some runs found negative curvature (triangles): there the loss still falls.",
            layers.len()
        ),
    };
    let agreement = sensitivity.agreement_of_halves.filter(|value| value.is_finite());
    let agreement = agreement
        .map(|value| format!(" The halves of the runs rank the layers with a correlation of {}.", fixed(value, 2)));
    format!(
        "Curvature of the loss in each layer's worst direction, {runs} {}: a mark is a run, a bar the mean{boxes}. {sign}{}",
        if runs == 1 { "run" } else { "runs" },
        agreement.unwrap_or_default()
    )
}

/// The figure, if any run found an eigenvalue.
pub(crate) fn figure(sensitivity: &SensitivityPart) -> Option<Figure> {
    let layers = &sensitivity.layers;
    let (low, high) = extent(layers.iter().flat_map(|layer| layer.eigenvalues.iter().copied()))?;
    let description =
        format!("Eigenvalues of {} layers, from {} to {}", layers.len(), significant(low, 3), significant(high, 3));
    let figure = Figure::drawn("eigenvalues", caption(sensitivity), description, |width| draw(width, layers));
    Some(figure.with_table(table(sensitivity)))
}

/// The section.
pub(super) fn section(report: &Report) -> Option<Section> {
    let sensitivity = report.sensitivity.as_ref()?;
    let mut blocks = vec![Block::Figure(figure(sensitivity)?)];
    blocks.extend(sensitivity.warnings.iter().map(|warning| Block::Warning(sentence(warning))));
    Some(Section { id: "eigenvalues", title: "Eigenvalues per layer", blocks })
}
