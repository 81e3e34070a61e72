//! Tokenizer files that are damaged, contradict each other or mean harm: refused with the reason, never a panic, never
//! more memory or time than their size justifies.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

use std::path::Path;

use qbert_tasks::{Error, Tokenizer, VocabOptions};
use serde_json::{Value, json};

const VOCAB: &[u8] = include_bytes!("data/vocab.txt");
const PRECOMPILED: &[u8] = include_bytes!("cases/tokenizer-precompiled.json");
const HUGE_ID: &[u8] = include_bytes!("cases/tokenizer-id-4g.json");

fn plain() -> Tokenizer {
    Tokenizer::from_vocab("vocab.txt", VOCAB, VocabOptions::default()).expect("a good vocabulary")
}

fn definition() -> Value {
    serde_json::from_str(&plain().to_json().unwrap()).unwrap()
}

fn read(value: &Value) -> Result<Tokenizer, Error> {
    Tokenizer::from_json("tokenizer.json", value.to_string().as_bytes())
}

/// Why a definition with this part is refused.
fn refusal(part: &str, value: Value) -> String {
    let mut changed = definition();
    changed[part] = value;
    read(&changed).expect_err("refused").to_string()
}

#[test]
fn point_14_a_file_cut_anywhere_is_an_error() {
    let mut value = definition();
    value["decoder"] = json!({"type": "WordPiece", "prefix": "##", "cleanup": true});
    let text = value.to_string();
    let start = text.find("\"decoder\"").unwrap();
    for end in start..start + 70 {
        let error = Tokenizer::from_json("t.json", &text.as_bytes()[..end]).expect_err("half a file");
        assert!(error.to_string().starts_with("t.json: not a usable tokenizer: "), "{error}");
    }
    let good = Tokenizer::from_json("t.json", text.as_bytes()).unwrap();
    assert!(good.to_json().unwrap().contains(r###""decoder":{"type":"WordPiece","prefix":"##","cleanup":true}"###));
}

#[test]
fn point_14_a_damaged_character_map_is_an_error() {
    let error = Tokenizer::from_json("t.json", PRECOMPILED).expect_err("refused").to_string();
    assert!(error.contains("normalizer Precompiled: its character map has a trie of 0 bytes"), "{error}");
    for map in ["", "AAAA", "%", "BAAAAAAAAAA=", "/////w=="] {
        let error = refusal("normalizer", json!({"type": "Precompiled", "precompiled_charsmap": map}));
        assert!(error.contains("its character map"), "{map}: {error}");
    }
}

#[test]
fn point_14_only_known_components_are_read() {
    for (part, value, expected) in [
        ("normalizer", json!({"type": "Unheard"}), "the type \"Unheard\"; the types that are read are BertNormalizer"),
        ("normalizer", json!({"strip_left": true, "strip_right": true}), "`normalizer` has no `type`"),
        ("normalizer", json!([1]), "`normalizer` is not a JSON object"),
        ("pre_tokenizer", json!({"type": "FixedLength", "length": 0}), "\"FixedLength\""),
        ("decoder", json!({"type": 3}), "`decoder` has no `type`"),
        ("decoder", json!({"type": "WordPiece", "prefix": 3, "cleanup": true}), "invalid type"),
        ("model", json!({"type": "Unheard", "vocab": {}}), "\"Unheard\""),
        ("model", json!({"type": "Unigram", "unk_id": 9, "vocab": [["a", 0.5]]}), "UnkIdNotInVocabulary"),
        ("model", json!({"type": "BPE", "vocab": {"a": 0}, "merges": [], "dropout": 0.1}), "random"),
        (
            "post_processor",
            json!({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "B", "type_id": 0}}], "pair": [],
                "special_tokens": {}}),
            "`single` must have the text `A` once",
        ),
    ] {
        let error = refusal(part, value);
        assert!(error.contains(expected), "{part}: {error}");
    }
}

#[test]
fn point_14_a_panic_of_the_library_is_an_error() {
    // Whatever is put in the place of a value, the answer is a tokenizer or an error.
    let mut value = definition();
    value["model"]["vocab"] = json!({"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "a": 5});
    value["decoder"] = json!({"type": "WordPiece", "prefix": "##", "cleanup": true});
    value["normalizer"] = json!({"type": "Sequence", "normalizers": [{"type": "NFKC"},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]});
    let mut paths = Vec::new();
    collect(&value, String::new(), &mut paths);
    assert!(paths.len() > 40);
    for path in paths {
        for other in [json!(null), json!(-1), json!(1e300), json!(""), json!([]), json!({}), json!([[]]), json!(true)] {
            let mut changed = value.clone();
            *changed.pointer_mut(&path).unwrap() = other;
            if let Ok(tokenizer) = read(&changed) {
                let _ = tokenizer.pieces("a  b [SEP] 日本");
            }
        }
    }
}

fn collect(value: &Value, path: String, paths: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                collect(value, format!("{path}/{}", key.replace('~', "~0").replace('/', "~1")), paths);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                collect(item, format!("{path}/{index}"), paths);
            }
        }
        _ => {}
    }
    if !path.is_empty() {
        paths.push(path);
    }
}

#[test]
fn point_17a_normalizers_cannot_blow_a_text_up() {
    let replace = |pattern: Value, content: &str| json!({"type": "Replace", "pattern": pattern, "content": content});
    let long = replace(json!({"String": "a"}), &"a".repeat(200));
    let chain = |parts: Vec<Value>| json!({"type": "Sequence", "normalizers": parts});
    let error = refusal("normalizer", chain(vec![long.clone(), long.clone(), long.clone(), long]));
    assert!(error.contains("1600000000 times longer; 32 times are allowed"), "{error}");
    let error = refusal("normalizer", json!({"type": "Prepend", "prepend": "▁".repeat(20)}));
    assert!(error.contains("61 times longer"), "{error}");
    let error = refusal("normalizer", chain(vec![json!({"type": "Lowercase"}); 40]));
    assert!(error.contains("more than 32 parts"), "{error}");
    // Real ones: ALBERT's quotes, SentencePiece's spaces, LLaMA's first space.
    let mut real = definition();
    real["normalizer"] = chain(vec![
        replace(json!({"String": "``"}), "\""),
        replace(json!({"String": " "}), "▁"),
        json!({"type": "Prepend", "prepend": "▁"}),
        json!({"type": "NFKD"}),
    ]);
    read(&real).unwrap();
}

#[test]
fn point_17a_patterns_need_no_backtracking() {
    let replace = |pattern: &str| json!({"type": "Replace", "pattern": {"Regex": pattern}, "content": ""});
    for pattern in [r"(a|a)*(?=b)c", r"(x+x+)+\1y", r"a++b", r"", r"a*", r"(a{1000}){1000}", r"(?<!a)b", r"("] {
        let error = refusal("normalizer", replace(pattern));
        assert!(error.contains("normalizer Replace: its"), "{pattern}: {error}");
    }
    let split = json!({"type": "Split", "pattern": {"Regex": r"(\w+)\1"}, "behavior": "Isolated", "invert": false});
    assert!(refusal("pre_tokenizer", split).contains("pre_tokenizer Split"));
}

#[test]
fn point_17a_sizes_are_bounded() {
    let with = |path: &str, value: Value| {
        let mut changed = definition();
        *changed.pointer_mut(path).unwrap() = value;
        read(&changed).expect_err("refused").to_string()
    };
    let error = with("/model/max_input_chars_per_word", json!(1_000_000_000));
    assert!(error.contains("at most 200 are allowed"), "{error}");
    let error = with("/model/vocab", json!({"x".repeat(2000): 0}));
    assert!(error.contains("has 2000 bytes; 1024 are allowed"), "{error}");
    let token = json!({"id": 0, "content": "[PAD]", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true});
    let error = with("/added_tokens", json!(vec![token; 65537]));
    assert!(error.contains("65537 added tokens; 65536 are allowed"), "{error}");
    let error = with("/added_tokens/0/id", json!(7));
    assert!(error.contains("\"[PAD]\" has the id 7, but its place gives it 0"), "{error}");
}

#[test]
fn point_24a_a_huge_id_allocates_nothing() {
    let error = Tokenizer::from_json("t.json", HUGE_ID).expect_err("refused").to_string();
    assert!(error.contains("ids are whole numbers below 4194304"), "{error}");
    // An id within the limit that leaves a gap is no vocabulary, and is seen without a list of that length.
    let mut gap = definition();
    gap["model"]["vocab"]["far"] = json!(4_194_303);
    let tokenizer = read(&gap).unwrap();
    assert_eq!(tokenizer.vocab_size(), 4_194_304);
    assert!(tokenizer.to_vocab().is_none());
}

fn directory(files: &[(&str, Value)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(directory.path().join("vocab.txt"), VOCAB).expect("written");
    for (name, content) in files {
        std::fs::write(directory.path().join(name), content.to_string()).expect("written");
    }
    directory
}

fn directory_refusal(files: &[(&str, Value)]) -> String {
    let directory = directory(files);
    let error = Tokenizer::from_directory(directory.path()).expect_err("refused").to_string();
    error.replace(&format!("{}{}", directory.path().display(), std::path::MAIN_SEPARATOR), "")
}

#[test]
fn point_6_other_tokenizer_classes_are_refused_by_name() {
    let config = |key: &str, value: &str| [("tokenizer_config.json", json!({key: value}))];
    for (key, value) in [
        ("tokenizer_class", "BertJapaneseTokenizer"),
        ("tokenizer_class", "XLMRobertaTokenizer"),
        ("word_tokenizer_type", "mecab"),
        ("subword_tokenizer_type", "character"),
    ] {
        let error = directory_refusal(&config(key, value));
        assert!(error.starts_with(&format!("tokenizer_config.json: `{key}` is \"{value}\"")), "{error}");
        assert!(error.contains("BertTokenizer, DistilBertTokenizer"), "{error}");
    }
    for class in ["BertTokenizer", "BertTokenizerFast", "ElectraTokenizerFast"] {
        Tokenizer::from_directory(directory(&config("tokenizer_class", class)).path()).unwrap();
    }
    // tokenizer.json says everything, but no BertJapaneseTokenizer ever reads one.
    let with_json = |class: &str| {
        directory(&[("tokenizer.json", definition()), ("tokenizer_config.json", json!({"tokenizer_class": class}))])
    };
    Tokenizer::from_directory(with_json("SomeOtherTokenizer").path()).unwrap();
    assert!(Tokenizer::from_directory(with_json("BertJapaneseTokenizer").path()).is_err());
}

#[test]
fn point_6_contradictions_are_refused() {
    let next = plain().vocab_size();
    let added = |content: Value| ("added_tokens.json", content);
    for (files, expected) in [
        (vec![added(json!({"<E1>": next + 5}))], "\"<E1>\" has the id"),
        (vec![added(json!({"<E1>": 6}))], "but with this vocabulary it must be"),
        (vec![added(json!({"the": next}))], "\"the\" has the id"),
        (vec![added(json!({"<E1>": "x"}))], "the id of \"<E1>\" is not a whole number"),
        (vec![("special_tokens_map.json", json!({"cls_token": "<s>"}))], "`cls_token` is \"<s>\""),
        (vec![("tokenizer_config.json", json!({"unk_token": {"content": "<unk>"}}))], "`unk_token` is \"<unk>\""),
        (
            vec![
                ("tokenizer_config.json", json!({"added_tokens_decoder": {next.to_string(): {"content": "<E1>"}}})),
                added(json!({"<E2>": next})),
            ],
            "is not in `added_tokens_decoder`",
        ),
        (vec![("tokenizer.json", definition()), added(json!({"<E1>": next}))], "but tokenizer.json does not have it"),
    ] {
        let error = directory_refusal(&files);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn point_6_added_tokens_are_those_of_transformers() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/added_tokens.json");
    let golden: Value = serde_json::from_slice(&std::fs::read(golden).unwrap()).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    assert!(cases.len() >= 6);
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let files: Vec<(&str, Value)> =
            case["files"].as_object().unwrap().iter().map(|(file, content)| (file.as_str(), content.clone())).collect();
        let tokenizer = Tokenizer::from_directory(directory(&files).path()).unwrap();
        // A packed model carries the tokenizer as JSON if it has added tokens.
        let packed = Tokenizer::from_json("packed", tokenizer.to_json().unwrap().as_bytes()).unwrap();
        assert_eq!(tokenizer.to_vocab().is_some(), name == "nothing added", "{name}");
        for (text, expected) in golden["texts"].as_array().unwrap().iter().zip(case["ids"].as_array().unwrap()) {
            let text = text.as_str().unwrap();
            let expected: Vec<u32> = serde_json::from_value(expected.clone()).unwrap();
            assert_eq!(tokenizer.pieces(text).unwrap().ids, expected, "{name}: {text:?}");
            assert_eq!(packed.pieces(text).unwrap().ids, expected, "{name}, packed: {text:?}");
        }
    }
}

#[test]
fn two_tokens_with_one_id_are_refused() {
    let mut changed = definition();
    changed["model"]["vocab"]["the"] = 3.into();
    let error = read(&changed).expect_err("refused").to_string();
    assert!(error.contains("have the same id, 3"), "{error}");
}
