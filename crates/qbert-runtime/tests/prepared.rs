//! A request in steps gives what the one call gives, to the last bit, whatever it was computed with.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

#[path = "common/all.rs"]
mod common;

use common::{classifier, reader, tagger};
use qbert_runtime::{EmbedOptions, Error, Input, Outcome, Pooling, Prepared, Session};

/// Computes every sequence of all inputs together and finishes each input.
fn together(session: &Session, inputs: Vec<Prepared>) -> Vec<Outcome> {
    let sequences: Vec<(&Prepared, usize)> =
        inputs.iter().flat_map(|input| (0..input.sequences()).map(move |index| (input, index))).collect();
    let computed = session.compute_together(&sequences).unwrap();
    let mut rest = &computed[..];
    let mut outcomes = Vec::new();
    for input in inputs {
        assert_eq!(input.tokens().len(), input.sequences());
        let (own, after) = rest.split_at(input.sequences());
        rest = after;
        outcomes.push(session.finish(input, &own.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap());
    }
    outcomes
}

fn same_as_predict(session: &Session, inputs: &[Input]) {
    let prepared = inputs.iter().map(|input| session.prepare(input).unwrap()).collect();
    for (outcome, input) in together(session, prepared).into_iter().zip(inputs) {
        assert_eq!(outcome, Outcome::Prediction(session.predict_one(input).unwrap()));
    }
}

#[test]
fn steps_give_what_one_call_gives() {
    let long = "two owls of Ostby saw the owl . ".repeat(20);
    let texts = ["two owls", "", "the owl of ostby , who saw two ?", &long].map(Input::text);
    same_as_predict(&classifier(), &texts);
    same_as_predict(&tagger(), &texts);
    let questions = [("who saw the owl ?", "ostby saw two owls ."), ("who ?", &*long)];
    same_as_predict(&reader(), &questions.map(|(question, context)| Input::question(question, context)));
}

#[test]
fn embeddings_in_steps_are_those_of_one_call() {
    let session = classifier();
    let texts = ["two owls", "the owl of ostby saw the owls", "?"];
    for pooling in [Pooling::Mean, Pooling::First] {
        let options = EmbedOptions::default().pooling(pooling).normalize(true);
        let expected = session.embed(&texts, options).unwrap();
        let prepared = texts.iter().map(|text| session.prepare_embedding(text, options).unwrap()).collect();
        for (outcome, vector) in together(&session, prepared).into_iter().zip(&expected.vectors) {
            assert_eq!(outcome, Outcome::Embedding(vector.to_vec()));
        }
    }
    let prepared = texts.iter().map(|text| session.prepare_hidden_states(text).unwrap()).collect();
    for (outcome, states) in together(&session, prepared).into_iter().zip(session.hidden_states(&texts).unwrap()) {
        assert_eq!(outcome, Outcome::HiddenStates(states));
    }
}

#[test]
fn what_does_not_fit_together_is_an_error() {
    let session = classifier();
    let (label, vector) =
        (session.prepare("two owls").unwrap(), session.prepare_embedding("owl", Pooling::Mean).unwrap());
    assert!(matches!(session.compute_together(&[(&label, 0), (&vector, 0)]), Err(Error::Tokens { .. })));
    assert!(matches!(session.compute_together(&[(&label, 1)]), Err(Error::Tokens { .. })));
    assert!(matches!(session.finish(label, &[]), Err(Error::Tokens { .. })));
    assert!(matches!(session.prepare(Input::question("who ?", "the owl")), Err(Error::WrongTask { .. })));
}
