//! Models of the Hugging Face hub, by id.
//!
//! Downloads go through the `hf-hub` crate into the cache that all Hugging Face tools share, so a model that Python
//! downloaded is found here, and vice versa. A cached model needs no connection. Only the files of a checkpoint are
//! downloaded, the weights last: if they are there, so is the rest.

use std::path::{Path, PathBuf};

use hf_hub::api::sync::{ApiBuilder, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};

use crate::checkpoint::TokenizerFiles;
use crate::error::{Error, Result};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Where to look for a hub model; the default follows `HF_ENDPOINT`, `HF_HOME` and the stored token.
#[derive(Debug, Clone, Default)]
pub struct HubOptions {
    /// A server other than the public hub.
    pub endpoint: Option<String>,
    /// A cache directory other than the shared one.
    pub cache: Option<PathBuf>,
    /// Show download progress on stderr.
    pub progress: bool,
}

/// The directory of a model: `name` itself if it is one, else the hub model of that id (`owner/name`, `name`, or
/// `owner/name@revision`), from the cache or downloaded.
pub fn resolve(name: &str, options: &HubOptions) -> Result<PathBuf> {
    let path = Path::new(name);
    if path.is_file() {
        return Err(Error::file_alone(path));
    }
    if path.exists() {
        return Ok(path.to_owned());
    }
    let Some((id, revision)) = parse_id(name) else {
        let detail = Some("it cannot be a hub id either (owner/name)".to_owned());
        return Err(Error::NoSuchModel { name: name.to_owned(), detail });
    };
    let cache = options.cache.clone().map_or_else(Cache::from_env, Cache::new);
    let repo = Repo::with_revision(id.to_owned(), RepoType::Model, revision.to_owned());
    match cached(&cache, &repo) {
        Some(directory) => Ok(directory),
        None => Download::new(id, cache, options)?.run(repo),
    }
}

/// `id` and revision, if the name can be a hub id at all.
fn parse_id(name: &str) -> Option<(&str, &str)> {
    let (id, revision) = name.split_once('@').unwrap_or((name, "main"));
    let word = |part: &str| {
        !part.is_empty()
            && !part.starts_with(['.', '-'])
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    let parts: Vec<&str> = id.split('/').collect();
    // A mistyped file path should not be looked up on the hub.
    let is_file = [".qbert", ".safetensors", ".json", ".toml", ".bin"].iter().any(|ending| id.ends_with(ending));
    let fits = parts.len() <= 2 && parts.iter().all(|p| word(p)) && revision.split('/').all(word) && !is_file;
    fits.then_some((id, revision))
}

/// The snapshot in the cache, if it has complete weights and a tokenizer. Other programs that share the cache may have
/// downloaded only the weights.
fn cached(cache: &Cache, repo: &Repo) -> Option<PathBuf> {
    let files = cache.repo(repo.clone());
    let directory = files.get("config.json")?.parent()?.to_owned();
    if !["tokenizer.json", "vocab.txt"].iter().any(|name| directory.join(name).exists()) {
        return None;
    }
    if directory.join(SINGLE).exists() {
        return Some(directory);
    }
    let shards = shard_names(&directory.join(INDEX)).ok()?;
    shards.iter().all(|shard| directory.join(shard).exists()).then_some(directory)
}

fn shard_names(index: &Path) -> Result<Vec<String>> {
    let text = std::fs::read(index).map_err(Error::io(index, "read the index of shards"))?;
    let json: serde_json::Value = serde_json::from_slice(&text)
        .map_err(|e| Error::Damaged { path: index.to_owned(), problem: format!("not an index of shards: {e}") })?;
    let map = json.get("weight_map").and_then(|m| m.as_object());
    let mut names: Vec<String> =
        map.into_iter().flat_map(|m| m.values()).filter_map(|v| v.as_str()).map(str::to_owned).collect();
    names.sort();
    names.dedup();
    Ok(names)
}

struct Download<'a> {
    id: &'a str,
    api: hf_hub::api::sync::Api,
}

impl<'a> Download<'a> {
    fn new(id: &'a str, cache: Cache, options: &HubOptions) -> Result<Self> {
        let endpoint = options.endpoint.clone().or_else(|| std::env::var("HF_ENDPOINT").ok());
        let mut builder = ApiBuilder::from_cache(cache).with_progress(options.progress).with_retries(2);
        if let Some(endpoint) = endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        if let Ok(token) = std::env::var("HF_TOKEN") {
            builder = builder.with_token(Some(token));
        }
        let api = builder.build().map_err(|e| failed(id, "its file list", &e))?;
        Ok(Self { id, api })
    }

    fn run(&self, repo: Repo) -> Result<PathBuf> {
        let info = self.api.repo(repo.clone()).info().map_err(|e| failed(self.id, "its file list", &e))?;
        let there = |name: &str| info.siblings.iter().any(|s| s.rfilename == name);
        if !there("config.json") {
            return Err(self.unusable("config.json", "the repository has no config.json: not a transformers model"));
        }
        let weights = if there(SINGLE) { SINGLE } else { INDEX };
        if !there(weights) {
            let reason = "the repository has no safetensors weights, and pickles are not read";
            return Err(self.unusable(SINGLE, reason));
        }
        let files = self.api.repo(repo);
        let config = self.get(&files, "config.json")?;
        for name in TokenizerFiles::NAMES {
            if there(name) {
                self.get(&files, name)?;
            }
        }
        let first = self.get(&files, weights)?;
        if weights == INDEX {
            for shard in shard_names(&first)? {
                self.get(&files, &shard)?;
            }
        }
        Ok(config.parent().unwrap_or(Path::new(".")).to_owned())
    }

    fn get(&self, files: &ApiRepo, name: &str) -> Result<PathBuf> {
        files.get(name).map_err(|error| failed(self.id, name, &error))
    }

    fn unusable(&self, file: &str, reason: &str) -> Error {
        Error::Hub { id: self.id.to_owned(), file: file.to_owned(), reason: reason.to_owned() }
    }
}

fn failed(id: &str, file: &str, error: &dyn std::error::Error) -> Error {
    Error::Hub { id: id.to_owned(), file: file.to_owned(), reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::parse_id;

    #[test]
    fn hub_ids() {
        assert_eq!(parse_id("google-bert/bert-base-uncased"), Some(("google-bert/bert-base-uncased", "main")));
        assert_eq!(parse_id("bert-base-uncased@v1.0"), Some(("bert-base-uncased", "v1.0")));
        assert_eq!(parse_id("a/b@refs/pr/1"), Some(("a/b", "refs/pr/1")));
        for not_an_id in ["", "/", "./model", "a/b/c", "a//b", "../up", "a b", "a/b@", "C:\\model", "a/.hidden"] {
            assert_eq!(parse_id(not_an_id), None, "{not_an_id}");
        }
    }
}
