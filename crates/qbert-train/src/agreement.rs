//! What ranks tell each other about a job: that it is the same one, and what the rank that writes has found in its
//! directory.

use qbert_kernels::Ranks;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::state::difference;

/// Refuses ranks that have been given different jobs: other settings, or other files under the same names.
///
/// # Errors
/// [`Error::Ranks`], on every rank that differs from rank 0 and on rank 0.
pub(crate) fn check(ranks: &dyn Ranks, identity: &serde_json::Value) -> Result<()> {
    let all = ranks.gather_bytes(identity.to_string().as_bytes());
    let read = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).unwrap_or_default();
    let first = read(&all[0]);
    match all.iter().map(|bytes| read(bytes)).enumerate().find(|(_, other)| *other != first) {
        Some((rank, other)) => Err(Error::Ranks { rank, problem: difference(&first, &other) }),
        None => Ok(()),
    }
}

/// Tells the others; they [`hear`] at the same time.
pub(crate) fn tell(ranks: &dyn Ranks, value: &impl Serialize) {
    ranks.gather_bytes(&serde_json::to_vec(value).unwrap_or_default());
}

/// Hears what rank 0 tells.
///
/// # Errors
/// [`Error::Ranks`] if it says what this one does not understand.
pub(crate) fn hear<T: DeserializeOwned>(ranks: &dyn Ranks) -> Result<T> {
    let all = ranks.gather_bytes(&[]);
    serde_json::from_slice(&all[0]).map_err(|error| Error::Ranks { rank: ranks.rank(), problem: error.to_string() })
}
