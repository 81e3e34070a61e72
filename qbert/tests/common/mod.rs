//! A small model and data for tests of the command line.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

use std::fmt::Write;
use std::path::Path;

use qbert::model::{Config, Head, Layout, Parameters, TokenizerFiles, write_checkpoint};

const WORDS: [&str; 8] = ["good", "bad", "a", "the", "film", "plot", "very", "is"];

/// A small bare encoder and data whose label is which of the first two words occurs.
pub(crate) fn prepare(home: &Path) {
    let config = br#"{"model_type": "bert", "vocab_size": 13, "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 16, "type_vocab_size": 2}"#;
    let config = Config::parse(config, Path::new("config.json")).unwrap();
    let layout = Layout::new(&config, Head::None, 0, true);
    let mut parameters = Parameters::zeros(layout.into());
    qbert::train::random::Stream::new(1, "test", 0).fill_normal(parameters.values_mut(), 0.1);
    let vocabulary = format!("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n{}\n", WORDS.join("\n"));
    std::fs::create_dir(home.join("tokenizer")).unwrap();
    std::fs::write(home.join("tokenizer/vocab.txt"), vocabulary).unwrap();
    let tokenizer = TokenizerFiles::read(&home.join("tokenizer")).unwrap();
    write_checkpoint(&home.join("model"), &config, &parameters, &[], &tokenizer).unwrap();
    for (name, count, shift) in [("train.tsv", 240, 0), ("dev.tsv", 60, 5)] {
        let mut text = "sentence\tlabel\n".to_owned();
        for i in 0..count {
            let filler = |k: usize| WORDS[2 + (i * 5 + k * 3 + shift) % 6];
            let label = (i * 7 + shift) % 2;
            writeln!(text, "{} {} {} {}\t{label}", filler(0), WORDS[1 - label], filler(1), filler(2)).unwrap();
        }
        std::fs::write(home.join(name), text).unwrap();
    }
}
