//! The loss around the model (paper, Fig. 1, 3 and 6): a surface that readers can rotate, and a map.

use crate::content::{Block, DataTable, Figure, Panel, Section};
use crate::data::{LandscapePart, LayerPlane, Report};
use crate::plot::canvas::{Anchor, Area, Canvas};
use crate::plot::contour;
use crate::plot::heat;
use crate::plot::palette::STEPS;
use crate::plot::scale::{Scale, extent};
use crate::plot::surface::{self, Surface};
use crate::text::{count, significant};

/// The rows and columns for which there are losses.
fn shape(layer: &LayerPlane) -> (usize, usize) {
    let columns = layer.losses.iter().map(Vec::len).min().unwrap_or(0);
    (layer.losses.len(), columns)
}

fn values(layer: &LayerPlane) -> impl Iterator<Item = f64> {
    layer.losses.iter().flatten().copied()
}

/// The loss of the model itself: the middle of an odd grid.
fn middle(layer: &LayerPlane) -> f64 {
    let (rows, columns) = shape(layer);
    let at = |rows: usize, columns: usize| layer.losses.get(rows / 2)?.get(columns / 2).copied();
    if rows % 2 == 1 && columns % 2 == 1 { at(rows, columns).unwrap_or(f64::NAN) } else { f64::NAN }
}

/// What an axis is called, with its eigenvalue where it is known.
fn direction(layer: &LayerPlane, index: usize) -> String {
    let name = format!("direction {}", index + 1);
    match layer.eigenvalues.get(index).filter(|value| value.is_finite()) {
        Some(&value) => format!("{name}, λ = {}", significant(value, 3)),
        None => name,
    }
}

/// The map: cells by loss, lines of equal loss, the model in the middle.
fn map(layer: &LayerPlane, own: (f64, f64)) -> Canvas {
    let mut canvas = Canvas::new(surface::SIDE, surface::HEIGHT + 40.0);
    let area = Area { left: 52.0, top: 10.0, width: 290.0, height: 270.0 };
    let grid = surface::thinned(&layer.losses, surface::TURNABLE);
    let (rows, columns) = (grid.len(), grid.first().map_or(0, Vec::len));
    let (width, height) = (area.width / columns.max(1) as f64, area.height / rows.max(1) as f64);
    for (row, line) in grid.iter().enumerate() {
        for (column, &loss) in line.iter().enumerate() {
            // The first row is the lowest step, so it goes to the bottom.
            let top = area.bottom() - height * (row + 1) as f64;
            // Half a pixel more closes the seams between neighbours.
            let cell = Area {
                left: area.left + width * column as f64,
                top: top - 0.25,
                width: width + 0.5,
                height: height + 0.5,
            };
            let class = heat::class(loss, own).map_or("none".to_owned(), |class| format!("s{class}"));
            canvas.rect(&class, cell, None);
        }
    }
    let place = |(row, column): (f64, f64)| (area.left + (column + 0.5) * width, area.bottom() - (row + 0.5) * height);
    for level in 1..STEPS {
        let loss = own.0 + (own.1 - own.0) * level as f64 / STEPS as f64;
        for (from, to) in contour::line(&grid, loss) {
            canvas.line("contour", place(from), place(to));
        }
    }
    canvas.circle("model", (area.left + area.width / 2.0, area.top + area.height / 2.0), 4.5, Some("the model itself"));
    map_axes(&mut canvas, layer, area, (width, height));
    let legend = (area.left, area.bottom() + 44.0);
    heat::legend(&mut canvas, legend, area.width, own, "loss");
    canvas
}

fn map_axes(canvas: &mut Canvas, layer: &LayerPlane, area: Area, (width, height): (f64, f64)) {
    let ends = |steps: &[f64]| extent(steps.iter().copied()).unwrap_or((-1.0, 1.0));
    let x = Scale::exact(ends(&layer.columns), (area.left + width / 2.0, area.right() - width / 2.0));
    let y = Scale::exact(ends(&layer.rows), (area.bottom() - height / 2.0, area.top + height / 2.0));
    for value in y.ticks(4) {
        canvas.text("tick", (area.left - 6.0, y.place(value) + 4.0), Anchor::End, &crate::text::tick(value));
    }
    for value in x.ticks(4) {
        canvas.text("tick", (x.place(value), area.bottom() + 15.0), Anchor::Middle, &crate::text::tick(value));
    }
    canvas.text(
        "name",
        (area.right(), area.bottom() + 32.0),
        Anchor::End,
        &format!("step along {} →", direction(layer, 1)),
    );
}

/// The surface of a layer; `shared` are the lowest and the highest loss of all.
fn view(layer: &LayerPlane, shared: (f64, f64)) -> Surface {
    Surface {
        heights: layer.losses.clone(),
        own: extent(values(layer)).unwrap_or((0.0, 0.0)),
        shared,
        names: [0, 1].map(|index| format!("direction {}", index + 1)),
        middle: middle(layer),
    }
}

fn panels(layer: &LayerPlane, shared: (f64, f64)) -> [Panel; 2] {
    let view = view(layer, shared);
    let own = view.own;
    let range = format!("from {} to {}", significant(own.0, 3), significant(own.1, 3));
    let number = layer.layer;
    [
        Panel {
            title: format!("Layer {number}: surface"),
            description: format!("Surface of the loss around layer {number}'s weights, {range}"),
            wide: surface::draw(&view),
            narrow: None,
            surface: Some(view),
        },
        Panel {
            title: format!("Layer {number}: map (up: {})", direction(layer, 0)),
            description: format!("Map of the loss around layer {number}'s weights, {range}"),
            wide: map(layer, own),
            narrow: None,
            surface: None,
        },
    ]
}

fn table(landscape: &LandscapePart, drawn: &[&LayerPlane]) -> DataTable {
    let head = ["#layer", "#first λ", "#second λ", "#grid", "#loss of the model", "#lowest loss", "#highest loss"];
    let mut table = DataTable::new("Landscapes", &head);
    for layer in drawn {
        let (low, high) = extent(values(layer)).unwrap_or((f64::NAN, f64::NAN));
        let eigenvalue = |index: usize| significant(layer.eigenvalues.get(index).copied().unwrap_or(f64::NAN), 3);
        let own = middle(layer);
        let (rows, columns) = shape(layer);
        table.row([
            layer.layer.to_string(),
            eigenvalue(0),
            eigenvalue(1),
            format!("{rows}×{columns}"),
            significant(if own.is_finite() { own } else { landscape.loss }, 3),
            significant(low, 3),
            significant(high, 3),
        ]);
    }
    table
}

fn caption(landscape: &LandscapePart, drawn: &[&LayerPlane], scales: &str) -> String {
    let mut rises: Vec<(f64, usize)> = Vec::new();
    for layer in drawn {
        let (low, high) = extent(values(layer)).unwrap_or((0.0, 0.0));
        rises.push((high - low, layer.layer));
    }
    rises.sort_by(|one, other| other.0.total_cmp(&one.0));
    let compared = match (rises.first(), rises.last()) {
        (Some(most), Some(least)) if rises.len() > 1 && least.0 > 0.0 => format!(
            " Over the same distance the loss changes {} times as much in layer {} as in layer {}.",
            significant(most.0 / least.0, 2),
            most.1,
            least.1
        ),
        _ => String::new(),
    };
    let examples =
        if landscape.examples > 0 { format!(" on {} sequences", count(landscape.examples)) } else { String::new() };
    format!(
        "The loss{examples} when one layer's weights move along their two most curved directions; the dot is the model itself.\
         {compared} The steeper the bowl, the more a layer suffers from rounding. {scales}"
    )
}

/// Layers with a grid of at least two rows and columns, and the lowest and highest loss of all.
fn drawable(landscape: &LandscapePart) -> Option<(Vec<&LayerPlane>, (f64, f64))> {
    let fine = |layer: &&LayerPlane| {
        let (rows, columns) = shape(layer);
        rows > 1 && columns > 1 && extent(values(layer)).is_some()
    };
    let drawn: Vec<&LayerPlane> = landscape.layers.iter().filter(fine).collect();
    let shared = extent(drawn.iter().flat_map(|layer| values(layer)))?;
    Some((drawn, shared))
}

/// The surfaces of all layers in one drawing, two in a row, each with its eigenvalues above it.
pub(crate) fn surfaces(landscape: &LandscapePart) -> Option<Figure> {
    const TITLE: f64 = 24.0;
    let (drawn, shared) = drawable(landscape)?;
    let across = drawn.len().min(2);
    let down = drawn.len().div_ceil(2);
    let mut canvas = Canvas::new(surface::SIDE * across as f64, (surface::HEIGHT + TITLE) * down as f64);
    for (index, layer) in drawn.iter().enumerate() {
        let (left, top) = (surface::SIDE * (index % 2) as f64, (surface::HEIGHT + TITLE) * (index / 2) as f64);
        let known = layer.eigenvalues.iter().filter(|value| value.is_finite());
        let eigenvalues: Vec<String> = known.map(|&value| significant(value, 3)).collect();
        let eigenvalues =
            if eigenvalues.is_empty() { String::new() } else { format!(": λ = {}", eigenvalues.join(" and ")) };
        let title = format!("layer {}{eigenvalues}", layer.layer);
        canvas.text("strong", (left + surface::SIDE / 2.0, top + 18.0), Anchor::Middle, &title);
        canvas.place(&surface::draw(&view(layer, shared)), (left, top + TITLE));
    }
    let numbers: Vec<String> = drawn.iter().map(|layer| layer.layer.to_string()).collect();
    let description = format!(
        "Surfaces of the loss around the weights of layers {}, from {} to {}",
        numbers.join(", "),
        significant(shared.0, 3),
        significant(shared.1, 3)
    );
    let panel = Panel { title: String::new(), description, wide: canvas, narrow: None, surface: None };
    let caption = caption(landscape, &drawn, "Surfaces share one height scale; colours have each layer's own.");
    Some(Figure { name: "landscape", panels: vec![panel], caption, table: None })
}

/// The section.
pub(super) fn section(report: &Report) -> Option<Section> {
    let landscape = report.landscape.as_ref()?;
    let (drawn, shared) = drawable(landscape)?;
    let scales = "Surfaces share one height scale; colours and maps have each layer's own.";
    let figure = Figure {
        name: "landscape",
        panels: drawn.iter().flat_map(|layer| panels(layer, shared)).collect(),
        caption: caption(landscape, &drawn, scales),
        table: Some(table(landscape, &drawn)),
    };
    let mut blocks = vec![Block::Figure(figure)];
    let is_drawn = |layer: &LayerPlane| drawn.iter().any(|other| std::ptr::eq(*other, layer));
    let empty: Vec<String> =
        landscape.layers.iter().filter(|layer| !is_drawn(layer)).map(|l| l.layer.to_string()).collect();
    if !empty.is_empty() {
        blocks.push(Block::Note(format!(
            "No surface for layer {}: its grid has fewer than two rows or columns of losses.",
            empty.join(", ")
        )));
    }
    Some(Section { id: "landscape", title: "Loss landscape", blocks })
}
