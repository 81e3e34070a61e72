//! The outcome in a few figures, at the top of the page.

use qbert_documents::{BeforeAfter, Summary};

use crate::content::{Block, Cell, DataTable, Figure, Section, Tile, Tone};
use crate::data::Report;
use crate::plot::axis;
use crate::plot::canvas::{Anchor, Area, Canvas};
use crate::plot::scale::{Scale, extent};
use crate::text::{bytes, count, fixed, signed, significant};

/// The page's title.
pub(crate) fn title(report: &Report) -> String {
    if !report.title.trim().is_empty() {
        return report.title.clone();
    }
    let summary = report.summary.as_ref();
    let parts = summary.map(|s| [s.task.as_str(), s.method.as_str()]).unwrap_or_default();
    let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    if parts.is_empty() { "Quantization report".to_owned() } else { parts.join(": ") }
}

fn number(value: Option<f64>) -> Option<f64> {
    value.filter(|value| value.is_finite())
}

/// The metric of the quantized model, after training if there was any.
fn quantized(summary: &Summary) -> Option<f64> {
    number(summary.trained).or(number(summary.post_training))
}

fn drop(summary: &Summary) -> Option<f64> {
    Some(quantized(summary)? - number(summary.full_precision)?)
}

/// How many times smaller.
fn compression(size: BeforeAfter) -> Option<f64> {
    let ratio = size.full / size.quantized;
    (ratio.is_finite() && ratio > 0.0).then_some(ratio)
}

/// How many times faster.
fn speedup(summary: &Summary) -> Option<f64> {
    let speed = summary.speed.as_ref()?;
    let ratio = speed.quantized / speed.full?;
    (ratio.is_finite() && ratio > 0.0).then_some(ratio)
}

fn times(ratio: f64) -> String {
    format!("{}×", significant(ratio, if ratio >= 100.0 { 3 } else { 2 }))
}

/// A compression in words; a tiny model's header and tokenizer outweigh what its weights lose.
fn size_ratio(ratio: f64) -> String {
    if ratio >= 1.0 { format!("{} smaller", times(ratio)) } else { format!("{} larger", times(1.0 / ratio)) }
}

/// The outcome in one sentence.
pub(crate) fn headline(report: &Report) -> Option<String> {
    let summary = report.summary.as_ref()?;
    let metric = if summary.metric.is_empty() { "metric" } else { &summary.metric };
    let value = quantized(summary);
    let mut text = match (value, number(summary.full_precision)) {
        (Some(value), Some(full)) => {
            let change = match value - full {
                change if change.abs() < 0.005 => "the same as".to_owned(),
                change if change < 0.0 => format!("{} points below", fixed(-change, 2)),
                change => format!("{} points above", fixed(change, 2)),
            };
            format!("The quantized model reaches {metric} {}, {change} full precision", fixed(value, 2))
        }
        (Some(value), None) => format!("The quantized model reaches {metric} {}", fixed(value, 2)),
        (None, Some(full)) => format!("The full-precision model reaches {metric} {}", fixed(full, 2)),
        (None, None) => return None,
    };
    let smaller = summary.file_size.or(summary.paper_size).and_then(compression);
    let size = smaller.map(size_ratio);
    let speed = speedup(summary).map(|ratio| format!("{} as fast", times(ratio)));
    let more: Vec<String> = size.into_iter().chain(speed).collect();
    if !more.is_empty() {
        text += &format!(", and is {}", more.join(" and "));
    }
    Some(text + ".")
}

fn tiles(summary: &Summary) -> Vec<Tile> {
    let mut tiles = Vec::new();
    let mut add = |label: &str, value: String, detail: String, tone| {
        tiles.push(Tile { label: label.to_owned(), value, detail, tone });
    };
    let metric = if summary.metric.is_empty() { "metric" } else { &summary.metric };
    if let Some(value) = quantized(summary).or(number(summary.full_precision)) {
        let which = match (number(summary.trained), number(summary.post_training)) {
            (Some(_), _) => "after quantization-aware training",
            (None, Some(_)) => "quantized, not trained",
            (None, None) => "full precision",
        };
        add(metric, fixed(value, 2), which.to_owned(), Tone::Plain);
    }
    if let Some(change) = drop(summary) {
        let full = fixed(summary.full_precision.unwrap_or(f64::NAN), 2);
        // A drop of less than a point is the method doing its job.
        let tone = if change >= -0.005 {
            Tone::Good
        } else if change > -1.0 {
            Tone::Plain
        } else {
            Tone::Bad
        };
        add("change", signed(change, 2), format!("points; full precision {full}"), tone);
    }
    for (size, label) in [(summary.file_size, "file"), (summary.paper_size, "paper’s size")] {
        let Some(size) = size else { continue };
        let ratio = compression(size).map(|ratio| format!("{} than {}", size_ratio(ratio), bytes(size.full)));
        add(label, bytes(size.quantized), ratio.unwrap_or_default(), Tone::Plain);
    }
    if let Some(speed) = &summary.speed {
        let ratio = speedup(summary).map(|ratio| format!("{} full precision", times(ratio)));
        let detail: Vec<String> =
            ratio.into_iter().chain((!speed.setting.is_empty()).then(|| speed.setting.clone())).collect();
        let unit = if speed.unit.is_empty() { "speed" } else { &speed.unit };
        add(unit, significant(speed.quantized, 3), detail.join("; "), Tone::Plain);
    }
    tiles
}

/// A note on the metric's uncertainty.
fn uncertainty(summary: &Summary) -> Option<String> {
    let examples = summary.examples.filter(|&examples| examples > 0)?;
    let share = quantized(summary).or(number(summary.full_precision))? / 100.0;
    if summary.metric != "accuracy" || !(0.0..=1.0).contains(&share) {
        return Some(format!("Measured on {} examples.", count(examples as usize)));
    }
    let error = 100.0 * (share * (1.0 - share) / examples as f64).sqrt();
    Some(format!(
        "Measured on {} examples: one standard error of a single accuracy is {} points.",
        count(examples as usize),
        fixed(error, 2)
    ))
}

fn stages(summary: &Summary) -> Vec<(&'static str, f64)> {
    let all = [
        ("full precision", summary.full_precision),
        ("quantized, not trained", summary.post_training),
        ("after quantization-aware training", summary.trained),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name, number(value)?))).collect()
}

fn draw_stages(width: f64, stages: &[(&str, f64)], metric: &str) -> Canvas {
    let narrow = width < 500.0;
    let left = if narrow { 12.0 } else { 225.0 };
    let row = if narrow { 46.0 } else { 32.0 };
    let mut canvas = Canvas::new(width, row * stages.len() as f64 + 54.0);
    let area = Area { left, top: 8.0, width: width - left - 60.0, height: row * stages.len() as f64 };
    let Some(domain) = extent(stages.iter().map(|stage| stage.1)) else { return canvas };
    // Room for a value left of the lowest mark.
    let scale = Scale::linear(domain, (area.left + 44.0, area.right()), if narrow { 4 } else { 6 });
    axis::horizontal(&mut canvas, area, &scale, if narrow { 4 } else { 6 }, metric);
    for value in scale.ticks(if narrow { 4 } else { 6 }) {
        canvas.line("grid", (scale.place(value), area.top), (scale.place(value), area.bottom()));
    }
    let reference = scale.place(stages[0].1);
    for (index, &(name, value)) in stages.iter().enumerate() {
        let (x, y) = (scale.place(value), area.top + row * (index as f64 + if narrow { 0.68 } else { 0.5 }));
        if index > 0 {
            canvas.line("link", (reference, y), (x, y));
        }
        let class = if index == 0 {
            "hollow1"
        } else if name.starts_with("after") {
            "fill1"
        } else {
            "fill2"
        };
        canvas.circle(class, (x, y), 6.0, Some(&format!("{name}: {}", fixed(value, 2))));
        let place = if narrow { (area.left, y - 13.0) } else { (area.left - 14.0, y + 4.0) };
        canvas.text("", place, if narrow { Anchor::Start } else { Anchor::End }, name);
        let right = x >= reference || index == 0;
        let (at, anchor) = if right { (x + 11.0, Anchor::Start) } else { (x - 11.0, Anchor::End) };
        canvas.text("value", (at, y + 4.0), anchor, &fixed(value, 2));
    }
    canvas
}

/// The section.
pub(super) fn section(report: &Report) -> Option<Section> {
    let summary = report.summary.as_ref()?;
    let mut blocks = Vec::new();
    let tiles = tiles(summary);
    if !tiles.is_empty() {
        blocks.push(Block::Tiles(tiles));
    }
    let stages = stages(summary);
    if stages.len() > 1 {
        let metric = summary.metric.clone();
        let list: Vec<String> = stages.iter().map(|(name, value)| format!("{name} {}", fixed(*value, 2))).collect();
        let note = uncertainty(summary).map(|text| format!(" {text}")).unwrap_or_default();
        let wins = if summary.trained.is_some() && summary.post_training.is_some() {
            " and what training recovers"
        } else {
            ""
        };
        let caption = format!("What quantization costs{wins}.{note}");
        let description = format!("{metric}: {}", list.join(", "));
        let figure = Figure::drawn("stages", caption, description, |width| draw_stages(width, &stages, &metric));
        blocks.push(Block::Figure(figure));
    } else if let Some(text) = uncertainty(summary) {
        blocks.push(Block::Note(text));
    }
    let mut table = DataTable::new("The run", &["", ""]);
    let facts =
        [("Task", &summary.task), ("Model", &summary.model), ("Method", &summary.method), ("Bits", &summary.bits)];
    for (name, value) in facts.iter().filter(|(_, value)| !value.is_empty()) {
        table.row([Cell::from(*name), Cell::Text((*value).clone())]);
    }
    if !table.rows.is_empty() {
        blocks.push(Block::Table(table));
    }
    blocks.extend(summary.notes.iter().cloned().map(Block::Note));
    (!blocks.is_empty()).then_some(Section { id: "summary", title: "Summary", blocks })
}
