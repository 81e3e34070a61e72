//! A report with every part, made up for the tests.

#![allow(dead_code, reason = "each test file uses a part")]

use qbert_documents::{BitCount, LayerMetric, MeasuredSite, MeasuredSites, MeasuredWidth};
use qbert_report::*;

/// A number that looks measured: the same for the same place.
fn noise(place: usize) -> f64 {
    let mixed = (place as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (mixed >> 11) as f64 / (1u64 << 53) as f64
}

pub(crate) fn sensitivity(layers: usize, runs: usize) -> SensitivityPart {
    let layer = |layer: usize| {
        let eigenvalues: Vec<f64> = (0..runs)
            .map(|run| {
                let size = 80.0 / (1.0 + layer as f64).powi(2) * (0.4 + noise(layer * 100 + run));
                if noise(layer * 7 + run * 13) < 0.15 { -size / 3.0 } else { size }
            })
            .collect();
        let mean = eigenvalues.iter().sum::<f64>() / runs as f64;
        let std = (eigenvalues.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / runs as f64).sqrt();
        LayerEigenvalues { layer, eigenvalues, mean, std, omega: mean.abs() + std, ..LayerEigenvalues::default() }
    };
    SensitivityPart {
        task: "sst2".to_owned(),
        layers: (0..layers).map(layer).collect(),
        agreement_of_halves: Some(0.9),
        warnings: vec!["something to know".to_owned()],
        ..SensitivityPart::default()
    }
}

pub(crate) fn landscape(layer: usize, points: usize) -> LayerPlane {
    let at = |index: usize| index as f64 / (points.max(2) - 1) as f64 - 0.5;
    let loss = |row: usize, column: usize| 0.05 + at(row).powi(2) * 3.0 / (layer + 1) as f64 + at(column).powi(2) * 0.4;
    LayerPlane {
        layer,
        eigenvalues: vec![6.0 / (layer + 1) as f64, 0.8],
        rows: (0..points).map(at).collect(),
        columns: (0..points).map(at).collect(),
        losses: (0..points).map(|row| (0..points).map(|column| loss(row, column)).collect()).collect(),
    }
}

pub(crate) fn plan(layers: usize) -> BitPlan {
    let sites = ["query", "key", "value", "attention_output", "intermediate", "output"];
    BitPlan {
        sites: sites.map(str::to_owned).to_vec(),
        layers: (0..layers)
            .map(|layer| [if layer < 3 { 3 } else { 2 }, 2, 2, 4, 8, 32].map(BitCount::from).to_vec())
            .collect(),
        others: vec![SiteBits { site: "embedding.word".to_owned(), bits: 8.into() }],
        setting: "groups: 128".to_owned(),
    }
}

pub(crate) fn attention(layers: usize, heads: usize) -> AttentionPart {
    let layer = |layer| LayerHeads { layer, heads: (0..heads).map(|head| noise(layer * 31 + head) * 0.3).collect() };
    AttentionPart { task: "sst2".to_owned(), examples: 512, layers: (0..layers).map(layer).collect() }
}

pub(crate) fn training(name: &str, steps: usize) -> TrainingRun {
    let point = |step: usize| {
        let loss = 0.6 * (-(step as f64) / 90.0).exp() + 0.1 + 0.1 * noise(step);
        let (step, epoch) = (step as f64 + 1.0, step as f64 / 100.0);
        CurvePoint { step, epoch, loss, low: loss - 0.05, high: loss + 0.07, rate: 5e-5 * (1.0 - step / 400.0) }
    };
    TrainingRun {
        name: name.to_owned(),
        steps,
        curve: (0..steps).map(point).collect(),
        metric: "accuracy".to_owned(),
        evaluations: vec![EpochMetric { epoch: 1.0, value: 88.5 }, EpochMetric { epoch: 2.0, value: 89.5 }],
        ..TrainingRun::default()
    }
}

fn models() -> Models {
    let rows = [
        ("f32", "full precision", 86.5, 90.1),
        ("4 bit", "Q-BERT", 16.5, 89.7),
        ("2 bit", "Q-BERT", 14.1, 88.2),
        ("2 bit direct", "DirectQ", 14.0, 80.5),
    ];
    let point = |(name, method, size, value): (&str, &str, f64, f64)| ModelPoint {
        name: name.to_owned(),
        method: method.to_owned(),
        bytes: size * 1_048_576.5,
        value,
        this: name == "4 bit",
    };
    Models { metric: "accuracy".to_owned(), size: "file".to_owned(), points: rows.into_iter().map(point).collect() }
}

fn measured(layers: usize) -> MeasuredSites {
    let site = |(layer, matrix): (usize, &str)| MeasuredSite {
        site: format!("layer.{layer}.{matrix}"),
        layer,
        parameters: 100,
        widths: vec![
            MeasuredWidth { bits: 2.into(), divergence: 0.2 * noise(layer + matrix.len()), error: 1.5 },
            MeasuredWidth { bits: 4.into(), divergence: 0.02 * noise(layer + matrix.len()), error: 0.25 },
        ],
    };
    let sites = (0..layers).flat_map(|layer| ["query", "output"].map(|matrix| (layer, matrix)));
    MeasuredSites { examples: 256, sites: sites.map(site).collect(), ..MeasuredSites::default() }
}

fn plan_search() -> PlanSearch {
    let measured =
        |drop: f64| MeasuredDrop { value: 90.0 - drop, drop, standard_error: 0.25, low: drop - 0.5, high: drop + 0.5 };
    let rows =
        [(9.5, 0.8, None, 3.2), (17.2, 0.01, None, -0.1), (11.5, 0.2, Some(0.9), 0.7), (12.5, 0.1, Some(0.4), 0.3)];
    let tried = |(size, divergence, predicted, drop): (f64, f64, Option<f64>, f64)| TriedPlan {
        bits: vec![[2, 2, 3, 3, 4, 4].map(BitCount::from).to_vec(); 6],
        bytes: (size * 1e6) as u64,
        divergence,
        predicted,
        aim: Some(0.5),
        measured: Some(measured(drop)),
        trained: (size == 12.5).then(|| TrainedDrop {
            training: "abc".to_owned(),
            measured: measured(0.15),
            went_on: false,
        }),
        chosen: size == 12.5,
    };
    let point = |step: u64| FrontierPoint {
        bytes: 9_500_000 + 400_000 * step,
        divergence: 0.8 / (step + 1) as f64,
        predicted: Some(3.2 / (step + 1) as f64),
    };
    PlanSearch {
        task: "sst2".to_owned(),
        metric: "accuracy".to_owned(),
        examples: 872,
        full_precision: 90.14,
        max_drop: 0.5,
        interval: 0.975,
        holds: true,
        outcome: "12.50 MB: accuracy drops by 0.30 points, within 0.5; 4 plans measured".to_owned(),
        plans: rows.into_iter().map(tried).collect(),
        frontier: (0..20).map(point).collect(),
        ..PlanSearch::default()
    }
}

fn classes() -> ClassResults {
    let scores = |value: f64| Some(Scores { precision: value, recall: value - 0.013, f1: value - 0.007 });
    let row = |name: &str, before, after| ClassRow {
        name: name.to_owned(),
        support: 428,
        before: scores(before),
        after: scores(after),
    };
    ClassResults { kind: "class".to_owned(), rows: vec![row("negative", 0.91, 0.905), row("positive", 0.89, 0.897)] }
}

fn changes() -> Changes {
    let answer = |label: &str, confidence: f64| Answer { label: label.to_owned(), confidence: Some(confidence) };
    let example = |text: &str, gold: &str, before: Answer, after: Answer| Change {
        text: text.to_owned(),
        gold: Some(gold.to_owned()),
        before,
        after,
    };
    let all = [
        example(
            "an evening that costs two hours and gives nothing back",
            "negative",
            answer("negative", 0.91),
            answer("positive", 0.62),
        ),
        example("warm, odd and quietly funny", "positive", answer("negative", 0.55), answer("positive", 0.71)),
        example("neither here nor there", "negative", answer("negative", 0.8), answer("negative", 0.65)),
    ];
    Changes::between(all, 20)
}

/// Every part, of a model with this many layers and heads.
pub(crate) fn full(layers: usize, heads: usize) -> Report {
    let metric = |name: &str, base: f64| LayerMetric {
        name: name.to_owned(),
        values: (0..layers).map(|layer| base / (layer + 1) as f64 + 0.1 * noise(layer)).collect(),
    };
    let metrics = vec![metric("omega", 80.0), metric("kl", 0.5)];
    Report {
        summary: Some(Summary {
            task: "sst2".to_owned(),
            model: "MiniLM".to_owned(),
            method: "Q-BERT".to_owned(),
            bits: "2/3 bits".to_owned(),
            metric: "accuracy".to_owned(),
            examples: Some(872),
            full_precision: Some(90.14),
            post_training: Some(86.5),
            trained: Some(89.56),
            file_size: Some(BeforeAfter { full: 9.0e7 + 0.5, quantized: 1.5e7 + 0.5 }),
            paper_size: Some(BeforeAfter { full: 8.9e7 + 0.5, quantized: 1.4e7 + 0.5 }),
            speed: Some(Speed {
                unit: "sentences/s".to_owned(),
                full: Some(210.5),
                quantized: 512.5,
                setting: "2 threads".to_owned(),
            }),
            notes: vec!["made up for a test".to_owned()],
        }),
        models: Some(models()),
        sensitivity: Some(SensitivityPart { measured: Some(measured(layers)), metrics, ..sensitivity(layers, 10) }),
        plan: Some(plan(layers)),
        plan_search: Some(plan_search()),
        landscape: Some(LandscapePart {
            examples: 16,
            loss: 0.05,
            layers: vec![landscape(0, 15), landscape(5, 15)],
            ..LandscapePart::default()
        }),
        attention: Some(attention(layers, heads)),
        training: vec![training("Fine-tuning", 300), training("Quantization-aware training", 200)],
        classes: Some(classes()),
        changes: Some(changes()),
        provenance: Provenance {
            commands: vec!["qbert quantize --model tuned --plan plan.toml --out small".to_owned()],
            facts: vec![Fact { group: "Program".to_owned(), name: "version".to_owned(), value: "0.1.0".to_owned() }],
        },
        ..Report::default()
    }
}
