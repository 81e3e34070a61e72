//! What several test files share.

#![allow(dead_code, reason = "every test binary uses its own part")]

pub(crate) mod reference;

include!("model.rs");
