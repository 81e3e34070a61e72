//! Files that were made to do harm: nothing panics, and nothing takes memory that the file does not have.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

#[path = "common/all.rs"]
mod common;

use allocation_counter::measure;
use common::{ALL_WIDTHS, noise, packed};
use qbert_model::Head;
use qbert_runtime::{Input, Session, SessionOptions};
use serde_json::{Map, Value, json};

/// What opening a file and asking it takes, at most.
const MOST_BYTES: u64 = 64 << 20;

/// Opens a file and asks it something; says what came of it.
fn ask(bytes: Vec<u8>) -> Result<(), String> {
    let mut said = Ok(());
    let taken = measure(|| {
        let session = Session::from_bytes("hostile.qbert", bytes, SessionOptions::default().threads(1));
        said = session.map_err(|error| error.to_string()).and_then(|session| {
            let question = Input::question("who ?", "the owl of ostby saw two owls .");
            let inputs = [Input::text("the owl saw two owls"), Input::pair("the owl", "of ostby"), question];
            let answers = session.predict_each(inputs);
            drop(session.embed(&["the owl"], qbert_runtime::Pooling::Mean));
            answers.into_iter().find(Result::is_ok).map(drop).ok_or_else(|| "no answer".to_owned())
        });
    });
    assert!(taken.bytes_max < MOST_BYTES, "{taken:?}");
    if let Err(said) = &said {
        assert!(said.len() < 2000, "an error of {} bytes", said.len());
    }
    said
}

#[test]
fn point_15_a_plan_with_a_wide_space_in_a_key_is_an_error() {
    let said = ask(include_bytes!("hostile/plan-panic.qbert").to_vec()).unwrap_err();
    assert!(said.contains("the plan inside") && said.contains("appears twice"), "{said}");
}

#[test]
fn point_17b_sixteen_million_labels_are_an_error() {
    let said = ask(include_bytes!("hostile/labels-16m.qbert").to_vec()).unwrap_err();
    assert!(said.contains("num_labels") && said.contains("65536"), "{said}");
}

/// A file taken apart, so that it can be put together again with right checksums and lies in it.
#[derive(Clone)]
struct Apart {
    header: Map<String, Value>,
    tensors: Vec<(String, Vec<u8>)>,
}

impl Apart {
    fn new(bytes: &[u8]) -> Self {
        let end = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
        let Value::Object(mut header) = serde_json::from_slice(&bytes[8..end]).unwrap() else { panic!("no object") };
        header.remove("checksums");
        let names = header.iter().filter(|(name, _)| *name != "__metadata__");
        let tensors = names.map(|(name, entry)| {
            let at = |i: usize| entry["data_offsets"][i].as_u64().unwrap() as usize + end;
            (name.clone(), bytes[at(0)..at(1)].to_vec())
        });
        Self { tensors: tensors.collect(), header }
    }

    fn config(&mut self, change: impl FnOnce(&mut Map<String, Value>)) {
        let text = &mut self.header["__metadata__"]["config"];
        let mut config: Map<String, Value> = serde_json::from_str(text.as_str().unwrap()).unwrap();
        change(&mut config);
        *text = Value::Object(config).to_string().into();
    }

    fn together(&self) -> Vec<u8> {
        let (mut header, mut data, mut sums) = (self.header.clone(), Vec::new(), Vec::new());
        for (name, bytes) in &self.tensors {
            header[name]["data_offsets"] = json!([data.len(), data.len() + bytes.len()]);
            data.extend_from_slice(bytes);
            sums.extend(crc32fast::hash(bytes).to_le_bytes());
        }
        let length = sums.len() + 8;
        let offsets = [data.len(), data.len() + length];
        header.insert("checksums".into(), json!({"dtype": "U8", "shape": [length], "data_offsets": offsets}));
        let text = Value::Object(header).to_string();
        let mut file = (text.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(text.as_bytes());
        sums.extend(crc32fast::hash(&file).to_le_bytes());
        sums.extend(crc32fast::hash(&sums).to_le_bytes());
        [file, data, sums].concat()
    }
}

const HEADS: [Head; 3] = [Head::SequenceClassification, Head::TokenClassification, Head::QuestionAnswering];

#[test]
fn configurations_that_lie_are_errors() {
    let numbers = ["0", "-1", "1", "2", "3", "7", "255", "65536", "16777216", "4294967296", "18446744073709551615"];
    let others = ["1e-45", "1e39", "1e308", "0.5", "null", "true", "[]", "{}", "\"24\"", "[[[[]]]]"];
    for head in HEADS {
        let good = Apart::new(&packed(head, 48, ALL_WIDTHS[0]));
        ask(good.together()).unwrap();
        let keys: Vec<String> = {
            let config: Map<String, Value> =
                serde_json::from_str(good.header["__metadata__"]["config"].as_str().unwrap()).unwrap();
            let more = ["layer_norm_eps", "num_labels", "hidden_dropout_prob", "is_decoder", "position_embedding_type"];
            config.keys().cloned().chain(more.map(str::to_owned)).collect()
        };
        for key in &keys {
            for value in numbers.iter().chain(&others) {
                let mut bad = good.clone();
                bad.config(|config| drop(config.insert(key.clone(), serde_json::from_str(value).unwrap())));
                let _ = ask(bad.together());
            }
            let mut bad = good.clone();
            bad.config(|config| drop(config.remove(key)));
            let _ = ask(bad.together());
        }
    }
}

#[test]
fn extreme_numbers_in_tensors_are_answers_or_errors() {
    let extreme = [
        0.0,
        -0.0,
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MAX,
        f32::MIN,
        f32::MIN_POSITIVE,
        f32::from_bits(1),
        -1.0,
        1e30,
        255.0,
        256.0,
        0.5,
    ];
    let widths = [ALL_WIDTHS[0], ALL_WIDTHS[1], ALL_WIDTHS[4]];
    for (head, widths) in HEADS.into_iter().zip(widths) {
        let good = Apart::new(&packed(head, 48, widths));
        for (index, (name, bytes)) in good.tensors.iter().enumerate() {
            let floats = good.header[name]["dtype"] == "F32";
            let values: Vec<[u8; 4]> =
                if floats { extreme.map(f32::to_le_bytes).to_vec() } else { vec![[0; 4], [0xff; 4]] };
            for (turn, value) in values.iter().enumerate() {
                let mut bad = good.clone();
                // The whole tensor, or one place in it.
                let place = (noise(1000 * index + turn).abs() * (bytes.len() / 4) as f32) as usize;
                for (at, target) in bad.tensors[index].1.as_chunks_mut().0.iter_mut().enumerate() {
                    if turn % 2 == 0 || at == place {
                        *target = *value;
                    }
                }
                let _ = ask(bad.together());
            }
        }
    }
}

#[test]
fn headers_that_lie_are_errors() {
    let good = Apart::new(&packed(Head::SequenceClassification, 48, ALL_WIDTHS[1]));
    let values =
        ["0", "1", "[]", "[0]", "[18446744073709551615]", "[4294967296, 4294967296]", "\"U8\"", "\"F32\"", "{}"];
    for (name, _) in &good.tensors {
        for key in ["dtype", "shape"] {
            for value in values {
                let mut bad = good.clone();
                let value: Value = serde_json::from_str(value).unwrap();
                if bad.header[name][key] != value {
                    bad.header[name][key] = value;
                    ask(bad.together()).unwrap_err();
                }
            }
        }
        // Without it, and with a part of it.
        let mut bad = good.clone();
        bad.header.remove(name);
        bad.tensors.retain(|(own, _)| own != name);
        ask(bad.together()).unwrap_err();
    }
    let metadata = good.header["__metadata__"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    for key in metadata {
        for value in ["", "0", "{}", "[]", "\u{3000}", "{\"a\": 1}", "\u{0}"] {
            let mut bad = good.clone();
            bad.header["__metadata__"][&key] = value.into();
            let _ = ask(bad.together());
        }
    }
}
