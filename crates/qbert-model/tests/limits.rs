//! Small files that ask for much: refused, or read at a cost in proportion to their size.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use allocation_counter::{AllocationInfo, measure};
use common::quantize_sites::quantize_sites;
use common::{CONFIG, Model, Tensor, value_at};
use qbert_model::packed::{LayerActivations, PackedContents, PackedTokenizer, packed_bytes};
use qbert_model::{Checkpoint, Config, Head, PackedModel, ParameterLayout, Parameters};
use qbert_quant::{ActivationParams, GroupSpec, Plan, Precision, RangeMethod};
use safetensors::Dtype;

const MEGABYTE: u64 = 1 << 20;

/// What it takes to parse a configuration, and what is said about it.
fn config(text: &str) -> (AllocationInfo, Result<Config, qbert_model::Error>) {
    let mut result = None;
    let taken = measure(|| result = Some(Config::parse(text.as_bytes(), Path::new("config.json"))));
    (taken, result.unwrap())
}

fn short(error: &qbert_model::Error) -> String {
    let text = error.to_string();
    assert!(text.len() < 1000, "an error of {} bytes", text.len());
    text
}

fn without_labels() -> String {
    let (before, after) = CONFIG.split_once("\"id2label\"").unwrap();
    let (_, after) = after.split_once("\"a_key").unwrap();
    format!("{before}\"num_labels\": LABELS, \"a_key{after}")
}

#[test]
fn point_17b_numbers_of_labels_are_limited_before_names_are_made() {
    let text = without_labels();
    for count in [65_537, 1 << 24, u64::MAX] {
        let (taken, result) = config(&text.replace("LABELS", &count.to_string()));
        assert!(short(&result.unwrap_err()).contains("at most 65536 labels"));
        assert!(taken.bytes_max < MEGABYTE, "{taken:?}");
    }
    assert_eq!(config(&text.replace("LABELS", "65536")).1.unwrap().labels.len(), 65_536);
    let names: Vec<String> = (0..65_537).map(|id| format!("\"{id}\": \"x\"")).collect();
    let named = text.replace("\"num_labels\": LABELS", &format!("\"id2label\": {{{}}}", names.join(", ")));
    assert!(short(&config(&named).1.unwrap_err()).contains("at most 65536"));
}

#[test]
fn point_17b_a_head_without_elements_cannot_claim_outputs() {
    let home = tempfile::tempdir().unwrap();
    let mut model = Model::new(Head::SequenceClassification);
    let empty = Tensor { dtype: Dtype::F32, shape: vec![1 << 40, 0], bytes: Vec::new() };
    model.tensors.insert("classifier.weight".to_owned(), empty);
    model.config = without_labels().replace("LABELS", "0");
    model.write(home.path());
    let taken = measure(|| {
        let error = Checkpoint::open(home.path()).map(|checkpoint| checkpoint.labels()).unwrap_err();
        assert!(short(&error).contains("1099511627776 outputs"), "{error}");
    });
    assert!(taken.bytes_max < MEGABYTE, "{taken:?}");
}

/// A checkpoint with more labels could be trained and written, but not read again.
#[test]
fn more_labels_than_can_be_read_are_refused_before_training() {
    let home = tempfile::tempdir().unwrap();
    Model::new(Head::None).write(home.path());
    let checkpoint = Checkpoint::open(home.path()).unwrap();
    assert!(checkpoint.load_for(Head::SequenceClassification, 65_536).is_ok());
    for error in [
        checkpoint.load_for(Head::SequenceClassification, 65_537).unwrap_err(),
        checkpoint.load_for_new_head(Head::TokenClassification, 65_537).unwrap_err(),
    ] {
        assert!(short(&error).contains("65537 labels; at most 65536") && error.hint().is_some(), "{error}");
    }
}

#[test]
fn point_17b_sizes_that_no_model_has_are_refused() {
    let refused = |from: &str, to: &str| {
        assert!(CONFIG.contains(from), "{from}");
        let (taken, result) = config(&CONFIG.replace(from, to));
        // A tree of JSON values takes some hundred times the bytes of a list of digits.
        assert!(taken.bytes_max < MEGABYTE / 4 + 100 * to.len() as u64, "{from}: {taken:?}");
        short(&result.unwrap_err())
    };
    let keys = [
        ("vocab_size", "11"),
        ("hidden_size", "8"),
        ("num_hidden_layers", "2"),
        ("num_attention_heads", "2"),
        ("intermediate_size", "12"),
        ("max_position_embeddings", "7"),
        ("type_vocab_size", "2"),
    ];
    for (key, right) in keys {
        for wrong in ["0", "-1", "1.5", "1e3", "16777217", "18446744073709551615", "1e400", "null", "[]", "\"8\""] {
            let said = refused(&format!("\"{key}\": {right}"), &format!("\"{key}\": {wrong}"));
            assert!(said.contains(key) || wrong == "1e400", "{said}");
        }
    }
    assert!(refused("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 257").contains("at most 256"));
    assert!(refused("\"num_attention_heads\": 2", "\"num_attention_heads\": 16").contains("multiple"));
    for wrong in ["0", "-1e-12", "1e-60", "1e39", "\"NaN\""] {
        let said = refused("\"layer_norm_eps\": 1e-12", &format!("\"layer_norm_eps\": {wrong}"));
        assert!(said.contains("layer_norm_eps"), "{said}");
    }
    let endless = "x".repeat(1 << 16);
    for (from, to) in [
        ("\"gelu\"", format!("\"{endless}\"")),
        ("\"vocab_size\": 11", format!("\"vocab_size\": [{}1]", "1, ".repeat(1 << 16))),
    ] {
        refused(from, &to);
    }
    config(&format!("{}{}", "[".repeat(1 << 18), "]".repeat(1 << 18))).1.unwrap_err();
}

/// A header with these tensors, and whatever checksums.
fn with_header(json: &str) -> Vec<u8> {
    let mut file = (json.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(json.as_bytes());
    let mut sums = crc32fast::hash(&file).to_le_bytes().to_vec();
    sums.extend(crc32fast::hash(&sums).to_le_bytes());
    file.extend(sums);
    file
}

fn open(bytes: Vec<u8>) -> (AllocationInfo, String) {
    let mut said = String::new();
    let taken = measure(|| said = short(&PackedModel::from_bytes("model.qbert", bytes).unwrap_err()));
    (taken, said)
}

#[test]
fn point_17b_headers_cost_no_more_than_their_bytes() {
    let entry = r#"{"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}"#;
    let many = |count: usize, part: &dyn Fn(usize) -> String| (0..count).map(part).collect::<Vec<_>>().join(",");
    let objects = format!("{{\"a\": [{}]}}", vec!["{}"; 1 << 20].join(","));
    let unknown = format!(
        r#"{{"a": {{"dtype": "U8", "shape": [0], "data_offsets": [0, 0], "x": [{}]}}}}"#,
        vec!["{}"; 1 << 20].join(",")
    );
    let tensors = format!("{{{}}}", many(100_000, &|index| format!("\"{index}\": {entry}")));
    let shape = format!(r#"{{"a": {{"dtype": "U8", "shape": [{}1], "data_offsets": [0, 1]}}}}"#, "1,".repeat(1 << 20));
    let metadata = format!(r#"{{"__metadata__": {{{}}}}}"#, many(100_000, &|index| format!("\"{index}\": \"\"")));
    let name = format!("{{\"{}\": {}}}", "n".repeat(1 << 20), entry.replace("U8", "F64"));
    let twice = format!("{{\"a\": {entry}, \"a\": {entry}}}");
    let cases = [
        ("objects", objects, "the header cannot be read: invalid type"),
        ("unknown objects", unknown, "after the last tensor"),
        ("tensors", tensors, "more than 8192 tensors"),
        ("shape", shape, "more than 8 dimensions"),
        ("metadata", metadata, "more than 64 entries"),
        ("name", name, "stored as F64"),
        ("twice", twice, "appears twice"),
    ];
    for (name, json, expected) in cases {
        let bytes = with_header(&json);
        let length = bytes.len() as u64;
        let (taken, said) = open(bytes);
        assert!(said.contains(expected), "{name}: {said}");
        assert!(taken.bytes_max < 3 * length + 8 * MEGABYTE, "{name}: {taken:?} for {length} bytes");
    }
    let (taken, said) = open([&(17_u64 << 20).to_le_bytes()[..], b"{", &vec![b' '; 17 << 20]].concat());
    assert!(said.contains("not a packed model") && taken.bytes_max < MEGABYTE, "{said}");
}

#[test]
fn point_17b_headers_of_checkpoints_are_limited() {
    let home = tempfile::tempdir().unwrap();
    Model::new(Head::None).write(home.path());
    let file = home.path().join("model.safetensors");
    std::fs::write(&file, [&(17_u64 << 20).to_le_bytes()[..], &vec![b' '; 17 << 20]].concat()).unwrap();
    assert!(short(&Checkpoint::open(home.path()).unwrap_err()).contains("a header of 17825792 bytes"));
    let shape = "1,".repeat(1 << 20);
    let header = format!(
        r#"{{"embeddings.word_embeddings.weight": {{"dtype": "F32", "shape": [{shape}1], "data_offsets": [0, 4]}}}}"#
    );
    std::fs::write(&file, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 4]].concat()).unwrap();
    let opened = Checkpoint::open(home.path()).and_then(|checkpoint| checkpoint.load());
    assert!(short(&opened.unwrap_err()).contains("1048577 in all"));
    std::fs::write(home.path().join("config.json"), vec![b' '; 9 << 20]).unwrap();
    assert!(short(&Checkpoint::open(home.path()).unwrap_err()).contains("more than 8388608 bytes"));
}

/// A packed model of some layers.
fn layers(count: usize) -> Vec<u8> {
    let text = CONFIG.replace("\"num_hidden_layers\": 2", &format!("\"num_hidden_layers\": {count}"));
    let config = Config::parse(text.as_bytes(), Path::new("config.json")).unwrap();
    let layout = Arc::new(ParameterLayout::new(&config, Head::SequenceClassification, 3, false));
    let values = (0..layout.len()).map(value_at).collect();
    let parameters = Parameters::new(layout, values);
    let plan = Plan::uniform(count, Precision::from_number(2).unwrap(), GroupSpec::Count(2), RangeMethod::MinMax);
    let sites = quantize_sites(&config, &parameters, &plan);
    let activations = vec![LayerActivations::from_array([ActivationParams::new(0.02, 128).unwrap(); 7]); count];
    let contents = PackedContents {
        config: &config,
        parameters: &parameters,
        labels: &config.labels,
        task: "",
        plan: &plan,
        sites: &sites,
        activations: Some(&activations),
        tokenizer: PackedTokenizer::Vocabulary { text: b"a\n", options: "{}" },
        provenance: &BTreeMap::new(),
    };
    packed_bytes("model.qbert", &contents).unwrap()
}

/// Work is counted in allocations: opening twice the layers takes twice as many, not four times.
#[test]
fn point_17b_opening_many_layers_costs_in_proportion() {
    let opened = |count: usize| {
        let bytes = layers(count);
        measure(|| drop(PackedModel::from_bytes("model.qbert", bytes).unwrap()))
    };
    let (half, all) = (opened(128), opened(256));
    assert!(all.count_total < 5 * half.count_total / 2, "{half:?} for 128 layers, {all:?} for 256");
    assert!(all.bytes_max < 5 * half.bytes_max / 2, "{half:?} for 128 layers, {all:?} for 256");
}
