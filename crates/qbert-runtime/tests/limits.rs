//! Packed files and inputs that mean harm: refused with a reason, in bounded memory.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

#[path = "common/all.rs"]
mod common;

use common::{ALL_WIDTHS, classifier, packed, reader, tagger};
use qbert_model::Head;
use qbert_runtime::{Error, Input, Session, SessionOptions};

fn refusal(name: &str, bytes: &[u8]) -> String {
    match Session::from_bytes(name, bytes.to_vec(), SessionOptions::default()) {
        Ok(session) => session.predict(["hello"]).unwrap_err().to_string(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn point_14_a_packed_character_map_is_checked() {
    let error = refusal("p.qbert", include_bytes!("cases/tok-precompiled.qbert"));
    assert!(
        error.starts_with("p.qbert: the tokenizer inside: not a usable tokenizer: normalizer Precompiled"),
        "{error}"
    );
}

#[test]
fn point_17a_a_packed_blow_up_is_refused() {
    let error = refusal("b.qbert", include_bytes!("cases/tok-blowup.qbert"));
    assert!(error.contains("times longer; 32 times are allowed"), "{error}");
}

#[test]
fn point_18_long_inputs_are_cut_or_refused() {
    // Far beyond the limit: a classifier reads what it needs.
    let (short, long) = ("two owls of ostby , ".repeat(100), "two owls of ostby , ".repeat(200_000));
    let session = classifier();
    let found = session.classify(&[&short, &long]).unwrap();
    assert_eq!(found[0].scores, found[1].scores);
    assert!(found[1].removed > found[0].removed);
    for (session, input) in [
        (tagger(), Input::text(long.clone())),
        (tagger(), Input::words([long.clone()])),
        (reader(), Input::question("who ?", long)),
    ] {
        let error = session.predict_one(input).unwrap_err();
        assert!(matches!(error, Error::InputTooLong { limit: 1_048_576, .. }), "{error}");
        assert!(error.hint().unwrap().contains("`session.max_input_bytes`"));
    }
    let bytes = packed(Head::TokenClassification, 48, ALL_WIDTHS[0]);
    let strict = Session::from_bytes("m", bytes, SessionOptions::default().max_input_bytes(9)).unwrap();
    assert!(strict.predict_one("two owls").is_ok());
    assert_eq!(strict.predict_one("two owls ,").unwrap_err().to_string(), "an input of 10 bytes; at most 9 are taken");
}

#[test]
fn point_5_every_chinese_character_is_a_word_with_its_place() {
    let text = "李明在北京,two owls";
    let found = tagger().tag_texts(&[text]).unwrap().remove(0);
    assert_eq!(found.words, ["李", "明", "在", "北", "京", ",", "two", "owls"]);
    for entity in &found.entities {
        let characters = &entity.characters;
        let slice: String = text.chars().skip(characters.start).take(characters.len()).collect();
        assert_eq!(slice, entity.text);
    }
}
