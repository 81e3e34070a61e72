//! Long jobs. A job computes on a thread of its own, while the caller's thread passes its progress on to Python and looks for
//! Ctrl-C: the first one lets the job save its state and stop, the second one does not wait for it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use qbert::ErrorKind;
use qbert_cli::progress::Sink;

use crate::errors::{exception, internal};

/// How long Ctrl-C may go unnoticed.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The shortest time between two messages about the same thing: steps of a small model take less than a millisecond.
const TELL_EVERY: Duration = Duration::from_millis(100);

/// What a job tells: where it is, or a line for the user.
enum Message {
    At { what: String, done: usize, total: usize, message: String },
    Say(String),
}

/// The job's end of the line.
struct Teller {
    sender: Sender<Message>,
    told: Mutex<Option<Instant>>,
    stop: Arc<AtomicBool>,
}

impl Sink for Teller {
    fn at(&self, what: &str, done: usize, total: usize, message: &str) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if done < total && told.is_some_and(|told| told.elapsed() < TELL_EVERY) {
            return;
        }
        *told = Some(Instant::now());
        let (what, message) = (what.to_owned(), message.to_owned());
        let _ = self.sender.send(Message::At { what, done, total, message });
    }

    fn say(&self, text: &str) {
        let _ = self.sender.send(Message::Say(text.to_owned()));
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// `qbert run` with these flags; returns its outcome as JSON, and why a limit was missed. `tell` gets
/// `(what, done, total, message)`, or `(None, 0, 0, text)` for a line.
#[pyfunction]
pub(crate) fn run(
    py: Python<'_>,
    flags: Vec<String>,
    command: String,
    tell: &Bound<'_, PyAny>,
) -> PyResult<(String, Option<String>)> {
    let finished = watched(py, tell, move |sink| qbert_cli::jobs::run(&flags, &command, sink))?;
    let missed = finished.search.as_ref().filter(|search| !search.holds).map(|search| search.outcome.clone());
    let text = serde_json::to_string(&finished).map_err(|error| internal(&error.to_string()))?;
    Ok((text, missed))
}

/// `qbert analyze` with these flags; returns `sensitivity.json`.
#[pyfunction]
pub(crate) fn analyze(py: Python<'_>, flags: Vec<String>, tell: &Bound<'_, PyAny>) -> PyResult<String> {
    let found = watched(py, tell, move |sink| qbert_cli::jobs::analyze(&flags, &sink))?;
    serde_json::to_string(&found).map_err(|error| internal(&error.to_string()))
}

/// The page that `qbert report` would write for a directory.
#[pyfunction]
pub(crate) fn report_html(py: Python<'_>, directory: PathBuf) -> PyResult<String> {
    let read = py.detach(|| qbert::report::read(&directory).map(|report| report.render().html));
    read.map_err(|error| exception(py, &error.into()))
}

type Outcome<T> = Result<T, qbert::Error>;

/// Does the work on another thread.
fn watched<T: Send + 'static>(
    py: Python<'_>,
    tell: &Bound<'_, PyAny>,
    work: impl FnOnce(Arc<dyn Sink>) -> Outcome<T> + Send + 'static,
) -> PyResult<T> {
    let (sender, receiver) = channel();
    let stop = Arc::new(AtomicBool::new(false));
    let sink: Arc<dyn Sink> = Arc::new(Teller { sender, told: Mutex::new(None), stop: Arc::clone(&stop) });
    let thread = std::thread::Builder::new().name("qbert job".to_owned());
    let job = thread
        .spawn(move || work(sink))
        .map_err(|error| exception(py, &qbert::Error::environment(format!("cannot start a thread: {error}"), None)))?;
    let raised = listen(py, tell, receiver, &stop)?;
    let outcome = py.detach(|| job.join()).map_err(|_| internal("the job panicked"))?;
    match (outcome, raised) {
        // Ctrl-C came too late, or progress could not be shown: the job is done, but the caller must know.
        (Ok(_), Some(raised)) => Err(raised),
        (Ok(value), None) => Ok(value),
        (Err(error), Some(raised)) if error.kind() == ErrorKind::Interrupted => Err(with_note(py, raised, &error)),
        (Err(error), _) => Err(exception(py, &error)),
    }
}

/// Passes messages on until the job ends. Returns what Python raised meanwhile; an error if it did so twice.
fn listen(
    py: Python<'_>,
    tell: &Bound<'_, PyAny>,
    receiver: Receiver<Message>,
    stop: &AtomicBool,
) -> PyResult<Option<PyErr>> {
    // A receiver belongs to one thread, but the closure that waits must be `Sync` to give up the interpreter's lock.
    let receiver = Mutex::new(receiver);
    let mut raised: Option<PyErr> = None;
    loop {
        let received = py.detach(|| receiver.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(LOOK_EVERY));
        let told = match received {
            Ok(Message::At { what, done, total, message }) => tell.call1((what, done, total, message)).map(drop),
            Ok(Message::Say(text)) => tell.call1((py.None(), 0, 0, text)).map(drop),
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => return Ok(raised),
        };
        if let Err(error) = told.and_then(|()| py.check_signals()) {
            if raised.is_some() {
                return Err(error);
            }
            stop.store(true, Ordering::Relaxed);
            raised = Some(error);
        }
    }
}

/// Ctrl-C with a note on what was kept, where Python has notes.
fn with_note(py: Python<'_>, raised: PyErr, error: &qbert::Error) -> PyErr {
    if raised.is_instance_of::<PyKeyboardInterrupt>(py) {
        let note = format!("qbert: {error}; the same call goes on from there");
        let _ = raised.value(py).call_method1("add_note", (note,));
    }
    raised
}
