//! The answers of two models to the same data, side by side; both number their labels as the data does.

use qbert_documents::{Answer, Change};
use qbert_tasks::ner::{TagStyle, spans};
use qbert_tasks::{Dataset, Labels, Predictions, TaskData};

/// Every example with both answers, in the order of the data.
pub(crate) fn all(data: &TaskData, before: &Predictions, after: &Predictions) -> Vec<Change> {
    let labels = &data.labels;
    match (data.features.dataset(), before, after) {
        (Dataset::Classify(data), Predictions::Labels(before), Predictions::Labels(after)) => {
            let answer = |(label, confidence): (usize, f64)| Answer {
                label: name(labels, label).to_owned(),
                confidence: Some(confidence),
            };
            let rows = data.examples.iter().zip(before.iter().zip(after));
            rows.map(|(example, (&before, &after))| {
                let text = match &example.text2 {
                    Some(second) => format!("{} | {second}", example.text),
                    None => example.text.clone(),
                };
                let gold = example.label.map(|label| name(labels, label).to_owned());
                Change { text, gold, before: answer(before), after: answer(after) }
            })
            .collect()
        }
        (Dataset::MultiLabel(data), Predictions::LabelSets(before), Predictions::LabelSets(after)) => {
            let list = |set: &Vec<usize>| match set[..] {
                [] => "no label".to_owned(),
                _ => set.iter().map(|&label| name(labels, label)).collect::<Vec<_>>().join(", "),
            };
            let answer = |set| Answer { label: list(set), confidence: None };
            let rows = data.examples.iter().zip(&data.sets).zip(before.iter().zip(after));
            rows.map(|((example, gold), (before, after))| Change {
                text: example.text.clone(),
                gold: gold.as_ref().map(list),
                before: answer(before),
                after: answer(after),
            })
            .collect()
        }
        (Dataset::Values(data), Predictions::Values(before), Predictions::Values(after)) => {
            let answer = |value: &f64| Answer { label: format!("{value:.3}"), confidence: None };
            let rows = data.examples.iter().zip(&data.values).zip(before.iter().zip(after));
            rows.map(|((example, gold), (before, after))| {
                let text = match &example.text2 {
                    Some(second) => format!("{} | {second}", example.text),
                    None => example.text.clone(),
                };
                let gold = gold.map(|value| format!("{value:.3}"));
                Change { text, gold, before: answer(before), after: answer(after) }
            })
            .collect()
        }
        (Dataset::Ner(data), Predictions::Tags(before), Predictions::Tags(after)) => {
            let rows = data.sentences.iter().zip(before.iter().zip(after));
            rows.map(|(sentence, (before, after))| {
                let found = |tags: &Vec<usize>| entities(labels, &sentence.words, tags);
                let answer = |tags| Answer { label: found(tags), confidence: None };
                let gold = sentence.tags.as_ref().map(found);
                Change { text: sentence.words.join(" "), gold, before: answer(before), after: answer(after) }
            })
            .collect()
        }
        (Dataset::Qa(data), Predictions::Answers(before), Predictions::Answers(after)) => {
            let rows = data.examples.iter().zip(before.iter().zip(after));
            rows.map(|(example, (before, after))| {
                // Several answers may be right: take the one that a model gave, if any.
                let accepted = |answer: &&qbert_tasks::QaAnswer| answer.text == after.0 || answer.text == before.0;
                let gold = example.answers.iter().find(accepted).or(example.answers.first());
                let answer = |(text, confidence): &(String, f64)| Answer {
                    label: if text.is_empty() { "no answer".to_owned() } else { text.clone() },
                    confidence: Some(*confidence),
                };
                let gold = gold.map(|answer| answer.text.clone());
                Change { text: example.question.clone(), gold, before: answer(before), after: answer(after) }
            })
            .collect()
        }
        // Both come from the same data and task.
        _ => Vec::new(),
    }
}

fn name(labels: &Labels, id: usize) -> &str {
    labels.name(id).unwrap_or("?")
}

/// The entities of a sentence in one line: `PER Anna Berg; LOC Oslo`.
fn entities(labels: &Labels, words: &[String], tags: &[usize]) -> String {
    let tags: Vec<&str> = tags.iter().map(|&tag| name(labels, tag)).collect();
    let found = spans(TagStyle::of(labels), &tags).into_iter();
    let found: Vec<String> = found.map(|span| format!("{} {}", span.kind, words[span.words].join(" "))).collect();
    if found.is_empty() { "no entities".to_owned() } else { found.join("; ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entities_are_told_apart() {
        let labels = Labels::for_entity_types(["BIRD", "TOOL"]);
        let words: Vec<String> = ["a", "barn", "owl", "owl", "saw", "b"].map(str::to_owned).into();
        let tags = |names: [&str; 6]| names.map(|name| labels.id(name).unwrap());
        let one = tags(["O", "B-BIRD", "I-BIRD", "B-BIRD", "B-TOOL", "O"]);
        assert_eq!(entities(&labels, &words, &one), "BIRD barn owl; BIRD owl; TOOL saw");
        let other = tags(["O", "I-BIRD", "I-TOOL", "O", "I-TOOL", "O"]);
        assert_eq!(entities(&labels, &words, &other), "BIRD barn; TOOL owl; TOOL saw");
        assert_eq!(entities(&labels, &words, &tags(["O"; 6])), "no entities");
    }
}
