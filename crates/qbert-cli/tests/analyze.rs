//! The analysis as a user runs it: fine-tune, analyze, plan; in parts; and what it refuses.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::path::Path;

use common::{fail, prepare, qbert, stderr, succeed};

const ANALYZE: &str =
    "analyze --model tuned --task sst2 --data train.tsv --runs 4 --max-examples 40 --max-len 16 --out";

#[test]
fn from_a_checkpoint_to_a_plan() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    prepare(home);
    let finetune =
        "finetune -q --model model --task sst2 --train train.tsv --dev dev.tsv --epochs 6 --batch 8 --lr 2e-3";
    succeed(home, &format!("{finetune} --max-len 16 --out tuned"));

    let text = succeed(home, &format!("{ANALYZE} whole"));
    assert!(text.contains("4 runs on 24 of 240 sequences each, Lanczos"), "{text}");
    assert!(text.contains("layer 1") && text.contains("the first half of the runs against the second"), "{text}");
    let file = std::fs::read_to_string(home.join("whole/sensitivity.json")).unwrap();
    let again = succeed(home, &format!("{ANALYZE} whole --resume --json"));
    assert_eq!(again, file, "a finished analysis is shown, not repeated");
    let found: serde_json::Value = serde_json::from_str(&file).unwrap();
    assert_eq!(found["layers"][0]["eigenvalues"].as_array().unwrap().len(), 4);
    assert_eq!(found["runs"][0]["examples"], 24);

    let part = succeed(home, &format!("{ANALYZE} parts --shard 1/2"));
    assert_eq!(part.trim(), "parts/sensitivity.1-of-2.json");
    let missing = fail(home, "analyze --merge --out parts");
    assert!(missing.contains("4 pairs of run and layer are in no part"), "{missing}");
    succeed(home, &format!("{ANALYZE} parts --shard 2/2 --threads 1"));
    assert_eq!(succeed(home, "analyze --merge --out parts --json"), file);
    std::fs::remove_file(home.join("parts/sensitivity.json")).unwrap();
    succeed(home, "analyze --out joined --merge parts/sensitivity.2-of-2.json parts/sensitivity.1-of-2.json");
    assert_eq!(std::fs::read_to_string(home.join("joined/sensitivity.json")).unwrap(), file);

    let plan = succeed(
        home,
        "plan --model tuned --sensitivity whole/sensitivity.json --bits 2,4 --high 1 --groups 4 --json --out plan.toml",
    );
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    let most = found["ranking"][0].as_u64().unwrap();
    for layer in 0..2 {
        let bits = &plan["bits"][format!("layer.{layer}.query")];
        assert_eq!(bits.as_u64(), Some(if layer == most { 4 } else { 2 }), "{plan}");
    }

    let for_model = |name: &str| {
        let sensitivity = "--sensitivity whole/sensitivity.json --bits 2,4 --high 1";
        let output = qbert(home, &format!("plan --model {name} {sensitivity}"));
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output)
    };
    assert_eq!(for_model("tuned"), "");
    let other = for_model("model");
    assert!(
        other.contains("warning: whole/sensitivity.json was measured on other weights than those of model"),
        "{other}"
    );

    let landscape = "landscape --model tuned --task sst2 --data train.tsv --max-len 16 --max-examples 20 --points 3";
    let said = succeed(home, &format!("{landscape} --layer 0 1 --out landscape.json"));
    assert!(said.contains("layer 1: eigenvalues"), "{said}");
    let grid: serde_json::Value = serde_json::from_slice(&std::fs::read(home.join("landscape.json")).unwrap()).unwrap();
    assert_eq!(grid["layers"][1]["losses"][2].as_array().unwrap().len(), 3);
    let all = landscape.replace("--max-examples 20", "--max-examples all");
    let twice = succeed(home, &format!("{all} --layer 1 1 --json --out landscape.json"));
    let twice: serde_json::Value = serde_json::from_str(&twice).unwrap();
    assert_eq!((&twice["examples"], twice["layers"].as_array().unwrap().len()), (&240.into(), 1));
    assert!(fail(home, &format!("{landscape} --layer 2 --out no.json")).contains("--layer is 2"));
    assert!(!home.join("no.json").exists());

    succeed(home, "plan -q --model tuned --bits 2 --groups 4 --out plan.toml");
    let quantize =
        "quantize -q --model tuned --plan plan.toml --task sst2 --train train.tsv --dev dev.tsv --max-len 16";
    succeed(home, &format!("{quantize} --epochs 0 --out small"));
    let compare = "--task sst2 --data train.tsv --max-len 16 --fraction 0.5 --json --out kl.json";
    let mean = |models: &str| {
        let found: serde_json::Value =
            serde_json::from_str(&succeed(home, &format!("attention-kl {models} {compare}"))).unwrap();
        assert_eq!((found["examples"].as_u64(), found["layers"][1]["heads"].as_array().unwrap().len()), (Some(120), 4));
        found["layers"][1]["mean"].as_f64().unwrap()
    };
    assert_eq!(mean("tuned tuned"), 0.0);
    let moved = mean("tuned small");
    assert!(moved > 0.0, "{moved}");

    refuses(home);
}

fn refuses(home: &Path) {
    let again = fail(home, &format!("{ANALYZE} whole"));
    assert!(again.contains("holds an analysis already\nhint: --resume with the settings"), "{again}");
    assert!(fail(home, &format!("{ANALYZE} x --shard 3/2")).contains("--shard is 3/2"));
    assert!(fail(home, &format!("{ANALYZE} x --fraction 0")).contains("--fraction is 0"));
    assert!(fail(home, "analyze --merge --out nowhere").contains("nowhere"));
    assert!(fail(home, "analyze --out x").contains("--task"));
    let bare = ANALYZE.replace("tuned", "model");
    let headless = fail(home, &format!("{bare} x"));
    assert!(headless.contains("head"), "{headless}");
    let limit = ANALYZE.replace("--max-examples 40", "--max-examples many");
    assert!(fail(home, &format!("{limit} x")).contains("--max-examples is many"));
    let landscape = "landscape --model tuned --task sst2 --data dev.tsv --max-len 16 --out x --layer 0";
    let even = fail(home, &format!("{landscape} --points 4"));
    assert!(even.contains("--points is 4: it must be odd"), "{even}");
    assert!(fail(home, &format!("{landscape} --max-examples many")).contains("--max-examples is many"));
    let alien = fail(home, "attention-kl tuned model --task sst2 --data train.tsv --max-len 16 --out kl.json");
    assert!(alien.contains("head"), "{alien}");
    assert!(!home.join("x").exists(), "what is refused leaves nothing behind");
}
