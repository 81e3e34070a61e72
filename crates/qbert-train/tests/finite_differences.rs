//! Every operation's backward pass against central differences of its forward pass.
//!
//! How a gradient is compared, with which tolerance and why, is in `common/derivative.rs`. Buffers that an operation
//! overwrites hold NaN before the call, so that nothing left over from an earlier batch can leak into a result.
//! The whole model is in `model_derivatives.rs`.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use common::compute;
use common::derivative::{OPERATION, check_gradient, normal, weighted_sum};
use qbert_kernels::{DropoutKey, LayerNorm, LayerNormGradients, Start};
use qbert_train::ops::Dropout;
use qbert_train::ops::attention::{self, Heads};
use qbert_train::ops::embedding::{self, TableGradients, Tables};
use qbert_train::ops::linear::{self, Linear, LinearGradients};
use qbert_train::ops::loss::cross_entropy;
use qbert_train::ops::residual_norm::{self, Saved};
use qbert_train::{Batch, Targets};

/// More than any epsilon of a checkpoint, so that its place in the formula matters.
const EPSILON: f32 = 1e-2;

fn nan(length: usize) -> Vec<f32> {
    vec![f32::NAN; length]
}

/// A batch of sequences of these lengths, with ids and segments that repeat.
fn batch(lengths: &[usize]) -> Batch {
    let mut batch = Batch::new();
    for (sequence, &length) in lengths.iter().enumerate() {
        let ids: Vec<u32> = (0..length).map(|t| ((7 * t + 3 * sequence) % 11) as u32).collect();
        let segments: Vec<u8> = (0..length).map(|t| u8::from(3 * t > length)).collect();
        batch.push(&ids, &segments);
    }
    batch
}

fn dropout(site: u32) -> Dropout {
    Dropout { key: DropoutKey::new(5, 9, site), rate: 0.3, first: 0 }
}

/// `after - before` of a gradient that is added to what was there.
fn added(after: &[f32], before: &[f32]) -> Vec<f32> {
    after.iter().zip(before).map(|(a, b)| a - b).collect()
}

#[test]
fn embedding_sum() {
    let (compute, hidden) = (compute(2), 20);
    let batch = batch(&[1, 9, 4]);
    let [word, position, token_type] = [("word", 11), ("position", 9), ("type", 2)].map(|(n, r)| normal(n, r * hidden));
    let weights = normal("embedding weights", batch.tokens() * hidden);
    let positions: Vec<u32> = batch.ranges().flat_map(|range| 0..range.len() as u32).collect();
    let forward = |word: &[f32], position: &[f32], token_type: &[f32]| {
        let mut sum = nan(batch.tokens() * hidden);
        embedding::forward(&compute, Tables { word, position, token_type }, &batch, &positions, &mut sum);
        weighted_sum(&weights, &sum)
    };
    let mut d =
        [normal("d word", word.len()), normal("d position", position.len()), normal("d type", token_type.len())];
    let before = d.clone();
    let [d_word, d_position, d_type] = &mut d;
    let mut gradients = TableGradients { word: d_word, position: d_position, token_type: d_type };
    embedding::backward(&compute, &batch, &positions, &weights, &mut gradients);
    let [d_word, d_position, d_type] = [0, 1, 2].map(|table| added(&d[table], &before[table]));
    check_gradient("word embedding", OPERATION, &word, &d_word, |word| forward(word, &position, &token_type));
    check_gradient("position embedding", OPERATION, &position, &d_position, |p| forward(&word, p, &token_type));
    check_gradient("type embedding", OPERATION, &token_type, &d_type, |t| forward(&word, &position, t));
}

#[test]
fn linear_layer() {
    let compute = compute(2);
    // One token, one output, odd sizes, and a product large enough for the packed kernel.
    for (rows, inputs, outputs) in [(1, 7, 3), (5, 20, 1), (33, 19, 23), (130, 96, 80)] {
        let what = |part: &str| format!("linear {part} of {rows}×{inputs}→{outputs}");
        let [x, weight, bias] =
            [("x", rows * inputs), ("weight", outputs * inputs), ("bias", outputs)].map(|(n, l)| normal(n, l));
        let weights = normal("linear weights", rows * outputs);
        let forward = |x: &[f32], weight: &[f32], bias: &[f32]| {
            let mut y = nan(rows * outputs);
            linear::forward(&compute, Linear { weight, bias, outputs: bias.len() }, x, &mut y);
            weighted_sum(&weights, &y)
        };
        let layer = Linear { weight: &weight, bias: &bias, outputs: bias.len() };
        let mut d_x = nan(x.len());
        linear::backward_input(&compute, layer, &weights, Start::ZERO, &mut d_x);
        check_gradient(&what("input"), OPERATION, &x, &d_x, |x| forward(x, &weight, &bias));
        let residual = normal("residual", x.len());
        let mut d_both = residual.clone();
        linear::backward_input(&compute, layer, &weights, Start::ACCUMULATE, &mut d_both);
        check_gradient(&what("accumulated input"), OPERATION, &x, &added(&d_both, &residual), |x| {
            forward(x, &weight, &bias)
        });
        let before = (normal("d weight", weight.len()), normal("d bias", bias.len()));
        let (mut d_weight, mut d_bias) = before.clone();
        let gradients = LinearGradients { weight: &mut d_weight, bias: &mut d_bias, outputs: bias.len() };
        linear::backward_parameters(&compute, &x, &weights, gradients);
        check_gradient(&what("weight"), OPERATION, &weight, &added(&d_weight, &before.0), |w| forward(&x, w, &bias));
        check_gradient(&what("bias"), OPERATION, &bias, &added(&d_bias, &before.1), |b| forward(&x, &weight, b));
    }
}

/// The gradient of queries, keys and values together, and each third alone: an error in one may not hide behind others.
fn check_attention(heads: Heads, lengths: &[usize], dropout: Option<Dropout>) {
    let compute = compute(2);
    let (batch, hidden) = (batch(lengths), heads.count * heads.width);
    let what = format!("attention of {heads:?}, lengths {lengths:?}, dropout {}", dropout.is_some());
    let qkv = normal(&what, batch.tokens() * 3 * hidden);
    let weights = normal("attention weights", batch.tokens() * hidden);
    let forward = |qkv: &[f32], probabilities: &mut [f32]| {
        let (mut scratch, mut context) = (nan(heads.scratch(&batch)), nan(batch.tokens() * hidden));
        let buffers = attention::ForwardBuffers { probabilities, scratch: &mut scratch, context: &mut context };
        attention::forward(&compute, heads, &batch, dropout, qkv, buffers);
        weighted_sum(&weights, &context)
    };
    let mut probabilities = nan(heads.probabilities(&batch));
    forward(&qkv, &mut probabilities);
    let (mut scratch, mut d_qkv) = (nan(2 * heads.scratch(&batch)), nan(qkv.len()));
    let buffers = attention::BackwardBuffers {
        qkv: &qkv,
        probabilities: &probabilities,
        d_context: &weights,
        scratch: &mut scratch,
        d_qkv: &mut d_qkv,
        d_bias: None,
    };
    attention::backward(&compute, heads, &batch, dropout, buffers);

    let mut objective = |qkv: &[f32]| forward(qkv, &mut nan(heads.probabilities(&batch)));
    check_gradient(&what, OPERATION, &qkv, &d_qkv, &mut objective);
    for (third, name) in ["query", "key", "value"].into_iter().enumerate() {
        let mut at = qkv.clone();
        let places: Vec<usize> = (0..qkv.len()).filter(|i| i / hidden % 3 == third).collect();
        let own = |all: &[f32]| places.iter().map(|&i| all[i]).collect::<Vec<_>>();
        check_gradient(&format!("{what}, {name}"), OPERATION, &own(&qkv), &own(&d_qkv), |part| {
            places.iter().zip(part).for_each(|(&i, value)| at[i] = *value);
            objective(&at)
        });
    }
    // The softmax of a single score is 1 whatever the score.
    for range in batch.ranges().filter(|range| range.len() == 1) {
        let row = &d_qkv[range.start * 3 * hidden..range.end * 3 * hidden];
        assert!(row[..2 * hidden].iter().all(|d| d.abs() < 1e-6), "{what}: a token alone has queries and keys");
    }
}

#[test]
fn attention_core() {
    for dropout in [None, Some(dropout(4))] {
        for (count, width) in [(1, 1), (4, 5), (3, 16), (2, 33), (2, 64)] {
            check_attention(Heads { count, width, window: None }, &[3, 1, 17, 6], dropout);
        }
        check_attention(Heads { count: 2, width: 32, window: None }, &[70, 1, 2, 65], dropout);
    }
}

#[test]
fn attention_dropout_drops_something() {
    let (compute, heads, batch) = (compute(2), Heads { count: 2, width: 8, window: None }, batch(&[1, 12, 5]));
    let qkv = normal("qkv", batch.tokens() * 48);
    let context = |dropout| {
        let (mut probabilities, mut scratch) = (nan(heads.probabilities(&batch)), nan(heads.scratch(&batch)));
        let mut context = nan(batch.tokens() * 16);
        let buffers = attention::ForwardBuffers {
            probabilities: &mut probabilities,
            scratch: &mut scratch,
            context: &mut context,
        };
        attention::forward(&compute, heads, &batch, dropout, &qkv, buffers);
        (probabilities, context)
    };
    let ((plain, without), (kept, with)) = (context(None), context(Some(dropout(4))));
    assert_eq!(plain, kept, "probabilities are kept as they were before dropout");
    assert_ne!(without, with);
}

/// `y = LayerNorm(dropout(z) + x)` with gradients of z, x, γ and β.
fn check_residual_norm(rows: usize, hidden: usize, dropout: Option<Dropout>, residual: bool) {
    let compute = compute(2);
    let what = |part: &str| format!("LayerNorm {part} of {rows}×{hidden}, {dropout:?}, residual {residual}");
    let [z, x] = ["z", "x"].map(|name| normal(name, rows * hidden));
    let gamma: Vec<f32> = normal("gamma", hidden).iter().map(|g| 1.0 + 0.3 * g).collect();
    let beta = normal("beta", hidden);
    let weights = normal("norm weights", rows * hidden);
    let forward = |z: &[f32], x: &[f32], gamma: &[f32], beta: &[f32]| {
        let mut saved = Saved { sum: z.to_vec(), mean: nan(rows), rstd: nan(rows) };
        let mut y = nan(rows * hidden);
        let norm = LayerNorm { gamma, beta, epsilon: EPSILON };
        residual_norm::forward(&compute, norm, dropout, residual.then_some(x), &mut saved, &mut y);
        (saved, weighted_sum(&weights, &y))
    };
    let saved = forward(&z, &x, &gamma, &beta).0;
    let before = (normal("d gamma", hidden), normal("d beta", hidden));
    let (mut d_gamma, mut d_beta) = before.clone();
    let mut d_sum = nan(rows * hidden);
    let gradients = LayerNormGradients { gamma: &mut d_gamma, beta: &mut d_beta };
    residual_norm::backward(&compute, &gamma, &saved, &weights, &mut d_sum, gradients);
    let mut d_z = d_sum.clone();
    if let Some(dropout) = dropout {
        dropout.apply(&compute, &mut d_z);
    }
    check_gradient(&what("input"), OPERATION, &z, &d_z, |z| forward(z, &x, &gamma, &beta).1);
    if residual {
        check_gradient(&what("residual"), OPERATION, &x, &d_sum, |x| forward(&z, x, &gamma, &beta).1);
    }
    check_gradient(&what("gamma"), OPERATION, &gamma, &added(&d_gamma, &before.0), |g| forward(&z, &x, g, &beta).1);
    check_gradient(&what("beta"), OPERATION, &beta, &added(&d_beta, &before.1), |b| forward(&z, &x, &gamma, b).1);
}

#[test]
fn residual_and_layer_norm() {
    for (rows, hidden) in [(1, 20), (6, 33), (130, 64), (3, 384)] {
        check_residual_norm(rows, hidden, None, true);
        check_residual_norm(rows, hidden, Some(dropout(5)), true);
    }
    check_residual_norm(70, 20, None, false);
}

#[test]
fn gelu() {
    let compute = compute(2);
    for length in [5, 64, 20_000] {
        // Both tails and the dip near -0.75.
        let x: Vec<f32> = normal("gelu", length).iter().map(|x| 2.0 * x).collect();
        let weights = normal("gelu weights", length);
        let (mut inner, mut slope) = (nan(length), nan(length));
        compute.gelu_and_slope(&x, &mut inner, &mut slope);
        let mut d_x = weights.clone();
        compute.multiply(&slope, &mut d_x);
        let forward = |x: &[f32]| {
            let mut out = nan(length);
            compute.gelu(x, &mut out);
            weighted_sum(&weights, &out)
        };
        assert_eq!(forward(&x), weighted_sum(&weights, &inner), "both ways to compute GELU");
        check_gradient(&format!("GELU of {length}, kept slope"), OPERATION, &x, &d_x, forward);
        let mut d_x = nan(length);
        compute.gelu_backward(&x, &weights, &mut d_x);
        check_gradient(&format!("GELU of {length}"), OPERATION, &x, &d_x, forward);
    }
}

#[test]
fn tanh_pooler() {
    let (compute, rows, hidden) = (compute(2), 6, 20);
    let x = normal("first tokens", rows * hidden);
    let weight: Vec<f32> = normal("pooler", hidden * hidden).iter().map(|w| 0.3 * w).collect();
    let bias = normal("pooler bias", hidden);
    let weights = normal("pooler weights", rows * hidden);
    let pool = |x: &[f32], weight: &[f32], bias: &[f32]| {
        let mut pooled = nan(rows * hidden);
        linear::forward(&compute, Linear { weight, bias, outputs: bias.len() }, x, &mut pooled);
        compute.kernels().tanh_in_place(&mut pooled);
        pooled
    };
    let forward = |x: &[f32], weight: &[f32], bias: &[f32]| weighted_sum(&weights, &pool(x, weight, bias));
    let mut d_pooled = nan(rows * hidden);
    compute.kernels().tanh_backward(&pool(&x, &weight, &bias), &weights, &mut d_pooled);
    let mut d_x = nan(x.len());
    linear::backward_input(
        &compute,
        Linear { weight: &weight, bias: &bias, outputs: bias.len() },
        &d_pooled,
        Start::ZERO,
        &mut d_x,
    );
    let (mut d_weight, mut d_bias) = (vec![0.0; weight.len()], vec![0.0; bias.len()]);
    let gradients = LinearGradients { weight: &mut d_weight, bias: &mut d_bias, outputs: bias.len() };
    linear::backward_parameters(&compute, &x, &d_pooled, gradients);
    check_gradient("pooler input", OPERATION, &x, &d_x, |x| forward(x, &weight, &bias));
    check_gradient("pooler weight", OPERATION, &weight, &d_weight, |w| forward(&x, w, &bias));
    check_gradient("pooler bias", OPERATION, &bias, &d_bias, |b| forward(&x, &weight, b));
}

#[test]
fn dropout_is_a_fixed_mask() {
    let (compute, dropout, length) = (compute(2), dropout(1), 40_000);
    let masked = |values: &[f32]| {
        let mut values = values.to_vec();
        dropout.apply(&compute, &mut values);
        values
    };
    let mask = masked(&vec![1.0; length]);
    let scale = 1.0 / (1.0 - dropout.rate);
    assert!(mask.iter().all(|&m| m == 0.0 || (m - scale).abs() < 1e-6));
    let dropped = mask.iter().filter(|&&m| m == 0.0).count() as f64 / length as f64;
    // Six standard deviations of a binomial.
    assert!((dropped - 0.3).abs() < 6.0 * (0.21 / length as f64).sqrt(), "{dropped} dropped instead of 0.3");

    let (x, weights) = (normal("dropout", length), normal("dropout weights", length));
    let expected: Vec<f32> = x.iter().zip(&mask).map(|(x, m)| x * m).collect();
    assert_eq!(masked(&x), expected, "the mask depends on the values");
    check_gradient("dropout", OPERATION, &x, &masked(&weights), |x| weighted_sum(&weights, &masked(x)));

    // Parts get the mask of the whole, at any border.
    let mut parts = x;
    let (mut rest, mut offset) = (&mut parts[..], 0);
    for length in [1, 63, 100, 16_384, 7] {
        let (part, after) = rest.split_at_mut(length);
        dropout.apply_part(compute.kernels(), part, offset);
        (rest, offset) = (after, offset + length);
    }
    dropout.apply_part(compute.kernels(), rest, offset);
    assert_eq!(parts, expected);
}

/// The gradient that [`cross_entropy`] leaves in place of the logits, with a scale that is not 1.
fn check_loss(what: &str, batch: &Batch, labels: usize, rows: usize, terms: usize) {
    const SCALE: f64 = 0.25;
    let logits: Vec<f32> = normal(what, rows * labels).iter().map(|l| 2.0 * l).collect();
    let mut gradient = logits.clone();
    let loss = cross_entropy(&mut gradient, batch, labels, SCALE);
    assert_eq!(loss.terms, terms, "{what}");
    let whole: Vec<f32> = gradient.iter().map(|g| (f64::from(*g) / SCALE) as f32).collect();
    check_gradient(what, OPERATION, &logits, &whole, |logits| {
        cross_entropy(&mut logits.to_vec(), batch, labels, 1.0).mean
    });
}

#[test]
fn cross_entropy_of_sequences() {
    let mut batch = batch(&[3, 1, 5, 2]);
    batch.targets = Targets::Sequences(vec![0, 2, 1, 2]);
    check_loss("sequence loss", &batch, 3, 4, 4);
}

#[test]
fn cross_entropy_of_tokens() {
    let mut batch = batch(&[3, 1, 5]);
    let ignored = [0, 3, 4, 8];
    let targets = (0..9).map(|t| (!ignored.contains(&t)).then_some(t as u32 % 5)).collect();
    batch.targets = Targets::Tokens(targets);
    check_loss("token loss", &batch, 5, 9, 5);
    let mut gradient = normal("token loss", 45);
    cross_entropy(&mut gradient, &batch, 5, 1.0);
    for token in 0..9 {
        let row = &gradient[5 * token..5 * token + 5];
        assert_eq!(row.iter().all(|g| *g == 0.0), ignored.contains(&token), "token {token}: {row:?}");
    }
    // Nothing to learn from is no loss and no gradient, not 0/0.
    batch.targets = Targets::Tokens(vec![None; 9]);
    let loss = cross_entropy(&mut gradient, &batch, 5, 1.0);
    assert_eq!((loss.mean, loss.terms), (0.0, 0));
    assert!(gradient.iter().all(|g| *g == 0.0));
}

#[test]
fn cross_entropy_of_spans() {
    let mut batch = batch(&[3, 1, 6]);
    batch.targets = Targets::Spans(vec![(1, 2), (0, 0), (5, 0)]);
    check_loss("span loss", &batch, 2, 10, 3);
    // The only token of a sequence is its span for certain.
    let mut gradient = normal("span loss", 20);
    cross_entropy(&mut gradient, &batch, 2, 1.0);
    assert_eq!(gradient[6..8], [0.0, 0.0]);
}

#[test]
fn cross_entropy_of_label_sets() {
    let mut batch = batch(&[3, 1, 5, 2]);
    batch.targets = Targets::LabelSets(vec![vec![0, 2], vec![], vec![1], vec![0, 1, 2]]);
    check_loss("label set loss", &batch, 3, 4, 4);
}

#[test]
fn squared_error_of_values() {
    let mut batch = batch(&[3, 1, 5, 2]);
    batch.targets = Targets::Values(vec![0.5, -2.0, 1.25, 0.0]);
    check_loss("value loss", &batch, 1, 4, 4);
}

/// Figures of torch's `BCEWithLogitsLoss` and `MSELoss`, in f64.
#[test]
fn losses_of_sets_and_values_are_those_of_torch() {
    let mut pair = batch(&[2, 1]);
    pair.targets = Targets::LabelSets(vec![vec![0, 2], vec![]]);
    let mut logits = [0.5, -1.25, 2.0, -0.75, 0.0, 3.5];
    let loss = cross_entropy(&mut logits, &pair, 3, 1.0);
    assert!((loss.mean - 0.910_450_446_919_319_4).abs() < 1e-9, "{}", loss.mean);
    let expected = [
        -0.062_923_444_799_690_9,
        0.037_116_689_804_218_14,
        -0.019_867_153_670_352_95,
        0.053_470_216_804_101_17,
        0.083_333_333_333_333_33,
        0.161_781_294_874_773_94,
    ];
    for (found, expected) in logits.iter().zip(expected) {
        assert!((f64::from(*found) - expected).abs() < 1e-7, "{found} instead of {expected}");
    }
    let mut three = batch(&[2, 1, 3]);
    three.targets = Targets::Values(vec![1.5, -1.0, 0.25]);
    let mut logits = [0.5, -1.25, 2.0];
    let loss = cross_entropy(&mut logits, &three, 1, 1.0);
    assert!((loss.mean - 1.375).abs() < 1e-9, "{}", loss.mean);
    for (found, expected) in logits.iter().zip([-2.0 / 3.0, -0.5 / 3.0, 3.5 / 3.0]) {
        assert!((f64::from(*found) - expected).abs() < 1e-6, "{found} instead of {expected}");
    }
}
