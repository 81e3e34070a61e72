//! The time of one call from Rust, for `reference/bench/python_costs.py`: `call_speed MODEL THREADS CALLS TEXT` prints
//! microseconds per call, `embed` first, then `predict_one` if the model has a head.

use std::time::Instant;

use qbert::{Head, Input, Pooling, Session, SessionOptions};

#[allow(clippy::print_stdout, reason = "a program that prints its result")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, threads, calls, text] = &arguments[..] else {
        return Err("call_speed MODEL THREADS CALLS TEXT".into());
    };
    let session = Session::open(model, SessionOptions::default().threads(threads.parse()?))?;
    let calls: u32 = calls.parse()?;
    let micros = |call: &dyn Fn() -> Result<(), qbert::Error>| {
        for _ in 0..calls / 10 + 1 {
            call()?;
        }
        let begun = Instant::now();
        for _ in 0..calls {
            call()?;
        }
        Ok::<f64, qbert::Error>(begun.elapsed().as_secs_f64() * 1e6 / f64::from(calls))
    };
    println!("{:.2}", micros(&|| Ok(session.embed(&[text], Pooling::Mean).map(drop)?))?);
    if session.head() == Head::SequenceClassification {
        println!("{:.2}", micros(&|| Ok(session.predict_one(Input::text(text)).map(drop)?))?);
    }
    Ok(())
}
