//! Tiles of a long sequence give what the whole does: the same bits forward, and gradients that differ by the order of sums
//! alone.

use qbert_kernels::{Compute, DistanceBias, DropoutKey, MatRef};
use qbert_model::family::RelativeBias;
use qbert_quant::{ActivationParams, Range};

use super::super::{
    BackwardBuffers, BackwardTask, BiasGradient, ForwardBuffers, ForwardTask, Heads, LONGEST_KEPT, Teacher, Treatment,
    backward_sequence, backward_with, forward_sequence, forward_with,
};
use crate::batch::Batch;
use crate::ops::Dropout;
use crate::ops::quantize::{steps_in_place, steps_to_values};
use crate::random::Stream;

const LENGTH: usize = LONGEST_KEPT + 88;
const HEADS: Heads = Heads { count: 2, width: 8, window: None };
const HIDDEN: usize = 16;

fn noise(seed: u64, length: usize) -> Vec<f32> {
    let mut values = vec![0.0; length];
    Stream::new(seed, "test", 0).fill_normal(&mut values, 0.7);
    values
}

fn batch() -> Batch {
    let mut batch = Batch::new();
    batch.push(&[1; 3], &[0; 3]);
    batch.push(&[1; LENGTH], &[0; LENGTH]);
    batch
}

fn close(ours: &[f32], theirs: &[f32], what: &str) {
    let most = theirs.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    assert!(most > 0.0, "{what} says nothing");
    let error = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(error < 3e-5 * most, "{what}: off by {error} of {most}");
}

/// Both ways through a batch of a short and a long sequence; the rows of the long one.
fn compare(treatment: Treatment<'_>, what: &str) {
    let compute = Compute::detect(2).expect("kernels");
    let (batch, kernels) = (batch(), compute.kernels());
    let mut qkv = noise(1, batch.tokens() * 3 * HIDDEN);
    if let Some(params) = treatment.quantized {
        steps_in_place(&compute, params, 3 * HIDDEN, &mut qkv, &mut []);
    }
    let (kept, scratch) = (HEADS.probabilities(&batch), HEADS.scratch(&batch));
    assert_eq!((kept, scratch), (2 * 9, 9), "the long sequence keeps nothing");
    let (mut probabilities, mut room, mut context) =
        (vec![0.0; kept], vec![0.0; scratch], vec![0.0; batch.tokens() * HIDDEN]);
    let buffers = ForwardBuffers { probabilities: &mut probabilities, scratch: &mut room, context: &mut context };
    forward_with(&compute, HEADS, &batch, treatment, &qkv, buffers);

    let square = LENGTH * LENGTH;
    let (mut p, mut whole_room, mut whole) = (vec![0.0; 2 * square], vec![0.0; 2 * square], vec![0.0; LENGTH * HIDDEN]);
    let mut task = ForwardTask {
        rows: &qkv[3 * 3 * HIDDEN..],
        probabilities: &mut p,
        scratch: &mut whole_room[..square],
        context: &mut whole,
        counted: kept,
    };
    forward_sequence(kernels, HEADS, treatment, &mut task);
    assert!(context[3 * HIDDEN..] == whole, "{what}: the context has other bits");

    if let Some(params) = treatment.quantized {
        steps_to_values(&compute, params, 3 * HIDDEN, &mut qkv);
    }
    let d_context = noise(2, context.len());
    let mut table = vec![0.0; 64];
    let bias = RelativeBias::Buckets { count: 32, farthest: 128 };
    let d_bias = treatment.bias.map(|_| BiasGradient { bias, table: &mut table });
    let (mut d_qkv, mut room) = (vec![0.0; qkv.len()], vec![0.0; 2 * scratch]);
    let buffers = BackwardBuffers {
        qkv: &qkv,
        probabilities: &probabilities,
        d_context: &d_context,
        scratch: &mut room,
        d_qkv: &mut d_qkv,
        d_bias,
    };
    backward_with(&compute, HEADS, &batch, treatment, buffers);

    let own_teacher = treatment.teacher.map(|teacher| {
        let (mut p, mut room, mut context) = (vec![0.0; 2 * square], vec![0.0; square], vec![0.0; LENGTH * HIDDEN]);
        let mut task = ForwardTask {
            rows: &teacher.qkv[3 * 3 * HIDDEN..],
            probabilities: &mut p,
            scratch: &mut room,
            context: &mut context,
            counted: 0,
        };
        forward_sequence(kernels, HEADS, Treatment::default(), &mut task);
        p
    });
    let mut d_whole = vec![0.0; LENGTH * 3 * HIDDEN];
    let mut task = BackwardTask {
        rows: &qkv[3 * 3 * HIDDEN..],
        d_context: MatRef::new(&d_context[3 * HIDDEN..], LENGTH, HIDDEN),
        probabilities: &p,
        teacher: own_teacher.as_deref().zip(treatment.teacher.map(|teacher| teacher.weight)),
        counted: kept,
        scratch: &mut whole_room,
        d_rows: &mut d_whole,
        d_diagonals: vec![0.0; if treatment.bias.is_some() { 2 * (2 * LENGTH - 1) } else { 0 }],
        index: 0,
    };
    backward_sequence(kernels, HEADS, treatment, &mut task);
    close(&d_qkv[3 * 3 * HIDDEN..], task.d_rows, what);
    if treatment.bias.is_some() {
        let mut whole_table = vec![0.0; 64];
        let mut gradient = BiasGradient { bias, table: &mut whole_table };
        gradient.add(HEADS, &task.d_diagonals);
        // The short sequence has its share too, in the buckets of near distances.
        close(&table[14 * 2..16 * 2], &whole_table[14 * 2..16 * 2], "bias");
    }
}

#[test]
fn tiles_compute_what_the_whole_does() {
    let plain = Treatment::default();
    compare(plain, "plain");
    let dropout = Some(Dropout { key: DropoutKey::new(1, 2, 3), rate: 0.2, first: 0 });
    compare(Treatment { dropout, ..plain }, "dropout");
    let bias = DistanceBias::new(2, LENGTH, |head, distance| (distance as f32 * 0.01 * (1.0 + head as f32)).sin());
    compare(Treatment { bias: Some(&bias), ..plain }, "bias");
    let range = Range::new(-2.0, 2.5).expect("a range");
    let quantized = Some([ActivationParams::from_range(range); 3]);
    compare(Treatment { quantized, dropout, ..plain }, "quantized");
    let (qkv, probabilities) = (noise(5, (LENGTH + 3) * 3 * HIDDEN), vec![0.3; 2 * 9]);
    let teacher = Some(Teacher { qkv: &qkv, probabilities: &probabilities, weight: 0.4 });
    compare(Treatment { teacher, ..plain }, "teacher");
}
