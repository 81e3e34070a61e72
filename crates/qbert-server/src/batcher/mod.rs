//! One queue for all clients, and the threads that compute from it.
//!
//! A request becomes a job of one or more sequences. Workers fill unpadded batches with sequences of any jobs, so clients
//! share passes over the weights without waiting for padding or for a fixed number of requests. Whoever drops the last
//! sequence of a job finishes it: every sequence holds the job's `Arc`, so there is nothing to count. A client that leaves
//! drops its [`Ticket`], which takes the job's sequences out of the queue.

mod queue;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use qbert_runtime::{Outcome, Prepared, Scope};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::error::{ApiError, ApiResult};
use crate::metrics::{Metrics, Stage};
use crate::registry::Model;
use crate::settings::Settings;
use queue::{LaneKey, Place, Queue};

/// A batch for several workers is not cut into smaller parts than this.
const LEAST_BATCH_TOKENS: usize = 128;

/// The queue's entrance.
#[derive(Debug, Clone)]
pub(crate) struct Batcher {
    shared: Arc<Shared>,
    places: Arc<Semaphore>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    available: Condvar,
    workers: usize,
    max_batch_tokens: usize,
    max_queue_tokens: usize,
    metrics: Arc<Metrics>,
}

#[derive(Debug)]
struct State {
    queue: Queue<Sequence>,
    is_closed: bool,
    /// Tokens per second of all workers, as observed lately.
    rate: f64,
}

/// A request on its way. Sequences share it; the last one to go finishes it.
#[derive(Debug)]
struct Job {
    model: Arc<Model>,
    items: Vec<Prepared>,
    /// What was computed of each item's sequences.
    computed: Mutex<Vec<Vec<Option<Vec<f32>>>>>,
    failure: Mutex<Option<ApiError>>,
    sender: oneshot::Sender<ApiResult<Vec<Outcome>>>,
    arrived: Instant,
}

/// Number `index` of an item of a job.
#[derive(Debug)]
struct Sequence {
    job: Arc<Job>,
    item: usize,
    index: usize,
}

/// A place among the requests that are let in.
#[derive(Debug)]
pub(crate) struct Admission(#[expect(dead_code, reason = "held for its drop")] OwnedSemaphorePermit);

/// A job in the queue, as its client sees it. Dropping it takes back what is not computed yet.
#[derive(Debug)]
struct Ticket {
    shared: Arc<Shared>,
    lane: LaneKey,
    places: Vec<Place>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        let removed: Vec<Sequence> =
            self.places.drain(..).filter_map(|place| state.queue.remove(self.lane, place)).collect();
        self.shared.metrics.set_queue_tokens(state.queue.tokens());
        drop(state);
        // Outside of the lock: the last one frees the texts.
        drop(removed);
    }
}

impl Batcher {
    /// A queue and its workers.
    pub(crate) fn start(settings: &Settings, metrics: Arc<Metrics>) -> std::io::Result<Self> {
        let state = State { queue: Queue::new(), is_closed: false, rate: 0.0 };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            available: Condvar::new(),
            workers: settings.threads,
            max_batch_tokens: settings.max_batch_tokens,
            max_queue_tokens: settings.max_queue_tokens,
            metrics,
        });
        for number in 0..settings.threads {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().name(format!("worker {number}")).spawn(move || shared.work())?;
        }
        Ok(Self { shared, places: Arc::new(Semaphore::new(settings.max_queue)) })
    }

    /// A place, or status 429. Asked for before a request is tokenized, so that refusing costs nothing.
    pub(crate) fn admit(&self) -> ApiResult<Admission> {
        match Arc::clone(&self.places).try_acquire_owned() {
            Ok(permit) => Ok(Admission(permit)),
            Err(_) => Err(self.shared.full("too many requests at once")),
        }
    }

    /// Computes items of one scope, together with whatever else waits. Dropping the future gives the places up.
    pub(crate) async fn compute(&self, model: Arc<Model>, items: Vec<Prepared>) -> ApiResult<Vec<Outcome>> {
        let Some(scope) = items.first().map(Prepared::scope) else { return Ok(Vec::new()) };
        let lane = (model.generation, scope_number(scope));
        let tokens: Vec<Vec<usize>> = items.iter().map(Prepared::tokens).collect();
        let total: usize = tokens.iter().flatten().sum();
        let computed = tokens.iter().map(|item| vec![None; item.len()]).collect();
        let (sender, receiver) = oneshot::channel();
        let (computed, failure) = (Mutex::new(computed), Mutex::new(None));
        let job = Arc::new(Job { model, items, computed, failure, sender, arrived: Instant::now() });
        let ticket = {
            let mut state = self.shared.state();
            if state.is_closed {
                return Err(ApiError::unavailable("the server is shutting down"));
            }
            let waiting = state.queue.tokens();
            if waiting > 0 && waiting + total > self.shared.max_queue_tokens {
                drop(state);
                return Err(self.shared.full("too many tokens are waiting"));
            }
            let sequences = tokens.iter().enumerate().flat_map(|(item, sequences)| {
                let job = &job;
                let sequence = move |(index, &tokens)| (Sequence { job: Arc::clone(job), item, index }, tokens);
                sequences.iter().enumerate().map(sequence)
            });
            let places = state.queue.push(lane, sequences);
            // Before a worker can take the sequences: the last owner finishes the job, and must be one of them.
            drop(job);
            self.shared.metrics.set_queue_tokens(state.queue.tokens());
            Ticket { shared: Arc::clone(&self.shared), lane, places }
        };
        if ticket.places.len() == 1 {
            self.shared.available.notify_one();
        } else {
            self.shared.available.notify_all();
        }
        let outcome = receiver.await;
        drop(ticket);
        outcome.unwrap_or_else(|_| Err(ApiError::internal("the request got lost")))
    }

    /// Requests that are let in at the moment.
    pub(crate) fn inside(&self, max_queue: usize) -> usize {
        max_queue.saturating_sub(self.places.available_permits())
    }

    /// Lets the workers end when the queue is empty.
    pub(crate) fn close(&self) {
        self.shared.state().is_closed = true;
        self.shared.available.notify_all();
    }
}

fn scope_number(scope: Scope) -> u8 {
    match scope {
        Scope::Hidden => 0,
        Scope::All => 1,
        Scope::Scores => 2,
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The refusal of a full queue, with the time that its tokens will take.
    fn full(&self, message: &str) -> ApiError {
        let (tokens, rate) = {
            let state = self.state();
            (state.queue.tokens() as f64, state.rate)
        };
        let seconds = if rate > 0.0 { (tokens / rate).ceil().clamp(1.0, 60.0) as u64 } else { 1 };
        let hint = "wait as long as Retry-After says, and ask again";
        let status = axum::http::StatusCode::TOO_MANY_REQUESTS;
        ApiError { retry_after: Some(seconds), ..ApiError::new(status, "overloaded", message, hint) }
    }

    /// A worker's life.
    fn work(&self) {
        loop {
            let mut state = self.state();
            let batch = loop {
                if let Some(batch) = state.queue.take(self.workers, LEAST_BATCH_TOKENS, self.max_batch_tokens) {
                    break batch;
                }
                if state.is_closed {
                    return;
                }
                state = self.available.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            self.metrics.set_queue_tokens(state.queue.tokens());
            drop(state);
            // Clients may have left between taking and computing.
            let sequences: Vec<Sequence> =
                batch.values.into_iter().filter(|sequence| !sequence.job.sender.is_closed()).collect();
            let begun = Instant::now();
            if !sequences.is_empty() {
                self.compute(&sequences, begun);
                self.metrics.batch(sequences.len(), batch.tokens, begun.elapsed());
                self.observe(batch.tokens, begun.elapsed());
            }
            for Sequence { job, .. } in sequences {
                if let Some(job) = Arc::into_inner(job) {
                    job.finish();
                }
            }
        }
    }

    fn compute(&self, sequences: &[Sequence], begun: Instant) {
        let Some(model) = sequences.first().map(|sequence| Arc::clone(&sequence.job.model)) else { return };
        let inputs: Vec<(&Prepared, usize)> =
            sequences.iter().filter_map(|own| Some((own.job.items.get(own.item)?, own.index))).collect();
        for sequence in sequences.iter().filter(|sequence| sequence.item == 0 && sequence.index == 0) {
            self.metrics.stage(Stage::Queue, begun.saturating_duration_since(sequence.job.arrived));
        }
        let result = catch_unwind(AssertUnwindSafe(|| model.session.compute_together(&inputs)));
        let failure = match result {
            Ok(Ok(computed)) => {
                for (sequence, values) in sequences.iter().zip(computed) {
                    let mut all = sequence.job.computed.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Some(slot) = all.get_mut(sequence.item).and_then(|item| item.get_mut(sequence.index)) {
                        *slot = Some(values);
                    }
                }
                return;
            }
            Ok(Err(error)) => ApiError::from(error),
            Err(_) => ApiError::internal("the computation failed"),
        };
        for sequence in sequences {
            *sequence.job.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure.clone());
        }
    }

    fn observe(&self, tokens: usize, time: Duration) {
        let rate = self.workers as f64 * tokens as f64 / time.as_secs_f64().max(1e-6);
        let mut state = self.state();
        state.rate = if state.rate > 0.0 { 0.95 * state.rate + 0.05 * rate } else { rate };
    }
}

impl Job {
    /// Decodes what was computed and answers the client, if it is still there.
    fn finish(self) {
        let Self { model, items, computed, failure, sender, .. } = self;
        if let Some(error) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            let _ = sender.send(Err(error));
            return;
        }
        let computed = computed.into_inner().unwrap_or_else(PoisonError::into_inner);
        let decode = || -> ApiResult<Vec<Outcome>> {
            let item = |(prepared, sequences): (Prepared, Vec<Option<Vec<f32>>>)| {
                let sequences: Option<Vec<&[f32]>> = sequences.iter().map(Option::as_deref).collect();
                let sequences = sequences.ok_or_else(|| ApiError::internal("a sequence was not computed"))?;
                Ok(model.session.finish(prepared, &sequences)?)
            };
            items.into_iter().zip(computed).map(item).collect()
        };
        let outcome = catch_unwind(AssertUnwindSafe(decode));
        // The client may have gone; then there is nobody to tell.
        let _ = sender.send(outcome.unwrap_or_else(|_| Err(ApiError::internal("decoding failed"))));
    }
}
