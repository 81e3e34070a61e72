//! A batch that does not fit the model is refused before any kernel sees it, with the numbers that do not fit.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::sync::Arc;

use common::goldens;
use qbert_model::Checkpoint;
use qbert_train::{Batch, Bert, Error, Targets};

/// The tiny checkpoints: 33 words, 22 positions, 2 token types; 3 labels per sequence, 5 per token.
fn tiny(head: &str) -> Bert {
    let checkpoint = Checkpoint::open(&goldens().join(format!("tiny-{head}"))).unwrap();
    Bert::new(checkpoint.config(), Arc::new(checkpoint.layout())).unwrap()
}

/// Two sequences, of three tokens and of one.
fn batch(targets: Targets) -> Batch {
    let mut batch = Batch::new();
    batch.push(&[1, 32, 5], &[0, 1, 1]);
    batch.push(&[7], &[0]);
    batch.targets = targets;
    batch
}

fn sequences(labels: &[u32]) -> Batch {
    batch(Targets::Sequences(labels.to_vec()))
}

#[track_caller]
fn refused(bert: &Bert, batch: &Batch, numbers: &[&str]) {
    let error = bert.check(batch).expect_err("a batch that does not fit");
    assert!(matches!(error, Error::Batch { .. }), "{error:?}");
    let message = error.to_string();
    let words: Vec<&str> = message.split(|c: char| !c.is_alphanumeric()).collect();
    for number in numbers {
        assert!(words.contains(number), "`{message}` does not name {number}");
    }
}

#[test]
fn what_fits_is_accepted() {
    let [sequence, token, span] = ["sequence", "token", "span"].map(tiny);
    sequence.check(&sequences(&[0, 2])).unwrap();
    token.check(&batch(Targets::Tokens(vec![None, Some(4), Some(0), None]))).unwrap();
    span.check(&batch(Targets::Spans(vec![(2, 0), (0, 0)]))).unwrap();
    for bert in [&sequence, &token, &span] {
        bert.check(&batch(Targets::None)).unwrap();
        let mut longest = Batch::new();
        longest.push(&[1; 22], &[0; 22]);
        bert.check(&longest).unwrap();
    }
}

#[test]
fn an_empty_batch_is_refused() {
    let bert = tiny("sequence");
    refused(&bert, &Batch::new(), &["0"]);
    refused(&bert, &Batch { targets: Targets::Sequences(Vec::new()), ..Batch::new() }, &["0"]);
    refused(&bert, &Batch { offsets: Vec::new(), ..Batch::new() }, &["0"]);
}

#[test]
fn an_empty_sequence_is_refused() {
    let mut batch = batch(Targets::None);
    batch.push(&[], &[]);
    refused(&tiny("sequence"), &batch, &["0", "22"]);
}

#[test]
fn too_long_a_sequence_is_refused() {
    let mut batch = batch(Targets::None);
    batch.push(&[1; 23], &[0; 23]);
    refused(&tiny("sequence"), &batch, &["23", "22"]);
}

#[test]
fn a_token_outside_the_vocabulary_is_refused() {
    let mut batch = sequences(&[0, 1]);
    batch.input_ids[3] = 33;
    refused(&tiny("sequence"), &batch, &["33"]);
    batch.input_ids[3] = u32::MAX;
    refused(&tiny("sequence"), &batch, &["4294967295", "33"]);
}

#[test]
fn a_segment_outside_the_types_is_refused() {
    let mut batch = sequences(&[0, 1]);
    batch.segments[2] = 3;
    refused(&tiny("sequence"), &batch, &["3", "2"]);
}

#[test]
fn segments_and_offsets_must_cover_the_tokens() {
    let bert = tiny("sequence");
    let mut short = sequences(&[0, 1]);
    short.segments.pop();
    refused(&bert, &short, &["4", "3"]);
    for offsets in [vec![0, 3], vec![0, 3, 5], vec![0, 3, 2, 4]] {
        let batch = Batch { offsets: offsets.clone(), ..batch(Targets::None) };
        let result = bert.check(&batch);
        assert!(result.is_err(), "offsets {offsets:?} of a batch of 4 tokens were accepted");
    }
}

/// Tokens before the first sequence belong to none: every row after them would be taken for another one's.
#[test]
fn offsets_must_start_at_the_first_token() {
    for offsets in [vec![4], vec![1, 3, 4]] {
        let batch = Batch { offsets: offsets.clone(), ..batch(Targets::None) };
        assert!(tiny("sequence").check(&batch).is_err(), "offsets {offsets:?} of a batch of 4 tokens were accepted");
    }
}

#[test]
fn a_label_the_head_does_not_have_is_refused() {
    refused(&tiny("sequence"), &sequences(&[2, 3]), &["3"]);
    refused(&tiny("token"), &batch(Targets::Tokens(vec![None, Some(4), Some(5), None])), &["5"]);
}

#[test]
fn a_span_outside_its_sequence_is_refused() {
    let span = tiny("span");
    // Token 1 exists in the batch and in the first sequence, but not in the second.
    refused(&span, &batch(Targets::Spans(vec![(0, 1), (0, 1)])), &["1"]);
    refused(&span, &batch(Targets::Spans(vec![(3, 0), (0, 0)])), &["3"]);
    refused(&span, &batch(Targets::Spans(vec![(0, u32::MAX), (0, 0)])), &["4294967295"]);
}

#[test]
fn a_wrong_number_of_targets_is_refused() {
    refused(&tiny("sequence"), &sequences(&[0]), &["1", "2"]);
    refused(&tiny("sequence"), &sequences(&[0, 1, 2]), &["3", "2"]);
    refused(&tiny("token"), &batch(Targets::Tokens(vec![Some(0); 3])), &["3", "4"]);
    refused(&tiny("span"), &batch(Targets::Spans(vec![(0, 0); 5])), &["5", "2"]);
}

#[test]
fn targets_of_another_head_are_refused() {
    let of = |head: &str| match head {
        "sequence" => Targets::Sequences(vec![0, 1]),
        "token" => Targets::Tokens(vec![Some(0); 4]),
        _ => Targets::Spans(vec![(0, 0); 2]),
    };
    let names =
        [("sequence", "SequenceClassification"), ("token", "TokenClassification"), ("span", "QuestionAnswering")];
    for (head, name) in names {
        for (other, other_name) in names.into_iter().filter(|(other, _)| *other != head) {
            refused(&tiny(head), &batch(of(other)), &[name, other_name]);
        }
    }
}
