//! `qbert prune`: a smaller vocabulary that answers the same texts with the same bits.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::fmt::Write;
use std::path::Path;

use common::{qbert, stderr, succeed};
use qbert_model::{Checkpoint, Config, Head, ParameterLayout, Parameters, TokenizerFiles, write_checkpoint};
use serde_json::Value;

const WORDS: [&str; 6] = ["good", "bad", "film", "plot", "very", "lamp"];

/// A classifier whose vocabulary has all letters, some words and some free rows in front of the special tokens.
fn prepare(home: &Path) {
    let mut vocabulary = "[PAD]\n[unused0]\n[unused1]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n".to_owned();
    for letter in 'a'..='z' {
        write!(vocabulary, "{letter}\n##{letter}\n").unwrap();
    }
    writeln!(vocabulary, "{}", WORDS.join("\n")).unwrap();
    let rows = vocabulary.lines().count();
    let config = format!(
        r#"{{"model_type": "bert", "vocab_size": {rows}, "hidden_size": 32, "num_hidden_layers": 2, "pad_token_id": 0,
        "sep_token_id": 5, "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 32,
        "type_vocab_size": 2}}"#
    );
    let config = Config::parse(config.as_bytes(), Path::new("config.json")).unwrap();
    let layout = ParameterLayout::new(&config, Head::SequenceClassification, 2, true);
    let mut parameters = Parameters::zeros(layout.into());
    qbert_train::random::Stream::new(1, "test", 0).fill_normal(parameters.values_mut(), 0.1);
    std::fs::create_dir(home.join("tokenizer")).unwrap();
    std::fs::write(home.join("tokenizer/vocab.txt"), vocabulary).unwrap();
    let decoder = r#"{"do_lower_case": true, "model_max_length": 512, "added_tokens_decoder": {"5": {"content": "[SEP]", "special": true}}}"#;
    std::fs::write(home.join("tokenizer/tokenizer_config.json"), decoder).unwrap();
    let tokenizer = TokenizerFiles::read(&home.join("tokenizer")).unwrap();
    let labels = ["negative".to_owned(), "positive".to_owned()];
    write_checkpoint(&home.join("model"), &config, &parameters, &labels, &tokenizer).unwrap();
    std::fs::write(home.join("texts.tsv"), "sentence\tlabel\ngood film\t1\nbad film films\t0\n").unwrap();
    std::fs::write(home.join("other.tsv"), "sentence\tlabel\na very good lamp\t1\nbad plot é\t0\n").unwrap();
}

#[test]
fn texts_of_the_corpus_get_the_same_bits_from_fewer_rows() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    prepare(home);
    let found: Value =
        serde_json::from_str(&succeed(home, "prune model --task sst2 texts.tsv --out small --json")).unwrap();
    // Two free rows, and the words `plot`, `very` and `lamp`.
    assert_eq!((found["tokens"].as_u64(), found["kept"].as_u64()), (Some(65), Some(60)), "{found}");
    let texts = &found["texts"];
    assert_eq!((&texts["same"], &texts["length"]), (&texts["sequences"], &texts["kept_length"]), "{found}");
    let compared = |data: &str| -> Value {
        serde_json::from_str(&succeed(home, &format!("compare model small --task sst2 --data {data} --json -q")))
            .unwrap()
    };
    assert_eq!(compared("texts.tsv")["logits"]["largest"], 0.0);
    // Words that are gone are spelled, so other texts get other answers.
    assert!(compared("other.tsv")["logits"]["largest"].as_f64().unwrap() > 0.0);
    let smaller = Checkpoint::open(&home.join("small")).unwrap();
    assert_eq!(smaller.config().vocab_size, 60);
    let written: Value = serde_json::from_slice(&std::fs::read(home.join("small/config.json")).unwrap()).unwrap();
    assert_eq!((&written["pad_token_id"], &written["sep_token_id"]), (&0.into(), &3.into()));
    let text = succeed(home, "prune model --task sst2 texts.tsv --min-count 2 --out small");
    assert!(text.contains("of 65 tokens") && text.contains("unknown tokens   0, as before"), "{text}");
}

#[test]
fn fewer_positions_change_no_bit_of_what_fits() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    prepare(home);
    let text = succeed(home, "prune model --task sst2 texts.tsv other.tsv --positions 16 --out small");
    assert!(text.contains("longest text     16 tokens instead of 32"), "{text}");
    let found = succeed(home, "compare model small --task sst2 --data other.tsv --json -q");
    assert_eq!(serde_json::from_str::<Value>(&found).unwrap()["logits"]["largest"], 0.0);
    let smaller = Checkpoint::open(&home.join("small")).unwrap();
    assert_eq!((smaller.config().position_rows, smaller.config().max_positions), (16, 16));
    let read = |name: &str| -> Value { serde_json::from_slice(&std::fs::read(home.join(name)).unwrap()).unwrap() };
    assert_eq!(read("small/config.json")["max_position_embeddings"], 16);
    assert_eq!(read("small/tokenizer_config.json")["model_max_length"], 16);
    for (positions, problem) in [("33", "positions for 32 tokens"), ("2", "no room for a text")] {
        let output = qbert(home, &format!("prune model --task sst2 texts.tsv --positions {positions} --out other"));
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(problem), "{}", stderr(&output));
        assert!(!home.join("other").exists());
    }
}

#[test]
fn what_cannot_be_pruned_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    prepare(home);
    succeed(home, "plan --model model --bits 4 --out plan.toml");
    succeed(
        home,
        "quantize --model model --plan plan.toml --task sst2 --train texts.tsv --dev texts.tsv --epochs 0 --out quantized -q",
    );
    let output = qbert(home, "prune quantized --task sst2 texts.tsv --out small");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("prune the full-precision checkpoint first"), "{}", stderr(&output));
    let output = qbert(home, "prune model --task sst2 absent.tsv --out small");
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(!home.join("small").exists());
}
