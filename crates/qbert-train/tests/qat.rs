//! Quantized weights are `qbert-quant`'s to the bit, gradients are straight-through, and nothing depends on threads.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::sync::Arc;

use common::{Golden, compute, goldens};
use qbert_kernels::Compute;
use qbert_model::{Checkpoint, Parameters};
use qbert_quant::{
    ActivationPlan, Axis, BitWidth, Embedding, GroupSpec, Mask, Plan, Precision, QuantParams, RangeMethod, Scratch,
    Site, SitePlan, range::squared_error,
};
use qbert_train::bert::{Activations, BackwardBuffers, Mode, Pass};
use qbert_train::qat::weights::{UsedRows, WeightQuantizer};
use qbert_train::qat::{Calibration, Quantization, QuantizedPass};
use qbert_train::random::Stream;
use qbert_train::{Batch, Bert, Error};

struct Model {
    bert: Bert,
    masters: Parameters,
    batch: Batch,
}

impl Model {
    fn tiny(name: &str) -> Self {
        let checkpoint = Checkpoint::open(&goldens().join(format!("tiny-{name}"))).unwrap();
        let masters = checkpoint.load().unwrap();
        let bert = Bert::new(checkpoint.config(), Arc::clone(masters.layout())).unwrap();
        let batch = Golden::open(&format!("tiny_{name}.safetensors")).batch();
        bert.check(&batch).unwrap();
        Self { bert, masters, batch }
    }

    fn quantization(&self, plan: &Plan) -> Quantization {
        Quantization::new(plan.clone(), self.bert.config(), self.bert.layout()).unwrap()
    }

    /// The quantizer of a site, made by `qbert-quant` alone.
    fn params(&self, site: Site, plan: &Plan) -> Option<(QuantParams, std::ops::Range<usize>)> {
        let planned = plan.site(site).unwrap();
        let bits = planned.bits.width()?;
        let parameter = self.bert.layout().site(site).unwrap();
        let axis = if site.layer().is_some() { Axis::Rows } else { Axis::Columns };
        let (rows, cols, heads) = (parameter.shape[0], parameter.shape[1], self.bert.config().heads);
        let layout = planned.layout(rows, cols, axis, heads).unwrap();
        let values = self.masters.get(parameter);
        let params = QuantParams::fit(values, layout, bits, planned.range, &mut Scratch::default()).unwrap();
        Some((params, parameter.span.clone()))
    }
}

fn bits(number: impl Into<f64>) -> Precision {
    Precision::from_number(number).unwrap()
}

fn method(text: &str) -> RangeMethod {
    text.parse().unwrap()
}

/// Every width, kind of group and range method somewhere.
fn mixed_plan(layers: usize) -> Plan {
    let mut plan = Plan::uniform(layers, bits(3), GroupSpec::Count(4), RangeMethod::Mse);
    let widths = [1, 2, 3, 4, 8, 32];
    let groups = [GroupSpec::Count(1), GroupSpec::PerHead, GroupSpec::PerNeuron, GroupSpec::Count(3)];
    let methods = [method("mse"), method("min-max"), method("percentile:90")];
    for (index, site) in Site::all(layers).enumerate() {
        let planned = plan.site_mut(site).unwrap();
        planned.bits = bits(widths[index % 6]);
        planned.groups = groups[(index / 2) % 4];
        planned.range = methods[index % 3];
        if site.layer().is_none() {
            (planned.groups, planned.range) = (GroupSpec::Count(1 + 2 * index), methods[(index + 1) % 3]);
            planned.bits = bits(4);
        }
    }
    // The range method of this table is refined in turn while training.
    *plan.site_mut(Site::Embedding(Embedding::Word)).unwrap() =
        SitePlan::new(bits(4), GroupSpec::PerRow, RangeMethod::Mse);
    plan
}

#[test]
fn quantized_weights_are_those_of_qbert_quant_to_the_bit() {
    let model = Model::tiny("sequence");
    let plan = mixed_plan(3);
    let masters = model.masters.values();
    for threads in [1, 2, 3] {
        let compute = compute(threads);
        let mut quantization = model.quantization(&plan);
        quantization.fit(&compute, masters).unwrap();
        let mut expected = masters.to_vec();
        for site in Site::all(3) {
            let Some((params, span)) = model.params(site, &plan) else {
                assert!(quantization.weights().params(site).is_none(), "{site}");
                continue;
            };
            assert_eq!(quantization.weights().params(site).unwrap(), &params, "{site}");
            params.fake_quantize(&masters[span.clone()], &mut expected[span]).unwrap();
        }
        assert_bits(quantization.quantized(), &expected, "all weights");
        assert_ne!(quantization.quantized(), masters);

        // A step quantizes the rows of the tables that it uses and no other.
        let used = UsedRows::of(model.bert.config(), [&model.batch]);
        let mut copy = vec![7.0; masters.len()];
        quantization.weights().quantize(&compute, masters, Some(&used), &mut copy).unwrap();
        let tables = model.bert.spans().embeddings.clone();
        let hidden = model.bert.config().hidden_size;
        assert_bits(&copy[tables[2].end..], &expected[tables[2].end..], "what is not a table");
        let rows = copy[tables[0].clone()].chunks(hidden).zip(expected[tables[0].clone()].chunks(hidden));
        for (id, (row, expected)) in rows.enumerate() {
            if model.batch.input_ids.contains(&(id as u32)) {
                assert_bits(row, expected, "a row in use");
            } else {
                assert_eq!(row, vec![7.0; hidden], "row {id}");
            }
        }
        assert_bits(&copy[tables[2].clone()], &expected[tables[2].clone()], "both types are in use");
    }
}

fn assert_bits(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let differing = found.iter().zip(expected).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    assert_eq!(differing, 0, "{differing} values differ: {what}");
}

#[test]
fn gradients_pass_where_the_range_holds_the_master() {
    let model = Model::tiny("token");
    let (plan, masters) = (mixed_plan(3), model.masters.values());
    let mut quantization = model.quantization(&plan);
    quantization.fit(&compute(2), masters).unwrap();
    let used = UsedRows::of(model.bert.config(), [&model.batch]);
    let mut gradients = vec![1.0; masters.len()];
    quantization.after_backward(&compute(2), masters, (&used, Mask::Clamp), &mut gradients);
    let mut expected = vec![1.0; masters.len()];
    for site in Site::all(3) {
        let Some((params, span)) = model.params(site, &plan) else { continue };
        params.straight_through(Mask::Clamp, &masters[span.clone()], &mut expected[span]).unwrap();
    }
    // Of the tables only the rows in use are looked at: the others have no gradient.
    let hidden = model.bert.config().hidden_size;
    let words = model.bert.spans().embeddings[0].clone();
    for (id, row) in expected[words].chunks_mut(hidden).enumerate() {
        if !model.batch.input_ids.contains(&(id as u32)) {
            row.fill(1.0);
        }
    }
    let positions = model.bert.spans().embeddings[1].clone();
    expected[positions][20 * hidden..].fill(1.0);
    let stopped = expected.iter().filter(|gradient| **gradient == 0.0).count();
    assert!(stopped > 100, "{stopped}");
    assert_bits(&gradients, &expected, "the masks");
}

/// Two passes and the gradients of the masters.
fn learn(model: &Model, quantization: &mut Quantization, compute: &Compute, mode: Mode) -> (Vec<f32>, Vec<f32>) {
    let (mut activations, mut buffers) = (Activations::for_training(), BackwardBuffers::default());
    let masters = model.masters.values();
    let used = UsedRows::of(model.bert.config(), [&model.batch]);
    quantization.before_step(compute, masters, 0, &used).unwrap();
    let pass = QuantizedPass { compute, batch: &model.batch, mode };
    quantization.forward(&model.bert, pass, &mut activations).unwrap();
    model.bert.loss(&model.batch, &activations, 1.0, &mut buffers);
    let mut gradients = vec![0.0; masters.len()];
    let weights = quantization.quantized();
    model.bert.backward(
        Pass { compute, weights, batch: &model.batch, mode },
        &activations,
        &mut buffers,
        &mut gradients,
    );
    quantization.after_backward(compute, masters, (&used, Mask::Clamp), &mut gradients);
    (activations.logits.clone(), gradients)
}

const TRAIN: Mode = Mode::Train { seed: 5, step: 9 };

#[test]
fn any_number_of_threads_gives_the_same_bytes() {
    for name in ["sequence", "token", "span"] {
        let model = Model::tiny(name);
        let results = [1, 2, 3].map(|threads| {
            let (compute, mut quantization) = (compute(threads), model.quantization(&mixed_plan(3)));
            quantization.fit(&compute, model.masters.values()).unwrap();
            let (logits, gradients) = learn(&model, &mut quantization, &compute, TRAIN);
            (logits, gradients, quantization.ranges().unwrap().clone(), quantization.weights().flat_ranges())
        });
        assert!(results[0].1.iter().all(|gradient| gradient.is_finite()));
        assert!(results.iter().all(|result| *result == results[0]), "{name}");
    }
}

#[test]
fn a_plan_that_quantizes_nothing_changes_nothing() {
    let model = Model::tiny("span");
    let plan = Plan::uniform(3, Precision::Full, GroupSpec::Count(1), RangeMethod::Mse);
    let mut quantization = model.quantization(&plan);
    let compute = compute(2);
    quantization.fit(&compute, model.masters.values()).unwrap();
    assert_bits(quantization.quantized(), model.masters.values(), "a copy");
    let (logits, gradients) = learn(&model, &mut quantization, &compute, TRAIN);
    let (mut activations, mut buffers) = (Activations::for_training(), BackwardBuffers::default());
    let weights = model.masters.values();
    model.bert.forward(&compute, weights, &model.batch, TRAIN, &mut activations);
    model.bert.loss(&model.batch, &activations, 1.0, &mut buffers);
    let mut expected = vec![0.0; weights.len()];
    model.bert.backward(
        Pass { compute: &compute, weights, batch: &model.batch, mode: TRAIN },
        &activations,
        &mut buffers,
        &mut expected,
    );
    assert_bits(&logits, &activations.logits, "logits");
    assert_bits(&gradients, &expected, "gradients");
}

#[test]
fn buffers_forget_that_they_were_quantized() {
    let model = Model::tiny("sequence");
    let compute = compute(1);
    let mut quantization = model.quantization(&mixed_plan(3));
    quantization.fit(&compute, model.masters.values()).unwrap();
    let plain = |activations: &mut Activations| {
        let mut buffers = BackwardBuffers::default();
        let weights = model.masters.values();
        model.bert.forward(&compute, weights, &model.batch, TRAIN, activations);
        model.bert.loss(&model.batch, activations, 1.0, &mut buffers);
        let mut gradients = vec![0.0; weights.len()];
        model.bert.backward(
            Pass { compute: &compute, weights, batch: &model.batch, mode: TRAIN },
            activations,
            &mut buffers,
            &mut gradients,
        );
        gradients
    };
    let expected = plain(&mut Activations::for_training());
    let mut used = Activations::for_training();
    let pass = QuantizedPass { compute: &compute, batch: &model.batch, mode: TRAIN };
    quantization.forward(&model.bert, pass, &mut used).unwrap();
    assert_bits(&plain(&mut used), &expected, "after a quantized pass");
}

/// Ranges that only take turns must stay as good as ranges found anew while the masters drift as in training.
#[test]
fn ranges_follow_the_masters() {
    let model = Model::tiny("sequence");
    let plan = Plan::uniform(3, bits(2), GroupSpec::Count(4), RangeMethod::Mse);
    let mut quantizer = WeightQuantizer::new(&plan, model.bert.config(), model.bert.layout()).unwrap();
    let mut masters = model.masters.values().to_vec();
    let compute = compute(2);
    quantizer.fit(&compute, &masters).unwrap();
    let mut drift = vec![0.0; masters.len()];
    Stream::new(1, "drift", 0).fill_normal(&mut drift, 1.0);
    for step in 0..200 {
        // A hundredth of a weight's deviation per step: thirty times what Adam does at usual rates.
        masters.iter_mut().zip(&drift).for_each(|(master, drift)| *master += 0.0025 * drift);
        quantizer.follow(&compute, &masters, step).unwrap();
    }
    let error = |quantizer: &WeightQuantizer| -> f64 {
        let sites = quantizer.iter().filter(|(site, _)| site.layer().is_some());
        sites
            .flat_map(|(site, params)| {
                let values = &masters[model.bert.layout().site(site).unwrap().span.clone()];
                let cols = params.layout().cols();
                let groups = params.layout().groups().iter().zip(params.ranges());
                let errors: Vec<f64> = groups
                    .map(|(rows, range)| {
                        squared_error(&values[rows.start * cols..rows.end * cols], *range, params.bits())
                    })
                    .collect();
                errors
            })
            .sum()
    };
    let followed = error(&quantizer);
    quantizer.refine(&compute, &masters).unwrap();
    let refined = error(&quantizer);
    quantizer.fit(&compute, &masters).unwrap();
    let best = error(&quantizer);
    assert!(refined <= followed, "{refined} after {followed}");
    assert!(followed < 1.1 * best, "{followed}, but {best} is possible");
}

#[test]
fn a_group_of_equal_values_and_a_layer_of_one_bit_train() {
    let mut model = Model::tiny("sequence");
    let layout = Arc::clone(model.masters.layout());
    let equal = layout.site("layer.1.output".parse().unwrap()).unwrap();
    model.masters.values_mut()[equal.span.clone()].fill(0.25);
    for range in ["mse", "min-max", "percentile:99"] {
        let mut plan = Plan::uniform(3, Precision::Bits(BitWidth::ONE), GroupSpec::PerNeuron, method(range));
        plan.site_mut("embedding.word".parse().unwrap()).unwrap().bits = bits(1);
        let (compute, mut quantization) = (compute(2), model.quantization(&plan));
        quantization.fit(&compute, model.masters.values()).unwrap();
        assert!(quantization.quantized()[equal.span.clone()].iter().all(|value| *value == 0.25), "{range}");
        let (logits, gradients) = learn(&model, &mut quantization, &compute, TRAIN);
        assert!(logits.iter().chain(&gradients).all(|value| value.is_finite()), "{range}");
        assert!(gradients[equal.span.clone()].iter().any(|gradient| *gradient != 0.0), "equal values can still part");
    }
}

/// With `W_v` and its bias zero the context is always zero, and so are the activations of `value` and `context`.
#[test]
fn activations_that_are_always_zero_do_no_harm() {
    let mut model = Model::tiny("token");
    for name in ["weight", "bias"] {
        let name = format!("encoder.layer.0.attention.self.value.{name}");
        model.masters.named_mut(&name).unwrap().fill(0.0);
    }
    let plan = Plan::uniform(3, bits(4), GroupSpec::Count(4), RangeMethod::Mse);
    let (compute, mut quantization) = (compute(1), model.quantization(&plan));
    quantization.fit(&compute, model.masters.values()).unwrap();
    let (logits, gradients) = learn(&model, &mut quantization, &compute, TRAIN);
    assert!(logits.iter().chain(&gradients).all(|value| value.is_finite()));
    let found: Vec<String> = quantization
        .ranges()
        .unwrap()
        .iter()
        .filter(|(_, params)| *params == qbert_quant::ActivationParams::ZERO)
        .map(|(name, _)| name)
        .collect();
    assert_eq!(found, ["layer.0.value", "layer.0.context"]);
}

#[test]
fn what_cannot_be_quantized_is_refused_by_name() {
    let mut model = Model::tiny("sequence");
    let refused = |plan: Plan| {
        let error = Quantization::new(plan, model.bert.config(), model.bert.layout()).unwrap_err();
        (error.to_string(), error.hint().unwrap_or_default())
    };
    let plan = |layers| Plan::uniform(layers, bits(4), GroupSpec::Count(4), RangeMethod::Mse);
    let (message, hint) = refused(plan(12));
    assert_eq!(message, "the plan is for 12 encoder layers, the model has 3");
    assert_eq!(hint, "use a plan with layer.0 to layer.2");
    let (message, hint) = refused(Plan::uniform(3, bits(4), GroupSpec::Count(128), RangeMethod::Mse));
    assert_eq!(message, "layer.0.query: 128 groups for 20 output neurons: some would be empty");
    assert!(hint.contains("at most 20 groups"), "{hint}");
    let mut four = *plan(3).activation();
    four.bits = bits(4);
    let (message, _) = refused(plan(3).with_activation(four));
    assert_eq!(message, "[activation] bits is 4: activations are quantized to 8 bits, or left in f32 with 32");

    for (site, method) in [("layer.2.key", "mse"), ("layer.0.output", "min-max"), ("embedding.word", "min-max")] {
        let site: Site = site.parse().unwrap();
        let span = model.bert.layout().site(site).unwrap().span.clone();
        let good = std::mem::replace(&mut model.masters.values_mut()[span.start + 33], f32::NAN);
        let plan = plan(3).with_weight_range(method.parse().unwrap());
        let mut quantization = Quantization::new(plan, model.bert.config(), model.bert.layout()).unwrap();
        let error = quantization.fit(&compute(2), model.masters.values()).unwrap_err();
        assert_eq!(error.to_string(), format!("{site}: value NaN at index 33 cannot be quantized"));
        assert!(error.hint().unwrap().contains("check the checkpoint"));
        model.masters.values_mut()[span.start + 33] = good;
    }

    // A bias is no site; what it does to activations is noticed where their ranges are learned.
    model.masters.named_mut("encoder.layer.1.attention.self.key.bias").unwrap()[0] = f32::NAN;
    let mut quantization = Quantization::new(plan(3), model.bert.config(), model.bert.layout()).unwrap();
    let compute = compute(2);
    quantization.fit(&compute, model.masters.values()).unwrap();
    let pass = QuantizedPass { compute: &compute, batch: &model.batch, mode: Mode::Evaluate };
    let error = quantization.forward(&model.bert, pass, &mut Activations::for_evaluation()).unwrap_err();
    assert!(matches!(&error, Error::Activation { name, .. } if name == "layer.1.key"), "{error}");
}

/// The mean square of what quantization changes in the last hidden state.
fn change(model: &Model, quantization: &Quantization, machine: &Compute) -> f64 {
    let (mut own, mut full) = (Activations::for_evaluation(), Activations::for_evaluation());
    let pass = QuantizedPass { compute: machine, batch: &model.batch, mode: Mode::Evaluate };
    quantization.answer(&model.bert, pass, &mut own);
    model.bert.forward(machine, model.masters.values(), &model.batch, Mode::Evaluate, &mut full);
    let last = |of: &Activations| of.hidden[of.hidden_index(model.bert.config().layers)].clone();
    let (own, full) = (last(&own), last(&full));
    own.iter().zip(&full).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>() / own.len() as f64
}

#[test]
fn compensated_weights_lie_on_their_grids_and_change_less() {
    compensated_with(2.0, RangeMethod::Mse);
    compensated_with(1.6, RangeMethod::Mse);
    compensated_with(4.0, RangeMethod::MinMax);
}

fn compensated_with(width: f64, range: RangeMethod) {
    let model = Model::tiny("sequence");
    let plan = Plan::uniform(model.bert.config().layers, bits(width), GroupSpec::Count(4), range);
    let mut results = Vec::new();
    for threads in [1, 3] {
        let machine = Compute::detect(threads).unwrap();
        let mut quantization = model.quantization(&plan);
        quantization.fit(&machine, model.masters.values()).unwrap();
        let batches = [model.batch.clone()];
        quantization.learn_ranges(&model.bert, &machine, &batches).unwrap();
        let nearest = change(&model, &quantization, &machine);
        let mut masters = model.masters.values().to_vec();
        quantization.compensate(&model.bert, &machine, &mut masters, &batches).unwrap();
        let compensated = change(&model, &quantization, &machine);
        assert!(compensated < 0.7 * nearest, "{compensated} {nearest}");
        for site in Site::all(plan.layers().len()) {
            let span = model.bert.layout().site(site).unwrap().span.clone();
            if site.layer().is_some() {
                assert_eq!(quantization.quantized()[span.clone()], masters[span], "{site}");
            } else {
                assert_eq!(model.masters.values()[span.clone()], masters[span], "tables are left alone");
            }
        }
        // The ranges of rounded matrices stay, or they would be rounded again.
        quantization.before_evaluation(&machine, &masters).unwrap();
        for site in Site::all(plan.layers().len()).filter(|site| site.layer().is_some()) {
            let span = model.bert.layout().site(site).unwrap().span.clone();
            let pairs = quantization.quantized()[span.clone()].iter().zip(&masters[span]);
            let apart = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(apart < if range == RangeMethod::Mse { 1e-4 } else { 1e-30 }, "{site}: {apart}");
        }
        results.push((masters, quantization.weights().flat_ranges()));
    }
    assert!(results[0] == results[1], "threads made a difference");
}

#[test]
fn fitted_layers_come_closer_to_full_precision_and_lie_on_their_grids() {
    for (width, activations) in [(2.0, 8), (1.6, 8), (2.0, 32)] {
        let model = Model::tiny("sequence");
        let activation = ActivationPlan { bits: bits(activations), range: RangeMethod::MinMax };
        let plan = Plan::uniform(model.bert.config().layers, bits(width), GroupSpec::Count(4), RangeMethod::Mse)
            .with_activation(activation);
        let mut results = Vec::new();
        for threads in [1, 3] {
            let machine = Compute::detect(threads).unwrap();
            let batches = [model.batch.clone()];
            let calibrated = |fit_steps: usize| {
                let mut quantization = model.quantization(&plan);
                let mut masters = model.masters.values().to_vec();
                let (bert, compute) = (&model.bert, &machine);
                let calibration = Calibration { bert, compute, batches: &batches, compensate: true, fit_steps };
                let mut passes = vec![(0, 0)];
                quantization
                    .calibrate_watched(&mut masters, calibration, &mut |done, of| passes.push((done, of)))
                    .unwrap();
                let (last, total) = passes[passes.len() - 1];
                assert_eq!((last, passes.len() - 1), (total, total), "progress ends where it said");
                (quantization, masters)
            };
            let rounded = change(&model, &calibrated(0).0, &machine);
            let (quantization, masters) = calibrated(60);
            let fitted = change(&model, &quantization, &machine);
            assert!(fitted < 0.6 * rounded, "{width} bits, activations {activations}: {fitted} {rounded}");
            for site in Site::all(plan.layers().len()).filter(|site| site.layer().is_some()) {
                let span = model.bert.layout().site(site).unwrap().span.clone();
                assert_eq!(quantization.quantized()[span.clone()], masters[span], "{site}");
            }
            results.push((masters, quantization.weights().flat_ranges()));
        }
        assert!(results[0] == results[1], "threads made a difference");
    }
}
