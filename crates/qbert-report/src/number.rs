//! Numbers in JSON that may be `null`, because JSON has no NaN.

use serde::{Deserialize, Deserializer};

/// A number, or `null` for NaN.
pub(crate) fn one<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// Numbers, each possibly `null`; `null` altogether is none.
pub(crate) fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f64>, D::Error> {
    let values: Option<Vec<Option<f64>>> = Option::deserialize(deserializer)?;
    Ok(values.unwrap_or_default().into_iter().map(|value| value.unwrap_or(f64::NAN)).collect())
}

/// Rows of numbers, each possibly `null`.
pub(crate) fn grid<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Vec<f64>>, D::Error> {
    let rows: Vec<Vec<Option<f64>>> = Vec::deserialize(deserializer)?;
    Ok(rows.into_iter().map(|row| row.into_iter().map(|value| value.unwrap_or(f64::NAN)).collect()).collect())
}
