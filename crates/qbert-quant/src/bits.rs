//! How many bits a weight or an activation has: 1 to 8 for codes, 1.6 for ternary codes, 32 for "left in f32".
//!
//! A width is checked once, when it is made; everything after that may rely on it. Use [`BitWidth`] where
//! there are codes and [`Precision`] where a plan may also leave a tensor alone.

use crate::error::Error;
use crate::shorten::shorten;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// How many values a code can have: `2^k` for a width of `k` bits, 1 to 8 (paper, App. A), or three.
///
/// Three-valued codes are stored five to a byte, so they count as 1.6 bits. Widths are ordered by their number of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BitWidth {
    max_code: u8,
}

impl BitWidth {
    /// One bit: two values.
    pub const ONE: Self = Self { max_code: 1 };
    /// Three values, five to a byte.
    pub const TERNARY: Self = Self { max_code: 2 };
    /// Two bits: four values.
    pub const TWO: Self = Self { max_code: 3 };
    /// Three bits: eight values.
    pub const THREE: Self = Self { max_code: 7 };
    /// Four bits: sixteen values.
    pub const FOUR: Self = Self { max_code: 15 };
    /// Eight bits, the widest code: 256 values.
    pub const EIGHT: Self = Self { max_code: 255 };

    /// Checks that `bits` is 1 to 8.
    ///
    /// # Errors
    /// [`Error::BitWidth`] for every other number.
    pub fn new(bits: u8) -> Result<Self, Error> {
        match bits {
            1..=8 => Ok(Self { max_code: u8::MAX >> (8 - bits) }),
            _ => Err(Error::BitWidth { found: bits.to_string() }),
        }
    }

    /// The widths of 1 to 8 bits and the ternary one, narrowest first.
    pub fn all() -> impl Iterator<Item = Self> {
        [1, 2, 3, 7, 15, 31, 63, 127, 255].into_iter().map(|max_code| Self { max_code })
    }

    /// The bits of one code where it is stored: 1 to 8, and 1.6 for ternary codes.
    pub fn number(self) -> f64 {
        if self == Self::TERNARY { TERNARY_BITS } else { f64::from(self.whole_bits()) }
    }

    /// How many whole bits hold a code: 1 to 8, and 2 for ternary codes.
    pub fn whole_bits(self) -> u8 {
        (8 - self.max_code.leading_zeros()) as u8
    }

    /// The number of different codes: 2 to 256.
    pub fn levels(self) -> u16 {
        u16::from(self.max_code) + 1
    }

    /// The largest code: 1 to 255.
    pub fn max_code(self) -> u8 {
        self.max_code
    }
}

/// Five codes of three values take a byte.
const TERNARY_BITS: f64 = 1.6;

impl fmt::Display for BitWidth {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number().fmt(formatter)
    }
}

impl TryFrom<u8> for BitWidth {
    type Error = Error;

    fn try_from(bits: u8) -> Result<Self, Error> {
        Self::new(bits)
    }
}

impl Serialize for BitWidth {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Precision::Bits(*self).serialize(serializer)
    }
}

/// How precise a tensor is kept: as codes of some width, or as it is.
///
/// Ordered by the number of bits, so that `Full` is the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Precision {
    /// Codes of this width.
    Bits(BitWidth),
    /// Not quantized: f32. Plans and the paper's tables write 32.
    Full,
}

impl Precision {
    /// Reads the number that plans and the paper's tables use: 1 to 8, 1.6 for ternary codes, or 32 for f32.
    ///
    /// # Errors
    /// [`Error::BitWidth`] for every other number.
    pub fn from_number(bits: impl Into<f64>) -> Result<Self, Error> {
        let bits = bits.into();
        let widths = BitWidth::all().map(Self::Bits).chain([Self::Full]);
        let found = widths.into_iter().find(|precision| precision.number() == bits);
        found.ok_or_else(|| Error::BitWidth { found: bits.to_string() })
    }

    /// The number of bits of one value: 1 to 8, 1.6 or 32.
    pub fn number(self) -> f64 {
        match self {
            Self::Bits(width) => width.number(),
            Self::Full => 32.0,
        }
    }

    /// The width of the codes, or `None` when there are none.
    pub fn width(self) -> Option<BitWidth> {
        match self {
            Self::Bits(width) => Some(width),
            Self::Full => None,
        }
    }
}

impl From<BitWidth> for Precision {
    fn from(width: BitWidth) -> Self {
        Self::Bits(width)
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number().fmt(formatter)
    }
}

/// `2`, `1.6` or `32`.
impl FromStr for Precision {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let number = text.trim().parse::<f64>().ok();
        let found = || Error::BitWidth { found: shorten(text).into_owned() };
        number.and_then(|number| Self::from_number(number).ok()).ok_or_else(found)
    }
}

/// A whole number where it is one.
impl Serialize for Precision {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Bits(BitWidth::TERNARY) => serializer.serialize_f64(TERNARY_BITS),
            Self::Bits(width) => serializer.serialize_u8(width.whole_bits()),
            Self::Full => serializer.serialize_u8(32),
        }
    }
}

impl<'de> Deserialize<'de> for Precision {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_number(f64::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_know_their_codes() {
        let codes: Vec<(f64, u8, u16, u8)> = BitWidth::all()
            .map(|width| (width.number(), width.whole_bits(), width.levels(), width.max_code()))
            .collect();
        let expected = [
            (1.0, 1, 2, 1),
            (1.6, 2, 3, 2),
            (2.0, 2, 4, 3),
            (3.0, 3, 8, 7),
            (4.0, 4, 16, 15),
            (5.0, 5, 32, 31),
            (6.0, 6, 64, 63),
            (7.0, 7, 128, 127),
            (8.0, 8, 256, 255),
        ];
        assert_eq!(codes, expected);
        assert!(BitWidth::ONE < BitWidth::TERNARY && BitWidth::TERNARY < BitWidth::new(2).unwrap());
    }

    #[test]
    fn only_one_to_eight_ternary_and_thirty_two_are_precisions() {
        for tenths in -20..=400 {
            let bits = f64::from(tenths) / 10.0;
            let read = Precision::from_number(bits);
            if (tenths % 10 == 0 && (10..=80).contains(&tenths)) || tenths == 16 || tenths == 320 {
                let read = read.unwrap();
                assert_eq!((read.number(), bits.to_string().parse::<Precision>().unwrap()), (bits, read));
            } else {
                assert!(matches!(read, Err(Error::BitWidth { found }) if found == bits.to_string()));
            }
        }
        for bits in [0, 9, 31, 32, 255] {
            assert!(BitWidth::new(bits).is_err());
        }
        for text in ["", "two", "nan", "inf", "1.58"] {
            assert!(text.parse::<Precision>().is_err(), "{text:?}");
        }
        assert!(Precision::Full > Precision::Bits(BitWidth::EIGHT));
    }

    #[test]
    fn whole_numbers_stay_whole_in_json() {
        for (precision, text) in [("2", "2"), ("1.6", "1.6"), ("32", "32")] {
            let precision: Precision = precision.parse().unwrap();
            assert_eq!(serde_json::to_string(&precision).unwrap(), text);
            assert_eq!(serde_json::from_str::<Precision>(text).unwrap(), precision);
        }
        assert!(serde_json::from_str::<Precision>("9").is_err());
    }
}
