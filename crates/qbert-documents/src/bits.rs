//! Numbers of bits, of which ternary codes have no whole one.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

/// The bits of a value: 1 to 8, 1.6 for ternary codes, 32 for f32. JSON has a whole number where it is one.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default, Deserialize)]
#[serde(transparent)]
pub struct BitCount(f64);

impl BitCount {
    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl<T: Into<f64>> From<T> for BitCount {
    fn from(bits: T) -> Self {
        Self(bits.into())
    }
}

impl fmt::Display for BitCount {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl Serialize for BitCount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Widths are small; what is not one is written as it is.
        let whole = self.0.fract() == 0.0 && (0.0..1e9).contains(&self.0);
        if whole { serializer.serialize_u32(self.0 as u32) } else { serializer.serialize_f64(self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_stay_whole() {
        for text in ["1", "1.6", "2", "32"] {
            let bits: BitCount = serde_json::from_str(text).unwrap();
            assert_eq!((serde_json::to_string(&bits).unwrap(), bits.to_string()), (text.to_owned(), text.to_owned()));
        }
        assert!(BitCount::from(1) < BitCount::from(1.6) && BitCount::from(1.6) < BitCount::from(2_u8));
    }
}
