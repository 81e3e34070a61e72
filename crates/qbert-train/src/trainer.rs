//! The trainer: epochs over shuffled data, a log line per step, evaluation after every epoch, the best weights kept,
//! and a state that survives `kill -9`.
//!
//! A run owns its output directory: the best checkpoint in Hugging Face layout, `train.jsonl`, `metrics.json`, and
//! while it is not finished `resume.safetensors`.

mod settings;

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use qbert_kernels::Compute;
use qbert_model::{Parameters, TokenizerFiles, atomic, update_checkpoint};
use qbert_tasks::Labels;
use serde::{Deserialize, Serialize};

use crate::bert::{Activations, BackwardBuffers, Bert, Mode, zero};
use crate::error::{Error, Result};
use crate::evaluate::{self, Evaluation};
use crate::features::Features;
use crate::optimizer::{Optimizer, Schedule};
use crate::qat::student::{StepOf, Student};
use crate::qat::{ModelWeights, QuantizedPass, files};
use crate::random::Stream;
use crate::state::{self, Before, Position, difference};

pub use settings::Settings;

/// What the run reads and writes.
#[derive(Debug)]
pub struct Run<'a> {
    /// The model's shape.
    pub bert: &'a Bert,
    /// Labels in the order of the head's outputs.
    pub labels: &'a Labels,
    /// Carried along into the checkpoint.
    pub tokenizer: &'a TokenizerFiles,
    /// What is learned from.
    pub train: &'a Features,
    /// What the epochs are judged by.
    pub dev: &'a Features,
    /// The run's directory.
    pub out: &'a Path,
    /// What else must be equal for a run to be continued: task, data, model.
    pub identity: serde_json::Value,
}

/// A line of `train.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Steps taken, this one included.
    pub step: usize,
    /// Passes over the data so far.
    pub epoch: f64,
    /// Mean loss of the step's sequences.
    pub loss: f64,
    /// Learning rate.
    pub rate: f64,
    /// Norm of the gradient before clipping.
    pub gradient_norm: f64,
    /// Tokens computed.
    pub tokens: usize,
}

/// Whoever watches a run.
pub trait Watch {
    /// A step is done.
    fn step(&mut self, record: &StepRecord, total: usize);
    /// A model that is to be quantized was evaluated as it came in.
    fn full_precision(&mut self, _evaluation: &Evaluation) {}
    /// An epoch was evaluated; 0 stands for a quantized model before its first step.
    fn evaluated(&mut self, epoch: usize, evaluation: &Evaluation, best: bool);
    /// Asked after every step: whether to save the state and end with [`Error::Stopped`].
    fn stop(&mut self) -> bool {
        false
    }
}

/// How a run ended.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// The metric's name.
    pub metric: &'static str,
    /// The best figure, in percent.
    pub best: f64,
    /// After which epoch, counted from 1; 0 for a quantized model before its first step.
    pub best_epoch: usize,
    /// Optimizer steps.
    pub steps: usize,
    /// Of a quantized model: its figures before training.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Before>,
}

/// How often the state is saved, at least.
const SAVE_EVERY: Duration = Duration::from_secs(60);

/// A run in progress.
#[derive(Debug)]
pub struct Trainer<'a> {
    run: Run<'a>,
    settings: Settings,
    compute: &'a Compute,
    weights: Parameters,
    optimizer: Optimizer,
    gradients: Vec<f32>,
    activations: Activations,
    buffers: BackwardBuffers,
    position: Position,
    schedule: Schedule,
    /// Steps of a whole pass over the data.
    per_epoch: usize,
    student: Option<Student>,
    /// The full-precision model's figure, where it was measured before.
    full_precision: Option<f64>,
    keeps_last: bool,
    /// Of a run that is over and was asked to go on: how it ended.
    finished: Option<Outcome>,
}

impl<'a> Trainer<'a> {
    /// Prepares a run from `weights`; with `resume`, picks up where the directory's last state was saved. A run that is over
    /// and is asked to go on just says how it ended.
    pub fn new(
        run: Run<'a>,
        settings: Settings,
        compute: &'a Compute,
        weights: Parameters,
        resume: bool,
    ) -> Result<Self> {
        Self::for_student(run, settings, compute, weights, None, resume)
    }

    /// The same for a model that is being quantized: passes compute with what `student` makes of the weights.
    pub fn for_student(
        run: Run<'a>,
        settings: Settings,
        compute: &'a Compute,
        weights: Parameters,
        student: Option<Student>,
        resume: bool,
    ) -> Result<Self> {
        settings.check()?;
        if run.train.is_empty() || run.dev.is_empty() {
            return Err(Error::Batch { problem: "there is nothing to learn from, or nothing to judge by".to_owned() });
        }
        let per_epoch = run.train.len().div_ceil(settings.batch * settings.accumulate);
        let total = settings.steps.unwrap_or(per_epoch * settings.epochs);
        let warmup = (total as f64 * settings.warmup).round() as usize;
        let schedule = Schedule { peak: settings.optimizer.learning_rate, warmup, total };
        let mut identity = serde_json::json!({ "settings": settings, "run": run.identity });
        if let Some(student) = &student {
            identity["quantization"] = student.identity();
        }
        let optimizer = Optimizer::new(settings.optimizer, run.bert.layout());
        let position = Position::start(identity);
        let mut trainer = Self {
            gradients: vec![0.0; weights.values().len()],
            run,
            settings,
            compute,
            weights,
            optimizer,
            activations: Activations::for_training(),
            buffers: BackwardBuffers::default(),
            position,
            schedule,
            per_epoch,
            student,
            full_precision: None,
            keeps_last: false,
            finished: None,
        };
        trainer.open(resume)?;
        Ok(trainer)
    }

    /// Takes the full-precision model's dev figure as given, instead of measuring it again before quantizing.
    pub fn set_full_precision(&mut self, value: f64) {
        self.full_precision = Some(value);
    }

    /// Keeps the model of the last epoch, rather than that of the best one.
    pub fn keep_last(&mut self) {
        self.keeps_last = true;
    }

    /// Optimizer steps of the whole run, and those already taken.
    pub fn steps(&self) -> (usize, usize) {
        (self.schedule.total, self.position.steps)
    }

    fn state_path(&self) -> PathBuf {
        self.run.out.join("resume.safetensors")
    }

    fn log_path(&self) -> PathBuf {
        self.run.out.join("train.jsonl")
    }

    fn metrics_path(&self) -> PathBuf {
        self.run.out.join("metrics.json")
    }

    /// Makes the directory ready: empty for a new run, cut back to the saved step for a resumed one.
    fn open(&mut self, resume: bool) -> Result<()> {
        let out = self.run.out;
        let io = |path: &Path, action| {
            let path = path.to_owned();
            move |source| Error::Io { path, action, source }
        };
        std::fs::create_dir_all(out).map_err(io(out, "create the directory"))?;
        atomic::remove_leftovers(out)?;
        let (state, log) = (self.state_path(), self.log_path());
        if resume && state.exists() {
            let mut ranges = self.student.as_ref().map_or(Vec::new(), |student| student.flat_ranges());
            let mut targets: Vec<(&str, &mut [f32])> = vec![
                ("weights", self.weights.values_mut()),
                ("first", &mut self.optimizer.first),
                ("second", &mut self.optimizer.second),
            ];
            if self.student.is_some() {
                targets.push(("ranges", &mut ranges));
            }
            let saved = state::read(&state, &mut targets)?;
            if saved.settings != self.position.settings {
                let difference = difference(&saved.settings, &self.position.settings);
                return Err(Error::Resume {
                    path: state,
                    problem: format!("the run was started differently: {difference}"),
                });
            }
            self.optimizer.steps = saved.steps;
            if let Some(student) = &mut self.student {
                student.restore(&ranges, saved.activations.clone())?;
            }
            self.position = saved;
            let file =
                OpenOptions::new().write(true).create(true).truncate(false).open(&log).map_err(io(&log, "open"))?;
            return file.set_len(self.position.log_bytes).map_err(io(&log, "shorten"));
        }
        let finished = out.join("model.safetensors");
        if resume && finished.exists() {
            self.finished = Some(self.ended()?);
            return Ok(());
        }
        if finished.exists() || state.exists() {
            let path = if state.exists() { state } else { finished };
            return Err(Error::Resume { path, problem: "the directory holds a run already".to_owned() });
        }
        std::fs::write(&log, b"").map_err(io(&log, "create"))?;
        // From here to the end there is a state: a directory with weights but without one is a finished run.
        self.save()
    }

    /// How a run that is over ended, if it was this one.
    fn ended(&self) -> Result<Outcome> {
        let path = self.metrics_path();
        let ended = state::ended(&path)?;
        if ended.run != self.position.settings {
            let difference = difference(&ended.run, &self.position.settings);
            return Err(Error::Resume {
                path,
                problem: format!("the finished run was made differently: {difference}"),
            });
        }
        let metric = evaluate::metric_of(self.run.dev);
        let (best, best_epoch) = (ended.dev.value, ended.epoch);
        Ok(Outcome { metric, best, best_epoch, steps: self.schedule.total, before: ended.before })
    }

    /// Trains to the end.
    ///
    /// # Errors
    /// [`Error::Stopped`] when `watch` asks for it, with the state saved; [`Error::Diverged`]; a file that cannot be written.
    pub fn run(mut self, watch: &mut dyn Watch) -> Result<Outcome> {
        if let Some(outcome) = self.finished {
            return Ok(outcome);
        }
        let (per_epoch, total) = (self.per_epoch, self.schedule.total);
        if self.student.is_some() && self.position.before.is_none() {
            self.before_training(watch)?;
        }
        let mut saved = Instant::now();
        for epoch in self.position.evaluated..total.div_ceil(per_epoch) {
            let mut order: Vec<usize> = (0..self.run.train.len()).collect();
            Stream::new(self.settings.seed, "order", epoch as u64).shuffle(&mut order);
            while self.position.steps < ((epoch + 1) * per_epoch).min(total) {
                let within = self.position.steps - epoch * per_epoch;
                let size = self.settings.batch * self.settings.accumulate;
                let indices = &order[within * size..((within + 1) * size).min(order.len())];
                let record = self.step(indices)?;
                self.log(&record)?;
                watch.step(&record, total);
                if watch.stop() {
                    self.save()?;
                    return Err(Error::Stopped { path: self.state_path() });
                }
                if saved.elapsed() >= SAVE_EVERY {
                    self.save()?;
                    saved = Instant::now();
                }
            }
            let evaluation = self.evaluate()?;
            let best = self.position.best.is_none_or(|(best, _)| evaluation.value > best);
            if best {
                self.position.best = Some((evaluation.value, epoch + 1));
            }
            if best || self.keeps_last {
                self.write_kept(epoch + 1, &evaluation)?;
            }
            self.log_evaluation(epoch + 1, &evaluation)?;
            watch.evaluated(epoch + 1, &evaluation, best);
            self.position.evaluated = epoch + 1;
            self.save()?;
            saved = Instant::now();
        }
        let state = self.state_path();
        std::fs::remove_file(&state).map_err(|source| Error::Io { path: state, action: "remove", source })?;
        let (best, best_epoch) = self.position.best.unwrap_or((0.0, 0));
        let metric = evaluate::metric_of(self.run.dev);
        Ok(Outcome { metric, best, best_epoch, steps: self.position.steps, before: self.position.before })
    }

    /// What the model can do as it is, and quantized without training; the latter is the first to be the best.
    fn before_training(&mut self, watch: &mut dyn Watch) -> Result<()> {
        let full_precision = match self.full_precision {
            Some(known) => known,
            None => {
                let full = self.judge(ModelWeights::Full(self.weights.values()))?;
                watch.full_precision(&full);
                full.value
            }
        };
        if let Some(student) = &mut self.student {
            let Run { bert, train, .. } = &self.run;
            student.calibrate(bert, self.compute, self.weights.values_mut(), train, self.settings.batch)?;
        }
        let quantized = self.evaluate()?;
        self.position.before = Some(Before { full_precision, post_training: quantized.value });
        self.position.best = Some((quantized.value, 0));
        self.write_kept(0, &quantized)?;
        self.log_evaluation(0, &quantized)?;
        watch.evaluated(0, &quantized, true);
        if let Some(student) = &mut self.student {
            student.start_training(self.weights.values_mut())?;
        }
        self.save()
    }

    /// One optimizer step on these sequences.
    fn step(&mut self, indices: &[usize]) -> Result<StepRecord> {
        let step = self.position.steps;
        zero(self.compute, &mut self.gradients);
        let (mut loss, mut tokens) = (0.0, 0);
        let parts = indices.chunks(self.settings.batch);
        let batches = parts.map(|part| self.run.train.batch(part, true)).collect::<Result<Vec<_>>>()?;
        let (bert, compute) = (self.run.bert, self.compute);
        batches.iter().try_for_each(|batch| bert.check(batch))?;
        // Every sequence (token, span) counts alike, though the last micro-batch may be smaller than the others.
        let terms: usize = batches.iter().map(|batch| batch.targets.terms()).sum();
        if let Some(student) = &mut self.student {
            let at = StepOf { step, total: self.schedule.total };
            student.before_step(compute, self.weights.values(), at, &batches)?;
        }
        for (number, batch) in batches.iter().enumerate() {
            let mode =
                Mode::Train { seed: self.settings.seed, step: (step * self.settings.accumulate + number) as u64 };
            let share = batch.targets.terms() as f64 / terms.max(1) as f64;
            let activations = &mut self.activations;
            let targets = (&mut self.buffers, &mut self.gradients[..]);
            let own = match &mut self.student {
                Some(student) => {
                    let pass = QuantizedPass { compute, batch, mode };
                    student.learn(bert, pass, share, activations, targets)?
                }
                None => {
                    let weights = self.weights.values();
                    bert.forward(compute, weights, batch, mode, activations);
                    let own = bert.loss(batch, activations, share, targets.0).mean;
                    bert.backward(compute, weights, batch, mode, activations, targets);
                    own
                }
            };
            loss += share * own;
            tokens += batch.tokens();
        }
        if let Some(student) = &self.student {
            student.after_backward(compute, self.weights.values(), &mut self.gradients);
        }
        self.finite(step + 1, "loss", loss)?;
        let rate = self.schedule.rate(step);
        let norm = self.optimizer.step(self.compute, rate, self.weights.values_mut(), &self.gradients);
        self.finite(step + 1, "gradient norm", norm)?;
        self.position.steps = step + 1;
        let epoch = (step + 1) as f64 / self.per_epoch as f64;
        Ok(StepRecord { step: step + 1, epoch, loss, rate, gradient_norm: norm, tokens })
    }

    fn finite(&self, step: usize, what: &'static str, value: f64) -> Result<()> {
        if value.is_finite() {
            return Ok(());
        }
        let candidates = [self.state_path(), self.run.out.join("model.safetensors")];
        let last_good = candidates.into_iter().find(|path| path.exists());
        Err(Error::Diverged { step, what, value, last_good })
    }

    fn log(&mut self, record: &impl Serialize) -> Result<()> {
        let path = self.log_path();
        let line = serde_json::to_string(record).unwrap_or_default() + "\n";
        let appended =
            OpenOptions::new().append(true).create(true).open(&path).and_then(|mut f| f.write_all(line.as_bytes()));
        appended.map_err(|source| Error::Io { path, action: "append to", source })?;
        self.position.log_bytes += line.len() as u64;
        Ok(())
    }

    /// The dev figure after an epoch, among the steps.
    fn log_evaluation(&mut self, epoch: usize, evaluation: &Evaluation) -> Result<()> {
        let Evaluation { metric, value, .. } = evaluation;
        self.log(&serde_json::json!({ "epoch": epoch, "dev": { "metric": metric, "value": value } }))
    }

    fn save(&mut self) -> Result<()> {
        let ranges;
        let (first, second) = (&self.optimizer.first[..], &self.optimizer.second[..]);
        let mut arrays = vec![("weights", self.weights.values()), ("first", first), ("second", second)];
        if let Some(student) = &self.student {
            ranges = student.flat_ranges();
            self.position.activations = student.learned();
            arrays.push(("ranges", &ranges));
        }
        state::write(&self.state_path(), &self.position, &arrays)
    }

    /// The figures of the model that is trained: quantized, if it is to be.
    fn evaluate(&mut self) -> Result<Evaluation> {
        if let Some(student) = &mut self.student {
            student.before_evaluation(self.compute, self.weights.values())?;
        }
        match &self.student {
            Some(student) => self.judge(ModelWeights::Quantized(student.quantization())),
            None => self.judge(ModelWeights::Full(self.weights.values())),
        }
    }

    fn judge(&self, weights: ModelWeights<'_>) -> Result<Evaluation> {
        let Run { bert, dev, labels, .. } = &self.run;
        let scores = evaluate::scores_with(bert, self.compute, weights, dev, |_| {})?;
        let predictions = evaluate::predict(dev, &scores, bert.outputs())?;
        evaluate::score(dev, &predictions, labels)
    }

    /// Writes the model as it is, with its figures.
    fn write_kept(&self, epoch: usize, evaluation: &Evaluation) -> Result<()> {
        let Run { bert, labels, tokenizer, out, .. } = &self.run;
        if let Some(student) = &self.student {
            files::write(out, student.quantization())?;
        }
        update_checkpoint(out, bert.config(), &self.weights, labels.names(), tokenizer)?;
        let mut metrics = serde_json::json!({
            "dev": evaluation,
            "epoch": epoch,
            "run": self.position.settings,
        });
        if let Some(before) = self.position.before {
            metrics["before"] = serde_json::json!(before);
        }
        atomic::write_file(&self.metrics_path(), |writer| writeln!(writer, "{metrics:#}"))?;
        Ok(())
    }
}
