//! The description of each family, against the names that `transformers` uses. Their order is part of the packed format.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::path::Path;

use qbert_model::family::{BERT, EmbeddingProjection};
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
