//! After the first requests, a forward pass takes no memory; a long text takes memory by its length, not by its square.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

#[path = "common/all.rs"]
mod common;

use allocation_counter::measure;
use common::{ALL_WIDTHS, Widths, session};
use qbert_model::Head;
use qbert_runtime::{Scope, Session, Tokens};

/// Sequences of these lengths.
fn forward(session: &Session, lengths: &[usize], scope: Scope, room: &mut (Vec<u32>, Vec<u8>, Vec<usize>)) {
    let (ids, segments, offsets) = room;
    ids.clear();
    offsets.clear();
    offsets.push(0);
    for &length in lengths {
        ids.extend((0..length).map(|index| (index % 16) as u32));
        offsets.push(ids.len());
    }
    segments.clear();
    segments.resize(ids.len(), 0);
    let output = session.forward(Tokens { ids, segments, offsets }, scope).unwrap();
    assert!(!output.hidden().is_empty());
}

#[test]
fn a_warm_session_takes_no_memory() {
    for widths in ALL_WIDTHS {
        for head in [Head::SequenceClassification, Head::TokenClassification, Head::QuestionAnswering] {
            for threads in [1, 2] {
                let session = session(head, 48, widths, threads);
                let mut room = (Vec::with_capacity(256), Vec::with_capacity(256), Vec::with_capacity(16));
                // Twice, because scratch memory is handed from operation to operation as they need it.
                for _ in 0..2 {
                    forward(&session, &[48, 7, 48, 1], Scope::All, &mut room);
                }
                let counted = measure(|| {
                    for lengths in [&[48, 7, 48, 1][..], &[3], &[1, 1, 48], &[20]] {
                        for scope in [Scope::All, Scope::Scores, Scope::Hidden] {
                            forward(&session, lengths, scope, &mut room);
                        }
                    }
                });
                assert_eq!(counted.count_total, 0, "{widths:?} {head:?} on {threads} threads: {counted:?}");
            }
        }
    }
}

#[test]
fn point_17b_a_long_text_in_f32_takes_memory_by_its_length() {
    const LENGTH: usize = 4000;
    let widths = Widths { matrices: &[1.0], tables: [1.0; 3], activations: 32.0 };
    let session = session(Head::SequenceClassification, LENGTH, widths, 1);
    let mut room = (Vec::new(), Vec::new(), Vec::new());
    let counted = measure(|| forward(&session, &[LENGTH], Scope::All, &mut room));
    // All probabilities of three heads at once would be 192 MB.
    assert!(counted.bytes_max < 32 << 20, "{counted:?}");
}
