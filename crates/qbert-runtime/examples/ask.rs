//! The smallest useful program: open a packed model once, then ask it from several threads.
//!
//! `cargo run --release -p qbert-runtime --example ask -- model.qbert "a text" "another text"`

use std::io::Write;

use qbert_runtime::{Prediction, Session, SessionOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = arguments.next().ok_or("usage: ask MODEL.qbert TEXT…")?;
    // All requests share one session. Each runs on its own thread, so a request needs no helper threads.
    let session = Session::open(&model, SessionOptions::default().threads(1))?;
    let texts: Vec<String> = arguments.collect();
    let answers = std::thread::scope(|scope| {
        let ask = |text| session.predict_one(text);
        let running: Vec<_> = texts.iter().map(|text: &String| scope.spawn(move || ask(text))).collect();
        running.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
    });
    let mut stdout = std::io::stdout().lock();
    for (text, answer) in texts.iter().zip(answers) {
        match answer.map_err(|_| "a thread panicked")?? {
            Prediction::Classification(found) => {
                writeln!(stdout, "{text}: {} ({:.1} %)", found.label, 100.0 * found.probability)?;
            }
            Prediction::Tagging(found) => {
                for entity in &found.entities {
                    writeln!(stdout, "{text}: {} {}, characters {:?}", entity.kind, entity.text, entity.characters)?;
                }
            }
            _ => writeln!(stdout, "{text}: nothing")?,
        }
    }
    Ok(())
}
