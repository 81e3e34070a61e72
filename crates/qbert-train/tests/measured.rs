//! Sensitivity by measurement on a tiny model: the figures are those of plain forward passes, stops and threads change no
//! byte, and they share a file with the eigenvalues.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use common::training::{Observer, data};
use common::{compute, goldens};
use qbert_documents::Sensitivity;
use qbert_quant::{Axis, BitWidth, GroupSpec, Layout, QuantParams, Scratch, Site};
use qbert_tasks::{DataSource, Task};
use qbert_train::bert::{Activations, Mode};
use qbert_train::finetune::{Finetune, finetune, recipe};
use qbert_train::loading::Loaded;
use qbert_train::sensitivity::measured::{MeasureSettings, Measurement, measure};
use qbert_train::sensitivity::{Analysis, FILE, Settings, Shard, analyze};

fn width(bits: u8) -> BitWidth {
    BitWidth::new(bits).unwrap()
}

fn measurement(home: &Path, out: &str) -> Measurement {
    let mut settings = recipe(Task::Sst2);
    (settings.epochs, settings.batch) = (2, 8);
    settings.optimizer.learning_rate = 5e-3;
    let source = DataSource { max_len: 20, ..DataSource::new(Task::Sst2, [data(home, "train.tsv", 60, 1)]) };
    let job = Finetune {
        model: goldens().join("tiny-sequence"),
        data: source.clone(),
        dev: data(home, "dev.tsv", 20, 2),
        out: home.join("tuned"),
        max_train: None,
        settings,
        resume: false,
    };
    if !job.out.exists() {
        finetune(&job, &compute(1), &mut Observer::default()).unwrap();
    }
    Measurement {
        model: job.out,
        data: source,
        settings: MeasureSettings { widths: vec![width(2), width(4)], ..MeasureSettings::default() },
        out: home.join(out),
        resume: false,
    }
}

fn run(measurement: &Measurement, threads: usize) -> qbert_train::Result<Sensitivity> {
    measure(measurement, &compute(threads), Duration::ZERO, &mut |_| ControlFlow::Continue(()))
}

fn bytes(measurement: &Measurement) -> Vec<u8> {
    std::fs::read(measurement.out.join(FILE)).unwrap()
}

#[test]
fn figures_are_those_of_plain_forward_passes() {
    let home = tempfile::tempdir().unwrap();
    let measurement = measurement(home.path(), "out");
    let measured = run(&measurement, 2).unwrap().measured.unwrap();
    assert_eq!((measured.examples, measured.sites.len()), (60, 18));
    let loaded = Loaded::open(&measurement.model, &measurement.data).unwrap();
    let batch = loaded.data.features.batch(&(0..60).collect::<Vec<_>>(), true).unwrap();
    let softmax = |weights: &[f32]| -> Vec<Vec<f64>> {
        let mut activations = Activations::for_evaluation();
        loaded.bert.forward(&compute(1), weights, &batch, Mode::Evaluate, &mut activations);
        let rows = activations.logits.chunks(loaded.bert.outputs());
        let row = |row: &[f32]| {
            let all: Vec<f64> = row.iter().map(|&value| f64::from(value).exp()).collect();
            all.iter().map(|value| value / all.iter().sum::<f64>()).collect()
        };
        rows.map(row).collect()
    };
    let full = loaded.weights.values();
    let expected = softmax(full);
    let (groups, heads) = (GroupSpec::default_for(loaded.bert.config().hidden_size), loaded.bert.config().heads);
    for (name, bits) in [("layer.0.query", 2), ("layer.1.output", 4), ("layer.2.intermediate", 2)] {
        let site: Site = name.parse().unwrap();
        let place = loaded.bert.layout().site(site).unwrap();
        let layout = Layout::resolve(place.shape[0], place.shape[1], Axis::Rows, groups, heads).unwrap();
        let mse = "mse".parse().unwrap();
        let values = &full[place.span.clone()];
        let params = QuantParams::fit(values, layout, width(bits), mse, &mut Scratch::default()).unwrap();
        let mut weights = full.to_vec();
        params.fake_quantize(values, &mut weights[place.span.clone()]).unwrap();
        let pairs = expected.iter().zip(softmax(&weights));
        let divergence =
            |(q, p): (&Vec<f64>, Vec<f64>)| -> f64 { q.iter().zip(p).map(|(q, p)| q * (q / p).ln()).sum() };
        let mean = pairs.map(divergence).sum::<f64>() / 60.0;
        let error: f64 = values.iter().zip(&weights[place.span.clone()]).map(|(a, b)| f64::from(a - b).powi(2)).sum();
        let found = measured.sites.iter().find(|own| own.site == name).unwrap();
        let found = found.widths.iter().find(|own| own.bits == bits.into()).unwrap();
        assert!((found.divergence - mean).abs() < 1e-6 + 1e-4 * mean, "{name}: {found:?} {mean}");
        assert!((found.error - error).abs() <= 1e-9 * error, "{name}: {found:?} {error}");
    }
    // A wider code is nearer.
    assert!(measured.sites.iter().all(|site| site.widths[1].error < site.widths[0].error));
}

#[test]
fn stops_and_threads_change_no_byte() {
    let home = tempfile::tempdir().unwrap();
    let whole = measurement(home.path(), "whole");
    run(&whole, 1).unwrap();
    let mut parts = measurement(home.path(), "parts");
    for last in [1, 5, 6, 30] {
        let mut count = 0;
        let stopped = measure(&parts, &compute(2), Duration::from_secs(3600), &mut |trial| {
            count += 1;
            assert_eq!(trial.total, 36);
            if trial.done >= last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(matches!(stopped, Err(qbert_train::Error::Stopped { .. })), "{stopped:?}");
        parts.resume = true;
    }
    run(&parts, 2).unwrap();
    assert!(bytes(&parts) == bytes(&whole));
    assert!(!parts.out.join("measured.json").exists());
    assert_eq!(run(&parts, 1).unwrap().measured.unwrap().sites.len(), 18, "a finished measurement is just read");
}

#[test]
fn eigenvalues_and_divergences_share_a_file_whichever_comes_first() {
    let home = tempfile::tempdir().unwrap();
    let both = |out: &str, kl_first: bool| {
        let own = measurement(home.path(), out);
        let settings = Settings { runs: 2, max_examples: Some(10), trace: 1, ..Settings::default() };
        let analysis = Analysis {
            model: own.model.clone(),
            data: own.data.clone(),
            settings,
            shard: Shard::WHOLE,
            out: own.out.clone(),
            resume: false,
        };
        let eigenvalues = || analyze(&analysis, &compute(1), &mut |_| ControlFlow::Continue(())).map(|_| ()).unwrap();
        if kl_first {
            run(&own, 1).unwrap();
            eigenvalues();
        } else {
            eigenvalues();
            run(&own, 1).unwrap();
        }
        assert!(run(&own, 1).unwrap_err().to_string().contains("already"), "not measured twice without being asked");
        bytes(&own)
    };
    let (one, other) = (both("first", true), both("second", false));
    assert!(one == other);
    let whole: Sensitivity = serde_json::from_slice(&one).unwrap();
    assert!(whole.layers.len() == 3 && whole.measured.is_some());
}

#[test]
fn another_measurement_is_not_continued_and_bad_settings_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let mut own = measurement(home.path(), "out");
    let stop = measure(&own, &compute(1), Duration::ZERO, &mut |_| ControlFlow::Break(()));
    assert!(stop.is_err());
    assert!(run(&own, 1).unwrap_err().to_string().contains("already"));
    own.resume = true;
    own.settings.widths = vec![width(3)];
    assert!(run(&own, 1).unwrap_err().to_string().contains("other settings"));
    own.settings.widths = vec![width(4), width(2)];
    assert!(run(&own, 1).unwrap_err().to_string().contains("`measure.widths`"));
    own.settings.widths = vec![];
    assert!(run(&own, 1).is_err());
    own.settings = MeasureSettings { examples: Some(0), ..MeasureSettings::default() };
    assert!(run(&own, 1).unwrap_err().to_string().contains("`measure.examples`"));
    let state = own.out.join("measured.json");
    let text = std::fs::read_to_string(&state).unwrap().replace("\"bits\": 2", "\"bits\": 3");
    std::fs::write(&state, text).unwrap();
    own.settings = MeasureSettings { widths: vec![width(2), width(4)], ..MeasureSettings::default() };
    let error = run(&own, 1).unwrap_err().to_string();
    assert!(error.contains("measured.json"), "{error}");
}
