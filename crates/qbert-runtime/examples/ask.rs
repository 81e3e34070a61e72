//! The least a program needs: open a packed model once, then ask it from several threads.
//!
//! `cargo run --release -p qbert-runtime --example ask -- model.qbert "a text" "another text"`

use std::io::Write;

use qbert_runtime::{Input, Prediction, Session, SessionOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = arguments.next().ok_or("usage: ask MODEL.qbert TEXT…")?;
    // Requests share one session; each of them works on its own thread here.
    let session = Session::open(&model, SessionOptions { threads: 1, max_len: None })?;
    let texts: Vec<String> = arguments.collect();
    let answers = std::thread::scope(|scope| {
        let ask = |text: &String| session.predict(&[Input::Text { text: text.clone() }]);
        let running: Vec<_> = texts.iter().map(|text| scope.spawn(move || ask(text))).collect();
        running.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
    });
    let mut stdout = std::io::stdout().lock();
    for (text, answer) in texts.iter().zip(answers) {
        let answer = answer.map_err(|_| "a thread ended early")??;
        match answer.first() {
            Some(Prediction::Classification(found)) => {
                writeln!(stdout, "{text}: {} ({:.1} %)", found.label, 100.0 * found.probability)?;
            }
            Some(Prediction::Tagging(found)) => {
                for entity in &found.entities {
                    writeln!(stdout, "{text}: {} {}, characters {:?}", entity.kind, entity.text, entity.characters)?;
                }
            }
            _ => writeln!(stdout, "{text}: nothing")?,
        }
    }
    Ok(())
}
