//! A tiny BERT on disk, in every spelling a checkpoint can have, with one thing wrong at a time.

#![allow(dead_code, reason = "every test binary uses its own part")]

pub(crate) mod quantize_sites;

use std::collections::BTreeMap;
use std::path::Path;

use qbert_model::family::BERT;
use qbert_model::{Config, Head, ParameterLayout};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

pub(crate) const CONFIG: &str = r#"{
  "architectures": ["BertForSequenceClassification"],
  "model_type": "bert",
  "vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
  "intermediate_size": 12, "max_position_embeddings": 7, "type_vocab_size": 2,
  "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
  "layer_norm_eps": 1e-12, "initializer_range": 0.02, "torch_dtype": "float16",
  "id2label": {"0": "no", "1": "maybe", "2": "yes"}, "label2id": {"no": 0, "maybe": 1, "yes": 2},
  "a_key_of_tomorrow": {"kept": [1, 2.5]}
}"#;

/// One tensor to be written.
#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

/// The tensors of a checkpoint under the names it will have in the file.
#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) config: String,
    pub(crate) tensors: BTreeMap<String, Tensor>,
}

impl Model {
    /// The tiny model with a head: `transformers` names, f32, values that differ everywhere.
    pub(crate) fn new(head: Head) -> Self {
        let parsed = Config::parse(CONFIG.as_bytes(), Path::new("config.json")).unwrap();
        let outputs = match head {
            Head::None => 0,
            Head::QuestionAnswering => 2,
            _ => 3,
        };
        let layout = ParameterLayout::new(&parsed, head, outputs, head == Head::None);
        let tensors = layout.parameters().iter().map(|parameter| {
            let values = parameter.span.clone().map(value_at);
            let tensor = Tensor {
                dtype: Dtype::F32,
                shape: parameter.shape.clone(),
                bytes: values.flat_map(f32::to_le_bytes).collect(),
            };
            (layout.file_name(parameter), tensor)
        });
        let config = CONFIG.replace("BertForSequenceClassification", BERT.class(head).architecture);
        Self { config, tensors: tensors.collect() }
    }

    pub(crate) fn rename(&mut self, change: impl Fn(&str) -> String) {
        self.tensors = std::mem::take(&mut self.tensors).into_iter().map(|(n, t)| (change(&n), t)).collect();
    }

    pub(crate) fn convert_to(&mut self, dtype: Dtype) {
        for tensor in self.tensors.values_mut() {
            let values = tensor.bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
            tensor.bytes = match dtype {
                Dtype::F16 => values.flat_map(|v| half::f16::from_f32(v).to_le_bytes()).collect(),
                Dtype::BF16 => values.flat_map(|v| half::bf16::from_f32(v).to_le_bytes()).collect(),
                Dtype::F64 => values.flat_map(|v| f64::from(v).to_le_bytes()).collect(),
                other => panic!("no conversion to {other:?}"),
            };
            tensor.dtype = dtype;
        }
    }

    pub(crate) fn write(&self, directory: &Path) {
        self.write_config(directory);
        std::fs::write(directory.join("model.safetensors"), self.bytes(|_| true)).unwrap();
    }

    pub(crate) fn write_config(&self, directory: &Path) {
        std::fs::create_dir_all(directory).unwrap();
        std::fs::write(directory.join("config.json"), &self.config).unwrap();
        std::fs::write(directory.join("vocab.txt"), "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\nd\ne\nf\n").unwrap();
    }

    /// Two shards and their index.
    pub(crate) fn write_shards(&self, directory: &Path) {
        self.write_config(directory);
        let first = |name: &str| name.contains("layer.0") || name.contains("embeddings");
        let names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
        std::fs::write(directory.join(names[0]), self.bytes(first)).unwrap();
        std::fs::write(directory.join(names[1]), self.bytes(|n| !first(n))).unwrap();
        let map: BTreeMap<&str, &str> =
            self.tensors.keys().map(|n| (n.as_str(), if first(n) { names[0] } else { names[1] })).collect();
        let index = serde_json::json!({"metadata": {"total_size": 1}, "weight_map": map});
        std::fs::write(directory.join("model.safetensors.index.json"), index.to_string()).unwrap();
    }

    pub(crate) fn bytes(&self, take: impl Fn(&str) -> bool) -> Vec<u8> {
        let views = self.tensors.iter().filter(|(name, _)| take(name));
        let views = views.map(|(n, t)| (n.as_str(), TensorView::new(t.dtype, t.shape.clone(), &t.bytes).unwrap()));
        safetensors::serialize(views, None).unwrap()
    }
}

/// The value at a place of the flat array: exact in f16 and bf16, so that every format loads to the same numbers.
pub(crate) fn value_at(index: usize) -> f32 {
    (index % 127) as f32 / 64.0 - 1.0
}
