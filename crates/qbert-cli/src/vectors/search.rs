//! `qbert search`: the texts of a file that are nearest to a query.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use qbert_pipeline::Result;

use super::index::{Index, Precision};
use super::{Model, in_parts};
use crate::{one_line, versioned_json};

/// Search a file of texts for those nearest to a query.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qbert search model.qbert --texts sentences.txt \"is the lake frozen?\"
  qbert search model.qbert --texts sentences.txt --top 3 --json < queries.txt
  qbert search model.qbert --texts sentences.txt --int8 \"is the lake frozen?\"

Every line of the file is a text. The first search computes their vectors and keeps them in FILE.vectors
beside it; later ones map that file, and compute it again if the texts, the model or the settings changed. All
vectors are compared, so the answer is exact: good for 100,000 texts, not for ten million.")]
pub(crate) struct Options {
    #[command(flatten)]
    model: Model,
    /// The file of texts, one per line.
    #[arg(long, value_name = "FILE")]
    texts: PathBuf,
    /// Queries; without any, every line of standard input is one.
    query: Vec<String>,
    /// How many texts to show per query.
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// Compare vectors of one byte per number: a quarter of the memory, and nearly the same order.
    #[arg(long)]
    int8: bool,
    /// Print as JSON.
    #[arg(long, help_heading = "Run")]
    json: bool,
}

/// A text that was found.
#[derive(serde::Serialize)]
struct Found<'a> {
    line: usize,
    score: f32,
    text: &'a str,
}

#[derive(serde::Serialize)]
struct Answer<'a> {
    query: String,
    texts: Vec<Found<'a>>,
}

#[derive(serde::Serialize)]
struct Answers<'a> {
    queries: Vec<Answer<'a>>,
}

pub(crate) fn run(options: &Options, quiet: bool) -> Result<String> {
    let session = options.model.open()?;
    let settings = options.model.embed_options(&session).normalize(true);
    let precision = if options.int8 { Precision::Int8 } else { Precision::F32 };
    let index = Index::open(&session, settings, &options.texts, precision, quiet)?;
    let prompt = session.prompt(session.query_prompt())?.to_owned();
    let mut answers: Vec<Answer<'_>> = Vec::new();
    in_parts(&options.query, |queries| {
        let vectors = super::embed(&session, settings, &prompt, &queries)?;
        for (query, vector) in queries.into_iter().zip(&vectors) {
            let nearest = index.nearest(vector, options.top);
            let texts =
                nearest.into_iter().map(|(place, score)| Found { line: place + 1, score, text: index.text(place) });
            answers.push(Answer { query, texts: texts.collect() });
        }
        Ok(())
    })?;
    if options.json {
        return Ok(versioned_json("qbert-search", &Answers { queries: answers }));
    }
    let mut text = String::new();
    let is_one = answers.len() == 1;
    for (number, answer) in answers.iter().enumerate() {
        if !is_one {
            let gap = if number == 0 { "" } else { "\n" };
            let _ = writeln!(text, "{gap}{}", one_line(&answer.query));
        }
        for found in &answer.texts {
            let _ = writeln!(text, "{:7.4}  {}", found.score, one_line(found.text));
        }
    }
    Ok(text)
}
