//! Plans from sensitivities as a user makes them: by rank, by size, by budget; and what is said of wrong files and of
//! flags that contradict each other.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use common::home::Home;
use qbert_kernels::Threads;
use qbert_model::Checkpoint;
use qbert_pipeline::planning::{Trial, plan_errors, quantization_errors};
use qbert_quant::{Axis, GroupSpec, Plan, Precision, QuantParams, RangeMethod, Scratch, Site};
use qbert_train::qat::method::Method;
use qbert_train::random::Stream;

const CONFIG: &str = r#"{
  "architectures": ["BertForSequenceClassification"], "model_type": "bert",
  "vocab_size": 9, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 40,
  "max_position_embeddings": 16, "type_vocab_size": 2, "id2label": {"0": "negative", "1": "positive"}
}"#;
const BERT_BASE: &str = r#"{"model_type": "bert", "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12,
  "num_attention_heads": 12, "intermediate_size": 3072, "max_position_embeddings": 512}"#;
const SENSITIVITY: &str = r#"{"format": "qbert-sensitivity", "version": 1, "task": "sst2", "layers": [
{"layer": 0, "eigenvalues": [1.0, 2.0], "mean": 1.5, "std": 0.5, "omega": 2.0, "trace": 0.5},
{"layer": 1, "eigenvalues": [-30.0, -31.0], "mean": -30.5, "std": 0.5, "omega": 31.0, "trace": 0.25},
{"layer": 2, "eigenvalues": [0.0, 60.0], "mean": 30.0, "std": 30.0, "omega": 60.0, "trace": null}
], "runs": 2}
"#;

/// A directory with a tiny checkpoint, the shape of BERT-base, and sensitivities of both.
fn home() -> Home {
    let home = Home::new(CONFIG, |values| Stream::new(1, "test", 0).fill_normal(values, 0.1));
    home.write("bert-base/config.json", BERT_BASE);
    home.write("sensitivity.json", SENSITIVITY);
    let layer = |(layer, mean): (usize, &f64)| format!("{{\"layer\": {layer}, \"mean\": {mean}, \"std\": 0}}");
    let sizes = [1.0, 2.0, 3.0, 10.0, 15.0, 14.0, 13.0, 12.0, 11.0, 4.0, 5.0, 6.0];
    let layers: Vec<String> = sizes.iter().enumerate().map(layer).collect();
    let head = "{\"format\": \"qbert-sensitivity\", \"version\": 1, \"layers\": [";
    home.write("base.json", format!("{head}{}]}}", layers.join(",\n")));
    home
}

/// Runs `qbert plan … --json` of the tiny model or of BERT-base.
fn planned(home: &Home, arguments: &str) -> serde_json::Value {
    let output = home.command(&format!("--quiet plan {arguments} --json"));
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

const TINY: &str = "--model model --sensitivity sensitivity.json --groups 4";

#[test]
fn sensitivities_become_a_plan() {
    let home = home();
    let mut said = home.run(&format!("plan {TINY} --bits 2,3 --high 1 --out plan.toml"));
    let plan = std::fs::read_to_string(home.path("plan.toml")).unwrap();
    said += &plan;
    said.push('\n');
    said += &home.run(&format!("plan {TINY} --bits 2,3 --high 1 --reverse"));
    said += &home.run(&format!("plan {TINY} --bits 2,3,4 --high 1,1 --metric mean --json"));
    said += &home.run(&format!("plan {TINY} --bits 2,3,4 --size 0.033 --attention-bits 8"));
    said += &home.run(&format!("plan {TINY} --bits 2,3,4 --budget 0.0289 --out best.toml"));
    said += &home.run("plan --model model --attention-bits 1 --ffn-bits 2 --groups 4");
    insta::assert_snapshot!(said);
    // A plan that was written is a plan that can be checked.
    assert!(Plan::parse(&plan, "plan.toml").is_ok());
    let (made, checked) = (
        planned(&home, &format!("{TINY} --bits 2,3,4 --budget 0.0289")),
        planned(&home, "--model model --check best.toml"),
    );
    for key in ["bits", "paper_mib", "file_bytes"] {
        assert_eq!(made[key], checked[key]);
    }
}

#[test]
fn as_many_layers_as_the_paper_give_the_papers_sizes() {
    let home = home();
    for (preset, bits, high) in [
        ("sst2-2-3", "2,3", 6),
        ("squad-2-3", "2,3", 6),
        ("sst2-2-4", "2,4", 6),
        ("mnli-2-3", "2,3", 4),
        ("squad-2-4", "2,4", 5),
    ] {
        let published = planned(&home, &format!("--model bert-base --preset {preset}"));
        let ours = planned(
            &home,
            &format!("--model bert-base --sensitivity base.json --bits {bits} --high {high} --embedding-groups 1"),
        );
        assert_eq!(published["paper_mib"], ours["paper_mib"], "{preset}");
        assert_eq!(published["file_bytes"], ours["file_bytes"], "{preset}");
        // A limit of exactly this size gives exactly this plan.
        let megabytes = ours["file_bytes"].as_f64().unwrap() / 1e6;
        let arguments = format!("--model bert-base --sensitivity base.json --bits {bits} --embedding-groups 1 --size");
        assert_eq!(planned(&home, &format!("{arguments} {megabytes}"))["bits"], ours["bits"]);
        let fewer = planned(&home, &format!("{arguments} {}", megabytes - 1e-6));
        assert_eq!(fewer["origin"]["higher"], serde_json::json!([high - 1]));
    }
    // The six most sensitive layers of the file are those of the paper's plan for SST-2.
    let ours = planned(&home, "--model bert-base --sensitivity base.json --bits 2,3 --high 6 --embedding-groups 1");
    assert_eq!(ours["bits"], planned(&home, "--model bert-base --preset sst2-2-3")["bits"]);
    let reversed =
        planned(&home, "--model bert-base --sensitivity base.json --bits 2,3 --high 6 --reverse --embedding-groups 1");
    assert_eq!(reversed["bits"], planned(&home, "--model bert-base --preset sst2-2-3 --reverse")["bits"]);
    assert_eq!(reversed["paper_mib"], ours["paper_mib"]);
    // A preset with the embedding of App. C.2.
    let embedding = planned(&home, "--model bert-base --preset sst2-2-3 --embedding-bits 4,8 --embedding-groups 128");
    assert_eq!(format!("{:.1}", embedding["paper_mib"]["embedding"].as_f64().unwrap()), "11.6");
}

#[test]
fn activations_have_a_width_and_a_range_of_their_own() {
    let home = home();
    let section = |flags: &str| {
        assert!(
            home.command(&format!("plan --model model --bits 2 {flags} --out plan.toml")).status.success(),
            "{flags}"
        );
        let plan = std::fs::read_to_string(home.path("plan.toml")).unwrap();
        let lines = plan.split_once("[activation]").unwrap().1.lines().skip(1);
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(section(""), ["bits = 8", "range = \"min-max\""]);
    assert_eq!(section("--activation-range mse"), ["bits = 8", "range = \"mse\""]);
    assert_eq!(section("--activation-bits 6"), ["bits = 6", "range = \"min-max\""]);
    let wrong = home.run("plan --model model --bits 2 --activation-range widest");
    assert!(wrong.contains("--activation-range") && wrong.contains("[exit 2]"), "{wrong}");
    let unused = home.run("plan --model model --check plan.toml --activation-bits 32");
    assert!(unused.contains("--activation-bits has no effect"), "{unused}");
}

#[test]
fn a_budget_is_kept_and_freedom_never_costs() {
    // The same numbers added in another order.
    const ROUNDING: f64 = 1.0 + 1e-12;
    let home = home();
    let uniform = planned(&home, &format!("{TINY} --bits 2,3,4,8 --budget 1"))["origin"]["uniform"].clone();
    let bytes = |index: usize| uniform[index]["file_bytes"].as_u64().unwrap();
    let number = |value: &serde_json::Value| value.as_f64().unwrap();
    let mut last = f64::INFINITY;
    for step in 0..=8 {
        let limit = bytes(0) + (bytes(3) - bytes(0)) * step / 8;
        let mut coarser = f64::INFINITY;
        for granularity in ["layer", "module", "site"] {
            let mb = limit as f64 / 1e6;
            let plan =
                planned(&home, &format!("{TINY} --bits 2,3,4,8 --budget {mb} --granularity {granularity} --threads 1"));
            assert!(plan["file_bytes"].as_u64().unwrap() <= limit, "{limit} {granularity}");
            let cost = number(&plan["origin"]["predicted_cost"]);
            assert!(cost <= coarser * ROUNDING, "{limit} {granularity}");
            coarser = cost;
            let threads =
                planned(&home, &format!("{TINY} --bits 2,3,4,8 --budget {mb} --granularity {granularity} --threads 3"));
            assert_eq!(plan, threads);
        }
        assert!(coarser <= last * ROUNDING);
        last = coarser;
        if step == 0 {
            let lowest = number(&uniform[0]["predicted_cost"]);
            assert!((coarser / lowest - 1.0).abs() < 1e-12);
        }
    }
    assert!((last / number(&uniform[3]["predicted_cost"]) - 1.0).abs() < 1e-12);
}

#[test]
fn quantization_errors_are_those_of_the_quantizer() {
    let home = home();
    let parameters = Checkpoint::open(&home.path("model")).unwrap().load().unwrap();
    let sites: Vec<Site> = Site::all(3).filter(|site| site.layer().is_some()).collect();
    let widths = [2, 3, 32].map(|bits| Precision::from_number(bits).unwrap());
    let trial = Trial { widths: widths.to_vec(), groups: GroupSpec::Count(9), range: RangeMethod::Mse, heads: 2 };
    let measure = |threads: usize| {
        quantization_errors(&parameters, &sites, &trial, &Threads::new(threads).unwrap(), |_, _| {}).unwrap()
    };
    let errors = measure(1);
    assert_eq!(errors, measure(3));
    for (site, errors) in sites.iter().zip(&errors) {
        let parameter = parameters.layout().site(*site).unwrap();
        let weights = parameters.get(parameter);
        let layout = qbert_quant::Layout::new(parameter.shape[0], parameter.shape[1], Axis::Rows, 9).unwrap();
        for (&width, &error) in widths.iter().zip(errors) {
            let Some(bits) = width.width() else {
                assert_eq!(error, 0.0);
                continue;
            };
            let params = QuantParams::fit(weights, layout, bits, trial.range, &mut Scratch::default()).unwrap();
            let mut quantized = vec![0.0; weights.len()];
            params.fake_quantize(weights, &mut quantized).unwrap();
            let squares = weights.iter().zip(&quantized).map(|(w, q)| (f64::from(*w) - f64::from(*q)).powi(2));
            let expected: f64 = squares.sum();
            assert!((error - expected).abs() <= 1e-12 * expected, "{site}: {error} {expected}");
        }
    }
    let embedding: Site = "embedding.word".parse().unwrap();
    assert!(quantization_errors(&parameters, &[embedding], &trial, &Threads::single(), |_, _| {}).is_err());
}

#[test]
fn errors_of_a_plan_are_those_of_the_quantizer_in_embeddings_too() {
    let home = home();
    let checkpoint = Checkpoint::open(&home.path("model")).unwrap();
    let (parameters, shape) = (checkpoint.load().unwrap(), checkpoint.config().shape(Some(&checkpoint.layout())));
    let mut plan = "q-bert:2".parse::<Method>().unwrap().plan(3, &[], RangeMethod::MinMax).unwrap();
    for tensor in &shape.tensors {
        plan.site_mut(tensor.site).unwrap().groups = GroupSpec::Count(3);
    }
    let value = "layer.1.value".parse().unwrap();
    plan.site_mut(value).unwrap().range = RangeMethod::Mse;
    plan.site_mut("layer.2.key".parse().unwrap()).unwrap().bits = Precision::Full;
    let errors = plan_errors(&parameters, &shape, &plan, &Threads::single()).unwrap();
    assert_eq!(errors, plan_errors(&parameters, &shape, &plan, &Threads::new(3).unwrap()).unwrap());
    assert_eq!(errors.len(), shape.tensors.len());
    for (tensor, found) in shape.tensors.iter().zip(&errors) {
        let (site, weights) = (tensor.site, parameters.get(parameters.layout().site(tensor.site).unwrap()));
        let own = plan.site(site).unwrap();
        let squares = |values: &[f32]| values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>();
        assert_eq!((found.site, found.weights), (site, squares(weights)));
        let Some(bits) = own.bits.width() else {
            assert_eq!(found.error, 0.0);
            continue;
        };
        let layout = qbert_quant::Layout::new(tensor.rows, tensor.cols, tensor.axis, 3).unwrap();
        let params = QuantParams::fit(weights, layout, bits, own.range, &mut Scratch::default()).unwrap();
        let mut quantized = vec![0.0; weights.len()];
        params.fake_quantize(weights, &mut quantized).unwrap();
        let squares = weights.iter().zip(&quantized).map(|(w, q)| (f64::from(*w) - f64::from(*q)).powi(2));
        let expected: f64 = squares.sum();
        assert!((found.error - expected).abs() <= 1e-12 * expected, "{site}: {} {expected}", found.error);
    }
    let other = "q-bert:2".parse::<Method>().unwrap().plan(2, &[], RangeMethod::MinMax).unwrap();
    assert!(plan_errors(&parameters, &shape, &other, &Threads::single()).is_err());
}

/// The paper's 128 groups are only the usual number: whoever asks for them on a small model is told so.
#[test]
fn a_small_model_takes_one_group_per_neuron() {
    let home = home();
    let text = home.run("plan --model model --bits 2 --out plan.toml");
    assert!(text.ends_with("[exit 0]\n\n"), "{text}");
    let plan = std::fs::read_to_string(home.path("plan.toml")).unwrap();
    assert!(plan.contains("groups = 16"), "{plan}");
    let refused = home.run("plan --model model --bits 2 --groups 128");
    assert!(refused.contains("error: --groups: 128 groups for 16 output neurons"), "{refused}");
    assert!(refused.contains("hint: give --groups 16 or fewer") && refused.contains("[exit 2]"), "{refused}");
}

#[test]
fn wrong_sensitivities_exit_with_2_and_say_where() {
    let home = home();
    let mut said = String::new();
    let mut refused = |name: &str, text: &str, more: &str| {
        home.write(name, text);
        said += &home.run(&format!("plan --model model --sensitivity {name} --bits 2,3 --groups 4 {more}"));
    };
    let changes = [
        ("cut", "], \"runs\": 2}", ""),
        ("comma", "\"task\": \"sst2\", ", "\"task\" \"sst2\", "),
        ("other", "qbert-sensitivity", "qbert-metrics"),
        ("formatless", "\"format\": \"qbert-sensitivity\", ", ""),
        ("later", "\"version\": 1", "\"version\": 2"),
        ("layerless", "\"layers\"", "\"levels\""),
        ("words", "\"mean\": 1.5", "\"mean\": \"high\""),
        (
            "missing",
            "{\"layer\": 1, \"eigenvalues\": [-30.0, -31.0], \"mean\": -30.5, \"std\": 0.5, \"omega\": 31.0, \"trace\": 0.25},\n",
            "",
        ),
        ("twice", "\"layer\": 2", "\"layer\": 1"),
        (
            "fewer",
            ",\n{\"layer\": 2, \"eigenvalues\": [0.0, 60.0], \"mean\": 30.0, \"std\": 30.0, \"omega\": 60.0, \"trace\": null}",
            "",
        ),
        ("nan", "\"mean\": -30.5", "\"mean\": null"),
        ("absent", "\"std\": 0.5, \"omega\": 31.0", "\"omega\": 31.0"),
        ("negative", "\"std\": 0.5, \"omega\": 31.0", "\"std\": -0.5, \"omega\": 30.0"),
        ("edited", "\"omega\": 31.0", "\"omega\": 90.0"),
    ];
    for (name, from, to) in changes {
        assert!(SENSITIVITY.contains(from), "{name}");
        refused(&format!("{name}.json"), &SENSITIVITY.replacen(from, to, 1), "--high 1");
    }
    refused("empty.json", "", "--high 1");
    refused("list.json", "[1, 2]", "--high 1");
    refused("traceless.json", SENSITIVITY, "--high 1 --metric trace");
    said += &home.run("plan --model model --sensitivity nowhere.json --bits 2,3 --high 1");
    said += &home.run("plan --model bert-base --sensitivity sensitivity.json --bits 2,3 --high 1");
    assert!(!said.contains("panicked"), "{said}");
    insta::assert_snapshot!(said);
}

#[test]
fn a_budget_is_the_size_of_the_file() {
    let home = home();
    for budget in [0.0287, 0.0295, 0.031] {
        home.run(&format!("plan {TINY} --bits 2,3,4,8 --budget {budget} --out plan.toml"));
        home.run("pack model --plan plan.toml --activation-bits 32 --out model.qbert");
        let size = std::fs::metadata(home.path("model.qbert")).unwrap().len() as f64 / 1e6;
        assert!(size <= budget && size > budget - 0.012, "{size} MB for a budget of {budget}");
        std::fs::remove_file(home.path("model.qbert")).unwrap();
    }
}

#[test]
fn plan_and_pack_group_the_embedding_alike() {
    let home = home();
    home.run("plan --model model --bits 4 --out plan.toml");
    home.run("pack model --plan plan.toml --activation-bits 32 --out by-plan.qbert");
    home.run("pack model --bits 4 --activation-bits 32 --out by-bits.qbert");
    let plan = |name: &str| qbert_model::PackedModel::open(&home.path(name)).unwrap().plan().clone();
    assert_eq!(plan("by-plan.qbert"), plan("by-bits.qbert"));
}

#[test]
fn contradicting_flags_exit_with_2_and_say_what_to_do() {
    let home = home();
    home.run("plan --model model --bits 2 --groups 4 --out plan.toml");
    let mut said = String::new();
    let from_file = [
        "--bits 2,3",
        "--bits 2,3 --high 1 --budget 1",
        "--bits 2,3 --high 1 --size 1",
        "--bits 2 --high 1",
        "--bits 3,2 --high 1",
        "--bits 2,9 --high 1",
        "--bits 2,3 --high 4",
        "--bits 2,3,4 --high 1",
        "--bits 2,3 --high 1,1",
        "--bits 2,3 --high 1 --metric omga",
        "--bits 2,3 --high 1 --granularity layer",
        "--bits 2,3 --budget 1 --granularity matrix",
        "--bits 2,3 --budget 1 --reverse",
        "--bits 2,3 --budget 0.004",
        "--bits 2,3 --size 0.004",
        "--bits 2,3 --size nan",
        "--bits 2,3 --budget 0",
        "--attention-bits 2 --ffn-bits 4 --high 1",
        "--preset sst2-2-3",
        "--check plan.toml",
    ];
    for flags in from_file {
        said += &home.run(&format!("plan {TINY} {flags}"));
    }
    let alone = [
        "--bits 2,3",
        "--bits 2 --reverse",
        "--bits 2,3 --high 1",
        "--bits 2,3 --budget 1",
        "--bits 2 --metric mean",
        "--attention-bits 2",
        "--bits 2 --attention-bits 2 --ffn-bits 4",
        "--bits 2 --preset sst2-2-3",
        "--preset sst2-2-3 --check plan.toml",
        "--check plan.toml --groups 4",
        "--bits 2 --embedding-bits 4,8,8",
        "",
    ];
    for flags in alone {
        said += &home.run(format!("plan --model model {flags}").trim_end());
    }
    // The weights are needed for a budget only.
    said += &home.run("plan --model bert-base --sensitivity base.json --bits 2,3 --budget 60");
    assert!(!said.contains("panicked") && !said.contains("[exit 0]"), "{said}");
    insta::assert_snapshot!(said);
}

#[test]
fn limits_on_the_drop_that_make_no_sense_exit_with_2() {
    let home = home();
    home.write("train.tsv", "sentence\tlabel\na good film\t1\na bad film\t0\n");
    home.write("empty.tsv", "sentence\tlabel\n");
    let data = "--task sst2 --train train.tsv --dev train.tsv";
    let mut said = String::new();
    for flags in [
        format!("--max-drop -1 {data} --out plan.toml"),
        format!("--max-drop nan {data} --out plan.toml"),
        format!("--max-drop 0.5 {data} --confidence 0.5 --out plan.toml"),
        format!("--max-drop 0.5 {data} --confidence 1 --out plan.toml"),
        format!("--max-drop 0.5 {data} --tries 0 --out plan.toml"),
        format!("--max-drop 0.5 {data}"),
        "--max-drop 0.5 --task sst2 --train train.tsv --out plan.toml".to_owned(),
        "--max-drop 0.5 --task sst2 --dev train.tsv --out plan.toml".to_owned(),
        "--max-drop 0.5 --train train.tsv --dev train.tsv --out plan.toml".to_owned(),
        format!("--max-drop 0.5 {data} --out plan.toml --high 1"),
        format!("--max-drop 0.5 {data} --out plan.toml --reverse"),
        format!("--max-drop 0.5 {data} --out plan.toml --metric omega"),
        "--max-drop 0.5 --task sst2 --train train.tsv --dev empty.tsv --out plan.toml".to_owned(),
        "--bits 2,3 --high 1 --confidence 0.9".to_owned(),
        "--bits 2,3 --high 1 --dev train.tsv".to_owned(),
        // Eigenvalues are no divergences.
        format!("--max-drop 0.5 {data} --out plan.toml"),
    ] {
        said += &home.run(&format!("plan {TINY} {flags}"));
    }
    said += &home.run(&format!("plan --model model --max-drop 0.5 {data} --out plan.toml"));
    let site = |site: String, layer: usize, widths: &str| {
        format!("{{\"site\": \"{site}\", \"layer\": {layer}, \"parameters\": 9, \"widths\": [{widths}]}}")
    };
    let widths = "{\"bits\": 2, \"divergence\": 0.1, \"error\": 1}";
    let sites: Vec<String> = (0..3).map(|layer| site(format!("layer.{layer}.query"), layer, widths)).collect();
    let measured = format!("\"measured\": {{\"sites\": [{}]}}, \"runs\"", sites.join(","));
    home.write("measured.json", SENSITIVITY.replace("\"runs\"", &measured));
    let one = "plan --model model --groups 4 --sensitivity measured.json --max-drop 0.5";
    said += &home.run(&format!("{one} {data} --out plan.toml"));
    said += &home.run(&format!("{one} {data} --bits 2,3 --out plan.toml"));
    assert!(!said.contains("panicked") && !said.contains("[exit 0]"), "{said}");
    assert!(!home.path("plan.toml").exists() && !home.path("plan-search.json").exists());
    insta::assert_snapshot!(said);
}
