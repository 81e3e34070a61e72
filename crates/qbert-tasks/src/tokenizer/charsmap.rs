//! The character map of a `Precompiled` normalizer (`SentencePiece`), checked before the `spm_precompiled` crate uses it.
//!
//! A map is base64 of: the trie's length in bytes (u32, little-endian), the trie (a Darts double array of u32 units), and
//! the replacement strings, each ended by a NUL. That crate indexes the trie and slices the strings without any check, so
//! every place it can reach from here must be inside.

/// The longest replacement of one entry, in bytes. Unicode's longest (NFKC of U+FDFA) has 33.
const LONGEST_REPLACEMENT: usize = 256;

/// Checks a map, and returns the most bytes that it makes of one byte of text.
pub(super) fn check(base64: &str) -> Result<usize, String> {
    let bytes = decode_base64(base64).ok_or("its character map is not valid base64")?;
    let (length, rest) = bytes.split_first_chunk::<4>().ok_or("its character map is shorter than its header")?;
    let length = u32::from_le_bytes(*length) as usize;
    if length == 0 || !length.is_multiple_of(4) || length > rest.len() {
        return Err(format!("its character map has a trie of {length} bytes in {} bytes", rest.len()));
    }
    let (trie, replacements) = rest.split_at(length);
    let replacements =
        std::str::from_utf8(replacements).map_err(|_| "the replacements of its character map are not valid UTF-8")?;
    let units: Vec<u32> = trie.as_chunks().0.iter().map(|&unit| u32::from_le_bytes(unit)).collect();
    Trie { units, replacements }.growth()
}

struct Trie<'a> {
    units: Vec<u32>,
    replacements: &'a str,
}

impl Trie<'_> {
    /// Visits every node that some text reaches.
    fn growth(&self) -> Result<usize, String> {
        const OUTSIDE: &str = "its character map points outside itself";
        let root = offset(*self.units.first().ok_or(OUTSIDE)?);
        let mut seen = vec![false; self.units.len()];
        let mut waiting = vec![(root, 1)];
        let mut growth = 1;
        while let Some((node, depth)) = waiting.pop() {
            for byte in 1..=255u8 {
                let child = node ^ usize::from(byte);
                let unit = *self.units.get(child).ok_or(OUTSIDE)?;
                // The label has the top bit too: a unit that holds a value is nobody's child.
                if unit & 0x8000_00FF != u32::from(byte) {
                    continue;
                }
                let next = child ^ offset(unit);
                if (unit >> 8) & 1 == 1 {
                    let value = *self.units.get(next).ok_or(OUTSIDE)? & 0x7FFF_FFFF;
                    growth = growth.max(self.replacement(value as usize)?.len().div_ceil(depth));
                }
                let is_known = seen.get_mut(child).is_none_or(|seen| std::mem::replace(seen, true));
                if !is_known {
                    waiting.push((next, depth + 1));
                }
            }
        }
        Ok(growth)
    }

    fn replacement(&self, start: usize) -> Result<&str, String> {
        let text = self.replacements.get(start..).ok_or("its character map points outside its replacements")?;
        let text = text.split('\0').next().unwrap_or_default();
        if text.len() > LONGEST_REPLACEMENT {
            let length = text.len();
            return Err(format!(
                "its character map has a replacement of {length} bytes; {LONGEST_REPLACEMENT} are allowed"
            ));
        }
        Ok(text)
    }
}

/// Where a unit's children are, relative to itself.
fn offset(unit: u32) -> usize {
    ((unit >> 10) as usize) << ((unit & (1 << 9)) >> 6)
}

/// Standard base64 with padding, as the `base64` crate's `decode` takes it.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| {
        Some(match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        })
    };
    let (groups, []) = text.as_bytes().as_chunks::<4>() else { return None };
    let mut bytes = Vec::with_capacity(groups.len() * 3);
    for (index, group) in groups.iter().enumerate() {
        let is_last = index + 1 == groups.len();
        let padding = group.iter().rev().take_while(|&&byte| byte == b'=').count();
        if padding > 2 || (padding > 0 && !is_last) {
            return None;
        }
        let mut bits = 0;
        for &byte in &group[..4 - padding] {
            bits = bits << 6 | u32::from(digit(byte)?);
        }
        bits <<= 6 * padding;
        // Bits that the padding leaves over must be 0.
        if bits & ((1 << (8 * padding)) - 1) != 0 {
            return None;
        }
        bytes.extend_from_slice(&bits.to_be_bytes()[1..4 - padding]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A map with the entry `a` → `xyz`.
    fn small() -> Vec<u8> {
        // The root is unit 0 with its children at 256 ^ byte; `a` is there, and its value at the unit 512.
        let mut units = vec![0u32; 768];
        units[0] = 256 << 10;
        let child = 256 ^ usize::from(b'a');
        units[child] = u32::from(b'a') | 1 << 8 | ((child ^ 512) as u32) << 10;
        units[512] = 1 << 31;
        let mut bytes = (768u32 * 4).to_le_bytes().to_vec();
        bytes.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
        bytes.extend_from_slice(b"xyz\0");
        bytes
    }

    fn encode_base64(bytes: &[u8]) -> String {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let group = |chunk: &[u8]| {
            let bits = chunk.iter().fold(0, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - chunk.len()));
            let digits = (0..4).map(move |at| DIGITS[(bits >> (18 - 6 * at)) as usize & 63] as char);
            digits.take(chunk.len() + 1).chain(std::iter::repeat_n('=', 3 - chunk.len())).collect::<String>()
        };
        bytes.chunks(3).map(group).collect()
    }

    #[test]
    fn base64_is_read_as_it_is_written() {
        for bytes in [&b""[..], b"a", b"ab", b"abc", b"abcd\xff\0"] {
            assert_eq!(decode_base64(&encode_base64(bytes)).as_deref(), Some(bytes));
        }
        for wrong in ["a", "ab", "abc", "a===", "ab=c", "a b=", "YQ==YQ==", "YR=="] {
            assert_eq!(decode_base64(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_good_map_is_accepted_with_its_growth() {
        assert_eq!(check(&encode_base64(&small())), Ok(3));
    }

    #[test]
    fn a_map_that_leads_outside_is_refused() {
        let whole = small();
        for cut in [0, 3, 4, 100, whole.len() - 900, whole.len() - 4] {
            let mut bytes = whole[..cut].to_vec();
            if cut > 4 {
                let trie = (cut as u32 - 4) / 4 * 4;
                bytes[..4].copy_from_slice(&trie.to_le_bytes());
            }
            let error = check(&encode_base64(&bytes));
            // Without its replacements the entry `a` stands for nothing, which is allowed.
            assert_eq!(error.is_ok(), cut == whole.len() - 4, "{cut}: {error:?}");
        }
        let mut far = small();
        far[4 + 512 * 4] = 200;
        assert!(check(&encode_base64(&far)).is_err_and(|error| error.contains("outside its replacements")));
        let mut long = small();
        long.truncate(long.len() - 4);
        long.extend(std::iter::repeat_n(b'x', 300));
        assert!(check(&encode_base64(&long)).is_err_and(|error| error.contains("300 bytes")));
    }
}
