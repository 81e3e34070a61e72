//! Plans as text: what is written, what is read back, and what is said about plans that are wrong.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

use proptest::prelude::*;
use qbert_quant::{
    ActivationPlan, EmbeddingPlan, Error, GroupSpec, LayerPlan, Percent, Plan, Precision, Preset, RangeMethod, Site,
    SitePlan, TableWidth,
};

fn bits(number: i32) -> Precision {
    Precision::from_number(number).unwrap()
}

fn two_layers() -> Plan {
    let plan = Plan::uniform(2, bits(2), GroupSpec::Count(128), RangeMethod::Mse);
    let mut plan = plan.with_layer_bits(1, bits(3)).unwrap();
    *plan.site_mut("layer.1.output".parse().unwrap()).unwrap() =
        SitePlan::new(bits(4), GroupSpec::PerNeuron, RangeMethod::MinMax);
    plan
}

#[test]
fn a_written_plan_is_commented_and_aligned() {
    insta::assert_snapshot!("written_plan", two_layers().to_toml());
    insta::assert_snapshot!("written_preset", Preset::parse("sst2-2-3").unwrap().plan(12).unwrap().to_toml());
}

#[test]
fn where_a_plan_comes_from_is_a_comment() {
    let origins = ["", "made by hand", "two\nlines", "odd \u{7} \u{7f} \u{85} \r name\n# version = 2\n\n[encoder]"];
    for origin in origins {
        let text = two_layers().to_toml_from(origin);
        assert_eq!(Plan::parse(&text, "plan.toml").unwrap(), two_layers(), "{text}");
        let comments = text.lines().filter(|line| line.starts_with('#')).count();
        let added = origin.lines().count() + usize::from(!origin.is_empty());
        assert_eq!(comments, 5 + added, "{text}");
    }
    assert!(two_layers().to_toml_from("made by hand").contains("\n#\n# made by hand\nversion = 1\n"));
    assert_eq!(two_layers().to_toml_from(""), two_layers().to_toml());
}

#[test]
fn the_plan_in_the_users_guide_is_a_plan() {
    let guide = include_str!("../../../docs/reference/plan.md");
    let (_, after) = guide.split_once("```toml\n").unwrap();
    let (text, _) = after.split_once("```").unwrap();
    assert_eq!(Plan::parse(text, "docs/reference/plan.md").unwrap(), two_layers());
}

#[test]
fn json_spells_every_site_out() {
    let plan = Plan::uniform(1, bits(2), GroupSpec::PerHead, RangeMethod::Mse);
    let json = serde_json::to_value(&plan).unwrap();
    let query = serde_json::json!({ "bits": 2, "groups": "head", "range": "mse" });
    assert_eq!(json["layers"][0]["query"], query);
    assert_eq!(json["embedding"]["type"], serde_json::json!({ "bits": 8, "groups": 1, "range": "mse" }));
    assert_eq!(json["activation"], serde_json::json!({ "bits": 8, "range": "min-max" }));
    assert_eq!(json["version"], 1);
}

#[test]
fn full_tables_read_the_same_as_inline_ones() {
    let text = two_layers().to_toml();
    let inline = "layer.0 = { query = 2, key = 2, value = 2, attention_output = 2, intermediate = 2, output = 2 }\n";
    assert!(text.contains("layer.0 = "));
    let (head, tail) = text.split_once("[embedding]").unwrap();
    let without: String =
        head.lines().filter(|line| !line.starts_with("layer.0")).map(|line| format!("{line}\n")).collect();
    let table = inline.trim_start_matches("layer.0 = { ").replace(" }", "").replace(", ", "\n");
    let long = format!("{without}[encoder.layer.0]\n{table}\n[embedding]{tail}");
    assert_eq!(Plan::parse(&long, "long.toml").unwrap(), two_layers());
}

#[test]
fn sites_are_found_in_order_and_missing_layers_refused() {
    let plan = two_layers();
    let sites: Vec<Site> = plan.sites().map(|(site, _)| site).collect();
    assert_eq!(sites, Site::all(2).collect::<Vec<_>>());
    for (site, found) in plan.sites() {
        assert_eq!(plan.site(site).unwrap(), found);
    }
    let error = plan.site("layer.2.key".parse().unwrap()).unwrap_err();
    assert!(matches!(error, Error::NoSuchLayer { layer: 2, layers: 2 }));
    assert!(plan.clone().with_layer_bits(2, bits(4)).is_err());
    assert!(plan.check_layers(2).is_ok());
    assert_eq!(plan.check_layers(12), Err(Error::PlanLayers { plan: 2, model: 12 }));
    let ranges = plan.with_weight_range(RangeMethod::MinMax);
    assert!(ranges.sites().all(|(_, site)| site.range == RangeMethod::MinMax));
}

/// A wrong plan: one change to a right one.
struct Case {
    name: &'static str,
    from: &'static str,
    to: &'static str,
}

const WRONG: &[Case] = &[
    Case { name: "no version", from: "version = 1", to: "" },
    Case { name: "later version", from: "version = 1", to: "version = 2" },
    Case { name: "version as text", from: "version = 1", to: "version = \"1\"" },
    Case { name: "no encoder", from: "[encoder]", to: "[encoders]" },
    Case { name: "no activation", from: "[activation]\nbits = 8\nrange = \"min-max\"", to: "" },
    Case { name: "unknown section", from: "[activation]", to: "[pooler]\nbits = 8\n[activation]" },
    Case { name: "unknown site", from: "key = 2", to: "kye = 2" },
    Case { name: "unknown embedding", from: "word = 8", to: "words = 8" },
    Case { name: "unknown key of a site", from: "bits = 4, groups", to: "bits = 4, group" },
    Case { name: "unknown key, nothing alike", from: "word = 8", to: "word = 8\ncompression = 3" },
    Case { name: "missing site", from: "key = 2, ", to: "" },
    Case { name: "missing sites", from: "query = 2, key = 2, ", to: "" },
    Case { name: "missing embedding", from: "position = 8\n", to: "" },
    Case { name: "missing bits of a site", from: "bits = 4, groups", to: "groups" },
    Case { name: "missing groups", from: "groups = 128\n", to: "" },
    Case { name: "missing range", from: "range = \"mse\"\nlayer.0", to: "layer.0" },
    Case { name: "missing activation range", from: "bits = 8\nrange = \"min-max\"", to: "bits = 8" },
    Case { name: "no layers", from: "layer.", to: "layers." },
    Case { name: "layer gap", from: "layer.1", to: "layer.2" },
    Case { name: "layers from 1", from: "layer.0 =", to: "layer.7 =" },
    Case { name: "layer by name", from: "layer.1", to: "layer.last" },
    Case { name: "layer with leading zero", from: "layer.1", to: "layer.01" },
    Case { name: "layer twice", from: "layer.1", to: "layer.0" },
    Case { name: "layer is a number", from: LAYER_ONE, to: "layer.1 = 3" },
    Case { name: "site twice", from: "key = 2", to: "key = 2, key = 3" },
    Case { name: "0 bits", from: "key = 2", to: "key = 0" },
    Case { name: "9 bits", from: "word = 8", to: "word = 9" },
    Case { name: "16 bits in a table", from: "bits = 4", to: "bits = 16" },
    Case { name: "bits as text", from: "key = 2", to: "key = \"2\"" },
    Case { name: "bits with a fraction", from: "bits = 8", to: "bits = 7.5" },
    Case { name: "0 groups", from: "groups = 128", to: "groups = 0" },
    Case { name: "negative groups", from: "groups = 128", to: "groups = -3" },
    Case { name: "groups by a wrong word", from: "\"neuron\"", to: "\"neurons\"" },
    Case { name: "rows of a matrix", from: "\"neuron\"", to: "\"row\"" },
    Case { name: "groups as a list", from: "groups = 128", to: "groups = [1, 2]" },
    Case { name: "unknown range method", from: "range = \"min-max\" } }", to: "range = \"minmax\" } }" },
    Case { name: "percentile over 100", from: "range = \"mse\"\nlayer.0", to: "range = \"percentile:101\"\nlayer.0" },
];

/// The second layer of [`RIGHT`].
const LAYER_ONE: &str = "layer.1 = { query = 3, key = 3, value = 3, attention_output = 3, intermediate = 3, output = { bits = 4, groups = \"neuron\", range = \"min-max\" } }";

/// The plan the wrong ones are made from: without comments, so that nothing is replaced in those.
const RIGHT: &str = "\
version = 1

[encoder]
groups = 128
range = \"mse\"
layer.0 = { query = 2, key = 2, value = 2, attention_output = 2, intermediate = 2, output = 2 }
layer.1 = { query = 3, key = 3, value = 3, attention_output = 3, intermediate = 3, output = { bits = 4, groups = \"neuron\", range = \"min-max\" } }

[embedding]
groups = 1
range = \"mse\"
word = 8
position = 8
type = 8

[activation]
bits = 8
range = \"min-max\"
";

fn complaint(error: &Error) -> String {
    let hint = error.hint().map(|hint| format!("\n  hint: {hint}")).unwrap_or_default();
    format!("{error}{hint}")
}

#[test]
fn wrong_plans_are_refused_with_line_and_hint() {
    assert_eq!(Plan::parse(RIGHT, "plan.toml").unwrap(), two_layers());
    let mut report = String::new();
    for &Case { name, from, to } in WRONG {
        assert!(RIGHT.contains(from), "{name}: nothing to change");
        let error = Plan::parse(&RIGHT.replace(from, to), "plan.toml").expect_err(name);
        report += &format!("{name}\n  {}\n", complaint(&error));
    }
    let texts = [
        ("empty", ""),
        ("encoder is a number", "version = 1\nencoder = 3\nembedding = 8\nactivation = 8\n"),
        ("no layers at all", "version = 1\n[encoder]\n[embedding]\n[activation]\n"),
        ("not TOML", "bits: 8\n"),
        ("JSON", "{ \"version\": 1 }"),
        ("unclosed table", "version = 1\n[encoder\n"),
        ("key twice", "version = 1\nversion = 1\n"),
        ("a wide space in a key", "\"a\u{3000}b\" = 1\n\"a\u{3000}b\" = 2\n"),
        ("a wide space after a dotted name", "layer.\"a\u{3000}b\" = 1\nlayer.\"a\u{3000}b\" = 2\n"),
        ("two wide names", "\"\u{a0}é\".\"\u{2003}ö\" = 1\n\"\u{a0}é\".'\u{2003}ö' = 2\n"),
        ("binary", "\u{0}\u{1}\u{2}"),
    ];
    for (name, text) in texts {
        let error = Plan::parse(text, "plan.toml").expect_err(name);
        report += &format!("{name}\n  {}\n", complaint(&error));
    }
    insta::assert_snapshot!("wrong_plans", report);
}

#[test]
fn point_17b_what_an_error_quotes_is_short() {
    let endless = "x".repeat(1 << 20);
    let texts = [
        format!("{endless} = 1"),
        format!("{endless} = 1\n{endless} = 1"),
        RIGHT.replace("key = 2", &format!("key = \"{endless}\"")),
        RIGHT.replace("key = 2", &format!("key = {}", "1".repeat(1 << 20))),
        RIGHT.replace("groups = 128", &format!("groups = \"{endless}\"")),
        RIGHT.replace("range = \"mse\"", &format!("range = \"{endless}\"")),
        RIGHT.replace("layer.1", &format!("layer.{endless}")),
        RIGHT.replace("version = 1", &format!("version = \"{endless}\"")),
        "[".repeat(1 << 16),
        format!("a = {}", "[".repeat(1 << 16)),
    ];
    for text in texts {
        let said = complaint(&Plan::parse(&text, "plan.toml").unwrap_err());
        assert!(said.len() < 1000, "{} bytes: {}", said.len(), &said[..200]);
    }
}

#[test]
fn other_errors_say_what_to_do() {
    let errors = [
        Precision::from_number(9).unwrap_err(),
        "minmax".parse::<RangeMethod>().unwrap_err(),
        "heads".parse::<GroupSpec>().unwrap_err(),
        "layer.0.qeury".parse::<Site>().unwrap_err(),
        "pooler".parse::<Site>().unwrap_err(),
        Preset::parse("sst2-23").unwrap_err(),
        Preset::parse("imdb").unwrap_err(),
        Preset::parse("squad-2-4").unwrap().plan(6).unwrap_err(),
        two_layers().check_layers(6).unwrap_err(),
        qbert_quant::Groups::new(768, 1000).unwrap_err(),
        qbert_quant::Range::new(1.0, f32::NAN).unwrap_err(),
        qbert_quant::Range::min_max(&[0.0, f32::NAN]).unwrap_err(),
    ];
    let report: String = errors.iter().map(|error| complaint(error) + "\n").collect();
    insta::assert_snapshot!("other_errors", report);
}

fn site() -> impl Strategy<Value = SitePlan> {
    let bits = prop_oneof![1_i32..=8, Just(32)].prop_map(bits);
    let groups = prop_oneof![
        3 => Just(GroupSpec::Count(128)),
        1 => (1_usize..5000).prop_map(GroupSpec::Count),
        1 => Just(GroupSpec::PerHead),
        1 => Just(GroupSpec::PerNeuron),
    ];
    (bits, groups, range()).prop_map(|(bits, groups, range)| SitePlan::new(bits, groups, range))
}

fn range() -> impl Strategy<Value = RangeMethod> {
    prop_oneof![
        2 => Just(RangeMethod::Mse),
        1 => Just(RangeMethod::MinMax),
        1 => (1e-9_f64..=100.0).prop_map(|percent| RangeMethod::Percentile(Percent::new(percent).unwrap())),
    ]
}

fn plan() -> impl Strategy<Value = Plan> {
    let layer = [(); 6].map(|()| site()).prop_map(|[query, key, value, attention_output, intermediate, output]| {
        LayerPlan { query, key, value, attention_output, intermediate, output }
    });
    let table = || {
        (site(), any::<bool>()).prop_map(|(site, by_row)| SitePlan {
            groups: if by_row { GroupSpec::PerRow } else { site.groups },
            ..site
        })
    };
    let embedding = [table(), table(), table()].prop_map(|[word, position, token_type]| EmbeddingPlan {
        word,
        position,
        token_type,
    });
    let activation = (site(), range()).prop_map(|(site, range)| ActivationPlan { bits: site.bits, range });
    (prop::collection::vec(layer, 1..14), embedding, activation)
        .prop_map(|(layers, embedding, activation)| Plan::new(layers, embedding, activation))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn a_written_plan_reads_back_the_same(plan in plan()) {
        let text = plan.to_toml();
        let read = Plan::parse(&text, "plan.toml");
        prop_assert_eq!(read.as_ref(), Ok(&plan), "{}", text);
        prop_assert_eq!(read.unwrap().to_toml(), text);
    }

    #[test]
    fn damaged_text_is_an_error_or_a_plan_but_never_a_panic(place in 0_usize..600, byte in any::<char>()) {
        let mut text: Vec<char> = RIGHT.chars().collect();
        let place = place % text.len();
        text[place] = byte;
        let _ = Plan::parse(&text.into_iter().collect::<String>(), "plan.toml");
    }

    /// Any characters in keys that appear twice, with names before them, after wide spaces and in quotes of both kinds.
    #[test]
    fn point_15_any_characters_in_keys_are_no_panic(
        names in prop::collection::vec("[^\"'\\\\\\x00-\\x1f\\x7f]{0,6}|\u{3000}|\u{a0}|\u{85}", 1..4), quote in prop::sample::select(vec!["\"", "'"]),
        free in any::<String>(),
    ) {
        let key = names.iter().map(|name| format!("{quote}{name}{quote}")).collect::<Vec<_>>().join(".");
        let twice = format!("{key} = 1\n{key} = 2\n");
        let inline = format!("version = {{ {key} = 1, {key} = 2 }}");
        for text in [twice, inline, free.clone(), RIGHT.replace("key = 2", &free), RIGHT.replace("layer.1", &free)] {
            if let Err(error) = Plan::parse(&text, "plan.toml") {
                prop_assert!(error.to_string().len() < 2000, "{}", error);
            }
        }
    }
}

#[test]
fn product_codes_are_for_tables_and_read_back() {
    let plan = Plan::uniform(2, bits(2), GroupSpec::Count(4), RangeMethod::Mse);
    let mut embedding = *plan.embedding();
    let width: TableWidth = "8/6".parse().unwrap();
    embedding.word = SitePlan::table(width, GroupSpec::Count(3), RangeMethod::MinMax);
    let plan = plan.with_embedding(embedding);
    let text = plan.to_toml();
    assert!(text.contains(r#"word = { bits = "8/6", groups = 3, range = "min-max" }"#), "{text}");
    assert_eq!(Plan::parse(&text, "plan.toml").unwrap(), plan);
    let rows = text.replace("groups = 3", r#"groups = "row""#);
    let refused = Plan::parse(&rows, "plan.toml").unwrap_err();
    assert!(refused.to_string().contains("groups of \"row\" do not fit"), "{refused}");
    let short = text.replace(r#"{ bits = "8/6", groups = 3, range = "min-max" }"#, r#""8/6""#);
    assert_eq!(Plan::parse(&short, "plan.toml").unwrap().embedding().word.product, width.product);
    for (from, to, message) in [
        (r#"word = "8/6""#, r#"word = "8/17""#, "8/17"),
        (r#"word = "8/6""#, r#"word = "4/6""#, "4/6"),
        (r#"word = "8/6""#, r#"word = "8""#, "must be a number of bits"),
        ("query = 2", r#"query = "8/6""#, "layer.0.query cannot have product codes"),
    ] {
        let error = Plan::parse(&short.replacen(from, to, 1), "plan.toml").unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
    }
}
