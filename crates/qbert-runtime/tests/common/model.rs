// Tiny packed models of every kind, made in memory. Tests and documentation examples use them; the latter include this
// file, so it has no inner attributes and no submodules.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use qbert_model::family::BERT;
use qbert_model::packed::{LayerActivations, PackedContents, PackedTokenizer, packed_bytes};
use qbert_model::{Config, Head, ParameterLayout, Parameters};
use qbert_quant::{
    ActivationParams, ActivationPlan, EmbeddingPlan, GroupSpec, Plan, Precision, RangeMethod, Site, SitePlan,
};
use qbert_runtime::{Session, SessionOptions};
use quantize_sites::quantize_sites;

mod quantize_sites {
    include!("../../../qbert-model/tests/common/quantize_sites.rs");
}

pub(crate) const VOCABULARY: &str =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nowl\nof\nostby\nsaw\n##s\ntwo\n,\n.\nwho\n?\n";
pub(crate) const LAYERS: usize = 2;

/// How a model's parts are quantized.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Widths {
    /// Of the encoder's matrices, in turn.
    pub(crate) matrices: &'static [f64],
    /// Of the embedding tables.
    pub(crate) tables: [f64; 3],
    /// 8 or 32.
    pub(crate) activations: f64,
}

pub(crate) const ALL_WIDTHS: [Widths; 7] = [
    Widths { matrices: &[2.0, 3.0], tables: [4.0, 8.0, 8.0], activations: 8.0 },
    Widths { matrices: &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 32.0], tables: [3.0, 5.0, 32.0], activations: 8.0 },
    Widths { matrices: &[32.0, 4.0, 32.0, 8.0, 32.0, 2.0], tables: [32.0, 1.0, 7.0], activations: 8.0 },
    Widths { matrices: &[32.0], tables: [32.0; 3], activations: 8.0 },
    Widths { matrices: &[2.0, 8.0, 32.0, 3.0], tables: [8.0, 6.0, 2.0], activations: 32.0 },
    Widths { matrices: &[32.0], tables: [32.0; 3], activations: 32.0 },
    Widths { matrices: &[1.6, 2.0], tables: [1.6, 8.0, 8.0], activations: 8.0 },
];

pub(crate) fn bits(number: f64) -> Precision {
    Precision::from_number(number).unwrap()
}

impl Widths {
    pub(crate) fn plan(self) -> Plan {
        let range = RangeMethod::MinMax;
        let mut plan = Plan::uniform(LAYERS, bits(8.0), GroupSpec::Count(4), range);
        let own = self.matrices.iter().cycle();
        for (site, &width) in Site::all(LAYERS).filter(|site| site.layer().is_some()).zip(own) {
            plan.site_mut(site).unwrap().bits = bits(width);
        }
        let table = |width| SitePlan::new(bits(width), GroupSpec::Count(3), range);
        let [word, position, token_type] = self.tables.map(table);
        plan.with_embedding(EmbeddingPlan { word, position, token_type })
            .with_activation(ActivationPlan { bits: bits(self.activations), range })
    }
}

pub(crate) fn config(head: Head, positions: usize) -> Config {
    config_of(head, positions, Sizes { hidden: 24, heads: 3, intermediate: 40 })
}

/// How wide a model is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    pub(crate) intermediate: usize,
}

pub(crate) fn config_of(head: Head, positions: usize, sizes: Sizes) -> Config {
    let Sizes { hidden, heads, intermediate } = sizes;
    let labels = match head {
        Head::TokenClassification => r#"{"0": "O", "1": "B-LOC", "2": "I-LOC"}"#,
        _ => r#"{"0": "no", "1": "yes"}"#,
    };
    let text = format!(
        r#"{{"architectures": ["{}"], "model_type": "bert", "vocab_size": 16, "hidden_size": {hidden},
            "num_hidden_layers": {LAYERS}, "num_attention_heads": {heads}, "intermediate_size": {intermediate},
            "max_position_embeddings": {positions}, "type_vocab_size": 2, "id2label": {labels}}}"#,
        BERT.class(head).architecture
    );
    Config::parse(text.as_bytes(), Path::new("config.json")).unwrap()
}

/// Numbers between -1 and 1 without a pattern.
pub(crate) fn noise(index: usize) -> f32 {
    let mut state = (index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x1234_5678;
    state = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((state >> 40) as f32) / ((1_u64 << 23) as f32) - 1.0
}

/// The bytes of a packed model whose file does not say what it was trained for.
pub(crate) fn packed(head: Head, positions: usize, widths: Widths) -> Vec<u8> {
    packed_for("", head, positions, widths)
}

/// The bytes of a packed model that was trained for a task.
pub(crate) fn packed_for(task: &str, head: Head, positions: usize, widths: Widths) -> Vec<u8> {
    packed_of(task, head, &config(head, positions), widths)
}

/// The bytes of a packed model of this configuration.
pub(crate) fn packed_of(task: &str, head: Head, config: &Config, widths: Widths) -> Vec<u8> {
    let labels = match head {
        Head::None | Head::QuestionAnswering => Vec::new(),
        _ => config.labels.clone(),
    };
    let outputs = if head == Head::QuestionAnswering { 2 } else { labels.len() };
    let layout = Arc::new(ParameterLayout::new(config, head, outputs, head == Head::None));
    let mut values = vec![0.0; layout.len()];
    for parameter in layout.parameters() {
        let norm = parameter.name.contains("LayerNorm.weight");
        for index in parameter.span.clone() {
            values[index] = if norm { 1.0 + 0.3 * noise(index) } else { 0.4 * noise(index) };
        }
    }
    let parameters = Parameters::new(layout, values);
    let plan = widths.plan();
    let sites = quantize_sites(config, &parameters, &plan);
    let params = |step: f32, zero| ActivationParams::new(step, zero).unwrap();
    let activations = [LayerActivations::from_array([
        params(0.025, 120),
        params(0.03, 131),
        params(0.028, 127),
        params(0.031, 125),
        params(0.02, 128),
        params(0.026, 122),
        params(0.02, 9),
    ]); LAYERS];
    let contents = PackedContents {
        config,
        parameters: &parameters,
        labels: &labels,
        task,
        plan: &plan,
        sites: &sites,
        activations: (widths.activations == 8.0).then_some(&activations[..]),
        tokenizer: PackedTokenizer::Vocabulary { text: VOCABULARY.as_bytes(), options: r#"{"do_lower_case":true}"# },
        provenance: &BTreeMap::new(),
    };
    packed_bytes("tiny.qbert", &contents).unwrap()
}

pub(crate) fn session(head: Head, positions: usize, widths: Widths, threads: usize) -> Session {
    let options = SessionOptions::default().threads(threads);
    Session::from_bytes("tiny.qbert", packed(head, positions, widths), options).unwrap()
}

/// A model that was trained for a task.
pub(crate) fn session_for(head: Head, task: &str) -> Session {
    let bytes = packed_for(task, head, 48, ALL_WIDTHS[0]);
    Session::from_bytes("tiny.qbert", bytes, SessionOptions::default().threads(1)).unwrap()
}

pub(crate) fn classifier() -> Session {
    session_for(Head::SequenceClassification, "")
}

pub(crate) fn tagger() -> Session {
    session_for(Head::TokenClassification, "")
}

pub(crate) fn reader() -> Session {
    session_for(Head::QuestionAnswering, "")
}
