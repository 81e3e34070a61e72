//! Writes the seed corpora: `cargo run --manifest-path fuzz/Cargo.toml --example make_seeds`, in the repository's root.

use std::path::Path;

use qbert_fuzz::models::packed_models;
use qbert_train::state::{self, Position};

const BERT: &str = r###"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[
{"id":0,"content":"[PAD]","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true},
{"id":4,"content":"[MASK]","single_word":false,"lstrip":true,"rstrip":false,"normalized":false,"special":true}],
"normalizer":{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"strip_accents":null,"lowercase":true},
"pre_tokenizer":{"type":"BertPreTokenizer"},
"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"[CLS]","type_id":0}},{"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"[SEP]","type_id":0}}],"pair":[{"SpecialToken":{"id":"[CLS]","type_id":0}},{"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"[SEP]","type_id":0}},{"Sequence":{"id":"B","type_id":1}},{"SpecialToken":{"id":"[SEP]","type_id":1}}],"special_tokens":{"[CLS]":{"id":"[CLS]","ids":[2],"tokens":["[CLS]"]},"[SEP]":{"id":"[SEP]","ids":[3],"tokens":["[SEP]"]}}},
"decoder":{"type":"WordPiece","prefix":"##","cleanup":true},
"model":{"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"##","max_input_chars_per_word":100,
"vocab":{"[PAD]":0,"[UNK]":1,"[CLS]":2,"[SEP]":3,"[MASK]":4,"the":5,"owl":6,"##s":7,"of":8,".":9}}}"###;

const SEQUENCE: &str = r#""normalizer":{"type":"Sequence","normalizers":[{"type":"NFKC"},{"type":"Replace","pattern":{"String":"a"},"content":"bb"},{"type":"Strip","strip_left":true,"strip_right":true},{"type":"Lowercase"}]},"#;

const PLAN: &str = r#"version = 1

[encoder]
groups = 4
range = "mse"
layer.0 = { query = 2, key = 3, value = 3, attention_output = 4, intermediate = 2, output = { bits = 8, groups = "neuron", range = "percentile:99.9" } }

[embedding]
groups = 1
range = "min-max"
word = 4
position = 8
type = 32

[activation]
bits = 8
range = "min-max"
"#;

/// A seed that is refused leads nowhere, so each must be good.
fn write(target: &str, name: &str, bytes: &[u8]) {
    let run = match target {
        "packed" => qbert_fuzz::packed::run,
        "tokenizer" => qbert_fuzz::tokenizer::run,
        "checkpoint" => qbert_fuzz::checkpoint::run,
        "plan" => qbert_fuzz::plan::run,
        "readers" => qbert_fuzz::readers::run,
        "report" => qbert_fuzz::report::run,
        "states" => qbert_fuzz::states::run,
        "inputs" => qbert_fuzz::inputs::run,
        _ => qbert_fuzz::kernels::run,
    };
    if !run(bytes) {
        panic!("{target}/{name} is refused");
    }
    let directory = Path::new("fuzz/seeds").join(target);
    std::fs::create_dir_all(&directory).expect("the directory of the seeds");
    std::fs::write(directory.join(name), bytes).expect("a seed");
}

/// Parts with a zero byte between.
fn joined(first: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    [first, &parts.join(&0)].concat()
}

fn main() {
    for (name, bytes) in packed_models() {
        write("packed", &name, &bytes);
    }
    tokenizers();
    checkpoint();
    write("plan", "plan.toml", PLAN.as_bytes());
    write("plan", "preset", b"sst2-2-3");
    readers();
    reports();
    states();
    write("kernels", "small", &[1, 2, 30, 0, 7, 0, 0, 3, 1, 2, 3, 1, 0, 1, 0, 1, 2, 3, 4, 5]);
    write("kernels", "odd", &[2, 18, 96, 1, 200, 0, 11, 1, 3, 7, 6, 5, 4, 3, 2, 1, 0, 8, 7, 6, 39, 12, 3, 9, 9, 9]);
    let lines = "{\"text\": \"the owl\"}\n{\"text\": \"the owl\", \"text2\": \"of ostby\"}\n{\"words\": [\"the\", \"owl\"]}\n\
                 {\"question\": \"who ?\", \"context\": \"the owl saw\"}\n{\"id\": 7, \"text\": \"貓\"}\n";
    write("inputs", "lines.jsonl", lines.as_bytes());
}

fn tokenizers() {
    let text = "The owls of [MASK] 貓頭鷹 .".as_bytes();
    write("tokenizer", "wordpiece", &joined(&[0], &[BERT.as_bytes(), text]));
    let start = BERT.find("\"normalizer\"").expect("the normalizer");
    let end = BERT.find("\"pre_tokenizer\"").expect("what follows");
    let sequence = [&BERT[..start], SEQUENCE, &BERT[end..]].concat();
    write("tokenizer", "sequence", &joined(&[0], &[sequence.as_bytes(), text]));
    let end = BERT.find("\"normalizer\"").expect("the normalizer");
    let bpe = r#""normalizer":{"type":"NFC"},"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},"post_processor":null,"decoder":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},"model":{"type":"BPE","unk_token":"[UNK]","fuse_unk":false,"vocab":{"[PAD]":0,"[UNK]":1,"[CLS]":2,"[SEP]":3,"[MASK]":4,"o":5,"w":6,"l":7,"ow":8,"owl":9},"merges":["o w","ow l"]}}"#;
    write("tokenizer", "bpe", &joined(&[0], &[[&BERT[..end], bpe].concat().as_bytes(), text]));
    let unigram = r#""normalizer":{"type":"Sequence","normalizers":[{"type":"Nmt"},{"type":"NFKC"},{"type":"Replace","pattern":{"Regex":" {2,}"},"content":" "}]},"pre_tokenizer":{"type":"Metaspace","replacement":"\u2581","prepend_scheme":"always","split":true},"post_processor":null,"decoder":null,"model":{"type":"Unigram","unk_id":1,"vocab":[["[PAD]",0.0],["[UNK]",0.0],["[CLS]",0.0],["[SEP]",0.0],["[MASK]",0.0],["\u2581owl",-1.5],["o",-3.0],["s",-3.5]]}}"#;
    write("tokenizer", "unigram", &joined(&[0], &[[&BERT[..end], unigram].concat().as_bytes(), text]));
    let vocabulary = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nowl\n##s\nof\n";
    write("tokenizer", "vocabulary", &joined(&[1], &[vocabulary, br#"{"do_lower_case":true}"#, text]));
    let added = br#"{"[NEW]": 9}"#;
    write("tokenizer", "added", &joined(&[2], &[vocabulary, br#"{"[NEW]": 9, "owlet": 10}"#, b"", b"", text]));
    let settings = br#"{"tokenizer_class":"BertTokenizer","do_lower_case":false,"added_tokens_decoder":{"9":{"content":"[NEW]","lstrip":false,"normalized":true,"rstrip":false,"single_word":true,"special":false}}}"#;
    let special = br#"{"cls_token":"[CLS]","sep_token":{"content":"[SEP]"}}"#;
    write("tokenizer", "directory", &joined(&[2], &[vocabulary, added, settings, special, text]));
}

fn checkpoint() {
    use qbert_model::{Config, Head, ParameterLayout};
    let config = r#"{"architectures":["BertForSequenceClassification"],"model_type":"bert","vocab_size":6,"hidden_size":4,"num_hidden_layers":1,"num_attention_heads":2,"intermediate_size":6,"max_position_embeddings":4,"type_vocab_size":2,"hidden_act":"gelu","layer_norm_eps":1e-12,"id2label":{"0":"no","1":"yes"}}"#;
    let parsed = Config::parse(config.as_bytes(), Path::new("config.json")).expect("a configuration");
    let layout = ParameterLayout::new(&parsed, Head::SequenceClassification, 2, false);
    let (mut header, mut start) = (serde_json::Map::new(), 0);
    for parameter in layout.parameters() {
        let end = start + 4 * parameter.span.len();
        let entry = serde_json::json!({"dtype": "F32", "shape": parameter.shape, "data_offsets": [start, end]});
        header.insert(parameter.name.clone(), entry);
        start = end;
    }
    let header = serde_json::Value::Object(header).to_string();
    // Not zero, which would separate parts.
    let data: Vec<u8> = std::iter::repeat_n(0.5_f32.to_le_bytes().map(|byte| byte | 1), start / 4).flatten().collect();
    write("checkpoint", "classifier", &joined(&[], &[config.as_bytes(), header.as_bytes(), &data]));
}

fn readers() {
    let squad = r#"{"version":"1.1","data":[{"title":"t","paragraphs":[{"context":"the owl saw a owl .","qas":[{"id":"1","question":"who ?","answers":[{"text":"the owl","answer_start":0}],"is_impossible":false}]}]}]}"#;
    let files: [(&str, u8, &[u8]); 9] = [
        ("sst2", 0, b"sentence\tlabel\nthe owl saw\t1\na owl\t0\n"),
        ("mnli", 1, b"index\tsentence1\tsentence2\tgold_label\n0\tthe owl\ta owl\tneutral\n"),
        ("conll03", 2, b"-DOCSTART- -X- O O\n\nthe DT O O\nowl NN I-NP B-LOC\n\nsaw VB O O\n"),
        ("squad", 3, squad.as_bytes()),
        ("classify", 4 | 128, b"text\tlabel\nthe owl\tgood\na owl\tbad\n"),
        ("classify-csv", 4 | 128 | 16, b"text,label\n\"the, owl\",good\na owl,bad\n"),
        (
            "classify-jsonl",
            4 | 128 | 24,
            b"{\"text\": \"the owl\", \"label\": \"good\"}\n{\"text\": \"a\", \"label\": 3}\n",
        ),
        ("ner", 6, b"the O\nowl B-BIRD\nof I-BIRD\n\nsaw O\n"),
        ("qa", 7, squad.as_bytes()),
    ];
    for (name, choice, file) in files {
        write("readers", name, &[&[choice], file].concat());
    }
}

fn reports() {
    let summary = r#"{"format":"qbert-summary","version":1,"task":"sst2","model":"m","metric":"accuracy","full_precision":90.0,"trained":89.5,"file_size":{"full":100,"quantized":10},"notes":["a note"]}"#;
    let sensitivity = r#"{"format":"qbert-sensitivity","version":1,"task":"sst2","layers":[{"layer":0,"eigenvalues":[1.0,-2.0],"mean":1.5,"std":0.5,"omega":2.0}],"ranking":[0],"warnings":["w"]}"#;
    let changes = r#"{"format":"qbert-changes","version":1,"compared":2,"flipped":1,"examples":[{"text":"<script>alert(1)</script>","gold":"a","before":{"label":"a","confidence":0.9},"after":{"label":"b","confidence":0.6}}]}"#;
    let log = "{\"step\":1,\"loss\":0.5,\"lr\":0.1}\n{\"epoch\":1,\"dev\":{\"metric\":\"accuracy\",\"value\":80.0}}\n";
    let files = [(0, summary), (2, sensitivity), (3, PLAN), (7, changes), (9, log)];
    for (choice, text) in files {
        write("report", &format!("file-{choice}"), &[&[choice], text.as_bytes()].concat());
    }
    let whole = qbert_report::Report::default().to_json();
    write("report", "whole", &[&[10], whole.as_bytes()].concat());
}

fn states() {
    let path = qbert_fuzz::directory("seeds").join("resume.safetensors");
    let position =
        Position { steps: 3, evaluated: 1, best: Some((80.5, 1)), ..Position::start(serde_json::json!({"lr": 0.1})) };
    let values = [0.5; 8];
    state::write(&path, &position, &[("weights", &values), ("first", &values), ("second", &values)]).expect("a state");
    let bytes = std::fs::read(&path).expect("the state");
    let (length, rest) = bytes.split_first_chunk::<8>().expect("a length");
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    write("states", "training", &joined(&[0], &[header, data]));
    let found = r#""residual": 0.0, "lowest": -0.5, "iterations": 6, "converged": true, "trace": null"#;
    let part = format!(
        r#"{{"format": "qbert-sensitivity-part", "version": 1, "crc32": "00000000", "task": "sst2", "model": "m", "layer_parameters": [8, 8],
"data": {{"sequences": 8, "tokens": 80, "hash": "h"}}, "max_len": 64, "settings": {{"runs": 1, "fraction": 0.1, "max_examples": 4,
"method": "lanczos", "stop": {{"iterations": 50, "tolerance": 0.01}}, "trace": 0, "seed": 1}}, "shard": {{"part": 1, "of": 1}},
"runs": [{{"run": 0, "examples": 4, "tokens": 65, "loss": 0.9}}],
"found": [{{"run": 0, "layer": 0, "eigenvalue": 6.5, {found}}}, {{"run": 0, "layer": 1, "eigenvalue": -1.5, {found}}}]}}"#
    );
    write("states", "part", &[&[1], part.as_bytes()].concat());
}
