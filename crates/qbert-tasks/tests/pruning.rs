//! Smaller vocabularies: what is used is split as before, everything else is still spelled, nothing becomes unknown.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

use std::collections::HashSet;

use qbert_tasks::{PrunedTokenizer, Tokenizer, VocabOptions};
use serde_json::{Value, json};

const VOCAB: &[u8] = include_bytes!("data/vocab.txt");

fn word_pieces() -> Tokenizer {
    Tokenizer::from_vocab("vocab.txt", VOCAB, VocabOptions::default()).unwrap()
}

/// A tokenizer with this model, RoBERTa's special tokens and spaces as `▁`.
fn with_model(model: &Value) -> Tokenizer {
    let added = ["<s>", "<pad>", "</s>", "<unk>"].iter().zip(0..).map(|(content, id)| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true})
    });
    let definition = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "decoder": null,
        "added_tokens": added.collect::<Vec<_>>(),
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "</s>", "type_id": 0}}],
            "pair": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "</s>", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]},
                "</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]}}},
        "model": model,
    });
    Tokenizer::from_json("tokenizer.json", definition.to_string().as_bytes()).unwrap()
}

fn tokens(tokenizer: &Tokenizer, text: &str) -> Vec<String> {
    tokenizer.pieces(text).unwrap().ids.iter().map(|&id| tokenizer.token(id).unwrap()).collect()
}

/// Prunes to what a text uses, and checks what must hold for every tokenizer.
fn pruned_to(tokenizer: &Tokenizer, text: &str) -> PrunedTokenizer {
    let used: HashSet<u32> = tokenizer.pieces(text).unwrap().ids.into_iter().collect();
    let pruned = tokenizer.pruned(&used).unwrap();
    assert_eq!(pruned.tokenizer.vocab_size(), pruned.kept.len());
    assert!(pruned.kept.is_sorted());
    for (new, &old) in pruned.kept.iter().enumerate() {
        assert_eq!(pruned.tokenizer.token(u32::try_from(new).unwrap()), tokenizer.token(old));
    }
    let (own, before) = (pruned.tokenizer.special(), tokenizer.special());
    for (new, old) in [(own.cls, before.cls), (own.sep, before.sep), (own.pad, before.pad), (own.unk, before.unk)] {
        assert_eq!(pruned.kept[new as usize], old);
    }
    let mapped: Vec<u32> =
        pruned.tokenizer.pieces(text).unwrap().ids.iter().map(|&id| pruned.kept[id as usize]).collect();
    assert_eq!(mapped, tokenizer.pieces(text).unwrap().ids, "the texts themselves are split as before");
    pruned
}

#[test]
fn word_pieces_that_go_are_spelled_by_those_that_stay() {
    let tokenizer = word_pieces();
    let (used, other) = ("the lamp is bright", "Mira's lampkeeper crosses the Ostby bridge – café 日本 x9!");
    let pruned = pruned_to(&tokenizer, used);
    assert!(pruned.kept.len() < tokenizer.vocab_size(), "{} tokens", pruned.kept.len());
    let (before, after) = (tokens(&tokenizer, other), tokens(&pruned.tokenizer, other));
    assert!(after.len() > before.len(), "{after:?}");
    let unknown = |tokens: &[String]| tokens.iter().filter(|token| *token == "[UNK]").count();
    assert_eq!(unknown(&after), unknown(&before));
    let text = |tokens: &[String]| tokens.iter().map(|token| token.trim_start_matches("##")).collect::<String>();
    assert_eq!(text(&after), text(&before));
}

#[test]
fn a_piece_with_a_letter_that_nothing_else_spells_stays() {
    let vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n[unused0]\na\n##a\n##b\nab\nabq\nba\n";
    let tokenizer = Tokenizer::from_vocab("vocab.txt", vocabulary.as_bytes(), VocabOptions::default()).unwrap();
    let pruned = tokenizer.pruned(&HashSet::new()).unwrap();
    let kept: Vec<String> = pruned.kept.iter().map(|&id| tokenizer.token(id).unwrap()).collect();
    // `q` is in `abq` alone, and `b` begins `ba` alone; `ab` can be spelled, and a free row is never used.
    assert_eq!(kept, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##a", "##b", "abq", "ba"]);
    assert_eq!(tokens(&pruned.tokenizer, "ab abq ba"), ["a", "##b", "abq", "ba"]);
    assert_eq!(pruned.tokenizer.vocab_file().unwrap().lines().count(), 10);
}

#[test]
fn merges_stay_as_far_as_used_tokens_need_them() {
    let vocabulary =
        ["<s>", "<pad>", "</s>", "<unk>", "▁", "a", "b", "c", "d", "e", "ab", "▁ab", "de", "▁abc", "▁abcde"];
    let vocabulary: serde_json::Map<String, Value> =
        vocabulary.iter().zip(0..).map(|(token, id): (_, u32)| ((*token).to_owned(), id.into())).collect();
    for merges in [
        json!(["a b", "▁ ab", "d e", "▁ab c", "▁abc de"]),
        json!([["a", "b"], ["▁", "ab"], ["d", "e"], ["▁ab", "c"], ["▁abc", "de"]]),
    ] {
        let tokenizer = with_model(&json!({"type": "BPE", "dropout": null, "unk_token": "<unk>", "fuse_unk": false,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocabulary.clone(), "merges": merges}));
        assert_eq!(tokens(&tokenizer, "abc abcde"), ["▁abc", "▁abcde"]);
        let pruned = pruned_to(&tokenizer, "abc");
        let kept: Vec<String> = pruned.kept.iter().map(|&id| tokenizer.token(id).unwrap()).collect();
        assert_eq!(kept, ["<s>", "<pad>", "</s>", "<unk>", "▁", "a", "b", "c", "d", "e", "ab", "▁ab", "▁abc"]);
        assert_eq!(tokens(&pruned.tokenizer, "abc abcde"), ["▁abc", "▁abc", "d", "e"]);
        assert_eq!(tokens(&pruned.tokenizer, "z"), tokens(&tokenizer, "z"));
    }
}

#[test]
fn unigram_keeps_characters_and_the_lowest_score() {
    let vocabulary = json!([
        ["<s>", 0.0],
        ["<pad>", 0.0],
        ["</s>", 0.0],
        ["<unk>", 0.0],
        ["▁ab", -2.0],
        ["▁", -3.0],
        ["a", -4.0],
        ["b", -4.5],
        ["abab", -3.0],
        ["▁a", -2.5],
        ["bb", -9.0],
        ["aβ", -5.0]
    ]);
    let tokenizer = with_model(&json!({"type": "Unigram", "unk_id": 3, "vocab": vocabulary, "byte_fallback": false}));
    assert_eq!(tokens(&tokenizer, "abab"), ["▁", "abab"]);
    let pruned = pruned_to(&tokenizer, "ab");
    let kept: Vec<String> = pruned.kept.iter().map(|&id| tokenizer.token(id).unwrap()).collect();
    // `bb` has the lowest score, which that of unknown characters follows; `β` has no piece of its own.
    assert_eq!(kept, ["<s>", "<pad>", "</s>", "<unk>", "▁ab", "▁", "a", "b", "bb", "aβ"]);
    assert_eq!(tokens(&pruned.tokenizer, "abab"), ["▁ab", "a", "b"]);
    assert_eq!(tokens(&pruned.tokenizer, "z").last().unwrap(), tokens(&tokenizer, "z").last().unwrap());
}

#[test]
fn a_vocabulary_of_whole_words_is_refused() {
    let tokenizer = with_model(&json!({"type": "WordLevel", "unk_token": "<unk>",
        "vocab": {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "▁ab": 4}}));
    let error = tokenizer.pruned(&HashSet::new()).expect_err("refused").to_string();
    assert!(error.contains("whole words"), "{error}");
}

#[test]
fn ids_in_files_beside_the_vocabulary_follow() {
    let tokenizer = word_pieces();
    let pruned = pruned_to(&tokenizer, "the lamp");
    let (old, new) = (tokenizer.special().sep, pruned.tokenizer.special().sep);
    let config = json!({"do_lower_case": true, "added_tokens_decoder": {old.to_string(): {"content": "[SEP]"}}});
    let found: Value = serde_json::from_slice(
        &pruned.side_file("tokenizer_config.json", config.to_string().as_bytes(), Some(64)).unwrap(),
    )
    .unwrap();
    assert_eq!(found["added_tokens_decoder"][new.to_string()]["content"], "[SEP]");
    assert_eq!(found["do_lower_case"], true);
    let added = pruned.side_file("added_tokens.json", json!({"[SEP]": old}).to_string().as_bytes(), None).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&added).unwrap(), json!({"[SEP]": new}));
    assert!(pruned.side_file("tokenizer_config.json", b"[", None).is_err());
}
