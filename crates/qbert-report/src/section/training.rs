//! Training curves: loss (raw and smoothed), learning rate, the metric after epochs; one figure per run.

use crate::content::{Block, DataTable, Figure, Section};
use crate::data::{CurvePoint, EpochMetric, Report, TrainingRun};
use crate::plot::axis;
use crate::plot::canvas::{Anchor, Area, Canvas};
use crate::plot::scale::{Scale, extent};
use crate::text::{count, fixed, significant};

/// Names of the figures, for files and anchors; runs beyond these get none.
const NAMES: [&str; 4] = ["training-1", "training-2", "training-3", "training-4"];

/// The smoothed curve averages over this share of the points on either side.
const WINDOW: f64 = 0.02;

fn usable(run: &TrainingRun) -> Vec<CurvePoint> {
    let fine = |point: &&CurvePoint| point.step.is_finite() && point.loss.is_finite();
    run.curve.iter().filter(fine).copied().collect()
}

/// Evaluations that have a place and a value.
fn known(run: &TrainingRun) -> impl Iterator<Item = &EpochMetric> {
    run.evaluations.iter().filter(|evaluation| evaluation.epoch.is_finite() && evaluation.value.is_finite())
}

/// Mean over neighbours on both sides, fewer at the ends.
fn smoothed(curve: &[CurvePoint]) -> Vec<f64> {
    let half = ((curve.len() as f64 * WINDOW).ceil() as usize).max(1);
    let at = |index: usize| {
        let reach = half.min(index).min(curve.len() - 1 - index);
        let part = &curve[index - reach..=index + reach];
        part.iter().map(|point| point.loss).sum::<f64>() / part.len() as f64
    };
    (0..curve.len()).map(at).collect()
}

/// The panels of one run, all over the same steps.
struct Panels<'a> {
    run: &'a TrainingRun,
    curve: Vec<CurvePoint>,
    smooth: Vec<f64>,
    x: Scale,
}

impl Panels<'_> {
    fn loss(&self, canvas: &mut Canvas, area: Area) {
        let (low, high) = extent(self.smooth.iter().copied()).unwrap_or((0.0, 1.0));
        let band =
            |low: f64, high: f64| if low.is_finite() && high.is_finite() { (low, high) } else { (f64::NAN, f64::NAN) };
        let ends: Vec<(f64, f64)> = self.curve.iter().map(|point| band(point.low, point.high)).collect();
        let range = (area.bottom(), area.top);
        let logarithmic = low > 0.0 && high / low > 30.0;
        let (lowest, highest) = extent(ends.iter().flat_map(|&(low, high)| [low, high])).unwrap_or((low, high));
        let y = if logarithmic {
            // A single lucky batch may have hardly any loss; it must not stretch the scale.
            Scale::log((lowest.max(low / 10.0), highest.max(high)), range)
        } else {
            Scale::linear((lowest.min(low).min(0.0), highest.max(high)), range, 4)
        };
        axis::vertical(canvas, area, &y, 4);
        let name = if y.is_log() { "loss, logarithmic" } else { "loss" };
        canvas.text("name", (4.0, area.top - 10.0), Anchor::Start, name);
        let clamp = |value: f64| y.place(value).clamp(area.top, area.bottom());
        let upper = self.curve.iter().zip(&ends).filter(|(_, end)| end.1.is_finite());
        let mut band: Vec<(f64, f64)> = upper.map(|(point, end)| (self.x.place(point.step), clamp(end.1))).collect();
        let lower = self.curve.iter().zip(&ends).rev().filter(|(_, end)| end.0.is_finite());
        let grouped = ends.iter().any(|(low, high)| high > low);
        if grouped {
            band.extend(lower.map(|(point, end)| (self.x.place(point.step), clamp(end.0))));
            canvas.path("band", &band, true, None);
        } else {
            canvas.path("thin", &band, false, None);
        }
        let line: Vec<(f64, f64)> = self
            .curve
            .iter()
            .zip(&self.smooth)
            .map(|(point, value)| (self.x.place(point.step), clamp(*value)))
            .collect();
        canvas.path("line1", &line, false, None);
        if let [only] = line[..] {
            canvas.circle("fill1", only, 4.0, None);
        }
    }

    fn rate(&self, canvas: &mut Canvas, area: Area) {
        let highest = extent(self.curve.iter().map(|point| point.rate)).map_or(0.0, |(_, high)| high);
        let y = Scale::linear((0.0, if highest > 0.0 { highest } else { 1.0 }), (area.bottom(), area.top), 2);
        axis::vertical(canvas, area, &y, 2);
        canvas.text("name", (4.0, area.top - 10.0), Anchor::Start, "learning rate");
        let points = self.curve.iter().filter(|point| point.rate.is_finite());
        let line: Vec<(f64, f64)> = points.map(|point| (self.x.place(point.step), y.place(point.rate))).collect();
        canvas.path("line3", &line, false, None);
    }

    fn metric(&self, canvas: &mut Canvas, area: Area) {
        let Some(domain) = extent(known(self.run).map(|evaluation| evaluation.value)) else { return };
        let y = Scale::linear(domain, (area.bottom(), area.top), 3);
        axis::vertical(canvas, area, &y, 3);
        let metric = if self.run.metric.is_empty() { "metric" } else { &self.run.metric };
        canvas.text("name", (4.0, area.top - 10.0), Anchor::Start, &format!("{metric} on dev"));
        let mut line = Vec::new();
        for evaluation in known(self.run) {
            let at = (self.x.place(self.step_of(evaluation.epoch)), y.place(evaluation.value));
            line.push((at, evaluation));
        }
        let path: Vec<(f64, f64)> = line.iter().map(|(at, _)| *at).collect();
        canvas.path("line2", &path, false, None);
        for (at, evaluation) in line {
            let title = format!("epoch {}: {}", crate::text::tick(evaluation.epoch), fixed(evaluation.value, 2));
            canvas.circle("fill2", at, 4.5, Some(&title));
            let last = at.0 > area.right() - 30.0;
            let (dx, anchor) = if last { (-9.0, Anchor::End) } else { (9.0, Anchor::Start) };
            canvas.text("value", (at.0 + dx, at.1 - 6.0), anchor, &fixed(evaluation.value, 2));
        }
    }

    /// The step that ends an epoch.
    fn step_of(&self, epoch: f64) -> f64 {
        let (epochs, steps) = match self.curve.last() {
            Some(last) if last.epoch.is_finite() && last.epoch > 0.0 => (last.epoch, last.step),
            _ => (1.0, self.run.steps as f64),
        };
        (epoch / epochs * steps).clamp(0.0, steps.max(self.run.steps as f64))
    }
}

fn draw(width: f64, run: &TrainingRun) -> Canvas {
    let narrow = width < 500.0;
    let curve = usable(run);
    let smooth = smoothed(&curve);
    let loss = if narrow { 170.0 } else { 210.0 };
    let left = if narrow { 58.0 } else { 64.0 };
    let has_rate = curve.iter().any(|point| point.rate > 0.0);
    let has_metric = known(run).next().is_some();
    let heights = [Some(loss), has_rate.then_some(48.0), has_metric.then_some(84.0)];
    let total: f64 = heights.iter().flatten().map(|height| height + 40.0).sum();
    let mut canvas = Canvas::new(width, total + 34.0);
    let last = curve.last().map_or(1.0, |point| point.step).max(run.steps as f64);
    let x = Scale::exact((0.0, last.max(1.0)), (left, width - 10.0));
    let panels = Panels { run, curve, smooth, x };
    let mut top = 26.0;
    let mut area = Area { left, top, width: width - 10.0 - left, height: 0.0 };
    for (part, height) in heights.into_iter().enumerate() {
        let Some(height) = height else { continue };
        area = Area { left, top, width: width - 10.0 - left, height };
        match part {
            0 => panels.loss(&mut canvas, area),
            1 => panels.rate(&mut canvas, area),
            _ => panels.metric(&mut canvas, area),
        }
        top += height + 40.0;
    }
    axis::horizontal(&mut canvas, area, &x, if narrow { 4 } else { 7 }, "step");
    canvas
}

fn figure(name: &'static str, run: &TrainingRun) -> Option<Figure> {
    let curve = usable(run);
    let smooth = smoothed(&curve);
    let (first, last) = (smooth.first()?, smooth.last()?);
    let grouped = curve.iter().any(|point| point.high > point.low);
    let raw = if grouped { "the band spans the losses of neighbouring steps" } else { "the thin line is every step" };
    let lost = if run.lost > 0 { format!(" {} steps had no finite loss.", count(run.lost)) } else { String::new() };
    // Of equal ones the first, as training keeps it.
    let best = known(run).min_by(|one, other| other.value.total_cmp(&one.value));
    let best = best.map(|best| {
        format!(" Best {} {} after epoch {}.", run.metric, fixed(best.value, 2), crate::text::tick(best.epoch))
    });
    let caption = format!(
        "Over {} steps the smoothed loss goes from {} to {}; {raw}.{}{lost}",
        count(run.steps),
        significant(*first, 3),
        significant(*last, 3),
        best.unwrap_or_default()
    );
    let mut table = DataTable::new(run.name.clone(), &["#epoch", &format!("#{}", run.metric)]);
    for evaluation in &run.evaluations {
        table.row([crate::text::tick(evaluation.epoch), fixed(evaluation.value, 2)]);
    }
    let figure = Figure::drawn(name, caption.clone(), format!("{}. {caption}", run.name), |width| draw(width, run))
        .titled(&run.name);
    Some(if table.rows.is_empty() { figure } else { figure.with_table(table) })
}

/// The section.
pub(super) fn section(report: &Report) -> Option<Section> {
    let runs = report.training.iter().filter(|run| !usable(run).is_empty());
    let figures = NAMES.into_iter().zip(runs).filter_map(|(name, run)| figure(name, run));
    let blocks: Vec<Block> = figures.map(Block::Figure).collect();
    (!blocks.is_empty()).then_some(Section { id: "training", title: "Training", blocks })
}
