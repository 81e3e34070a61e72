//! Bit plans as people edit them.

use qbert_quant::{Plan, Preset};

/// Parses a plan; one that is accepted is written as the same plan. Whether it is a plan or the name of one.
pub fn run(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data);
    let is_preset = Preset::parse(&text).is_ok();
    match Plan::parse(&text, "plan.toml") {
        Ok(plan) => {
            let again = Plan::parse(&plan.to_toml(), "again.toml").expect("a plan that was written");
            assert_eq!(plan, again);
            true
        }
        Err(error) => {
            let (message, hint) = (error.to_string(), error.hint().unwrap_or_default());
            assert!(message.len() + hint.len() < 4096, "an error of {} bytes", message.len());
            is_preset
        }
    }
}
