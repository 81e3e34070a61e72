//! Numbers in JSON that may be `null`, because JSON has no NaN.

use serde::{Deserialize, Deserializer, Serializer};

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

/// Writes a whole number without a fraction, so that readers get an integer where there is one: a count of bytes.
///
/// # Errors
/// Those of the serializer.
pub fn whole<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    /// Up to here a float holds every whole number.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && (0.0..=EXACT).contains(value) {
        return serializer.serialize_u64(*value as u64);
    }
    serializer.serialize_f64(*value)
}

/// The default of a number that must not pass for 0 when it is absent.
pub(crate) fn unknown() -> f64 {
    f64::NAN
}

/// A number that was measured, or nothing.
pub fn known(value: f64) -> Option<f64> {
    Some(value).filter(|value| value.is_finite())
}
