//! Reproducing as a user does it, on the committed tiny model: rows killed without warning and resumed, skipped when they
//! are done, refused when they were made differently, and the page that is made of them.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use qbert_kernels::Compute;
use qbert_paper::{Ranges, RowResult, WeightErrors, render};
use qbert_pipeline::packed_evaluation::evaluate_packed;
use qbert_quant::Precision;
use qbert_runtime::{Session, SessionOptions};
use qbert_tasks::{DataSource, Task};
use qbert_train::evaluate::evaluate;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Pairs whose label is the first word of the second text, and sensitivities of the tiny model's three layers.
fn prepare(home: &Path) {
    const LABELS: [&str; 3] = ["entailment", "neutral", "contradiction"];
    const WORDS: [&str; 8] = ["ba", "bi", "bu", "da", "di", "du", "fa", "fi"];
    for (name, count, shift) in [("train.tsv", 48, 0), ("dev.tsv", 30, 5)] {
        let mut text = "index\tsentence1\tsentence2\tgold_label\n".to_owned();
        for i in 0..count {
            let filler = |k: usize| WORDS[(i * 5 + k * 3 + shift) % WORDS.len()];
            let label = (i * 7 + shift) % 3;
            let (first, second) = (format!("{} {}", filler(0), filler(1)), format!("{} {}", WORDS[label], filler(2)));
            writeln!(text, "{i}\t{first}\t{second}\t{}", LABELS[label]).unwrap();
        }
        std::fs::write(home.join(name), text).unwrap();
    }
    let layer = |layer: usize, mean: f64| serde_json::json!({ "layer": layer, "mean": mean, "std": 0.5 });
    let sensitivity = serde_json::json!({
        "format": "qbert-sensitivity", "version": 1, "task": "mnli",
        "layers": [layer(0, 1.0), layer(1, 3.0), layer(2, 2.0)],
    });
    std::fs::write(home.join("sensitivity.json"), sensitivity.to_string()).unwrap();
}

fn reproduce(home: &Path, out: &str, more: &[&str]) -> Command {
    let mut command = without_sensitivities(home, out, more);
    command.args(["--sensitivity", "sensitivity.json"]);
    command
}

fn without_sensitivities(home: &Path, out: &str, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qbert-paper"));
    command.current_dir(home).args(["reproduce", "--task", "mnli", "--train", "train.tsv", "--dev", "dev.tsv"]);
    command.arg("--model").arg(root().join("crates/qbert-train/tests/goldens/tiny-sequence"));
    // The golden model calls its outputs LABEL_0 to LABEL_2.
    command.args(["--labels", "contradiction,entailment,neutral"]);
    command.args(["--max-len", "22", "--batch", "4", "--lr", "1e-3", "--out", out]).args(more);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    output
}

/// Two rows, 12 steps an epoch.
const ROWS: [&str; 6] = ["--rows", "directq-4", "qbert-mp-2-3", "--ranges", "min-max", "--steps=150"];
const MIXED: &str = "qbert-mp-2-3.min-max.seed1";

#[test]
fn two_rows_killed_at_any_moment_and_resumed_end_with_the_same_bytes() {
    let home = tempfile::tempdir().unwrap();
    prepare(home.path());
    succeed(&mut reproduce(home.path(), "whole/results", &[&ROWS[..], &["--threads", "1"]].concat()));
    let mut kills = 0;
    // Before the first step, in the first epoch, after some epochs, and near the end (150 steps, 12 to an epoch).
    for (round, lines) in [vec![0, 5], vec![40, 100], vec![160]].into_iter().enumerate() {
        let out = format!("killed-{round}/results");
        for line in lines {
            let mut command = reproduce(home.path(), &out, &[&ROWS[..], &["--threads", "2"]].concat());
            // Ctrl-C in one place, which saves the state; without warning in the others.
            let signal = if line == 100 { "-INT" } else { "-KILL" };
            kills += usize::from(kill_at(&mut command, &home.path().join(&out).join("mnli"), line, signal));
        }
        succeed(&mut reproduce(home.path(), &out, &[&ROWS[..], &["--threads", "2"]].concat()));
        for id in ["directq-4.min-max.seed1", MIXED] {
            let bytes = |out: &str| std::fs::read(home.path().join(format!("{out}/mnli/{id}.json"))).unwrap();
            assert!(bytes(&out) == bytes("whole/results"), "{id}, round {round}");
            assert!(!home.path().join(format!("{out}/mnli/{id}.partial")).exists(), "nothing is left of {id}");
        }
    }
    assert!(kills > 0, "no run was killed: all were faster than the watching");

    let result = RowResult::read(&home.path().join(format!("whole/results/mnli/{MIXED}.json"))).unwrap();
    let training = result.training.as_ref().unwrap();
    assert_eq!((training.steps, training.epochs, training.sequences), (150, 12.5, 48));
    // Twelve whole epochs and half of one were judged; the last is the last.
    assert_eq!(result.epochs.len(), 13);
    assert_eq!(result.last.as_ref(), result.epochs.last());
    assert_eq!((result.examples, result.counted, result.metric.as_str()), (30, 30, "accuracy"));
    // A third of the layers, as the paper's plan for MNLI has it: the most sensitive one.
    assert_eq!(result.settings.bits.attention, [2, 3, 2].map(|bits| Precision::from_number(bits).unwrap()));
    let lost = result.full_precision["accuracy"] - result.last.as_ref().unwrap().metrics["accuracy"];
    assert_eq!(result.drop.last.as_ref().unwrap()["accuracy"], lost);
    assert!(result.sizes.file_bytes > 0 && result.sizes.compression.encoder > 1.0);
    for part in ["--rows qbert-mp-2-3 ", "--ranges min-max", "--seeds 1", "--steps 150", "--train train.tsv"] {
        assert!(result.command.contains(part), "{}", result.command);
    }
    assert!(!result.command.contains('/'), "no directories: {}", result.command);
}

/// Starts the command and kills it when a row in `directory` has logged this many lines; false if it was done before.
fn kill_at(command: &mut Command, directory: &Path, lines: usize, signal: &str) -> bool {
    let mut child = command.spawn().unwrap();
    let log = directory.join(format!("{MIXED}.partial/train.jsonl"));
    loop {
        if std::fs::read(&log).is_ok_and(|log| log.iter().filter(|&&byte| byte == b'\n').count() >= lines) {
            let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
            assert!(sent.success(), "kill {signal}");
            let output = child.wait_with_output().unwrap();
            if signal == "-INT" && !output.status.success() {
                assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
                assert!(stderr(&output).contains("to continue: qbert-paper reproduce"), "{}", stderr(&output));
            }
            return true;
        }
        if child.try_wait().unwrap().is_some() {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", stderr(&output));
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn rows_that_are_done_are_skipped_and_other_settings_are_refused() {
    let home = tempfile::tempdir().unwrap();
    prepare(home.path());
    let rows = ["--rows", "directq-4", "--ranges", "min-max"];
    let run = |more: &[&str]| reproduce(home.path(), "results", &[&rows[..], more].concat());
    let path = home.path().join("results/mnli/directq-4.min-max.seed1.json");
    let list = |more: &[&str]| {
        let output = succeed(&mut run(&[more, &["--list", "--json"]].concat()));
        let listed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        listed[0]["state"].as_str().unwrap().to_owned()
    };
    assert_eq!(list(&["--steps", "24"]), "not yet");
    let first = succeed(&mut run(&["--steps", "24"]));
    assert!(stderr(&first).contains("directq-4.min-max.seed1"), "{}", stderr(&first));
    assert_eq!(list(&["--steps", "24"]), "done");
    let bytes = std::fs::read(&path).unwrap();

    // Another tokenizer or configuration is another model; a result that does not know its own is taken.
    let mut result: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    result["settings"]["model_files"] = "of another tokenizer".into();
    std::fs::write(&path, result.to_string()).unwrap();
    assert_eq!(list(&["--steps", "24"]), "made with other settings");
    result["settings"].as_object_mut().unwrap().remove("model_files").unwrap();
    std::fs::write(&path, result.to_string()).unwrap();
    assert_eq!(list(&["--steps", "24"]), "done");
    std::fs::write(&path, &bytes).unwrap();
    let made = std::fs::metadata(&path).unwrap().modified().unwrap();

    let again = succeed(&mut run(&["--steps", "24"]));
    assert!(!stderr(&again).contains("directq-4"), "{}", stderr(&again));
    assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap(), made);
    assert_eq!(again.stdout, first.stdout);

    let other = run(&["--steps", "36"]).output().unwrap();
    assert_eq!(other.status.code(), Some(2));
    let expected = "the row was made with other settings: budget.steps is 24 there and 36 now\nhint: use the same";
    assert!(stderr(&other).contains(expected), "{}", stderr(&other));
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    assert_eq!(list(&["--steps", "36"]), "made with other settings");
    succeed(&mut run(&["--steps", "36", "--redo"]));
    assert_eq!(RowResult::read(&path).unwrap().training.unwrap().steps, 36);
    assert_eq!(list(&["--steps", "36"]), "done");

    // Three epochs are 36 steps, and give the same figures.
    let by_steps = RowResult::read(&path).unwrap();
    succeed(&mut run(&["--epochs", "3", "--redo"]));
    let by_epochs = RowResult::read(&path).unwrap();
    assert_eq!(by_epochs.epochs.len(), 3);
    assert_eq!(by_epochs.epochs, by_steps.epochs);
    // Without training: a row of its own, with the figure that training began from.
    succeed(&mut run(&["--steps", "0"]));
    let untrained = RowResult::read(&path.with_file_name("directq-4.min-max.post-training.json")).unwrap();
    assert_eq!(untrained.post_training, by_epochs.post_training);
    assert_eq!((untrained.last, untrained.training.unwrap().steps), (None, 0));
}

#[test]
fn kept_models_are_what_was_measured() {
    let home = tempfile::tempdir().unwrap();
    prepare(home.path());
    let rows = ["--rows", "q-bert:4,groups=head", "--ranges", "optimal", "--steps", "12", "--max-dev", "20", "--keep"];
    let rows = [&rows[..], &["--compensate"]].concat();
    succeed(&mut reproduce(home.path(), "results", &rows));
    let id = "qbert-4-groups-head.optimal.compensate.seed1";
    let result = RowResult::read(&home.path().join(format!("results/mnli/{id}.json"))).unwrap();
    assert_eq!(result.examples, 20);
    let kept = home.path().join("results/mnli").join(id);
    let packed = std::fs::metadata(kept.join("model.qbert")).unwrap().len();
    assert_eq!(packed, result.sizes.file_bytes);
    assert!(kept.join("ranges.safetensors").exists());
    // The figures are those of the last epoch, whether it was the best or not, and so is the model.
    let dev = std::fs::read_to_string(home.path().join("dev.tsv")).unwrap();
    let first: Vec<&str> = dev.lines().take(21).collect();
    std::fs::write(home.path().join("first.tsv"), first.join("\n")).unwrap();
    let mut data = DataSource::new(Task::Mnli, [home.path().join("first.tsv")]);
    data.max_len = 22;
    let compute = Compute::detect(1).unwrap();
    let session = Session::open(kept.join("model.qbert"), SessionOptions::default()).unwrap();
    let checkpoint = evaluate(&kept, &data, &compute, |_, _| {}).unwrap();
    let packed = evaluate_packed(&session, &data, |_, _| {}).unwrap();
    for found in [checkpoint, packed] {
        assert_eq!(found.evaluation.value, result.last.as_ref().unwrap().metrics["accuracy"]);
    }
    // Made again with other settings, it takes the place of the old one.
    let again: Vec<&str> = rows.iter().map(|&word| if word == "12" { "9" } else { word }).chain(["--redo"]).collect();
    let before = std::fs::read(kept.join("model.qbert")).unwrap();
    succeed(&mut reproduce(home.path(), "results", &again));
    assert_ne!(std::fs::read(kept.join("model.qbert")).unwrap(), before);
    assert!(!kept.with_extension("seed1.partial").exists());
}

#[test]
fn what_cannot_be_done_is_refused_before_anything_is_written() {
    let home = tempfile::tempdir().unwrap();
    prepare(home.path());
    let refused = |command: &mut Command, expected: &str| {
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{expected}");
        assert!(stderr(&output).starts_with(expected), "{}", stderr(&output));
        assert!(!home.path().join("results").exists(), "{expected}");
    };
    let cases: [(&[&str], &str); 3] = [
        (&["--rows", "qbert-5"], "error: no row \"qbert-5\" in these tables\nhint: the rows are baseline, directq-2"),
        (&["--table", "maim"], "error: --table: unknown table \"maim\"\nhint: the tables are main, groups"),
        (&["--steps", "1", "--epochs", "1"], "error: the argument '--steps <STEPS>' cannot be used with '--epochs"),
    ];
    for (arguments, expected) in cases {
        refused(&mut reproduce(home.path(), "results", arguments), expected);
    }
    // Mixed precision needs sensitivities, and those of this task; the rows without it do not.
    let unknown = "error: qbert-mp-2-3-rev needs the layers' sensitivities\nhint: give --sensitivity FILE";
    refused(&mut without_sensitivities(home.path(), "results", &["--table", "reverse"]), unknown);
    let path = home.path().join("sensitivity.json");
    let other = std::fs::read_to_string(&path).unwrap().replace("mnli", "sst2");
    std::fs::write(&path, other).unwrap();
    let measured = "error: sensitivity.json: measured on sst2, but the task is mnli";
    refused(&mut reproduce(home.path(), "results", &["--table", "reverse"]), measured);
    succeed(&mut without_sensitivities(home.path(), "results", &["--table", "groups", "--steps", "0"]));
}

#[test]
fn the_page_shows_what_was_run_and_what_was_not() {
    let home = tempfile::tempdir().unwrap();
    prepare(home.path());
    let rows = ["--rows", "qbert-4", "directq-4", "--steps", "12", "--seeds", "1,2", "--distill", "both"];
    succeed(&mut reproduce(home.path(), "results", &rows));
    let mut command = Command::new(env!("CARGO_BIN_EXE_qbert-paper"));
    succeed(command.current_dir(home.path()).args(["reproduce", "--render", "results", "--out", "page.md"]));
    let page = std::fs::read_to_string(home.path().join("page.md")).unwrap();
    let result = |id: &str| RowResult::read(&home.path().join(format!("results/mnli/{id}.json"))).unwrap();
    assert_eq!(outcomes_add_up(&result("baseline")), 1);
    assert_eq!(outcomes_add_up(&result("qbert-4.min-max.seed1")), 2);
    let accuracy = |id: &str| result(id).last.unwrap().metrics["accuracy"];
    let line =
        |start: &str| page.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{start}: {page}"));
    let (one, two) = (accuracy("qbert-4.min-max.seed1"), accuracy("qbert-4.min-max.seed2"));
    let (mean, deviation) = ((one + two) / 2.0, (one - two).abs() / 2.0_f64.sqrt());
    let full = result("baseline").full_precision["accuracy"];
    let cells = format!("| {mean:.2} ± {deviation:.2} (n=2) | {:.2} |", full - mean);
    assert!(line("| Q-BERT | 4 | 8 | 83.89 | 0.11 |").contains(&cells), "{cells}: {page}");
    assert!(line("| Q-BERT | 2 | 8 | 76.56 | 7.44 |").ends_with("| not run | – | not run | – |"));
    // The paper's difference, and ours with its standard error: 30 examples that both were judged by, two seeds each.
    let (direct_one, direct_two) = (accuracy("directq-4.min-max.seed1"), accuracy("directq-4.min-max.seed2"));
    let direct = (direct_one + direct_two) / 2.0;
    let influences = |id: &str| result(id).outcomes.last.unwrap().influences();
    let [a, b, c, d] =
        ["qbert-4.min-max.seed1", "qbert-4.min-max.seed2", "directq-4.min-max.seed1", "directq-4.min-max.seed2"]
            .map(influences);
    // Between seeds, without what differs by chance of the examples, which is in the examples' part.
    let within = |one: &[f64], two: &[f64]| (0..30).map(|i| (one[i] - two[i]).powi(2) / 2.0).sum::<f64>() / 900.0;
    let seeds = (deviation.powi(2) - within(&a, &b)).max(0.0);
    let direct_seeds = ((direct_one - direct_two).powi(2) / 2.0 - within(&c, &d)).max(0.0);
    let squares = (0..30).map(|i| ((a[i] + b[i] - c[i] - d[i]) / 2.0).powi(2)).sum::<f64>() / 29.0 / 30.0
        + (seeds + direct_seeds) / 2.0;
    let claim = line("| Q-BERT beats DirectQ at 4 bits | 1 | +7.20 |");
    assert!(claim.contains(&format!("{:+.2} ± {:.2} (n=2)", mean - direct, squares.sqrt())), "{claim}");
    assert!(line("Not run on any task: ").contains("Q-BERT beats DirectQ at 2 bits; "));
    let optimal = f64::midpoint(accuracy("qbert-4.optimal.seed1"), accuracy("qbert-4.optimal.seed2"));
    let effect = format!("| MNLI | `qbert-4` | {:+.2} ± ", optimal - mean);
    assert!(page.contains(&effect), "{effect}: {page}");

    // Without what became of each example the figures' own errors are taken.
    let path = home.path().join("results/mnli/directq-4.min-max.seed2.json");
    let mut old: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    old.as_object_mut().unwrap().remove("outcomes").unwrap();
    std::fs::write(&path, old.to_string()).unwrap();
    let share = |percent: f64| percent * (100.0 - percent) / 30.0;
    let squares = share(mean) + share(direct) + seeds / 2.0 + (direct_one - direct_two).powi(2) / 4.0;
    let unpaired = render(&home.path().join("results"), "").unwrap().page;
    assert!(unpaired.contains(&format!("{:+.2} ± {:.2}* (n=2)", mean - direct, squares.sqrt())), "{unpaired}");
    // One seed: then the other method's variance stands in.
    std::fs::remove_file(&path).unwrap();
    let squares =
        (0..30).map(|i| ((a[i] + b[i]) / 2.0 - c[i]).powi(2)).sum::<f64>() / 29.0 / 30.0 + seeds / 2.0 + seeds;
    let single = render(&home.path().join("results"), "").unwrap().page;
    assert!(single.contains(&format!("{:+.2} ± {:.2}", mean - direct_one, squares.sqrt())), "{single}");
    std::fs::write(&path, old.to_string()).unwrap();
    assert!(page.contains("No row at 2/3 bits makes the encoder 13 times smaller"), "{page}");

    let figure = std::fs::read_to_string(home.path().join("figures/accuracy-mnli.svg")).unwrap();
    assert!(
        page.contains("](figures/accuracy-mnli.svg)")
            && figure.contains(&format!("4 bits, min/max, trained: accuracy {mean:.2}"))
    );
    readme_of_results(home.path(), mean);

    let nothing = Command::new(env!("CARGO_BIN_EXE_qbert-paper"))
        .current_dir(home.path())
        .args(["reproduce", "--render", "nowhere", "--out", "other.md"])
        .output()
        .unwrap();
    assert_eq!(nothing.status.code(), Some(2));
    assert!(stderr(&nothing).starts_with("error: nowhere: no results"), "{}", stderr(&nothing));
}

/// What the plans do to the weights is measured without training; the page holds it against the drops, and shows the
/// attention of several rows in one figure.
#[test]
fn the_page_explains_drops_by_the_errors_of_the_weights() {
    let home = tempfile::tempdir().unwrap();
    prepare(home.path());
    let path = home.path().join("weight-errors-mnli.json");
    let measure = |more: &[&str]| {
        let mut all = vec!["--weight-errors"];
        all.extend(more);
        let output = succeed(&mut reproduce(home.path(), "weight-errors-mnli.json", &all));
        (String::from_utf8(output.stdout).unwrap(), WeightErrors::read(&path).unwrap())
    };
    let (_, one) = measure(&["--rows", "qbert-2", "--threads", "1"]);
    assert!(
        one.command.contains("--weight-errors --rows qbert-2 --max-len 22 --model tiny-sequence"),
        "{}",
        one.command
    );
    let (table, errors) = measure(&[]);
    assert!(!errors.command.contains("--rows"), "{}", errors.command);
    assert!(table.starts_with("squared error of the weights") && table.contains("qbert-mp-2-3-rev"), "{table}");
    let error = |name: &str, ranges| errors.get(name, ranges).unwrap().encoder;
    for ranges in Ranges::ALL {
        assert_eq!(errors.get("qbert-2", ranges), one.get("qbert-2", ranges));
        // Fewer bits, larger errors; and those of a matrix in one group are not smaller than those of its parts.
        assert!(
            error("qbert-2", ranges) > error("qbert-3", ranges) && error("qbert-3", ranges) > error("qbert-8", ranges)
        );
        assert!(error("directq-3", ranges) >= error("qbert-3", ranges));
        let embedding = errors.get("qbert-8-embedding-4-8-layerwise", ranges).unwrap();
        assert!(embedding.word > embedding.position && embedding.position > 0.0);
    }
    let (coarse, fine) = (error("qbert-2", Ranges::MinMax), error("qbert-2", Ranges::Optimal));
    assert!(coarse > fine && fine > 0.0);
    let mixed = errors.get("qbert-mp-2-3", Ranges::Optimal).unwrap();
    // The layers with most sensitivity have 3 bits, the others 2.
    assert_eq!(mixed.layers[1], errors.get("qbert-3", Ranges::Optimal).unwrap().layers[1]);
    assert_eq!(mixed.layers[0], errors.get("qbert-2", Ranges::Optimal).unwrap().layers[0]);
    assert!(mixed.cost < errors.get("qbert-mp-2-3-rev", Ranges::Optimal).unwrap().cost);

    succeed(&mut reproduce(home.path(), "results", &["--table", "main", "--steps", "0"]));
    for (row, heads) in [("directq-4", "[0.5,0.25]"), ("qbert-4", "[0.125,0.25]")] {
        let layer = format!(r#"{{"layer":0,"heads":{heads}}}"#);
        let text = format!(r#"{{"format":"qbert-attention-kl","version":1,"task":"mnli","layers":[{layer}]}}"#);
        std::fs::write(home.path().join(format!("attention-kl-mnli.{row}.json")), text).unwrap();
    }
    let cases = r#"[{"min_max":"nowhere","value":33.0},{"min_max":"everywhere","value":1.5}]"#;
    let by_matrix = format!(
        r#"{{"bits":4,"command":"made so","results":[{{"task":"mnli","full_precision":40.0,"cases":{cases}}}]}}"#
    );
    std::fs::write(home.path().join("ranges-by-matrix.json"), by_matrix).unwrap();
    let page = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_qbert-paper"));
        command
            .current_dir(home.path())
            .args(["reproduce", "--render", "results", "--out", "page.md"])
            .output()
            .unwrap()
    };
    assert!(page().status.success());
    let text = std::fs::read_to_string(home.path().join("page.md")).unwrap();
    let drop = RowResult::read(&home.path().join("results/mnli/qbert-2.min-max.post-training.json")).unwrap().drop;
    let line = format!("| `qbert-2` | {coarse:.3} | {:.2} | not run |", drop.post_training.unwrap()["accuracy"]);
    assert!(coarse < 1.0 && text.contains(&line), "{line}: {text}");
    let before = text.lines().find(|line| line.starts_with("- **Errors and drops.** Before it the drop ")).unwrap();
    assert!(before.contains("the error of the weights") && before.ends_with(" over 18 plans."), "{before}");
    assert!(text.contains("| everywhere | 1.50 |") && text.contains("made so"), "{text}");
    let output = errors.get("qbert-4", Ranges::MinMax).unwrap().matrices["output"];
    let largest = errors.largest_weights["output"];
    assert!(largest > 1.0 && text.contains(&format!("| output | {largest:.1} | {output:.5} |")), "{output}: {text}");
    assert!(text.contains("qbert-4 stays closer in 1 of 1 layers"), "{text}");
    assert!(text.contains("qbert attention-kl TUNED directq-4 --task mnli"), "{text}");
    assert!(home.path().join("figures/attention-kl-mnli.svg").exists());

    let other = std::fs::read_to_string(&path).unwrap().replace(&errors.model.sha256, "0");
    std::fs::write(&path, other).unwrap();
    let refused = page();
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        stderr(&refused).contains("weight-errors-mnli.json: belongs to another model or task"),
        "{}",
        stderr(&refused)
    );
}

/// A README without marks is named and nothing is written; with marks it has the optimal ranges' figures and no others.
fn readme_of_results(home: &Path, min_max: f64) {
    let run = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_qbert-paper"));
        let options = ["--render", "results", "--out", "docs/page.md", "--readme", "README.md"];
        command.current_dir(home).arg("reproduce").args(options).output().unwrap()
    };
    let readme = home.join("README.md");
    std::fs::write(&readme, "# Title\n<!-- results -->\n").unwrap();
    let refused = run();
    assert_eq!(refused.status.code(), Some(2));
    let complaint = "error: README.md: no <!-- results --> and <!-- /results -->";
    assert!(stderr(&refused).starts_with(complaint), "{}", stderr(&refused));
    assert!(!home.join("docs").exists());

    std::fs::write(&readme, "# Title\n<!-- results -->\nold\n<!-- /results -->\nend\n").unwrap();
    std::fs::create_dir(home.join("speed")).unwrap();
    for (name, kind, ms) in [
        ("minilm-l6.amx-intel", "AMX", r#""qbert 4": 2.0, "openvino-f32": 4.0, "openvino-bf16": 3.0"#),
        ("minilm-l6.avx2-amd", "AVX2", r#""qbert 4": 5.0, "openvino-f32": 6.0, "onnxruntime": 7.0"#),
        ("gte-small.avx2-amd", "another model", r#""qbert 4": 5.0, "openvino-f32": 6.0"#),
    ] {
        let works = format!(r#"[{{"work": "B", "threads": 1, "ms": {{{ms}}}}}]"#);
        let text = format!(r#"{{"what": "measured", "cpu": {{"kind": "{kind}"}}, "works": {works}}}"#);
        std::fs::write(home.join(format!("speed/{name}.json")), text).unwrap();
    }
    let done = run();
    assert!(done.status.success(), "{}", stderr(&done));
    assert!(home.join("docs/figures/accuracy-mnli.svg").exists());
    let text = std::fs::read_to_string(&readme).unwrap();
    assert!(text.starts_with("# Title\n<!-- results -->\n![") && text.ends_with("<!-- /results -->\nend\n"), "{text}");
    assert!(
        text.contains("](docs/figures/accuracy-mnli.svg)") && text.contains("[docs/page.md](docs/page.md)"),
        "{text}"
    );
    // Each kind of CPU has a row; the fastest of the other programs counts.
    for row in [
        "| ms for 128 tokens on AMX (times as fast as OpenVINO int8 with bf16, 3.00 ms) | – | 2.00 (**1.50×**) | – |",
        "| ms for 128 tokens on AVX2 (times as fast as OpenVINO int8, 6.00 ms) | – | 5.00 (**1.20×**) | – |",
    ] {
        assert!(text.contains(row), "{text}");
    }
    assert!(!text.contains("another model"), "{text}");
    assert!(!text.contains("old"), "{text}");
    let optimal = |seed| {
        let path = home.join(format!("results/mnli/qbert-4.optimal.distill.seed{seed}.json"));
        RowResult::read(&path).unwrap().last.unwrap().metrics["accuracy"]
    };
    let mean = f64::midpoint(optimal(1), optimal(2));
    let cell = format!("| **{mean:.2}** (");
    assert!(text.contains(&cell), "{cell} rather than min/max's {min_max:.2}: {text}");
}

/// What became of each example comes to the figures; returns how many of the row's figures it is known for.
fn outcomes_add_up(row: &RowResult) -> usize {
    let after = row.last.as_ref().map(|epoch| &epoch.metrics);
    let kept = [
        (&row.outcomes.full_precision, Some(&row.full_precision)),
        (&row.outcomes.post_training, row.post_training.as_ref()),
        (&row.outcomes.last, after),
    ];
    let known = kept.into_iter().filter_map(|(outcomes, metrics)| Some((outcomes.as_ref()?, metrics?)));
    known
        .map(|(outcomes, metrics)| {
            let (value, figure) = (outcomes.value(), metrics[&row.metric]);
            assert_eq!(outcomes.len(), row.examples, "{}", row.id);
            // Overlaps of answers are kept with four digits.
            assert!((value - figure).abs() < 0.01, "{}: {value} but {figure}", row.id);
        })
        .count()
}

/// The page, the figures and the README's table in the repository are made of the results in the repository, or there is
/// none of them.
#[test]
fn the_results_page_is_what_the_results_say() {
    const AGAIN: &str =
        "qbert-paper reproduce --render results/reproduce --out docs/results/paper.md --readme README.md";
    let (results, page, readme) =
        (root().join("results/reproduce"), root().join("docs/results/paper.md"), root().join("README.md"));
    let figures = root().join("docs/results/figures");
    if !results.exists() {
        assert!(
            !page.exists() && !figures.exists(),
            "docs/results/paper.md or docs/results/figures without results/reproduce"
        );
        return;
    }
    for task in std::fs::read_dir(&results).unwrap() {
        for file in std::fs::read_dir(task.unwrap().path()).unwrap() {
            outcomes_add_up(&RowResult::read(&file.unwrap().path()).unwrap());
        }
    }
    let rendered = render(&results, AGAIN).unwrap();
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    assert!(read(&page) == rendered.page, "docs/results/paper.md is not current: {AGAIN}");
    for (name, svg) in &rendered.figures {
        assert!(read(&figures.join(name)) == *svg, "docs/results/figures/{name} is not current: {AGAIN}");
    }
    for entry in std::fs::read_dir(&figures).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let made = rendered.figures.iter().any(|(own, _)| *own == name);
        assert!(made, "docs/results/figures/{name} is made of nothing in results: remove it");
    }
    let text = read(&readme);
    let current = rendered.readme(&text, &readme, &page).unwrap();
    assert!(text == current, "the results in README.md are not current: {AGAIN}");
}
