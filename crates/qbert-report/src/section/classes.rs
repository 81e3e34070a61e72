//! Results per class or entity type, before and after quantization.

use crate::content::{Block, Cell, DataTable, Figure, Section, Tone};
use crate::data::{ClassResults, ClassRow, Report, Scores};
use crate::plot::axis;
use crate::plot::canvas::{Anchor, Area, Canvas, text_width};
use crate::plot::scale::{Scale, extent};
use crate::text::{count, cut, fixed, signed};

/// The figure shows at most this many classes, the table all of them.
const DRAWN: usize = 24;

fn f1(scores: Option<Scores>) -> Option<f64> {
    scores.map(|scores| scores.f1 * 100.0).filter(|value| value.is_finite())
}

fn change(row: &ClassRow) -> Option<f64> {
    Some(f1(row.after)? - f1(row.before)?)
}

/// A name short enough to fit beside a row.
fn short(name: &str, most: usize) -> String {
    match name.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

fn draw(width: f64, rows: &[&ClassRow]) -> Canvas {
    let narrow = width < 500.0;
    let names: Vec<String> = rows.iter().map(|row| short(&row.name, if narrow { 14 } else { 28 })).collect();
    let left = names.iter().map(|name| text_width(name, 12.0)).fold(40.0, f64::max) + 16.0;
    let each = 30.0;
    let mut canvas = Canvas::new(width, each * rows.len() as f64 + 70.0);
    let area = Area { left, top: 24.0, width: width - left - 62.0, height: each * rows.len() as f64 };
    let values = rows.iter().flat_map(|row| [f1(row.before), f1(row.after)]).flatten();
    let x = Scale::linear(extent(values).unwrap_or((0.0, 100.0)), (area.left + 8.0, area.right() - 8.0), 5);
    legend(&mut canvas, rows, area.left);
    for value in x.ticks(if narrow { 4 } else { 6 }) {
        canvas.line("grid", (x.place(value), area.top), (x.place(value), area.bottom()));
    }
    axis::horizontal(&mut canvas, area, &x, if narrow { 4 } else { 6 }, "F1 in percent");
    for (index, row) in rows.iter().enumerate() {
        let y = area.top + each * (index as f64 + 0.5);
        canvas.text("", (area.left - 12.0, y + 4.0), Anchor::End, &names[index]);
        if let (Some(before), Some(after)) = (f1(row.before), f1(row.after)) {
            canvas.line("link", (x.place(before), y), (x.place(after), y));
            canvas.text("value", (width - 4.0, y + 4.0), Anchor::End, &signed(after - before, 2));
        }
        for (value, class, stage) in
            [(f1(row.before), "hollow1", "full precision"), (f1(row.after), "fill1", "quantized")]
        {
            if let Some(value) = value {
                canvas.circle(
                    class,
                    (x.place(value), y),
                    5.0,
                    Some(&format!("{}, {stage}: {}", row.name, fixed(value, 2))),
                );
            }
        }
    }
    canvas
}

fn legend(canvas: &mut Canvas, rows: &[&ClassRow], mut x: f64) {
    let has = |pick: fn(&ClassRow) -> Option<Scores>| rows.iter().any(|row| f1(pick(row)).is_some());
    for (shown, class, name) in
        [(has(|row| row.before), "hollow1", "full precision"), (has(|row| row.after), "fill1", "quantized")]
    {
        if shown {
            canvas.circle(class, (x + 6.0, 8.0), 5.0, None);
            canvas.text("", (x + 17.0, 12.0), Anchor::Start, name);
            x += text_width(name, 12.0) + 34.0;
        }
    }
}

fn table(results: &ClassResults) -> DataTable {
    let head =
        ["", "#examples", "#precision before", "#after", "#recall before", "#after", "#F1 before", "#after", "#change"];
    let mut table = DataTable::new(format!("Results per {} in percent", results.kind), &head);
    table.head[0].name.clone_from(&results.kind);
    for row in &results.rows {
        let pick = |scores: Option<Scores>, value: fn(Scores) -> f64| {
            Cell::from(scores.map_or("–".to_owned(), |scores| fixed(value(scores) * 100.0, 1)))
        };
        let mut cells = vec![Cell::Quote(cut(&row.name)), Cell::from(count(row.support as usize))];
        for value in [|s: Scores| s.precision, |s: Scores| s.recall, |s: Scores| s.f1] {
            cells.extend([pick(row.before, value), pick(row.after, value)]);
        }
        cells.push(match change(row) {
            Some(change) if change <= -0.005 => Cell::Marked(Tone::Bad, signed(change, 2)),
            Some(change) if change >= 0.005 => Cell::Marked(Tone::Good, signed(change, 2)),
            Some(change) => Cell::Text(signed(change, 2)),
            None => Cell::from("–"),
        });
        table.row(cells);
    }
    keep_known_columns(&mut table, results);
    table
}

/// Drops the columns of a stage that is missing.
fn keep_known_columns(table: &mut DataTable, results: &ClassResults) {
    let before = results.rows.iter().any(|row| row.before.is_some());
    let after = results.rows.iter().any(|row| row.after.is_some());
    let keep = |column: usize| match column {
        0 | 1 => true,
        2 | 4 | 6 => before,
        3 | 5 | 7 => after,
        _ => before && after,
    };
    let kept: Vec<usize> = (0..table.head.len()).filter(|&column| keep(column)).collect();
    let names = ["precision", "recall", "F1"];
    if before != after {
        for (column, name) in [2, 4, 6].into_iter().zip(names) {
            table.head[column].name = name.to_owned();
            table.head[column + 1].name = name.to_owned();
        }
    }
    table.head = kept.iter().map(|&column| table.head[column].clone()).collect();
    for row in &mut table.rows {
        *row = kept.iter().map(|&column| row[column].clone()).collect();
    }
}

/// The section.
pub(super) fn section(report: &Report) -> Option<Section> {
    let results = report.classes.as_ref().filter(|results| !results.rows.is_empty())?;
    let mut rows: Vec<&ClassRow> =
        results.rows.iter().filter(|row| f1(row.before).or(f1(row.after)).is_some()).collect();
    if rows.len() > DRAWN {
        let size = |row: &ClassRow| change(row).map_or(0.0, f64::abs);
        rows.sort_by(|one, other| size(other).total_cmp(&size(one)));
        rows.truncate(DRAWN);
    }
    let mut blocks = Vec::new();
    if !rows.is_empty() {
        let worst = rows.iter().filter(|row| change(row).is_some_and(|change| change < -0.005));
        let worst = worst.min_by(|one, other| change(one).unwrap_or(0.0).total_cmp(&change(other).unwrap_or(0.0)));
        let compared = rows.iter().any(|row| change(row).is_some());
        let verdict = match worst {
            Some(row) => {
                format!(" {} loses most ({} points).", short(&row.name, 40), signed(change(row).unwrap_or(0.0), 2))
            }
            None if compared => " None loses.".to_owned(),
            None => String::new(),
        };
        let most = if results.rows.len() > DRAWN { format!(", the {DRAWN} that changed most") } else { String::new() };
        let stages = if compared { " in full precision (ring) and quantized (dot)" } else { "" };
        let caption = format!("F1 of each {}{stages}{most}.{verdict}", results.kind);
        let figure = Figure::drawn("classes", caption.clone(), caption, |width| draw(width, &rows));
        blocks.push(Block::Figure(figure));
    }
    blocks.push(Block::Table(table(results)));
    let title = if results.kind == "entity type" { "Results per entity type" } else { "Results per class" };
    Some(Section { id: "classes", title, blocks })
}
