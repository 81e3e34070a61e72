//! Embeddings and hidden states are what the forward pass gives, in any batch and on any number of threads.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

#[path = "common/all.rs"]
mod common;

use common::{ALL_WIDTHS, session, session_for};
use qbert_model::Head;
use qbert_runtime::{EmbedOptions, Error, Pooling, Scope, Session, SessionOptions, Tokens};

const HEADS: [Head; 4] = [Head::None, Head::SequenceClassification, Head::TokenClassification, Head::QuestionAnswering];

fn texts() -> Vec<String> {
    let mut texts = ["", "the owls of Ostby", "😀 ÖSTBY saw two", "who ?"].map(str::to_owned).to_vec();
    // More tokens than one batch takes, and texts that are cut.
    texts.extend((0..60).map(|index| "the owls saw two , ".repeat(index % 13)));
    texts
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Hidden states and pooled output of one text, by the forward pass.
fn forward(session: &Session, text: &str) -> (Vec<f32>, Vec<f32>) {
    let special = session.tokenizer().special();
    let pieces = session.tokenizer().pieces(text).unwrap();
    let kept = pieces.len().min(session.max_len() - 2);
    let ids = [&[special.cls], &pieces.ids[..kept], &[special.sep]].concat();
    let (segments, offsets) = (vec![0; ids.len()], [0, ids.len()]);
    let output = session.forward(Tokens { ids: &ids, segments: &segments, offsets: &offsets }, Scope::All).unwrap();
    (output.hidden().to_vec(), output.pooled().to_vec())
}

#[test]
fn hidden_states_are_those_of_the_forward_pass() {
    for widths in ALL_WIDTHS {
        for head in HEADS {
            let (session, texts) = (session(head, 48, widths, 2), texts());
            let found = session.hidden_states(&texts).unwrap();
            assert_eq!(found.len(), texts.len());
            for (text, states) in texts.iter().zip(&found) {
                assert_eq!(bits(states.vectors.as_slice()), bits(&forward(&session, text).0), "{widths:?} {head:?}");
                assert_eq!(states.vectors.shape(), [states.tokens.len(), 24]);
            }
        }
    }
}

#[test]
fn tokens_know_their_place_in_the_text() {
    let session = session(Head::None, 6, ALL_WIDTHS[0], 1);
    let text = "the owls, Östby";
    let found = &session.hidden_states(&[text]).unwrap()[0];
    let pieces: Vec<Option<&str>> =
        found.tokens.iter().map(|token| token.bytes.clone().map(|bytes| &text[bytes])).collect();
    assert_eq!(pieces, [None, Some("the"), Some("owl"), Some("s"), Some(","), None]);
    assert_eq!(found.removed, 1);
    let special = session.tokenizer().special();
    assert_eq!((found.tokens[0].id, found.tokens[5].id), (special.cls, special.sep));
    let empty = &session.hidden_states(&[""]).unwrap()[0];
    assert_eq!((empty.tokens.len(), empty.vectors.len(), empty.removed), (2, 2, 0));
    assert!(session.hidden_states::<&str>(&[]).unwrap().is_empty());
}

#[test]
fn embeddings_are_made_of_the_forward_pass() {
    for widths in ALL_WIDTHS {
        for head in HEADS {
            let (session, texts) = (session(head, 48, widths, 1), texts());
            let [mean, first] =
                [Pooling::Mean, Pooling::First].map(|pooling| session.embed(&texts, pooling).unwrap().vectors);
            for (index, text) in texts.iter().enumerate() {
                let (hidden, _) = forward(&session, text);
                assert_eq!(bits(&first[index]), bits(&hidden[..24]), "{widths:?} {head:?} {text}");
                let mut expected = [0.0; 24];
                hidden.chunks_exact(24).for_each(|row| (0..24).for_each(|column| expected[column] += row[column]));
                let expected = expected.map(|sum| sum / (hidden.len() / 24) as f32);
                assert_eq!(bits(&mean[index]), bits(&expected), "{widths:?} {head:?} {text}");
            }
        }
    }
}

#[test]
fn the_pooler_is_used_where_there_is_one() {
    for head in [Head::None, Head::SequenceClassification] {
        let (session, texts) = (session_for(head, ""), texts());
        let found = session.embed(&texts, Pooling::Pooler).unwrap().vectors;
        for (text, vector) in texts.iter().zip(&found) {
            assert_eq!(bits(vector), bits(&forward(&session, text).1), "{head:?} {text}");
        }
    }
    let tagger = session_for(Head::TokenClassification, "");
    let error = tagger.embed(&["the owl"], Pooling::Pooler).unwrap_err();
    assert!(matches!(error, Error::NoPooler { .. }) && error.hint().is_some(), "{error}");
}

#[test]
fn batches_and_threads_change_no_bit() {
    let texts = texts();
    for widths in [ALL_WIDTHS[0], ALL_WIDTHS[4]] {
        for pooling in [Pooling::Mean, Pooling::First, Pooling::Pooler] {
            let options = EmbedOptions::default().pooling(pooling).normalize(true);
            let one = session(Head::None, 48, widths, 1);
            let all = one.embed(&texts, options).unwrap();
            for (index, text) in texts.iter().enumerate() {
                let alone = one.embed(&[text], options).unwrap();
                assert_eq!(bits(alone.vectors.as_slice()), bits(&all.vectors[index]), "{pooling:?} {text}");
                assert_eq!(alone.removed, all.removed[index..=index]);
            }
            for threads in [2, 3] {
                let several = session(Head::None, 48, widths, threads).embed(&texts, options).unwrap();
                assert_eq!(bits(several.vectors.as_slice()), bits(all.vectors.as_slice()), "{pooling:?} {threads}");
            }
            for vector in &all.vectors {
                let norm: f64 = vector.iter().map(|&value| f64::from(value).powi(2)).sum();
                assert!((norm - 1.0).abs() < 1e-6, "{norm}");
            }
        }
    }
}

#[test]
fn what_is_cut_is_counted_and_faults_name_the_text() {
    let session = session_for(Head::None, "");
    let found = session.embed(&["the owl", &"owl ".repeat(100)], Pooling::Mean).unwrap();
    assert_eq!(found.removed, [0, 54]);
    let nothing = session.embed::<&str>(&[], Pooling::Mean).unwrap();
    assert_eq!((nothing.vectors.shape(), nothing.vectors.is_empty()), ([0, 24], true));

    let bytes = common::packed(Head::None, 48, ALL_WIDTHS[0]);
    let short = Session::from_bytes("tiny.qbert", bytes, SessionOptions::default().max_len(2)).unwrap();
    assert!(matches!(short.embed(&["the owl"], Pooling::Mean).unwrap_err(), Error::Item { index: 0, .. }));
    assert!(matches!(short.hidden_states(&["the owl"]).unwrap_err(), Error::Item { index: 0, .. }));
}
