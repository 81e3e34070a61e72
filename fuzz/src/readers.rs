//! Data files of every task and format.

use qbert_tasks::qa::QaOptions;
use qbert_tasks::stats::statistics;
use qbert_tasks::{Columns, Features, Format, ReadOptions, Task, Tokenizer, VocabOptions, read};

const VOCABULARY: &str = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nowl\nof\nsaw\n##s\na\n.\n?\n";

/// The first byte chooses task and format; the rest is the file. Whether it can be read.
pub fn run(data: &[u8]) -> bool {
    let Some((&choice, file)) = data.split_first() else { return false };
    let tasks = [Task::Sst2, Task::Mnli, Task::Conll03, Task::Squad, Task::Classify, Task::Pair, Task::Ner, Task::Qa];
    let task = tasks[usize::from(choice) % tasks.len()];
    let is_table = task.kind().profile().has_columns;
    let formats = [None, Some(Format::Tsv), Some(Format::Csv), Some(Format::Jsonl)];
    let format = if is_table { formats[usize::from(choice / 8) % formats.len()] } else { None };
    let column = |name: &str| (is_table && choice & 128 != 0).then(|| name.to_owned());
    let columns = Columns { text: column("text"), text2: None, label: column("label"), id: None };
    let options = ReadOptions { columns, format, require_labels: choice & 64 == 0, ..ReadOptions::default() };
    let path = crate::directory("readers").join(if is_table { "data.tsv" } else { "data.json" });
    crate::write(&path, file);
    let Ok(dataset) = read(task, &[path], &options) else { return false };
    let tokenizer = Tokenizer::from_vocab("vocab.txt", VOCABULARY.as_bytes(), VocabOptions::default());
    let tokenizer = tokenizer.expect("a vocabulary");
    let _ = statistics(&dataset, Some(&tokenizer), &QaOptions { max_len: 80, ..QaOptions::default() });
    if let Ok(features) = Features::new(dataset, &tokenizer, 80) {
        for indices in features.evaluation_batches(256) {
            let _ = features.batch(&indices, true);
        }
    }
    true
}
