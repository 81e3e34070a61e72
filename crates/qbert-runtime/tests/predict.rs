//! Whatever is asked, however it is batched, on any number of threads: the same answer, and never a panic.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use common::{ALL_WIDTHS, packed, session};
use qbert_model::Head;
use qbert_runtime::{Error, Input, Prediction, Scope, Session, SessionOptions, Tokens};

const HEADS: [Head; 3] = [Head::SequenceClassification, Head::TokenClassification, Head::QuestionAnswering];

/// Texts that break things elsewhere.
fn texts() -> Vec<String> {
    let long = "the owls of Ostby saw two , ".repeat(400);
    ["", " ", "the owls of Ostby", "😀", "a\u{0}b\u{200b}", "ÖSTBY saw ... two?", "[CLS] [SEP]", &long]
        .map(str::to_owned)
        .to_vec()
}

fn inputs(head: Head) -> Vec<Input> {
    let texts = texts();
    let mut inputs = Vec::new();
    for (text, other) in texts.iter().zip(texts.iter().rev()) {
        let (text, other) = (text.clone(), other.clone());
        match head {
            Head::QuestionAnswering => inputs.push(Input::Question { question: text, context: other }),
            Head::TokenClassification => {
                inputs.push(Input::Words { words: vec![text.clone(), "of".to_owned(), other] });
                inputs.push(Input::Text { text });
            }
            _ => {
                inputs.push(Input::Pair { text: text.clone(), text2: other });
                inputs.push(Input::Text { text });
            }
        }
    }
    inputs
}

/// Bits, because equal floats are not enough.
fn fingerprint(predictions: &[Prediction]) -> String {
    serde_json::to_string(predictions).unwrap()
}

#[test]
fn batches_single_texts_and_threads_give_the_same_bits() {
    for widths in ALL_WIDTHS {
        for head in HEADS {
            let session_of = |threads| session(head, 48, widths, threads);
            let (one, inputs) = (session_of(1), inputs(head));
            let all = one.predict(&inputs).unwrap();
            assert_eq!(all.len(), inputs.len());
            for (input, expected) in inputs.iter().zip(&all) {
                let alone = one.predict(std::slice::from_ref(input)).unwrap();
                assert_eq!(fingerprint(&alone), fingerprint(std::slice::from_ref(expected)), "{widths:?} {input:?}");
            }
            for threads in [2, 3] {
                let several = session_of(threads).predict(&inputs).unwrap();
                assert_eq!(fingerprint(&several), fingerprint(&all), "{widths:?} {head:?} on {threads} threads");
            }
        }
    }
}

#[test]
fn several_threads_ask_one_session_at_once() {
    let (session, inputs) = (session(HEADS[1], 48, ALL_WIDTHS[0], 2), inputs(HEADS[1]));
    let expected = fingerprint(&session.predict(&inputs).unwrap());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..3 {
                    assert_eq!(fingerprint(&session.predict(&inputs).unwrap()), expected);
                }
            });
        }
    });
}

/// Three sequences of ids, one of a single token.
const IDS: [u32; 10] = [2, 5, 6, 10, 3, 2, 2, 7, 8, 3];
const SEGMENTS: [u8; 10] = [0, 0, 0, 1, 1, 0, 0, 0, 0, 0];
const OFFSETS: [usize; 4] = [0, 5, 6, 10];

fn tokens() -> Tokens<'static> {
    Tokens { ids: &IDS, segments: &SEGMENTS, offsets: &OFFSETS }
}

#[test]
fn leaving_out_other_tokens_changes_no_score() {
    for widths in ALL_WIDTHS {
        for head in [Head::SequenceClassification, Head::None] {
            let session = session(head, 48, widths, 1);
            let all = session.forward(tokens(), Scope::All).unwrap();
            let scores = session.forward(tokens(), Scope::Scores).unwrap();
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(all.logits()), bits(scores.logits()), "{widths:?}");
            assert_eq!(bits(all.pooled()), bits(scores.pooled()), "{widths:?}");
            assert_eq!((all.hidden().len(), scores.hidden().len()), (10 * 24, 3 * 24));
            let first = [0, 5, 6].map(|token| bits(&all.hidden()[token * 24..(token + 1) * 24])).concat();
            assert_eq!(first, bits(scores.hidden()), "{widths:?}");
            let hidden = session.forward(tokens(), Scope::Hidden).unwrap();
            assert_eq!(bits(hidden.hidden()), bits(all.hidden()));
            assert!(hidden.logits().is_empty() && hidden.pooled().is_empty());
        }
    }
}

#[test]
fn scores_are_found_by_sequence() {
    let classifier = session(Head::SequenceClassification, 48, ALL_WIDTHS[0], 1);
    let output = classifier.forward(tokens(), Scope::All).unwrap();
    assert_eq!((output.sequences(), output.outputs(), output.logits().len()), (3, 2, 6));
    assert_eq!(output.logits_of(1), &output.logits()[2..4]);
    let tagger = session(Head::TokenClassification, 48, ALL_WIDTHS[0], 1);
    let output = tagger.forward(tokens(), Scope::Scores).unwrap();
    assert_eq!((output.outputs(), output.logits_of(2).len()), (3, 12));
    assert_eq!(output.logits_of(1), &output.logits()[15..18]);
}

#[test]
fn long_texts_are_cut_and_it_is_said_or_seen_through_windows() {
    let words = 10_000;
    let text = vec!["owl"; words].join(" ");
    let classifier = session(Head::SequenceClassification, 48, ALL_WIDTHS[0], 2);
    let found = &classifier.classify(&[&text]).unwrap()[0];
    assert_eq!(found.removed, words - 46);
    let total: f64 = found.scores.iter().map(|score| score.probability).sum();
    assert!((total - 1.0).abs() < 1e-9 && found.probability >= 0.5 && ["no", "yes"].contains(&found.label.as_str()));

    let tagger = session(Head::TokenClassification, 48, ALL_WIDTHS[0], 2);
    let found = &tagger.tag_texts(&[&text]).unwrap()[0];
    assert_eq!((found.words.len(), found.tags.len(), found.removed), (words, words, 0));
    for entity in &found.entities {
        assert_eq!(text[entity.characters.clone()], entity.text);
        assert_eq!(entity.characters.start, 4 * entity.words.start);
    }

    let reader = session(Head::QuestionAnswering, 48, ALL_WIDTHS[0], 2);
    let found = &reader.answer(&[("who ?", text.as_str())]).unwrap()[0];
    let best = &found.answers[0];
    assert_eq!(text[best.bytes.clone()], best.text);
    let found = &reader.answer(&[(text.as_str(), "the owl of ostby")]).unwrap()[0];
    assert_eq!(found.removed, words - 22);
    assert!(reader.answer(&[("who ?", "")]).unwrap()[0].answers.is_empty());
}

#[test]
fn offsets_count_characters() {
    let tagger = session(Head::TokenClassification, 48, ALL_WIDTHS[1], 1);
    let text = "😀 Östby saw the owls of Ostby, two of Östby.";
    let characters: Vec<char> = text.chars().collect();
    for entity in &tagger.tag_texts(&[text]).unwrap()[0].entities {
        assert_eq!(characters[entity.characters.clone()].iter().collect::<String>(), entity.text);
    }
    let words = vec!["Östby", "saw", "owls"];
    let found = &tagger.tag_words(&[words]).unwrap()[0];
    assert_eq!((found.words.join(" "), found.tags.len()), ("Östby saw owls".to_owned(), 3));
    assert!(tagger.tag_words(&[Vec::<&str>::new()]).unwrap()[0].tags.is_empty());
}

#[test]
fn the_wrong_question_is_refused_with_a_hint() {
    let question = Input::Question { question: "who ?".to_owned(), context: "the owl".to_owned() };
    for head in [Head::None, Head::SequenceClassification, Head::TokenClassification] {
        let session = session(head, 48, ALL_WIDTHS[0], 1);
        let error = session.predict(std::slice::from_ref(&question)).unwrap_err();
        assert!(matches!(error, Error::WrongTask { .. }), "{error}");
        assert!(error.to_string().starts_with("a question is not what tiny.qbert is for"), "{error}");
        assert!(error.hint().is_some() && !error.is_environment());
        assert!(session.answer(&[("who ?", "the owl")]).is_err());
    }
    let reader = session(Head::QuestionAnswering, 48, ALL_WIDTHS[0], 1);
    assert!(reader.classify(&["the owl"]).is_err() && reader.tag_texts(&["the owl"]).is_err());
}

#[test]
fn tokens_that_do_not_fit_are_refused() {
    let session = session(Head::SequenceClassification, 6, ALL_WIDTHS[0], 1);
    let refused = |ids: &[u32], segments: &[u8], offsets: &[usize]| {
        let error = session.forward(Tokens { ids, segments, offsets }, Scope::All).unwrap_err();
        assert!(matches!(error, Error::Tokens { .. }), "{error}");
    };
    refused(&[2, 3], &[0], &[0, 2]);
    refused(&[2, 3], &[0, 0], &[0, 1]);
    refused(&[2, 3], &[0, 0], &[1, 2]);
    refused(&[2, 3], &[0, 0], &[0, 2, 1, 2]);
    refused(&[2, 3], &[0, 0], &[]);
    refused(&[2, 3], &[0, 0], &[0, 0, 2]);
    refused(&[2, 16], &[0, 0], &[0, 2]);
    refused(&[2, 3], &[0, 2], &[0, 2]);
    refused(&[2; 7], &[0; 7], &[0, 7]);
    let nothing = session.forward(Tokens { ids: &[], segments: &[], offsets: &[0] }, Scope::All).unwrap();
    assert_eq!((nothing.sequences(), nothing.logits().len(), nothing.hidden().len()), (0, 0, 0));
    assert!(session.predict(&[]).unwrap().is_empty());
}

#[test]
fn options_and_models_that_do_not_fit_are_refused() {
    let bytes = packed(Head::SequenceClassification, 6, ALL_WIDTHS[0]);
    let open = |options| Session::from_bytes("tiny.qbert", bytes.clone(), options);
    assert!(open(SessionOptions { threads: 0, max_len: None }).is_err());
    assert!(open(SessionOptions { threads: 1, max_len: Some(7) }).is_err());
    assert!(open(SessionOptions { threads: 1, max_len: Some(0) }).is_err());
    // Three tokens hold one piece of a text, but not of a pair.
    let short = open(SessionOptions { threads: 1, max_len: Some(3) }).unwrap();
    assert_eq!(short.classify(&["the owl"]).unwrap()[0].removed, 1);
    assert!(matches!(short.classify_pairs(&[("the", "owl")]).unwrap_err(), Error::Task(_)));
    let mut damaged = bytes.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    assert!(Session::from_bytes("tiny.qbert", damaged, SessionOptions::default()).is_err());
    assert!(Session::open("no such file", SessionOptions::default()).is_err());
}

#[test]
fn inputs_are_read_from_json() {
    let input = |text: &str| serde_json::from_str::<Input>(text);
    assert_eq!(input(r#"{"text": "a"}"#).unwrap(), Input::Text { text: "a".to_owned() });
    let pair = Input::Pair { text: "a".to_owned(), text2: "b".to_owned() };
    assert_eq!(input(r#"{"text": "a", "text2": "b"}"#).unwrap(), pair);
    assert!(matches!(input(r#"{"words": ["a"]}"#).unwrap(), Input::Words { .. }));
    assert!(matches!(input(r#"{"question": "a", "context": "b"}"#).unwrap(), Input::Question { .. }));
    assert!(input(r#"{"question": "a"}"#).is_err() && input(r#"{"text": "a", "label": 1}"#).is_ok());
}
