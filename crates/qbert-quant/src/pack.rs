//! Dense bit packing of codes, the same for every width from 1 to 8.
//!
//! # The format
//!
//! The bytes are a stream of bits, the lowest bit of the first byte first. Code `i` of width `k` takes the
//! bits `i·k` to `(i+1)·k - 1` of the stream, its lowest bit first. There are no gaps, so a code may
//! begin in one byte and end in the next. `n` codes take `⌈n·k / 8⌉` bytes; unused high bits of the last
//! byte are 0, and unpacking refuses anything else, so that equal codes always have equal bytes.
//!
//! Four codes of three bits, 5, 2, 7 and 1:
//!
//! ```text
//! stream, first bit left   1 0 1  0 1 0  1 1 1  1 0 0  0 0 0 0
//! as bytes, high bit left  1 1 0 1 0 1 0 1   0 0 0 0 0 0 1 1
//!                          0xd5              0x03
//! ```
//!
//! ```
//! use qbert_quant::{BitWidth, pack};
//!
//! let bits = BitWidth::new(3)?;
//! let bytes = pack::pack(&[5, 2, 7, 1], bits)?;
//! assert_eq!(bytes, [0xd5, 0x03]);
//! assert_eq!(pack::unpack(&bytes, 4, bits)?, [5, 2, 7, 1]);
//! # Ok::<(), qbert_quant::Error>(())
//! ```
//!
//! Eight codes of any width fill exactly `k` bytes. The code below moves such blocks through one 64-bit
//! word; the result does not depend on it.

use crate::bits::BitWidth;
use crate::error::Error;
use crate::range::check_length;

/// Codes that together end on a byte border at every width.
const BLOCK: usize = 8;

/// The number of bytes that `count` codes take: `⌈count·k / 8⌉`.
///
/// # Errors
/// [`Error::Length`] when so many bytes cannot be addressed.
pub fn packed_len(count: usize, bits: BitWidth) -> Result<usize, Error> {
    let width = usize::from(bits.get());
    // count = 8·blocks + rest, and a block is `width` bytes: no product larger than the result.
    (count / BLOCK)
        .checked_mul(width)
        .and_then(|bytes| bytes.checked_add((count % BLOCK * width).div_ceil(8)))
        .ok_or(Error::Length { what: "codes to pack", expected: usize::MAX / width, found: count })
}

/// Packs codes into new bytes.
///
/// # Errors
/// [`Error::Code`] for a code that needs more than `bits` bits.
pub fn pack(codes: &[u8], bits: BitWidth) -> Result<Vec<u8>, Error> {
    let mut packed = vec![0; packed_len(codes.len(), bits)?];
    pack_into(codes, bits, &mut packed)?;
    Ok(packed)
}

/// Packs codes into `packed`, which must be [`packed_len`] bytes long; every byte is written.
///
/// # Errors
/// [`Error::Length`] when `packed` is not of that length; [`Error::Code`] for a code that needs more than
/// `bits` bits, and then `packed` is untouched.
pub fn pack_into(codes: &[u8], bits: BitWidth, packed: &mut [u8]) -> Result<(), Error> {
    check_length("packed codes", packed_len(codes.len(), bits)?, packed.len())?;
    check_codes(codes, bits)?;
    match bits.get() {
        1 => pack_blocks::<1>(codes, packed),
        2 => pack_blocks::<2>(codes, packed),
        3 => pack_blocks::<3>(codes, packed),
        4 => pack_blocks::<4>(codes, packed),
        5 => pack_blocks::<5>(codes, packed),
        6 => pack_blocks::<6>(codes, packed),
        7 => pack_blocks::<7>(codes, packed),
        _ => packed.copy_from_slice(codes),
    }
    Ok(())
}

/// The width is a constant here so that the compiler can unroll and vectorize the shifts.
fn pack_blocks<const WIDTH: usize>(codes: &[u8], packed: &mut [u8]) {
    let pack_block = |codes: &[u8]| {
        let places = codes.iter().enumerate();
        places.fold(0_u64, |word, (place, &code)| word | u64::from(code) << (place * WIDTH)).to_le_bytes()
    };
    let (blocks, rest) = codes.as_chunks::<BLOCK>();
    let (bytes, rest_bytes) = packed.split_at_mut(blocks.len() * WIDTH);
    for (block, bytes) in blocks.iter().zip(bytes.as_chunks_mut::<WIDTH>().0) {
        bytes.copy_from_slice(&pack_block(block)[..WIDTH]);
    }
    rest_bytes.copy_from_slice(&pack_block(rest)[..rest_bytes.len()]);
}

/// Unpacks `count` codes into a new vector.
///
/// # Errors
/// As [`unpack_into`]; the length is checked before memory is taken.
pub fn unpack(packed: &[u8], count: usize, bits: BitWidth) -> Result<Vec<u8>, Error> {
    check_length("packed codes", packed_len(count, bits)?, packed.len())?;
    let mut codes = vec![0; count];
    unpack_into(packed, bits, &mut codes)?;
    Ok(codes)
}

/// Unpacks as many codes as `codes` has room for.
///
/// # Errors
/// [`Error::Length`] when `packed` is not [`packed_len`] bytes long, [`Error::Padding`] when unused bits
/// of the last byte are not 0; in both cases `codes` is untouched.
pub fn unpack_into(packed: &[u8], bits: BitWidth, codes: &mut [u8]) -> Result<(), Error> {
    check_length("packed codes", packed_len(codes.len(), bits)?, packed.len())?;
    let width = usize::from(bits.get());
    let used = codes.len() % BLOCK * width % 8;
    if let Some(&byte) = packed.last()
        && used != 0
        && byte >> used != 0
    {
        return Err(Error::Padding { byte });
    }
    match bits.get() {
        1 => unpack_blocks::<1>(packed, codes),
        2 => unpack_blocks::<2>(packed, codes),
        3 => unpack_blocks::<3>(packed, codes),
        4 => unpack_blocks::<4>(packed, codes),
        5 => unpack_blocks::<5>(packed, codes),
        6 => unpack_blocks::<6>(packed, codes),
        7 => unpack_blocks::<7>(packed, codes),
        _ => codes.copy_from_slice(packed),
    }
    Ok(())
}

/// The counterpart of [`pack_blocks`].
fn unpack_blocks<const WIDTH: usize>(packed: &[u8], codes: &mut [u8]) {
    let unpack_block = |bytes: &[u8], codes: &mut [u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        let word = u64::from_le_bytes(word);
        for (place, code) in codes.iter_mut().enumerate() {
            *code = (word >> (place * WIDTH)) as u8 & ((1 << WIDTH) - 1);
        }
    };
    let (blocks, rest) = codes.as_chunks_mut::<BLOCK>();
    let (bytes, rest_bytes) = packed.split_at(blocks.len() * WIDTH);
    for (block, bytes) in blocks.iter_mut().zip(bytes.as_chunks::<WIDTH>().0) {
        unpack_block(bytes, block);
    }
    unpack_block(rest_bytes, rest);
}

/// Refuses codes that need more than `bits` bits.
pub(crate) fn check_codes(codes: &[u8], bits: BitWidth) -> Result<(), Error> {
    let all = codes.iter().fold(0, |all, code| all | code);
    if all <= bits.max_code() {
        return Ok(());
    }
    let index = codes.iter().position(|&code| code > bits.max_code()).unwrap_or(0);
    Err(Error::Code { index, code: codes[index], bits: bits.get() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, bit by bit.
    fn pack_naively(codes: &[u8], bits: BitWidth) -> Vec<u8> {
        let width = usize::from(bits.get());
        let mut bytes = vec![0; (codes.len() * width).div_ceil(8)];
        for (index, code) in codes.iter().enumerate() {
            for bit in 0..width {
                let place = index * width + bit;
                bytes[place / 8] |= ((code >> bit) & 1) << (place % 8);
            }
        }
        bytes
    }

    #[test]
    fn nothing_packs_to_nothing() {
        for bits in BitWidth::all() {
            assert_eq!(pack(&[], bits).unwrap(), [0_u8; 0]);
            assert_eq!(unpack(&[], 0, bits).unwrap(), [0_u8; 0]);
        }
    }

    #[test]
    fn eight_bits_are_the_codes_themselves() {
        let codes: Vec<u8> = (0..=255).collect();
        assert_eq!(pack(&codes, BitWidth::EIGHT).unwrap(), codes);
    }

    #[test]
    fn bad_input_is_refused() {
        let bits = BitWidth::new(3).unwrap();
        assert!(matches!(pack(&[7, 8], bits), Err(Error::Code { index: 1, code: 8, bits: 3 })));
        assert!(matches!(pack_into(&[1], bits, &mut [0; 2]), Err(Error::Length { expected: 1, found: 2, .. })));
        assert!(matches!(unpack(&[0; 3], 4, bits), Err(Error::Length { expected: 2, found: 3, .. })));
        assert!(matches!(unpack(&[0], 4, bits), Err(Error::Length { expected: 2, found: 1, .. })));
        assert!(matches!(unpack(&[0xd5, 0x13], 4, bits), Err(Error::Padding { byte: 0x13 })));
        assert!(unpack(&[], usize::MAX, bits).is_err());
        assert!(packed_len(usize::MAX, BitWidth::EIGHT).is_ok());
    }

    proptest! {
        #[test]
        fn packing_follows_the_definition_and_comes_back(codes in prop::collection::vec(any::<u8>(), 0..200)) {
            for bits in BitWidth::all() {
                let codes: Vec<u8> = codes.iter().map(|code| code & bits.max_code()).collect();
                let packed = pack(&codes, bits).unwrap();
                prop_assert_eq!(&packed, &pack_naively(&codes, bits));
                prop_assert_eq!(packed.len(), packed_len(codes.len(), bits).unwrap());
                prop_assert_eq!(unpack(&packed, codes.len(), bits).unwrap(), codes);
            }
        }

        #[test]
        fn whatever_unpacks_packs_to_the_same_bytes(bytes in prop::collection::vec(any::<u8>(), 0..40), count in 0_usize..90) {
            for bits in BitWidth::all() {
                if let Ok(codes) = unpack(&bytes, count, bits) {
                    prop_assert_eq!(pack(&codes, bits).unwrap(), bytes.clone());
                }
            }
        }
    }
}
