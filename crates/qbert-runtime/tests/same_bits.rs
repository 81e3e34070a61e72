//! The same answer on every CPU: `same_bits.txt` lists what tiny models of every kind must compute, as sha256 of the bits,
//! and every implementation that runs here must meet it.
//!
//! A change that is meant to change answers writes the list again:
//!
//! ```sh
//! QBERT_WRITE_SAME_BITS=1 cargo test -p qbert-runtime --test same_bits
//! ```

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

#[path = "common/all.rs"]
mod common;

use std::fmt::Write as _;
use std::path::Path;

use common::{ALL_WIDTHS, Sizes, Widths, config_of, noise, packed_of};
use qbert_kernels::int::Multiplier;
use qbert_model::Head;
use qbert_runtime::{Compute, EmbedOptions, Input, Kernels, Pooling, Scope, Session, SessionOptions, Threads, Tokens};
use sha2::{Digest, Sha256};

const LIST: &str = include_str!("same_bits.txt");
const POSITIONS: usize = 160;

const SIZES: [(&str, Sizes); 3] = [
    ("small", Sizes { hidden: 24, heads: 3, intermediate: 40 }),
    // Nothing is a multiple of a vector.
    ("odd", Sizes { hidden: 35, heads: 5, intermediate: 61 }),
    ("wide", Sizes { hidden: 80, heads: 2, intermediate: 150 }),
];

const UNIFORM: [Widths; 4] = [
    Widths { matrices: &[2.0], tables: [2.0; 3], activations: 8.0 },
    Widths { matrices: &[3.0], tables: [3.0; 3], activations: 8.0 },
    Widths { matrices: &[4.0], tables: [4.0; 3], activations: 8.0 },
    Widths { matrices: &[8.0], tables: [8.0; 3], activations: 8.0 },
];

const HEADS: [(&str, Head); 4] = [
    ("embeddings", Head::None),
    ("classification", Head::SequenceClassification),
    ("tokens", Head::TokenClassification),
    ("spans", Head::QuestionAnswering),
];

/// Every model: a name, and its bytes. Small ones have every combination of widths and head, others take the heads in turn.
fn models() -> Vec<(String, Vec<u8>)> {
    let mut models = Vec::new();
    for (size, sizes) in SIZES {
        for (index, widths) in UNIFORM.into_iter().chain(ALL_WIDTHS).enumerate() {
            let turn = index % HEADS.len();
            let heads = if size == "small" { &HEADS[..] } else { &HEADS[turn..=turn] };
            for &(kind, head) in heads {
                let matrices: Vec<String> = widths.matrices.iter().map(f64::to_string).collect();
                let name = format!("{size}/{}-bit/activations-{}/{kind}", matrices.join("-"), widths.activations);
                models.push((name, packed_of("", head, &config_of(head, POSITIONS, sizes), widths)));
            }
        }
    }
    models
}

/// Everything a model says, as bytes.
fn answers(session: &Session) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut put = |values: &[f32]| {
        assert!(values.iter().all(|value| value.is_finite()), "the bits of a NaN are the CPU's own");
        bytes.extend(values.iter().flat_map(|value| value.to_bits().to_le_bytes()));
    };
    let (mut ids, mut segments, mut offsets) = (Vec::new(), Vec::new(), vec![0]);
    for length in [1, 7, 33, 130] {
        ids.extend((0..length).map(|i| (noise(1000 * length + i).abs() * 15.99) as u32));
        segments.extend((0..length).map(|i| u8::from(i > length / 2)));
        offsets.push(ids.len());
    }
    let output = session.forward(Tokens { ids: &ids, segments: &segments, offsets: &offsets }, Scope::All).unwrap();
    put(output.hidden());
    put(output.pooled());
    put(output.logits());

    let texts = ["", "the owls of Ostby", "saw two , two owls . who ?", &"the owl saw ostby . ".repeat(8)];
    put(session.embed(&texts, EmbedOptions::default().normalize(true)).unwrap().vectors.as_slice());
    if matches!(session.head(), Head::None | Head::SequenceClassification) {
        put(session.embed(&texts, Pooling::Pooler).unwrap().vectors.as_slice());
    }
    let inputs: Vec<Input> = match session.head() {
        Head::None => Vec::new(),
        Head::QuestionAnswering => texts[1..]
            .iter()
            .map(|text| Input::Question { question: "who saw ?".to_owned(), context: (*text).to_owned() })
            .collect(),
        _ => texts.iter().map(|&text| Input::text(text)).collect(),
    };
    if !inputs.is_empty() {
        // JSON has the shortest digits that give back the same f64, so equal text means equal bits.
        bytes.extend(serde_json::to_vec(&session.predict(&inputs).unwrap()).unwrap());
    }
    bytes
}

/// A line of the list for every model.
fn list(models: &[(String, Vec<u8>)], kernels: Kernels, threads: usize) -> String {
    let compute = Compute::new(kernels, Threads::new(threads).unwrap());
    let mut list = String::new();
    for (name, bytes) in models {
        let options = SessionOptions::default().compute(compute.clone());
        let session = Session::from_bytes("tiny.qbert", bytes.clone(), options).unwrap();
        let digest = Sha256::digest(answers(&session));
        write!(list, "{name} ").unwrap();
        digest.iter().for_each(|byte| write!(list, "{byte:02x}").unwrap());
        list.push('\n');
    }
    list
}

#[test]
fn every_implementation_gives_the_listed_bits() {
    let models = models();
    if std::env::var_os("QBERT_WRITE_SAME_BITS").is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/same_bits.txt");
        let text = list(&models, Kernels::by_name("portable").unwrap(), 1);
        std::fs::write(&path, text).unwrap();
        println!("wrote {}; run the test again without the variable", path.display());
        return;
    }
    for set in Kernels::supported() {
        for multiplier in Multiplier::supported() {
            for threads in [1, 2] {
                let found = list(&models, set.with_multiplier(multiplier), threads);
                let what = format!("{}+{} on {threads} threads", set.name(), multiplier.name());
                let differing: Vec<&str> =
                    found.lines().zip(LIST.lines()).filter(|(found, listed)| found != listed).map(|(f, _)| f).collect();
                assert!(differing.is_empty(), "{what}: {} of {}: {differing:#?}", differing.len(), models.len());
                assert_eq!(found.lines().count(), LIST.lines().count(), "the list has another number of models");
                println!("{what}: {} models as listed", models.len());
            }
        }
    }
}
