//! The quantized model and its straight-through gradients against PyTorch's autograd (`reference/qat/`): mixed widths
//! from 1 bit to 32, groups of every kind, quantized embeddings and activations, with and without a teacher.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::sync::Arc;

use common::{Golden, compute, distance, goldens, largest};
use qbert_kernels::Compute;
use qbert_model::{Checkpoint, Parameters};
use qbert_quant::{ActivationParams, Mask, Range};
use qbert_train::bert::{ActivationTensor, Activations, BackwardBuffers, Integers, Mode, Pass, WeightCodes};
use qbert_train::qat::Quantization;
use qbert_train::qat::activations::ActivationRanges;
use qbert_train::qat::distill::{Distillation, Teacher};
use qbert_train::qat::files::read_plan;
use qbert_train::qat::weights::UsedRows;
use qbert_train::{Batch, Bert};

/// Our f32 against f64 rounded to f32. The script keeps every activation at least 2e-4 codes from a tie, so both round
/// alike; what is left is rounding. Measured with every instruction set: 4e-7 of activations, 4e-6 of a tensor's largest
/// gradient (2e-5 for key biases, whose gradient only the clamp keeps from being zero).
const ACTIVATION_TOLERANCE: f64 = 4e-6;
const GRADIENT_TOLERANCE: f64 = 2e-5;

/// As in the script.
const DISTILLATION: Distillation =
    Distillation { labels: 0.7, answers: 1.3, hidden: 0.6, attention: 0.9, similarities: 0.0, temperature: 1.5 };

struct Twin {
    name: &'static str,
    golden: Golden,
    compute: Compute,
    bert: Bert,
    masters: Parameters,
    batch: Batch,
    quantization: Quantization,
    ranges: ActivationRanges,
    used: UsedRows,
    /// Quantized; of the embedding tables only the rows in use, so that reading another one shows.
    weights: Vec<f32>,
    codes: WeightCodes,
}

impl Twin {
    fn open(name: &'static str) -> Self {
        let golden = Golden::open(&format!("../goldens-qat/{name}.safetensors"));
        let checkpoint = Checkpoint::open(&goldens().join(format!("tiny-{name}"))).unwrap();
        let masters = checkpoint.load().unwrap();
        let bert = Bert::new(checkpoint.config(), Arc::clone(masters.layout())).unwrap();
        let plan = read_plan(&goldens().join("../goldens-qat/plan.toml")).unwrap();
        let mut quantization = Quantization::new(plan, bert.config(), bert.layout()).unwrap();
        let compute = compute(2);
        // Ranges of min-max sites are found; the others are a sub-interval that only the golden knows.
        quantization.fit(&compute, masters.values()).unwrap();
        let sites: Vec<_> = quantization.weights().iter().map(|(site, own)| (site, own.ranges().to_vec())).collect();
        let plan = quantization.plan().clone();
        for (site, found) in sites {
            let ends = golden.floats(&format!("range/{site}"));
            let stored: Vec<Range> = ends
                .as_chunks::<2>()
                .0
                .iter()
                .map(|[low, high]| Range::new(*low as f32, *high as f32).unwrap())
                .collect();
            if plan.site(site).unwrap().range == qbert_quant::RangeMethod::MinMax {
                assert_eq!(found, stored, "{site}");
            }
            quantization.weights_mut().set_ranges(site, stored).unwrap();
        }
        let mut ranges = ActivationRanges::new(bert.config().layers);
        for layer in 0..bert.config().layers {
            for tensor in ActivationTensor::ALL.into_iter().filter(|tensor| tensor.is_learned()) {
                let stored = golden.floats(&format!("activation/layer.{layer}.{}", tensor.name()));
                ranges.set(layer, tensor, ActivationParams::new(stored[0] as f32, stored[1] as u8).unwrap());
            }
        }
        let batch = golden.batch();
        bert.check(&batch).unwrap();
        let used = UsedRows::of(bert.config(), [&batch]);
        let mut weights = vec![f32::NAN; masters.values().len()];
        quantization.weights().quantize(&compute, masters.values(), Some(&used), &mut weights).unwrap();
        let mut codes = WeightCodes::default();
        quantization.weights().encode(&compute, masters.values(), &mut codes).unwrap();
        Self { name, golden, compute, bert, masters, batch, quantization, ranges, used, weights, codes }
    }

    fn pass(&self) -> Pass<'_> {
        Pass { compute: &self.compute, weights: &self.weights, batch: &self.batch, mode: Mode::Evaluate }
    }

    fn forward(&self, activations: &mut Activations) {
        let integers = Integers { activations: &mut &self.ranges, weights: &self.codes };
        self.bert.forward_with(self.pass(), Some(integers), activations);
    }

    fn close(&self, what: &str, ours: &[f32]) {
        let theirs = self.golden.floats(what);
        let (error, bound) = (distance(ours, &theirs), ACTIVATION_TOLERANCE * largest(&theirs).max(1.0));
        assert!(error < bound, "{} {what}: off by {error:e}, allowed {bound:e}", self.name);
    }

    /// The gradients of the quantized weights, made those of the masters, against the golden's.
    fn check_gradients(&mut self, prefix: &str, mut gradients: Vec<f32>) {
        self.quantization.after_backward(
            &self.compute,
            self.masters.values(),
            (&self.used, Mask::Clamp),
            &mut gradients,
        );
        let layout = self.masters.layout();
        for parameter in layout.parameters() {
            let theirs = self.golden.floats(&format!("{prefix}/{}", layout.file_name(parameter)));
            let error = distance(&gradients[parameter.span.clone()], &theirs);
            // Some gradients are zero in exact arithmetic; there only noise is left.
            let bound = (GRADIENT_TOLERANCE * largest(&theirs)).max(2e-7);
            let name = &parameter.name;
            assert!(error < bound, "{} {prefix} of {name}: off by {error:e}, allowed {bound:e}", self.name);
        }
        // A mask that stops nothing would have to be found by the comparison above: there is something to stop.
        let word = &gradients[self.bert.spans().embeddings[0].clone()];
        assert!(word.iter().any(|gradient| *gradient != 0.0));
    }
}

fn check(name: &'static str) {
    let mut twin = Twin::open(name);
    let (mut activations, mut buffers) = (Activations::for_training(), BackwardBuffers::default());
    twin.forward(&mut activations);
    twin.close("hidden", &activations.hidden[twin.bert.config().layers]);
    twin.close("logits", &activations.logits);
    let mut lean = Activations::for_evaluation();
    twin.forward(&mut lean);
    assert_eq!(lean.logits, activations.logits, "evaluation's buffers say the same");

    let loss = twin.bert.loss(&twin.batch, &activations, 1.0, &mut buffers).mean;
    assert!((loss - twin.golden.floats("loss")[0]).abs() < 1e-6, "{name}: loss {loss}");
    let mut gradients = vec![0.0; twin.weights.len()];
    twin.bert.backward_with(twin.pass(), None, &activations, &mut buffers, &mut gradients);
    twin.check_gradients("grad", gradients);

    let mut teacher = Teacher::new(twin.masters.values().to_vec(), DISTILLATION);
    teacher.look(&twin.bert, &twin.compute, &twin.batch);
    let loss = teacher.loss(&twin.bert, &twin.compute, &twin.batch, &activations, 1.0, &mut buffers);
    assert!((loss.labels - twin.golden.floats("term/labels")[0]).abs() < 1e-6, "{name}: {loss:?}");
    assert!((loss.total - twin.golden.floats("distilled_loss")[0]).abs() < 1e-5, "{name}: {loss:?}");
    let mut gradients = vec![0.0; twin.weights.len()];
    let targets = Some(teacher.targets(1.0));
    twin.bert.backward_with(twin.pass(), targets, &activations, &mut buffers, &mut gradients);
    twin.check_gradients("distilled_grad", gradients);
}

#[test]
fn the_sequence_classifier_equals_its_twin() {
    check("sequence");
}

#[test]
fn the_token_classifier_equals_its_twin() {
    check("token");
}

#[test]
fn the_span_head_equals_its_twin() {
    check("span");
}
