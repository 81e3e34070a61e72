//! `qbert rank`: documents by how well they fit a query.

use std::fmt::Write as _;

use clap::Args;
use qbert_pipeline::{Error, ErrorKind, Result};
use qbert_runtime::Ranked;

use super::{Model, in_parts};
use crate::{one_line, versioned_json};

/// Rank documents by how well they fit a query.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qbert rank model.qbert --query \"is the lake frozen?\" \"deep mud\" \"ice on the water\"
  qbert rank reranker.qbert --query \"is the lake frozen?\" --top 3 < documents.txt

A reranker (a model with one output that was trained on pairs) reads the query together with each document.
Any other model compares vectors, with its prompts for queries and documents if it has any. Without DOCUMENT,
every line of standard input is one.")]
pub(crate) struct Options {
    #[command(flatten)]
    model: Model,
    /// The documents.
    document: Vec<String>,
    /// The query.
    #[arg(long)]
    query: String,
    /// Show only the best.
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// Print as JSON.
    #[arg(long, help_heading = "Run")]
    json: bool,
}

/// A document as it is printed.
#[derive(serde::Serialize)]
struct Found<'a> {
    #[serde(flatten)]
    ranked: Ranked,
    text: &'a str,
}

#[derive(serde::Serialize)]
struct Ranking<'a> {
    query: &'a str,
    documents: Vec<Found<'a>>,
}

pub(crate) fn run(options: &Options) -> Result<String> {
    let session = options.model.open()?;
    let flags = [
        ("--pooling", options.model.pooling.is_some()),
        ("--dim", options.model.dim.is_some()),
        ("--normalize", options.model.normalize.is_some()),
    ];
    if let Some((flag, _)) = flags.into_iter().find(|(_, given)| *given) {
        let message = format!("{flag} has no effect: documents are ranked as the model's file says");
        return Err(Error::new(ErrorKind::BadInput, message, "leave the flag out".to_owned()));
    }
    let mut documents = Vec::new();
    in_parts(&options.document, |mut part| {
        documents.append(&mut part);
        Ok(())
    })?;
    let mut ranked = session.rank(&options.query, &documents)?;
    ranked.truncate(options.top.unwrap_or(usize::MAX));
    let found = ranked.into_iter().map(|ranked| Found { ranked, text: &documents[ranked.index] });
    if options.json {
        let ranking = Ranking { query: &options.query, documents: found.collect() };
        return Ok(versioned_json("qbert-ranking", &ranking));
    }
    let mut text = String::new();
    for Found { ranked, text: document } in found {
        let _ = writeln!(text, "{:8.4}  {}", ranked.score, one_line(document));
    }
    Ok(text)
}
