//! Makes the tiny BERT of `examples/`: two layers of 32, random weights, and a vocabulary of the words in the files given.
//!
//! It knows nothing, and learns the examples' tasks within seconds. For anything else take a real model.
//!
//! `cargo run -p qbert-train --example tiny_bert -- examples/tiny-bert examples/*/train.* examples/*/dev.*`

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use qbert_model::{Config, Head, ParameterLayout, Parameters, TokenizerFiles, update_checkpoint};
use qbert_train::random::Stream;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut paths = std::env::args().skip(1).map(PathBuf::from);
    let out = paths.next().ok_or("usage: tiny_bert DIRECTORY FILE…")?;
    let mut words = BTreeSet::new();
    for path in paths {
        let text = std::fs::read_to_string(&path)?.to_lowercase();
        words.extend(text.split(|c: char| !c.is_ascii_alphabetic()).filter(|word| !word.is_empty()).map(str::to_owned));
    }
    let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", ",", "?"].map(str::to_owned);
    let vocabulary: Vec<String> = special.into_iter().chain(words).collect();
    let size = vocabulary.len();
    let config = format!(
        r#"{{"model_type": "bert", "vocab_size": {size}, "hidden_size": 32, "num_hidden_layers": 2,
            "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 96, "type_vocab_size": 2}}"#
    );
    let config = Config::parse(config.as_bytes(), Path::new("config.json"))?;
    let layout = ParameterLayout::new(&config, Head::None, 0, true);
    let mut parameters = Parameters::zeros(layout.clone().into());
    for (index, parameter) in layout.parameters().iter().enumerate() {
        let values = &mut parameters.values_mut()[parameter.span.clone()];
        if parameter.name.ends_with("LayerNorm.weight") {
            values.fill(1.0);
        } else if parameter.name.ends_with("weight") {
            Stream::new(1, "tiny", index as u64).fill_normal(values, 0.12);
        }
    }
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("vocab.txt"), vocabulary.join("\n") + "\n")?;
    std::fs::create_dir_all(&out)?;
    update_checkpoint(&out, &config, &parameters, &[], &TokenizerFiles::read(folder.path())?)?;
    Ok(())
}
