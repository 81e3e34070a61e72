//! What is trained is what is run: a packed model's scores are those of the fake-quantized model it was made from, but for
//! the rounding of sums, for every head and mixture of widths; and the verbs around a packed model.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::path::Path;
use std::process::{Command, Output, Stdio};

use qbert::kernels::Compute;
use qbert::model::{Config, Head, Layout, Parameters, TokenizerFiles, write_checkpoint};
use qbert::packing::{Calibration, Packing};
use qbert::quant::{ActivationPlan, EmbeddingPlan, GroupSpec, Plan, Precision, RangeMethod, Site, SitePlan};
use qbert::runtime::{Scope, Session, SessionOptions, Tokens};
use qbert::train::Batch;
use qbert::train::bert::{Activations, Bert, Mode, Pass};
use qbert::train::qat::{Quantization, QuantizedPass};
use qbert::train::random::Stream;
use serde_json::Value;

const VOCABULARY: usize = 60;

fn bits(number: i64) -> Precision {
    Precision::from_number(number).unwrap()
}

/// Widths of the encoder's matrices in turn, of the tables, and of activations.
type Widths = (&'static [i64], [i64; 3], i64);

const WIDTHS: [Widths; 9] = [
    (&[2, 3], [4, 8, 8], 8),
    (&[1], [1, 1, 1], 8),
    (&[8], [8, 8, 8], 8),
    (&[1, 2, 3, 4, 5, 6, 7, 8, 32], [3, 5, 32], 8),
    (&[32, 4, 32, 8, 32, 2], [32, 1, 7], 8),
    (&[32], [32, 32, 32], 8),
    (&[2, 8, 32, 3], [8, 6, 2], 32),
    (&[1, 4, 5, 6, 7], [4, 4, 4], 32),
    (&[32], [32, 32, 32], 32),
];

fn plan(layers: usize, (matrices, tables, activations): Widths) -> Plan {
    let range = RangeMethod::Mse;
    let mut plan = Plan::uniform(layers, bits(8), GroupSpec::Count(8), range);
    let groups = [GroupSpec::Count(8), GroupSpec::PerHead, GroupSpec::PerNeuron, GroupSpec::Count(1)];
    let sites = Site::all(layers).filter(|site| site.layer().is_some());
    for ((site, &width), groups) in sites.zip(matrices.iter().cycle()).zip(groups.into_iter().cycle()) {
        *plan.site_mut(site).unwrap() = SitePlan { bits: bits(width), groups, range };
    }
    let table = |width| SitePlan { bits: bits(width), groups: GroupSpec::Count(5), range };
    let [word, position, token_type] = tables.map(table);
    plan.with_embedding(EmbeddingPlan { word, position, token_type })
        .with_activation(ActivationPlan { bits: bits(activations), range: RangeMethod::MinMax })
}

/// A checkpoint of random weights.
fn checkpoint(directory: &Path, layers: usize, head: Head) -> (Config, Parameters) {
    let text = format!(
        r#"{{"architectures": ["{}"], "model_type": "bert", "vocab_size": {VOCABULARY}, "hidden_size": 40,
            "num_hidden_layers": {layers}, "num_attention_heads": 4, "intermediate_size": 72,
            "max_position_embeddings": 80, "type_vocab_size": 2, "id2label": {{"0": "O", "1": "B-X", "2": "I-X"}}}}"#,
        head.architecture()
    );
    let config = Config::parse(text.as_bytes(), Path::new("config.json")).unwrap();
    let labels = if head == Head::QuestionAnswering { Vec::new() } else { config.labels.clone() };
    let layout = Layout::new(&config, head, if labels.is_empty() { 2 } else { 3 }, false);
    let mut parameters = Parameters::zeros(layout.clone().into());
    Stream::new(3, "test", 0).fill_normal(parameters.values_mut(), 0.15);
    for parameter in layout.parameters().iter().filter(|parameter| parameter.name.contains("LayerNorm.weight")) {
        parameters.values_mut()[parameter.span.clone()].iter_mut().for_each(|gamma| *gamma += 1.0);
    }
    let words: Vec<String> = (5..VOCABULARY).map(|index| format!("w{index}")).collect();
    let tokens = directory.join("tokenizer");
    std::fs::create_dir_all(&tokens).unwrap();
    let vocabulary = format!("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n{}\n", words.join("\n"));
    std::fs::write(tokens.join("vocab.txt"), vocabulary).unwrap();
    let files = TokenizerFiles::read(&tokens).unwrap();
    write_checkpoint(&directory.join("model"), &config, &parameters, &labels, &files).unwrap();
    (config, parameters)
}

/// Sequences of many lengths.
fn batch(seed: u64) -> Batch {
    let (mut stream, mut batch) = (Stream::new(seed, "tokens", 0), Batch::new());
    for length in [1, 2, 17, 33, 64, 80, 5] {
        let ids: Vec<u32> = (0..length).map(|_| stream.below(VOCABULARY) as u32).collect();
        let segments: Vec<u8> = (0..length).map(|index| u8::from(index > length / 2)).collect();
        batch.push(&ids, &segments);
    }
    batch
}

/// Scores of the fake-quantized model and of the packed one, on sequences that nothing was calibrated with.
fn both(directory: &Path, config: &Config, parameters: &Parameters, plan: &Plan) -> (Vec<f32>, Vec<f32>) {
    let compute = Compute::detect(2).unwrap();
    let bert = Bert::new(config, parameters.layout().clone()).unwrap();
    let (learned, asked) = (batch(1), batch(2));
    let mut quantization = Quantization::new(plan.clone(), config, parameters.layout()).unwrap();
    quantization.fit(&compute, parameters.values()).unwrap();
    let mut activations = Activations::for_evaluation();
    let pass = QuantizedPass { compute: &compute, batch: &learned, mode: Mode::Evaluate };
    quantization.forward(&bert, pass, &mut activations).unwrap();
    let pass = Pass { compute: &compute, weights: quantization.quantized(), batch: &asked, mode: Mode::Evaluate };
    match quantization.ranges() {
        Some(mut ranges) => bert.forward_with(pass, Some(&mut ranges), &mut activations),
        None => bert.forward_with(pass, None, &mut activations),
    }
    let data = Calibration::Batches(std::slice::from_ref(&learned));
    let packing = Packing::by_plan(&directory.join("model"), plan.clone(), Some(data), &compute).unwrap();
    let bytes = packing.bytes("test.qbert").unwrap();
    let session = Session::from_bytes("test.qbert", bytes, SessionOptions { threads: 2, max_len: None }).unwrap();
    let tokens = Tokens { ids: &asked.input_ids, segments: &asked.segments, offsets: &asked.offsets };
    (activations.logits.clone(), session.forward(tokens, Scope::All).unwrap().logits().to_vec())
}

/// Differences of scores, ascending.
fn differences(layers: usize, head: Head, widths: Widths) -> Vec<f32> {
    let home = tempfile::tempdir().unwrap();
    let (config, parameters) = checkpoint(home.path(), layers, head);
    let (expected, found) = both(home.path(), &config, &parameters, &plan(layers, widths));
    assert_eq!(expected.len(), found.len());
    let spread = expected.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    assert!(spread > 0.1, "{head:?} {widths:?}: scores of at most {spread} show nothing");
    let mut all: Vec<f32> = expected.iter().zip(&found).map(|(a, b)| (a - b).abs()).collect();
    all.sort_by(f32::total_cmp);
    all
}

/// Fake quantization sums floats, the runtime integers: results differ in their last bits, and where such a bit decides on
/// which side of an edge an activation is rounded, by a whole step. One layer keeps that to the token it happens to; every
/// further one spreads it. (That nothing else differs is shown to the last bit by `qbert-runtime/tests/contract.rs`.)
#[test]
fn packed_scores_are_those_of_the_fake_quantized_model() {
    for head in [Head::SequenceClassification, Head::TokenClassification, Head::QuestionAnswering] {
        for widths in WIDTHS {
            let one = differences(1, head, widths);
            let (middle, worst) = (one[one.len() / 2], one[one.len() - 1]);
            assert!(middle <= 1e-5 && worst <= 0.05, "{head:?} {widths:?}: {middle} in the middle, {worst} at worst");
            let two = differences(2, head, widths);
            let worst = two[two.len() - 1];
            let limit = if widths.2 == 32 { 1e-5 } else { 0.1 };
            assert!(worst <= limit, "{head:?} {widths:?}: two layers differ by {worst}");
        }
    }
}

fn qbert(home: &Path, arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qbert"));
    command.current_dir(home).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn refused(output: &Output, expected: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains(expected) && text.contains("hint: "), "{text}");
}

/// Fine-tuned for a few steps, then quantized without training.
fn quantized(home: &Path) {
    common::prepare(home);
    let data = ["--task", "sst2", "--train", "train.tsv", "--dev", "dev.tsv", "--max-len", "16", "-q"];
    let tuned = ["finetune", "--model", "model", "--out", "tuned", "--epochs", "1"];
    stdout(&qbert(home, &[&tuned[..], &data].concat(), ""));
    let groups = ["--groups", "4", "--embedding-bits", "4,8", "--embedding-groups", "4"];
    let planned = ["plan", "--model", "tuned", "--bits", "3", "--out", "plan.toml", "-q"];
    stdout(&qbert(home, &[&planned[..], &groups].concat(), ""));
    let quantized = ["quantize", "--model", "tuned", "--plan", "plan.toml", "--out", "small", "--epochs", "0"];
    stdout(&qbert(home, &[&quantized[..], &data].concat(), ""));
}

#[test]
fn a_quantized_directory_its_packed_file_and_what_is_asked_of_it() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    quantized(home);
    let run = |arguments: &[&str], input: &str| stdout(&qbert(home, arguments, input));

    // Evaluation: the same labels, and the same probabilities but for rounding.
    let eval = ["--task", "sst2", "--data", "dev.tsv", "--max-len", "16", "--json", "-q", "--predictions"];
    let scores = |model: &str, file: &str| -> Vec<(String, f64)> {
        let report: Value = serde_json::from_str(&run(&[&["eval", model][..], &eval, &[file]].concat(), "")).unwrap();
        assert_eq!(report["examples"], 60);
        let text = std::fs::read_to_string(home.join(file)).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.map(|v| (v["label"].as_str().unwrap().to_owned(), v["probability"].as_f64().unwrap())).collect()
    };
    let (fake, packed) = (scores("small", "fake.jsonl"), scores("small/model.qbert", "packed.jsonl"));
    for (a, b) in fake.iter().zip(&packed) {
        assert!(a.0 == b.0 && (a.1 - b.1).abs() < 1e-3, "{a:?} {b:?}");
    }

    // Packing the directory again gives the same bytes but for the command that is written down.
    let again: Value = serde_json::from_str(&run(&["pack", "small", "--out", "again.qbert", "--json"], "")).unwrap();
    assert_eq!(again["bytes"], std::fs::metadata(home.join("again.qbert")).unwrap().len());
    let inspected: Value = serde_json::from_str(&run(&["inspect", "small/model.qbert", "--json"], "")).unwrap();
    assert_eq!((&inspected["task"], &inspected["verified"]), (&"sst2".into(), &true.into()));
    assert_eq!(inspected["sites"][0]["bits"], 4);
    assert_eq!(inspected["sites"][3]["bits"], 3);
    assert_eq!(inspected["provenance"]["sha256"].as_str().unwrap().len(), 64);
    let parts = ["float_bytes", "tokenizer_bytes", "header_bytes"].map(|part| inspected[part].as_u64().unwrap());
    let sites: u64 = inspected["sites"].as_array().unwrap().iter().map(|s| s["bytes"].as_u64().unwrap()).sum();
    assert_eq!(parts.iter().sum::<u64>() + sites, inspected["file_bytes"].as_u64().unwrap());
    assert!(run(&["inspect", "small/model.qbert"], "").contains("every checksum is right"));

    // Arguments, lines and objects give the same answers.
    let arguments = run(&["predict", "small/model.qbert", "good film", "bad plot", "--json"], "");
    let lines = run(&["predict", "small/model.qbert", "--json"], "good film\nbad plot\n");
    let objects = "{\"text\": \"good film\"}\n\n{\"text\": \"bad plot\"}\n";
    assert_eq!((&arguments, &arguments), (&lines, &run(&["predict", "small/model.qbert", "--jsonl"], objects)));
    let with_id = run(&["predict", "small/model.qbert", "--jsonl"], r#"{"id": 7, "text": "good film"}"#);
    assert!(with_id.starts_with(r#"{"id":7,"label":"#), "{with_id}");
    let human = run(&["predict", "small/model.qbert", "good film"], "");
    assert!(human.contains(" %  good film"), "{human}");
    assert_eq!(run(&["predict", "small/model.qbert"], ""), "");
    let long = run(&["predict", "small/model.qbert", &"good ".repeat(40)], "");
    assert!(long.contains("the last 26 pieces were cut off"), "{long}");

    refused(&qbert(home, &["predict", "small/model.qbert", "--jsonl"], "{\"text\": 3}\n"), "standard input, line 1");
    refused(&qbert(home, &["predict", "small/model.qbert", "--jsonl"], "{}\n{"), "an object that asks nothing");
    refused(&qbert(home, &["predict", "small/model.qbert", "who", "--context", "a"], ""), "not what this model is for");
    refused(&qbert(home, &["predict", "small/vocab.txt", "who"], ""), "not a packed model");
    refused(&qbert(home, &["predict", "small/model.qbert", "a", "--max-len", "17"], ""), "the model takes 1 to 16");
    refused(&qbert(home, &["pack", "tuned", "--out", "x.qbert"], ""), "not a directory that `qbert quantize` wrote");
    let unfit = ["eval", "small/model.qbert", "--task", "ner", "--data", "dev.tsv", "--max-len", "16"];
    refused(&qbert(home, &unfit, ""), "the task ner needs TokenClassification");
}

#[test]
fn a_checkpoint_is_packed_without_training() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    quantized(home);
    let run = |arguments: &[&str]| stdout(&qbert(home, arguments, ""));
    run(&["pack", "tuned", "--bits", "4", "--activation-bits", "32", "--out", "float.qbert"]);
    let calibrated = ["--calibrate", "train.tsv", "--task", "sst2", "--max-len", "16"];
    run(&[&["pack", "tuned", "--plan", "plan.toml", "--out", "by-plan.qbert"][..], &calibrated].concat());
    // The same as `quantize` without training: its plan, its first batches.
    let outputs = ["small/model.qbert", "by-plan.qbert"]
        .map(|model| run(&["predict", model, "good film", "the very bad plot", "--json"]));
    assert_eq!(outputs[0], outputs[1]);
    refused(
        &qbert(home, &["pack", "tuned", "--bits", "4", "--out", "x.qbert"], ""),
        "no data to learn their ranges from",
    );
    let bench = ["bench", "infer", "--model", "model", "--bits", "2,3", "--work", "A", "--budget", "0", "--json", "-q"];
    let failed = qbert(home, &bench, "");
    refused(&failed, "it may have 1 to 16");
}
