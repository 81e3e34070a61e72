//! The page: well formed, self-contained, accessible, safe with hostile text, and whole with any part of the data.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::collections::BTreeSet;

use qbert_report::*;
use scraper::{Html, Selector};
use serde_json::Value;

fn parsed(html: &str) -> Html {
    let page = Html::parse_document(html);
    assert!(page.errors.is_empty(), "{:?}", page.errors);
    page
}

fn all<'a>(page: &'a Html, selector: &'a str) -> Vec<scraper::ElementRef<'a>> {
    page.select(&Selector::parse(selector).unwrap()).collect()
}

fn sections(page: &Html) -> Vec<&str> {
    all(page, "main > section").iter().map(|section| section.value().id().unwrap()).collect()
}

const EVERY: [&str; 12] = [
    "summary",
    "models",
    "eigenvalues",
    "measured",
    "plan",
    "plansearch",
    "landscape",
    "attention",
    "training",
    "classes",
    "changes",
    "provenance",
];

#[test]
fn a_full_report_has_every_section_and_is_accessible() {
    let html = common::full(12, 12).render().html;
    let page = parsed(&html);
    assert_eq!(sections(&page), EVERY);
    assert_eq!(all(&page, "h1").len(), 1);
    assert_eq!(all(&page, "main > section > h2").len(), EVERY.len());
    assert_eq!(all(&page, "figure").len(), all(&page, "figure > figcaption").len());
    for svg in all(&page, "svg") {
        assert_eq!(svg.attr("role"), Some("img"));
        assert!(svg.attr("aria-label").is_some_and(|label| label.len() > 10), "{:?}", svg.attr("aria-label"));
    }
    for table in all(&page, "table") {
        assert!(table.select(&Selector::parse("caption").unwrap()).next().is_some());
        assert!(table.select(&Selector::parse("th[scope]").unwrap()).next().is_some());
    }
    for input in all(&page, "input") {
        assert!(input.ancestors().any(|node| node.value().as_element().is_some_and(|e| e.name() == "label")));
    }
    let ids: Vec<&str> = all(&page, "[id]").iter().map(|element| element.value().id().unwrap()).collect();
    assert_eq!(ids.len(), ids.iter().collect::<BTreeSet<_>>().len(), "ids are unique: {ids:?}");
    for link in all(&page, "a") {
        let target = link.attr("href").unwrap().strip_prefix('#').unwrap();
        assert!(ids.contains(&target), "{target}");
    }
}

#[test]
fn the_summary_says_what_came_out() {
    let page = parsed(&common::full(6, 12).render().html);
    let lead: String = all(&page, ".lead")[0].text().collect();
    assert_eq!(
        lead,
        "The quantized model reaches accuracy 89.56, 0.58 points below full precision, and is 6.0× smaller and 2.4× as fast."
    );
    let tiles: Vec<String> = all(&page, ".tiles .figure").iter().map(|tile| tile.text().collect()).collect();
    assert_eq!(tiles, ["89.56", "−0.58", "14.3 MiB", "13.4 MiB", "512"]);
}

#[test]
fn nothing_is_loaded_from_anywhere() {
    let rendered = common::full(6, 12).render();
    let page = parsed(&rendered.html);
    for element in all(&page, "*") {
        for (name, value) in element.value().attrs() {
            assert!(!["src", "srcset", "background", "poster", "data", "xlink:href"].contains(&name), "{name}={value}");
            assert!(name != "href" || value.starts_with('#'), "{value}");
            assert!(!name.starts_with("on"), "{name}");
        }
        assert!(!["link", "img", "iframe", "object", "embed", "base"].contains(&element.value().name()));
    }
    for word in ["http:", "https:", "url(", "@import", "@font-face", "fetch(", "XMLHttpRequest", "import("] {
        assert!(!rendered.html.contains(word), "{word}");
    }
    for (name, svg) in &rendered.figures {
        let loaded = svg.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
        assert!(!loaded.contains("http") && !loaded.contains("url(") && !loaded.contains("href"), "{name}");
    }
    let policy = all(&page, "meta[http-equiv]")[0].attr("content").unwrap();
    assert!(policy.starts_with("default-src 'none'") && policy.contains("script-src 'sha256-"), "{policy}");
}

/// Replaces what `change` says in the report's JSON, and reads it back.
fn changed(report: &Report, change: &dyn Fn(&str, &Value) -> Option<Value>) -> Report {
    fn walk(key: &str, value: &mut Value, change: &dyn Fn(&str, &Value) -> Option<Value>) {
        if let Some(new) = change(key, value) {
            *value = new;
            return;
        }
        match value {
            Value::Array(list) => list.iter_mut().for_each(|item| walk(key, item, change)),
            Value::Object(map) => map.iter_mut().for_each(|(key, item)| walk(key, item, change)),
            _ => {}
        }
    }
    let mut json: Value = serde_json::from_str(&report.to_json()).unwrap();
    walk("", &mut json, change);
    read::report(&json.to_string(), "test").unwrap()
}

/// As a reader of the Markdown would see it: our figures, no other pictures, links or HTML.
fn check_markdown(markdown: &str, figures: usize) {
    let mut html = String::new();
    let parser = pulldown_cmark::Parser::new_ext(markdown, pulldown_cmark::Options::ENABLE_TABLES);
    pulldown_cmark::html::push_html(&mut html, parser);
    let page = Html::parse_fragment(&html);
    let pictures = all(&page, "img");
    assert_eq!(pictures.len(), figures);
    assert!(pictures.iter().all(|picture| picture.attr("src").unwrap().starts_with("report-figures/")));
    let ours = [
        "html",
        "h1",
        "h2",
        "p",
        "img",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "code",
        "pre",
        "strong",
        "blockquote",
        "ul",
        "li",
    ];
    for element in all(&page, "*") {
        assert!(ours.contains(&element.value().name()), "{}: {html}", element.value().name());
    }
}

#[test]
fn hostile_text_stays_text_everywhere() {
    let attacks = [
        "</script><script>alert(1)</script>",
        "\"><img src=x onerror=alert(1)>",
        "' onmouseover='alert(1)",
        "</title></style></svg><svg onload=alert(1)>",
        "<!-- --> ]]> &lt;b&gt; &#60;b&#62;",
        "\u{202E}gnirts\u{2066} \u{0}\u{7}\u{FEFF}\u{FFFF} שלום مرحبا 👩‍👩‍👧 e\u{301}",
        "` ``` | [x](javascript:alert(1)) ![y](http://example.com/z.png) <b>",
        "",
    ];
    for attack in attacks {
        let hostile = changed(&common::full(3, 4), &|key, value| {
            (value.is_string() && key != "format").then(|| Value::String(attack.to_owned()))
        });
        let rendered = hostile.render();
        let page = parsed(&rendered.html);
        assert_eq!(all(&page, "script").len(), 1, "{attack}");
        assert_eq!(all(&page, "style, title:not(svg title)").len(), 2, "{attack}");
        for element in all(&page, "*") {
            assert!(!["img", "iframe", "b"].contains(&element.value().name()), "{attack}");
            assert!(element.value().attrs().all(|(name, _)| !name.starts_with("on")), "{attack}");
        }
        for hidden in ['\u{202E}', '\u{2066}', '\u{0}', '\u{7}', '\u{FFFF}', '\u{FEFF}'] {
            assert!(!rendered.html.contains(hidden) && !rendered.markdown.contains(hidden), "{hidden:?}");
        }
        check_markdown(&rendered.markdown, rendered.figures.len());
        for (name, svg) in &rendered.figures {
            let fragment = Html::parse_fragment(svg);
            assert_eq!(
                fragment.select(&Selector::parse("script, img, [onload], [onerror]").unwrap()).count(),
                0,
                "{name}"
            );
        }
    }
}

#[test]
fn a_quoted_text_is_shown_whole_and_isolated() {
    let mut report = common::full(3, 4);
    report.changes.as_mut().unwrap().examples[0].text = "<b>שלום</b> & \u{202E}x".to_owned();
    let page = parsed(&report.render().html);
    let texts: Vec<String> = all(&page, "#changes td.quote > bdi").iter().map(|cell| cell.text().collect()).collect();
    assert!(texts.iter().any(|text| text == "<b>שלום</b> & ⟨U+202E⟩x"), "{texts:?}");
}

#[test]
fn any_part_alone_makes_a_report_that_says_what_is_missing() {
    let full = common::full(6, 12);
    let empty = Report::default();
    let page = parsed(&empty.render().html);
    assert_eq!(sections(&page), ["missing"]);
    assert_eq!(all(&page, ".missing li").len(), 11);
    let alone: [(&str, Report); 10] = [
        ("summary", Report { summary: full.summary.clone(), ..empty.clone() }),
        ("models", Report { models: full.models.clone(), ..empty.clone() }),
        ("plan", Report { plan: full.plan.clone(), ..empty.clone() }),
        ("plansearch", Report { plan_search: full.plan_search.clone(), ..empty.clone() }),
        ("landscape", Report { landscape: full.landscape.clone(), ..empty.clone() }),
        ("attention", Report { attention: full.attention.clone(), ..empty.clone() }),
        ("training", Report { training: full.training.clone(), ..empty.clone() }),
        ("classes", Report { classes: full.classes.clone(), ..empty.clone() }),
        ("changes", Report { changes: full.changes.clone(), ..empty.clone() }),
        ("provenance", Report { provenance: full.provenance.clone(), ..empty.clone() }),
    ];
    for (name, report) in alone {
        let page = parsed(&report.render().html);
        assert_eq!(sections(&page), [name, "missing"]);
    }
    let report = Report { sensitivity: full.sensitivity, ..empty };
    assert_eq!(
        sections(&parsed(&report.render().html)),
        ["eigenvalues", "measured", "plan", "missing"],
        "Ω needs no plan"
    );
}

/// No mark may have a coordinate that is not a number.
fn check_numbers(rendered: &Rendered) {
    for text in rendered.files().map(|(_, text)| text) {
        for word in ["\"NaN", "\"inf", "\"-inf", "LNaN", "MNaN", "Linf", " NaN", " inf\"", ">NaN", ">inf"] {
            assert!(!text.contains(word), "{word}");
        }
    }
}

#[test]
fn numbers_that_are_none_zero_or_huge_break_nothing() {
    let full = common::full(6, 12);
    let makers: [fn(&Value) -> Value; 6] = [
        |_| Value::Null,
        |_| Value::from(0.0),
        |_| Value::from(1.7e308),
        |_| Value::from(-1.7e308),
        |_| Value::from(5e-324),
        |value| Value::from(-value.as_f64().unwrap()),
    ];
    for maker in makers {
        let strange = changed(&full, &|_, value| value.is_f64().then(|| maker(value)));
        let rendered = strange.render();
        parsed(&rendered.html);
        check_numbers(&rendered);
    }
    // Every other number is missing.
    let flip = std::cell::Cell::new(false);
    let half = changed(&full, &|key, value| {
        flip.set(!flip.get());
        let numbers = ["eigenvalues", "losses", "heads", "loss", "low", "high", "rate"].contains(&key);
        (value.is_f64() && numbers && flip.get()).then_some(Value::Null)
    });
    let rendered = half.render();
    assert_eq!(sections(&parsed(&rendered.html)), EVERY);
    check_numbers(&rendered);
}

#[test]
fn degenerate_shapes_are_drawn_or_left_out_with_a_word() {
    let landscapes = |layers: Vec<LayerPlane>| Report {
        landscape: Some(LandscapePart { layers, ..LandscapePart::default() }),
        ..Report::default()
    };
    let flat = LayerPlane { losses: vec![vec![0.5; 5]; 5], ..common::landscape(1, 5) };
    let ragged = LayerPlane {
        losses: vec![vec![0.1, 0.2, 0.3], vec![0.4, 0.5], vec![0.1, 0.9, 0.3]],
        ..common::landscape(2, 3)
    };
    let holes = LayerPlane { losses: vec![vec![f64::NAN; 4], vec![0.1; 4], vec![0.2; 4]], ..common::landscape(3, 4) };
    let empty = LayerPlane { losses: vec![], rows: vec![], columns: vec![], ..common::landscape(4, 3) };
    let page = parsed(&landscapes(vec![flat, ragged, holes, empty.clone(), common::landscape(5, 1)]).render().html);
    assert_eq!(all(&page, "canvas").len(), 3);
    let note: String = all(&page, "#landscape .note")[0].text().collect();
    assert!(note.contains("layer 4, 5"), "{note}");
    assert_eq!(sections(&parsed(&landscapes(vec![empty]).render().html)), ["missing"]);

    let equal =
        LayerEigenvalues { eigenvalues: vec![3.0; 10], mean: 3.0, std: 0.0, omega: 3.0, ..LayerEigenvalues::default() };
    for eigenvalues in [equal.clone(), LayerEigenvalues { eigenvalues: vec![0.0], ..LayerEigenvalues::default() }] {
        let report = Report {
            sensitivity: Some(SensitivityPart { layers: vec![eigenvalues], ..SensitivityPart::default() }),
            ..Report::default()
        };
        let rendered = report.render();
        assert_eq!(sections(&parsed(&rendered.html)), ["eigenvalues", "plan", "missing"]);
        check_numbers(&rendered);
    }
    let far = LayerEigenvalues { layer: usize::MAX, ..equal };
    let report = Report {
        sensitivity: Some(SensitivityPart { layers: vec![far], ..SensitivityPart::default() }),
        ..Report::default()
    };
    parsed(&report.render().html);

    let one = Report {
        classes: Some(ClassResults {
            kind: "class".to_owned(),
            rows: vec![ClassRow { name: "only".to_owned(), ..ClassRow::default() }],
        }),
        training: vec![common::training("one step", 1), TrainingRun::default()],
        attention: Some(AttentionPart { layers: vec![LayerHeads::default()], ..AttentionPart::default() }),
        plan: Some(BitPlan { layers: vec![vec![]], ..BitPlan::default() }),
        models: Some(Models::default()),
        summary: Some(Summary::default()),
        changes: Some(Changes::default()),
        ..Report::default()
    };
    let rendered = one.render();
    assert_eq!(sections(&parsed(&rendered.html)), ["training", "classes", "missing"]);
    check_numbers(&rendered);
}

#[test]
fn a_large_model_fits() {
    let report = common::full(24, 16);
    let rendered = report.render();
    let page = parsed(&rendered.html);
    assert_eq!(sections(&page), EVERY);
    let cells = all(&page, "#attention .wide rect.cell").len();
    assert_eq!(cells, 24 * 16);
    assert_eq!(all(&page, "#plan .narrow rect.cell").len(), 24 * 6);
    assert!(rendered.html.len() < 1_500_000, "{}", rendered.html.len());
}

#[test]
fn signs_and_layers_from_zero_are_visible() {
    let layers = vec![LayerEigenvalues { layer: 0, eigenvalues: vec![2.0, -1.0, 3.0], ..LayerEigenvalues::default() }];
    let report =
        Report { sensitivity: Some(SensitivityPart { layers, ..SensitivityPart::default() }), ..Report::default() };
    let page = parsed(&report.render().html);
    assert_eq!(all(&page, "#eigenvalues .wide circle.dot1").len(), 2);
    let negative: Vec<String> =
        all(&page, "#eigenvalues .wide path.dot2 > title").iter().map(|t| t.text().collect()).collect();
    assert_eq!(negative, ["layer 0, run 1: λ = −1.000"]);
}

#[test]
fn the_same_report_gives_the_same_bytes_and_reads_back() {
    let report = common::full(6, 12);
    let rendered = report.render();
    assert_eq!(rendered, report.render());
    let again = read::report(&rendered.json, "report.json").unwrap();
    assert_eq!(again, report);
    assert_eq!(again.render(), rendered);
    let mut holes = report;
    holes.attention.as_mut().unwrap().layers[0].heads[3] = f64::NAN;
    let json = holes.to_json();
    assert_eq!(read::report(&json, "report.json").unwrap().to_json(), json);
}

#[test]
fn markdown_names_the_figures_that_are_there() {
    let rendered = common::full(6, 12).render();
    let named: Vec<&str> = rendered
        .markdown
        .lines()
        .filter_map(|line| line.strip_prefix("![")?.split("](").nth(1)?.strip_suffix(')'))
        .collect();
    let made: Vec<&str> = rendered.figures.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(named, made);
    assert_eq!(made.len(), 15, "{made:?}");
    assert!(rendered.markdown.starts_with("# sst2: Q-BERT\n"));
    let columns = |line: &str| line.replace("\\|", "").matches('|').count();
    let lines: Vec<&str> = rendered.markdown.lines().collect();
    for pair in lines.windows(2).filter(|pair| pair[0].starts_with('|') && pair[1].starts_with('|')) {
        assert_eq!(columns(pair[0]), columns(pair[1]), "{pair:?}");
    }
}
