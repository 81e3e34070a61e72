//! What the server looks like from outside, for Prometheus.

use std::fmt::Write as _;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry as Collection, Unit};

/// A part of a request's way.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stage {
    /// Texts to tokens.
    Tokenize,
    /// From the queue's entrance to the first batch.
    Queue,
    /// From the queue's entrance to the answer.
    Answer,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    route: String,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabels {
    route: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StageLabels {
    stage: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelLabels {
    model: String,
}

/// Counters, gauges and histograms.
#[derive(Debug)]
pub(crate) struct Metrics {
    collection: Collection,
    requests: Family<RequestLabels, Counter>,
    request_seconds: Family<RouteLabels, Histogram>,
    stage_seconds: Family<StageLabels, Histogram>,
    batch_seconds: Histogram,
    batch_sequences: Histogram,
    batch_tokens: Histogram,
    tokens: Family<ModelLabels, Counter>,
    texts: Family<ModelLabels, Counter>,
    queue_tokens: Gauge<i64, AtomicI64>,
    requests_inside: Gauge<i64, AtomicI64>,
}

/// 0.5 ms to 16 s.
fn latencies() -> Histogram {
    Histogram::new((0..16).map(|power| 0.0005 * f64::from(1 << power)))
}

fn sizes() -> Histogram {
    Histogram::new((0..15).map(|power| f64::from(1 << power)))
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut collection = Collection::with_prefix("qbert");
        let requests = Family::default();
        collection.register("http_requests", "Requests by route and status", requests.clone());
        let request_seconds = Family::new_with_constructor(latencies as fn() -> Histogram);
        let what = "Time from a request's head to its response";
        collection.register_with_unit("http_request_duration", what, Unit::Seconds, request_seconds.clone());
        let stage_seconds = Family::new_with_constructor(latencies as fn() -> Histogram);
        let what =
            "Time of a request's stages: tokenize, queue (until its first batch), answer (queue and computation)";
        collection.register_with_unit("stage_duration", what, Unit::Seconds, stage_seconds.clone());
        let (batch_seconds, batch_sequences, batch_tokens) = (latencies(), sizes(), sizes());
        collection.register_with_unit("batch_duration", "Time of a batch", Unit::Seconds, batch_seconds.clone());
        collection.register("batch_sequences", "Sequences in a batch", batch_sequences.clone());
        collection.register("batch_tokens", "Tokens in a batch", batch_tokens.clone());
        let (tokens, texts) = (Family::default(), Family::default());
        collection.register("tokens", "Tokens of answered requests, by model", tokens.clone());
        collection.register("texts", "Texts of answered requests, by model", texts.clone());
        let (queue_tokens, requests_inside) = (Gauge::default(), Gauge::default());
        collection.register("queue_tokens", "Tokens that wait for a batch", queue_tokens.clone());
        collection.register("requests_inside", "Requests that wait or are computed", requests_inside.clone());
        Self {
            collection,
            requests,
            request_seconds,
            stage_seconds,
            batch_seconds,
            batch_sequences,
            batch_tokens,
            tokens,
            texts,
            queue_tokens,
            requests_inside,
        }
    }

    pub(crate) fn request(&self, route: &str, status: u16, time: Duration) {
        self.requests.get_or_create(&RequestLabels { route: route.to_owned(), status }).inc();
        self.request_seconds.get_or_create(&RouteLabels { route: route.to_owned() }).observe(time.as_secs_f64());
    }

    pub(crate) fn stage(&self, stage: Stage, time: Duration) {
        let stage = match stage {
            Stage::Tokenize => "tokenize",
            Stage::Queue => "queue",
            Stage::Answer => "answer",
        };
        self.stage_seconds.get_or_create(&StageLabels { stage }).observe(time.as_secs_f64());
    }

    pub(crate) fn batch(&self, sequences: usize, tokens: usize, time: Duration) {
        self.batch_seconds.observe(time.as_secs_f64());
        self.batch_sequences.observe(sequences as f64);
        self.batch_tokens.observe(tokens as f64);
    }

    pub(crate) fn answered(&self, model: &str, texts: usize, tokens: usize) {
        let labels = ModelLabels { model: model.to_owned() };
        self.tokens.get_or_create(&labels).inc_by(tokens as u64);
        self.texts.get_or_create(&labels).inc_by(texts as u64);
    }

    pub(crate) fn set_queue_tokens(&self, tokens: usize) {
        self.queue_tokens.set(i64::try_from(tokens).unwrap_or(i64::MAX));
    }

    /// Everything in the text format of OpenMetrics.
    pub(crate) fn text(&self, inside: usize) -> String {
        self.requests_inside.set(i64::try_from(inside).unwrap_or(i64::MAX));
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &self.collection);
        if let (Some(bytes), Some(end)) = (resident_bytes(), text.rfind("# EOF")) {
            text.truncate(end);
            let _ = writeln!(text, "# TYPE process_resident_memory_bytes gauge\nprocess_resident_memory_bytes {bytes}");
            text.push_str("# EOF\n");
        }
        text
    }
}

/// The memory of this process, where the system says.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}
