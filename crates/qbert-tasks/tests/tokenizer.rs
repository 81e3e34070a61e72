//! The tokenizer's constructors: what they accept, what they refuse, and that all ways lead to the same pieces.

use std::path::Path;

use qbert_tasks::{Error, Tokenizer, VocabOptions};

const VOCAB: &[u8] = include_bytes!("data/vocab.txt");
const TEXT: &str = "Mira's lampkeeper crosses the Ostby bridge – café 日本 [SEP] \u{7} x9!";

/// A file's name and content.
type File<'a> = (&'a str, &'a [u8]);

fn plain() -> Tokenizer {
    Tokenizer::from_vocab("vocab.txt", VOCAB, VocabOptions::default()).expect("a good vocabulary")
}

fn directory(files: &[File<'_>]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for (name, content) in files {
        std::fs::write(directory.path().join(name), content).expect("written");
    }
    directory
}

/// An error's message without the temporary directory's name.
fn message(result: Result<Tokenizer, Error>, root: &Path) -> String {
    let error = result.expect_err("refused");
    format!("{error}\nhint: {}", error.hint().unwrap_or_default()).replace(&root.display().to_string(), "DIR")
}

#[test]
fn is_shared_between_threads_cheaply() {
    fn check<T: Send + Sync + Clone + 'static>(_: &T) {}
    let tokenizer = plain();
    check(&tokenizer);
    let expected = tokenizer.pieces(TEXT).unwrap();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let tokenizer = tokenizer.clone();
            std::thread::spawn(move || tokenizer.pieces(TEXT).unwrap())
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), expected);
    }
}

#[test]
fn json_and_vocabulary_make_the_same_tokenizer() {
    let lines = VOCAB.iter().filter(|&&byte| byte == b'\n').count();
    for options in [
        VocabOptions::default(),
        VocabOptions { lowercase: false, strip_accents: Some(true), tokenize_chinese_chars: false },
    ] {
        let first = Tokenizer::from_vocab("vocab.txt", VOCAB, options).unwrap();
        let json = first.to_json().unwrap();
        let second = Tokenizer::from_json("tokenizer.json", json.as_bytes()).unwrap();
        let (vocabulary, found) = second.to_vocab().unwrap();
        assert_eq!((vocabulary.as_bytes(), found), (VOCAB, options));
        let third = Tokenizer::from_vocab("again", vocabulary.as_bytes(), found).unwrap();
        let pieces = first.pieces(TEXT).unwrap();
        assert!(pieces.len() > 15);
        for other in [second, third] {
            assert_eq!(other.pieces(TEXT).unwrap(), pieces);
            assert_eq!(other.special(), first.special());
            assert_eq!(other.vocab_size(), lines);
        }
    }
}

#[test]
fn windows_line_ends_and_no_last_newline_change_nothing() {
    let crlf = String::from_utf8_lossy(VOCAB).trim_end().replace('\n', "\r\n");
    let other = Tokenizer::from_vocab("vocab.txt", crlf.as_bytes(), VocabOptions::default()).unwrap();
    assert_eq!(other.vocab_size(), plain().vocab_size());
    assert_eq!(other.pieces(TEXT).unwrap(), plain().pieces(TEXT).unwrap());
}

#[test]
fn stored_truncation_and_padding_are_switched_off() {
    let mut json: serde_json::Value = serde_json::from_str(&plain().to_json().unwrap()).unwrap();
    json["truncation"] =
        serde_json::json!({"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"});
    json["padding"] = serde_json::json!({"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"});
    let tokenizer = Tokenizer::from_json("tokenizer.json", json.to_string().as_bytes()).unwrap();
    assert_eq!(tokenizer.pieces(TEXT).unwrap(), plain().pieces(TEXT).unwrap());
}

#[test]
fn offsets_point_into_the_original_text() {
    let text = "Café  ÖRTLICH";
    let pieces = plain().pieces(text).unwrap();
    let covered: Vec<&str> = pieces.offsets.iter().map(|&(from, to)| &text[from..to]).collect();
    assert_eq!(covered.concat(), "CaféÖRTLICH");
    assert!(plain().pieces("").unwrap().is_empty() && plain().pieces(" \u{200b}\u{7}").unwrap().is_empty());
}

#[test]
fn a_directory_is_read_by_what_is_in_it() {
    let json = plain().to_json().unwrap();
    let cased = br#"{"do_lower_case": false, "strip_accents": null, "model_max_length": 512}"#;
    let only_vocab = directory(&[("vocab.txt", VOCAB), ("tokenizer_config.json", cased)]);
    let tokenizer = Tokenizer::from_directory(only_vocab.path()).unwrap();
    let name = |tokenizer: &Tokenizer| {
        let id = tokenizer.pieces("Mira").unwrap().ids[0];
        tokenizer.token(id).unwrap()
    };
    assert_eq!(name(&tokenizer), "Mira");
    let both =
        directory(&[("vocab.txt", VOCAB), ("tokenizer.json", json.as_bytes()), ("tokenizer_config.json", cased)]);
    assert_eq!(name(&Tokenizer::from_directory(both.path()).unwrap()), "mira", "tokenizer.json comes first");
}

#[test]
fn bad_files_are_named() {
    let json = plain().to_json().unwrap();
    let no_separator = String::from_utf8_lossy(VOCAB).replace("[SEP]\n", "");
    let cases: [(&str, Vec<File<'_>>); 8] = [
        ("nothing there", vec![]),
        ("empty vocabulary", vec![("vocab.txt", b"")]),
        ("no [SEP]", vec![("vocab.txt", no_separator.as_bytes())]),
        ("not UTF-8", vec![("vocab.txt", b"[PAD]\n\xff\xfe\n")]),
        ("half a tokenizer.json", vec![("tokenizer.json", &json.as_bytes()[..json.len() / 2])]),
        ("some other JSON", vec![("tokenizer.json", b"{\"a\": 1}")]),
        ("two that do not match", vec![("tokenizer.json", json.as_bytes()), ("vocab.txt", b"[PAD]\n[UNK]\n")]),
        ("a bad config", vec![("vocab.txt", VOCAB), ("tokenizer_config.json", b"{\"do_lower_case\": \"yes\"}")]),
    ];
    let mut report = String::new();
    for (name, files) in cases {
        let directory = directory(&files);
        report += &format!("{name}\n{}\n\n", message(Tokenizer::from_directory(directory.path()), directory.path()));
    }
    insta::assert_snapshot!(report);
}
