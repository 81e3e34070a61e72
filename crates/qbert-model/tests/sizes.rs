//! The paper's sizes from nothing but a `config.json`; `qbert-quant/tests/sizes.rs` has all its tables.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

use std::path::Path;

use qbert_model::Config;
use qbert_model::sizes::{FileSize, file_size, site_bytes};
use qbert_quant::{
    GroupSpec, Matrix, ModelShape, Plan, Precision, Preset, RangeMethod, Site, SitePlan, TransformerDimensions,
};

fn bert_base(vocabulary: usize) -> Config {
    let text = format!(
        r#"{{"model_type": "bert", "vocab_size": {vocabulary}, "hidden_size": 768, "num_hidden_layers": 12,
            "num_attention_heads": 12, "intermediate_size": 3072, "max_position_embeddings": 512, "type_vocab_size": 2}}"#
    );
    Config::parse(text.as_bytes(), Path::new("config.json")).unwrap()
}

struct Case {
    table: &'static str,
    vocabulary: usize,
    plan: Plan,
    size: &'static str,
    without_embedding: &'static str,
}

#[test]
fn the_papers_sizes_from_a_config_alone() {
    const UNCASED: usize = 30_522;
    const CASED: usize = 28_996;
    let uniform = |bits| {
        let bits = Precision::from_number(bits).unwrap();
        Plan::uniform(12, bits, GroupSpec::Count(128), RangeMethod::MinMax)
    };
    let full = uniform(32).with_embedding({
        let mut embedding = *uniform(32).embedding();
        for site in [&mut embedding.word, &mut embedding.position, &mut embedding.token_type] {
            site.bits = Precision::Full;
        }
        embedding
    });
    let case =
        |table, vocabulary, plan, size, without_embedding| Case { table, vocabulary, plan, size, without_embedding };
    let cases = [
        case("1a Baseline", UNCASED, full.clone(), "415.4", "324.5"),
        case("1a Q-BERT 8", UNCASED, uniform(8), "103.9", "81.2"),
        case("1a Q-BERT 4", UNCASED, uniform(4), "63.4", "40.6"),
        case("1a Q-BERT 3", UNCASED, uniform(3), "53.2", "30.5"),
        case("1a Q-BERT 2", UNCASED, uniform(2), "43.1", "20.3"),
        case("1a 2/3 MP", UNCASED, Preset::parse("sst2-2-3").unwrap().plan(12).unwrap(), "48.1", "25.4"),
        case("1c Baseline", CASED, full, "410.9", "324.5"),
        case("1c Q-BERT 8", CASED, uniform(8), "102.8", "81.2"),
        case("1c Q-BERT 4", CASED, uniform(4), "62.2", "40.6"),
        case("1c Q-BERT 3", CASED, uniform(3), "52.1", "30.5"),
        case("1c Q-BERT 2", CASED, uniform(2), "42.0", "20.3"),
    ];
    for Case { table, vocabulary, plan, size, without_embedding } in cases {
        let found = bert_base(vocabulary).shape(None).paper_size(&plan).unwrap();
        assert_eq!(format!("{:.1}", found.total()), size, "Table {table}");
        assert_eq!(format!("{:.1}", found.without_embedding()), without_embedding, "Table {table}");
    }
}

#[test]
fn file_bytes_are_those_of_the_packed_layouts() {
    // Two layers of width 4 and 6 with odd sizes, small enough to count by hand.
    let shape = ModelShape::transformer(&TransformerDimensions {
        vocabulary: 5,
        positions: 3,
        types: 2,
        embedding: 4,
        hidden: 4,
        intermediate: 6,
        layers: 1,
        heads: 2,
        uncounted: 10,
    });
    let plan = Plan::uniform(1, Precision::from_number(3).unwrap(), GroupSpec::PerHead, RangeMethod::MinMax);
    let size = file_size(&shape, &plan).unwrap();
    // A matrix fills up one block of 16 neurons and 32 inputs at 3 bits; tables of 20, 12 and 8 bytes.
    let codes = 6 * (16 * 32 * 3 / 8) + 20 + 12 + 8;
    // Six matrices in two groups, three tables in one.
    let ranges = (6 * 2 + 3) * 8;
    // Biases 5·4 + 6, LayerNorm 2·8, and the rest.
    let full_precision = 4 * (26 + 16 + 10);
    assert_eq!(size, FileSize { codes, ranges, full_precision });
    assert_eq!(size.total(), codes + ranges + full_precision);
    // With nothing quantized a file is all f32.
    let plain = Plan::uniform(1, Precision::Full, GroupSpec::PerHead, RangeMethod::MinMax);
    let parameters = 4 * 16 + 2 * 24 + 40 + 26 + 16 + 10;
    assert_eq!(file_size(&shape, &plain).unwrap(), FileSize { codes: 0, ranges: 0, full_precision: 4 * parameters });
}

#[test]
fn bytes_of_sites_add_up_to_the_file() {
    let shape = bert_base(30_522).shape(None);
    for number in [1, 2, 3, 8, 32] {
        let plan = Plan::uniform(12, Precision::from_number(number).unwrap(), GroupSpec::Count(128), RangeMethod::Mse);
        let sites: u64 = plan.sites().map(|(site, planned)| site_bytes(&shape, site, planned).unwrap()).sum();
        let fixed: usize = shape.uncounted + shape.tensors.iter().map(|tensor| tensor.companions).sum::<usize>();
        assert_eq!(sites + 4 * fixed as u64, file_size(&shape, &plan).unwrap().total(), "{number} bits");
    }
    let two = Precision::from_number(2).unwrap();
    let site = SitePlan::new(two, GroupSpec::Count(128), RangeMethod::Mse);
    let missing = site_bytes(&shape, Site::Layer(12, Matrix::Key), &site).unwrap_err();
    assert!(missing.to_string().contains("12"), "{missing}");
    let shallow = Plan::uniform(6, two, GroupSpec::Count(128), RangeMethod::Mse);
    assert!(file_size(&shape, &shallow).is_err(), "a plan for another number of layers");
}
