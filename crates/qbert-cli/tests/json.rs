//! What `--json` prints, and `plan-search.json`, fit their schemas in `docs/reference/schemas/`, which allow no other field; and `qbert compare` as a
//! user and a CI pipeline meet it.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use common::{qbert, stderr, succeed};
use serde_json::Value;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn schemas() -> PathBuf {
    repository().join("docs/reference/schemas")
}

/// Checks a document against the schema of the format it names, and returns it.
fn fits(text: &str) -> Value {
    let document: Value = serde_json::from_str(text).unwrap();
    let format = document["format"].as_str().unwrap();
    let schema = std::fs::read_to_string(schemas().join(format!("{format}.json"))).unwrap();
    let validator = jsonschema::validator_for(&serde_json::from_str(&schema).unwrap()).unwrap();
    let problems: Vec<String> =
        validator.iter_errors(&document).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(problems.is_empty(), "{format}: {problems:#?}\n{text}");
    document
}

/// The small examples of the repository, and a directory to work in.
struct Place {
    directory: tempfile::TempDir,
    examples: String,
}

impl Place {
    fn new() -> Self {
        let examples = repository().join("examples").canonicalize().unwrap().display().to_string();
        Self { directory: tempfile::tempdir().unwrap(), examples }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Arguments with `@` for the folder of the examples.
    fn arguments(&self, arguments: &str) -> String {
        arguments.replace('@', &self.examples)
    }

    fn json(&self, arguments: &str) -> Value {
        fits(&succeed(self.path(), &format!("{} --json -q", self.arguments(arguments))))
    }
}

const TRAIN: &str = "--max-len 96 --epochs 1 --batch 8 --lr 2e-3";
const CLASSIFY: &str = "--task classify --text note --label condition --max-len 96";

#[test]
fn every_json_output_names_its_format_and_fits_its_schema() {
    let place = Place::new();
    let json = |arguments: &str| place.json(arguments);
    let mut seen = BTreeSet::new();
    let mut keep = |document: Value| {
        assert_eq!(document["version"], 1);
        seen.insert(document["format"].as_str().unwrap().to_owned());
        document
    };
    let columns = "--task classify --text note --label condition";
    let run = keep(json(&format!(
        "run --model @/tiny-bert {columns} --train @/classify/train.tsv --dev @/classify/dev.tsv {TRAIN} --qat-epochs 0 \
         --runs 2 --max-examples 8 --out run"
    )));
    assert!(run["file_size"]["full"].is_u64() && run["paper_size"]["quantized"].is_u64(), "{run}");
    let tasks = [("ner", "conll", "ner"), ("qa", "json", "qa")];
    for (task, ending, out) in tasks {
        let files = format!("--train @/{task}/train.{ending} --dev @/{task}/dev.{ending}");
        keep(json(&format!("finetune --model @/tiny-bert --task {task} {files} {TRAIN} --out {out}")));
        let data = format!("@/{task}/dev.{ending}");
        keep(json(&format!("eval {out} --task {task} --data {data} --max-len 96")));
        keep(json(&format!("data --task {task} --model {out} {data}")));
    }
    keep(json(&format!("eval run/model.qbert {CLASSIFY} --data @/classify/dev.tsv")));
    keep(json("data --task classify --text note --label condition @/classify/dev.tsv"));
    keep(json("prune ner --task ner @/ner/train.conll --out pruned"));
    keep(json("plan --model ner --bits 3 --out plan.toml"));
    keep(json("plan --model ner --check plan.toml"));
    let sensitive = "plan --model run/finetuned --sensitivity run/sensitivity.json --bits 2,3";
    keep(json(&format!("{sensitive} --budget 0.2")));
    keep(json(&format!("{sensitive} --high 1 --attention-bits 4")));
    let measure =
        format!("analyze --method kl --model run/finetuned {CLASSIFY} --data @/classify/dev.tsv --out measured -q");
    succeed(place.path(), &place.arguments(&measure));
    let data = format!("{CLASSIFY} --train @/classify/train.tsv --dev @/classify/dev.tsv");
    let limit = "--max-drop 100 --out measured/plan.toml";
    let searched = json(&format!("plan --model run/finetuned --sensitivity measured/sensitivity.json {data} {limit}"));
    let listed = keep(fits(&std::fs::read_to_string(place.path().join("measured/plan-search.json")).unwrap()));
    assert_eq!((&keep(searched)["search"]["plans"], listed["holds"].as_bool()), (&listed["plans"], Some(true)));
    let files = "--train @/ner/train.conll --dev @/ner/dev.conll";
    keep(json(&format!("quantize --model ner --plan plan.toml --task ner {files} {TRAIN} --out small")));
    keep(json("pack small --out small.qbert"));
    keep(json("inspect ner"));
    keep(json("inspect small.qbert"));
    keep(json("compare ner small.qbert --task ner --data @/ner/dev.conll --max-len 96"));
    keep(json(&format!("compare run/finetuned run/model.qbert {CLASSIFY} --data @/classify/dev.tsv")));
    keep(json("compare qa qa --task qa --data @/qa/dev.json --max-len 96"));
    // Fields that are there only if there is something to say.
    let squad = r#"{"version": "v2.0", "data": [{"title": "t", "paragraphs": [{"context": "the owl saw a fox", "qas": [
        {"id": "1", "question": "who ?", "answers": [{"text": "the owl", "answer_start": 0}], "is_impossible": false},
        {"id": "2", "question": "why ?", "answers": [], "is_impossible": true}]}]}]}"#;
    std::fs::write(place.path().join("v2.json"), squad).unwrap();
    let left_out = keep(json("eval qa --task qa --data v2.json --max-len 96"));
    assert_eq!((&left_out["left_out"]["count"], &left_out["examples"]), (&1.into(), &1.into()));
    let columns = CLASSIFY.replace("--max-len 96", "");
    let tsv = std::fs::read_to_string(repository().join("examples/classify/dev.tsv")).unwrap();
    std::fs::write(place.path().join("numbers.tsv"), tsv.replace("\tdry", "\t7")).unwrap();
    let labels = "--labels 7=dry,icy=icy,muddy=muddy";
    let mapped = keep(json(&format!("eval run/finetuned {columns} --data numbers.tsv --max-len 96 {labels}")));
    assert_eq!(mapped["label_map"], serde_json::json!([["7", "dry"]]));
    embed_outputs(&place, &mut keep);
    // `fetch` needs the network or a cache; its schema is of what it prints in both cases.
    keep(fits(r#"{"format": "qbert-fetch", "version": 1, "path": "cache/minilm", "cached": true}"#));

    let described = std::fs::read_dir(schemas()).unwrap().map(|entry| entry.unwrap().file_name());
    let described: BTreeSet<String> =
        described.map(|name| name.to_string_lossy().trim_end_matches(".json").to_owned()).collect();
    assert_eq!(seen, described, "an output without a schema, or a schema without an output");
}

/// What the verbs of models of vectors print, and evaluations of vectors by each kind of data.
fn embed_outputs(place: &Place, keep: &mut impl FnMut(Value) -> Value) {
    let write = |name: &str, text: &str| {
        let path = place.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("pairs.tsv", "5\ta frozen lake\tice on a lake\n3\tdeep mud\tmud and rain\n0\tdeep mud\ta dry day\n");
    write("search/corpus.jsonl", "{\"_id\": \"d\", \"text\": \"deep mud\"}\n{\"_id\": \"e\", \"text\": \"ice\"}\n");
    write("search/queries.jsonl", "{\"_id\": \"q\", \"text\": \"mud\"}\n");
    write("search/qrels/test.tsv", "query-id\tcorpus-id\tscore\nq\td\t1\n");
    write("texts.txt", "deep mud\nfresh snow\n");
    keep(place.json("quantize --model @/tiny-bert --task embed --train @/classify/train.tsv --text note --dev pairs.tsv --plan plan.toml --epochs 1 --batch 8 --out vectors"));
    for data in ["pairs.tsv", "search", "@/classify/dev.tsv --text note --label condition"] {
        keep(place.json(&format!("eval vectors/model.qbert --task embed --data {data}")));
    }
    keep(place.json("similarity vectors/model.qbert mud snow"));
    keep(place.json("rank vectors/model.qbert --query mud snow mud"));
    let found = keep(place.json("search vectors/model.qbert --texts texts.txt mud --top 1"));
    let again = place.json("search vectors/model.qbert --texts texts.txt mud --top 1 --int8");
    assert_eq!(found["queries"][0]["texts"][0]["line"], again["queries"][0]["texts"][0]["line"]);
}

#[test]
fn two_models_are_compared() {
    let place = Place::new();
    let columns = "--task classify --text note --label condition";
    let files = "--train @/classify/train.tsv --dev @/classify/dev.tsv";
    let tune = format!(
        "finetune --model @/tiny-bert {columns} {files} --max-len 96 --epochs 6 --batch 8 --lr 2e-3 --out tuned -q"
    );
    succeed(place.path(), &place.arguments(&tune));
    succeed(place.path(), "pack tuned --bits 32 --embedding-bits 32 --activation-bits 32 --out same.qbert");
    succeed(place.path(), "pack tuned --bits 1 --embedding-bits 2 --activation-bits 32 --out worse.qbert");
    let data = format!("{CLASSIFY} --data @/classify/dev.tsv");

    // The same weights, computed by two engines.
    let same = place.json(&format!("compare tuned same.qbert {data} --fail-below 100 --max-drop 0"));
    assert_eq!((same["agreement"]["equal"].as_u64(), same["changes"]["flipped"].as_u64()), (Some(50), Some(0)));
    assert!(same["logits"]["largest"].as_f64().unwrap() < 1e-4, "{same}");
    assert!(same["divergence"].as_f64().unwrap().abs() < 1e-6, "{same}");
    assert_eq!(same["metric"]["change"], 0.0);

    // Agreement and metrics are those of the predictions that `eval` writes.
    let worse = place.json(&format!("compare tuned worse.qbert {data}"));
    let labels = |model: &str| -> (Vec<String>, f64) {
        let eval = format!("eval {model} {data} --predictions {model}.jsonl --json -q");
        let found: Value = serde_json::from_str(&succeed(place.path(), &place.arguments(&eval))).unwrap();
        let text = std::fs::read_to_string(place.path().join(format!("{model}.jsonl"))).unwrap();
        let label = |line: &str| serde_json::from_str::<Value>(line).unwrap()["label"].as_str().unwrap().to_owned();
        (text.lines().map(label).collect(), found["value"].as_f64().unwrap())
    };
    let ((before, accurate), (after, inaccurate)) = (labels("tuned"), labels("worse.qbert"));
    let equal = before.iter().zip(&after).filter(|(one, other)| one == other).count() as u64;
    assert!(equal < 50, "the test needs a model that is worse");
    assert_eq!(worse["agreement"]["equal"].as_u64(), Some(equal));
    assert_eq!(worse["agreement"]["percent"].as_f64(), Some(2.0 * equal as f64));
    assert_eq!(worse["metric"]["reference"].as_f64(), Some(accurate));
    assert_eq!(worse["metric"]["candidate"].as_f64(), Some(inaccurate));
    assert_eq!(worse["changes"]["flipped"].as_u64(), Some(50 - equal));

    // A missed limit is an exit code of its own, after the comparison itself.
    let missed =
        qbert(place.path(), &place.arguments(&format!("compare tuned worse.qbert {data} --fail-below 99.5 -q")));
    assert_eq!(missed.status.code(), Some(3), "{}", stderr(&missed));
    assert!(stderr(&missed).contains("--fail-below 99.5: "), "{}", stderr(&missed));
    let said = String::from_utf8(missed.stdout).unwrap();
    assert!(said.contains("agreement ") && said.contains(" now wrong; the largest changes"), "{said}");

    // Data without labels gives everything but the metric.
    std::fs::write(place.path().join("texts.tsv"), "note\nthe path is dry\nmud up to the hut\n").unwrap();
    let texts = "--task classify --text note --max-len 96 --data texts.tsv";
    let unlabelled = place.json(&format!("compare tuned worse.qbert {texts}"));
    assert_eq!((&unlabelled["metric"], unlabelled["examples"].as_u64()), (&Value::Null, Some(2)));
    for (flags, expected) in [
        (
            format!("compare tuned worse.qbert {texts} --max-drop 1"),
            "--max-drop: the data has examples without a label",
        ),
        (format!("compare tuned worse.qbert {data} --fail-below 101"), "--fail-below is 101: it must be a percentage"),
        (format!("compare tuned worse.qbert {data} --max-drop nan"), "--max-drop is NaN"),
        (format!("compare @/tiny-bert worse.qbert {data}"), "tiny-bert"),
        (format!("compare tuned missing.qbert {data}"), "missing.qbert"),
    ] {
        let refused = qbert(place.path(), &place.arguments(&flags));
        assert_eq!(refused.status.code(), Some(2), "{flags}: {}", stderr(&refused));
        assert!(stderr(&refused).contains(expected) && stderr(&refused).contains("hint: "), "{}", stderr(&refused));
    }
}
