//! Features and decoding on invented sentences: alignment, windows, answers, and that nothing is lost or invented.

use std::sync::Arc;

use qbert_tasks::ner::TagDecoder;
use qbert_tasks::qa::{Answerless, DecodeOptions, QaOptions, decode_each};
use qbert_tasks::{Error, QaAnswer, QaExample, Tokenizer, VocabOptions, classify, ner, qa};

const VOCAB: &[u8] = include_bytes!("data/vocab.txt");

fn tokenizer() -> Tokenizer {
    Tokenizer::from_vocab("vocab.txt", VOCAB, VocabOptions::default()).expect("a good vocabulary")
}

#[test]
fn too_small_a_length_is_refused_for_every_kind() {
    let tokenizer = tokenizer();
    let message = |error: Error| format!("{error} / {}", error.hint().unwrap_or_default());
    let single = classify::encode(&tokenizer, "owl", None, 2).unwrap_err();
    assert_eq!(message(single), "a maximum length of 2 is too small: a text needs at least 3 / use 3 or more");
    assert!(classify::encode(&tokenizer, "owl", Some("bell"), 4).is_err());
    assert!(ner::encode(&tokenizer, &["owl"], None, 0, 2).is_err());
    let options = QaOptions { max_len: 67, ..QaOptions::default() };
    let question = qa::encode(&tokenizer, "who", "the owl", 0, &options).unwrap_err();
    assert!(matches!(question, Error::MaxLen { least: 68, .. }));
    let still = QaOptions { stride: 0, ..QaOptions::default() };
    assert!(matches!(qa::encode(&tokenizer, "who", "the owl", 0, &still), Err(Error::ZeroStride)));
}

#[test]
fn tags_stand_on_first_pieces_even_of_words_without_pieces() {
    let tokenizer = tokenizer();
    let words = ["lampkeeper", "\u{200b}", "Ostby", "\u{7}\u{7}"];
    let windows = ner::encode(&tokenizer, &words, Some(&[3, 0, 1, 2]), 5, 64).unwrap();
    let [window] = windows.as_slice() else { panic!("one window") };
    let unknown = tokenizer.special().unk;
    let names: Vec<String> = window.encoded.input_ids.iter().map(|&id| tokenizer.token(id).unwrap()).collect();
    assert_eq!(names, ["[CLS]", "lamp", "##keeper", "[UNK]", "ostby", "[UNK]", "[SEP]"]);
    assert_eq!(window.encoded.input_ids[3], unknown);
    assert_eq!(window.labels, [None, Some(3), None, Some(0), Some(1), Some(2), None]);
    assert_eq!(window.sentence, 5);
    assert!(matches!(ner::encode(&tokenizer, &words, Some(&[1]), 0, 64), Err(Error::Length { .. })));
}

#[test]
fn every_word_of_a_long_sentence_gets_exactly_one_prediction() {
    let tokenizer = tokenizer();
    let sentences: Vec<Vec<String>> = (0..6)
        .map(|length| {
            (0..length * 37).map(|word| if word % 5 == 0 { "lampkeepers" } else { "owl" }.to_owned()).collect()
        })
        .collect();
    for max_len in [3, 4, 7, 16, 33, 500] {
        let mut windows = Vec::new();
        for (index, words) in sentences.iter().enumerate() {
            let tags: Vec<usize> = (0..words.len()).collect();
            windows.extend(ner::encode(&tokenizer, words, Some(&tags), index, max_len).unwrap());
        }
        assert!(windows.iter().all(|window| window.encoded.len() <= max_len));
        // A model that repeats the labels it is given returns every word's own tag.
        let outputs = sentences.iter().map(Vec::len).max().unwrap();
        let mut decoder = TagDecoder::new(sentences.iter().map(Vec::len), outputs);
        for window in &windows {
            let mut scores = vec![0.0; window.encoded.len() * outputs];
            for (token, label) in window.labels.iter().enumerate().filter_map(|(token, label)| Some((token, (*label)?)))
            {
                scores[token * outputs + label] = 9.0;
            }
            decoder.push(window, &scores);
        }
        for (words, tags) in sentences.iter().zip(decoder.finish().unwrap()) {
            let tags: Vec<usize> = tags.into_iter().map(|word| word.tag).collect();
            assert_eq!(tags, (0..words.len()).collect::<Vec<_>>(), "max_len {max_len}");
        }
    }
}

fn example(context: &str, question: &str, answer: &str) -> QaExample {
    let byte = context.find(answer).expect("the answer is in the context");
    let start = context[..byte].chars().count();
    let answers = vec![QaAnswer { text: answer.to_owned(), start }];
    let (id, title) = ("q".to_owned(), String::new());
    QaExample { id, title, context: Arc::from(context), question: question.to_owned(), answers }
}

/// Scores that point at the answer each window was given, as a perfect model would: start and end of each token.
fn perfect_scores(window: &qa::QaWindow) -> Vec<f32> {
    let mut scores = vec![0.0; 2 * window.encoded.len()];
    if let Some((first, last)) = window.answer {
        scores[2 * first] = 10.0;
        scores[2 * last + 1] = 10.0;
    }
    scores
}

#[test]
fn a_perfect_model_gets_every_answer_back() {
    let tokenizer = tokenizer();
    let long =
        format!("{} Zoë's café – the “Owl” – rings. {}", "the old bell sings . ".repeat(40), "slow wind ".repeat(60));
    for (answer, max_len, stride) in
        [("“Owl”", 32, 7), ("Zoë's café", 40, 16), ("the old bell", 24, 20), ("café", 384, 128), ("rings.", 20, 1)]
    {
        let options = QaOptions { max_len, stride, max_question: 8, ..QaOptions::default() };
        let examples = [example(&long, "what rings?", answer)];
        let windows = qa::encode_all(&tokenizer, &examples, &options).unwrap();
        assert!(windows.iter().all(|window| window.encoded.len() <= max_len && window.answer.is_some()));
        let scores: Vec<_> = windows.iter().map(perfect_scores).collect();
        let mut found = decode_each([&long], &windows, &scores, DecodeOptions::default());
        let best = &found.next().unwrap().unwrap()[0];
        assert_eq!(best.text, answer, "max_len {max_len}, stride {stride}");
        assert_eq!(best.characters.start, examples[0].answers[0].start);
        assert_eq!(long.chars().skip(best.characters.start).take(best.characters.len()).collect::<String>(), answer);
    }
}

#[test]
fn windows_without_the_answer_point_at_cls_or_are_dropped() {
    let tokenizer = tokenizer();
    let context = format!("{}lantern", "old bell ".repeat(40));
    let examples = [example(&context, "what", "lantern")];
    let options = QaOptions { max_len: 32, stride: 8, max_question: 4, answerless: Answerless::PointAtCls };
    let kept = qa::encode_all(&tokenizer, &examples, &options).unwrap();
    let (with, without): (Vec<_>, Vec<_>) = kept.iter().partition(|window| window.answer > Some((0, 0)));
    assert!(!with.is_empty() && without.iter().all(|window| window.answer == Some((0, 0))) && without.len() > 3);
    let dropped =
        qa::encode_all(&tokenizer, &examples, &QaOptions { answerless: Answerless::Drop, ..options }).unwrap();
    assert_eq!(dropped.len(), with.len());
    // Every piece has the most context in exactly one window.
    let mut owners = vec![0; 81];
    for window in &kept {
        for (index, most) in window.most_context.iter().enumerate() {
            owners[window.context_begin + index] += usize::from(*most);
        }
    }
    assert_eq!(owners, vec![1; 81]);
}

#[test]
fn a_long_question_is_cut_and_an_empty_context_is_one_window() {
    let tokenizer = tokenizer();
    let options = QaOptions { max_len: 16, stride: 4, max_question: 5, ..QaOptions::default() };
    let windows = qa::encode(&tokenizer, "who lost the old lantern near the mill", "", 0, &options).unwrap();
    assert_eq!((windows.len(), windows[0].encoded.len(), windows[0].encoded.removed), (1, 8, 3));
    assert_eq!(windows[0].encoded.segments, [0, 0, 0, 0, 0, 0, 0, 1]);
    assert!(windows[0].context.is_empty());
}
