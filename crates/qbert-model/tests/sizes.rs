//! The paper's sizes from nothing but a `config.json`; `qbert-quant/tests/sizes.rs` has all its tables.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

use std::path::Path;

use qbert_model::Config;
use qbert_quant::{GroupSpec, Plan, Precision, Preset, RangeMethod};

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
