//! Every spelling of a checkpoint loads to the same numbers, and what is written is read back.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::path::Path;

use common::{Model, value_at};
use qbert_model::family::BERT;
use qbert_model::{Checkpoint, Config, Head, ParameterLayout, write_checkpoint};
use safetensors::Dtype;

const HEADS: [Head; 4] = [Head::None, Head::SequenceClassification, Head::TokenClassification, Head::QuestionAnswering];

fn assert_loads(directory: &Path, head: Head, what: &str) {
    let checkpoint = Checkpoint::open(directory).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(checkpoint.head(), head, "{what}");
    let parameters = checkpoint.load().unwrap_or_else(|e| panic!("{what}: {e}"));
    let expected: Vec<f32> = (0..parameters.layout().len()).map(value_at).collect();
    assert_eq!(parameters.values(), expected, "{what}");
}

#[test]
fn every_head_and_spelling_loads_to_the_same_numbers() {
    for head in HEADS {
        type Change = fn(&mut Model);
        let spellings: [(&str, Change); 7] = [
            ("as transformers writes it", |_| {}),
            ("without the prefix", |m| m.rename(|n| n.trim_start_matches("bert.").to_owned())),
            ("gamma and beta", |m| {
                m.rename(|n| {
                    n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
                });
            }),
            ("the word embedding under the name of the layer that shares it", |m| {
                m.rename(|n| {
                    let word = n.ends_with("word_embeddings.weight");
                    if word { "cls.predictions.decoder.weight".to_owned() } else { n.to_owned() }
                });
            }),
            ("f16", |m| m.convert_to(Dtype::F16)),
            ("bf16", |m| m.convert_to(Dtype::BF16)),
            ("no architectures", |m| m.config = m.config.replace("architectures", "was_architectures")),
        ];
        for (what, change) in spellings {
            let home = tempfile::tempdir().unwrap();
            let mut model = Model::new(head);
            change(&mut model);
            model.write(home.path());
            assert_loads(home.path(), head, &format!("{head:?} {what}"));
            let sharded = home.path().join("sharded");
            model.write_shards(&sharded);
            assert_loads(&sharded, head, &format!("{head:?} {what}, sharded"));
        }
    }
}

#[test]
fn what_is_written_reads_back_identical() {
    for head in HEADS {
        let home = tempfile::tempdir().unwrap();
        Model::new(head).write(&home.path().join("in"));
        let checkpoint = Checkpoint::open(&home.path().join("in")).unwrap();
        let parameters = checkpoint.load().unwrap();
        let out = home.path().join("out");
        // Twice: the second replaces the first.
        for _ in 0..2 {
            let labels = checkpoint.labels();
            write_checkpoint(&out, checkpoint.config(), &parameters, &labels, checkpoint.tokenizer_files()).unwrap();
        }
        assert_loads(&out, head, "written");
        let again = Checkpoint::open(&out).unwrap();
        assert_eq!(again.labels(), checkpoint.labels());
        assert_eq!(again.tokenizer_files(), checkpoint.tokenizer_files());
        let json: serde_json::Value = serde_json::from_slice(&std::fs::read(out.join("config.json")).unwrap()).unwrap();
        assert_eq!(json["a_key_of_tomorrow"]["kept"][1], 2.5, "unknown keys survive");
        assert_eq!(json["torch_dtype"], "float32", "the weights are f32 now");
        assert_eq!(json["architectures"][0], BERT.class(head).architecture);
    }
}

#[test]
fn another_task_gets_a_fresh_head_and_keeps_the_encoder() {
    let home = tempfile::tempdir().unwrap();
    Model::new(Head::SequenceClassification).write(home.path());
    let checkpoint = Checkpoint::open(home.path()).unwrap();
    let fresh = |head, outputs| checkpoint.load_for(head, outputs).unwrap().fresh;
    assert!(fresh(Head::SequenceClassification, 3).is_empty());
    assert_eq!(fresh(Head::SequenceClassification, 2), ["classifier.weight", "classifier.bias"]);
    // The same shape, but for other labels, as the caller says.
    let new = checkpoint.load_for_new_head(Head::SequenceClassification, 3).unwrap();
    assert_eq!(new.fresh, ["classifier.weight", "classifier.bias"]);
    // The same shape, but of a head that read the pooled vector.
    assert_eq!(fresh(Head::TokenClassification, 3), ["classifier.weight", "classifier.bias"]);
    assert_eq!(fresh(Head::QuestionAnswering, 2), ["qa_outputs.weight", "qa_outputs.bias"]);
    let loaded = checkpoint.load_for(Head::QuestionAnswering, 2).unwrap().parameters;
    let encoder = loaded.layout().get("qa_outputs.weight").unwrap().span.start;
    assert!((0..encoder).all(|i| loaded.values()[i] == value_at(i)));
    assert!(loaded.values()[encoder..].iter().all(|&v| v == 0.0));

    // A token classifier has no pooler: a sequence classifier made from it needs a new one.
    Model::new(Head::TokenClassification).write(home.path());
    let checkpoint = Checkpoint::open(home.path()).unwrap();
    let fresh = checkpoint.load_for(Head::SequenceClassification, 3).unwrap().fresh;
    assert_eq!(fresh, ["pooler.dense.weight", "pooler.dense.bias", "classifier.weight", "classifier.bias"]);
}

#[test]
fn pretraining_heads_and_position_ids_are_left_out_and_named() {
    let home = tempfile::tempdir().unwrap();
    let mut model = Model::new(Head::None);
    let bias = model.tensors["embeddings.LayerNorm.bias"].clone();
    model.tensors.insert("cls.predictions.transform.dense.bias".to_owned(), bias);
    let ids = common::Tensor { dtype: Dtype::I64, shape: vec![1, 7], bytes: vec![0; 56] };
    model.tensors.insert("embeddings.position_ids".to_owned(), ids);
    model.rename(|n| if n.starts_with("cls.") { n.to_owned() } else { format!("bert.{n}") });
    model.config = model.config.replace("BertModel", "BertForMaskedLM");
    model.write(home.path());
    assert_loads(home.path(), Head::None, "masked language model");
    let checkpoint = Checkpoint::open(home.path()).unwrap();
    let unused = checkpoint.unused(&checkpoint.layout());
    assert_eq!(unused, ["cls.predictions.transform.dense.bias", "bert.embeddings.position_ids"]);
}

#[test]
fn a_layer_is_one_contiguous_span_of_all_its_parameters() {
    let config = Config::parse(common::CONFIG.as_bytes(), Path::new("config.json")).unwrap();
    let layout = ParameterLayout::new(&config, Head::SequenceClassification, 3, false);
    assert_eq!(layout.layers().len(), 2);
    for (index, span) in layout.layers().iter().enumerate() {
        let prefix = format!("encoder.layer.{index}.");
        for parameter in layout.parameters() {
            let inside = span.start <= parameter.span.start && parameter.span.end <= span.end;
            assert_eq!(inside, parameter.name.starts_with(&prefix), "{}", parameter.name);
        }
        assert_eq!(span.len(), 4 * (8 * 8 + 8) + (8 * 12 + 12) + (12 * 8 + 8) + 4 * 8);
    }
    let decaying = layout.parameters().iter().filter(|p| p.role.decays()).count();
    assert_eq!(decaying, 3 + 2 * 6 + 2, "matrices and embeddings only");
}
