//! How far quantization moved each head's attention (paper, §5.2, Fig. 5): heads × layers.

use crate::content::{Block, DataTable, Figure, Section};
use crate::data::{AttentionPart, LayerHeads, Report};
use crate::plot::axis::{self, Bands};
use crate::plot::canvas::{Anchor, Area, Canvas};
use crate::plot::heat;
use crate::plot::scale::extent;
use crate::text::{count, significant};

/// Whether a head was measured: a divergence is never negative.
pub(crate) fn usable(value: f64) -> bool {
    value.is_finite() && value >= 0.0
}

/// The mean over the heads of a layer that were measured, if any was.
pub(crate) fn mean(layer: &LayerHeads) -> Option<f64> {
    let heads: Vec<f64> = layer.heads.iter().copied().filter(|value| usable(*value)).collect();
    (!heads.is_empty()).then(|| heads.iter().sum::<f64>() / heads.len() as f64)
}

/// The mean in words; a dash where there is none.
fn mean_text(layer: &LayerHeads, digits: usize) -> String {
    significant(mean(layer).unwrap_or(f64::NAN), digits)
}

fn highest(attention: &AttentionPart) -> Option<f64> {
    extent(attention.layers.iter().flat_map(|layer| layer.heads.iter().copied())).map(|(_, high)| high)
}

fn draw(width: f64, attention: &AttentionPart, high: f64) -> Canvas {
    let narrow = width < 500.0;
    let heads = attention.layers.iter().map(|layer| layer.heads.len()).max().unwrap_or(0);
    let cell = if narrow { 20.0 } else { 26.0 };
    let (left, top) = (34.0, 26.0);
    let height = cell * attention.layers.len() as f64;
    let mut canvas = Canvas::new(width, top + height + 84.0);
    let area = Area { left, top, width: width - left - 62.0, height };
    let bands = Bands::new(heads, area.left, area.right());
    canvas.text("name", (0.0, 12.0), Anchor::Start, "layer");
    canvas.text("name", (width, 12.0), Anchor::End, "mean");
    for (row, layer) in attention.layers.iter().enumerate() {
        let y = top + cell * row as f64;
        canvas.text("tick", (left - 8.0, y + cell / 2.0 + 4.0), Anchor::End, &layer.layer.to_string());
        for (head, &value) in layer.heads.iter().enumerate() {
            let place = Area { left: bands.left(head), top: y, width: bands.width, height: cell };
            draw_head(&mut canvas, place, value, high, &format!("layer {}, head {head}", layer.layer));
        }
        canvas.text("value", (width, y + cell / 2.0 + 4.0), Anchor::End, &mean_text(layer, 2));
    }
    let names: Vec<String> = (0..heads).map(|head| head.to_string()).collect();
    axis::named(&mut canvas, bands, area.bottom(), &names);
    canvas.text("name", (area.right(), area.bottom() + 32.0), Anchor::End, "head");
    heat::legend(&mut canvas, (area.left, area.bottom() + 44.0), 240.0, (0.0, high), "KL");
    canvas
}

fn draw_head(canvas: &mut Canvas, place: Area, value: f64, high: f64, name: &str) {
    let Some(class) = heat::class(value.max(0.0), (0.0, high)).filter(|_| value.is_finite()) else {
        return canvas.rect("cell none", place, Some(&format!("{name}: not measured")));
    };
    canvas.rect(&format!("cell s{class}"), place, Some(&format!("{name}: KL = {}", significant(value, 3))));
    if place.width >= 44.0 {
        let middle = (place.left + place.width / 2.0, place.top + place.height / 2.0 + 4.0);
        canvas.text(&format!("small t{class}"), middle, Anchor::Middle, &significant(value, 2));
    }
}

/// The figure, if any head was measured.
pub(crate) fn figure(attention: &AttentionPart) -> Option<Figure> {
    let high = highest(attention)?;
    let mut worst = (f64::NEG_INFINITY, 0, 0);
    let mut table =
        DataTable::new("KL per layer", &["#layer", "#heads", "#mean", "#lowest", "#highest", "#head of the highest"]);
    for layer in &attention.layers {
        let (low, top) = extent(layer.heads.iter().copied()).unwrap_or((f64::NAN, f64::NAN));
        let head = layer.heads.iter().position(|value| *value >= top);
        if let (true, Some(head)) = (top > worst.0, head) {
            worst = (top, layer.layer, head);
        }
        table.row([
            layer.layer.to_string(),
            layer.heads.len().to_string(),
            mean_text(layer, 3),
            significant(low, 3),
            significant(top, 3),
            head.map_or("–".to_owned(), |head| head.to_string()),
        ]);
    }
    let examples = if attention.examples > 0 {
        format!(", averaged over {} sequences", count(attention.examples))
    } else {
        String::new()
    };
    let caption = format!(
        "Divergence of the quantized model's attention from full precision per layer and head{examples}; 0 means that a head \
         looks where it looked before. Head {} of layer {} moved most (KL = {}).",
        worst.2,
        worst.1,
        significant(worst.0, 3)
    );
    let figure = Figure::drawn("attention", caption.clone(), caption, |width| draw(width, attention, high));
    Some(figure.with_table(table))
}

/// The section.
pub(super) fn section(report: &Report) -> Option<Section> {
    let blocks = vec![Block::Figure(figure(report.attention.as_ref()?)?)];
    Some(Section { id: "attention", title: "Attention", blocks })
}
