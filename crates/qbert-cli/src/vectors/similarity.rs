//! `qbert similarity`: how similar texts are to each other.

use std::fmt::Write as _;

use clap::Args;
use qbert_pipeline::{Error, ErrorKind, Result};
use qbert_tasks::embed::cosine;

use super::{Model, Prompt};
use crate::{one_line, versioned_json};

/// Compare texts with each other by the cosine of their vectors.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qbert similarity model.qbert \"a frozen lake\" \"ice on the water\"
  qbert similarity model.qbert \"a frozen lake\" \"ice on the water\" \"deep mud\" --json

Two texts give one number, more texts a table: 1 is the same direction, 0 nothing in common.")]
pub(crate) struct Options {
    #[command(flatten)]
    model: Model,
    /// The texts, two or more.
    #[arg(required = true, num_args = 2..)]
    text: Vec<String>,
    #[command(flatten)]
    prompt: Prompt,
    /// Print as JSON.
    #[arg(long, help_heading = "Run")]
    json: bool,
}

#[derive(serde::Serialize)]
struct Similarities<'a> {
    texts: &'a [String],
    similarities: Vec<Vec<f64>>,
}

pub(crate) fn run(options: &Options) -> Result<String> {
    let texts = &options.text;
    if texts.len() < 2 {
        let hint = "give two texts or more".to_owned();
        return Err(Error::new(ErrorKind::BadInput, "one text cannot be compared", hint));
    }
    let session = options.model.open()?;
    let settings = options.model.embed_options(&session);
    let vectors = super::embed(&session, settings, &options.prompt.text(&session)?, texts)?;
    let similarities: Vec<Vec<f64>> =
        vectors.rows().map(|one| vectors.rows().map(|other| cosine(one, other)).collect()).collect();
    if options.json {
        return Ok(versioned_json("qbert-similarities", &Similarities { texts, similarities }));
    }
    if let [_, _] = &texts[..] {
        return Ok(format!("{:.4}\n", similarities[0][1]));
    }
    let mut text = String::new();
    for (index, row) in similarities.iter().enumerate() {
        let numbers: Vec<String> = row.iter().map(|similarity| format!("{similarity:7.4}")).collect();
        let _ = writeln!(text, "{}  {}", numbers.join(" "), one_line(&texts[index]));
    }
    Ok(text)
}
