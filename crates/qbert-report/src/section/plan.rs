//! Ω and the bit plan per layer (paper, §3.2): bars over a strip of widths, one column per layer.

use qbert_documents::BitCount;

use super::sensitivity::omega;
use crate::content::{Block, DataTable, Figure, Section};
use crate::data::{BitPlan, Report, SensitivityPart};
use crate::plot::axis::{self, Bands};
use crate::plot::canvas::{Anchor, Area, Canvas, text_width};
use crate::plot::palette::STEPS;
use crate::plot::scale::{Scale, extent};
use crate::text::{fixed, sentence, significant};

const FULL: f64 = 32.0;

/// One column of the figure.
#[derive(Debug, Clone)]
struct Column {
    layer: usize,
    omega: Option<f64>,
    bits: Option<Vec<BitCount>>,
}

fn columns(sensitivity: Option<&SensitivityPart>, plan: Option<&BitPlan>) -> Vec<Column> {
    let layers = sensitivity.map(|s| s.layers.as_slice()).unwrap_or_default();
    let planned = plan.map_or(0, |plan| plan.layers.len());
    // A damaged file may name any number: columns are the layers that occur, not a range up to the largest.
    let mut numbers: Vec<usize> = layers.iter().map(|layer| layer.layer).chain(0..planned).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let column = |layer: usize| Column {
        layer,
        omega: layers.iter().find(|l| l.layer == layer).map(omega).filter(|value| value.is_finite()),
        bits: plan.and_then(|plan| plan.layers.get(layer).cloned()),
    };
    numbers.into_iter().map(column).collect()
}

fn draw(width: f64, columns: &[Column], plan: Option<&BitPlan>) -> Canvas {
    let narrow = width < 500.0;
    let sites = plan.map(|plan| plan.sites.as_slice()).unwrap_or_default();
    let has_omega = columns.iter().any(|column| column.omega.is_some());
    let widest = sites.iter().map(|site| text_width(site, 11.0)).fold(0.0, f64::max);
    let left = (widest + 12.0).clamp(48.0, if narrow { 104.0 } else { 160.0 });
    let bars = if has_omega { if narrow { 150.0 } else { 190.0 } } else { 0.0 };
    let cell = if narrow { 22.0 } else { 24.0 };
    let strip = cell * sites.len() as f64;
    let top = if has_omega { 26.0 } else { 8.0 };
    let gap = if has_omega && strip > 0.0 { 12.0 } else { 0.0 };
    let mut canvas = Canvas::new(width, top + bars + gap + strip + 44.0);
    let area = Area { left, top, width: width - left - 8.0, height: bars };
    let bands = Bands::new(columns.len(), area.left, area.right());
    if has_omega {
        draw_bars(&mut canvas, area, bands, columns);
    }
    let strip_top = area.bottom() + gap;
    for (row, site) in sites.iter().enumerate() {
        let y = strip_top + cell * row as f64;
        canvas.text("tick", (left - 8.0, y + cell / 2.0 + 4.0), Anchor::End, site);
        for (index, column) in columns.iter().enumerate() {
            let Some(&bits) = column.bits.as_ref().and_then(|bits| bits.get(row)) else { continue };
            let area = Area { left: bands.left(index), top: y, width: bands.width, height: cell };
            draw_cell(&mut canvas, area, bits, &format!("layer {}, {site}: {}", column.layer, in_words(bits)));
        }
    }
    let names: Vec<String> = columns.iter().map(|column| column.layer.to_string()).collect();
    axis::named(&mut canvas, bands, strip_top + strip, &names);
    canvas.text("name", (area.right(), strip_top + strip + 34.0), Anchor::End, "layer");
    canvas
}

fn draw_bars(canvas: &mut Canvas, area: Area, bands: Bands, columns: &[Column]) {
    let highest = extent(columns.iter().filter_map(|column| column.omega)).map_or(1.0, |(_, high)| high.max(0.0));
    let y = Scale::linear((0.0, if highest > 0.0 { highest } else { 1.0 }), (area.bottom(), area.top + 8.0), 4);
    axis::vertical(canvas, area, &y, 4);
    canvas.text("name", (4.0, 12.0), Anchor::Start, "Ω = |mean λ| + std λ");
    for (index, column) in columns.iter().enumerate() {
        let Some(value) = column.omega else { continue };
        let (half, height) = ((bands.width * 0.34).min(30.0), y.place(value.max(0.0)));
        let bar =
            Area { left: bands.middle(index) - half, top: height, width: 2.0 * half, height: area.bottom() - height };
        canvas.rect("fill1", bar, Some(&format!("layer {}: Ω = {}", column.layer, significant(value, 4))));
        let text = significant(value, 3);
        if text_width(&text, 11.0) < bands.width + 2.0 {
            canvas.text("value", (bands.middle(index), height - 5.0), Anchor::Middle, &text);
        }
    }
    canvas.line("rule", (area.left, area.bottom()), (area.right(), area.bottom()));
}

fn draw_cell(canvas: &mut Canvas, area: Area, bits: BitCount, title: &str) {
    // Ternary codes have the colour of two bits.
    let step = (bits.get().round() as usize).min(STEPS - 1);
    let (fill, ink) = if bits.get() >= FULL {
        ("cell none".to_owned(), "onnone".to_owned())
    } else {
        (format!("cell s{step}"), format!("t{step}"))
    };
    canvas.rect(&fill, area, Some(title));
    if area.width >= 12.0 {
        let place = (area.left + area.width / 2.0, area.top + area.height / 2.0 + 4.0);
        canvas.text(&format!("small {ink}"), place, Anchor::Middle, &bits.to_string());
    }
}

fn in_words(bits: BitCount) -> String {
    match bits.get() {
        FULL => "full precision".to_owned(),
        1.0 => "1 bit".to_owned(),
        _ => format!("{bits} bits"),
    }
}

fn table(columns: &[Column], plan: Option<&BitPlan>) -> DataTable {
    let mut head = vec!["#layer".to_owned(), "#Ω".to_owned(), "#rank".to_owned()];
    head.extend(plan.iter().flat_map(|plan| plan.sites.iter().map(|site| format!("#{site}"))));
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    let mut table = DataTable::new("Ω and bits per layer", &head);
    let mut order: Vec<usize> = (0..columns.len()).filter(|&index| columns[index].omega.is_some()).collect();
    let value = |index: usize| columns[index].omega.unwrap_or(f64::NAN);
    order.sort_by(|&one, &other| value(other).total_cmp(&value(one)));
    for (index, column) in columns.iter().enumerate() {
        let rank = order.iter().position(|&at| at == index).map_or("–".to_owned(), |rank| (rank + 1).to_string());
        let mut row = vec![column.layer.to_string(), significant(column.omega.unwrap_or(f64::NAN), 3), rank];
        for site in 0..plan.map_or(0, |plan| plan.sites.len()) {
            let bits = column.bits.as_ref().and_then(|bits| bits.get(site));
            row.push(bits.map_or("–".to_owned(), BitCount::to_string));
        }
        table.row(row);
    }
    table
}

fn caption(columns: &[Column], plan: Option<&BitPlan>) -> String {
    let mut parts = Vec::new();
    if let Some(most) = columns.iter().filter(|c| c.omega.is_some()).max_by(|one, other| {
        // Of equals the first, as in the plan.
        one.omega.unwrap_or(0.0).total_cmp(&other.omega.unwrap_or(0.0)).then(other.layer.cmp(&one.layer))
    }) {
        let value = significant(most.omega.unwrap_or(f64::NAN), 3);
        parts.push(format!(
            "Bars: how much each layer's weights matter; layer {} is the most sensitive (Ω = {value}).",
            most.layer
        ));
    }
    if let Some(plan) = plan {
        let all: Vec<BitCount> = plan.layers.iter().flatten().copied().collect();
        let mean = all.iter().map(|bits| bits.get()).sum::<f64>() / all.len() as f64;
        let rows = if parts.is_empty() { "The bits of every matrix" } else { "Below: the bits of every matrix" };
        parts.push(format!("{rows}, on average {} over {} matrices.", fixed(mean, 2), all.len()));
        let others: Vec<String> = plan.others.iter().map(|other| format!("{} {}", other.site, other.bits)).collect();
        if !others.is_empty() {
            parts.push(format!("Outside the layers: {} bits.", others.join(", ")));
        }
        if !plan.setting.is_empty() {
            parts.push(sentence(&plan.setting));
        }
    }
    parts.join(" ")
}

/// The section.
pub(super) fn section(report: &Report) -> Option<Section> {
    let plan = report.plan.as_ref().filter(|plan| plan.layers.iter().any(|layer| !layer.is_empty()));
    let columns = columns(report.sensitivity.as_ref(), plan);
    if plan.is_none() && columns.iter().all(|column| column.omega.is_none()) {
        return None;
    }
    let caption = caption(&columns, plan);
    let figure = Figure::drawn("plan", caption.clone(), caption, |width| draw(width, &columns, plan));
    let blocks = vec![Block::Figure(figure.with_table(table(&columns, plan)))];
    let title = if plan.is_some() { "Sensitivity and bit plan" } else { "Sensitivity" };
    Some(Section { id: "plan", title, blocks })
}
