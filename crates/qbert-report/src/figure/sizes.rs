//! A metric against the size of the encoder: one curve for each way of quantizing, one mark for each method.
//!
//! Heights are changes from full precision. If some method loses nearly everything, the axis is logarithmic away from zero,
//! so that both half a point and forty points can be read; nothing is cut off.

use crate::content::{Figure, Panel};
use crate::plot::WIDE;
use crate::plot::axis;
use crate::plot::canvas::{Anchor, Area, Canvas, text_width};
use crate::plot::legend::{LINE, Legend};
use crate::plot::mark;
use crate::plot::scale::{Scale, extent};
use crate::text::{fixed, signed};

/// Changes beyond this many points make the axis logarithmic.
const FAR: f64 = 8.0;
/// Within this many points a logarithmic axis is about linear.
const NEAR: f64 = 0.5;
/// If the largest size is more than this many times the smallest, their axis is logarithmic.
const SPREAD: f64 = 3.0;
/// The caption calls a loss of at most this many points close.
const CLOSE: f64 = 1.0;
const RADIUS: f64 = 5.0;

/// The look of a mark; its colour and shape identify the curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Look {
    /// On its curve.
    #[default]
    Filled,
    /// On its curve, with a ring.
    Ringed,
    /// Not on the curve: something to compare with.
    Hollow,
}

/// What is drawn.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SizeCurves {
    /// The metric's name; its values are in points.
    pub metric: String,
    /// The full-precision model's value.
    pub full: f64,
    /// What the looks of marks mean.
    pub looks: Vec<(Look, String)>,
    /// The curves.
    pub curves: Vec<Curve>,
}

/// One way of quantizing, at several sizes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Curve {
    /// Its name.
    pub name: String,
    /// Its colour and shape: curves that are the same in several figures look the same.
    pub kind: usize,
    /// Whether its line is dashed.
    pub dashed: bool,
    /// The methods, in any order.
    pub points: Vec<SizePoint>,
}

/// One method.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SizePoint {
    /// Its width, such as `2/3 MP`: written once for all marks of the same size.
    pub name: String,
    /// How it looks.
    pub look: Look,
    /// Size of the encoder in MiB.
    pub mib: f64,
    /// The metric.
    pub value: f64,
    /// Its standard deviation between runs, if there are several.
    pub deviation: Option<f64>,
}

impl SizePoint {
    fn is_usable(&self) -> bool {
        self.mib.is_finite() && self.mib > 0.0 && self.value.is_finite()
    }
}

/// The figure, if there is a point to draw.
pub(super) fn figure(given: &SizeCurves) -> Option<Figure> {
    let mut curves = given.clone();
    curves.curves.iter_mut().for_each(|curve| curve.points.retain(SizePoint::is_usable));
    curves.curves.retain(|curve| !curve.points.is_empty());
    let used = |look: &Look| curves.curves.iter().flat_map(|curve| &curve.points).any(|point| point.look == *look);
    curves.looks = given.looks.iter().filter(|(look, _)| used(look)).cloned().collect();
    if curves.curves.is_empty() || !curves.full.is_finite() {
        return None;
    }
    let panel = Panel {
        title: String::new(),
        description: description(&curves),
        wide: draw(&curves),
        narrow: None,
        surface: None,
    };
    Some(Figure { name: "sizes", panels: vec![panel], caption: caption(&curves), table: None })
}

fn all(curves: &SizeCurves) -> impl Iterator<Item = (&Curve, &SizePoint)> {
    curves.curves.iter().flat_map(|curve| curve.points.iter().map(move |point| (curve, point)))
}

fn description(curves: &SizeCurves) -> String {
    let sizes = extent(all(curves).map(|(_, point)| point.mib)).unwrap_or_default();
    let names: Vec<&str> = curves.curves.iter().map(|curve| curve.name.as_str()).collect();
    format!(
        "Change of {} from full precision against encoder sizes from {} to {} MiB: {}",
        curves.metric,
        fixed(sizes.0, 2),
        fixed(sizes.1, 2),
        names.join("; ")
    )
}

fn caption(curves: &SizeCurves) -> String {
    let close = |point: &SizePoint| point.look != Look::Hollow && curves.full - point.value <= CLOSE;
    let smallest = all(curves)
        .filter(|(_, point)| close(point))
        .min_by(|(_, one), (_, other)| one.mib.total_cmp(&other.mib).then(other.value.total_cmp(&one.value)));
    let conclusion = match smallest {
        Some((curve, point)) => format!(
            "The smallest within {CLOSE} point of full precision: {}, {} ({} MiB, {}).",
            point.name,
            curve.name,
            fixed(point.mib, 2),
            signed(point.value - curves.full, 2)
        ),
        None => format!("None is within {CLOSE} point of full precision."),
    };
    let bars = if all(curves).any(|(_, point)| point.deviation.is_some()) {
        " Bars are the standard deviation between seeds."
    } else {
        ""
    };
    format!(
        "Change of {} from full precision ({}) against the size of the encoder: up and left is better. Marks of one size \
         stand side by side.{bars} {conclusion}",
        curves.metric,
        fixed(curves.full, 2)
    )
}

/// The scales, and where everything is.
struct Plot {
    area: Area,
    x: Scale,
    y: Scale,
    /// Whether the heights are logarithmic away from zero.
    uneven: bool,
    full: f64,
    curves: usize,
}

impl Plot {
    fn new(curves: &SizeCurves, area: Area) -> Self {
        let sizes = extent(all(curves).map(|(_, point)| point.mib)).unwrap_or((1.0, 1.0));
        let across = (area.left + 60.0, area.right() - 60.0);
        let x = if sizes.1 / sizes.0 > SPREAD { Scale::log(sizes, across) } else { Scale::exact(sizes, across) };
        let ends = all(curves).flat_map(|(_, point)| {
            let (change, bar) = (point.value - curves.full, point.deviation.unwrap_or(0.0));
            [change - bar, change + bar]
        });
        let (low, high) = extent(ends).unwrap_or((0.0, 0.0));
        let (low, high) = (low.min(0.0), high.max(0.0));
        let down = (area.bottom() - 12.0, area.top + 12.0);
        let uneven = -low > FAR || high > FAR;
        let y = if uneven { Scale::symmetric((low, high), down, NEAR) } else { Scale::linear((low, high), down, 6) };
        Self { area, x, y, uneven, full: curves.full, curves: curves.curves.len() }
    }

    /// Where a point is drawn: beside those of other curves at its size.
    fn place(&self, curve: usize, point: &SizePoint) -> (f64, f64) {
        let count = self.curves.max(2) as f64;
        let apart = (2.0 * RADIUS).min(48.0 / (count - 1.0));
        let aside = (curve as f64 - (self.curves as f64 - 1.0) / 2.0) * apart;
        (self.x.place(point.mib) + aside, self.y.place(point.value - self.full))
    }
}

fn draw(curves: &SizeCurves) -> Canvas {
    // The legend and the names of columns decide where the plot begins, so they are laid out first.
    let mut canvas = Canvas::new(WIDE, 0.0);
    let top = legend(&mut canvas, curves) + LINE;
    let area = Area { left: 44.0, top: 0.0, width: WIDE - 88.0, height: 320.0 };
    let columns = columns(&Plot::new(curves, area), curves);
    let rows = columns.iter().map(|column| column.row + 1).max().unwrap_or(0);
    let area = Area { top: top + 8.0 + 15.0 * rows as f64, ..area };
    let plot = Plot::new(curves, area);
    canvas.height = area.bottom() + 44.0;
    for column in &columns {
        let y = top + 15.0 * (rows - 1 - column.row) as f64;
        canvas.line("grid", (column.x, y + 16.0), (column.x, area.bottom()));
        canvas.text("strong", (column.x, y + 12.0), Anchor::Middle, &column.name);
    }
    axes(&mut canvas, &plot, &curves.metric, top);
    for (index, curve) in curves.curves.iter().enumerate() {
        draw_line(&mut canvas, &plot, index, curve);
    }
    for (index, curve) in curves.curves.iter().enumerate() {
        for point in &curve.points {
            draw_point(&mut canvas, &plot, index, curve, point, &curves.metric);
        }
    }
    canvas
}

fn axes(canvas: &mut Canvas, plot: &Plot, metric: &str, top: f64) {
    let area = plot.area;
    let shown = axis::vertical(canvas, area, &plot.y, 12);
    for value in shown {
        let text = fixed(plot.full + value, 1);
        canvas.text("tick", (area.right() + 6.0, plot.y.place(value) + 4.0), Anchor::Start, &text);
    }
    let name = if plot.x.is_log() { "size of the encoder in MiB, logarithmic" } else { "size of the encoder in MiB" };
    axis::horizontal(canvas, area, &plot.x, 8, name);
    let zero = plot.y.place(0.0);
    canvas.line("zero", (area.left, zero), (area.right(), zero));
    let change = if plot.uneven { "change in points (logarithmic away from 0)" } else { "change in points" };
    canvas.text("name", (4.0, top - 6.0), Anchor::Start, change);
    canvas.text("name", (area.right() + area.left - 4.0, top - 6.0), Anchor::End, metric);
}

/// A width and where it stands.
struct Column {
    x: f64,
    name: String,
    /// Counted from the plot upwards; neighbours that would touch have different ones.
    row: usize,
}

/// The names of all points, once for those of (nearly) the same size.
fn columns(plot: &Plot, curves: &SizeCurves) -> Vec<Column> {
    let mut points: Vec<(f64, &str)> =
        all(curves).map(|(_, point)| (plot.x.place(point.mib), point.name.as_str())).collect();
    points.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut clusters: Vec<Vec<(f64, &str)>> = Vec::new();
    for point in points {
        match clusters.last_mut() {
            Some(last) if point.0 - last[0].0 < 2.0 * RADIUS => last.push(point),
            _ => clusters.push(vec![point]),
        }
    }
    let mut free: Vec<f64> = Vec::new();
    let mut columns = Vec::new();
    for cluster in clusters {
        let mut names: Vec<&str> = cluster.iter().map(|(_, name)| *name).collect();
        names.sort_unstable();
        names.dedup();
        let name = names.join(", ");
        let x = cluster.iter().map(|(x, _)| x).sum::<f64>() / cluster.len() as f64;
        let half = text_width(&name, 12.0) / 2.0;
        let row = free.iter().position(|end| x - half > *end).unwrap_or(free.len());
        free.resize(free.len().max(row + 1), f64::NEG_INFINITY);
        free[row] = x + half + 6.0;
        columns.push(Column { x, name, row });
    }
    columns
}

impl Curve {
    fn stroke(&self) -> String {
        format!("line{}{}", mark::colour(self.kind), if self.dashed { " dashed" } else { "" })
    }
}

/// The line of a curve; of several points of one size it goes through the best.
fn draw_line(canvas: &mut Canvas, plot: &Plot, index: usize, curve: &Curve) {
    let mut points: Vec<&SizePoint> = curve.points.iter().filter(|point| point.look != Look::Hollow).collect();
    points.sort_by(|one, other| one.mib.total_cmp(&other.mib));
    let mut kept: Vec<&SizePoint> = Vec::new();
    for point in points {
        match kept.last_mut() {
            Some(last) if point.mib < last.mib * 1.01 => {
                if point.value > last.value {
                    *last = point;
                }
            }
            _ => kept.push(point),
        }
    }
    let places: Vec<(f64, f64)> = kept.into_iter().map(|point| plot.place(index, point)).collect();
    if places.len() > 1 {
        canvas.path(&curve.stroke(), &places, false, None);
    }
}

fn draw_point(canvas: &mut Canvas, plot: &Plot, index: usize, curve: &Curve, point: &SizePoint, metric: &str) {
    let at = plot.place(index, point);
    let change = point.value - plot.full;
    let mut title =
        format!("{}, {}: {metric} {} ({})", point.name, curve.name, fixed(point.value, 2), signed(change, 2));
    if let Some(deviation) = point.deviation.filter(|value| value.is_finite()) {
        title += &format!(", ± {} between seeds", fixed(deviation, 2));
        let (low, high) = (plot.y.place(change - deviation), plot.y.place(change + deviation));
        canvas.line(&format!("line{} spread", mark::colour(curve.kind)), (at.0, low), (at.0, high));
    }
    title += &format!(", {} MiB", fixed(point.mib, 2));
    draw_mark(canvas, curve, point.look, at, Some(&title));
}

fn draw_mark(canvas: &mut Canvas, curve: &Curve, look: Look, at: (f64, f64), title: Option<&str>) {
    let class = if look == Look::Hollow { "hollow" } else { "fill" };
    let size = if look == Look::Hollow { RADIUS - 1.0 } else { RADIUS };
    mark::draw(canvas, curve.kind, &format!("{class}{}", mark::colour(curve.kind)), at, size, title);
    if look == Look::Ringed {
        canvas.circle("halo", at, RADIUS + 3.5, None);
    }
}

/// Curves, then looks; returns the height that both take.
fn legend(canvas: &mut Canvas, curves: &SizeCurves) -> f64 {
    let mut legend = Legend::new(canvas.width, 18.0);
    for curve in &curves.curves {
        let entry = legend.entry(&curve.name);
        canvas.path(&curve.stroke(), &entry.line, false, None);
        draw_mark(canvas, curve, Look::Filled, entry.mark, None);
        canvas.text("", entry.name, Anchor::Start, &curve.name);
    }
    if curves.looks.len() > 1 {
        legend.next_line();
        let plain = Curve::default();
        for (look, name) in &curves.looks {
            let entry = legend.entry(name);
            draw_mark(canvas, &plain, *look, entry.mark, None);
            canvas.text("name", entry.name, Anchor::Start, name);
        }
    }
    legend.y + 12.0
}
