//! The description of each family, against the names that `transformers` uses. Their order is part of the packed format.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::path::Path;

use qbert_model::family::{AttentionPattern, BERT, EmbeddingProjection};
use qbert_model::{Config, Family, Head, Module, ParameterLayout};

#[test]
fn bert_has_the_names_of_transformers() {
    let text = common::CONFIG.replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1");
    let config = Config::parse(text.as_bytes(), Path::new("config.json")).unwrap();
    assert_eq!(config.family, &BERT);
    let layout = ParameterLayout::new(&config, Head::SequenceClassification, 3, false);
    let names: Vec<String> = layout.parameters().iter().map(|parameter| layout.file_name(parameter)).collect();
    let layer = |part: &str| format!("bert.encoder.layer.0.{part}");
    let expected = [
        "bert.embeddings.word_embeddings.weight".to_owned(),
        "bert.embeddings.position_embeddings.weight".to_owned(),
        "bert.embeddings.token_type_embeddings.weight".to_owned(),
        "bert.embeddings.LayerNorm.weight".to_owned(),
        "bert.embeddings.LayerNorm.bias".to_owned(),
        layer("attention.self.query.weight"),
        layer("attention.self.key.weight"),
        layer("attention.self.value.weight"),
        layer("attention.self.query.bias"),
        layer("attention.self.key.bias"),
        layer("attention.self.value.bias"),
        layer("attention.output.dense.weight"),
        layer("attention.output.dense.bias"),
        layer("attention.output.LayerNorm.weight"),
        layer("attention.output.LayerNorm.bias"),
        layer("intermediate.dense.weight"),
        layer("intermediate.dense.bias"),
        layer("output.dense.weight"),
        layer("output.dense.bias"),
        layer("output.LayerNorm.weight"),
        layer("output.LayerNorm.bias"),
        "bert.pooler.dense.weight".to_owned(),
        "bert.pooler.dense.bias".to_owned(),
        "classifier.weight".to_owned(),
        "classifier.bias".to_owned(),
    ];
    assert_eq!(names, expected);
    let span_head = ParameterLayout::new(&config, Head::QuestionAnswering, 2, false);
    assert_eq!(span_head.role(Module::Head.weight()).unwrap().name, "qa_outputs.weight");
    assert!(span_head.role(Module::Pooler.weight()).is_none());
}

/// What every family must fulfil.
#[test]
fn descriptions_are_consistent() {
    for family in Family::ALL {
        assert_eq!(Family::of_model_type(family.model_type), Some(family));
        for head in Head::ALL {
            let class = family.class(head);
            assert_eq!(family.head_of_architecture(class.architecture), Some(head), "{}", class.architecture);
            assert_eq!(class.output.is_none(), head == Head::None, "{}", class.architecture);
        }
        let names = &family.tensors;
        assert_eq!(names.relative_bias.is_some(), family.relative_bias.buckets() > 0, "{}", family.model_type);
        assert_eq!(names.projection.is_some(), family.projection != EmbeddingProjection::None, "{}", family.model_type);
        let has_window = matches!(family.attention, AttentionPattern::Alternating(_));
        assert!(!(has_window && names.relative_bias.is_some()), "{}: no kernel has both", family.model_type);
        for (old, new) in family.older_endings {
            assert!(!new.ends_with(old), "{old} would be renamed twice");
        }
    }
}

/// Names and roles find the same parameters, each exactly once.
#[test]
fn every_parameter_is_found_by_name_and_by_role() {
    let config = Config::parse(common::CONFIG.as_bytes(), Path::new("config.json")).unwrap();
    for head in Head::ALL {
        let layout = ParameterLayout::new(&config, head, head.outputs(3), head == Head::None);
        for parameter in layout.parameters() {
            assert_eq!(layout.get(&parameter.name), Some(parameter));
            assert_eq!(layout.role(parameter.role), Some(parameter));
        }
        let sites = layout.parameters().iter().filter_map(|parameter| parameter.role.site());
        assert_eq!(sites.count(), qbert_quant::Site::all(config.layers).count());
    }
}

#[test]
fn the_documentation_lists_the_families() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/families.md");
    let page = std::fs::read_to_string(&path).unwrap_or_default();
    let command = "cargo run -p qbert-model --example families > docs/reference/families.md";
    assert!(page == Family::page(), "{} is out of date: {command}", path.display());
}

/// A configuration of a family, with some keys set otherwise or, as `null`, removed.
fn configuration(model_type: &str, own: serde_json::Value) -> Result<Config, String> {
    let mut config = serde_json::json!({
        "model_type": model_type, "vocab_size": 20, "hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 3,
        "intermediate_size": 16, "max_position_embeddings": 16, "dim": 12, "n_layers": 3, "n_heads": 3, "hidden_dim": 16,
    });
    for (key, value) in own.as_object().unwrap() {
        match value {
            serde_json::Value::Null => drop(config.as_object_mut().unwrap().remove(key)),
            value => config[key] = value.clone(),
        }
    }
    Config::parse(config.to_string().as_bytes(), Path::new("config.json")).map_err(|error| error.to_string())
}

#[test]
fn bad_configurations_are_refused_by_the_name_of_the_key() {
    use serde_json::json;
    for family in Family::ALL {
        let keys = &family.keys;
        assert!(configuration(family.model_type, json!({})).is_ok(), "{}", family.model_type);
        for key in [keys.vocabulary, keys.hidden, keys.layers, keys.heads, keys.intermediate, keys.positions] {
            let error = configuration(family.model_type, json!({key: null})).unwrap_err();
            assert!(error.contains(&format!("`{key}` is missing")), "{}: {error}", family.model_type);
            let error = configuration(family.model_type, json!({key: 0})).unwrap_err();
            assert!(error.contains(&format!("`{key}` is 0")), "{}: {error}", family.model_type);
        }
        let error = configuration(family.model_type, json!({keys.activation: "mish"})).unwrap_err();
        assert!(error.contains(keys.activation) && error.contains("gelu_new"), "{}: {error}", family.model_type);
    }
    for (model_type, own, expected) in [
        (
            "deberta-v2",
            json!({}),
            "only bert, distilbert, roberta, xlm-roberta, camembert, electra, mpnet, albert and modernbert are",
        ),
        ("roberta", json!({"max_position_embeddings": 2}), "`max_position_embeddings` is 2"),
        ("roberta", json!({"pad_token_id": -1}), "`pad_token_id` is -1"),
        ("roberta", json!({"position_embedding_type": "relative_key"}), "`position_embedding_type`"),
        ("xlm-roberta", json!({"is_decoder": true}), "`is_decoder` is true"),
        ("mpnet", json!({"relative_attention_num_buckets": 16}), "`relative_attention_num_buckets` is 16; only 32 is"),
        ("electra", json!({"embedding_size": 0}), "`embedding_size` is 0"),
        ("albert", json!({"num_hidden_groups": 4}), "`num_hidden_groups` is 4, more than `num_hidden_layers`"),
        ("albert", json!({"classifier_dropout_prob": 1.5}), "`classifier_dropout_prob` is 1.5"),
        ("distilbert", json!({"qa_dropout": -1}), "`qa_dropout` is -1"),
        ("distilbert", json!({"problem_type": "ranking"}), "`problem_type` is \"ranking\""),
        ("modernbert", json!({"num_attention_heads": 4}), "heads of an odd width"),
        ("modernbert", json!({"attention_bias": "yes"}), "`attention_bias` is \"yes\"; it must be true or false"),
        ("modernbert", json!({"classifier_pooling": "max"}), "`classifier_pooling` is \"max\"; only cls and mean are"),
        ("modernbert", json!({"classifier_activation": "mish"}), "`classifier_activation` is \"mish\""),
        ("modernbert", json!({"local_attention": 0}), "`local_attention` is 0"),
        ("modernbert", json!({"global_attn_every_n_layers": 0}), "`global_attn_every_n_layers` is 0"),
        ("modernbert", json!({"global_rope_theta": -1}), "`global_rope_theta` is -1; it must be a number above 0"),
        ("modernbert", json!({"mlp_dropout": 1}), "`mlp_dropout` is 1"),
        (
            "modernbert",
            json!({"layer_types": ["full_attention"]}),
            "`layer_types` is [\"full_attention\"]; it must have",
        ),
        (
            "modernbert",
            json!({"layer_types": ["full_attention", "chunked", "chunked"]}),
            "`layer_types` names \"chunked\"",
        ),
        ("modernbert", json!({"rope_parameters": 3}), "`rope_parameters` is 3; it must be an object"),
        (
            "modernbert",
            json!({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}),
            "`rope_parameters.full_attention.rope_type` is \"yarn\"; only default is",
        ),
        (
            "modernbert",
            json!({"rope_parameters": {"sliding_attention": {"rope_theta": "ten"}}}),
            "`rope_parameters.sliding_attention.rope_theta` is NaN",
        ),
    ] {
        let error = configuration(model_type, own).unwrap_err();
        assert!(error.contains(expected), "{model_type}: {error}");
    }
}

/// Files of either age say which layers see a window, and with which angles.
#[test]
fn windows_and_angles_are_read_from_old_and_new_keys() {
    use serde_json::json;
    let old = json!({
        "num_hidden_layers": 4, "global_attn_every_n_layers": 3, "local_attention": 10, "global_rope_theta": 5000.0,
        "local_rope_theta": 300.0,
    });
    let new = json!({
        "num_hidden_layers": 4, "local_attention": 10,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {"full_attention": {"rope_theta": 5000.0, "rope_type": "default"},
            "sliding_attention": {"rope_theta": 300.0}},
    });
    for own in [old, new] {
        let config = configuration("modernbert", own).unwrap();
        let layers: Vec<_> = (0..4).map(|layer| config.attention_of(layer)).collect();
        let (global, local) = ((None, Some(5000.0)), (Some(5), Some(300.0)));
        let found: Vec<_> = layers.iter().map(|layer| (layer.reach, layer.theta)).collect();
        assert_eq!(found, [global, local, local, global]);
        assert_eq!((config.position_rows, config.max_positions), (0, 16));
        assert_eq!(config.used_position_rows(5), 0..0);
    }
    let usual = configuration("modernbert", json!({})).unwrap();
    let found: Vec<_> = (0..3).map(|layer| usual.attention_of(layer)).map(|own| (own.reach, own.theta)).collect();
    assert_eq!(found, [(None, Some(160_000.0)), (Some(64), Some(10_000.0)), (Some(64), Some(10_000.0))]);
    let bert = configuration("bert", json!({})).unwrap();
    assert_eq!((bert.attention_of(0).reach, bert.attention_of(0).theta), (None, None));
}

/// Query, key and value are one tensor in a file, and three parameters that lie one after the other.
#[test]
fn fused_tensors_are_written_and_read_as_one() {
    use serde_json::json;
    for biases in [false, true] {
        let flags =
            json!({"attention_bias": biases, "norm_bias": biases, "mlp_bias": biases, "classifier_bias": biases});
        let config = configuration("modernbert", flags).unwrap();
        let layout = ParameterLayout::new(&config, Head::SequenceClassification, 2, false);
        let names: Vec<String> = layout.file_tensors().into_iter().map(|tensor| tensor.name).collect();
        let bias = |name: &str| biases.then(|| format!("{name}.bias"));
        let mut expected = vec!["model.embeddings.tok_embeddings.weight".to_owned()];
        let mut module =
            |name: &str| expected.extend([Some(format!("{name}.weight")), bias(name)].into_iter().flatten());
        module("model.embeddings.norm");
        for layer in (0..3).map(|layer| format!("model.layers.{layer}")) {
            module(&format!("{layer}.attn.Wqkv"));
            module(&format!("{layer}.attn.Wo"));
            if layer != "model.layers.0" {
                module(&format!("{layer}.attn_norm"));
            }
            module(&format!("{layer}.mlp.Wi"));
            module(&format!("{layer}.mlp.Wo"));
            module(&format!("{layer}.mlp_norm"));
        }
        module("model.final_norm");
        module("head.dense");
        module("head.norm");
        expected.extend(["classifier.weight".to_owned(), "classifier.bias".to_owned()]);
        assert_eq!(names, expected);
        let fused = layout.file_tensors().into_iter().find(|tensor| tensor.name.ends_with("Wqkv.weight")).unwrap();
        assert_eq!(fused.shape, [36, 12]);

        let mut parameters = qbert_model::Parameters::zeros(layout.into());
        parameters.values_mut().iter_mut().enumerate().for_each(|(index, value)| *value = index as f32);
        let home = tempfile::tempdir().unwrap();
        let (directory, labels) = (home.path().join("model"), ["a".to_owned(), "b".to_owned()]);
        let files = qbert_model::TokenizerFiles::default();
        qbert_model::write_checkpoint(&directory, &config, &parameters, &labels, &files).unwrap();
        let checkpoint = qbert_model::Checkpoint::open(&directory).unwrap();
        assert_eq!(checkpoint.load().unwrap().values(), parameters.values());
        assert_eq!(checkpoint.unused(parameters.layout()), Vec::<String>::new());
        assert_eq!(checkpoint.dtypes().values().sum::<usize>(), names.len());
    }
}

#[test]
fn heads_mean_what_their_problem_type_says() {
    use qbert_model::Problem;
    use serde_json::json;
    let problem = |own, outputs| configuration("bert", own).unwrap().problem(Head::SequenceClassification, outputs);
    assert_eq!(problem(json!({}), 2), Problem::SingleLabel);
    assert_eq!(problem(json!({}), 1), Problem::Regression);
    assert_eq!(problem(json!({"problem_type": "multi_label_classification"}), 3), Problem::MultiLabel);
    let config = configuration("bert", json!({"problem_type": "regression"})).unwrap();
    assert_eq!(config.problem(Head::TokenClassification, 3), Problem::SingleLabel);
    let labels = ["a".to_owned(), "b".to_owned()];
    let written = config.to_json(Head::SequenceClassification, &labels[..1]);
    assert_eq!(written["problem_type"], "regression");
    let single = config.with_problem(Problem::SingleLabel).to_json(Head::SequenceClassification, &labels);
    assert!(single.get("problem_type").is_none(), "{single}");
    assert!(config.to_json(Head::QuestionAnswering, &[]).get("problem_type").is_none());
}

#[test]
fn positions_follow_the_padding_token_where_the_family_says_so() {
    let config = configuration("roberta", serde_json::json!({})).unwrap();
    assert_eq!((config.position_rows, config.max_positions), (16, 14));
    assert_eq!(config.position_rows_of(&[0, 5, 1, 7]).collect::<Vec<_>>(), [2, 3, 1, 4]);
    assert_eq!(config.used_position_rows(3), 1..5);
    let config = configuration("bert", serde_json::json!({})).unwrap();
    assert_eq!((config.position_rows, config.max_positions), (16, 16));
    assert_eq!(config.position_rows_of(&[0, 5, 1, 7]).collect::<Vec<_>>(), [0, 1, 2, 3]);
}
