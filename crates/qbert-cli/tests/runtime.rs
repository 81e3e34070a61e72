//! What is trained is what is run: a packed model's scores are those of the quantized directory it was made from to the last
//! bit, for every head, mixture of widths and instruction set; and the verbs around a packed model.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::path::Path;
use std::process::{Command, Output, Stdio};

use qbert_kernels::{Compute, Kernels, Threads};
use qbert_model::family::BERT;
use qbert_model::{
    Checkpoint, Config, Family, Head, PackedModel, ParameterLayout, Parameters, TokenizerFiles, write_checkpoint,
};
use qbert_pipeline::packing::Packing;
use qbert_quant::{ActivationPlan, EmbeddingPlan, GroupSpec, Plan, Precision, RangeMethod, Site, SitePlan};
use qbert_runtime::{Scope, Session, SessionOptions, Tokens};
use qbert_train::Batch;
use qbert_train::bert::{Activations, Bert, Mode};
use qbert_train::qat::{Calibration, Quantization, QuantizedPass, files};
use qbert_train::random::Stream;
use serde_json::Value;

const VOCABULARY: usize = 60;

fn bits(number: f64) -> Precision {
    Precision::from_number(number).unwrap()
}

/// Widths of the encoder's matrices in turn, of the tables, and of activations.
type Widths = (&'static [f64], [f64; 3], f64);

const WIDTHS: [Widths; 13] = [
    (&[1.0], [1.0, 1.0, 1.0], 8.0),
    (&[2.0], [4.0, 8.0, 8.0], 8.0),
    (&[3.0], [8.0, 8.0, 8.0], 8.0),
    (&[4.0], [4.0, 4.0, 4.0], 8.0),
    (&[8.0], [8.0, 8.0, 8.0], 8.0),
    (&[2.0, 3.0], [4.0, 8.0, 8.0], 8.0),
    (&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 32.0], [3.0, 5.0, 32.0], 8.0),
    (&[32.0, 4.0, 32.0, 8.0, 32.0, 2.0], [32.0, 1.0, 7.0], 8.0),
    (&[32.0], [32.0, 32.0, 32.0], 8.0),
    (&[2.0, 8.0, 32.0, 3.0], [8.0, 6.0, 2.0], 32.0),
    (&[1.0, 4.0, 5.0, 6.0, 7.0], [4.0, 4.0, 4.0], 32.0),
    (&[32.0], [32.0, 32.0, 32.0], 32.0),
    (&[1.6, 2.0], [1.6, 8.0, 8.0], 8.0),
];

fn plan(layers: usize, (matrices, tables, activations): Widths) -> Plan {
    let range = RangeMethod::Mse;
    let mut plan = Plan::uniform(layers, bits(8.0), GroupSpec::Count(8), range);
    let groups = [GroupSpec::Count(8), GroupSpec::PerHead, GroupSpec::PerNeuron, GroupSpec::Count(1)];
    let sites = Site::all(layers).filter(|site| site.layer().is_some());
    for ((site, &width), groups) in sites.zip(matrices.iter().cycle()).zip(groups.into_iter().cycle()) {
        *plan.site_mut(site).unwrap() = SitePlan::new(bits(width), groups, range);
    }
    // Rows of some tables have ranges of their own.
    let groups = |width: f64| if width > 3.0 { GroupSpec::Count(5) } else { GroupSpec::PerRow };
    let table = |width| SitePlan::new(bits(width), groups(width), range);
    let [word, position, token_type] = tables.map(table);
    plan.with_embedding(EmbeddingPlan { word, position, token_type })
        .with_activation(ActivationPlan { bits: bits(activations), range: RangeMethod::MinMax })
}

/// Tokens of a long sequence: more than those whose probabilities training keeps.
const LONG: usize = 600;

/// A model's configuration: what a family adds to it, or calls otherwise.
fn configuration(family: &Family, head: Head, own: &[(&str, Value)]) -> String {
    let keys = &family.keys;
    let mut config = serde_json::json!({
        "architectures": [family.class(head).architecture], "model_type": family.model_type,
        keys.vocabulary: VOCABULARY, keys.hidden: 40, keys.layers: 2, keys.heads: 4, keys.intermediate: 72,
        keys.positions: 82, "type_vocab_size": 2, "id2label": {"0": "O", "1": "B-X", "2": "I-X"},
    });
    for (key, value) in own {
        config[*key] = value.clone();
    }
    config.to_string()
}

/// A checkpoint of random weights: sides that fill no vector, and sequences that are longer than any short cut.
fn random_checkpoint(directory: &Path, head: Head) {
    let text = configuration(&BERT, head, &[("max_position_embeddings", 80.into())]);
    random_checkpoint_of(directory, head, &text);
}

fn random_checkpoint_of(directory: &Path, head: Head, text: &str) {
    let config = Config::parse(text.as_bytes(), Path::new("config.json")).unwrap();
    let labels = if head == Head::QuestionAnswering { Vec::new() } else { config.labels.clone() };
    let layout = ParameterLayout::new(&config, head, if labels.is_empty() { 2 } else { 3 }, false);
    let mut parameters = Parameters::zeros(layout.clone().into());
    Stream::new(3, "test", 0).fill_normal(parameters.values_mut(), 0.15);
    let is_norm = |name: &str| name.to_lowercase().contains("norm") && name.ends_with("weight");
    for parameter in layout.parameters().iter().filter(|parameter| is_norm(&parameter.name)) {
        parameters.values_mut()[parameter.span.clone()].iter_mut().for_each(|gamma| *gamma += 1.0);
    }
    let words: Vec<String> = (5..VOCABULARY).map(|index| format!("w{index}")).collect();
    let tokens = directory.join("tokenizer");
    std::fs::create_dir_all(&tokens).unwrap();
    let vocabulary = format!("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n{}\n", words.join("\n"));
    std::fs::write(tokens.join("vocab.txt"), vocabulary).unwrap();
    let files = TokenizerFiles::read(&tokens).unwrap();
    write_checkpoint(&directory.join("model"), &config, &parameters, &labels, &files).unwrap();
}

/// A copy of a checkpoint that is committed beside the training engine's tests.
fn committed_checkpoint(directory: &Path, name: &str) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../qbert-train/tests/goldens").join(name);
    std::fs::create_dir(directory.join("model")).unwrap();
    for entry in std::fs::read_dir(source).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, directory.join("model").join(path.file_name().unwrap())).unwrap();
    }
}

/// Sequences of many lengths, as long as the model takes at the most.
fn batch(seed: u64, config: &Config) -> Batch {
    let (mut stream, mut batch) = (Stream::new(seed, "tokens", 0), Batch::new());
    let lengths = [1, 2, 17, 33, 64, 80, 5].map(|length| config.max_positions.min(length));
    for length in lengths.into_iter().chain((config.max_positions >= LONG).then_some(LONG)) {
        let ids: Vec<u32> = (0..length).map(|_| stream.below(config.vocab_size) as u32).collect();
        let segments: Vec<u8> = (0..length).map(|index| u8::from(index > length / 2)).collect();
        batch.push(&ids, &segments);
    }
    batch
}

/// Quantizes the checkpoint in this directory without training.
fn calibrate(directory: &Path, plan: impl Fn(usize) -> Plan) {
    let compute = Compute::detect(2).unwrap();
    let checkpoint = Checkpoint::open(directory).unwrap();
    let (config, mut masters) = (checkpoint.config(), checkpoint.load().unwrap());
    let bert = Bert::new(config, masters.layout().clone()).unwrap();
    let mut quantization = Quantization::new(plan(config.distinct_layers()), config, masters.layout()).unwrap();
    let batches = [batch(1, config)];
    let calibration =
        Calibration { bert: &bert, compute: &compute, batches: &batches, compensate: false, fit_steps: 0 };
    quantization.calibrate(masters.values_mut(), calibration).unwrap();
    files::write(directory, &quantization).unwrap();
}

/// What a quantized directory says, by the training engine.
fn scores_of_directory(directory: &Path, compute: &Compute) -> Vec<f32> {
    let checkpoint = Checkpoint::open(directory).unwrap();
    let (config, masters) = (checkpoint.config(), checkpoint.load().unwrap());
    let bert = Bert::new(config, masters.layout().clone()).unwrap();
    let mut quantization = files::read(directory, config, masters.layout()).unwrap();
    quantization.quantize(compute, masters.values(), None).unwrap();
    let (mut activations, asked) = (Activations::for_evaluation(), batch(2, config));
    let pass = QuantizedPass { compute, batch: &asked, mode: Mode::Evaluate };
    quantization.answer(&bert, pass, &mut activations);
    let evaluated = activations.logits;
    let mut activations = Activations::for_training();
    quantization.answer(&bert, pass, &mut activations);
    assert_eq!(evaluated, activations.logits, "buffers of training");
    evaluated
}

/// What its packed file says, by the runtime.
fn scores_of_file(bytes: &[u8], compute: &Compute) -> Vec<f32> {
    let model = PackedModel::from_bytes("test.qbert", bytes.to_vec()).unwrap();
    let session = Session::new(model, SessionOptions::default().compute(compute.clone())).unwrap();
    let asked = batch(2, session.config());
    let tokens = Tokens { ids: &asked.input_ids, segments: &asked.segments, offsets: &asked.offsets };
    let all = session.forward(tokens, Scope::All).unwrap().logits().to_vec();
    assert_eq!(all, session.forward(tokens, Scope::Scores).unwrap().logits(), "scores only");
    all
}

/// To the last bit, for every instruction set and 1 and 2 threads: both multiply codes with the same kernels, so nothing is
/// left to rounding.
fn assert_faithful(directory: &Path, widths: Widths, what: &str) {
    assert_plan_is_faithful(directory, |layers| plan(layers, widths), &format!("{what} {widths:?}"));
}

fn assert_plan_is_faithful(directory: &Path, plan: impl Fn(usize) -> Plan, what: &str) {
    calibrate(directory, plan);
    let bytes = Packing::quantized(directory).unwrap().bytes("test.qbert").unwrap();
    for kernels in Kernels::supported() {
        for threads in [1, 2] {
            let compute = Compute::new(kernels, Threads::new(threads).unwrap());
            let expected = scores_of_directory(directory, &compute);
            let found = scores_of_file(&bytes, &compute);
            assert_eq!(expected.len(), found.len());
            let spread = expected.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
            assert!(spread > 0.01, "{what}: scores of at most {spread} show nothing");
            let differing = expected.iter().zip(&found).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
            let worst = expected.iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            let name = kernels.name();
            assert_eq!(differing, 0, "{what} {name} {threads}: scores differ, by up to {worst}");
        }
    }
}

#[test]
fn packed_scores_are_those_of_the_quantized_directory() {
    for head in [Head::SequenceClassification, Head::TokenClassification, Head::QuestionAnswering] {
        let home = tempfile::tempdir().unwrap();
        random_checkpoint(home.path(), head);
        for widths in WIDTHS {
            assert_faithful(&home.path().join("model"), widths, &format!("{head:?}"));
        }
    }
}

#[test]
fn packed_scores_with_product_codes_are_those_of_the_quantized_directory() {
    let home = tempfile::tempdir().unwrap();
    random_checkpoint(home.path(), Head::SequenceClassification);
    for width in ["8/6", "8/2", "8/16"] {
        let with_product = |layers: usize| {
            let plan = plan(layers, WIDTHS[1]);
            let mut tables = *plan.embedding();
            tables.word = SitePlan::table(width.parse().unwrap(), tables.word.groups, tables.word.range);
            tables.position = SitePlan::table("8/3".parse().unwrap(), tables.word.groups, RangeMethod::MinMax);
            plan.with_embedding(tables)
        };
        assert_plan_is_faithful(&home.path().join("model"), with_product, width);
    }
}

/// Every family, and every activation: what is new in each is computed by both, with the same bits.
#[test]
fn packed_scores_of_every_family_are_those_of_the_quantized_directory() {
    let widths = [WIDTHS[1], WIDTHS[5], WIDTHS[6], WIDTHS[9], WIDTHS[11]];
    let activations = |family: &'static Family| ["gelu_new", "relu", "silu"].map(|name| (family, name));
    let usual = Family::ALL.into_iter().map(|family| (family, "gelu"));
    for (family, activation) in usual.chain(activations(&BERT)) {
        let own: &[(&str, Value)] = &[
            (family.keys.activation, activation.into()),
            ("embedding_size", 24.into()),
            ("num_hidden_groups", 1.into()),
            ("pad_token_id", 1.into()),
            ("local_attention", 20.into()),
        ];
        let heads = [Head::SequenceClassification, Head::TokenClassification, Head::QuestionAnswering];
        let heads = if activation == "gelu" { &heads[..] } else { &heads[..1] };
        for &head in heads {
            let home = tempfile::tempdir().unwrap();
            random_checkpoint_of(home.path(), head, &configuration(family, head, own));
            for widths in widths {
                let what = format!("{} {activation} {head:?}", family.model_type);
                assert_faithful(&home.path().join("model"), widths, &what);
            }
        }
    }
}

/// Biases where a family usually has none, the mean of all tokens, and a sequence so long that training does not keep its
/// probabilities.
#[test]
fn packed_scores_of_long_sequences_are_those_of_the_quantized_directory() {
    let family = Family::of_model_type("modernbert").unwrap();
    let flags = ["attention_bias", "mlp_bias", "norm_bias", "classifier_bias"].map(|key| (key, true.into()));
    let own =
        [("classifier_pooling", "mean".into()), ("local_attention", 20.into()), (family.keys.positions, LONG.into())];
    let own: Vec<(&str, Value)> = flags.into_iter().chain(own).collect();
    let home = tempfile::tempdir().unwrap();
    let head = Head::SequenceClassification;
    random_checkpoint_of(home.path(), head, &configuration(family, head, &own));
    for widths in [WIDTHS[1], WIDTHS[9], WIDTHS[11]] {
        assert_faithful(&home.path().join("model"), widths, "long sequences");
    }
}

#[test]
fn packed_scores_of_committed_models_are_those_of_the_quantized_directory() {
    for name in ["tiny-sequence", "tiny-token", "tiny-span"] {
        let home = tempfile::tempdir().unwrap();
        committed_checkpoint(home.path(), name);
        for widths in WIDTHS {
            assert_faithful(&home.path().join("model"), widths, name);
        }
    }
}

fn qbert(home: &Path, arguments: &[&str], input: impl AsRef<[u8]>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qbert"));
    command.current_dir(home).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), input.as_ref()).unwrap();
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

/// Points 9b, 9c and 24c: on a packed model of sequences of up to 16 tokens.
fn keeps_going_copies_ids_and_says_what_was_cut(home: &Path) {
    let lines = "{\"id\": 18446744073709551617000, \"text\": \"good film\"}\n{\"id\": 1.50, \"text\": 3}\n{\n\n\
                 {\"text\": \"good good good good good good good good good good good good good good good good\"}\n";
    let output = qbert(home, &["predict", "small/model.qbert", "--jsonl", "--keep-going"], lines);
    let (answers, messages) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let answers: Vec<&str> = answers.lines().collect();
    assert_eq!((output.status.code(), answers.len()), (Some(2), 4), "{messages}");
    assert!(answers[0].starts_with("{\"id\":18446744073709551617000,\"label\":"), "{}", answers[0]);
    assert_eq!(answers[1], "{\"id\":1.50,\"error\":\"`text` is not a string\",\"line\":2}");
    assert!(
        answers[2].starts_with("{\"error\":\"not valid JSON: ") && answers[2].ends_with(",\"line\":3}"),
        "{}",
        answers[2]
    );
    assert!(answers[3].contains("\"removed\":2"), "{}", answers[3]);
    assert!(messages.contains("note: 1 of 4 inputs were cut to fit sequences of 16 tokens"), "{messages}");
    assert!(messages.contains("2 of 4 inputs could not be answered"), "{messages}");

    let mut bytes = b"good film\n\xff\n".to_vec();
    bytes.extend(std::iter::repeat_n(b'x', (16 << 20) + 9));
    bytes.extend_from_slice(b"\nbad plot\n");
    std::fs::write(home.join("lines.txt"), bytes).unwrap();
    let from_file = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_qbert"));
        command.current_dir(home).args(["predict", "small/model.qbert"]).args(arguments);
        command.stdin(std::fs::File::open(home.join("lines.txt")).unwrap()).output().unwrap()
    };
    let output = from_file(&["--keep-going"]);
    let text = String::from_utf8_lossy(&output.stdout);
    let answers: Vec<&str> = text.lines().collect();
    assert!(answers.len() == 4 && answers[3].ends_with("bad plot"), "{text}");
    assert_eq!(answers[1], "error: standard input, line 2: not valid UTF-8");
    assert_eq!(answers[2], "error: standard input, line 3: the line has more than 16 MiB");
    refused(&from_file(&[]), "standard input, line 2: not valid UTF-8");
}

#[test]
fn a_quantized_directory_its_packed_file_and_what_is_asked_of_it() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    quantized(home);
    let run = |arguments: &[&str], input: &str| stdout(&qbert(home, arguments, input));

    // Evaluation: the same labels and the same probabilities.
    let eval = ["--task", "sst2", "--data", "dev.tsv", "--max-len", "16", "--json", "-q", "--predictions"];
    let scores = |model: &str, file: &str| -> Vec<(String, f64)> {
        let report: Value = serde_json::from_str(&run(&[&["eval", model][..], &eval, &[file]].concat(), "")).unwrap();
        assert_eq!(report["examples"], 60);
        let text = std::fs::read_to_string(home.join(file)).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.map(|v| (v["label"].as_str().unwrap().to_owned(), v["probability"].as_f64().unwrap())).collect()
    };
    let (fake, packed) = (scores("small", "fake.jsonl"), scores("small/model.qbert", "packed.jsonl"));
    assert_eq!(fake, packed);

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
    assert!(run(&["inspect", "small/model.qbert"], "").contains("all checksums match"));

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
    keeps_going_copies_ids_and_says_what_was_cut(home);

    refused(&qbert(home, &["predict", "small/model.qbert", "--jsonl"], "{\"text\": 3}\n"), "standard input, line 1");
    refused(&qbert(home, &["predict", "small/model.qbert", "--jsonl"], "{}\n{"), "an object that asks nothing");
    let asked = qbert(home, &["predict", "small/model.qbert", "who", "--context", "a"], "");
    refused(&asked, "a question is not what small/model.qbert is for");
    refused(&asked, "leave --context out");
    refused(&qbert(home, &["predict", "small/vocab.txt", "who"], ""), "not a packed model");
    for (length, problem) in [
        ("17", "--max-len: sequences of up to 17 tokens; the model takes 1 to 16"),
        ("0", "--max-len: sequences of up to 0 tokens; the model takes 1 to 16"),
        ("2", "--max-len: a maximum length of 2 is too small"),
        ("-1", "'--max-len <MAX_LEN>': it must be a whole number, 0 or more"),
    ] {
        let output = qbert(home, &["predict", "small/model.qbert", "a", "--max-len", length], "");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && text.contains(problem), "{text}");
    }
    refused(&qbert(home, &["pack", "tuned", "--out", "x.qbert"], ""), "not a directory that `qbert quantize` wrote");
    let unfit = ["eval", "small/model.qbert", "--task", "ner", "--data", "dev.tsv", "--max-len", "16"];
    refused(&qbert(home, &unfit, ""), "the task ner needs a token classification head");
}

#[test]
fn good_lines_before_a_bad_one_are_answered() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    quantized(home);
    let answers = stdout(&qbert(home, &["predict", "small/model.qbert", "--json"], "good film\nbad plot\n"));
    let stopped = |form: &str, bad: &[u8], problem: &str| {
        let lines: &[u8] = match form {
            "--jsonl" => b"{\"text\": \"good film\"}\n\n{\"text\": \"bad plot\"}\n",
            _ => b"good film\nbad plot\n",
        };
        let after: &[u8] = b"\n{\"text\": \"good film\"}\n";
        let output = qbert(home, &["predict", "small/model.qbert", form], [lines, bad, after].concat());
        let line = lines.iter().filter(|&&byte| byte == b'\n').count() + 1;
        refused(&output, &format!("standard input, line {line}: {problem}"));
        assert_eq!(String::from_utf8_lossy(&output.stdout), answers, "{problem}");
    };
    stopped("--json", b"caf\xe9", "not valid UTF-8");
    stopped("--jsonl", b"{", "not valid JSON");
    stopped("--jsonl", b"3", "not a JSON object");
    stopped("--jsonl", b"{\"txt\": \"good\"}", "an object that asks nothing");
    stopped("--jsonl", b"{\"text\": 5}", "`text` is not a string");
    stopped("--jsonl", b"{\"text\": \"good\", \"text2\": []}", "`text2` is not a string");
    stopped("--jsonl", b"{\"text2\": \"good\"}", "`text2` without `text`");
    stopped("--jsonl", b"{\"words\": [\"good\", 5]}", "`words` is not a list of strings");
    stopped("--jsonl", b"{\"question\": \"good\"}", "`question` without `context`");
    let question = b"{\"question\": \"good\", \"context\": \"bad\"}";
    stopped("--jsonl", question, "a question is not what small/model.qbert is for: this model is for labels of texts");
}

#[test]
fn pairs_and_single_texts_are_told_apart_and_questions_need_a_context() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    quantized(home);
    let predict = |model: &str, arguments: &[&str], input: &str| {
        qbert(home, &[&["predict", model][..], arguments].concat(), input)
    };
    let single = "small/model.qbert";
    refused(
        &predict(single, &["good", "--text2", "bad"], ""),
        "a pair of texts, but small/model.qbert is for single ones",
    );
    let lines = "{\"text\": \"good\"}\n{\"text\": \"good\", \"text2\": \"bad\"}\n";
    let output = predict(single, &["--jsonl"], lines);
    refused(&output, "standard input, line 2: a pair of texts");
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 1);

    // The same weights, said to be for pairs; and a model whose file says nothing.
    for task in ["pair", ""] {
        Packing::quantized(&home.join("small")).unwrap().for_task(task).write(&home.join("other.qbert")).unwrap();
        let output = predict("other.qbert", &["good", "bad"], "");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        assert_eq!(
            text.matches("warning: a text without the second one").count(),
            usize::from(task == "pair"),
            "{text}"
        );
        let pair = predict("other.qbert", &["good", "--text2", "bad"], "");
        assert!(pair.status.success() && pair.stderr.is_empty());
        assert!(predict("other.qbert", &["good", "-q"], "").stderr.is_empty());
    }

    std::fs::create_dir(home.join("questions")).unwrap();
    committed_checkpoint(&home.join("questions"), "tiny-span");
    let pack = ["pack", "questions/model", "--bits", "8", "--activation-bits", "32", "--out", "questions.qbert"];
    stdout(&qbert(home, &pack, ""));
    refused(&predict("questions.qbert", &["who"], ""), "a text is not what questions.qbert is for");
    refused(&predict("questions.qbert", &["who"], ""), "with --context TEXT");
    refused(&predict("questions.qbert", &[], "who\n"), "standard input, line 1: a text is not what");
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
    refused(&failed, "--work: A has sequences of 32 tokens, but the model takes at most 16");
}

#[test]
fn labels_and_provenance_with_escape_sequences_are_printed_escaped() {
    let home = tempfile::tempdir().unwrap();
    // A model whose labels would clear the screen and fake a prompt.
    std::fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/escape.qbert"), home.path().join("m.qbert"))
        .unwrap();
    for arguments in [&["predict", "m.qbert", "hello"][..], &["inspect", "m.qbert"], &["inspect", "m.qbert", "--json"]]
    {
        let output = qbert(home.path(), arguments, "");
        let said = [stdout(&output), String::from_utf8(output.stderr).unwrap()].concat();
        assert!(said.contains("\\u001b"), "{arguments:?}: {said:?}");
        assert!(!said.contains("\nfake"), "a label begins a line of its own: {said:?}");
        assert!(!said.contains(|c: char| c.is_control() && c != '\n' && c != '\t'), "{arguments:?}: {said:?}");
    }
}
