//! `qbert run` as a user meets it: the whole way, killed anywhere, stopped by Ctrl-C, with an edited plan, with other
//! settings, and with input that is wrong.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::home::Home;
use common::{fail, files, has_logged, kill_when, prepare, prepare_with, qbert, stderr, succeed};
use qbert_model::Head;
use serde_json::Value;

/// Everything at its smallest, and nothing measured that differs from run to run.
const RUN: &str = "run --model model --task sst2 --train train.tsv --dev dev.tsv --max-len 16 --epochs 3 --batch 8 \
                   --lr 2e-3 --runs 2 --max-examples 10 --qat-epochs 2 --qat-lr 1e-3 --no-speed";

const FILES: [&str; 20] = [
    "README.md",
    "attention-kl.json",
    "changes.json",
    "checkpoint/metrics.json",
    "checkpoint/train.jsonl",
    "config.json",
    "finetuned/model.safetensors",
    "landscape.json",
    "metrics.json",
    "model.qbert",
    "models.json",
    "plan.toml",
    "provenance.json",
    "report.html",
    "report.json",
    "report.md",
    "run.json",
    "sensitivity.json",
    "summary.json",
    "vocab.txt",
];

fn same(ours: &BTreeMap<String, Vec<u8>>, theirs: &BTreeMap<String, Vec<u8>>) {
    assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
    for (name, bytes) in ours {
        assert!(theirs[name] == *bytes, "{name} differs");
    }
}

fn command(home: &Path, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qbert"));
    command.current_dir(home).args(arguments.split_whitespace()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn killed_at_every_stage_and_started_again_it_ends_with_the_same_files() {
    let whole = tempfile::tempdir().unwrap();
    prepare(whole.path());
    let said = succeed(whole.path(), &format!("{RUN} --threads 1"));
    for part in
        ["run/model.qbert", "method      Q-BERT mixed precision", "2/3-bit weights (1 of 2 layers at 3)", "next\n"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    let expected = files(&whole.path().join("run"));
    for name in FILES {
        assert!(expected.contains_key(name), "{name} is missing");
    }

    // One run, killed once at each of these moments: in every stage and at its edges.
    let home = tempfile::tempdir().unwrap();
    prepare(home.path());
    let run = home.path().join("run");
    let there = |name: &'static str| Box::new(move |run: &Path| run.join(name).exists());
    let logged = |folder: &'static str, steps| Box::new(move |run: &Path| has_logged(&run.join(folder), steps));
    type Moment = Box<dyn Fn(&Path) -> bool>;
    let moments: Vec<Moment> = vec![
        there("run.json"),
        logged("finetuned", 1),
        logged("finetuned", 40),
        logged("finetuned", 89),
        there("analysis.safetensors"),
        there("sensitivity.json"),
        there("plan.toml"),
        logged("checkpoint", 0),
        logged("checkpoint", 1),
        logged("checkpoint", 35),
        logged("checkpoint", 62),
        there("model.qbert"),
        there("changes.json"),
        there("metrics.json"),
        there("landscape.json"),
        there("attention-kl.json"),
        there("summary.json"),
        there("README.md"),
        there("report.html"),
    ];
    let kills = moments
        .iter()
        .filter(|moment| kill_when(&mut command(home.path(), &format!("{RUN} --threads 2")), || moment(&run)));
    let kills = kills.count();
    assert!(kills > 12, "only {kills} were killed: they were faster than the watching");
    succeed(home.path(), &format!("{RUN} --threads 1"));
    same(&files(&run), &expected);

    // And one that is never left alone for long.
    let home = tempfile::tempdir().unwrap();
    prepare(home.path());
    let mut patience = Duration::from_millis(40);
    loop {
        let begun = Instant::now();
        if !kill_when(&mut command(home.path(), &format!("{RUN} --threads 1")), || begun.elapsed() > patience) {
            break;
        }
        patience += patience / 3;
    }
    same(&files(&home.path().join("run")), &expected);
}

#[test]
fn what_is_done_is_not_done_again() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    prepare(home);
    let first = RUN.replace(" --no-speed", "").replace("--epochs 3", "--epochs 12");
    let printed: Value = serde_json::from_str(&succeed(home, &format!("{first} --json -q"))).unwrap();
    assert_eq!((&printed["task"], &printed["metric"]), (&"sst2".into(), &"accuracy".into()));
    let reached = printed["trained"].as_f64().or(printed["post_training"].as_f64());
    assert!(reached.unwrap() > 90.0, "{printed}");
    assert!(printed["speed"]["quantized"].as_f64().unwrap() > 0.0, "{printed}");
    assert_eq!(printed["packed"], "run/model.qbert");
    let before = files(&home.join("run"));
    let again = qbert(home, &first);
    let said = stderr(&again);
    assert_eq!(said.matches("there already").count(), 8, "{said}");
    same(&files(&home.join("run")), &before);

    // The metrics are those of the verbs, and the page is that of `qbert report`.
    let metrics = json(&home.join("run/metrics.json"));
    let value = |model: &str| {
        let found = succeed(home, &format!("eval {model} --task sst2 --data dev.tsv --max-len 16 --json"));
        serde_json::from_str::<Value>(&found).unwrap()["value"].clone()
    };
    for (index, model) in [(0, "run/finetuned"), (2, "run/checkpoint"), (3, "run/model.qbert")] {
        assert_eq!(metrics["stages"][index]["value"], value(model), "{model}");
    }
    succeed(home, "report run --out shown");
    assert!(std::fs::read(home.join("shown/report.html")).unwrap() == before["report.html"]);
    succeed(home, "pack run/checkpoint --task sst2 --out packed.qbert");
    let predict = |model: &str| succeed(home, &format!("predict {model} good bad --json"));
    assert_eq!(predict("packed.qbert"), predict("run/model.qbert"));

    // Other widths: fine-tuning and analysis stay, what depends on the plan is done again, what was there is kept.
    let said = stderr(&qbert(home, &format!("{first} --bits 2,4")));
    assert!(said.contains("[3/8] plan again: `bits` was [2,3], now it is [2,4]"), "{said}");
    assert_eq!(said.matches("there already").count(), 2, "{said}");
    assert!(home.join("run/old/plan.toml").exists() && home.join("run/old/checkpoint/model.safetensors").exists());
    let report = json(&home.join("run/report.json"));
    assert!(report["summary"]["bits"].as_str().unwrap().starts_with("2/4-bit"), "{report}");
    assert_eq!(report["training"].as_array().unwrap().len(), 2, "what was put away is not reported");
}

#[test]
fn an_edited_plan_is_used_and_never_overwritten() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    prepare(home);
    succeed(home, RUN);
    let plan = std::fs::read_to_string(home.join("run/plan.toml")).unwrap();
    // A comment changes nothing.
    std::fs::write(home.join("run/plan.toml"), format!("# mine\n{plan}")).unwrap();
    let said = stderr(&qbert(home, RUN));
    assert!(said.contains("[3/8] plan: plan.toml was edited by hand: used as it is"), "{said}");
    assert!(said.contains("[4/8] quantize: there already"), "{said}");
    let edited = plan.replacen("query = 2", "query = 8", 1);
    assert_ne!(edited, plan);
    std::fs::write(home.join("run/plan.toml"), &edited).unwrap();
    let output = qbert(home, RUN);
    let said = stderr(&output);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("[2/8] analyze: there already") && said.contains("[4/8] quantize again: `plan.toml` has changed"),
        "{said}"
    );
    assert_eq!(std::fs::read_to_string(home.join("run/plan.toml")).unwrap(), edited);
    let inspected = succeed(home, "inspect run/model.qbert --json");
    let inspected: Value = serde_json::from_str(&inspected).unwrap();
    let queries = inspected["sites"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|site| site["site"].as_str().unwrap().ends_with(".query") && site["bits"] == 8);
    assert_eq!(queries.count(), 1, "{inspected}");
    let provenance = std::fs::read_to_string(home.join("run/provenance.json")).unwrap();
    assert!(provenance.contains("edited by hand"), "{provenance}");
    assert!(provenance.contains(qbert_kernels::Machine::here().name()), "{provenance}");

    let refused = fail(home, &format!("{RUN} --bits 4"));
    assert!(refused.contains("plan.toml was edited by hand, but another plan is asked for"), "{refused}");
    std::fs::write(home.join("run/plan.toml"), edited.replacen("query = 8", "query = 9", 1)).unwrap();
    let wrong = fail(home, RUN);
    assert!(wrong.contains("run/plan.toml:"), "the line is named: {wrong}");
    std::fs::remove_file(home.join("run/plan.toml")).unwrap();
    succeed(home, RUN);
    assert_eq!(std::fs::read_to_string(home.join("run/plan.toml")).unwrap(), plan, "deleted, it is made anew");
}

#[test]
fn a_model_with_the_tasks_head_is_not_finetuned_and_one_width_needs_no_analysis() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    prepare_with(home, Head::SequenceClassification, &["negative", "positive"]);
    let bits = format!("{RUN} --bits 4 --embedding-bits 8 --no-figures --no-distill");
    let said = stderr(&qbert(home, &bits));
    assert!(said.contains("[1/8] finetune: not needed: the model has a head for this task"), "{said}");
    assert!(said.contains("[2/8] analyze: not needed") && said.contains("[7/8] figures: not asked for"), "{said}");
    assert!(!home.join("run/finetuned").exists() && !home.join("run/sensitivity.json").exists());
    let summary = json(&home.join("run/summary.json"));
    assert_eq!(summary["bits"], "4-bit weights, 8-bit embedding, 8-bit activations");
    assert!(summary["method"].as_str().unwrap().starts_with("Q-BERT, "), "{summary}");
    // Asked for, it is fine-tuned all the same.
    let said = stderr(&qbert(home, &format!("{bits} --finetune")));
    assert!(said.contains("[1/8] finetune\n") && home.join("run/finetuned/model.safetensors").exists(), "{said}");

    // The same head is of no use for other labels.
    let own =
        std::fs::read_to_string(home.join("train.tsv")).unwrap().replace("\t0", "\tpoor").replace("\t1", "\tfine");
    std::fs::write(home.join("own.tsv"), own).unwrap();
    let own = RUN.replace("sst2", "classify").replace("train.tsv", "own.tsv").replace("dev.tsv", "own.tsv");
    let output = qbert(home, &format!("{own} --out other --bits 4 --no-figures --license mit --language en,de"));
    let said = stderr(&output);
    assert!(output.status.success() && said.contains("[1/8] finetune\n"), "{said}");
    let card = std::fs::read_to_string(home.join("other/README.md")).unwrap();
    assert!(card.starts_with("---\nlibrary_name: qbert\npipeline_tag: text-classification\n"), "{card}");
    assert!(card.contains("Labels: `fine`, `poor`."), "{card}");
    assert!(card.contains("\nlicense: \"mit\"\nlanguage:\n  - \"en\"\n  - \"de\"\n"), "{card}");
    let silent = std::fs::read_to_string(home.join("run/README.md")).unwrap();
    assert!(!silent.contains("\nlicense:") && silent.contains("## Licence"), "{silent}");
}

#[cfg(unix)]
#[test]
fn ctrl_c_saves_the_state_and_says_how_to_go_on() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    prepare(home);
    let long = RUN.replace("--epochs 3", "--epochs 40");
    let finetune =
        "finetune --model model --task sst2 --train train.tsv --dev dev.tsv --max-len 16 --epochs 40 --out tuned";
    for (arguments, folder, hint) in [
        (long.as_str(), "run/finetuned", "to continue: qbert run --model model"),
        (finetune, "tuned", "--out tuned --resume"),
    ] {
        let child = command(home, arguments).spawn().unwrap();
        while !has_logged(&home.join(folder), 5) {
            std::thread::sleep(Duration::from_millis(2));
        }
        let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        let output = child.wait_with_output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(130), "{said}");
        assert!(said.contains("stopping after this step") && said.contains(hint), "{said}");
        assert!(home.join(folder).join("resume.safetensors").exists());
    }
    // Asked to do less it starts that stage over, and keeps what was there.
    succeed(home, RUN);
    assert!(home.join("run/old/finetuned/resume.safetensors").exists());
}

#[test]
fn what_cannot_be_done_is_refused_before_anything_is_written() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    prepare(home);
    std::fs::write(home.join("bad.tsv"), "sentence\tlabel\ngood film\tmaybe\n").unwrap();
    std::fs::write(home.join("plan.toml"), "version = 1\n").unwrap();
    let cases = [
        (RUN.replace("train.tsv", "nowhere.tsv"), "nowhere.tsv"),
        (RUN.replace("dev.tsv", "bad.tsv"), "bad.tsv:2: "),
        (RUN.replace("sst2", "sst"), "did you mean \"sst2\"?"),
        (RUN.replace("--model model", "--model ./modle"), "`./modle` is not a directory"),
        (RUN.replace("--max-len 16", "--max-len 17"), "--max-len is 17: the model has 16 positions"),
        (RUN.replace("--task sst2", "--task classify --label mark"), "no column"),
        (RUN.replace(" --dev dev.tsv", ""), "--dev is missing"),
        (RUN.replace(" --dev dev.tsv", "").replace("--task sst2", ""), "--task and --dev are missing"),
        (RUN.replace("--epochs 3", "--epochs 0"), "--epochs is 0"),
        (
            RUN.replace("--epochs 3", "--epochs -1"),
            "'-1' for '--epochs <EPOCHS>': it must be a whole number, 0 or more",
        ),
        (RUN.replace("--lr 2e-3", "--lr -1"), "--lr is -1: it must be above 0 and below 1"),
        (RUN.replace("--qat-lr 1e-3", "--qat-lr 5"), "--qat-lr is 5: it must be above 0 and below 1"),
        (format!("{RUN} --bits 9"), "for '--bits <N[,N]>': use 1 to 8 bits"),
        (format!("{RUN} --bits 2 --high 1"), "--high: one width leaves nothing to choose from"),
        (format!("{RUN} --bits 2,3,4"), "nothing says how many layers"),
        (format!("{RUN} --high 3"), "--high: "),
        (format!("{RUN} --size 0.001"), "--size: "),
        (format!("{RUN} --budget 0.001"), "--budget: "),
        (format!("{RUN} --groups 500"), "500"),
        (format!("{RUN} --plan plan.toml"), "plan.toml"),
        (format!("{RUN} --plan plan.toml --bits 2"), "cannot be used with"),
        (RUN.replace("--max-examples 10", "--max-examples many"), "--max-examples is many"),
        (format!("{RUN} --bitts 2"), "'--bits'"),
    ];
    for (arguments, expected) in cases {
        let said = fail(home, &arguments);
        assert!(said.contains(expected) && !said.contains("panicked"), "{arguments}: {said}");
    }
    assert!(!home.join("run").exists(), "nothing is written");

    std::fs::create_dir(home.join("mine")).unwrap();
    std::fs::write(home.join("mine/notes.txt"), "dear to me").unwrap();
    let foreign = fail(home, &format!("{RUN} --out mine"));
    assert!(foreign.contains("it holds `notes.txt` but no run.json"), "{foreign}");
    let file = fail(home, &format!("{RUN} --out train.tsv"));
    assert!(file.contains("train.tsv: this is a file"), "{file}");
    // Another run is never mixed with this one.
    std::fs::create_dir(home.join("run")).unwrap();
    std::fs::write(home.join("run/run.json"), r#"{"format":"qbert-run","version":1,"run":{"task":"ner"},"stages":{}}"#)
        .unwrap();
    let other = fail(home, RUN);
    assert!(other.contains("this directory holds another run: `task` was \"ner\", now it is \"sst2\""), "{other}");
}

#[test]
fn without_a_network_the_quickstart_says_what_to_do_instead() {
    let config = r#"{"model_type": "bert", "vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 2,
        "num_attention_heads": 2, "intermediate_size": 12, "max_position_embeddings": 16, "type_vocab_size": 2}"#;
    let home = Home::new(config, |values| values.fill(0.5));
    let said = home.run("run");
    assert!(said.contains("error: cannot fetch") && said.contains("hint: any BERT works instead"), "{said}");
    assert!(said.ends_with("[exit 1]\n\n"), "{said}");
    // With a model of one's own it is the data that is missing.
    let said = home.run("run --model model");
    assert!(said.contains("hint: any labelled text works instead"), "{said}");
    assert!(!home.path("run").exists());
}

#[test]
fn help_completions_and_loudness() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let help = succeed(home, "--help");
    assert!(help.contains("130 interrupted") && help.contains("qbert run "), "{help}");
    for (shell, part) in [("bash", "_qbert()"), ("zsh", "#compdef qbert"), ("fish", "complete -c qbert")] {
        let script = succeed(home, &format!("completions {shell}"));
        assert!(script.contains(part) && script.contains("qat-epochs"), "{shell}");
    }
    assert!(fail(home, "-q -v fetch minilm").contains("cannot be used with"));
    prepare(home);
    let eval = "eval model --task sst2 --data dev.tsv --max-len 16";
    let loud = stderr(&qbert(home, &format!("{eval} -v --threads 1")));
    assert!(loud.contains("computing with ") && loud.contains("on 1 threads"), "{loud}");
}
