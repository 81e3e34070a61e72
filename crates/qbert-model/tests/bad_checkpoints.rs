//! Everything that can be wrong with a checkpoint gets an error that names file and tensor and says what to do.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::fmt::Write;
use std::path::Path;

use common::{Model, Tensor};
use qbert_model::{Checkpoint, Head};
use safetensors::Dtype;

/// Writes the broken model, reads it, and gives the whole complaint with the directory's name taken out.
fn complaint(breaking: impl FnOnce(&Path)) -> String {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("model");
    breaking(&directory);
    let result = Checkpoint::open(&directory).and_then(|checkpoint| checkpoint.load());
    let error = result.expect_err("a broken checkpoint was read");
    let hint = error.hint().map(|h| format!("\nhint: {h}")).unwrap_or_default();
    format!("{error}{hint}").replace(home.path().to_str().unwrap(), "…")
}

fn with_model(change: impl FnOnce(&mut Model)) -> impl FnOnce(&Path) {
    |directory| {
        let mut model = Model::new(Head::SequenceClassification);
        change(&mut model);
        model.write(directory);
    }
}

fn with_config(from: &'static str, to: &'static str) -> impl FnOnce(&Path) {
    with_model(move |model| {
        assert!(model.config.contains(from));
        model.config = model.config.replace(from, to);
    })
}

fn with_weights(bytes: impl FnOnce(Vec<u8>) -> Vec<u8>) -> impl FnOnce(&Path) {
    |directory| {
        let model = Model::new(Head::SequenceClassification);
        model.write(directory);
        let file = directory.join("model.safetensors");
        let changed = bytes(std::fs::read(&file).unwrap());
        std::fs::write(file, changed).unwrap();
    }
}

#[test]
fn every_complaint() {
    let query = "bert.encoder.layer.1.attention.self.query.weight";
    type Breaking = Box<dyn FnOnce(&Path)>;
    let cases: Vec<(&str, Breaking)> = vec![
        ("no such directory", Box::new(|_| {})),
        ("a file instead of a directory", Box::new(|d| std::fs::write(d, "x").unwrap())),
        ("no config", Box::new(|d| std::fs::create_dir(d).unwrap())),
        ("no weights", Box::new(|d| Model::new(Head::None).write_config(d))),
        (
            "pickle only",
            Box::new(|d| {
                Model::new(Head::None).write_config(d);
                std::fs::write(d.join("pytorch_model.bin"), b"PK\x03\x04").unwrap();
            }),
        ),
        ("pickle named safetensors", Box::new(with_weights(|_| b"PK\x03\x04 and more".to_vec()))),
        (
            "tensorflow only",
            Box::new(|d| {
                Model::new(Head::None).write_config(d);
                std::fs::write(d.join("tf_model.h5"), b"\x89HDF").unwrap();
            }),
        ),
        (
            "lfs pointer",
            Box::new(with_weights(|_| b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n".to_vec())),
        ),
        ("empty weights", Box::new(with_weights(|_| Vec::new()))),
        ("header cut off", Box::new(with_weights(|b| b[..100].to_vec()))),
        ("last byte missing", Box::new(with_weights(|b| b[..b.len() - 1].to_vec()))),
        (
            "absurd header length",
            Box::new(with_weights(|mut b| {
                b[..8].copy_from_slice(&u64::MAX.to_le_bytes());
                b
            })),
        ),
        (
            "tensor missing",
            Box::new(with_model(|m| {
                let tensor = m.tensors.remove(query).unwrap();
                m.tensors.insert("bert.encoder.layer.1.attention.self.qurey.weight".to_owned(), tensor);
            })),
        ),
        (
            "head missing",
            Box::new(with_model(|m| {
                m.tensors.remove("classifier.weight").unwrap();
            })),
        ),
        ("wrong shape", Box::new(with_model(|m| m.tensors.get_mut(query).unwrap().shape = vec![4, 16]))),
        (
            "not a number",
            Box::new(with_model(|m| {
                m.tensors.get_mut(query).unwrap().bytes[20..24].copy_from_slice(&f32::NAN.to_le_bytes());
            })),
        ),
        (
            "infinite in f16",
            Box::new(with_model(|m| {
                m.convert_to(Dtype::F16);
                m.tensors.get_mut(query).unwrap().bytes[2..4].copy_from_slice(&half::f16::NEG_INFINITY.to_le_bytes());
            })),
        ),
        ("double precision", Box::new(with_model(|m| m.convert_to(Dtype::F64)))),
        (
            "two spellings at once",
            Box::new(with_model(|m| {
                let tensor = m.tensors["bert.embeddings.LayerNorm.weight"].clone();
                m.tensors.insert("embeddings.LayerNorm.gamma".to_owned(), tensor);
            })),
        ),
        ("labels contradict the classifier", Box::new(with_config(r#", "2": "yes""#, ""))),
        ("label ids with a gap", Box::new(with_config(r#""2": "yes""#, r#""7": "yes""#))),
        ("config is not JSON", Box::new(with_config("\"model_type\": ", "\"model_type\" "))),
        ("config is a list", Box::new(with_model(|m| m.config = "[1]".to_owned()))),
        ("another architecture", Box::new(with_config("\"bert\"", "\"deberta-v2\""))),
        ("another activation", Box::new(with_config("\"gelu\"", "\"mish\""))),
        ("a missing key", Box::new(with_config("\"hidden_size\": 8,", ""))),
        ("zero layers", Box::new(with_config("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 0"))),
        ("text for a number", Box::new(with_config("\"vocab_size\": 11", "\"vocab_size\": \"11\""))),
        ("heads do not divide", Box::new(with_config("\"num_attention_heads\": 2", "\"num_attention_heads\": 3"))),
        ("absurd sizes", Box::new(with_config("\"hidden_size\": 8", "\"hidden_size\": 16777216"))),
        ("dropout of one", Box::new(with_config("\"hidden_dropout_prob\": 0.1", "\"hidden_dropout_prob\": 1"))),
        (
            "shard missing",
            Box::new(|d| {
                Model::new(Head::None).write_shards(d);
                std::fs::remove_file(d.join("model-00002-of-00002.safetensors")).unwrap();
            }),
        ),
        (
            "tensor not in its shard",
            Box::new(|d| {
                Model::new(Head::None).write_shards(d);
                let index = d.join("model.safetensors.index.json");
                let text =
                    std::fs::read_to_string(&index).unwrap().replace("embeddings.word_embeddings.weight", "lost");
                std::fs::write(index, text).unwrap();
            }),
        ),
        (
            "shard outside the directory",
            Box::new(|d| {
                Model::new(Head::None).write_config(d);
                let index = r#"{"weight_map": {"a": "../../etc/passwd"}}"#;
                std::fs::write(d.join("model.safetensors.index.json"), index).unwrap();
            }),
        ),
        (
            "index is not JSON",
            Box::new(|d| {
                Model::new(Head::None).write_config(d);
                std::fs::write(d.join("model.safetensors.index.json"), "{").unwrap();
            }),
        ),
        (
            "question answering without its head",
            Box::new(with_config("BertForSequenceClassification", "BertForQuestionAnswering")),
        ),
        (
            "scalar where a matrix should be",
            Box::new(with_model(|m| {
                let scalar = Tensor { dtype: Dtype::F32, shape: vec![], bytes: vec![0; 4] };
                m.tensors.insert("classifier.weight".to_owned(), scalar);
            })),
        ),
    ];
    let mut all = String::new();
    for (name, breaking) in cases {
        writeln!(all, "── {name}\n{}\n", complaint(breaking)).unwrap();
    }
    insta::assert_snapshot!(all);
}
