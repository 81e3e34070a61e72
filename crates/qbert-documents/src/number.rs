//! Numbers in JSON that may be `null`, because JSON has no NaN.

use serde::{Deserialize, Deserializer};

/// A number, or `null` for NaN.
///
/// # Errors
/// Anything else.
pub fn one<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// A list of numbers, each of which may be `null`; `null` for the whole list is an empty one.
///
/// # Errors
/// Anything else.
pub fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f64>, D::Error> {
    let values: Option<Vec<Option<f64>>> = Option::deserialize(deserializer)?;
    Ok(values.unwrap_or_default().into_iter().map(|value| value.unwrap_or(f64::NAN)).collect())
}

/// Rows of numbers, each of which may be `null`.
///
/// # Errors
/// Anything else.
pub fn grid<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Vec<f64>>, D::Error> {
    let rows: Vec<Vec<Option<f64>>> = Vec::deserialize(deserializer)?;
    Ok(rows.into_iter().map(|row| row.into_iter().map(|value| value.unwrap_or(f64::NAN)).collect()).collect())
}

/// The default of a number that must not pass for 0 when it is absent.
pub(crate) fn unknown() -> f64 {
    f64::NAN
}

/// A number that was measured, or nothing.
pub fn known(value: f64) -> Option<f64> {
    Some(value).filter(|value| value.is_finite())
}
