//! Whatever is asked, however it is batched, on any number of threads: the same answer, and never a panic.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

#[path = "common/all.rs"]
mod common;

use common::{ALL_WIDTHS, packed, session, session_for};
use qbert_model::Head;
use qbert_runtime::{Error, Input, Prediction, Scope, Session, SessionOptions, Tokens, Warning};

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
        let error = session.predict_one(&question).unwrap_err();
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
    assert!(session.predict(Vec::<Input>::new()).unwrap().is_empty());
}

#[test]
fn options_and_models_that_do_not_fit_are_refused() {
    let bytes = packed(Head::SequenceClassification, 6, ALL_WIDTHS[0]);
    let open = |options| Session::from_bytes("tiny.qbert", bytes.clone(), options);
    assert!(open(SessionOptions::default().threads(0)).is_err());
    assert!(open(SessionOptions::default().threads(1).max_len(7)).is_err());
    assert!(open(SessionOptions::default().threads(1).max_len(0)).is_err());
    // Three tokens hold one piece of a text, but not of a pair.
    let short = open(SessionOptions::default().threads(1).max_len(3)).unwrap();
    assert_eq!(short.classify(&["the owl"]).unwrap()[0].removed, 1);
    let error = short.classify_pairs(&[("the", "owl")]).unwrap_err();
    assert!(matches!(&error, Error::Item { index: 0, source } if matches!(**source, Error::Task(_))), "{error}");
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
    assert_eq!(input(r#"{"text": "a", "text2": null, "label": 1}"#).unwrap(), Input::text("a"));
    assert_eq!(input(r#"{"text": null, "words": ["a", "b"]}"#).unwrap(), Input::words(["a", "b"]));
    for (text, problem) in [
        (r#"{}"#, "an object that asks nothing"),
        (r#"{"text": 5}"#, "`text` is not a string"),
        (r#"{"text": "a", "text2": ["b"]}"#, "`text2` is not a string"),
        (r#"{"text2": "a"}"#, "`text2` without `text`"),
        (r#"{"words": ["a", 5]}"#, "`words` is not a list of strings"),
        (r#"{"words": "a"}"#, "`words` is not a list of strings"),
        (r#"{"question": "a"}"#, "`question` without `context`"),
        (r#"{"context": "a"}"#, "`context` without `question`"),
        (r#"{"question": {}, "context": "a"}"#, "`question` is not a string"),
        (r#"{"question": "a", "context": "b", "text2": "c"}"#, "`text2` without `text`"),
    ] {
        let error = input(text).unwrap_err().to_string();
        assert!(error.starts_with(problem), "{text}: {error}");
    }
}

#[test]
fn one_bad_input_does_not_affect_the_others() {
    for (head, bad) in [
        (HEADS[0], Input::question("who ?", "the owl")),
        (HEADS[1], Input::pair("the", "owl")),
        (HEADS[2], Input::text("the owl")),
    ] {
        let (session, good) = (session(head, 48, ALL_WIDTHS[0], 2), inputs(head));
        let expected = session.predict(&good).unwrap();
        for place in [0, 3, good.len()] {
            let mut mixed = good.clone();
            mixed.insert(place, bad.clone());
            let mut results = session.predict_each(&mixed);
            assert!(matches!(results.remove(place), Err(Error::WrongTask { .. })));
            let others: Vec<Prediction> = results.into_iter().map(Result::unwrap).collect();
            assert_eq!(fingerprint(&others), fingerprint(&expected), "{head:?} {place}");

            let error = session.predict(&mixed).unwrap_err();
            let Error::Item { index, source } = &error else { panic!("{error}") };
            assert_eq!((*index, error.hint(), error.is_environment()), (place, source.hint(), false));
            assert_eq!(error.to_string(), format!("input {place}: {source}"));
        }
    }
    let encoder = session(Head::None, 48, ALL_WIDTHS[0], 1);
    assert!(encoder.predict_each(["the owl", "two"]).iter().all(Result::is_err));
}

/// Five tokens for a pair, three for a text: the pair fails on its own, while it is encoded.
#[test]
fn an_input_that_cannot_be_encoded_fails_alone() {
    let bytes = packed(Head::SequenceClassification, 48, ALL_WIDTHS[0]);
    let session = Session::from_bytes("tiny.qbert", bytes, SessionOptions::default().max_len(4)).unwrap();
    let results = session.predict_each([Input::text("the owl"), Input::pair("the", "owl"), Input::text("two")]);
    let is_ok: Vec<bool> = results.iter().map(Result::is_ok).collect();
    assert_eq!(is_ok, [true, false, true]);
    assert!(matches!(results[1], Err(Error::Task(_))));
    assert_eq!(results[2].as_ref().unwrap(), &session.predict_one("two").unwrap());
}

#[test]
fn strings_pairs_and_word_lists_are_inputs() {
    let classifier = session(HEADS[0], 48, ALL_WIDTHS[0], 1);
    let expected = classifier.classify(&["the owl", "two owls"]).unwrap();
    let expected: Vec<Prediction> = expected.into_iter().map(Prediction::Classification).collect();
    let owned = vec!["the owl".to_owned(), "two owls".to_owned()];
    assert_eq!(classifier.predict(["the owl", "two owls"]).unwrap(), expected);
    assert_eq!(classifier.predict(&["the owl", "two owls"]).unwrap(), expected);
    assert_eq!(classifier.predict(&owned).unwrap(), expected);
    assert_eq!(classifier.predict(owned).unwrap(), expected);
    let pairs = classifier.classify_pairs(&[("the owl", "two owls")]).unwrap();
    assert_eq!(classifier.predict([("the owl", "two owls")]).unwrap(), [Prediction::Classification(pairs[0].clone())]);
    let tagger = session(HEADS[1], 48, ALL_WIDTHS[0], 1);
    let words = tagger.tag_words(&[vec!["the", "owl"]]).unwrap();
    assert_eq!(tagger.predict([vec!["the", "owl"]]).unwrap(), [Prediction::Tagging(words[0].clone())]);
}

#[test]
fn models_of_pairs_and_of_single_texts_are_told_apart() {
    let (text, pair) = (Input::text("the owl"), Input::pair("the owl", "two owls"));
    let single = session_for(Head::SequenceClassification, "sst2");
    assert_eq!(single.check(&text).unwrap(), None);
    for error in [
        single.check(&pair).unwrap_err(),
        single.predict_one(&pair).unwrap_err(),
        single.classify_pairs(&[("the owl", "two owls")]).unwrap_err(),
    ] {
        assert!(matches!(error, Error::SingleTexts { .. }), "{error}");
        assert_eq!(error.to_string(), "a pair of texts, but tiny.qbert is for single ones (sst2)");
    }

    let pairs = session_for(Head::SequenceClassification, "mnli");
    assert_eq!(pairs.check(&pair).unwrap(), None);
    let warning = pairs.check(&text).unwrap().unwrap();
    assert!(matches!(warning, Warning::MissingSecondText { .. }));
    assert_eq!(warning.to_string(), "a text without the second one that tiny.qbert (mnli) needs");
    assert!(pairs.predict_one(&text).is_ok());

    for task in ["", "something else"] {
        let unknown = session_for(Head::SequenceClassification, task);
        assert_eq!(unknown.task(), None);
        assert!([&text, &pair].into_iter().all(|input| unknown.check(input).unwrap().is_none()));
    }
    // A tagger takes a text, whatever its task.
    let tagger = session_for(Head::TokenClassification, "conll03");
    assert_eq!(tagger.check(&text).unwrap(), None);
    assert!(matches!(tagger.check(&pair), Err(Error::WrongTask { .. })));
}
