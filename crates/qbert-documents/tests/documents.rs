//! What is written is read back; what is missing is tolerated; what is wrong is named by file and field.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

use qbert_documents::{
    AnalysisRun, AnalysisSubject, AnalyzedLayer, AttentionKl, BeforeTraining, Changes, DevFigure, DevMetrics, Document,
    EpochRecord, Error, FrontierPoint, LayerDivergence, LayerLandscape, LogRecord, LossLandscapes, MeasuredDrop,
    MeasuredSite, MeasuredSites, MeasuredWidth, Models, PlanSearch, Provenance, RunMetrics, Sensitivity, StageMetrics,
    StepRecord, Summary, TrainedDrop, TrainingMetrics, TriedPlan, parse, read, to_json,
};
use serde_json::json;

fn sensitivity() -> Sensitivity {
    let layer = |layer, mean: f64| AnalyzedLayer {
        layer,
        eigenvalues: vec![mean, mean],
        mean,
        std: 0.0,
        omega: mean,
        iterations: vec![3, 4],
        converged: 2,
        ..AnalyzedLayer::default()
    };
    Sensitivity {
        subject: AnalysisSubject { task: "sst2".to_owned(), model: "abc".to_owned(), ..AnalysisSubject::default() },
        settings: json!({"runs": 2, "fraction": 0.1}),
        layers: vec![layer(0, 1.5), layer(1, 20.25)],
        ranking: vec![1, 0],
        agreement_of_halves: None,
        runs: vec![AnalysisRun { run: 0, examples: 4, tokens: 30, loss: 0.5 }],
        warnings: vec![],
        measured: Some(MeasuredSites {
            settings: json!({"widths": [2, 4]}),
            examples: 7,
            sites: vec![
                site(0, "query", [(2, 0.5, 3.0), (4, 0.125, 1.0)]),
                site(0, "key", [(2, 0.25, 2.0), (4, 0.0, 1.0)]),
                site(1, "query", [(2, 1.0, 1.0), (4, 0.5, 0.5)]),
            ],
            ..MeasuredSites::default()
        }),
    }
}

fn site<const N: usize>(layer: usize, matrix: &str, widths: [(u8, f64, f64); N]) -> MeasuredSite {
    let width = |(bits, divergence, error): (u8, f64, f64)| MeasuredWidth { bits: bits.into(), divergence, error };
    MeasuredSite { site: format!("layer.{layer}.{matrix}"), layer, parameters: 16, widths: widths.map(width).to_vec() }
}

#[test]
fn divergences_are_summed_up_by_layer_at_the_lowest_width() {
    let measured = sensitivity().measured.unwrap();
    assert_eq!(measured.by_layer(2, |width| width.divergence), Some(vec![0.75, 1.0]));
    assert_eq!(measured.by_layer(2, |width| width.error), Some(vec![5.0, 1.0]));
    assert_eq!(measured.by_layer(1, |width| width.error), None, "a layer that the model does not have");
    assert_eq!(measured.by_layer(3, |width| width.error), None, "a layer that was not measured");
    let only_measured = Sensitivity { layers: vec![], ..sensitivity() };
    round_trip(&only_measured);
    assert!(only_measured.check().unwrap_err().contains("--method kl"));
}

fn round_trip<T: Document + PartialEq + std::fmt::Debug>(document: &T) {
    let text = to_json(document);
    assert!(text.ends_with("}\n"), "{text}");
    assert_eq!(parse::<T>(&text, "file").unwrap(), *document);
    assert_eq!(to_json(&parse::<T>(&text, "file").unwrap()), text);
}

fn plan_search() -> PlanSearch {
    let measured = MeasuredDrop { value: 89.5, drop: 0.5, standard_error: 0.25, low: 0.0, high: 1.0 };
    let tried = |chosen| TriedPlan {
        bits: vec![[2, 3, 2, 2, 4, 4].map(Into::into).to_vec()],
        bytes: 12_000_000,
        divergence: 0.25,
        measured: Some(measured),
        trained: Some(TrainedDrop { training: "abc".to_owned(), measured, went_on: true }),
        chosen,
        ..TriedPlan::default()
    };
    PlanSearch {
        task: "sst2".to_owned(),
        max_drop: 0.5,
        plans: vec![tried(false), tried(true)],
        frontier: vec![FrontierPoint { bytes: 12_000_000, divergence: 0.25, predicted: None }],
        ..PlanSearch::default()
    }
}

#[test]
fn the_upper_end_decides_where_confidence_is_asked_for() {
    let mut search = plan_search();
    let measured = search.chosen().unwrap().measured.unwrap();
    assert_eq!(search.judged(&measured), 0.5);
    search.confidence = Some(0.95);
    assert_eq!(search.judged(&measured), 1.0);
    assert_eq!(parse::<PlanSearch>(r#"{"format": "qbert-plan-search", "version": 1}"#, "file").unwrap().chosen(), None);
}

#[test]
fn every_document_is_read_back_as_it_was_written() {
    round_trip(&sensitivity());
    round_trip(&plan_search());
    round_trip(&LossLandscapes {
        loss: 0.25,
        layers: vec![LayerLandscape {
            rows: vec![-1.0, 1.0],
            losses: vec![vec![1.0, 2.0]],
            ..LayerLandscape::default()
        }],
        ..LossLandscapes::default()
    });
    round_trip(&AttentionKl {
        layers: vec![LayerDivergence { layer: 0, heads: vec![0.1, 0.2], mean: 0.15 }],
        ..AttentionKl::default()
    });
    round_trip(&TrainingMetrics {
        dev: DevMetrics {
            metric: "f1".to_owned(),
            value: 88.5,
            examples: Some(9),
            left_out: None,
            details: json!({"f1": 0.885}),
        },
        epoch: Some(2),
        run: json!({"run": {"task": "ner", "train": {"sequences": 7}}, "settings": {"seed": 1}}),
        before: Some(BeforeTraining { full_precision: 90.0, post_training: 60.0 }),
    });
    let stage =
        |stage: &str, details| StageMetrics { stage: stage.to_owned(), model: String::new(), value: 90.0, details };
    round_trip(&RunMetrics {
        stages: vec![stage(RunMetrics::NOT_TRAINED, json!(null)), stage(RunMetrics::PACKED, json!({"accuracy": 0.9}))],
        ..RunMetrics::default()
    });
    round_trip(&Summary { task: "sst2".to_owned(), trained: Some(89.5), ..Summary::default() });
    round_trip(&Models::default());
    round_trip(&Changes::default());
    round_trip(&Provenance::default());
}

#[test]
fn a_file_begins_with_its_format_and_keeps_the_order_of_its_fields() {
    let text = to_json(&sensitivity());
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    let keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    let subject = ["task", "model", "layer_parameters", "data", "max_len"];
    let rest = ["settings", "layers", "ranking", "agreement_of_halves", "runs", "warnings", "measured"];
    assert_eq!(keys, [&["format", "version"][..], &subject, &rest].concat());
    let metrics = to_json(&TrainingMetrics { epoch: Some(1), ..TrainingMetrics::default() });
    assert!(metrics.starts_with("{\n  \"dev\": {\n    \"metric\""), "{metrics}");
    assert!(!metrics.contains("before") && !metrics.contains("format"), "{metrics}");
}

#[test]
fn files_made_by_hand_need_few_fields() {
    let text =
        r#"{"format": "qbert-sensitivity", "version": 1, "layers": [{"layer": 0, "mean": 1, "std": null}], "runs": 2}"#;
    let found: Sensitivity = parse(text, "file").unwrap();
    let layer = &found.layers[0];
    assert!(layer.mean == 1.0 && layer.std.is_nan() && layer.omega.is_nan(), "{layer:?}");
    assert!(found.runs.is_empty() && found.subject.task.is_empty());
    assert!(found.check().unwrap_err().contains("layer 0: mean, std or omega"));
    let metrics: TrainingMetrics = parse("{}", "file").unwrap();
    assert!(metrics.dev.value.is_nan() && metrics.epoch.is_none() && !metrics.is_quantization());
    let run: RunMetrics =
        parse(r#"{"format": "qbert-metrics", "version": 1, "stages": [{"stage": "packed", "value": null}]}"#, "file")
            .unwrap();
    assert_eq!((run.stages.len(), run.value(RunMetrics::PACKED)), (1, None));
}

#[test]
fn a_complete_analysis_has_every_layer_once_in_layers_and_ranking() {
    assert_eq!(sensitivity().check(), Ok(()));
    type Spoil = fn(&mut Sensitivity);
    let cases: [(Spoil, &str); 4] = [
        (|found| (found.layers, found.measured) = (vec![], None), "there are no layers"),
        (|found| found.layers.swap(0, 1), "layer 1 where layer 0 should be"),
        (|found| found.layers[1].omega = f64::NAN, "layer 1: mean, std or omega is not a finite number"),
        (|found| found.ranking = vec![1, 1], "the ranking does not have every layer once"),
    ];
    for (spoil, problem) in cases {
        let mut found = sensitivity();
        spoil(&mut found);
        assert_eq!(found.check(), Err(problem.to_owned()));
    }
}

#[test]
fn wrong_files_are_named_with_place_and_field() {
    let cases = [
        ("", "s.json:1:0: not valid JSON: EOF while parsing a value"),
        ("[1]", "s.json: not a qbert-sensitivity file: it names no format"),
        (r#"{"format": 7}"#, "s.json: not a qbert-sensitivity file: its format is 7"),
        (r#"{"format": "qbert-sensitivity"}"#, "s.json: no version of qbert-sensitivity; this program reads version 1"),
        (
            r#"{"format": "qbert-sensitivity", "version": 2}"#,
            "s.json: version 2 of qbert-sensitivity; this program reads version 1",
        ),
        (r#"{"format": "qbert-sensitivity", "version": 1}"#, "s.json:1:45: missing field `layers`"),
        (
            "{\"format\": \"qbert-sensitivity\", \"version\": 1,\n\"layers\": [{\"layer\": 0, \"mean\": \"high\"}]}",
            "s.json:2:38: layers[0].mean: invalid type: string \"high\", expected f64",
        ),
    ];
    for (text, problem) in cases {
        let error = parse::<Sensitivity>(text, "s.json").unwrap_err();
        assert_eq!(error.to_string(), problem);
        assert!(error.hint().is_some() && !error.is_environment(), "{error}");
    }
}

#[test]
fn a_file_that_is_not_there_is_wrong_input_and_invalid_text_is_no_failure_of_the_machine() {
    let home = tempfile::tempdir().unwrap();
    let absent = read::<Summary>(&home.path().join("absent.json")).unwrap_err();
    assert!(matches!(absent, Error::Read { .. }) && !absent.is_environment(), "{absent}");
    let path = home.path().join("summary.json");
    std::fs::write(&path, b"{\"format\": \"\xff\"}").unwrap();
    assert!(matches!(read::<Summary>(&path).unwrap_err(), Error::Syntax { .. }));
    std::fs::write(&path, to_json(&Summary::default())).unwrap();
    assert_eq!(read::<Summary>(&path).unwrap(), Summary::default());
}

#[test]
fn a_log_has_steps_epochs_and_whatever_else() {
    let step = StepRecord { step: 1, epoch: 0.5, loss: 0.7, rate: 1e-4, gradient_norm: 2.0, tokens: 64 };
    let epoch = EpochRecord { epoch: 1, dev: DevFigure { metric: "accuracy".to_owned(), value: 88.5 } };
    let lines = [
        r#"{"step":1,"epoch":0.5,"loss":0.7,"rate":0.0001,"gradient_norm":2.0,"tokens":64}"#,
        r#"{"epoch":1,"dev":{"metric":"accuracy","value":88.5}}"#,
        r#"{"other":true}"#,
    ];
    let text = lines.join("\n\n") + "\n";
    let records = LogRecord::parse_all(&text, "train.jsonl").unwrap();
    assert_eq!(records, [LogRecord::Step(step), LogRecord::Epoch(epoch), LogRecord::Other(json!({"other": true}))]);
    let written: Vec<String> = records.iter().map(|record| serde_json::to_string(record).unwrap()).collect();
    assert_eq!(written, lines);
    let error = LogRecord::parse_all("{\"step\":1}\n{\"step\":\"two\"}", "train.jsonl").unwrap_err();
    assert_eq!(error.to_string(), "train.jsonl:2: invalid type: string \"two\", expected usize at column 13");
}
