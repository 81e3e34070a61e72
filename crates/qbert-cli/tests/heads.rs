//! Heads whose outputs could be misread: without names, for another kind of task, with tags without marks.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::path::Path;

use common::{fail, prepare, prepare_with, qbert, stderr, succeed};
use qbert_model::Head;
use serde_json::{Value, json};

/// A model that is always right about the dev file, with the labels `negative` and `positive`.
fn tuned(home: &Path) {
    prepare(home);
    let data = "--task sst2 --train train.tsv --dev dev.tsv";
    succeed(home, &format!("finetune --model model {data} --epochs 12 --batch 8 --lr 2e-3 --out tuned"));
    for (name, dev) in [("named.tsv", "dev.tsv"), ("named-train.tsv", "train.tsv")] {
        let text = std::fs::read_to_string(home.join(dev)).unwrap();
        // In the order of the alphabet the good ones come first: the wrong way round for this head.
        let text = text.replace("\t0\n", "\tnasty\n").replace("\t1\n", "\tfine\n");
        std::fs::write(home.join(name), text).unwrap();
    }
}

/// A copy of a checkpoint with another configuration.
fn copy(home: &Path, from: &str, to: &str, change: impl FnOnce(&mut Value)) {
    std::fs::create_dir(home.join(to)).unwrap();
    for file in ["config.json", "model.safetensors", "vocab.txt"] {
        std::fs::copy(home.join(from).join(file), home.join(to).join(file)).unwrap();
    }
    let path = home.join(to).join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut config);
    std::fs::write(path, config.to_string()).unwrap();
}

fn unnamed(config: &mut Value) {
    config["id2label"] = json!({"0": "LABEL_0", "1": "LABEL_1"});
    config["label2id"] = json!({"LABEL_0": 0, "LABEL_1": 1});
}

fn accuracy(home: &Path, arguments: &str) -> f64 {
    let report: Value = serde_json::from_str(&succeed(home, &format!("eval {arguments} --json"))).unwrap();
    report["value"].as_f64().unwrap()
}

#[test]
fn label_n_heads_are_never_matched_by_the_alphabet() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    tuned(home);
    copy(home, "tuned", "unnamed", unnamed);
    let train = "--task classify --train named-train.tsv --dev named.tsv";
    succeed(home, "plan --model tuned --bits 8 --groups 8 --out plan.toml");
    for command in [
        "eval unnamed --task classify --data named.tsv".to_owned(),
        format!("run --model unnamed {train} --out run"),
        format!("finetune --model unnamed {train} --epochs 1 --out again"),
        format!("quantize --model unnamed {train} --epochs 0 --plan plan.toml --out small"),
        "analyze --model unnamed --task classify --data named-train.tsv --out analysis".to_owned(),
        "pack unnamed --plan plan.toml --task classify --calibrate named.tsv --out packed.qbert".to_owned(),
    ] {
        let said = fail(home, &command);
        for part in ["LABEL_0, LABEL_1", "fine, nasty", "--labels fine=OUTPUT,nasty=OUTPUT"] {
            assert!(said.contains(part), "{command}: {said}");
        }
    }
    for name in ["run", "again", "small", "analysis", "packed.qbert"] {
        assert!(!home.join(name).exists(), "{name}");
    }

    // The user's word decides, and the answer says what it was.
    let eval = "eval unnamed --task classify --data named.tsv";
    for (labels, right) in
        [("nasty,fine", 100.0), ("nasty=LABEL_0,fine=LABEL_1", 100.0), ("fine=LABEL_0,nasty=LABEL_1", 0.0)]
    {
        assert_eq!(accuracy(home, &format!("unnamed --task classify --data named.tsv --labels {labels}")), right);
    }
    let said = succeed(home, &format!("{eval} --labels nasty,fine"));
    assert!(said.contains("fine = LABEL_1, nasty = LABEL_0"), "{said}");
    // Numbers are LABEL_n, as in transformers.
    let said = succeed(home, "eval unnamed --task classify --data dev.tsv");
    assert!(said.contains("accuracy 100.00") && said.contains("0 = LABEL_0, 1 = LABEL_1"), "{said}");
    assert_eq!(accuracy(home, "unnamed --task sst2 --data dev.tsv"), 100.0);
    succeed(
        home,
        &format!("quantize --model unnamed {train} --labels nasty,fine --epochs 0 --plan plan.toml --out small"),
    );
    let said = succeed(home, "eval small/model.qbert --task classify --data named.tsv");
    assert!(said.contains("accuracy 100.00") && !said.contains("LABEL"), "{said}");
}

#[test]
fn numbers_are_no_places_in_a_list_of_names() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    tuned(home);
    copy(home, "tuned", "swapped", |config| config["id2label"] = json!({"0": "positive", "1": "negative"}));
    let said = fail(home, "eval tuned --task classify --data dev.tsv");
    for part in ["negative, positive", "0, 1", "--labels 0=OUTPUT,1=OUTPUT"] {
        assert!(said.contains(part), "{said}");
    }
    let eval = "--task classify --data dev.tsv --labels";
    assert_eq!(accuracy(home, &format!("tuned {eval} negative,positive")), 100.0);
    assert_eq!(accuracy(home, &format!("tuned {eval} 0=negative,1=positive")), 100.0);
    assert_eq!(accuracy(home, &format!("swapped {eval} 0=negative,1=positive")), 0.0);
    let said = succeed(home, &format!("eval swapped {eval} 0=positive,1=negative"));
    assert!(said.contains("accuracy 100.00") && said.contains("0 = positive, 1 = negative"), "{said}");
    // Numbers that are the head's own names are names.
    copy(home, "tuned", "numbered", |config| config["id2label"] = json!({"0": "0", "1": "1"}));
    assert_eq!(accuracy(home, "numbered --task classify --data dev.tsv"), 100.0);
}

#[test]
fn heads_that_are_not_supported_are_refused_by_name() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    tuned(home);
    copy(home, "tuned", "several", |config| config["problem_type"] = json!("multi_label_classification"));
    copy(home, "tuned", "values", |config| config["problem_type"] = json!("regression"));
    copy(home, "tuned", "choice", |config| config["architectures"] = json!(["BertForMultipleChoice"]));
    copy(home, "tuned", "single", |config| config["problem_type"] = json!("single_label_classification"));
    succeed(home, "plan --model tuned --bits 8 --groups 8 --out plan.toml");
    let train = "--task sst2 --train train.tsv --dev dev.tsv";
    for (model, what) in [("values", "regression of 2 values"), ("choice", "BertForMultipleChoice")] {
        for command in [
            format!("eval {model} --task sst2 --data dev.tsv"),
            format!("quantize --model {model} {train} --epochs 0 --plan plan.toml --out none"),
            format!("pack {model} --plan plan.toml --task sst2 --calibrate dev.tsv --out none"),
        ] {
            let said = fail(home, &command);
            assert!(said.contains(what) && said.contains("does not support"), "{command}: {said}");
        }
        assert!(succeed(home, &format!("inspect {model}")).contains("not supported"));
    }
    let said = fail(home, "eval several --task sst2 --data dev.tsv");
    assert!(said.contains("any number of labels per text") && said.contains("one label per text"), "{said}");
    assert_eq!(accuracy(home, "single --task sst2 --data dev.tsv"), 100.0);
    // Fine-tuning takes the encoder, draws a new head and says so; the result is an ordinary classifier.
    let finetune = format!("finetune --model several {train} --epochs 1 --batch 8 --out again");
    let output = qbert(home, &finetune);
    assert!(stderr(&output).contains("a new head is trained"), "{}", stderr(&output));
    assert!(!std::fs::read_to_string(home.join("again/config.json")).unwrap().contains("multi_label"));
    accuracy(home, "again --task sst2 --data dev.tsv");
}

#[test]
fn one_output_is_no_classifier() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    prepare_with(home, Head::SequenceClassification, &["LABEL_0"]);
    let said = fail(home, "eval model --task sst2 --data dev.tsv");
    assert!(said.contains("a value per text") && said.contains("one label per text"), "{said}");
    let train = "--task sst2 --train train.tsv --dev dev.tsv --epochs 1 --batch 8";
    let output = qbert(home, &format!("finetune --model model {train} --out tuned"));
    assert!(output.status.success() && stderr(&output).contains("a new head is trained"), "{}", stderr(&output));

    std::fs::write(home.join("values.tsv"), "text\tlabel\na good film\t4.5\na bad film\t1\n").unwrap();
    let said = fail(home, "finetune --model model --task classify --train values.tsv --dev values.tsv --out none");
    assert!(said.contains("values.tsv:2: the label 4.5 is a value") && said.contains("--labels"), "{said}");
    std::fs::write(home.join("same.tsv"), "text\tlabel\na good film\tx\na bad film\tx\n").unwrap();
    let said = fail(home, "finetune --model model --task classify --train same.tsv --dev same.tsv --out none");
    assert!(said.contains("same label, x"), "{said}");
}

/// What the packed model says about a text, and about a second one.
fn asked(home: &Path, flags: &[&str], text: &str) -> String {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_qbert"));
    let output =
        command.current_dir(home).args(["predict", "small/model.qbert"]).args(flags).arg(text).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Trained, quantized and packed for the task, with the same score all the way; then asked.
fn whole_way(home: &Path, task: &str, train: &str) -> (f64, Value) {
    let data = format!("--task {task} --train {train} --dev {train}");
    succeed(home, &format!("finetune --model model {data} --epochs 100 --batch 8 --lr 1e-3 --out tuned"));
    let full = accuracy(home, &format!("tuned --task {task} --data {train}"));
    succeed(home, &format!("analyze --model tuned --task {task} --data {train} --out analysis --runs 1"));
    succeed(home, "plan --model tuned --bits 8 --groups 8 --out plan.toml");
    succeed(home, &format!("quantize --model tuned {data} --epochs 1 --batch 8 --plan plan.toml --out small"));
    let small = accuracy(home, &format!("small --task {task} --data {train}"));
    let packed = accuracy(home, &format!("small/model.qbert --task {task} --data {train}"));
    assert_eq!(small, packed, "{task}: the packed model is the trained one");
    let config: Value = serde_json::from_slice(&std::fs::read(home.join("small/config.json")).unwrap()).unwrap();
    (full, config)
}

#[test]
fn texts_may_have_any_number_of_labels() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    prepare(home);
    let rows =
        [("a good film", "praise"), ("a bad plot", "blame"), ("good plot bad film", "praise|blame"), ("the film", "")];
    let table: String = rows.iter().cycle().take(48).map(|(text, labels)| format!("{text}\t{labels}\n")).collect();
    std::fs::write(home.join("sets.tsv"), format!("text\tlabels\n{table}")).unwrap();
    let list = |labels: &'static str| labels.split('|').filter(|label| !label.is_empty()).collect::<Vec<_>>();
    let lines = rows.map(|(text, labels)| json!({"text": text, "labels": list(labels)}).to_string() + "\n");
    std::fs::write(home.join("sets.jsonl"), lines.concat()).unwrap();
    let (f1, config) = whole_way(home, "multilabel", "sets.tsv");
    assert!(f1 > 95.0, "{f1}");
    assert_eq!(config["problem_type"], "multi_label_classification");
    assert_eq!(accuracy(home, "tuned --task multilabel --data sets.jsonl"), f1);
    let said = asked(home, &[], "good plot bad film");
    assert!(said.contains("blame") && said.contains("praise"), "{said}");
    let answer: Value = serde_json::from_str(&asked(home, &["--json"], "the film")).unwrap();
    assert_eq!(answer["labels"], json!([]));
    assert!(succeed(home, "inspect small/model.qbert").contains("any number of labels per text: blame, praise"));
    let said = fail(home, "eval small --task classify --data sets.tsv");
    assert!(said.contains("any number of labels per text"), "{said}");
}

#[test]
fn texts_and_pairs_may_have_a_value() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    prepare(home);
    let rows =
        [("a good film", "good", 4.5), ("a bad plot", "good", 0.5), ("the film", "the plot", 2.0), ("bad", "bad", 4.0)];
    let table = rows.iter().cycle().take(48).map(|(text, text2, value)| format!("{text}\t{text2}\t{value}\n"));
    std::fs::write(home.join("pairs.tsv"), format!("text\ttext2\tscore\n{}", table.collect::<String>())).unwrap();
    let (pearson, config) = whole_way(home, "score-pair", "pairs.tsv");
    assert!(pearson > 90.0, "{pearson}");
    assert_eq!((&config["problem_type"], &config["id2label"]), (&json!("regression"), &json!({"0": "LABEL_0"})));
    let report = succeed(home, "eval small --task score-pair --data pairs.tsv");
    assert!(report.contains("pearson") && report.contains("spearman"), "{report}");
    let score = |text: &str| {
        let answer: Value = serde_json::from_str(&asked(home, &["--json", "--text2", "good"], text)).unwrap();
        answer["score"].as_f64().unwrap()
    };
    assert!(score("a good film") > score("a bad plot"));
    assert!(succeed(home, "inspect small").contains("a value per text"));
    std::fs::write(home.join("words.tsv"), "text\ttext2\tscore\na\tb\tmuch\n").unwrap();
    let said = fail(home, "eval small --task score-pair --data words.tsv");
    assert!(said.contains("\"much\" is no value"), "{said}");
}

#[test]
fn a_missing_head_is_said_in_plain_words() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    prepare(home);
    succeed(home, "plan --model model --bits 8 --groups 8 --out plan.toml");
    let train = "--task sst2 --train train.tsv --dev dev.tsv";
    for command in [
        "eval model --task sst2 --data dev.tsv".to_owned(),
        format!("quantize --model model {train} --epochs 0 --plan plan.toml --out none"),
    ] {
        let said = fail(home, &command);
        assert!(said.contains("the model has no classification head"), "{said}");
        assert!(said.contains("fine-tune") && !said.contains("SequenceClassification"), "{said}");
    }
}

const SPEECH: &str = "the DET\ngood ADJ\nfilm NOUN\n\na DET\nbad ADJ\nplot NOUN\n\nfilm NOUN\nplot NOUN\nis VERB\n\n";

#[test]
fn tags_without_marks_keep_their_letters() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    prepare(home);
    std::fs::write(home.join("speech.conll"), SPEECH.repeat(8)).unwrap();
    let said = succeed(home, "data --task ner speech.conll");
    assert!(said.contains("ADJ") && !said.contains("B-"), "{said}");
    let train = "--task ner --train speech.conll --dev speech.conll";
    succeed(home, &format!("finetune --model model {train} --epochs 20 --batch 4 --lr 3e-3 --out tuned"));
    let said = succeed(home, "eval tuned --task ner --data speech.conll");
    // Two nouns in a row are two nouns, and F1 is the share of right words.
    let figures: Vec<&str> = said.lines().next().unwrap().split([' ', ',']).collect();
    assert!(said.contains(", word accuracy ") && figures[1] == figures[5], "{figures:?}");
    assert!(said.lines().any(|line| line.contains("NOUN") && line.contains("32")), "{said}");
    succeed(home, "plan --model tuned --bits 8 --groups 8 --out plan.toml");
    succeed(home, &format!("quantize --model tuned {train} --epochs 0 --plan plan.toml --out small"));
    let output = qbert(home, "predict small/model.qbert --json film");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("\"NOUN\"") && !said.contains("\"OUN\""), "{said}");
}

#[test]
fn questions_without_an_answer_are_counted() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let question = |id: usize, impossible: bool| {
        let answers = if impossible { json!([]) } else { json!([{"text": "film", "answer_start": 7}]) };
        json!({"id": id.to_string(), "question": "a film", "answers": answers, "is_impossible": impossible})
    };
    let questions: Vec<Value> = (0..5).map(|id| question(id, id > 2)).collect();
    let data = json!({"data": [{"paragraphs": [{"context": "a good film is a film", "qas": questions}]}]});
    std::fs::write(home.join("dev.json"), data.to_string()).unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/tiny-bert");
    let train = "--task squad --train dev.json --dev dev.json --epochs 1 --batch 2 --max-len 96";
    let output = qbert(home, &format!("finetune --model {} {train} --out tuned", model.display()));
    assert!(stderr(&output).contains("dev.json: 2 left out"), "{}", stderr(&output));
    let said = succeed(home, "eval tuned --task squad --data dev.json --max-len 96");
    assert!(said.contains("on 3 examples") && said.contains("2 left out: questions without an answer"), "{said}");
    let report: Value =
        serde_json::from_str(&succeed(home, "eval tuned --task squad --data dev.json --max-len 96 --json")).unwrap();
    assert_eq!((&report["examples"], &report["left_out"]["count"]), (&json!(3), &json!(2)));
    let said = succeed(home, "data --task squad dev.json");
    assert!(said.contains("left out    2: questions without an answer"), "{said}");
    let analyze =
        "analyze --model tuned --task squad --data dev.json --max-len 96 --runs 1 --fraction 1 --out analysis";
    assert!(succeed(home, analyze).contains("2 left out: questions without an answer"));
    let metrics: Value = serde_json::from_slice(&std::fs::read(home.join("tuned/metrics.json")).unwrap()).unwrap();
    assert_eq!(metrics["dev"]["left_out"], json!(2));
}
