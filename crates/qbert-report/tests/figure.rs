//! Single figures: whole files, everything within them, readable when one method loses nearly everything.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use qbert_report::figure::*;
use scraper::{ElementRef, Html, Selector};

fn point(name: &str, look: Look, mib: f64, value: f64) -> SizePoint {
    SizePoint { name: name.to_owned(), look, mib, value, deviation: None }
}

/// Two ways: one that keeps the accuracy, one that is at chance at 2 bits.
fn curves() -> SizeCurves {
    let curve = |name: &str, kind, dashed, values: [f64; 5]| Curve {
        name: name.to_owned(),
        kind,
        dashed,
        points: vec![
            point("4 bits", Look::Filled, 5.11, values[0]),
            point("2 bits", Look::Filled, 2.57, values[1]),
            point("2 bits", Look::Hollow, 2.54, values[2]),
            point("3 bits", Look::Filled, 3.84, values[3]),
            point("2/4 MP", Look::Ringed, 3.84, values[4]),
        ],
    };
    SizeCurves {
        metric: "accuracy".to_owned(),
        full: 90.14,
        looks: vec![(Look::Filled, "one width".to_owned()), (Look::Ringed, "mixed".to_owned())],
        curves: vec![
            curve("trained", 1, false, [90.0, 88.6, 87.0, 89.5, 90.3]),
            curve("not trained", 0, true, [72.5, 50.9, 50.9, 59.9, 61.0]),
        ],
    }
}

fn number(element: &ElementRef<'_>, name: &str) -> f64 {
    element.attr(name).unwrap().parse().unwrap()
}

/// Where the marks are: circles by their middle, others by their first corner.
fn marks(svg: &str) -> Vec<(String, f64, f64)> {
    let page = Html::parse_fragment(svg);
    let selector = Selector::parse("circle, path").unwrap();
    let mut found = Vec::new();
    for mark in page.select(&selector) {
        let Some(title) = mark.select(&Selector::parse("title").unwrap()).next() else { continue };
        let place = match mark.attr("d") {
            None => (number(&mark, "cx"), number(&mark, "cy")),
            Some(d) => {
                let first = d.trim_start_matches('M').split('L').next().unwrap();
                let (x, y) = first.split_once(' ').unwrap();
                (x.parse().unwrap(), y.parse().unwrap())
            }
        };
        found.push((title.inner_html(), place.0, place.1));
    }
    found
}

#[test]
fn half_a_point_and_forty_points_are_both_read() {
    let drawing = accuracy_against_size(&curves()).unwrap();
    let marks = marks(&drawing.svg);
    assert_eq!(marks.len(), 10, "{marks:?}");
    let height = |start: &str| marks.iter().find(|(title, ..)| title.starts_with(start)).unwrap().2;
    let page = Html::parse_fragment(&drawing.svg);
    let svg = page.select(&Selector::parse("svg").unwrap()).next().unwrap();
    let (width, tall) = (number(&svg, "width"), number(&svg, "height"));
    assert!(marks.iter().all(|(_, x, y)| (0.0..width).contains(x) && (0.0..tall).contains(y)), "{marks:?}");
    // Half a point, near the top, is not lost because another method is at chance.
    assert!(height("3 bits, trained") - height("4 bits, trained") > 12.0, "{marks:?}");
    assert!(height("2 bits, not trained") - height("4 bits, not trained") > 30.0, "{marks:?}");
    assert!(height("2/4 MP, trained") < height("4 bits, trained"), "better is higher");
    for wanted in ["−20", "−1", "70.1", "size of the encoder in MiB", "2/4 MP, 3 bits", "stroke-dasharray"] {
        assert!(drawing.svg.contains(wanted), "{wanted}: {}", drawing.svg);
    }
    assert!(drawing.caption.ends_with("2/4 MP, trained (3.84 MiB, +0.16)."), "{}", drawing.caption);
}

#[test]
fn an_axis_without_outliers_is_linear() {
    let mut near = curves();
    near.curves.pop();
    let ticks = |svg: &str| svg.matches("class=\"grid\"").count();
    let drawing = accuracy_against_size(&near).unwrap();
    assert!(!drawing.svg.contains("−20") && ticks(&drawing.svg) >= 5, "{}", drawing.svg);
}

#[test]
fn a_curve_looks_the_same_beside_others_and_alone() {
    let both = accuracy_against_size(&curves()).unwrap().svg;
    let mut alone = curves();
    alone.curves[1].points.clear();
    let alone = accuracy_against_size(&alone).unwrap().svg;
    assert!(both.contains("class=\"line2\"") && both.contains("class=\"line1 dashed\""));
    assert!(alone.contains("class=\"line2\"") && !alone.contains("class=\"line1"));
}

#[test]
fn bars_are_drawn_for_several_seeds() {
    let mut several = curves();
    several.curves[0].points[0].deviation = Some(0.4);
    let drawing = accuracy_against_size(&several).unwrap();
    assert!(drawing.svg.contains("class=\"line2 spread\"") && drawing.svg.contains("± 0.40 between seeds"));
    assert!(drawing.caption.contains("standard deviation between seeds"));
    assert!(!accuracy_against_size(&curves()).unwrap().caption.contains("deviation"));
}

#[test]
fn figures_of_nothing_are_none_and_hostile_names_stay_text() {
    let mut none = curves();
    none.curves.iter_mut().flat_map(|curve| &mut curve.points).for_each(|point| point.value = f64::NAN);
    assert_eq!(accuracy_against_size(&none), None);
    assert_eq!(accuracy_against_size(&SizeCurves::default()), None);
    assert_eq!(accuracy_against_size(&SizeCurves { full: f64::NAN, ..curves() }), None);
    let mut hostile = curves();
    hostile.curves[0].name = "<script>".to_owned();
    hostile.curves[0].points[0].name = "\"&<b>".to_owned();
    let svg = accuracy_against_size(&hostile).unwrap().svg;
    assert!(!svg.contains("<script>") && !svg.contains("<b>"), "{svg}");
}

#[test]
fn the_papers_figures_are_those_of_the_report() {
    let report = common::full(6, 12);
    let rendered = report.render();
    let file = |name: &str| &rendered.figures.iter().find(|(own, _)| own.ends_with(name)).unwrap().1;
    let drawn = eigenvalues(report.sensitivity.as_ref().unwrap()).unwrap();
    assert_eq!(drawn.svg, *file("eigenvalues.svg"));
    assert_eq!(attention_kl(report.attention.as_ref().unwrap()).unwrap().svg, *file("attention.svg"));
    let landscapes = report.landscape.as_ref().unwrap();
    let surfaces = landscape(landscapes).unwrap();
    assert_eq!(surfaces.svg.matches("<g transform").count(), landscapes.layers.len());
    assert!(surfaces.svg.contains(&format!("layer {}: λ = ", landscapes.layers[0].layer)));
    assert_eq!(landscape(&qbert_report::LandscapePart::default()), None);
    assert_eq!(eigenvalues(&qbert_report::SensitivityPart::default()), None);
    assert_eq!(attention_kl(&qbert_report::AttentionPart::default()), None);
}

#[test]
fn models_are_compared_head_by_head() {
    let mut far = common::attention(3, 4);
    let near = far.clone();
    far.layers.iter_mut().flat_map(|layer| &mut layer.heads).for_each(|value| *value *= 10.0);
    // One layer in which the other is closer, and heads that were not measured or did not move.
    far.layers[1].heads.fill(0.0);
    far.layers[2].heads[0] = f64::NAN;
    let model = |name: &str, attention: &qbert_report::AttentionPart| Compared {
        name: name.to_owned(),
        attention: attention.clone(),
    };
    let drawn = attention_of_models(&[model("<far>", &far), model("near", &near)]).unwrap();
    assert!(drawn.caption.contains("near stays closer in 2 of 3 layers"), "{}", drawn.caption);
    assert!(!drawn.svg.contains("<far>") && !drawn.svg.contains("NaN"));
    // Two marks of the legend, the means of the layers, and the heads that were measured.
    assert_eq!(drawn.svg.matches("class=\"fill").count(), 2 + 6);
    assert_eq!(drawn.svg.matches("class=\"hollow").count(), 12 + 11);
    assert_eq!(attention_of_models(&[]), None);
    assert_eq!(attention_of_models(&[Compared::default()]), None);
}
