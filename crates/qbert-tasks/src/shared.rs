//! Data that the steps of a job share.

use std::sync::Arc;

use crate::{DataSource, Dataset, Features, LabelSource, Result, TaskData, Tokenizer};

/// Reads files and encodes examples the first time they are needed, and lends them from then on. What it lends equals what
/// reading the files again would give: files are read a second time for labels in another order, and encoded a second
/// time for another tokenizer, another length or fewer examples.
#[derive(Debug, Default)]
pub struct SharedData {
    files: Vec<FilesRead>,
}

/// Files that were read with one list of labels.
#[derive(Debug)]
struct FilesRead {
    source: DataSource,
    dataset: Arc<Dataset>,
    encoded: Vec<EncodedExamples>,
}

/// Their examples, encoded.
#[derive(Debug)]
struct EncodedExamples {
    tokenizer: Tokenizer,
    max_len: usize,
    limit: Option<usize>,
    features: Arc<Features>,
}

impl SharedData {
    /// The examples of the files.
    ///
    /// # Errors
    /// As [`DataSource::dataset`].
    pub fn dataset(&mut self, source: &DataSource) -> Result<Arc<Dataset>> {
        Ok(Arc::clone(&self.files(source)?.dataset))
    }

    /// The first `limit` examples of the files, encoded.
    ///
    /// # Errors
    /// As [`DataSource::load`].
    pub fn load(&mut self, source: DataSource, tokenizer: &Tokenizer, limit: Option<usize>) -> Result<TaskData> {
        let files = self.files(&source)?;
        let features = files.encoded(tokenizer, source.max_len, limit)?;
        let labels = files.dataset.output_names()?;
        Ok(TaskData { source, limit, labels, features })
    }

    /// How often files were read: once for each list of files and labels.
    pub fn reads(&self) -> usize {
        self.files.len()
    }

    fn files(&mut self, source: &DataSource) -> Result<&mut FilesRead> {
        let index = match self.files.iter().position(|known| known.equals(source)) {
            Some(index) => index,
            None => {
                let dataset = Arc::new(source.dataset()?);
                self.files.push(FilesRead { source: source.clone(), dataset, encoded: Vec::new() });
                self.files.len() - 1
            }
        };
        Ok(&mut self.files[index])
    }
}

impl FilesRead {
    /// Whether reading `source` would give these examples with these labels.
    fn equals(&self, source: &DataSource) -> bool {
        let labels_aside = |source: &DataSource| {
            let source = source.clone().with_labels(LabelSource::TaskOrFound);
            (source.task, source.files, source.read)
        };
        if labels_aside(&self.source) != labels_aside(source) {
            return false;
        }
        if self.source.read.labels == source.read.labels {
            return true;
        }
        // Labels that were found and are then given mean the same in the same files. Labels found in other files may not.
        let Some((raw, count)) = self.dataset.examples().found() else { return false };
        let given = source.read.labels.for_data(source.task, raw, count).ok().flatten();
        given.is_some_and(|given| self.dataset.labels().is_some_and(|known| known.reads_as(&given, raw)))
    }

    fn encoded(&mut self, tokenizer: &Tokenizer, max_len: usize, limit: Option<usize>) -> Result<Arc<Features>> {
        let limit = limit.filter(|&limit| limit < self.dataset.len());
        let same = |known: &&EncodedExamples| {
            known.max_len == max_len && known.limit == limit && known.tokenizer.is_same_as(tokenizer)
        };
        if let Some(known) = self.encoded.iter().find(same) {
            return Ok(Arc::clone(&known.features));
        }
        let dataset = match limit {
            None => Arc::clone(&self.dataset),
            Some(limit) => Arc::new(self.dataset.first(limit)),
        };
        let features = Arc::new(Features::new(dataset, tokenizer, max_len)?);
        let (tokenizer, lent) = (tokenizer.clone(), Arc::clone(&features));
        self.encoded.push(EncodedExamples { tokenizer, max_len, limit, features });
        Ok(lent)
    }
}
