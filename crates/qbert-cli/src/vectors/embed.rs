//! `qbert embed`: texts in, vectors out, to the screen or to a file.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use qbert_model::atomic;
use qbert_pipeline::{Error, ErrorKind, Result};

use super::{Model, Prompt, in_parts, npy};
use crate::{note, stop};

/// Turn texts into vectors.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qbert embed model.qbert \"a film to remember\" \"two hours too long\"
  qbert embed model.qbert --out vectors.npy < texts.txt
  qbert embed model.qbert --prompt-name query --out vectors.jsonl < queries.txt
  qbert embed model.qbert --dim 128 --normalize true --out vectors.npy < texts.txt

Without TEXT, every line of standard input is a text. Vectors go to a file by its ending: .npy (a matrix
of f32 for NumPy) or .jsonl (one object with text and vector per line); without --out, as JSON lines to
standard output. Memory does not grow with the number of texts.")]
pub(crate) struct Options {
    #[command(flatten)]
    model: Model,
    /// Texts.
    text: Vec<String>,
    /// Write the vectors to this file: .npy or .jsonl.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    prompt: Prompt,
}

pub(crate) fn run(options: &Options, quiet: bool) -> Result<String> {
    let Some(path) = &options.out else { return to_stdout(options) };
    atomic::check_file(path)?;
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
    let is_matrix = match ending.as_deref() {
        Some("npy") => true,
        Some("jsonl" | "ndjson") => false,
        _ => {
            let message = format!("--out: {} ends in neither .npy nor .jsonl", path.display());
            return Err(Error::new(ErrorKind::BadInput, message, "name the file so that its form is known".to_owned()));
        }
    };
    let session = options.model.open()?;
    let settings = options.model.embed_options(&session);
    let prompt = options.prompt.text(&session)?;
    // A temporary file of our own, because the number of rows goes into the header at the end.
    let mut scratch = tempfile::tempfile().map_err(unwritten)?;
    let mut count = 0;
    if is_matrix {
        let mut writer = npy::Writer::new(&mut scratch).map_err(unwritten)?;
        in_parts(&options.text, |texts| {
            let _item = stop::Item::begin();
            let vectors = super::embed(&session, settings, &prompt, &texts)?;
            writer.rows(vectors.width(), vectors.as_slice()).map_err(unwritten)
        })?;
        count = writer.finish().map_err(unwritten)?;
    } else {
        in_parts(&options.text, |texts| {
            let vectors = super::embed(&session, settings, &prompt, &texts)?;
            count += texts.len();
            for (text, vector) in texts.iter().zip(&vectors) {
                writeln!(scratch, "{}", serde_json::json!({ "text": text, "vector": vector })).map_err(unwritten)?;
            }
            Ok(())
        })?;
    }
    std::io::Seek::rewind(&mut scratch).map_err(unwritten)?;
    atomic::write_file(path, |writer| std::io::copy(&mut scratch, writer).map(|_| ()))?;
    if !quiet {
        note(&format!("{}: {count} vectors", path.display()));
    }
    Ok(String::new())
}

fn unwritten(error: std::io::Error) -> Error {
    Error::environment(format!("cannot write the vectors: {error}"), None)
}

fn to_stdout(options: &Options) -> Result<String> {
    let session = options.model.open()?;
    let settings = options.model.embed_options(&session);
    let prompt = options.prompt.text(&session)?;
    let mut stdout = std::io::stdout().lock();
    let mut is_closed = false;
    in_parts(&options.text, |texts| {
        if is_closed {
            return Ok(());
        }
        let vectors = super::embed(&session, settings, &prompt, &texts)?;
        for (text, vector) in texts.iter().zip(&vectors) {
            let line = serde_json::json!({ "text": text, "vector": vector });
            match writeln!(stdout, "{line}") {
                Ok(()) => {}
                // The reader has seen enough.
                Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => is_closed = true,
                Err(error) => return Err(unwritten(error)),
            }
        }
        Ok(())
    })?;
    Ok(String::new())
}
