//! Inputs of the runtime: lines of JSON, as `qbert predict --jsonl` and servers get them.

use std::sync::LazyLock;

use qbert_model::Head;
use qbert_runtime::{Input, Session};

static SESSIONS: LazyLock<[Session; 3]> = LazyLock::new(|| {
    let heads = [Head::SequenceClassification, Head::TokenClassification, Head::QuestionAnswering];
    heads.map(|head| crate::models::session(head, 32, crate::models::ALL_WIDTHS[0], 1))
});

/// Every line is an input for each kind of model; together they get the same bits as alone.
/// Whether any line is an input.
pub fn run(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data);
    let inputs: Vec<Input> = text.lines().take(8).filter_map(|line| serde_json::from_str(line).ok()).collect();
    for session in &*SESSIONS {
        let together = session.predict_each(inputs.iter().cloned());
        for (input, together) in inputs.iter().zip(together) {
            let alone = session.predict([input.clone()]);
            match (alone, together) {
                (Ok(alone), Ok(together)) => assert_eq!(alone[0], together),
                (alone, together) => assert_eq!(alone.is_err(), together.is_err(), "{alone:?} {together:?}"),
            }
        }
    }
    !inputs.is_empty()
}
