//! `--learn-pairs`: models of vectors that learn from labelled pairs of texts.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::fmt::Write;
use std::path::Path;

use common::{fail, files, prepare, succeed};
use serde_json::Value;

/// Pairs whose score says whether both texts have the same of two words, which the model does not know yet.
fn pairs(home: &Path) {
    prepare(home);
    let fillers = ["a", "the", "film", "plot", "very", "is"];
    let mut scored = "sentence1\tsentence2\tscore\n".to_owned();
    let mut matched = "sentence1\tsentence2\n".to_owned();
    for i in 0..120 {
        let word = |side: usize| if (i * 7 + side * (i / 2)).is_multiple_of(2) { "good" } else { "bad" };
        let text =
            |side: usize| format!("{} {} {}", fillers[(i + side * 2) % 6], word(side), fillers[(i * 5 + side) % 6]);
        let score = if word(0) == word(1) { 4.0 } else { 1.0 };
        writeln!(scored, "{}\t{}\t{score}", text(0), text(1)).unwrap();
        if word(0) == word(1) {
            writeln!(matched, "{}\t{}", text(0), text(1)).unwrap();
        }
    }
    std::fs::write(home.join("scored.tsv"), scored).unwrap();
    std::fs::write(home.join("matched.tsv"), matched).unwrap();
    succeed(home, "plan --model model --bits 8 --groups 8 --out plan.toml");
}

/// Spearman's correlation on the scored pairs, not trained and trained.
fn trained(home: &Path, flags: &str) -> (f64, f64) {
    let data = "--task embed --dev scored.tsv --plan plan.toml --epochs 6 --batch 16 --lr 2e-3";
    let found = succeed(home, &format!("quantize --model model {data} {flags} --json -q"));
    let found: Value = serde_json::from_str(&found).unwrap();
    (found["before"]["post_training"].as_f64().unwrap(), found["best"].as_f64().unwrap())
}

#[test]
fn scores_and_partners_are_learned() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    pairs(home);
    let (before, without) = trained(home, "--train scored.tsv --out without");
    let (_, usual) = trained(home, "--train scored.tsv --learn-pairs --out usual");
    assert!(usual > before + 5.0 && usual > without + 5.0, "{before} {without} {usual}");
    // Labels against a teacher that knows nothing of them: with more weight, more of them is learned.
    let (_, scored) = trained(home, "--train scored.tsv --learn-pairs --distill 20,1,1,1 --out scored");
    assert!(scored > before + 20.0 && scored > usual, "{before} {usual} {scored}");
    // Also without the original as a teacher.
    let (_, alone) = trained(home, "--train scored.tsv --learn-pairs --no-distill --out alone");
    assert!(alone > before + 20.0, "{before} {alone}");
    let (_, matched) = trained(home, "--train matched.tsv --learn-pairs --distill 20,1,1,1 --out matched");
    assert!(matched > before + 10.0, "{before} {matched}");
}

#[test]
fn the_number_of_threads_changes_no_byte() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    pairs(home);
    for threads in ["1", "2"] {
        trained(home, &format!("--train scored.tsv --learn-pairs --threads {threads} --out with-{threads}"));
    }
    let [one, two] = ["with-1", "with-2"].map(|out| files(&home.join(out)));
    // The packed file names its command.
    assert!(one.keys().eq(two.keys()));
    assert_eq!(one["model.safetensors"], two["model.safetensors"]);
    assert_eq!(one["ranges.safetensors"], two["ranges.safetensors"]);
}

#[test]
fn data_without_pairs_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    pairs(home);
    std::fs::write(home.join("texts.txt"), "good film\nbad plot\n").unwrap();
    let quantize = "quantize --model model --task embed --train texts.txt --dev scored.tsv --plan plan.toml";
    let said = fail(home, &format!("{quantize} --learn-pairs --out small"));
    assert!(said.contains("--learn-pairs") && said.contains("no pairs of texts"), "{said}");
    let said = fail(home, &format!("{quantize} --no-distill --out small"));
    assert!(said.contains("only be learned from pairs"), "{said}");
    assert!(!home.join("small").exists());
}
