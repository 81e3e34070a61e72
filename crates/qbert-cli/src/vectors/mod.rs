//! The verbs of models of vectors: `embed`, `similarity`, `rank`, `search`.

mod embed;
mod index;
mod npy;
mod rank;
mod search;
mod similarity;

pub(crate) use embed::Options as Embed;
pub(crate) use rank::Options as Rank;
pub(crate) use search::Options as Search;
pub(crate) use similarity::Options as Similarity;

use std::io::BufReader;
use std::path::PathBuf;

use clap::Args;
use qbert_pipeline::{Error, ErrorKind, Result};
use qbert_runtime::{EmbedOptions, Error as RuntimeError, Pooling, Session, SessionOptions, Vectors};
use qbert_tasks::files::{LONGEST_LINE, read_line_limited};

/// Texts that are computed before the next ones are read.
const TOGETHER: usize = 1024;

/// A pooling by its name, for clap.
pub(crate) fn pooling(name: &str) -> std::result::Result<Pooling, String> {
    let found = Pooling::NAMES.into_iter().find(|(known, _)| *known == name);
    found.map(|(_, pooling)| pooling).ok_or_else(|| {
        let names = Pooling::NAMES.map(|(name, _)| name).join(", ");
        format!("it may be {names}")
    })
}

/// The model, and how it makes vectors.
#[derive(Debug, Args)]
pub(crate) struct Model {
    /// The packed model.
    model: PathBuf,
    /// How tokens become one vector: mean, first, last, max, weighted-mean, mean-sqrt-length or pooler [default: the
    /// model's own].
    #[arg(long, value_name = "NAME", value_parser = pooling, help_heading = "Vectors")]
    pooling: Option<Pooling>,
    /// Scale vectors to length 1 (true) or leave them as they are (false) [default: as the model does].
    #[arg(long, value_name = "BOOL", help_heading = "Vectors")]
    normalize: Option<bool>,
    /// Keep only the first numbers of a vector, for models trained so (Matryoshka) [default: all].
    #[arg(long, value_name = "N", help_heading = "Vectors")]
    dim: Option<usize>,
    /// Longest text in tokens [default: the model's own].
    #[arg(long, help_heading = "Run")]
    max_len: Option<usize>,
    /// Threads [default: one per core].
    #[arg(long, help_heading = "Run")]
    threads: Option<usize>,
}

impl Model {
    fn open(&self) -> Result<Session> {
        let mut settings = SessionOptions::default().max_len(self.max_len);
        settings.threads = self.threads.unwrap_or(settings.threads);
        Session::open(&self.model, settings).map_err(|error| match error {
            RuntimeError::MaxLen { .. } => Error::from(error).about("--max-len"),
            RuntimeError::Kernel(error) => super::kernel_error(error),
            _ => Error::from(error),
        })
    }

    /// The settings for vectors, with what the flags change.
    fn embed_options(&self, session: &Session) -> EmbedOptions {
        let mut options = EmbedOptions::from(&session.embedder());
        options.pooling = self.pooling.unwrap_or(options.pooling);
        options.normalize = self.normalize.unwrap_or(options.normalize);
        options.dimensions = self.dim.or(options.dimensions);
        options
    }
}

/// What stands before texts.
#[derive(Debug, Args)]
pub(crate) struct Prompt {
    /// The model's prompt of this name before every text, such as query or document.
    #[arg(long, value_name = "NAME", conflicts_with = "prompt", help_heading = "Vectors")]
    prompt_name: Option<String>,
    /// This text before every text.
    #[arg(long, value_name = "TEXT", help_heading = "Vectors")]
    prompt: Option<String>,
}

impl Prompt {
    fn text(&self, session: &Session) -> Result<String> {
        match &self.prompt {
            Some(text) => Ok(text.clone()),
            None => {
                let found = session.prompt(self.prompt_name.as_deref());
                found.map(str::to_owned).map_err(|error| Error::from(error).about("--prompt-name"))
            }
        }
    }
}

/// The vectors of texts, each with a prompt in front.
fn embed(session: &Session, options: EmbedOptions, prompt: &str, texts: &[String]) -> Result<Vectors> {
    let found = if prompt.is_empty() {
        session.embed(texts, options)
    } else {
        let texts: Vec<String> = texts.iter().map(|text| format!("{prompt}{text}")).collect();
        session.embed(&texts, options)
    };
    Ok(found
        .map_err(|error| match error {
            RuntimeError::Dimensions { .. } => Error::from(error).about("--dim"),
            error => Error::from(error),
        })?
        .vectors)
}

/// Hands texts to `take`, at most [`TOGETHER`] at a time: the arguments, or the lines of standard input.
fn in_parts(texts: &[String], mut take: impl FnMut(Vec<String>) -> Result<()>) -> Result<()> {
    if !texts.is_empty() {
        return texts.chunks(TOGETHER).try_for_each(|part| take(part.to_vec()));
    }
    let mut reader = BufReader::with_capacity(1 << 16, std::io::stdin().lock());
    let (mut waiting, mut line, mut number) = (Vec::new(), Vec::new(), 0_usize);
    loop {
        line.clear();
        let read = read_line_limited(&mut reader, &mut line);
        let read = read.map_err(|error| Error::environment(format!("cannot read standard input: {error}"), None))?;
        if read == 0 {
            break;
        }
        number += 1;
        let bad = |problem: &str, hint: &str| {
            Error::new(ErrorKind::BadInput, format!("standard input, line {number}: {problem}"), hint.to_owned())
        };
        if line.len() > LONGEST_LINE {
            return Err(bad(&format!("more than {} MiB", LONGEST_LINE >> 20), "break it into shorter ones"));
        }
        let text = std::str::from_utf8(&line).map_err(|_| bad("not valid UTF-8", "save the text as UTF-8"))?;
        waiting.push(text.trim_end_matches(['\n', '\r']).to_owned());
        if waiting.len() == TOGETHER {
            take(std::mem::take(&mut waiting))?;
        }
    }
    if waiting.is_empty() { Ok(()) } else { take(waiting) }
}

pub(crate) use embed::run as run_embed;
pub(crate) use rank::run as run_rank;
pub(crate) use search::run as run_search;
pub(crate) use similarity::run as run_similarity;
