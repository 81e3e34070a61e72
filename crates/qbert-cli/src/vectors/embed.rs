//! `qbert embed`: texts in, vectors out, to the screen or to a file.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use qbert_model::atomic;
use qbert_pipeline::{Error, ErrorKind, Result};

use super::{Model, Prompt, in_parts, npy};
#[cfg(feature = "parquet")]
use crate::parquet_rows::{self, RowOptions, TextVectors, vectors_of_rows};
use crate::{note, stop};

/// Turn texts into vectors.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qbert embed model.qbert \"a film to remember\" \"two hours too long\"
  qbert embed model.qbert --out vectors.npy < texts.txt
  qbert embed model.qbert --prompt-name query --out vectors.jsonl < queries.txt
  qbert embed model.qbert --dim 128 --normalize true --out vectors.npy < texts.txt
  qbert embed model.qbert --data notes.parquet --column text=note --out vectors.parquet

Without TEXT, every line of standard input is a text; with --data, the column `text` of Parquet files. Vectors go
to a file by its ending: .npy (a matrix of f32 for NumPy), .jsonl (one object with text and vector per line) or
.parquet (with all columns of --data); without --out, as JSON lines to standard output. Memory does not grow
with the number of texts.")]
pub(crate) struct Options {
    #[command(flatten)]
    model: Model,
    /// Texts.
    text: Vec<String>,
    /// Write the vectors to this file: .npy, .jsonl or .parquet.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The form of the file, if its name does not tell.
    #[arg(long, value_enum, requires = "out")]
    format: Option<Form>,
    #[command(flatten)]
    prompt: Prompt,
    #[cfg(feature = "parquet")]
    #[command(flatten)]
    rows: RowOptions,
}

/// What a file of vectors may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Form {
    /// A matrix of f32 for NumPy.
    Npy,
    /// An object with text and vector per line.
    Jsonl,
    /// Apache Parquet.
    #[cfg(feature = "parquet")]
    Parquet,
}

impl Form {
    fn of(path: &Path) -> Result<Self> {
        let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
        match ending.as_deref() {
            Some("npy") => Ok(Self::Npy),
            Some("jsonl" | "ndjson") => Ok(Self::Jsonl),
            #[cfg(feature = "parquet")]
            Some("parquet") => Ok(Self::Parquet),
            _ => {
                let message = format!("--out: {} does not end in .npy, .jsonl or .parquet", path.display());
                let hint = "name the file so that its form is known, or give --format";
                Err(Error::new(ErrorKind::BadInput, message, hint.to_owned()))
            }
        }
    }
}

pub(crate) fn run(options: &Options, quiet: bool) -> Result<String> {
    let form = match (&options.out, options.format) {
        (Some(path), None) => Some(Form::of(path)?),
        (_, form) => form,
    };
    #[cfg(feature = "parquet")]
    if form != Some(Form::Parquet) {
        options.rows.check_no_columns()?;
    }
    let (Some(path), Some(form)) = (&options.out, form) else { return to_stdout(options) };
    atomic::check_file(path)?;
    let session = options.model.open()?;
    let settings = options.model.embed_options(&session);
    let prompt = options.prompt.text(&session)?;
    let embed = |texts: &[String]| super::embed(&session, settings, &prompt, texts);
    let count = match form {
        #[cfg(feature = "parquet")]
        Form::Parquet if !options.rows.data.is_empty() => {
            let width = settings.dimensions.unwrap_or(session.config().hidden_size);
            vectors_of_rows((&options.rows, path), quiet, width, embed)?
        }
        _ => atomic::write_seekable(path, |file| match form {
            Form::Npy => {
                let mut writer = npy::Writer::new(file).map_err(unwritten)?;
                options.each_part(|texts| {
                    let _item = stop::Item::begin();
                    let vectors = embed(&texts)?;
                    writer.rows(vectors.width(), vectors.as_slice()).map_err(unwritten)
                })?;
                writer.finish().map_err(unwritten)
            }
            Form::Jsonl => {
                let (mut writer, mut count) = (BufWriter::new(file), 0);
                options.each_part(|texts| {
                    count += texts.len();
                    let vectors = embed(&texts)?;
                    texts.iter().zip(&vectors).try_for_each(|(text, vector)| {
                        writeln!(writer, "{}", serde_json::json!({ "text": text, "vector": vector })).map_err(unwritten)
                    })
                })?;
                writer.flush().map_err(unwritten)?;
                Ok(count)
            }
            #[cfg(feature = "parquet")]
            Form::Parquet => {
                let (mut writer, mut count) = (TextVectors::new(path, file), 0);
                options.each_part(|texts| {
                    count += texts.len();
                    let vectors = embed(&texts)?;
                    writer.rows(&texts, vectors.width(), vectors.as_slice())
                })?;
                writer.finish()?;
                Ok(count)
            }
        })?,
    };
    if !quiet {
        note(&format!("{}: {count} vectors", path.display()));
    }
    Ok(String::new())
}

impl Options {
    /// Hands texts to `take`, a part at a time.
    fn each_part(&self, take: impl FnMut(Vec<String>) -> Result<()>) -> Result<()> {
        #[cfg(feature = "parquet")]
        if !self.rows.data.is_empty() {
            return parquet_rows::texts(&self.rows, take);
        }
        in_parts(&self.text, take)
    }
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
    options.each_part(|texts| {
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
