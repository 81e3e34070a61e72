//! The last line of defence: a panic inside the `tokenizers` crate becomes an error.
//!
//! [`super::definition`] refuses what is known to make the crate panic. This is for what is not known yet, because a
//! damaged file must never end a server. Not a substitute for a check: a caught panic says little to the user.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Does the work; a panic in it is an error with the panic's message, and is not printed.
///
/// The work must leave nothing half done that others can see.
pub(super) fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    silence_guarded_panics();
    let before = IS_GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    IS_GUARDED.set(before);
    result.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        format!("the tokenizer failed: {}", text.as_deref().unwrap_or("no reason given"))
    })
}

/// Once per process: the hook that prints panics leaves out those that [`guarded`] turns into errors.
fn silence_guarded_panics() {
    static INSTALLED: Once = Once::new();
    if std::thread::panicking() {
        return;
    }
    INSTALLED.call_once(|| {
        let print = take_hook();
        set_hook(Box::new(move |panic| {
            if !IS_GUARDED.try_with(Cell::get).unwrap_or(false) {
                print(panic);
            }
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::guarded;

    #[test]
    fn a_panic_becomes_an_error_with_its_message() {
        assert_eq!(guarded(|| 7), Ok(7));
        let number = 3;
        assert_eq!(guarded(|| panic!("no {number}")), Err::<(), _>("the tokenizer failed: no 3".to_owned()));
        assert_eq!(guarded(|| panic!("plain")), Err::<(), _>("the tokenizer failed: plain".to_owned()));
        assert_eq!(guarded(|| guarded(|| 1)), Ok(Ok(1)));
    }
}
