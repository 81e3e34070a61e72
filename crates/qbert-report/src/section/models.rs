//! Accuracy against size: a mark for each model, a shape and colour for each method, a line through the best trade-offs.

use qbert_documents::{ModelPoint, Models};

use crate::content::{Block, DataTable, Figure, Section};
use crate::data::Report;
use crate::plot::axis;
use crate::plot::canvas::{Anchor, Area, Canvas, text_width};
use crate::plot::mark;
use crate::plot::scale::{Scale, extent};
use crate::text::{bytes, fixed};

const MIB: f64 = 1024.0 * 1024.0;

fn usable(models: &Models) -> Vec<&ModelPoint> {
    let fine = |point: &&ModelPoint| point.bytes.is_finite() && point.bytes > 0.0 && point.value.is_finite();
    let mut points: Vec<&ModelPoint> = models.points.iter().filter(fine).collect();
    points.sort_by(|one, other| one.bytes.total_cmp(&other.bytes).then(other.value.total_cmp(&one.value)));
    points
}

/// Models that no model of the same size or smaller beats; `points` are sorted by size.
fn front<'a>(points: &[&'a ModelPoint]) -> Vec<&'a ModelPoint> {
    let mut best = f64::NEG_INFINITY;
    let mut kept = Vec::new();
    for point in points {
        if point.value > best {
            best = point.value;
            kept.push(*point);
        }
    }
    kept
}

/// Methods in the order they are given.
fn methods(models: &Models) -> Vec<&str> {
    let mut methods: Vec<&str> = Vec::new();
    for point in &models.points {
        if !methods.contains(&point.method.as_str()) {
            methods.push(&point.method);
        }
    }
    methods
}

/// A mark; its shape and colour identify the method.
fn mark(canvas: &mut Canvas, method: usize, at: (f64, f64), size: f64, title: &str) {
    mark::draw(canvas, method, &format!("fill{}", mark::colour(method)), at, size, Some(title));
}

/// Puts a label where it covers the least.
fn label(canvas: &mut Canvas, taken: &mut Vec<Area>, area: Area, (x, y): (f64, f64), point: &ModelPoint) {
    let text = &point.name;
    let width = text_width(text, 12.0);
    let beside = if point.this { 15.0 } else { 10.0 };
    let places = [
        (x + beside, y + 4.0, Anchor::Start),
        (x - beside, y + 4.0, Anchor::End),
        (x, y - 11.0, Anchor::Middle),
        (x, y + 20.0, Anchor::Middle),
        (x + 8.0, y - 9.0, Anchor::Start),
        (x + 8.0, y + 17.0, Anchor::Start),
        (x - 8.0, y - 9.0, Anchor::End),
        (x - 8.0, y + 17.0, Anchor::End),
        (x + 6.0, y - 24.0, Anchor::Start),
        (x - 6.0, y - 24.0, Anchor::End),
    ];
    let boxed = |(x, y, anchor): (f64, f64, Anchor)| {
        let left = match anchor {
            Anchor::Start => x,
            Anchor::Middle => x - width / 2.0,
            Anchor::End => x - width,
        };
        Area { left, top: y - 11.0, width, height: 15.0 }
    };
    let hidden = |candidate: Area| {
        let overlap = |other: &Area| {
            let across = candidate.right().min(other.right()) - candidate.left.max(other.left);
            let down = candidate.bottom().min(other.bottom()) - candidate.top.max(other.top);
            across.max(0.0) * down.max(0.0)
        };
        let outside = (area.left - candidate.left).max(0.0) + (candidate.right() - area.right()).max(0.0);
        taken.iter().map(overlap).sum::<f64>() + outside * 15.0
    };
    let mut best = (f64::INFINITY, places[0]);
    for place in places {
        let cost = hidden(boxed(place));
        if cost < best.0 {
            best = (cost, place);
        }
    }
    let (x, y, anchor) = best.1;
    taken.push(boxed(best.1));
    canvas.text("", (x, y), anchor, text);
}

fn draw(width: f64, models: &Models) -> Canvas {
    let narrow = width < 500.0;
    let points = usable(models);
    let methods = methods(models);
    let top = if methods.len() > 1 { if narrow { 20.0 * methods.len() as f64 + 16.0 } else { 40.0 } } else { 16.0 };
    let height = top + if narrow { 260.0 } else { 300.0 };
    let mut canvas = Canvas::new(width, height + 44.0);
    let area = Area { left: 48.0, top, width: width - 66.0, height: height - top };
    let sizes = extent(points.iter().map(|point| point.bytes / MIB)).unwrap_or((1.0, 1.0));
    let spread = sizes.1 / sizes.0 > 6.0;
    let widest = points.iter().map(|point| text_width(&point.name, 12.0)).fold(0.0, f64::max).min(if narrow {
        44.0
    } else {
        90.0
    });
    let (from, to) = (area.left + widest + 14.0, area.right() - widest - 14.0);
    let x = if spread {
        Scale::log((sizes.0 * 0.93, sizes.1 * 1.07), (from, to))
    } else {
        Scale::linear(sizes, (from, to), 6)
    };
    let values = extent(points.iter().map(|point| point.value)).unwrap_or((0.0, 1.0));
    let y = Scale::linear(values, (area.bottom() - 8.0, area.top + 12.0), 5);
    axis::vertical(&mut canvas, area, &y, 5);
    let name = if spread { "size in MiB, logarithmic" } else { "size in MiB" };
    axis::horizontal(&mut canvas, area, &x, if narrow { 4 } else { 7 }, name);
    canvas.text("name", (4.0, area.top - 2.0), Anchor::Start, &models.metric);
    legend(&mut canvas, &methods, narrow);
    let place = |point: &ModelPoint| (x.place(point.bytes / MIB), y.place(point.value));
    let best: Vec<(f64, f64)> = front(&points).into_iter().map(place).collect();
    canvas.path("front", &best, false, None);
    let mut taken: Vec<Area> = Vec::new();
    for point in &points {
        let at = place(point);
        taken.push(Area { left: at.0 - 8.0, top: at.1 - 8.0, width: 16.0, height: 16.0 });
        let method = methods.iter().position(|method| *method == point.method).unwrap_or(0);
        let title = format!("{}: {} {}, {}", point.name, models.metric, fixed(point.value, 2), bytes(point.bytes));
        mark(&mut canvas, method, at, 5.5, &title);
        if point.this {
            canvas.circle("halo", at, 10.0, None);
        }
    }
    for point in &points {
        label(&mut canvas, &mut taken, area, place(point), point);
    }
    canvas
}

fn legend(canvas: &mut Canvas, methods: &[&str], narrow: bool) {
    if methods.len() < 2 {
        return;
    }
    let (mut x, mut y) = (54.0, 12.0);
    for (index, method) in methods.iter().enumerate() {
        mark(canvas, index, (x, y - 4.0), 5.0, method);
        canvas.text("", (x + 11.0, y), Anchor::Start, method);
        if narrow {
            y += 20.0;
        } else {
            x += text_width(method, 12.0) + 36.0;
        }
    }
}

/// The section.
pub(super) fn section(report: &Report) -> Option<Section> {
    let models = report.models.as_ref()?;
    let points = usable(models);
    if points.is_empty() {
        return None;
    }
    let mut table = DataTable::new("Models", &["model", "method", "#MiB", &format!("#{}", models.metric)]);
    for point in &points {
        table.row([point.name.clone(), point.method.clone(), fixed(point.bytes / MIB, 2), fixed(point.value, 2)]);
    }
    let kind = if models.size.is_empty() { String::new() } else { format!(" (size: {})", models.size) };
    let ring = if points.iter().any(|point| point.this) { " The ring marks the model of this report." } else { "" };
    let caption = format!(
        "Each mark is a model{kind}: up and to the left is better. No smaller model beats those on the dashed line.{ring}"
    );
    let names: Vec<&str> = front(&points).iter().map(|point| point.name.as_str()).collect();
    let description =
        format!("{} models by size and {}; best trade-offs: {}", points.len(), models.metric, names.join(", "));
    let figure = Figure::drawn("models", caption, description, |width| draw(width, models)).with_table(table);
    Some(Section { id: "models", title: "Accuracy against size", blocks: vec![Block::Figure(figure)] })
}
