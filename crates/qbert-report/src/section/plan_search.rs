//! The search for the smallest plan within a limit on the metric's drop: every plan tried, by size and drop, and what was
//! expected of the sizes between them.

use qbert_documents::{MeasuredDrop, PlanSearch, TriedPlan};

use crate::content::{Block, DataTable, Figure, Section};
use crate::data::Report;
use crate::plot::axis;
use crate::plot::canvas::{Anchor, Area, Canvas};
use crate::plot::legend::{LINE, Legend};
use crate::plot::mark;
use crate::plot::scale::{Scale, extent};
use crate::text::{bytes, fixed, sentence, significant};

const MIB: f64 = 1024.0 * 1024.0;
/// The kinds of marks.
const UNTRAINED: usize = 0;
const TRAINED: usize = 1;

/// A measurement to draw.
struct Shown<'a> {
    plan: &'a TriedPlan,
    measured: &'a MeasuredDrop,
    kind: usize,
}

/// Every measurement that has a place.
fn shown(search: &PlanSearch) -> Vec<Shown<'_>> {
    let has_place = |mark: &Shown<'_>| mark.plan.bytes > 0 && mark.measured.drop.is_finite();
    search.plans.iter().flat_map(of_plan).filter(has_place).collect()
}

/// What was measured of a plan.
fn of_plan(plan: &TriedPlan) -> impl Iterator<Item = Shown<'_>> {
    let (measured, trained) = (plan.measured.as_ref(), plan.trained.as_ref().map(|own| &own.measured));
    let kinds = [(UNTRAINED, measured), (TRAINED, trained)];
    kinds.into_iter().filter_map(move |(kind, measured)| Some(Shown { plan, measured: measured?, kind }))
}

fn draw(width: f64, search: &PlanSearch) -> Canvas {
    let narrow = width < 500.0;
    let marks = shown(search);
    let has_trained = marks.iter().any(|mark| mark.kind == TRAINED);
    let expected: Vec<(f64, f64)> =
        search.frontier.iter().filter_map(|point| Some((point.bytes as f64 / MIB, point.predicted?))).collect();
    let mut entries = vec![("not trained", UNTRAINED)];
    if has_trained {
        entries.push(("trained", TRAINED));
    }
    // The legend is laid out twice: its height decides where the plot begins.
    let lay = |canvas: Option<&mut Canvas>| {
        let mut legend = Legend::new(width, 16.0);
        let mut places: Vec<_> = entries.iter().map(|(name, kind)| (*name, Some(*kind), legend.entry(name))).collect();
        places.push(("expected", None, legend.entry("expected")));
        if let Some(canvas) = canvas {
            for (name, kind, entry) in places {
                match kind {
                    Some(kind) => mark::draw(canvas, kind, &class(kind), entry.mark, 5.0, None),
                    None => canvas.path("front", &entry.line, false, None),
                }
                canvas.text("", entry.name, Anchor::Start, name);
            }
        }
        legend.y
    };
    let top = lay(None) + LINE;
    let height = if narrow { 250.0 } else { 300.0 };
    let mut canvas = Canvas::new(width, top + height + 44.0);
    lay(Some(&mut canvas));
    let area = Area { left: 48.0, top, width: width - 60.0, height };
    let sizes = marks.iter().map(|mark| mark.plan.bytes as f64 / MIB).chain(expected.iter().map(|point| point.0));
    let x = Scale::linear(extent(sizes).unwrap_or((0.0, 1.0)), (area.left + 10.0, area.right() - 10.0), 6);
    let drops = marks.iter().flat_map(|mark| [mark.measured.low, mark.measured.drop, mark.measured.high]);
    let drops = drops.chain([0.0, search.max_drop]).chain(expected.iter().map(|point| point.1));
    let y = Scale::linear(extent(drops).unwrap_or((0.0, 1.0)), (area.bottom() - 6.0, area.top + 14.0), 6);
    axis::vertical(&mut canvas, area, &y, 6);
    axis::horizontal(&mut canvas, area, &x, if narrow { 4 } else { 7 }, "packed file in MiB");
    canvas.text("name", (4.0, area.top + 4.0), Anchor::Start, &format!("drop of {} in points", search.metric));
    if search.max_drop.is_finite() {
        let limit = y.place(search.max_drop);
        canvas.line("line2 spread", (area.left, limit), (area.right(), limit));
        canvas.text("tick", (area.right(), limit - 5.0), Anchor::End, &format!("limit {}", fixed(search.max_drop, 2)));
    }
    let curve: Vec<(f64, f64)> = expected.iter().map(|&(size, drop)| (x.place(size), y.place(drop))).collect();
    canvas.path("front", &curve, false, None);
    for mark in &marks {
        let (left, MeasuredDrop { low, high, .. }) = (x.place(mark.plan.bytes as f64 / MIB), mark.measured);
        if low.is_finite() && high.is_finite() {
            canvas.line("link", (left, y.place(*low)), (left, y.place(*high)));
        }
    }
    for mark in &marks {
        let MeasuredDrop { drop, low, high, .. } = *mark.measured;
        let at = (x.place(mark.plan.bytes as f64 / MIB), y.place(drop));
        let how = if mark.kind == TRAINED { "trained" } else { "not trained" };
        let said = format!(
            "{}, {how}: {} points, {} to {}",
            bytes(mark.plan.bytes as f64),
            fixed(drop, 2),
            fixed(low, 2),
            fixed(high, 2)
        );
        mark::draw(&mut canvas, mark.kind, &class(mark.kind), at, 5.0, Some(&said));
        // The ring is around what decided.
        if mark.plan.chosen && (mark.kind == TRAINED || mark.plan.trained.is_none()) {
            canvas.circle("halo", at, 9.5, None);
        }
    }
    canvas
}

fn class(kind: usize) -> String {
    format!("fill{}", mark::colour(kind))
}

fn table(search: &PlanSearch) -> DataTable {
    let head = ["plan", "#MiB", "#divergence", "#expected", "#drop", "interval", "#trained", "interval, trained", ""];
    let mut table = DataTable::new("Plans in the order of trying", &head);
    let interval = |own: &MeasuredDrop| format!("{} to {}", fixed(own.low, 2), fixed(own.high, 2));
    for (index, plan) in search.plans.iter().enumerate() {
        let (measured, trained) = (plan.measured.as_ref(), plan.trained.as_ref().map(|own| &own.measured));
        let drop = |own: Option<&MeasuredDrop>| own.map_or(String::new(), |own| fixed(own.drop, 2));
        let holds = trained.or(measured).is_some_and(|own| search.judged(own) <= search.max_drop);
        let verdict = if holds { "holds" } else { "misses" };
        table.row([
            (index + 1).to_string(),
            fixed(plan.bytes as f64 / MIB, 2),
            significant(plan.divergence, 3),
            plan.predicted.map_or(String::new(), |drop| fixed(drop, 2)),
            drop(measured),
            measured.map_or(String::new(), interval),
            drop(trained),
            trained.map_or(String::new(), interval),
            if plan.chosen { format!("{verdict}, chosen") } else { verdict.to_owned() },
        ]);
    }
    table
}

/// The section.
pub(super) fn section(report: &Report) -> Option<Section> {
    let search = report.plan_search.as_ref()?;
    if shown(search).is_empty() {
        return None;
    }
    let judge = match search.confidence {
        Some(sure) => format!("the upper end of the interval ({} % sure) decides", fixed(100.0 * sure, 1)),
        None => "the measured drop decides".to_owned(),
    };
    let caption = format!(
        "Plans of the best frontier by measured divergence, by size and drop on {} dev examples, with intervals; {judge}. The \
         dashed curve is the drop that the measured plans let expect without training. The ring marks the chosen plan.",
        search.examples
    );
    let description = format!("{} plans by size of the packed file and drop of {}", search.plans.len(), search.metric);
    let figure = Figure::drawn("plansearch", caption, description, |width| draw(width, search));
    let mut blocks = vec![Block::Figure(figure.with_table(table(search)))];
    if !search.outcome.is_empty() {
        let outcome = sentence(&search.outcome);
        blocks.insert(0, if search.holds { Block::Text(outcome) } else { Block::Warning(outcome) });
    }
    Some(Section { id: "plansearch", title: "Plans tried", blocks })
}
