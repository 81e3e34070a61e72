//! How far attention moves in several quantized models (paper, Fig. 5): a mark for each head, a line for each model.

use crate::content::{Figure, Panel};
use crate::data::AttentionPart;
use crate::plot::WIDE;
use crate::plot::axis::{self, Bands};
use crate::plot::canvas::{Anchor, Area, Canvas};
use crate::plot::legend::Legend;
use crate::plot::mark;
use crate::plot::scale::{Scale, extent};
use crate::section::attention::{mean, usable};
use crate::text::{count, significant};

/// The lowest divergence on the logarithmic axis; smaller ones are drawn there.
const LEAST: f64 = 1e-6;
const RADIUS: f64 = 4.5;

/// A quantized model that was compared with full precision.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Compared {
    /// Its name.
    pub name: String,
    /// How far its heads moved.
    pub attention: AttentionPart,
}

/// The mean over the heads of every layer that has one: the layer's place among `layers`, and the mean.
fn means(attention: &AttentionPart) -> Vec<(usize, f64)> {
    attention.layers.iter().enumerate().filter_map(|(at, layer)| Some((at, mean(layer)?))).collect()
}

/// The figure, if any head was measured.
pub(super) fn figure(models: &[Compared]) -> Option<Figure> {
    let models: Vec<&Compared> = models.iter().filter(|model| !means(&model.attention).is_empty()).collect();
    let description = format!(
        "KL divergence of attention from full precision, per layer and head: {}",
        models.iter().map(|model| model.name.as_str()).collect::<Vec<_>>().join("; ")
    );
    let wide = draw(&models)?;
    let panel = Panel { title: String::new(), description, wide, narrow: None, surface: None };
    Some(Figure { name: "heads", panels: vec![panel], caption: caption(&models), table: None })
}

fn caption(models: &[&Compared]) -> String {
    let mut text =
        "Divergence of a quantized model's attention from full precision: a mark is a head, a line goes through \
                    the means of the layers"
            .to_owned();
    if let Some(examples) = models.iter().map(|model| model.attention.examples).max().filter(|most| *most > 0) {
        text += &format!(", over {} sequences", count(examples));
    }
    text += ". ";
    let overall = |model: &Compared| {
        let means = means(&model.attention);
        means.iter().map(|(_, mean)| mean).sum::<f64>() / means.len().max(1) as f64
    };
    let all: Vec<String> =
        models.iter().map(|model| format!("{} {}", model.name, significant(overall(model), 3))).collect();
    text += &format!("Means over all heads: {}.", all.join(", "));
    if let [one, other] = models {
        let (nearer, further) = if overall(one) <= overall(other) { (one, other) } else { (other, one) };
        let (near, far) = (means(&nearer.attention), means(&further.attention));
        let layers = near.len().min(far.len());
        let below = near.iter().zip(&far).filter(|((_, near), (_, far))| near < far).count();
        text += &format!(" {} stays closer in {below} of {layers} layers.", nearer.name);
    }
    text
}

fn draw(models: &[&Compared]) -> Option<Canvas> {
    let values = models.iter().flat_map(|model| &model.attention.layers).flat_map(|layer| layer.heads.iter().copied());
    let (low, high) = extent(values.filter(|value| usable(*value)).map(|value| value.max(LEAST)))?;
    let area = Area { left: 52.0, top: 52.0, width: WIDE - 66.0, height: 300.0 };
    let mut canvas = Canvas::new(WIDE, area.bottom() + 44.0);
    let y = Scale::log((low / 1.2, high * 1.2), (area.bottom() - 4.0, area.top + 4.0));
    axis::vertical(&mut canvas, area, &y, 10);
    canvas.text("name", (4.0, area.top - 12.0), Anchor::Start, "KL divergence, logarithmic");
    let longest = models.iter().max_by_key(|model| model.attention.layers.len())?;
    let bands = Bands::new(longest.attention.layers.len(), area.left, area.right());
    for (kind, model) in models.iter().enumerate() {
        draw_model(&mut canvas, model, kind, models.len(), bands, &y);
    }
    let names: Vec<String> = longest.attention.layers.iter().map(|layer| layer.layer.to_string()).collect();
    canvas.line("rule", (area.left, area.bottom()), (area.right(), area.bottom()));
    axis::named(&mut canvas, bands, area.bottom(), &names);
    canvas.text("name", (area.right(), area.bottom() + 34.0), Anchor::End, "layer");
    legend(&mut canvas, models);
    Some(canvas)
}

fn draw_model(canvas: &mut Canvas, model: &Compared, kind: usize, all: usize, bands: Bands, y: &Scale) {
    // Models side by side within a layer, and the heads of each apart from one another.
    let share = (bands.width * 0.8 / all as f64).min(90.0);
    let middle = |layer: usize| bands.middle(layer) + (kind as f64 - (all as f64 - 1.0) / 2.0) * share;
    let colour = mark::colour(kind);
    let means = means(&model.attention);
    let places: Vec<(f64, f64)> =
        means.iter().map(|&(layer, mean)| (middle(layer), y.place(mean.max(LEAST)))).collect();
    for (at, layer) in model.attention.layers.iter().enumerate() {
        for (head, &value) in layer.heads.iter().enumerate().filter(|(_, value)| usable(**value)) {
            let aside = ((head as f64 + 0.5) / layer.heads.len() as f64 - 0.5) * share * 0.8;
            let title = format!("{}, layer {}, head {head}: KL = {}", model.name, layer.layer, significant(value, 3));
            let place = (middle(at) + aside, y.place(value.max(LEAST)));
            mark::draw(canvas, kind, &format!("hollow{colour}"), place, RADIUS - 1.5, Some(&title));
        }
    }
    if places.len() > 1 {
        canvas.path(&format!("line{colour}"), &places, false, None);
    }
    for (&(layer, mean), &place) in means.iter().zip(&places) {
        let number = model.attention.layers[layer].layer;
        let title = format!("{}, layer {number}: mean KL = {}", model.name, significant(mean, 3));
        mark::draw(canvas, kind, &format!("fill{colour}"), place, RADIUS, Some(&title));
    }
}

fn legend(canvas: &mut Canvas, models: &[&Compared]) {
    // No second line: the plot below has a fixed place, and few models are compared.
    let mut legend = Legend::new(f64::INFINITY, 24.0);
    for (kind, model) in models.iter().enumerate() {
        let (colour, entry) = (mark::colour(kind), legend.entry(&model.name));
        canvas.path(&format!("line{colour}"), &entry.line, false, None);
        mark::draw(canvas, kind, &format!("fill{colour}"), entry.mark, RADIUS, None);
        canvas.text("", entry.name, Anchor::Start, &model.name);
    }
}
