//! The command line as a user meets it: exit code, stdout and stderr together.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::fmt::Write;
use std::process::{Command, Stdio};

use common::home::Home;

const CONFIG: &str = r#"{
  "architectures": ["BertForSequenceClassification"], "model_type": "bert",
  "vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12,
  "max_position_embeddings": 16, "type_vocab_size": 2, "id2label": {"0": "negative", "1": "positive"}
}"#;
fn home() -> Home {
    Home::new(CONFIG, |values| {
        values.iter_mut().enumerate().for_each(|(i, value)| *value = (i % 13) as f32 / 8.0 - 0.75);
    })
}

/// Changes the bytes of the model's weights.
fn edit_weights(home: &Home, change: impl FnOnce(&mut Vec<u8>)) {
    let path = home.path("model/model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

fn find(bytes: &[u8], name: &str) -> usize {
    bytes.windows(name.len()).position(|window| window == name.as_bytes()).unwrap()
}

#[test]
fn what_a_model_is_and_could_be() {
    let home = home();
    let mut said = home.run("inspect model");
    said += &home.run("plan --model model --bits 2 --groups 4 --out plan.toml");
    said += &home.run("plan --model model --check plan.toml --json");
    said += &home.run("--quiet plan --model model --bits 4 --groups head --out plan.toml");
    insta::assert_snapshot!(said);
    let plan = std::fs::read_to_string(home.path("plan.toml")).unwrap();
    assert!(plan.contains("layer.1 = { query = 4"), "{plan}");
}

#[test]
fn a_config_alone_is_enough_for_a_plan() {
    let home = home();
    home.write("bert-base/config.json", br#"{"model_type": "bert", "vocab_size": 30522, "hidden_size": 768,
        "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072, "max_position_embeddings": 512}"#);
    insta::assert_snapshot!(home.run("plan --model bert-base --preset sst2-2-3"));
}

#[test]
fn what_data_holds() {
    let home = home();
    home.write("train.tsv", b"sentence\tlabel\ngood film\t1\nbad film\t0\na good good film\t1\n");
    home.write("own.csv", b"stars,review\n5,\"good, good\"\n1,bad\n");
    let mut said = home.run("data --task sst2 --model model train.tsv");
    said += &home.run("data --task classify --text review --label stars own.csv --json");
    insta::assert_snapshot!(said);
}

#[test]
fn wrong_models_exit_with_2_and_say_why() {
    let mut said = String::new();
    let mut broken = |what: &str, breaking: &dyn Fn(&Home)| {
        let home = home();
        breaking(&home);
        write!(said, "── {what}\n{}", home.run("inspect model")).unwrap();
    };
    broken("truncated", &|home| edit_weights(home, |bytes| bytes.truncate(bytes.len() - 100)));
    broken("a git-LFS pointer", &|home| {
        edit_weights(home, |bytes| {
            *bytes = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n".to_vec();
        });
    });
    broken("empty", &|home| edit_weights(home, Vec::clear));
    broken("a pickle", &|home| edit_weights(home, |bytes| *bytes = b"\x80\x02}q\x00.".to_vec()));
    broken("missing tensor", &|home| {
        edit_weights(home, |bytes| {
            let place = find(bytes, "layer.1.attention.self.key.weight");
            bytes[place + "layer.1.attention.self.".len()] = b'm';
        });
    });
    broken("not a number", &|home| {
        edit_weights(home, |bytes| {
            let end = bytes.len();
            bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
        });
    });
    broken("wrong shape", &|home| {
        let config = std::fs::read_to_string(home.path("model/config.json")).unwrap();
        home.write(
            "model/config.json",
            config.replace("\"intermediate_size\": 12", "\"intermediate_size\": 16").as_bytes(),
        );
    });
    broken("no tokenizer", &|home| std::fs::remove_file(home.path("model/vocab.txt")).unwrap());
    broken("no such model", &|home| std::fs::remove_dir_all(home.path("model")).unwrap());
    assert!(!said.contains("panicked"), "{said}");
    insta::assert_snapshot!(said);
}

#[test]
fn wrong_data_exits_with_2_and_says_where() {
    let home = home();
    let squad = |start: usize| {
        format!(
            r#"{{"version": "1.1", "data": [{{"title": "t", "paragraphs": [{{"context": "a good film",
            "qas": [{{"id": "q7", "question": "what film", "answers": [{{"text": "good", "answer_start": {start}}}]}}]}}]}}]}}"#
        )
    };
    let cases: [(&str, &str, &[u8]); 9] = [
        ("sst2", "empty.tsv", b""),
        ("sst2", "columns.tsv", b"sentence\tlabel\ngood film\t1\nbad film\n"),
        ("sst2", "label.tsv", b"sentence\tlabel\ngood film\t7\n"),
        ("sst2", "latin1.tsv", b"sentence\tlabel\ngood film\t1\ncaf\xe9\t0\n"),
        ("classify", "header.csv", b"words,mark\ngood,1\n"),
        ("ner", "tags.conll", b"good B-FILM\nfilm FILM\n"),
        ("conll03", "columns.conll", b"good NN I-NP O\nfilm\n"),
        ("squad", "cut.json", b"{\"data\": [{\"paragraphs\": ["),
        ("squad", "offset.json", squad(3).leak().as_bytes()),
    ];
    let mut said = String::new();
    for (task, name, bytes) in cases {
        home.write(name, bytes);
        said += &home.run(&format!("data --task {task} {name}"));
    }
    home.write("fine.json", squad(2).as_bytes());
    assert!(home.run("data --task squad fine.json").contains("[exit 0]"));
    assert!(!said.contains("panicked"), "{said}");
    insta::assert_snapshot!(said);
}

#[test]
fn wrong_plans_and_flags_exit_with_2() {
    let home = home();
    home.run("plan --model model --bits 2 --groups 4 --out plan.toml");
    let plan = std::fs::read_to_string(home.path("plan.toml")).unwrap();
    let mut said = String::new();
    let changes = [
        ("intermediate = 2", "intermediate = 0"),
        ("intermediate = 2", "intermediate = 9"),
        ("groups = 4", "groups = 0"),
        ("groups = 4", "groups = 500"),
        ("attention_output", "atention_output"),
        ("word = 8\n", ""),
        ("version = 1", "version = 2"),
    ];
    for (from, to) in changes {
        assert!(plan.contains(from), "{from}");
        home.write("changed.toml", plan.replacen(from, to, 1).as_bytes());
        writeln!(said, "── {from} → {to}").unwrap();
        said += &home.run("plan --model model --check changed.toml");
    }
    home.write("latin1.toml", b"version = 1\n# caf\xe9\n");
    said += &home.run("plan --model model --check latin1.toml");
    said += &home.run("plan --model model --check nowhere.toml");
    said += &home.run("plan --model model --bits 9");
    said += &home.run("plan --model model --bits 2 --groups heads");
    said += &home.run("plan --model model --preset sst-2-3");
    said += &home.run("plan --model model --preset sst2-2-3");
    said += &home.run("plan --model model --bit 2");
    said += &home.run("data --task sst train.tsv");
    said += &home.run("inspekt model");
    said += &home.run("inspect some/model");
    said += &home.run("fetch minilm");
    insta::assert_snapshot!(said);
}

#[test]
fn a_closed_pipe_is_no_error() {
    let home = home();
    let mut child = Command::new(env!("CARGO_BIN_EXE_qbert"))
        .args(["inspect", "model"])
        .current_dir(home.path(""))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
}
