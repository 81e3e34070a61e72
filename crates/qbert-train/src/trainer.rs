//! The trainer: epochs over shuffled data, a log line per step, an evaluation after every epoch, the best weights kept, and
//! a state that survives `kill -9`.
//!
//! A run owns its output directory (`trainer/directory.rs`).

mod directory;
mod settings;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use qbert_documents::BeforeTraining;
use qbert_kernels::Compute;
use qbert_model::lock::DirectoryLock;
use qbert_model::{Parameters, TokenizerFiles};
use qbert_tasks::Labels;
use serde::Serialize;

use crate::bert::{Activations, BackwardBuffers, Bert, Mode, Pass, zero};
use crate::error::{Error, Result};
use crate::evaluate::{self, Evaluation};
use crate::features::Features;
use crate::optimizer::{Optimizer, Schedule};
use crate::qat::student::{StepOf, Student};
use crate::qat::{ModelWeights, QuantizedPass};
use crate::random::Stream;
use crate::state::Position;

pub use directory::recorded_precision;
pub use qbert_documents::StepRecord;
pub use settings::{Settings, TrainingPrecision};

/// What the run reads and writes.
#[derive(Debug)]
pub struct Run<'a> {
    /// The model's shape.
    pub bert: &'a Bert,
    /// Labels in the order of the head's outputs.
    pub labels: &'a Labels,
    /// Carried along into the checkpoint.
    pub tokenizer: &'a TokenizerFiles,
    /// Training data.
    pub train: &'a Features,
    /// The data that decides which epoch is the best.
    pub dev: &'a Features,
    /// The run's directory.
    pub out: &'a Path,
    /// What else must be the same to continue a run: task, data, model.
    pub identity: serde_json::Value,
}

/// Observes a training run.
pub trait Watch {
    /// Something the user should know about model or data, before training.
    fn note(&mut self, _text: &str) {}
    /// A step is done.
    fn step(&mut self, record: &StepRecord, total: usize);
    /// A model was evaluated in full precision, before it is quantized.
    fn full_precision(&mut self, _evaluation: &Evaluation) {}
    /// The model was evaluated after an epoch; 0 is a quantized model before its first step.
    fn evaluated(&mut self, epoch: usize, evaluation: &Evaluation, best: bool);
    /// Called after every step: whether to save the state and end with [`Error::Stopped`].
    fn stop(&mut self) -> bool {
        false
    }
    /// How often the state is saved; `None` for the default.
    fn save_every(&self) -> Option<Duration> {
        None
    }
}

/// How a run ended.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// The metric's name.
    pub metric: &'static str,
    /// The metric of the model that is kept, in percent: the best one, unless the last was asked for.
    pub best: f64,
    /// After which epoch that was, counted from 1; 0 for a quantized model before its first step.
    pub best_epoch: usize,
    /// Optimizer steps.
    pub steps: usize,
    /// The metrics of a quantized model before training.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<BeforeTraining>,
}

/// The state is saved this often, unless [`Watch::save_every`] says otherwise.
const SAVE_EVERY: Duration = Duration::from_secs(60);

/// A run in progress.
#[derive(Debug)]
pub struct Trainer<'a> {
    run: Run<'a>,
    settings: Settings,
    compute: &'a Compute,
    /// For the passes of a step: the same, with products in [`Settings::precision`].
    passes: Compute,
    weights: Parameters,
    optimizer: Optimizer,
    gradients: Vec<f32>,
    activations: Activations,
    buffers: BackwardBuffers,
    position: Position,
    schedule: Schedule,
    /// Steps per pass over the data.
    per_epoch: usize,
    student: Option<Student>,
    /// The metric in full precision, if it is known already.
    full_precision: Option<f64>,
    keeps_last: bool,
    /// The metric of the last epoch and its number, if that model is the one to keep.
    last: Option<(f64, usize)>,
    /// How the run ended, if it was already finished when it was resumed.
    finished: Option<Outcome>,
    /// Two runs in one directory would undo each other's work.
    lock: Option<DirectoryLock>,
}

impl<'a> Trainer<'a> {
    /// Prepares a run from `weights`. With `resume`, it continues from the state saved in the directory; a finished run just
    /// returns how it ended.
    pub fn new(
        run: Run<'a>,
        settings: Settings,
        compute: &'a Compute,
        weights: Parameters,
        resume: bool,
    ) -> Result<Self> {
        Self::for_student(run, settings, compute, weights, None, resume)
    }

    /// The same for a model that is being quantized: passes compute with the quantized weights of `student`.
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
            passes: compute.with_products(settings.precision.products()),
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
            last: None,
            finished: None,
            lock: None,
        };
        trainer.open(resume)?;
        Ok(trainer)
    }

    /// Uses this dev metric of the full-precision model instead of evaluating it before quantizing.
    pub fn set_full_precision(&mut self, value: f64) {
        self.full_precision = Some(value);
    }

    /// Keeps the model of the last epoch instead of the best one.
    pub fn keep_last(&mut self) {
        self.keeps_last = true;
    }

    /// Optimizer steps of the whole run, and how many are taken.
    pub fn steps(&self) -> (usize, usize) {
        (self.schedule.total, self.position.steps)
    }

    /// Trains to the end.
    ///
    /// # Errors
    /// [`Error::Stopped`] if `watch` asks to stop, with the state saved; [`Error::Diverged`]; a file that cannot be written.
    pub fn run(mut self, watch: &mut dyn Watch) -> Result<Outcome> {
        if let Some(outcome) = self.finished {
            return Ok(outcome);
        }
        if self.student.is_some() && self.position.before.is_none() {
            self.before_training(watch)?;
        }
        for epoch in self.position.evaluated..self.schedule.total.div_ceil(self.per_epoch) {
            self.train_epoch(epoch, watch)?;
            self.after_epoch(epoch + 1, watch)?;
        }
        if self.compute.writes() {
            let state = self.state_path();
            std::fs::remove_file(&state).map_err(|source| Error::Io { path: state, action: "remove", source })?;
        }
        let (best, best_epoch) = self.last.or(self.position.best).unwrap_or((0.0, 0));
        let metric = self.run.dev.metric();
        Ok(Outcome { metric, best, best_epoch, steps: self.position.steps, before: self.position.before })
    }

    /// The steps of an epoch, counted from 0, that are left.
    fn train_epoch(&mut self, epoch: usize, watch: &mut dyn Watch) -> Result<()> {
        let (per_epoch, total) = (self.per_epoch, self.schedule.total);
        let order = self.order_of(epoch);
        let (mut saved, save_every) = (Instant::now(), watch.save_every().unwrap_or(SAVE_EVERY));
        while self.position.steps < ((epoch + 1) * per_epoch).min(total) {
            let within = self.position.steps - epoch * per_epoch;
            let size = self.settings.batch * self.settings.accumulate;
            let indices = &order[within * size..((within + 1) * size).min(order.len())];
            let record = self.step(indices)?;
            self.log(&record)?;
            watch.step(&record, total);
            if self.is_stopped(watch) {
                self.save()?;
                return Err(Error::Stopped { path: self.state_path() });
            }
            if saved.elapsed() >= save_every {
                self.save()?;
                saved = Instant::now();
            }
        }
        Ok(())
    }

    /// The sequences in the order of an epoch. Pairs that are learned stay together, but for those that a batch ends between.
    fn order_of(&self, epoch: usize) -> Vec<usize> {
        let mut stream = Stream::new(self.settings.seed, "order", epoch as u64);
        if self.learns_pairs()
            && let Some(mut together) = self.run.train.pairs_together()
        {
            stream.shuffle(&mut together);
            return together.concat();
        }
        let mut order: Vec<usize> = (0..self.run.train.len()).collect();
        stream.shuffle(&mut order);
        order
    }

    fn learns_pairs(&self) -> bool {
        self.student.as_ref().is_some_and(Student::learns_pairs)
    }

    /// Whether to stop: ranks do so together.
    fn is_stopped(&self, watch: &mut dyn Watch) -> bool {
        let own = watch.stop();
        let Some(ranks) = self.compute.ranks() else { return own };
        let mut all = vec![0.0; ranks.size()];
        ranks.gather(&[f32::from(u8::from(own))], &vec![1; ranks.size()], &mut all);
        all.contains(&1.0)
    }

    /// Evaluates the model after an epoch, counted from 1, and keeps it if it is the best.
    fn after_epoch(&mut self, epoch: usize, watch: &mut dyn Watch) -> Result<()> {
        let evaluation = self.evaluate()?;
        let best = self.position.best.is_none_or(|(best, _)| evaluation.value > best);
        if best {
            self.position.best = Some((evaluation.value, epoch));
        }
        self.last = self.keeps_last.then_some((evaluation.value, epoch));
        if best || self.keeps_last {
            self.write_kept(epoch, &evaluation)?;
        }
        self.log_evaluation(epoch, &evaluation)?;
        watch.evaluated(epoch, &evaluation, best);
        self.position.evaluated = epoch;
        self.save()
    }

    /// Evaluates the model as it is, and quantized without training, which is the best model so far.
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
        self.position.before = Some(BeforeTraining { full_precision, post_training: quantized.value });
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
        let (train, learns_pairs) = (self.run.train, self.learns_pairs());
        let batches =
            parts.map(|part| if learns_pairs { train.batch_with_pairs(part) } else { train.batch(part, true) });
        let batches = batches.collect::<qbert_tasks::Result<Vec<_>>>()?;
        let (bert, compute) = (self.run.bert, &self.passes);
        batches.iter().try_for_each(|batch| bert.check(batch))?;
        // Every sequence (token, span) counts alike, though the last micro-batch may be smaller than the others.
        let terms: usize = batches.iter().map(|batch| batch.targets.terms()).sum();
        if let Some(student) = &mut self.student {
            let at = StepOf { step, total: self.schedule.total };
            student.before_step(compute, self.weights.values(), at, &batches)?;
        }
        let mut shared = false;
        for (number, whole) in batches.iter().enumerate() {
            // Each rank takes its part; a batch with fewer sequences than there are ranks is computed by all of them.
            let part = compute.ranks().and_then(|ranks| {
                let whole = Arc::new(whole.clone());
                qbert_tasks::Batch::part(&whole, ranks.size(), ranks.rank())
            });
            shared |= part.is_some();
            let batch = part.as_ref().unwrap_or(whole);
            let mode =
                Mode::Train { seed: self.settings.seed, step: (step * self.settings.accumulate + number) as u64 };
            let share = whole.targets.terms() as f64 / terms.max(1) as f64;
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
                    let own = bert.loss_of_whole(compute, batch, activations, share, targets.0).mean;
                    let pass = Pass { compute, weights, batch, mode };
                    bert.backward(pass, activations, targets.0, targets.1);
                    own
                }
            };
            loss += share * own;
            tokens += whole.tokens();
        }
        if shared {
            bert.share_gradients(compute, &mut self.gradients);
        }
        if let Some(student) = &mut self.student {
            student.after_backward(compute, self.weights.values(), &mut self.gradients);
        }
        self.finite(step + 1, "loss", loss)?;
        let rate = self.schedule.rate(step);
        let norm = self.optimizer.step(self.compute, rate, self.weights.values_mut(), &self.gradients);
        self.finite(step + 1, "gradient norm", norm)?;
        if let Some(student) = &mut self.student {
            student.after_step(rate, step + 1)?;
        }
        self.position.steps = step + 1;
        let epoch = (step + 1) as f64 / self.per_epoch as f64;
        Ok(StepRecord { step: step + 1, epoch, loss, rate, gradient_norm: norm, tokens })
    }

    /// Evaluates the model: the quantized one, if it is being quantized.
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
        let predictions = dev.predict(&scores, bert.outputs())?;
        Ok(dev.score(&predictions, labels)?)
    }
}
