//! Generated valid models: every multiplier of this CPU gives the same bits, and so does every instruction set where only
//! integers are computed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use qbert_kernels::Kernels;
use qbert_kernels::int::Multiplier;
use qbert_model::packed::{LayerActivations, PackedContents, PackedTokenizer, packed_bytes};
use qbert_model::{Config, Head, ParameterLayout, Parameters};
use qbert_quant::{ActivationParams, ActivationPlan, GroupSpec, Plan, Precision, RangeMethod, Site};
use qbert_runtime::{Scope, Session, SessionOptions, Tokens};

use crate::models::{noise, quantized};

const VOCABULARY: usize = 8;
const POSITIONS: usize = 40;

/// Numbers from the input, zero when it ends.
struct Choices<'a>(std::slice::Iter<'a, u8>);

impl Choices<'_> {
    fn below(&mut self, most: usize) -> usize {
        usize::from(self.0.next().copied().unwrap_or(0)) % most
    }
}

/// Builds the model that the bytes describe, and computes some sequences with every multiplier. Whether there is
/// such a model.
pub fn run(data: &[u8]) -> bool {
    let mut choices = Choices(data.iter());
    let Some(bytes) = model(&mut choices) else { return false };
    let lengths = [1 + choices.below(POSITIONS), 1 + choices.below(POSITIONS), 1 + choices.below(4)];
    let (mut ids, mut segments, mut offsets) = (Vec::new(), Vec::new(), vec![0]);
    for length in lengths {
        ids.extend((0..length).map(|_| choices.below(VOCABULARY) as u32));
        segments.extend((0..length).map(|index| u8::from(2 * index > length)));
        offsets.push(ids.len());
    }
    let tokens = Tokens { ids: &ids, segments: &segments, offsets: &offsets };
    for set in Kernels::supported() {
        let mut expected: Option<Vec<u32>> = None;
        for multiplier in Multiplier::supported() {
            let options = SessionOptions::default().threads(1).kernels(set.with_multiplier(multiplier));
            let session = Session::from_bytes("generated", bytes.clone(), options).expect("a valid model");
            let output = session.forward(tokens, Scope::All).expect("valid tokens");
            let bits: Vec<u32> = output.hidden().iter().chain(output.logits()).map(|value| value.to_bits()).collect();
            match &expected {
                None => expected = Some(bits),
                Some(expected) => assert_eq!(expected, &bits, "{} with {}", set.name(), multiplier.name()),
            }
        }
    }
    true
}

fn model(choices: &mut Choices<'_>) -> Option<Vec<u8>> {
    let heads = 1 + choices.below(4);
    let hidden = heads * (1 + choices.below(20));
    let (intermediate, layers) = (1 + choices.below(100), 1 + choices.below(2));
    let text = format!(
        r#"{{"architectures": ["BertForTokenClassification"], "model_type": "bert", "vocab_size": {VOCABULARY},
            "hidden_size": {hidden}, "num_hidden_layers": {layers}, "num_attention_heads": {heads},
            "intermediate_size": {intermediate}, "max_position_embeddings": {POSITIONS}, "type_vocab_size": 2,
            "id2label": {{"0": "O", "1": "B-A", "2": "I-A"}}}}"#
    );
    let config = Config::parse(text.as_bytes(), Path::new("config.json")).ok()?;
    let layout = Arc::new(ParameterLayout::new(&config, Head::TokenClassification, 3, false));
    let (seed, scale) = (choices.below(256), [0.4, 1e-3, 30.0, 0.0][choices.below(4)]);
    let values = (0..layout.len()).map(|index| scale * noise(index + 7919 * seed)).collect();
    let parameters = Parameters::new(layout, values);
    let plan = plan(choices, layers, hidden.min(intermediate))?;
    let sites = quantized(&config, &parameters, &plan);
    let params = |choices: &mut Choices<'_>| {
        let step = [0.02, 1e-4, 3.0, 0.5][choices.below(4)];
        ActivationParams::new(step, choices.below(256) as u8)
    };
    let mut activations = Vec::new();
    for _ in 0..layers {
        let mut own = Vec::new();
        for _ in LayerActivations::NAMES {
            own.push(params(choices).ok()?);
        }
        activations.push(LayerActivations::from_array(own.try_into().ok()?));
    }
    let contents = PackedContents {
        config: &config,
        parameters: &parameters,
        labels: &config.labels,
        task: "",
        plan: &plan,
        sites: &sites,
        activations: (plan.activation().bits != Precision::Full).then_some(&activations),
        tokenizer: PackedTokenizer::Vocabulary {
            text: b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\n",
            options: "{}",
        },
        provenance: &BTreeMap::new(),
    };
    Some(packed_bytes("generated", &contents).expect("contents that fit together"))
}

fn plan(choices: &mut Choices<'_>, layers: usize, neurons: usize) -> Option<Plan> {
    let bits = |choices: &mut Choices<'_>| {
        let number = [1, 2, 3, 4, 5, 6, 7, 8, 32][choices.below(9)];
        Precision::from_number(number).ok()
    };
    let groups = [GroupSpec::Count(1 + choices.below(neurons)), GroupSpec::PerNeuron][choices.below(2)];
    let mut plan = Plan::uniform(layers, bits(choices)?, groups, RangeMethod::MinMax);
    for site in Site::all(layers) {
        plan.site_mut(site).ok()?.bits = bits(choices)?;
    }
    let activation = if choices.below(4) == 0 { 32 } else { 8 };
    let bits = Precision::from_number(activation).ok()?;
    Some(plan.with_activation(ActivationPlan { bits, range: RangeMethod::MinMax }))
}
