//! Writes the seed corpora: `cargo run --manifest-path fuzz/Cargo.toml --bin make_seeds`, in the repository's root.

use std::path::Path;

use qbert_fuzz::models::packed_models;

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

const PLAN: &str = "version = 1\n\n[weights]\ngroups = 4\nrange = \"mse\"\nlayer.0 = { query = 2, key = 2, value = 3, \
attention_output = 4, intermediate = 2, output = 8 }\n\n[embedding]\ngroups = 1\nrange = \"min-max\"\nword = 4\nposition = 8\ntype = 8\n\n\
[activations]\nbits = 8\nrange = \"min-max\"\n";

fn write(target: &str, name: &str, bytes: &[u8]) {
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
    let vocabulary = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nowl\n##s\nof\n";
    write("tokenizer", "vocabulary", &joined(&[1], &[vocabulary, br#"{"do_lower_case":true}"#, text]));
    let added = br#"{"[NEW]": 9, "owlet": 10}"#;
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
    write("checkpoint", "config-only", &joined(&[], &[config.as_bytes(), b"{}", b""]));
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
        ("classify-jsonl", 4 | 128 | 24, b"{\"text\": \"the owl\", \"label\": \"good\"}\n{\"text\": \"a\", \"label\": 3}\n"),
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
    write("report", "whole", &[&[10], br#"{"title":"t","changes":null}"#.as_slice()].concat());
}

fn states() {
    let header = r#"{"__metadata__":{"crc32":"00000000","position":"{\"step\":3,\"epoch\":1}"},"weights":{"dtype":"F32","shape":[8],"data_offsets":[0,32]},"first":{"dtype":"F32","shape":[8],"data_offsets":[32,64]},"second":{"dtype":"F32","shape":[8],"data_offsets":[64,96]}}"#;
    write("states", "training", &joined(&[0], &[header.as_bytes(), &[1; 96]]));
    let part = r#"{"format":"qbert-sensitivity-part","version":1,"crc32":"00000000","found":[],"runs":[]}"#;
    write("states", "part", &[&[1], part.as_bytes()].concat());
}
