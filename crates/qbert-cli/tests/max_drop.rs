//! `--max-drop` as a user meets it: plans are measured, remembered and listed, the trained model is verified, and a limit
//! that nothing keeps is said to be missed.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::path::Path;
use std::process::{Command, Stdio};

use common::{fail, files, kill_when, prepare, qbert, stderr, succeed};
use serde_json::Value;

const DATA: &str = "--task sst2 --train train.tsv --dev dev.tsv --max-len 16";
const PLAN: &str = "plan --model tuned --sensitivity analysis/sensitivity.json --groups 4";

/// A fine-tuned model with measured divergences.
fn tuned(home: &Path) {
    prepare(home);
    succeed(home, &format!("finetune -q --model model {DATA} --epochs 6 --batch 8 --lr 2e-3 --out tuned"));
    succeed(
        home,
        "analyze -q --method kl --model tuned --task sst2 --data dev.tsv --max-len 16 --widths 1,2,3,4 --out analysis",
    );
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn the_smallest_plan_within_the_limit_is_measured_listed_and_remembered() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    tuned(home);
    let plan = format!("{PLAN} {DATA} --max-drop 4 --out planned/plan.toml");
    let first = qbert(home, &plan);
    assert!(first.status.success(), "{}", stderr(&first));
    assert!(stderr(&first).contains("plan 1: ") && stderr(&first).contains("wrote planned/plan.toml"));
    let said = String::from_utf8(first.stdout).unwrap();
    assert!(said.contains("plans tried; drop in points from accuracy ") && said.contains("holds, chosen"), "{said}");
    let (file, toml) = (home.join("planned/plan-search.json"), home.join("planned/plan.toml"));
    let search = json(&file);
    let plans = search["plans"].as_array().unwrap();
    let chosen: Vec<&Value> = plans.iter().filter(|plan| plan["chosen"] == true).collect();
    assert_eq!((chosen.len(), search["holds"].as_bool()), (1, Some(true)));
    let number = |value: &Value| value.as_f64().unwrap();
    for plan in plans {
        let (holds, is_smaller) =
            (number(&plan["measured"]["drop"]) <= 4.0, number(&plan["bytes"]) < number(&chosen[0]["bytes"]));
        assert!(!(holds && is_smaller), "{plan} holds and is smaller than what was chosen");
        assert!(number(&plan["measured"]["low"]) < number(&plan["measured"]["drop"]));
    }
    let sizes: Vec<f64> = search["frontier"].as_array().unwrap().iter().map(|point| number(&point["bytes"])).collect();
    assert!(sizes.is_sorted() && sizes.len() > 3, "{sizes:?}");

    // What was measured is what the packed file does, and the file is no larger than was said.
    succeed(
        home,
        "pack tuned --plan planned/plan.toml --calibrate train.tsv --task sst2 --max-len 16 --out model.qbert",
    );
    let packed: Value =
        serde_json::from_str(&succeed(home, "eval model.qbert --task sst2 --data dev.tsv --max-len 16 --json -q"))
            .unwrap();
    assert_eq!(packed["value"], chosen[0]["measured"]["value"]);
    let size = std::fs::metadata(home.join("model.qbert")).unwrap().len();
    assert!(size <= chosen[0]["bytes"].as_u64().unwrap());

    // Again: nothing is measured, and nothing changes.
    let (before, plan_before) = (std::fs::read(&file).unwrap(), std::fs::read(&toml).unwrap());
    let again = qbert(home, &plan);
    assert_eq!((String::from_utf8(again.stdout).unwrap(), again.stderr), (said, b"wrote planned/plan.toml\n".to_vec()));
    // Interrupted after the second plan, it goes on to the same end.
    let mut cut = search.clone();
    cut["plans"].as_array_mut().unwrap().truncate(2);
    std::fs::write(&file, cut.to_string()).unwrap();
    succeed(home, &format!("{plan} --threads 1"));
    assert_eq!(std::fs::read(&file).unwrap(), before);
    assert_eq!(std::fs::read(&toml).unwrap(), plan_before);
    // Other details: other measurements.
    let other = qbert(home, &format!("{plan} --range min-max"));
    assert!(stderr(&other).contains("have changed: all plans are measured again\nplan 1: "), "{}", stderr(&other));
    // A damaged file is refused.
    std::fs::write(&file, "{").unwrap();
    let refused = fail(home, &plan);
    assert!(refused.contains("plan-search.json:1:1") && refused.contains("hint: delete it"), "{refused}");
}

#[test]
fn a_limit_that_nothing_keeps_exits_with_3_and_gives_the_nearest() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    tuned(home);
    // On 60 examples nobody can be sure that nothing is lost.
    let unsure = format!("{PLAN} {DATA} --max-drop 0 --confidence 0.99 --out plan.toml --json -q");
    let missed = qbert(home, &unsure);
    assert_eq!(missed.status.code(), Some(3), "{}", stderr(&missed));
    let said = stderr(&missed);
    assert!(said.contains("error: --max-drop: none of the ") && said.contains("; the nearest, "), "{said}");
    assert!(said.contains("hint: allow a larger --max-drop"), "{said}");
    let printed: Value = serde_json::from_slice(&missed.stdout).unwrap();
    assert_eq!((&printed["search"]["holds"], &printed["origin"]["holds"]), (&Value::Bool(false), &Value::Bool(false)));
    let plans = printed["search"]["plans"].as_array().unwrap();
    assert_eq!(plans.iter().filter(|plan| plan["chosen"] == true).count(), 1);
    let judged = |plan: &Value| plan["measured"]["high"].as_f64().unwrap();
    let nearest = plans.iter().map(judged).fold(f64::INFINITY, f64::min);
    assert!(plans.iter().all(|plan| plan["chosen"] == false || judged(plan) == nearest));
    assert!(home.join("plan.toml").exists());
    // What is known serves a limit that can be kept.
    let known = plans.len();
    let kept = unsure.replace("--max-drop 0 --confidence 0.99", "--max-drop 100");
    let kept: Value = serde_json::from_str(&succeed(home, &kept)).unwrap();
    assert_eq!((kept["search"]["plans"].as_array().unwrap().len(), &kept["search"]["holds"]), (known, &true.into()));
}

const RUN: &str = "run --model model --task sst2 --train train.tsv --dev dev.tsv --max-len 16 --epochs 6 --batch 8 --lr 2e-3 \
                   --max-examples 20 --qat-epochs 1 --qat-lr 1e-3 --bits 1,2,3 --no-speed --max-drop 4";

#[test]
fn a_run_verifies_what_it_trained_wherever_it_is_interrupted() {
    let whole = tempfile::tempdir().unwrap();
    prepare(whole.path());
    let said = succeed(whole.path(), &format!("{RUN} --threads 1"));
    assert!(said.contains("holds, chosen") && said.contains(" after training, within 4; "), "{said}");
    let run = whole.path().join("run");
    let search = json(&run.join("plan-search.json"));
    let chosen = search["plans"].as_array().unwrap().iter().find(|plan| plan["chosen"] == true).unwrap();
    let drop = chosen["trained"]["drop"].as_f64().unwrap();
    assert!(drop <= 4.0);
    let metrics = json(&run.join("metrics.json"));
    assert_eq!(chosen["trained"]["value"], metrics["stages"][3]["value"], "{metrics}");
    let report = std::fs::read_to_string(run.join("report.html")).unwrap();
    assert!(report.contains("id=\"plansearch\"") && report.contains("id=\"measured\""));
    let sensitivity = json(&run.join("sensitivity.json"));
    assert!(sensitivity["layers"].as_array().unwrap().is_empty() && sensitivity["measured"].is_object());
    let expected = files(&run);

    let again = qbert(whole.path(), RUN);
    assert!(again.status.success() && !stderr(&again).contains(": done in"), "{}", stderr(&again));
    assert!(files(&run) == expected, "nothing is left to do");

    let home = tempfile::tempdir().unwrap();
    prepare(home.path());
    let run = home.path().join("run");
    let command = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_qbert"));
        command.current_dir(home.path()).args(RUN.split_whitespace()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    for name in ["measured.json", "sensitivity.json", "plan-search.json", "plan.toml", "checkpoint", "model.qbert"] {
        kill_when(&mut command(), || run.join(name).exists());
    }
    succeed(home.path(), RUN);
    let found = files(&run);
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (name, bytes) in &found {
        assert!(expected[name] == *bytes, "{name} differs");
    }

    // A deleted result is made again, without another training.
    std::fs::remove_file(run.join("plan.toml")).unwrap();
    let again = qbert(home.path(), RUN);
    assert!(!stderr(&again).contains("quantize: done in"), "{}", stderr(&again));
    assert!(files(&run)["plan-search.json"] == expected["plan-search.json"], "the search has the same end");
}

#[test]
fn a_run_that_misses_the_limit_is_finished_and_exits_with_3() {
    let home = tempfile::tempdir().unwrap();
    prepare(home.path());
    let arguments = RUN.replace("--max-drop 4", "--max-drop 0 --embedding-bits 1 --confidence 0.999");
    let missed = qbert(home.path(), &arguments);
    assert_eq!(missed.status.code(), Some(3), "{}", stderr(&missed));
    assert!(stderr(&missed).contains("error: --max-drop: none of the "), "{}", stderr(&missed));
    assert!(home.path().join("run/report.html").exists() && home.path().join("run/model.qbert").exists());
    let search = json(&home.path().join("run/plan-search.json"));
    let plans = search["plans"].as_array().unwrap();
    let trained = plans.iter().filter(|plan| plan["trained"].is_object()).count();
    assert!((1..=3).contains(&trained), "{trained} trained");
    let again = qbert(home.path(), &arguments);
    assert_eq!(again.status.code(), Some(3));
    assert!(!stderr(&again).contains(": done in"), "{}", stderr(&again));
}

/// The drops without training are written into the search's memory, because this little model's are zero or huge. Training
/// is real.
#[test]
fn a_plan_with_much_room_is_followed_by_a_smaller_one_and_made_again_if_that_misses() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    prepare(home);
    let arguments =
        RUN.replace("--epochs 6", "--epochs 30").replace("--lr 2e-3", "--lr 1e-2 --seed 3 --embedding-bits 1");
    let arguments = arguments.replace("--max-drop 4", "--max-drop 14");
    succeed(home, &arguments);
    let file = home.join("run/plan-search.json");
    let edit = |edit: &dyn Fn(usize, usize, &mut Value)| {
        let mut search = json(&file);
        let plans = search["plans"].as_array_mut().unwrap();
        plans.sort_by_key(|plan| plan["bytes"].as_u64());
        let count = plans.len();
        plans.iter_mut().enumerate().for_each(|(place, plan)| edit(place, count, plan));
        std::fs::write(&file, search.to_string()).unwrap();
    };
    // The smaller, the larger the drop; with one try for each limit, nothing else is measured.
    edit(&|place, count, plan| {
        plan["measured"]["drop"] = (50.0 * (1.0 - place as f64 / (count - 1) as f64)).into();
        plan["aim"] = [14.0, 28.0][place % 2].into();
        (plan["trained"], plan["chosen"]) = (Value::Null, false.into());
    });
    let arguments = format!("{arguments} --tries 1");
    let said = qbert(home, &arguments);
    assert!(said.status.success(), "{}", stderr(&said));
    assert!(stderr(&said).contains("keeps the limit with much room: "), "{}", stderr(&said));
    let trained = || -> Vec<Value> {
        let search = json(&file);
        let mut plans = search["plans"].as_array().unwrap().clone();
        plans.sort_by_key(|plan| plan["bytes"].as_u64());
        plans.into_iter().filter(|plan| plan["trained"].is_object()).collect()
    };
    let [smaller, first] = &trained()[..] else { panic!("not two plans were trained") };
    assert_eq!((&smaller["chosen"], &first["chosen"]), (&true.into(), &false.into()));
    assert_eq!(first["trained"]["went_on"], true);

    // Had the smaller one missed, the first would have been made again.
    edit(&|_, _, plan| {
        if plan["chosen"] == true {
            plan["trained"]["drop"] = 40.0.into();
        }
    });
    let said = qbert(home, &arguments);
    assert!(said.status.success(), "{}", stderr(&said));
    assert!(stderr(&said).contains("quantize: done in"), "{}", stderr(&said));
    let [smaller, first] = &trained()[..] else { panic!("not two plans were trained") };
    assert_eq!((&smaller["chosen"], &first["chosen"]), (&false.into(), &true.into()));
    let metrics = json(&home.join("run/metrics.json"));
    assert_eq!(first["trained"]["value"], metrics["stages"][3]["value"], "{metrics}");
    let again = qbert(home, &arguments);
    assert!(again.status.success() && !stderr(&again).contains(": done in"), "{}", stderr(&again));
}
