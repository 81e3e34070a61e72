//! Tokenizers in all their forms, and texts for them.

use qbert_tasks::{Tokenizer, VocabOptions};

/// The first byte chooses the form; then its parts, with a zero byte between. Whether it is a tokenizer.
pub fn run(data: &[u8]) -> bool {
    let Some((&form, rest)) = data.split_first() else { return false };
    let (tokenizer, text) = match form % 3 {
        0 => {
            let [json, text] = crate::parts(rest);
            (Tokenizer::from_json("tokenizer.json", json), text)
        }
        1 => {
            let [vocabulary, options, text] = crate::parts(rest);
            let options: VocabOptions = serde_json::from_slice(options).unwrap_or_default();
            (Tokenizer::from_vocab("vocab.txt", vocabulary, options), text)
        }
        _ => {
            let [vocabulary, added, settings, special, text] = crate::parts(rest);
            let directory = crate::directory("tokenizer");
            let files = [
                ("vocab.txt", vocabulary),
                ("added_tokens.json", added),
                ("tokenizer_config.json", settings),
                ("special_tokens_map.json", special),
            ];
            for (name, bytes) in files {
                if bytes.is_empty() {
                    let _ = std::fs::remove_file(directory.join(name));
                } else {
                    crate::write(&directory.join(name), bytes);
                }
            }
            (Tokenizer::from_directory(&directory), text)
        }
    };
    let Ok(tokenizer) = tokenizer else { return false };
    let text = String::from_utf8_lossy(text);
    for text in [&*text, "", "The owl of Østby\u{300} 貓頭鷹 \u{0}[MASK] a\u{fffd}\u{202e}", &"owl saw ".repeat(300)]
    {
        if let Ok(pieces) = tokenizer.pieces(text) {
            assert!(pieces.ids.iter().all(|&id| tokenizer.token(id).is_some()), "an id without a token");
        }
    }
    // What is packed is the same tokenizer.
    if let Some((vocabulary, options)) = tokenizer.to_vocab() {
        let again =
            Tokenizer::from_vocab("packed", vocabulary.as_bytes(), options).expect("a vocabulary that was written");
        assert!(again.is_same_as(&tokenizer), "the packed vocabulary is another tokenizer");
    } else if let Ok(json) = tokenizer.to_json() {
        let again = Tokenizer::from_json("packed", json.as_bytes()).expect("a tokenizer that was written");
        assert!(again.is_same_as(&tokenizer), "the packed tokenizer is another one");
    }
    true
}
