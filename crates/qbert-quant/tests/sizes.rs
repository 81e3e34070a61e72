//! Every size the paper prints (Tab. 1, Tab. 5 and the text), from the shape of BERT-base alone.
//!
//! A [`Case`] is a row of a table. Where the paper prints something else than its own formula gives, the
//! row has a `slip` with the number as printed, and the test pins both.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

use qbert_quant::size::mebibytes;
use qbert_quant::{
    ActivationPlan, BitWidth, EmbeddingPlan, Error, GroupSpec, ModelShape, PaperSize, Plan, Precision, Preset,
    RangeMethod, SitePlan, TransformerDimensions,
};

const UNCASED: usize = 30_522;
const CASED: usize = 28_996;

fn bert_base(vocabulary: usize) -> ModelShape {
    ModelShape::transformer(&TransformerDimensions {
        vocabulary,
        positions: 512,
        types: 2,
        embedding: 768,
        hidden: 768,
        intermediate: 3072,
        layers: 12,
        heads: 12,
        uncounted: 0,
    })
}

fn bits(number: i32) -> Precision {
    Precision::from_number(number).unwrap()
}

/// The weights column of the tables.
#[derive(Clone, Copy, Debug)]
enum Weights {
    /// One width for all layers in this many groups.
    Uniform(i32, usize),
    /// The published plan of Tab. 6 or 7.
    Published(&'static str),
}

/// The embedding column of the tables.
#[derive(Clone, Copy, Debug, PartialEq)]
enum EmbeddingBits {
    Full,
    /// 8 bits, one group for each table.
    Eight,
    /// 4 bits for words, 8 for the others, 128 groups for each table (App. C.2).
    FourEight,
}

use EmbeddingBits::{Eight, FourEight, Full};
use Weights::{Published, Uniform};

struct Case {
    table: &'static str,
    row: &'static str,
    vocabulary: usize,
    weights: Weights,
    embedding: EmbeddingBits,
    /// "Size" by the formula.
    size: &'static str,
    /// "Size-w/o-e" by the formula.
    without_embedding: &'static str,
    /// What the paper prints instead, where that differs: "Size" and "Size-w/o-e".
    slip: Option<(&'static str, &'static str)>,
}

impl Case {
    fn plan(&self) -> Plan {
        let plan = match self.weights {
            Uniform(width, groups) => Plan::uniform(12, bits(width), GroupSpec::Count(groups), RangeMethod::MinMax),
            Published(name) => Preset::parse(name).unwrap().plan(12).unwrap(),
        };
        let site = |width, groups| SitePlan::new(bits(width), GroupSpec::Count(groups), RangeMethod::Mse);
        match self.embedding {
            Full => plan.with_embedding(EmbeddingPlan::uniform(site(32, 1))),
            Eight => plan.with_embedding(EmbeddingPlan::uniform(site(8, 1))),
            FourEight => {
                plan.with_embedding(EmbeddingPlan { word: site(4, 128), ..EmbeddingPlan::uniform(site(8, 128)) })
            }
        }
    }

    /// What the paper prints: "Size" and "Size-w/o-e".
    fn printed(&self) -> (&'static str, &'static str) {
        self.slip.unwrap_or((self.size, self.without_embedding))
    }

    fn size(&self) -> PaperSize {
        bert_base(self.vocabulary).paper_size(&self.plan()).unwrap()
    }
}

/// The rows of one sub-table of Tab. 1 that do not depend on the task, only on the vocabulary. Two slips:
/// `DirectQ` has one group, but the sizes printed are those of 128; and 20.349 is printed as 20.4.
fn uniform_rows(table: &'static str, vocabulary: usize) -> Vec<Case> {
    let rows = [
        ("Baseline 32", Uniform(32, 1), ["415.4", "410.9"], "324.5", None),
        ("Q-BERT 8", Uniform(8, 128), ["103.9", "102.8"], "81.2", None),
        ("DirectQ 4", Uniform(4, 1), ["63.3", "62.2"], "40.6", Some((["63.4", "62.2"], "40.6"))),
        ("Q-BERT 4", Uniform(4, 128), ["63.4", "62.2"], "40.6", None),
        ("DirectQ 3", Uniform(3, 1), ["53.1", "52.0"], "30.4", Some((["53.2", "52.1"], "30.5"))),
        ("Q-BERT 3", Uniform(3, 128), ["53.2", "52.1"], "30.5", None),
        ("DirectQ 2", Uniform(2, 1), ["43.0", "41.9"], "20.3", Some((["43.1", "42.0"], "20.4"))),
        ("Q-BERT 2", Uniform(2, 128), ["43.1", "42.0"], "20.3", Some((["43.1", "42.0"], "20.4"))),
    ];
    let column = usize::from(vocabulary == CASED);
    let case = |(row, weights, sizes, without_embedding, slip): (
        _,
        _,
        [&'static str; 2],
        _,
        Option<([&'static str; 2], _)>,
    )| {
        let printed = slip.map(|(sizes, without)| (sizes[column], without));
        Case {
            table,
            row,
            vocabulary,
            weights,
            embedding: if row == "Baseline 32" { Full } else { Eight },
            size: sizes[column],
            without_embedding,
            // DirectQ at 4 bits with the cased vocabulary rounds to the printed number all the same.
            slip: printed.filter(|&printed| printed != (sizes[column], without_embedding)),
        }
    };
    rows.map(case).into()
}

/// A mixed-precision row: table, row, plan, embedding, formula, what is printed instead.
type Mixed = (
    &'static str,
    &'static str,
    &'static str,
    EmbeddingBits,
    (&'static str, &'static str),
    Option<(&'static str, &'static str)>,
);

const MIXED: [Mixed; 24] = [
    ("1a SST-2", "2/4 MP", "sst2-2-4", Eight, ("53.2", "30.5"), None),
    ("1a SST-2", "2/3 MP", "sst2-2-3", Eight, ("48.1", "25.4"), None),
    // Tab. 7 has 5 layers at 4 bits, the size printed is that of 6; Tab. 6 has 4 layers at 3 bits.
    ("1b MNLI", "2/4 MP", "mnli-2-4", Eight, ("51.5", "28.8"), Some(("53.2", "30.5"))),
    ("1b MNLI", "2/3 MP", "mnli-2-3", Eight, ("46.5", "23.7"), Some(("46.1", "23.4"))),
    ("1c CoNLL-03", "2/4 MP", "conll03-2-4", Eight, ("50.4", "28.8"), Some(("52.1", "30.5"))),
    ("1c CoNLL-03", "2/3 MP", "conll03-2-3", Eight, ("45.3", "23.7"), Some(("45.0", "23.4"))),
    ("1d SQuAD", "2/4 MP", "squad-2-4", Eight, ("51.5", "28.8"), Some(("53.2", "30.5"))),
    ("1d SQuAD", "2/3 MP", "squad-2-3", Eight, ("48.1", "25.4"), None),
    // Tab. 5 repeats the rows above and adds the 4/8-bit embedding.
    ("5a SST-2", "2/4 MP", "sst2-2-4", Eight, ("53.2", "30.5"), None),
    ("5a SST-2", "2/4 MP, 4/8 MP", "sst2-2-4", FourEight, ("42.0", "30.5"), None),
    ("5a SST-2", "2/3 MP", "sst2-2-3", Eight, ("48.1", "25.4"), None),
    // 36.98: the paper subtracts rounded numbers, 48.1 - 11.2.
    ("5a SST-2", "2/3 MP, 4/8 MP", "sst2-2-3", FourEight, ("37.0", "25.4"), Some(("36.9", "25.4"))),
    ("5b MNLI", "2/4 MP", "mnli-2-4", Eight, ("51.5", "28.8"), Some(("53.2", "30.5"))),
    ("5b MNLI", "2/4 MP, 4/8 MP", "mnli-2-4", FourEight, ("40.4", "28.8"), Some(("42.0", "30.5"))),
    ("5b MNLI", "2/3 MP", "mnli-2-3", Eight, ("46.5", "23.7"), Some(("46.1", "23.4"))),
    ("5b MNLI", "2/3 MP, 4/8 MP", "mnli-2-3", FourEight, ("35.3", "23.7"), Some(("34.9", "23.4"))),
    ("5c CoNLL-03", "2/4 MP", "conll03-2-4", Eight, ("50.4", "28.8"), Some(("52.1", "30.5"))),
    ("5c CoNLL-03", "2/4 MP, 4/8 MP", "conll03-2-4", FourEight, ("39.8", "28.8"), Some(("41.5", "30.5"))),
    ("5c CoNLL-03", "2/3 MP", "conll03-2-3", Eight, ("45.3", "23.7"), Some(("45.0", "23.4"))),
    ("5c CoNLL-03", "2/3 MP, 4/8 MP", "conll03-2-3", FourEight, ("34.7", "23.7"), Some(("34.4", "23.4"))),
    ("5d SQuAD", "2/4 MP", "squad-2-4", Eight, ("51.5", "28.8"), Some(("53.2", "30.5"))),
    ("5d SQuAD", "2/4 MP, 4/8 MP", "squad-2-4", FourEight, ("40.4", "28.8"), Some(("42.0", "30.5"))),
    ("5d SQuAD", "2/3 MP", "squad-2-3", Eight, ("48.1", "25.4"), None),
    ("5d SQuAD", "2/3 MP, 4/8 MP", "squad-2-3", FourEight, ("37.0", "25.4"), Some(("36.9", "25.4"))),
];

fn cases() -> Vec<Case> {
    let tasks = [
        ("SST-2", "1a", "5a", UNCASED),
        ("MNLI", "1b", "5b", UNCASED),
        ("CoNLL-03", "1c", "5c", CASED),
        ("SQuAD", "1d", "5d", UNCASED),
    ];
    let mut cases = Vec::new();
    for (_, first, fifth, vocabulary) in tasks {
        cases.extend(uniform_rows(first, vocabulary));
        cases.extend(uniform_rows(fifth, vocabulary).into_iter().take(1));
    }
    cases.extend(MIXED.map(|(table, row, preset, embedding, (size, without_embedding), slip)| Case {
        table,
        row,
        vocabulary: if table.contains("CoNLL") { CASED } else { UNCASED },
        weights: Published(preset),
        embedding,
        size,
        without_embedding,
        slip,
    }));
    cases
}

#[test]
fn every_size_of_the_tables_to_its_last_digit() {
    let cases = cases();
    // Tab. 1: four times ten rows; Tab. 5: four times five.
    assert_eq!(cases.len(), 60);
    for case in &cases {
        let size = case.size();
        let name = format!("Tab. {}, {}", case.table, case.row);
        assert_eq!(format!("{:.1}", size.total()), case.size, "{name}: Size {}", size.total());
        assert_eq!(
            format!("{:.1}", size.without_embedding()),
            case.without_embedding,
            "{name}: w/o-e {}",
            size.without_embedding()
        );
        if let Some(printed) = case.slip {
            assert_ne!(printed, (case.size, case.without_embedding), "{name}: not a slip");
        }
    }
    assert_eq!(cases.iter().filter(|case| case.slip.is_some()).count(), 32);
}

#[test]
fn slip_direct_quantization_is_printed_with_128_groups() {
    let cases = cases();
    for direct in cases.iter().filter(|case| case.row.starts_with("DirectQ")) {
        let row = direct.row.replace("DirectQ", "Q-BERT");
        let grouped = cases.iter().find(|case| case.table == direct.table && case.row == row).unwrap();
        assert_eq!(direct.printed(), grouped.printed(), "{} {}", direct.table, direct.row);
        assert!(direct.size().total() < grouped.size().total());
    }
}

#[test]
fn slip_the_encoder_at_two_bits_is_rounded_twice() {
    for case in cases().iter().filter(|case| case.row == "Q-BERT 2") {
        let size = case.size().without_embedding();
        assert_eq!(format!("{size:.3} {size:.2} {size:.1}"), "20.349 20.35 20.3");
        // 20.35 rounded once more; also 43.1 - 22.7, a difference of rounded numbers.
        assert_eq!(case.printed().1, "20.4");
    }
}

#[test]
fn slip_sizes_with_the_small_embedding_are_differences_of_rounded_numbers() {
    // The smaller embedding saves 11.17 MiB (uncased) or 10.62 (cased); every printed size is the printed
    // one with 8 bits less that, rounded first.
    let printed = |case: &Mixed| case.5.map_or(case.4.0, |slip| slip.0).parse::<f64>().unwrap();
    for pair in MIXED[8..].chunks(2) {
        let (eight, four_eight) = (&pair[0], &pair[1]);
        assert_eq!((eight.3, four_eight.3), (Eight, FourEight));
        let saved = if eight.0.contains("CoNLL") { 10.6 } else { 11.2 };
        assert_eq!(
            format!("{:.1}", printed(eight) - saved),
            format!("{:.1}", printed(four_eight)),
            "{} {}",
            eight.0,
            eight.1
        );
    }
    let embedding = |vocabulary, embedding| {
        let case = Case {
            table: "",
            row: "",
            vocabulary,
            weights: Uniform(2, 128),
            embedding,
            size: "",
            without_embedding: "",
            slip: None,
        };
        case.size().embedding()
    };
    assert_eq!(format!("{:.2}", embedding(UNCASED, Eight) - embedding(UNCASED, FourEight)), "11.17");
    assert_eq!(format!("{:.2}", embedding(CASED, Eight) - embedding(CASED, FourEight)), "10.62");
}

#[test]
fn slip_mixed_sizes_are_those_of_other_numbers_of_layers() {
    // 30.5 is the size of six layers at 4 bits, not five.
    let five = Preset::parse("mnli-2-4").unwrap().plan(12).unwrap();
    let six = five.clone().with_layer_bits(0, bits(4)).unwrap();
    let size = |plan: &Plan| bert_base(UNCASED).paper_size(plan).unwrap().without_embedding();
    assert_eq!(format!("{:.1} {:.1}", size(&five), size(&six)), "28.8 30.5");
    // 23.4 is no whole number of layers at 3 bits: 3 are too few, 4 too many.
    let four = Preset::parse("mnli-2-3").unwrap().plan(12).unwrap();
    let three = four.clone().with_layer_bits(4, bits(2)).unwrap();
    assert_eq!(format!("{:.1} {:.1}", size(&three), size(&four)), "22.9 23.7");
}

#[test]
fn slip_the_reversed_plan_keeps_its_size_only_with_six_and_six() {
    let size = |plan: &Plan| bert_base(UNCASED).paper_size(plan).unwrap();
    for preset in Preset::ALL.into_iter().filter(|preset| preset.name().ends_with("2-3")) {
        let plan = preset.plan(12).unwrap();
        let reversed = plan.clone().reverse(bits(2), bits(3));
        let six = ["sst2-2-3", "squad-2-3"].contains(&preset.name());
        assert_eq!(size(&plan) == size(&reversed), six, "{preset}");
        assert_eq!(reversed.reverse(bits(2), bits(3)), plan);
    }
}

#[test]
fn the_sizes_in_the_text() {
    let full = Case {
        table: "§3",
        row: "32",
        vocabulary: UNCASED,
        weights: Uniform(32, 1),
        embedding: Full,
        size: "",
        without_embedding: "",
        slip: None,
    };
    assert_eq!(format!("{:.0} {:.0}", full.size().embedding(), full.size().without_embedding()), "91 324");
    // §3 prints 325 for the encoder: 324.457 rounded to 324.5 and then once more.
    assert_eq!(format!("{:.1}", full.size().without_embedding()), "324.5");
    assert_eq!(format!("{:.1}", full.size().embedding()), "90.9");
    let eight = Case { embedding: Eight, weights: Uniform(8, 128), ..full };
    assert_eq!(format!("{:.1}", eight.size().embedding()), "22.7");
    let four_eight = Case { embedding: FourEight, ..eight };
    assert_eq!(format!("{:.1}", four_eight.size().embedding()), "11.6");
    // The output layer, f32: 768 weights and a bias per label. 0.01 for 2 or 3 labels; CoNLL-03 has 9.
    let head = |labels: u64| format!("{:.2}", mebibytes(32 * labels * 769));
    assert_eq!([head(2), head(3), head(9)], ["0.01", "0.01", "0.03"]);
    // Compression: 13 times in weights, 8 times in the embedding table.
    let mixed = Case { weights: Published("sst2-2-3"), embedding: FourEight, ..four_eight };
    assert_eq!(format!("{:.0}", full.size().without_embedding() / mixed.size().without_embedding()), "13");
    assert_eq!(format!("{:.0}", full.size().embedding() / mixed.size().embedding()), "8");
    // In total the text says 12 times; for the plan with the accuracies quoted there it is 11.
    assert_eq!(format!("{:.1}", full.size().total() / mixed.size().total()), "11.2");
    // Parameters of a layer and of the embedding in millions (Tab. 6, 7).
    let parameters = |bits: u64| bits as f64 / 32.0 / 1e6;
    assert_eq!(format!("{:.1}", parameters(full.size().encoder_bits) / 12.0), "7.1");
    assert_eq!(format!("{:.1}", parameters(full.size().embedding_bits)), "23.8");
    assert_eq!(full.size().encoder_bits / 32, 12 * 7_087_872);
    assert_eq!(full.size().embedding_bits / 32, (30_522 + 512 + 2) * 768);
}

#[test]
fn sites_of_different_widths_take_their_biases_along() {
    let shape = bert_base(UNCASED);
    let mut plan = Plan::uniform(12, bits(2), GroupSpec::Count(128), RangeMethod::Mse);
    let before = shape.paper_size(&plan).unwrap();
    plan.site_mut("layer.3.output".parse().unwrap()).unwrap().bits = bits(4);
    let after = shape.paper_size(&plan).unwrap();
    assert_eq!(after.encoder_bits - before.encoder_bits, 2 * (768 * 3072 + 768 + 2 * 768));
    assert_eq!(after.embedding_bits, before.embedding_bits);
}

#[test]
fn plans_that_do_not_fit_are_refused() {
    let shape = bert_base(UNCASED);
    let shallow = Plan::uniform(6, bits(2), GroupSpec::Count(128), RangeMethod::Mse);
    assert!(matches!(shape.paper_size(&shallow), Err(Error::PlanLayers { plan: 6, model: 12 })));
    let crowded = Plan::uniform(12, bits(2), GroupSpec::Count(769), RangeMethod::Mse);
    let error = shape.paper_size(&crowded).unwrap_err();
    assert_eq!(error.to_string(), "layer.0.query: 769 groups for 768 output neurons: some would be empty");
    assert!(error.hint().unwrap().contains("at most 768"));
}

#[test]
fn presets_are_the_papers_settings() {
    assert_eq!(Preset::ALL.len(), 8);
    for preset in Preset::ALL {
        assert_eq!(Preset::parse(preset.name()).unwrap(), preset);
        let plan = preset.plan(12).unwrap();
        assert!(plan.layers().iter().all(|layer| layer.query.groups == GroupSpec::Count(128)));
        let embedding = plan.embedding().word;
        assert_eq!((embedding.bits, embedding.groups), (bits(8), GroupSpec::Count(1)));
        assert_eq!(*plan.activation(), ActivationPlan { bits: BitWidth::EIGHT.into(), range: RangeMethod::MinMax });
        let error = preset.plan(6).unwrap_err();
        assert!(matches!(error, Error::PresetLayers { expected: 12, found: 6, .. }), "{error}");
    }
    // How many layers have the higher width.
    let high = |name: &str| {
        let plan = Preset::parse(name).unwrap().plan(12).unwrap();
        plan.layers().iter().filter(|layer| layer.output.bits > bits(2)).count()
    };
    let names =
        ["sst2-2-3", "mnli-2-3", "conll03-2-3", "squad-2-3", "sst2-2-4", "mnli-2-4", "conll03-2-4", "squad-2-4"];
    assert_eq!(names.map(high), [6, 4, 4, 6, 6, 5, 5, 5]);
    match Preset::parse("sst-2-3") {
        Err(Error::UnknownPreset { nearest, .. }) => assert_eq!(nearest.as_deref(), Some("sst2-2-3")),
        other => panic!("{other:?}"),
    }
}
