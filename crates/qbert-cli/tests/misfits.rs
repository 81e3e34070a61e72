//! Models and data that do not belong together: labels, vocabularies, files that are missing or of another kind.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::path::Path;

use common::{fail, prepare, succeed};

/// A model that is always right about the dev file, with the labels `negative` and `positive`.
fn tuned(home: &Path) {
    prepare(home);
    succeed(
        home,
        "finetune --model model --task sst2 --train train.tsv --dev dev.tsv --epochs 12 --batch 8 --lr 2e-3 --out tuned",
    );
    let named = std::fs::read_to_string(home.join("dev.tsv")).unwrap();
    let named = named.replace("\t0\n", "\tnegative\n").replace("\t1\n", "\tpositive\n");
    std::fs::write(home.join("named.tsv"), named).unwrap();
}

/// The same model, its outputs called something else.
fn renamed(home: &Path, name: &str, labels: [&str; 2]) {
    let (from, to) = (home.join("tuned"), home.join(name));
    std::fs::create_dir(&to).unwrap();
    for file in ["config.json", "model.safetensors", "vocab.txt"] {
        std::fs::copy(from.join(file), to.join(file)).unwrap();
    }
    let mut config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(from.join("config.json")).unwrap()).unwrap();
    config["id2label"] = serde_json::json!({"0": labels[0], "1": labels[1]});
    config["label2id"] = serde_json::json!({labels[0]: 0, labels[1]: 1});
    std::fs::write(to.join("config.json"), config.to_string()).unwrap();
}

#[test]
fn labels_of_a_head_are_known_by_name() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    tuned(home);
    renamed(home, "upper", ["NEGATIVE", "POSITIVE"]);
    renamed(home, "swapped", ["positive", "negative"]);
    renamed(home, "weather", ["dry", "icy"]);
    let accuracy = |arguments: &str| {
        let report: serde_json::Value =
            serde_json::from_str(&succeed(home, &format!("eval {arguments} --json"))).unwrap();
        report["value"].as_f64().unwrap()
    };
    assert_eq!(accuracy("tuned --task sst2 --data dev.tsv"), 100.0);
    assert_eq!(accuracy("upper --task sst2 --data dev.tsv"), 100.0);
    // SST-2's 1 is positive, and this head calls its output so that answers to the negative ones.
    assert_eq!(accuracy("swapped --task sst2 --data dev.tsv"), 0.0);
    assert_eq!(accuracy("tuned --task classify --data named.tsv"), 100.0);
    assert_eq!(accuracy("tuned --task classify --data named.tsv --labels positive,negative"), 100.0);

    let said = fail(home, "eval weather --task sst2 --data dev.tsv");
    assert!(said.contains("for the labels dry, icy") && said.contains("are negative, positive"), "{said}");
    let said = fail(home, "eval tuned --task classify --data named.tsv --labels a,b");
    assert!(said.contains("those asked for are a, b"), "{said}");
    let quantize = "quantize --task sst2 --train train.tsv --dev dev.tsv --epochs 0 --bits 4 --out small";
    succeed(home, "plan --model tuned --bits 4 --groups 8 --out plan.toml");
    let quantize = quantize.replace("--bits 4", "--plan plan.toml");
    let said = fail(home, &format!("{quantize} --model weather"));
    assert!(said.contains("for the labels dry, icy"), "{said}");
    assert!(!home.join("small").exists());
    // Fine-tuning takes the encoder and draws a new head.
    succeed(
        home,
        "finetune --model weather --task sst2 --train train.tsv --dev dev.tsv --epochs 2 --batch 8 --lr 2e-3 --out again",
    );
    assert!(std::fs::read_to_string(home.join("again/config.json")).unwrap().contains("positive"));
}

#[test]
fn what_is_missing_or_of_another_kind_is_said() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    tuned(home);
    let said = fail(home, "finetune --model model --task sst2 --train train.tsv --dev dev.tsv --epochs 0 --out none");
    assert!(said.contains("--epochs is 0"), "{said}");
    assert!(!home.join("none").exists());
    let said = fail(home, "eval tuned --task sst2 --data dev.tsv --masters");
    assert!(said.contains("not a quantized checkpoint"), "{said}");

    succeed(home, "plan --model tuned --bits 4 --groups 8 --out plan.toml");
    succeed(
        home,
        "quantize --model tuned --task sst2 --train train.tsv --dev dev.tsv --epochs 0 --plan plan.toml --out small",
    );
    let eval = "eval small --task sst2 --data dev.tsv";
    assert!(succeed(home, eval).contains("examples (quantized)"));
    assert!(succeed(home, &format!("{eval} --masters")).contains("the f32 masters"));
    assert!(succeed(home, &eval.replace("small", "small/model.qbert")).contains("examples (packed)"));
    std::fs::rename(home.join("small/ranges.safetensors"), home.join("ranges")).unwrap();
    let said = fail(home, eval);
    assert!(said.contains("ranges.safetensors: the file is missing"), "{said}");

    for (arguments, expected) in [
        ("predict tuned hello", "this is a directory, not a packed model"),
        ("inspect small/other.qbert", "small/other.qbert"),
        ("plan --model small/model.qbert --bits 2", "a file alone is no checkpoint"),
        ("data --task sst2 tuned", "tuned"),
        ("eval tuned --task sst2 --data dev.tsv --predictions small", "this is a directory"),
        ("data --task ner --text words dev.tsv", "--text has no effect: the task ner has files without columns"),
        ("data --task classify --text2 more dev.tsv", "--text2 has no effect: the task classify has no second text"),
        ("data --task qa --labels a,b dev.tsv", "--labels has no effect: the task qa has no labels"),
        ("plan --model tuned --bits 4 --groups 8 --out small", "this is a directory"),
    ] {
        let said = fail(home, arguments);
        assert!(said.contains(expected), "{arguments}: {said}");
    }

    // Two words that the embedding has no row for.
    let vocabulary = std::fs::read_to_string(home.join("tuned/vocab.txt")).unwrap();
    std::fs::write(home.join("tuned/vocab.txt"), format!("{vocabulary}more\nwords\n")).unwrap();
    for arguments in ["inspect tuned", "eval tuned --task sst2 --data dev.tsv"] {
        let said = fail(home, arguments);
        assert!(said.contains("the tokenizer has 15 tokens, but the model's word embedding has 13 rows"), "{said}");
    }
}
