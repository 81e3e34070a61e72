//! A run reads its data once, before the first stage: every stage works after the files have been deleted.

use std::path::{Path, PathBuf};

use qbert_kernels::Compute;
use qbert_pipeline::run::{Event, Job, Stage, Watch, run};
use qbert_tasks::{DataSource, Task};
use qbert_train::evaluate::Evaluation;
use qbert_train::trainer::StepRecord;
use qbert_train::{sensitivity, trainer};

/// Deletes these files as soon as a stage begins.
struct Deleting(Vec<PathBuf>);

impl trainer::Watch for Deleting {
    fn step(&mut self, _: &StepRecord, _: usize) {}
    fn evaluated(&mut self, _: usize, _: &Evaluation, _: bool) {}
}

impl Watch for Deleting {
    fn stage(&mut self, _: Stage, event: Event<'_>) {
        if matches!(event, Event::Begins(_)) {
            self.0.drain(..).for_each(|path| std::fs::remove_file(path).expect("the file is there until now"));
        }
    }
    fn analysis(&mut self, _: sensitivity::Step, _: &sensitivity::Settings) {}
    fn progress(&mut self, _: usize, _: usize, _: &str) {}
    fn say(&mut self, _: &str) {}
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

/// A short run of every stage on an example's data, which is copied to `home`.
fn job(home: &Path, task: Task, ending: &str, max_len: usize) -> Job {
    let [train, dev] = ["train", "dev"].map(|name| {
        let to = home.join(name).with_extension(ending);
        std::fs::copy(examples().join(task.name()).join(name).with_extension(ending), &to)
            .expect("the example has this file");
        to
    });
    let mut data = DataSource { max_len, ..DataSource::new(task, [train]) };
    if task == Task::Classify {
        data.read.columns.text = Some("note".to_owned());
        data.read.columns.label = Some("condition".to_owned());
    }
    let mut job = Job::new("tiny", &examples().join("tiny-bert"), data, &dev, &home.join("run"));
    for training in [&mut job.finetune, &mut job.quantize] {
        training.settings.epochs = 1;
    }
    job.analysis.runs = 1;
    job.analysis.max_examples = Some(8);
    job
}

/// Runs every stage and deletes the files when the first one begins.
fn run_without_files(job: &Job) {
    let files = [job.data.files.clone(), vec![job.dev.clone()]].concat();
    let compute = Compute::detect(1).expect("kernels for this machine");
    run(job, &compute, &mut Deleting(files.clone())).expect("no stage needs the files");
    assert!(files.iter().all(|path| !path.exists()), "no stage began");
    for name in ["sensitivity.json", "model.qbert", "metrics.json", "speed.json", "landscape.json", "attention-kl.json"]
    {
        assert!(job.path(name).exists(), "{name}");
    }
}

#[test]
fn texts_are_read_once() {
    let home = tempfile::tempdir().unwrap();
    let mut job = job(home.path(), Task::Classify, "tsv", 64);
    // Trainings on parts of the data do not read it again either.
    job.finetune.max_train = Some(16);
    job.quantize.max_train = Some(8);
    run_without_files(&job);
}

#[test]
fn entities_are_read_once() {
    let home = tempfile::tempdir().unwrap();
    run_without_files(&job(home.path(), Task::Ner, "conll", 64));
}

#[test]
fn questions_are_read_once() {
    let home = tempfile::tempdir().unwrap();
    run_without_files(&job(home.path(), Task::Qa, "json", 96));
}
