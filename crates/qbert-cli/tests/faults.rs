//! Long jobs among the accidents of real machines: signals, several processes in one directory, files that disappear.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{fail, files, has_logged, prepare, prepare_with, qbert, stderr, succeed};
use qbert_model::Head;

const DATA: &str = "--task sst2 --train train.tsv --dev dev.tsv --max-len 16";

fn spawn(home: &Path, arguments: &str) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qbert"));
    command.current_dir(home).args(arguments.split_whitespace());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(120), "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A model with a head for the task, and a plan for it.
fn prepare_tuned(home: &Path) {
    prepare_with(home, Head::SequenceClassification, &["negative", "positive"]);
    succeed(home, "plan --model model --bits 4 --out plan.toml");
}

/// Issue 17, point 22: what containers send is treated as Ctrl-C is.
#[cfg(unix)]
#[test]
fn sigterm_saves_the_state_and_exits_with_143() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    prepare_tuned(home);
    let finetune = format!("finetune --model model {DATA} --epochs 40 --out tuned");
    let quantize = format!("quantize --model model --plan plan.toml {DATA} --epochs 40 --out small");
    let run = format!("run --model model {DATA} --finetune --epochs 40 --out run");
    let analyze = "analyze --model model --task sst2 --data train.tsv --max-len 16 --runs 500 --tol 1e-9 --save-every 0 \
                   --out analysis";
    let landscape = "landscape --model model --task sst2 --data train.tsv --max-len 16 --layer 0 1 --points 201 \
                     --out landscape.json";
    type Begun = fn(&Path) -> bool;
    // The command, when it is in the middle of its work, the state it must leave, and what it says.
    let cases: [(&str, Begun, Option<&str>, &str); 5] = [
        (&finetune, |home| has_logged(&home.join("tuned"), 5), Some("tuned/resume.safetensors"), "--resume"),
        (&quantize, |home| has_logged(&home.join("small"), 5), Some("small/resume.safetensors"), "--resume"),
        (
            &run,
            |home| has_logged(&home.join("run/finetuned"), 5),
            Some("run/finetuned/resume.safetensors"),
            "qbert run",
        ),
        (
            analyze,
            |home| home.join("analysis/analysis.safetensors").exists(),
            Some("analysis/analysis.safetensors"),
            "--resume",
        ),
        (landscape, |_| true, None, "terminated (SIGTERM)"),
    ];
    for (arguments, begun, state, hint) in cases {
        let child = spawn(home, arguments);
        wait_until(arguments, || begun(home));
        // The handler is there before anything is written, but not when the process has only just begun.
        std::thread::sleep(Duration::from_millis(if state.is_none() { 700 } else { 0 }));
        assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
        let output = child.wait_with_output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(143), "{arguments}: {said}");
        assert!(said.contains(hint), "{arguments}: {said}");
        if let Some(state) = state {
            assert!(said.contains("stopping after this step; send it again"), "{said}");
            assert!(home.join(state).exists(), "{state}");
        }
    }
    assert!(!home.join("landscape.json").exists());
    // No step was lost: the log goes on where the state was saved.
    let steps = std::fs::read(home.join("tuned/train.jsonl")).unwrap();
    let child = spawn(home, &format!("{finetune} --resume"));
    wait_until("a step more", || std::fs::metadata(home.join("tuned/train.jsonl")).unwrap().len() > steps.len() as u64);
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(143));
    assert!(std::fs::read(home.join("tuned/train.jsonl")).unwrap().starts_with(&steps));
}

/// Issue 17, point 22.
#[cfg(unix)]
#[test]
fn sigterm_never_cuts_an_answer_off() {
    use std::io::{Read, Write};
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    prepare_tuned(home);
    succeed(home, "pack model --bits 4 --activation-bits 32 --task sst2 --out model.qbert");
    for waited in [30, 60, 120, 240] {
        let mut child = spawn(home, "predict model.qbert --json --threads 1");
        let mut input = child.stdin.take().unwrap();
        let writer = std::thread::spawn(move || while input.write_all(b"a good film\n").is_ok() {});
        std::thread::sleep(Duration::from_millis(waited));
        assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        // Before the handler is there the signal kills: then there is no answer either.
        assert!(matches!(output.status.code(), Some(143) | None), "{}", stderr(&output));
        let answers = String::from_utf8(output.stdout).unwrap();
        assert!(answers.is_empty() || answers.ends_with("}\n"), "{answers}");
        for line in answers.lines() {
            serde_json::from_str::<serde_json::Value>(line).unwrap();
        }
    }
    // One that waits for its next line ends at once, though its input has not ended.
    let mut child = spawn(home, "predict model.qbert --json");
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"a good film\n").unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

/// Issue 17, point 21.
#[test]
fn a_second_job_in_the_same_directory_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    prepare_tuned(home);
    let finetune = format!("finetune --model model {DATA} --epochs 60 --out shared");
    let quantize = format!("quantize --model model --plan plan.toml {DATA} --epochs 60 --out shared");
    let analyze = "analyze --model model --task sst2 --data train.tsv --max-len 16 --runs 500 --tol 1e-9 --save-every 0 \
                   --out shared";
    let run = format!("run --model model {DATA} --finetune --epochs 60 --out shared");
    let all = [finetune.as_str(), &quantize, analyze, &run];
    for (first, begun) in [
        (all[0], "train.jsonl"),
        (all[1], "train.jsonl"),
        (all[2], "analysis.safetensors"),
        (all[3], "finetuned/train.jsonl"),
    ] {
        let mut child = spawn(home, first);
        wait_until(first, || home.join("shared").join(begun).exists());
        for second in all {
            // Only the directory of a run may hold something else than a run.
            if second == all[3] && first != all[3] {
                continue;
            }
            let said = fail(home, &format!("{second} --resume"));
            assert!(said.contains("shared: another qbert"), "{first}, {second}: {said}");
            assert!(said.contains("is at work in this directory") && said.contains("--out"), "{said}");
            if cfg!(target_os = "linux") && Path::new("/proc/locks").exists() {
                assert!(said.contains(&format!("process {}", child.id())), "{said}");
            }
        }
        assert!(child.try_wait().unwrap().is_none(), "{first} is to be alive");
        child.kill().unwrap();
        child.wait().unwrap();
        std::fs::remove_dir_all(home.join("shared")).unwrap();
    }
}

/// All files of a run but for what was put away.
fn kept_files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    files(directory).into_iter().filter(|(name, _)| !name.starts_with("old/")).collect()
}

/// Issue 17, point 23.
#[test]
fn a_result_that_is_deleted_is_made_again_with_the_same_bytes() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    prepare(home);
    let run = format!(
        "run --model model {DATA} --epochs 2 --batch 8 --lr 2e-3 --runs 2 --max-examples 10 --iterations 8 --qat-epochs 1 \
         --qat-lr 1e-3 --no-speed --threads 1"
    );
    succeed(home, &run);
    let directory = home.join("run");
    let expected = kept_files(&directory);
    for name in ["finetuned/vocab.txt", "checkpoint/activations.json", "landscape.json"] {
        assert!(expected.contains_key(name), "{name}");
    }
    assert!(expected.keys().any(|name| name.starts_with("report-figures/")));
    let results = expected.keys().map(String::as_str).filter(|name| *name != "run.json");
    for name in results.chain(["finetuned", "checkpoint", "report-figures"]) {
        let path = directory.join(name);
        if path.is_dir() {
            std::fs::remove_dir_all(&path).unwrap();
        } else {
            std::fs::remove_file(&path).unwrap();
        }
        let output = qbert(home, &run);
        let said = stderr(&output);
        assert!(output.status.success() && said.contains(" is gone"), "{name}: {said}");
        let found = kept_files(&directory);
        let different = expected.keys().chain(found.keys()).find(|name| expected.get(*name) != found.get(*name));
        assert_eq!(different, None, "after {name} was deleted");
    }
    // The record is no result: without it nothing tells what the files were made from.
    std::fs::remove_file(directory.join("run.json")).unwrap();
    assert!(fail(home, &run).contains("but no run.json"));
}

/// Issue 17, point 19: a run stops rather than starting over in silence.
#[test]
fn a_run_with_a_damaged_state_stops_and_says_what_to_delete() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    prepare(home);
    let run = format!("run --model model {DATA} --epochs 40 --save-every 0");
    let mut child = spawn(home, &run);
    wait_until("some steps", || has_logged(&home.join("run/finetuned"), 5));
    child.kill().unwrap();
    child.wait().unwrap();
    let state = home.join("run/finetuned/resume.safetensors");
    let mut bytes = std::fs::read(&state).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&state, bytes).unwrap();
    let said = fail(home, &run);
    assert!(said.contains("run/finetuned/resume.safetensors: damaged"), "{said}");
    assert!(said.contains("delete run/finetuned and start again"), "{said}");
}

/// Issue 17, point 10.
#[test]
fn packing_with_calibration_shows_its_progress() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    prepare_tuned(home);
    let pack = "pack model --plan plan.toml --calibrate train.tsv --task sst2 --max-len 16 --out model.qbert";
    let said = stderr(&qbert(home, pack));
    // 240 sequences are 8 batches, seen twice by all layers and once more by each of the two.
    assert!(said.contains("calibrate 32/32 batches"), "{said}");
    assert_eq!(stderr(&qbert(home, &format!("{pack} -q"))), "");
}
