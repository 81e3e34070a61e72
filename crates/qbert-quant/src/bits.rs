//! How many bits a weight or an activation has: 1 to 8 for codes, 32 for "left in f32".
//!
//! A width is checked once, when it is made; everything after that may rely on it. Use [`BitWidth`] where
//! there are codes and [`Precision`] where a plan may also leave a tensor alone.

use crate::error::Error;
use serde::{Serialize, Serializer};
use std::fmt;

/// The number of bits `k` of a code, 1 to 8. Codes are the whole numbers `0..2^k` (paper, App. A).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BitWidth(u8);

impl BitWidth {
    /// One bit: two values.
    pub const ONE: Self = Self(1);
    /// Eight bits, the widest code: 256 values.
    pub const EIGHT: Self = Self(8);

    /// Checks that `bits` is 1 to 8.
    ///
    /// # Errors
    /// [`Error::BitWidth`] for every other number.
    pub fn new(bits: u8) -> Result<Self, Error> {
        if (1..=8).contains(&bits) { Ok(Self(bits)) } else { Err(Error::BitWidth { found: i64::from(bits) }) }
    }

    /// All eight widths, narrowest first.
    pub fn all() -> impl Iterator<Item = Self> {
        (1..=8).map(Self)
    }

    /// The width as a number, 1 to 8.
    pub fn get(self) -> u8 {
        self.0
    }

    /// The number of different codes, `2^k`: 2 to 256.
    pub fn levels(self) -> u16 {
        1 << self.0
    }

    /// The largest code, `2^k - 1`: 1 to 255.
    pub fn max_code(self) -> u8 {
        u8::MAX >> (8 - self.0)
    }
}

impl fmt::Display for BitWidth {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
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
        serializer.serialize_u8(self.0)
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
    /// Reads the number that plans and the paper's tables use: 1 to 8, or 32 for f32.
    ///
    /// # Errors
    /// [`Error::BitWidth`] for every other number.
    pub fn from_number(bits: i64) -> Result<Self, Error> {
        match bits {
            32 => Ok(Self::Full),
            1..=8 => Ok(Self::Bits(BitWidth(bits as u8))),
            found => Err(Error::BitWidth { found }),
        }
    }

    /// The number of bits of one value: 1 to 8, or 32.
    pub fn number(self) -> u8 {
        match self {
            Self::Bits(width) => width.get(),
            Self::Full => 32,
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

impl Serialize for Precision {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(self.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_know_their_codes() {
        let codes: Vec<(u8, u16, u8)> =
            BitWidth::all().map(|width| (width.get(), width.levels(), width.max_code())).collect();
        let expected =
            [(1, 2, 1), (2, 4, 3), (3, 8, 7), (4, 16, 15), (5, 32, 31), (6, 64, 63), (7, 128, 127), (8, 256, 255)];
        assert_eq!(codes, expected);
    }

    #[test]
    fn only_one_to_eight_and_thirty_two_are_precisions() {
        for bits in -2..=40 {
            let read = Precision::from_number(bits);
            if (1..=8).contains(&bits) || bits == 32 {
                assert_eq!(i64::from(read.unwrap().number()), bits);
            } else {
                assert!(matches!(read, Err(Error::BitWidth { found }) if found == bits));
            }
        }
        for bits in [0, 9, 31, 32, 255] {
            assert!(BitWidth::new(bits).is_err());
        }
        assert!(Precision::Full > Precision::Bits(BitWidth::EIGHT));
    }
}
