//! Reports from the files of a run's directory.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

use std::path::Path;

use qbert_report::{Error, read};

fn write(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

const SENSITIVITY: &str = r#"{"format":"qbert-sensitivity","version":1,"task":"sst2","model":"abc","layer_parameters":[9],
"data":{"sequences":100,"tokens":900,"hash":"77"},"max_len":128,
"settings":{"runs":2,"fraction":0.1,"max_examples":64,"method":"lanczos","stop":{"iterations":50,"tolerance":0.01},"trace":0,"seed":1},
"layers":[{"layer":0,"eigenvalues":[5.0,-1.0],"mean":2.0,"std":3.0,"omega":5.0,"lowest":[-1.5,-1.0],"iterations":[6,6],
"residuals":[0.1,0.1],"converged":2,"trace":null}],
"ranking":[0],"agreement_of_halves":null,"runs":[],"warnings":["it has not converged"]}"#;

const PLAN: &str = r#"version = 1
[encoder]
groups = 128
range = "mse"
layer.0 = { query = 2, key = 2, value = 2, attention_output = 2, intermediate = 3, output = { bits = 4, groups = "neuron" } }
[embedding]
groups = 1
range = "mse"
word = 8
position = 8
type = 8
[activation]
bits = 8
range = "min-max"
"#;

fn metrics(value: f64, epoch: usize, more: &str) -> String {
    format!(
        r#"{{"dev":{{"metric":"accuracy","value":{value},"examples":40,"details":{{"accuracy":0.9,"per_class":[
{{"name":"no","precision":0.9,"recall":0.8,"f1":0.85,"support":20}},{{"name":"yes","precision":0.9,"recall":0.8,"f1":0.86,"support":20}}]}}}},
"epoch":{epoch},{more}"run":{{"settings":{{"epochs":2,"batch":8,"seed":7,"optimizer":{{"learning_rate":0.0001}}}},
"run":{{"task":"sst2","model":"abc","train":{{"sequences":100,"tokens":900,"hash":"77"}},"max_len":128}}}}}}"#
    )
}

fn landscape(model: &str, layer: usize) -> String {
    format!(
        r#"{{"format":"qbert-landscape","version":1,"task":"sst2","model":"{model}","data":{{}},"settings":{{"points":3}},"examples":4,
"loss":0.1,"layers":[{{"layer":{layer},"eigenvalues":[3.0,1.0],"residuals":[0,0],"rows":[-1,0,1],"columns":[-1,0,1],
"losses":[[2,1,2],[1,0.1,null],[2,1,2]]}}]}}"#
    )
}

#[test]
fn a_whole_run() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    write(root, "sensitivity.json", SENSITIVITY);
    write(root, "plan.toml", PLAN);
    write(root, "landscape-5.json", &landscape("abc", 5));
    write(root, "landscape-0.json", &landscape("abc", 0));
    write(
        root,
        "attention.json",
        r#"{"format":"qbert-attention-kl","version":1,"task":"sst2","examples":8,"layers":[{"layer":0,"heads":[0.1,null]}]}"#,
    );
    write(root, "config.json", "not read");
    write(root, "finetuned/metrics.json", &metrics(90.0, 2, ""));
    write(root, "finetuned/train.jsonl", "{\"step\":1,\"epoch\":0.5,\"loss\":0.7,\"rate\":0.1}\n");
    write(
        root,
        "checkpoint/metrics.json",
        &metrics(89.0, 1, r#""before":{"full_precision":90.0,"post_training":85.0},"#),
    );
    write(root, "checkpoint/train.jsonl", "{\"step\":1,\"epoch\":1.0,\"loss\":0.6,\"rate\":0.1}\n");
    let report = read::directory(root).unwrap();

    let summary = report.summary.as_ref().unwrap();
    assert_eq!((summary.full_precision, summary.post_training, summary.trained), (Some(90.0), Some(85.0), Some(89.0)));
    assert_eq!((summary.task.as_str(), summary.metric.as_str(), summary.examples), ("sst2", "accuracy", Some(40)));
    let bits = "layers 2/3/4, embedding.word 8, embedding.position 8, embedding.type 8, activations 8";
    assert_eq!(summary.bits, bits);
    let plan = report.plan.as_ref().unwrap();
    assert_eq!((plan.layers.as_slice(), plan.sites.len()), (&[[2, 2, 2, 2, 3, 4].map(Into::into).to_vec()][..], 6));
    assert_eq!(plan.setting, "groups in the layers: 128, neuron; ranges: mse");
    assert_eq!(plan.others.last().map(|other| (other.site.as_str(), other.bits)), Some(("activations", 8.into())));
    let layers: Vec<usize> = report.landscape.as_ref().unwrap().layers.iter().map(|layer| layer.layer).collect();
    assert_eq!(layers, [0, 5]);
    assert!(report.attention.as_ref().unwrap().layers[0].heads[1].is_nan());
    let names: Vec<&str> = report.training.iter().map(|run| run.name.as_str()).collect();
    assert_eq!(names, ["Fine-tuning", "Quantization-aware training"], "in the order they happened");
    let epochs: Vec<(f64, f64)> = report.training[1].evaluations.iter().map(|e| (e.epoch, e.value)).collect();
    assert_eq!(epochs, [(0.0, 85.0), (1.0, 89.0)]);
    assert_eq!(report.classes.as_ref().unwrap().rows[1].after.unwrap().f1.to_bits(), 0.86f64.to_bits());
    assert!(report.provenance.facts.iter().any(|fact| fact.name == "seed" && fact.value == "7"));
    assert!(report.provenance.facts.iter().any(|fact| fact.group == "Analysis" && fact.value == "lanczos"));
    assert!(report.render().html.contains("It has not converged."));
}

#[test]
fn a_quantized_model_that_was_not_trained_does_not_claim_it_was() {
    let folder = tempfile::tempdir().unwrap();
    write(
        folder.path(),
        "metrics.json",
        &metrics(85.0, 0, r#""before":{"full_precision":90.0,"post_training":85.0},"#),
    );
    let summary = read::directory(folder.path()).unwrap().summary.unwrap();
    assert_eq!((summary.full_precision, summary.post_training, summary.trained), (Some(90.0), Some(85.0), None));
}

#[test]
fn bad_files_are_named_and_something_can_be_done() {
    struct Case {
        name: &'static str,
        text: String,
        says: &'static str,
    }
    let case = |name, text: &str, says| Case { name, text: text.to_owned(), says };
    let cases = [
        case("sensitivity.json", "{", "sensitivity.json:1:1: not valid JSON: EOF"),
        case("sensitivity.json", "[]", "not a qbert-sensitivity file: it names no format"),
        case("sensitivity.json", "{\"format\":\"qbert-landscape\",\"version\":1}", "its format is \"qbert-landscape\""),
        case("landscape.json", "{\"format\":\"qbert-landscape\",\"version\":2}", "version 2 of qbert-landscape"),
        case(
            "attention.json",
            "{\"format\":\"qbert-attention-kl\",\"version\":1,\"layers\":[{\"layer\":-1}]}",
            "layers[0].layer: invalid value",
        ),
        case("train.jsonl", "{\"step\":1}\nnonsense\n", "train.jsonl:2: "),
        case("metrics.json", "{\"dev\":3}", "metrics.json:1:8: dev: invalid type"),
        case("plan.toml", "version = 3", "plan.toml"),
        case("other.txt", "", "nothing to report here"),
    ];
    for Case { name, text, says } in cases {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), name, &text);
        let error = read::directory(folder.path()).unwrap_err();
        assert!(error.to_string().contains(says), "{name}: {error}");
        assert!(error.hint().is_some(), "{name}: {error}");
    }
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(read::directory(&folder.path().join("absent")), Err(Error::Read { .. })));
    write(folder.path(), "landscape-a.json", &landscape("abc", 0));
    write(folder.path(), "landscape-b.json", &landscape("xyz", 1));
    let error = read::directory(folder.path()).unwrap_err();
    assert!(matches!(&error, Error::Mixed { found, expected, .. } if found == "xyz" && expected == "abc"), "{error}");
}

#[test]
fn sections_of_their_own_files_keep_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    write(root, "summary.json", r#"{"format":"qbert-summary","version":1,"task":"mine","metric":"f1","trained":80.5}"#);
    write(root, "models.json", r#"{"format":"qbert-models","version":1,"points":[{"name":"a","bytes":10,"value":1}]}"#);
    write(root, "changes.json", r#"{"format":"qbert-changes","version":1,"compared":5,"flipped":1}"#);
    write(root, "provenance.json", r#"{"format":"qbert-provenance","version":1,"commands":["qbert run"]}"#);
    let report = read::directory(root).unwrap();
    assert_eq!(report.summary.unwrap().trained, Some(80.5));
    assert_eq!(report.models.unwrap().points[0].name, "a");
    assert_eq!(report.changes.unwrap().compared, 5);
    assert_eq!(report.provenance.commands, ["qbert run"]);
}

#[test]
fn a_run_has_its_classes_from_the_packed_model_and_nothing_from_what_was_put_away() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let stage = |name: &str, f1: f64| {
        format!(
            r#"{{"stage":"{name}","model":"m","value":90.0,"details":{{"per_class":[
{{"name":"no","precision":0.9,"recall":0.8,"f1":{f1},"support":20}}]}}}}"#
        )
    };
    let stages = [stage("full precision", 0.91), stage("quantized", 0.5), stage("packed", 0.88)].join(",");
    let text = format!(
        r#"{{"format":"qbert-metrics","version":1,"task":"sst2","metric":"accuracy","examples":40,"stages":[{stages}]}}"#
    );
    write(root, "metrics.json", &text);
    write(root, "finetuned/metrics.json", &metrics(88.0, 2, ""));
    write(root, "old/plan.toml", PLAN);
    write(root, "old/train.jsonl", "{\"step\":1,\"epoch\":1,\"loss\":1,\"rate\":1}\n");
    let report = read::directory(root).unwrap();
    assert!(report.plan.is_none() && report.training.is_empty(), "{report:?}");
    let row = &report.classes.unwrap().rows[0];
    let f1 = |scores: &Option<qbert_report::Scores>| scores.unwrap().f1.to_bits();
    assert_eq!((f1(&row.before), f1(&row.after)), (0.91f64.to_bits(), 0.88f64.to_bits()));
    write(root, "metrics.json", "{\"format\":\"qbert-metrics\",\"version\":2,\"stages\":[]}");
    assert!(read::directory(root).unwrap_err().to_string().contains("version 2"));
}
