//! The vectors of a file of texts, kept beside it.

use std::path::{Path, PathBuf};

use qbert_model::atomic;
use qbert_pipeline::{Error, ErrorKind, Result, hashes};
use qbert_runtime::{EmbedOptions, Session};
use serde::{Deserialize, Serialize};

use super::{TOGETHER, npy};
use crate::progress::Progress;

/// How vectors are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Precision {
    F32,
    Int8,
}

/// What the vectors were made from: they are made again where it changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Made {
    model: String,
    texts: String,
    settings: String,
}

/// Texts and their vectors.
pub(super) struct Index {
    texts: Vec<String>,
    matrix: npy::Matrix,
    /// One byte per number, and the step of each row; empty for f32.
    codes: Vec<i8>,
    steps: Vec<f32>,
}

impl Index {
    /// Opens the vectors beside a file of texts, or makes them.
    pub(super) fn open(
        session: &Session,
        settings: EmbedOptions,
        path: &Path,
        precision: Precision,
        quiet: bool,
    ) -> Result<Self> {
        let content = std::fs::read(path)
            .map_err(|error| Error::environment(format!("{}: cannot read: {error}", path.display()), None))?;
        let content = String::from_utf8(content).map_err(|_| {
            let message = format!("{}: not valid UTF-8", path.display());
            Error::new(ErrorKind::BadInput, message, "save the texts as UTF-8".to_owned())
        })?;
        let texts: Vec<String> = content.lines().map(str::to_owned).collect();
        if texts.is_empty() {
            let message = format!("{}: there is no text in it", path.display());
            return Err(Error::new(ErrorKind::BadInput, message, "every line is a text".to_owned()));
        }
        let prompt = session.prompt(session.document_prompt())?;
        let made = Made {
            model: hashes::file(session.model().path())?,
            texts: hashes::text(&content),
            settings: format!("{settings:?} {prompt:?} {}", session.max_len()),
        };
        let (vectors, record) = (beside(path, "vectors"), beside(path, "vectors.json"));
        let known: Option<Made> = std::fs::read(&record).ok().and_then(|text| serde_json::from_slice(&text).ok());
        if known.as_ref() != Some(&made) || !vectors.is_file() {
            make(session, settings, prompt, &texts, &vectors, quiet)?;
            atomic::write_file(&record, |writer| writeln!(writer, "{}", serde_json::json!(made)))?;
        }
        let matrix = npy::Matrix::open(&vectors)?;
        if matrix.rows != texts.len() {
            let message = format!("{}: {} vectors for {} texts", vectors.display(), matrix.rows, texts.len());
            return Err(Error::new(ErrorKind::BadInput, message, "remove the file; it is made again".to_owned()));
        }
        let (codes, steps) = match precision {
            Precision::F32 => (Vec::new(), Vec::new()),
            Precision::Int8 => in_bytes(&matrix),
        };
        Ok(Self { texts, matrix, codes, steps })
    }

    /// The text at a place.
    pub(super) fn text(&self, place: usize) -> &str {
        &self.texts[place]
    }

    /// The places of the texts nearest to a vector of length 1, with their cosines, the nearest first.
    pub(super) fn nearest(&self, query: &[f32], count: usize) -> Vec<(usize, f32)> {
        let mut scored: Vec<(usize, f32)> = if self.codes.is_empty() {
            let values = self.matrix.values();
            values.chunks_exact(self.matrix.width).map(|row| dot(query, row)).enumerate().collect()
        } else {
            let (own, step) = codes_of(query);
            let rows = self.codes.chunks_exact(self.matrix.width).zip(&self.steps);
            rows.map(|(row, row_step)| byte_dot(&own, row) as f32 * step * row_step).enumerate().collect()
        };
        let order = |a: &(usize, f32), b: &(usize, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        if count < scored.len() && count > 0 {
            scored.select_nth_unstable_by(count - 1, order);
        }
        scored.truncate(count);
        scored.sort_by(order);
        scored
    }
}

/// `FILE.ENDING` beside `FILE`.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{ending}"));
    path.with_file_name(name)
}

fn make(
    session: &Session,
    settings: EmbedOptions,
    prompt: &str,
    texts: &[String],
    path: &Path,
    quiet: bool,
) -> Result<()> {
    let unwritten = |error: std::io::Error| Error::environment(format!("cannot write the vectors: {error}"), None);
    let mut scratch = tempfile::tempfile().map_err(unwritten)?;
    let mut writer = npy::Writer::new(&mut scratch).map_err(unwritten)?;
    let mut progress = Progress::new("embed", quiet);
    let mut done = 0;
    for part in texts.chunks(TOGETHER) {
        let vectors = super::embed(session, settings, prompt, part)?;
        writer.rows(vectors.width(), vectors.as_slice()).map_err(unwritten)?;
        done += part.len();
        progress.at(done, texts.len(), "");
    }
    writer.finish().map_err(unwritten)?;
    std::io::Seek::rewind(&mut scratch).map_err(unwritten)?;
    Ok(atomic::write_file(path, |out| std::io::copy(&mut scratch, out).map(|_| ()))?)
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    // Eight sums, so that the compiler can use vectors; their order is fixed.
    let mut sums = [0.0_f32; 8];
    let (a_chunks, a_rest) = a.as_chunks::<8>();
    let (b_chunks, b_rest) = b.as_chunks::<8>();
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for (sum, (x, y)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += x * y;
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(x, y)| x * y).sum();
    sums.iter().sum::<f32>() + rest
}

fn byte_dot(a: &[i8], b: &[i8]) -> i32 {
    a.iter().zip(b).map(|(&x, &y)| i32::from(x) * i32::from(y)).sum()
}

/// A vector as bytes, and what one step is worth.
fn codes_of(vector: &[f32]) -> (Vec<i8>, f32) {
    let largest = vector.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    let step = if largest > 0.0 { largest / 127.0 } else { 1.0 };
    (vector.iter().map(|value| (value / step).round() as i8).collect(), step)
}

fn in_bytes(matrix: &npy::Matrix) -> (Vec<i8>, Vec<f32>) {
    let (mut codes, mut steps) = (Vec::with_capacity(matrix.rows * matrix.width), Vec::with_capacity(matrix.rows));
    for row in matrix.values().chunks_exact(matrix.width) {
        let (own, step) = codes_of(row);
        codes.extend(own);
        steps.push(step);
    }
    (codes, steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_keep_products() {
        let a: Vec<f32> = (0..50).map(|i| ((i * 7 % 13) as f32 - 6.0) / 20.0).collect();
        let b: Vec<f32> = (0..50).map(|i| ((i * 5 % 11) as f32 - 5.0) / 20.0).collect();
        let ((codes_a, step_a), (codes_b, step_b)) = (codes_of(&a), codes_of(&b));
        let found = byte_dot(&codes_a, &codes_b) as f32 * step_a * step_b;
        assert!((found - dot(&a, &b)).abs() < 5e-3, "{found} {}", dot(&a, &b));
    }
}
