//! The runtime computes what is specified, to the last bit: every head, width and mixture, against plain loops.
//!
//! Codes are rounded values: two computations that differ in a last bit sooner or later give different codes, and from there
//! on differ visibly. Only equality of bits shows that nothing else is different.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

#[path = "common/all.rs"]
mod common;

use common::reference::Reference;
use common::{ALL_WIDTHS, Widths, noise, session};
use qbert_model::Head;
use qbert_runtime::{Scope, Session, SessionOptions, Tokens};

fn assert_same_bits(session: &Session, tokens: Tokens<'_>, what: &str) {
    let (hidden, scores) = Reference::new(session.model(), session.compute().kernels()).forward(tokens);
    let found = session.forward(tokens, Scope::All).unwrap();
    for (name, found, expected) in [("hidden", found.hidden(), &hidden), ("score", found.logits(), &scores)] {
        assert_eq!(found.len(), expected.len(), "{what}");
        let differing = found.iter().zip(expected).position(|(a, b)| a.to_bits() != b.to_bits());
        if let Some(index) = differing {
            panic!("{what}: {name} {index} is {} instead of {}", found[index], expected[index]);
        }
    }
}

/// Sequences of many lengths.
fn sequences(vocabulary: usize) -> (Vec<u32>, Vec<u8>, Vec<usize>) {
    let (mut ids, mut segments, mut offsets) = (Vec::new(), Vec::new(), vec![0]);
    for length in [1, 2, 17, 33, 48, 5] {
        ids.extend((0..length).map(|i| (noise(1000 * length + i).abs() * vocabulary as f32 * 0.999) as u32));
        segments.extend((0..length).map(|i| u8::from(i > length / 2)));
        offsets.push(ids.len());
    }
    (ids, segments, offsets)
}

#[test]
fn every_head_and_width_to_the_last_bit() {
    let each = [[1.0], [1.6], [2.0], [3.0], [4.0], [5.0], [6.0], [7.0], [8.0]];
    let each: &'static [[f64; 1]; 9] = Box::leak(Box::new(each));
    let uniform = each.iter().flat_map(|width| {
        [8.0, 32.0].map(|activations| Widths { matrices: width, tables: [width[0]; 3], activations })
    });
    let (ids, segments, offsets) = sequences(16);
    let tokens = Tokens { ids: &ids, segments: &segments, offsets: &offsets };
    for widths in uniform.chain(ALL_WIDTHS) {
        for head in [Head::SequenceClassification, Head::TokenClassification, Head::QuestionAnswering] {
            let session = session(head, 48, widths, 2);
            assert_same_bits(&session, tokens, &format!("{head:?} {widths:?}"));
        }
    }
}

/// Longer than what attention in f32 holds in memory at once: queries are taken in parts, which must not be seen.
#[test]
fn point_17b_a_long_text_in_f32_to_the_last_bit() {
    const LENGTH: usize = 2100;
    let widths = Widths { matrices: &[8.0], tables: [8.0; 3], activations: 32.0 };
    let session = session(Head::TokenClassification, LENGTH, widths, 2);
    let ids: Vec<u32> = (0..LENGTH).map(|index| (noise(index).abs() * 15.9) as u32).collect();
    let tokens = Tokens { ids: &ids, segments: &[0; LENGTH], offsets: &[0, LENGTH] };
    assert_same_bits(&session, tokens, "a long text");
}

/// A real model, where one is named: `QBERT_PACKED=model.qbert cargo test -p qbert-runtime --test contract`.
#[test]
fn a_real_model_to_the_last_bit() {
    let Some(path) = std::env::var_os("QBERT_PACKED") else {
        eprintln!("skipped: QBERT_PACKED names no packed model");
        return;
    };
    let session = Session::open(path, SessionOptions::default()).unwrap();
    let (ids, segments, offsets) = sequences(session.config().vocab_size);
    assert_same_bits(&session, Tokens { ids: &ids, segments: &segments, offsets: &offsets }, "the real model");
}
