//! Packed models: what goes in comes out, and nothing that was damaged anywhere comes out at all.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::quantize_sites::quantize_sites;
use common::{CONFIG, Model, value_at};
use proptest::prelude::*;
use qbert_kernels::int::Coding;
use qbert_model::family::BERT;
use qbert_model::packed::{LayerActivations, PackedContents, PackedSite, PackedTokenizer, packed_bytes, write_packed};
use qbert_model::sizes::{file_size, site_bytes};
use qbert_model::{Checkpoint, Config, Head, Module, PackedModel, ParameterLayout, Parameters, Problem, Storage};
use qbert_quant::{
    ActivationParams, ActivationPlan, Embedding, EmbeddingPlan, GroupSpec, Plan, Precision, QuantizedMatrix,
    RangeMethod, Site, SitePlan,
};
use serde_json::{Value, json};

/// Everything a packed model is made of, for the tiny BERT.
struct Parts {
    config: Config,
    parameters: Parameters,
    labels: Vec<String>,
    plan: Plan,
    sites: BTreeMap<Site, QuantizedMatrix>,
    activations: Vec<LayerActivations>,
    vocabulary: Vec<u8>,
    provenance: BTreeMap<String, String>,
}

fn bits(bits: i32) -> Precision {
    Precision::from_number(bits).unwrap()
}

impl Parts {
    /// Every width once, some sites in f32, groups of every kind.
    fn new(head: Head) -> Self {
        let text = CONFIG.replace("BertForSequenceClassification", BERT.class(head).architecture);
        let config = Config::parse(text.as_bytes(), Path::new("config.json")).unwrap();
        let labels = match head {
            Head::SequenceClassification | Head::TokenClassification => config.labels.clone(),
            _ => Vec::new(),
        };
        let outputs = if head == Head::QuestionAnswering { 2 } else { labels.len() };
        let layout = Arc::new(ParameterLayout::new(&config, head, outputs, head == Head::None));
        let values = (0..layout.len()).map(value_at).collect();
        let mut plan = Plan::uniform(2, bits(2), GroupSpec::Count(3), RangeMethod::MinMax);
        let widths = [1, 2, 3, 4, 5, 6, 7, 8, 32, 2, 3, 4];
        for (site, width) in Site::all(2).skip(3).zip(widths) {
            let groups = if width % 2 == 0 { GroupSpec::PerNeuron } else { GroupSpec::PerHead };
            *plan.site_mut(site).unwrap() = SitePlan::new(bits(width), groups, RangeMethod::MinMax);
        }
        let table = |width, groups| SitePlan::new(bits(width), groups, RangeMethod::MinMax);
        let (columns, rows) = (GroupSpec::Count(4), GroupSpec::PerRow);
        let (word, position, token_type) = (table(4, columns), table(3, rows), table(32, columns));
        let plan = plan.with_embedding(EmbeddingPlan { word, position, token_type });
        let parameters = Parameters::new(layout, values);
        let sites = quantize_sites(&config, &parameters, &plan);
        let params = |seed: u8| ActivationParams::new(0.01 * f32::from(seed + 1), 17 * seed).unwrap();
        let activations =
            (0..2).map(|layer| LayerActivations::from_array(std::array::from_fn(|i| params(7 * layer + i as u8))));
        Self {
            labels,
            plan,
            sites,
            activations: activations.collect(),
            vocabulary: b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\nd\ne\nf\n".to_vec(),
            provenance: BTreeMap::from([("made by".to_owned(), "a test, \"quoted\"\n".to_owned())]),
            config,
            parameters,
        }
    }

    fn contents(&self) -> PackedContents<'_> {
        PackedContents {
            config: &self.config,
            parameters: &self.parameters,
            labels: &self.labels,
            task: "sst2",
            plan: &self.plan,
            sites: &self.sites,
            activations: Some(&self.activations),
            tokenizer: PackedTokenizer::Vocabulary { text: &self.vocabulary, options: r#"{"do_lower_case":true}"# },
            provenance: &self.provenance,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        packed_bytes("model.qbert", &self.contents()).unwrap()
    }
}

fn open(bytes: &[u8]) -> Result<PackedModel, qbert_model::Error> {
    PackedModel::from_bytes("model.qbert", bytes.to_vec())
}

/// Compares a packed model with what it was made of.
fn check_equal(parts: &Parts, model: &PackedModel) {
    assert_eq!(model.head(), parts.parameters.layout().head());
    assert_eq!(model.labels(), parts.labels);
    assert_eq!((model.task(), model.plan(), model.provenance()), ("sst2", &parts.plan, &parts.provenance));
    assert_eq!(model.activations(), Some(&parts.activations[..]));
    assert_eq!(model.layout(), &**parts.parameters.layout());
    let mut compared = 0;
    for parameter in parts.parameters.layout().parameters() {
        let values = parts.parameters.get(parameter);
        let site = parameter.role.site();
        match site.and_then(|site| model.site(site)) {
            None => assert_eq!(model.float(parameter.role).unwrap(), values),
            Some(PackedSite::Full(found, cols)) => {
                assert_eq!((&*found, cols), (values, parameter.shape[1]));
                assert!(!parts.sites.contains_key(&site.unwrap()));
            }
            Some(PackedSite::Matrix(weights, groups)) => {
                let matrix = &parts.sites[&site.unwrap()];
                assert_eq!((weights.codes(), groups.layout()), (matrix.codes().to_vec(), matrix.layout()));
                assert_eq!(groups.affines(), matrix.affines());
                let rows = matrix.row_params();
                assert_eq!(groups.steps(), rows.iter().map(|row| row.step).collect::<Vec<_>>());
                assert_eq!(groups.lows(), rows.iter().map(|row| row.low).collect::<Vec<_>>());
                compared += 1;
            }
            Some(PackedSite::Table(rows, groups)) => {
                let matrix = &parts.sites[&site.unwrap()];
                let codes: Vec<u8> = (0..rows.rows()).flat_map(|row| rows.row_codes(row)).collect();
                assert_eq!((codes.as_slice(), groups.layout()), (matrix.codes(), matrix.layout()));
                let by_row = groups.layout().axis().is_by_row();
                let steps = if by_row { rows.rows() } else { rows.cols() };
                assert_eq!((groups.affines(), groups.steps().len()), (matrix.affines(), steps));
                compared += 1;
            }
        }
    }
    assert_eq!(compared, parts.sites.len());
    assert!(model.site(Site::Layer(2, qbert_quant::Matrix::Key)).is_none());
    assert!(model.float(Module::OutputNorm(2).weight()).is_none(), "a layer that the model does not have");
}

#[test]
fn what_goes_in_comes_out() {
    for head in [Head::None, Head::SequenceClassification, Head::TokenClassification, Head::QuestionAnswering] {
        let parts = Parts::new(head);
        let model = open(&parts.bytes()).unwrap();
        check_equal(&parts, &model);
        let expected = PackedTokenizer::Vocabulary { text: &parts.vocabulary, options: r#"{"do_lower_case":true}"# };
        assert_eq!(model.tokenizer(), expected);
        let mut contents = parts.contents();
        contents.tokenizer = PackedTokenizer::Json(b"{}");
        let model = open(&packed_bytes("model.qbert", &contents).unwrap()).unwrap();
        assert_eq!(model.tokenizer(), PackedTokenizer::Json(b"{}"));
    }
}

#[test]
fn a_file_is_written_whole_and_used_where_it_is() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("model.qbert");
    let parts = Parts::new(Head::SequenceClassification);
    std::fs::write(&path, "something older").unwrap();
    let length = write_packed(&path, &parts.contents()).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!((bytes.len() as u64, &bytes), (length, &parts.bytes()), "the same contents give the same bytes");
    for storage in [Storage::Auto, Storage::Memory, Storage::Mapped] {
        let model = PackedModel::open_in(storage, &path).unwrap();
        check_equal(&parts, &model);
        model.verify().unwrap();
        let named: usize = model.sizes().iter().map(|(_, size)| size).sum();
        assert!(model.file_len() == bytes.len() && named < bytes.len());
        // Codes of matrices lie at cache lines, floats where floats may lie: nothing was copied.
        for site in Site::all(2) {
            match model.site(site) {
                Some(PackedSite::Matrix(weights, _)) => {
                    assert_eq!(weights.bytes().as_ptr().align_offset(64), 0);
                }
                Some(PackedSite::Full(values, _)) => assert!(matches!(values, std::borrow::Cow::Borrowed(_))),
                _ => {}
            }
        }
    }
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 1, "no litter");
}

#[test]
fn any_safetensors_reader_opens_it() {
    let bytes = Parts::new(Head::QuestionAnswering).bytes();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.tensor("layer.0.query.codes").unwrap().dtype(), safetensors::Dtype::U8);
    assert_eq!(file.tensor("layer.0.query.groups").unwrap().shape(), [2, 2]);
    assert_eq!(file.tensor("layer.1.activations").unwrap().shape(), [7, 2]);
    let start = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    assert!(start.is_multiple_of(64));
}

#[test]
fn every_flipped_byte_is_an_error() {
    let bytes = Parts::new(Head::SequenceClassification).bytes();
    let mut damaged = bytes.clone();
    for place in 0..bytes.len() {
        damaged[place] ^= 1 << (place % 8);
        let error = open(&damaged).expect_err("a flipped bit was not noticed");
        assert!(error.to_string().starts_with("model.qbert: "), "{error}");
        assert!(error.hint().is_some());
        damaged[place] = bytes[place];
    }
    open(&damaged).unwrap();
}

#[test]
fn every_lost_or_added_byte_is_an_error() {
    let bytes = Parts::new(Head::TokenClassification).bytes();
    for length in 0..bytes.len() {
        assert!(open(&bytes[..length]).is_err(), "{length} bytes");
    }
    for more in [1, 4, 64] {
        let mut longer = bytes.clone();
        longer.resize(bytes.len() + more, 0);
        assert!(open(&longer).is_err());
    }
    for lost in (0..bytes.len()).step_by(37) {
        let shorter = [&bytes[..lost], &bytes[lost + 1..]].concat();
        assert!(open(&shorter).is_err(), "byte {lost} lost");
    }
}

/// A file taken apart, so that it can be put together again with right checksums and one lie in it.
struct Apart {
    header: serde_json::Map<String, Value>,
    tensors: Vec<(String, Vec<u8>)>,
}

impl Apart {
    fn new(bytes: &[u8]) -> Self {
        let end = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
        let Value::Object(mut header) = serde_json::from_slice(&bytes[8..end]).unwrap() else { panic!("no object") };
        header.remove("checksums");
        let mut tensors = Vec::new();
        for (name, entry) in header.iter().filter(|(name, _)| *name != "__metadata__") {
            let at = |i: usize| entry["data_offsets"][i].as_u64().unwrap() as usize + end;
            tensors.push((name.clone(), bytes[at(0)..at(1)].to_vec()));
        }
        Self { header, tensors }
    }

    fn metadata(&mut self, key: &str, change: impl Fn(&str) -> String) {
        let value = &mut self.header["__metadata__"][key];
        *value = change(value.as_str().unwrap()).into();
    }

    fn bytes_of(&mut self, name: &str) -> &mut Vec<u8> {
        &mut self.tensors.iter_mut().find(|(n, _)| n == name).unwrap().1
    }

    /// Offsets and lengths of one dimension follow the bytes.
    fn together(&self) -> Vec<u8> {
        let mut header = self.header.clone();
        let sums_length = 4 * (self.tensors.len() + 2);
        let mut data = Vec::new();
        let mut sums = Vec::new();
        for (name, bytes) in &self.tensors {
            let entry = &mut header[name];
            entry["data_offsets"] = json!([data.len(), data.len() + bytes.len()]);
            if entry["shape"].as_array().unwrap().len() == 1 && entry["dtype"] == "U8" {
                entry["shape"] = json!([bytes.len()]);
            }
            data.extend_from_slice(bytes);
            sums.extend(crc32fast::hash(bytes).to_le_bytes());
        }
        let offsets = [data.len(), data.len() + sums_length];
        header.insert("checksums".into(), json!({"dtype": "U8", "shape": [sums_length], "data_offsets": offsets}));
        sealed(&Value::Object(header).to_string(), &data, sums)
    }
}

/// Header and data with right checksums of both.
fn sealed(header: &str, data: &[u8], mut sums: Vec<u8>) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    sums.extend(crc32fast::hash(&file).to_le_bytes());
    sums.extend(crc32fast::hash(&sums).to_le_bytes());
    file.extend_from_slice(data);
    file.extend(sums);
    file
}

/// Every complaint about a file whose checksums are right but whose content is not, and about other files.
#[test]
fn every_complaint() {
    let good = Parts::new(Head::SequenceClassification).bytes();
    let lie = |change: &dyn Fn(&mut Apart)| {
        let mut apart = Apart::new(&good);
        assert!(open(&apart.together()).is_ok(), "the tool itself lies");
        change(&mut apart);
        apart.together()
    };
    let float = |value: f32| value.to_le_bytes();
    let huge = json!({"__metadata__": {"format": "qbert", "version": "1"},
        "a": {"dtype": "U8", "shape": [u64::MAX - 20], "data_offsets": [0, u64::MAX - 20]},
        "b": {"dtype": "F32", "shape": [1_u64 << 62, 8], "data_offsets": [0, 32]}});
    let plain = Model::new(Head::SequenceClassification).bytes(|_| true);
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("empty", Vec::new()),
        ("a text", b"[PAD]\n[UNK]\n[CLS]\n[SEP]".to_vec()),
        ("a git-LFS pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n".to_vec()),
        ("a plain checkpoint", plain),
        ("half of it", good[..good.len() / 2].to_vec()),
        ("a header of other numbers", sealed(&huge.to_string(), &[], Vec::new())),
        ("a header that is no object", sealed("{]", &[], Vec::new())),
        ("another version", lie(&|a| a.metadata("version", |_| "2".to_owned()))),
        ("another format", lie(&|a| a.metadata("format", |_| "gguf".to_owned()))),
        ("no task", lie(&|a| drop(a.header["__metadata__"].as_object_mut().unwrap().remove("task")))),
        (
            "another configuration",
            lie(&|a| a.metadata("config", |c| c.replace("\"hidden_size\":8", "\"hidden_size\":16"))),
        ),
        ("a broken configuration", lie(&|a| a.metadata("config", |c| c[..c.len() / 2].to_owned()))),
        ("another width", lie(&|a| a.metadata("plan", |p| p.replacen("bits = 5", "bits = 6", 1)))),
        (
            "a plan of one layer",
            lie(&|a| {
                a.metadata("plan", |p| {
                    p.lines().filter(|l| !l.starts_with("layer.1")).fold(String::new(), |all, line| all + line + "\n")
                });
            }),
        ),
        ("activations of 4 bits", lie(&|a| a.metadata("plan", |p| p.replace("f32\nbits = 8", "f32\nbits = 4")))),
        ("codes too short", lie(&|a| a.bytes_of("layer.1.attention_output.codes").truncate(64))),
        (
            "a missing tensor",
            lie(&|a| {
                a.header.remove("layer.0.output.groups");
                a.tensors.retain(|(n, _)| n != "layer.0.output.groups");
            }),
        ),
        (
            "one tensor more",
            lie(&|a| {
                a.header.insert("extra".into(), json!({"dtype": "U8", "shape": [0]}));
                a.tensors.push(("extra".into(), vec![1]));
            }),
        ),
        ("another number format", lie(&|a| a.header["embedding.word.codes"]["dtype"] = "I8".into())),
        (
            "floats as bytes",
            lie(&|a| {
                let e = &mut a.header["pooler.dense.bias"];
                e["dtype"] = "U8".into();
            }),
        ),
        (
            "a bias that is not a number",
            lie(&|a| a.bytes_of("pooler.dense.bias")[4..8].copy_from_slice(&float(f32::NAN))),
        ),
        ("a negative step", lie(&|a| a.bytes_of("layer.0.key.groups")[..4].copy_from_slice(&float(-1.0)))),
        (
            "a row whose range ends before it begins",
            lie(&|a| a.bytes_of("embedding.position.ranges")[..4].copy_from_slice(&[0x80, 0x3f, 0x00, 0x3f])),
        ),
        (
            "a row without an end",
            lie(&|a| a.bytes_of("embedding.position.ranges")[2..4].copy_from_slice(&[0x80, 0x7f])),
        ),
        ("an activation step of 0", lie(&|a| a.bytes_of("layer.1.activations")[..4].copy_from_slice(&float(0.0)))),
        ("half a zero point", lie(&|a| a.bytes_of("layer.1.activations")[4..8].copy_from_slice(&float(12.5)))),
        ("a zero point of 300", lie(&|a| a.bytes_of("layer.1.activations")[4..8].copy_from_slice(&float(300.0)))),
        ("something hidden beside a matrix", lie(&|a| *a.bytes_of("layer.0.query.codes").last_mut().unwrap() = 0x80)),
    ];
    let mut said = String::new();
    for (name, bytes) in cases {
        let error = open(&bytes).expect_err(name);
        let hint = error.hint().unwrap_or_default();
        writeln!(said, "# {name}\n{error}\nhint: {hint}\n").unwrap();
    }
    insta::assert_snapshot!("packed_complaints", said);
}

#[test]
fn contents_that_do_not_fit_together_are_not_written() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("model.qbert");
    let parts = Parts::new(Head::SequenceClassification);
    let complaint = |change: &dyn Fn(&mut Parts)| {
        let mut parts = Parts::new(Head::SequenceClassification);
        change(&mut parts);
        let error = write_packed(&path, &parts.contents()).expect_err("nonsense was written");
        assert!(!path.exists() && error.hint().is_some());
        error.to_string().replace(home.path().to_str().unwrap(), "…")
    };
    let query = Site::Layer(0, qbert_quant::Matrix::Query);
    let key = parts.sites[&Site::Layer(0, qbert_quant::Matrix::Key)].clone();
    let wide = parts.sites[&Site::Layer(0, qbert_quant::Matrix::Output)].clone();
    let said = [
        complaint(&|parts| drop(parts.sites.remove(&query))),
        complaint(&|parts| drop(parts.sites.insert(query, key.clone()))),
        complaint(&|parts| drop(parts.sites.insert(query, wide.clone()))),
        complaint(&|parts| parts.activations.truncate(1)),
        complaint(&|parts| parts.labels.truncate(1)),
        complaint(&|parts| parts.parameters.named_mut("classifier.bias").unwrap()[1] = f32::INFINITY),
        complaint(&|parts| {
            let bits = Precision::Full;
            parts.plan = parts.plan.clone().with_activation(ActivationPlan { bits, range: RangeMethod::MinMax });
        }),
    ];
    insta::assert_snapshot!("packed_contents", said.join("\n"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever happens to a file, reading it neither panics nor succeeds.
    #[test]
    fn random_damage_is_an_error(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let good = Parts::new(Head::QuestionAnswering).bytes();
        let mut bytes = good.clone();
        for (place, value) in &changes {
            let place = place.index(bytes.len());
            bytes[place] = *value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(good.len()));
        }
        prop_assert_eq!(open(&bytes).is_ok(), bytes == good);
    }

    /// Headers that are JSON but nothing else: never a panic.
    #[test]
    fn strange_headers_are_errors(
        offsets in any::<[u64; 4]>(), shape in prop::collection::vec(any::<u64>(), 0..4), floats in any::<bool>(),
        data in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let dtype = if floats { "F32" } else { "U8" };
        let header = json!({"__metadata__": {"format": "qbert", "version": "1", "config": "{}", "plan": ""},
            "a": {"dtype": dtype, "shape": shape, "data_offsets": [offsets[0], offsets[1]]},
            "checksums": {"dtype": "U8", "shape": [12], "data_offsets": [offsets[2], offsets[3]]}});
        prop_assert!(open(&sealed(&header.to_string(), &data, Vec::new())).is_err());
    }
}

/// Where `qbert fetch minilm` puts it, unless `QBERT_MINILM` names another place.
fn minilm() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    variable("QBERT_MINILM")
        .or_else(|| Some(variable("QBERT_CACHE")?.join("minilm")))
        .or_else(|| Some(variable("XDG_CACHE_HOME")?.join("qbert/minilm")))
        .or_else(|| Some(variable("HOME")?.join(".cache/qbert/minilm")))
        .filter(|directory| directory.join("model.safetensors").exists())
}

/// Real weights at 2 and 3 bits, embeddings at 4 and 8, with the head of a classifier: at most 10.5 MB.
#[test]
fn a_real_model_is_small() {
    let Some(directory) = minilm() else {
        println!("skipped: no MiniLM here; run `qbert fetch minilm` or set QBERT_MINILM");
        return;
    };
    let checkpoint = Checkpoint::open(&directory).unwrap();
    let config = checkpoint.config();
    let labels = ["negative", "positive"].map(str::to_owned);
    let parameters = checkpoint.load_for(Head::SequenceClassification, labels.len()).unwrap().parameters;
    let groups = GroupSpec::Count(128);
    let mut plan = Plan::uniform(config.layers, bits(2), groups, RangeMethod::MinMax);
    for layer in 0..config.layers / 2 {
        plan = plan.with_layer_bits(layer, bits(3)).unwrap();
    }
    let table = |width| SitePlan::new(bits(width), groups, RangeMethod::MinMax);
    let plan = plan.with_embedding(EmbeddingPlan { word: table(4), position: table(8), token_type: table(8) });
    let sites = quantize_sites(config, &parameters, &plan);
    let activations = vec![LayerActivations::from_array([ActivationParams::new(0.02, 128).unwrap(); 7]); config.layers];
    let vocabulary = checkpoint.tokenizer_files().get("vocab.txt").unwrap();
    let contents = PackedContents {
        config,
        parameters: &parameters,
        labels: &labels,
        task: "sst2",
        plan: &plan,
        sites: &sites,
        activations: Some(&activations),
        tokenizer: PackedTokenizer::Vocabulary { text: vocabulary, options: "{}" },
        provenance: &BTreeMap::new(),
    };
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("model.qbert");
    let length = write_packed(&path, &contents).unwrap();
    println!("MiniLM at 2/3 bits, embedding 4/8: {length} bytes");
    assert!(length <= 10_500_000, "{length} bytes");
    let planned = file_size(&config.shape(Some(parameters.layout())), &plan).unwrap().total();
    assert!(length - planned < 300_000, "{planned} bytes of weights in a file of {length}");
    let start = std::time::Instant::now();
    let model = PackedModel::open(&path).unwrap();
    println!("opened in {:?}", start.elapsed());
    let query = Site::Layer(5, qbert_quant::Matrix::Output);
    let Some(PackedSite::Matrix(weights, _)) = model.site(query) else { panic!("no codes") };
    assert_eq!(weights.codes(), sites[&query].codes());
    assert_eq!(weights.coding(), Coding::Bits(2));
}

/// A head with one output gives a value: a regression, or a ranking. Said to be a classifier, it is refused.
#[test]
fn a_packed_head_with_one_output_gives_a_value() {
    let mut parts = Parts::new(Head::SequenceClassification);
    parts.labels.truncate(1);
    parts.config = parts.config.with_head(Head::SequenceClassification, &parts.labels);
    let layout = Arc::new(ParameterLayout::new(&parts.config, Head::SequenceClassification, 1, false));
    let values = (0..layout.len()).map(value_at).collect();
    parts.parameters = Parameters::new(layout, values);
    parts.sites = quantize_sites(&parts.config, &parts.parameters, &parts.plan);
    let model = open(&parts.bytes()).unwrap();
    assert_eq!(model.config().problem(model.head(), 1), Problem::Regression);
    let text = parts.config.to_json(Head::SequenceClassification, &parts.labels).to_string();
    let text = text.replacen('{', "{\"problem_type\": \"single_label_classification\",", 1);
    parts.config = Config::parse(text.as_bytes(), "config.json".as_ref()).unwrap();
    let error = open(&parts.bytes()).unwrap_err().to_string();
    assert!(error.contains("of one label") && error.contains("does not support"), "{error}");
}

#[test]
fn product_codes_read_back_and_must_have_their_codebook() {
    let mut parts = Parts::new(Head::SequenceClassification);
    let mut embedding = *parts.plan.embedding();
    for (width, groups) in [("8/3", 4), ("8/2", 1), ("8/16", 2)] {
        embedding.word = SitePlan::table(width.parse().unwrap(), GroupSpec::Count(groups), RangeMethod::MinMax);
        parts.plan = parts.plan.clone().with_embedding(embedding);
        parts.sites = quantize_sites(&parts.config, &parts.parameters, &parts.plan);
        let bytes = parts.bytes();
        let model = open(&bytes).unwrap();
        check_equal(&parts, &model);
        let sizes: BTreeMap<&str, usize> = model.sizes().iter().map(|(name, size)| (name.as_str(), *size)).collect();
        let (rows, cols) = (parts.config.vocab_size, parts.config.embedding_size);
        let parts_of_row = cols.div_ceil(embedding.word.product.unwrap().values());
        assert_eq!(sizes["embedding.word.codes"], rows * parts_of_row);
        assert_eq!(sizes["embedding.word.codebook"], 256 * cols);
        let shape = parts.config.shape(None);
        let bytes_of_site = site_bytes(&shape, Site::Embedding(Embedding::Word), &embedding.word).unwrap();
        assert_eq!(bytes_of_site, (rows * parts_of_row + 256 * cols + 8 * groups) as u64);
    }
    // Codes of another kind than the plan's are not written.
    embedding.word = SitePlan::new(bits(8), GroupSpec::Count(2), RangeMethod::MinMax);
    let plan = parts.plan.clone().with_embedding(embedding);
    let contents = PackedContents { plan: &plan, ..parts.contents() };
    let error = packed_bytes("model.qbert", &contents).unwrap_err();
    assert!(error.to_string().contains("embedding.word has codes of 8/16 bits, planned are 8"), "{error}");
}
