//! The ids of texts and pairs, one JSON list per line: `ids DIRECTORY MAX_LEN < lines.jsonl`.
//!
//! A line is `["text"]` or `["text", "second text"]`. `reference/tokenizers/compare.py` compares the output with `transformers`.

use std::io::{BufRead, Write};
use std::path::Path;

use qbert_tasks::Tokenizer;
use qbert_tasks::classify::encode;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(directory), Some(max_len)) = (arguments.next(), arguments.next()) else {
        return Err("usage: ids DIRECTORY MAX_LEN < lines.jsonl".into());
    };
    let (tokenizer, max_len) = (Tokenizer::from_directory(Path::new(&directory))?, max_len.parse()?);
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for line in std::io::stdin().lock().lines() {
        let texts: Vec<String> = serde_json::from_str(&line?)?;
        let (first, second) = (texts.first().map_or("", String::as_str), texts.get(1).map(String::as_str));
        let encoded = encode(&tokenizer, first, second, max_len)?;
        writeln!(out, "{}", serde_json::to_string(&(encoded.input_ids, encoded.segments))?)?;
    }
    Ok(())
}
