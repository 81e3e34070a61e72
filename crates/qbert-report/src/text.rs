//! Formats numbers for people, and makes untrusted text harmless.
//!
//! A report shows sentences and labels from data files. Whatever they contain must stay text: in HTML, in SVG, in
//! Markdown. Control and bidirectional-override characters, which can hide or reorder what a reader sees, become
//! visible; right-to-left letters themselves are left as they are.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Texts are cut to this many characters.
pub(crate) const LONGEST: usize = 400;

/// A number with this many significant digits, a real minus sign and no needless zeros beyond them.
pub fn significant(value: f64, digits: usize) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    // Rounded first: 9.996 is 10.0 to three digits, not 10.00.
    let scientific = format!("{:.*e}", digits.saturating_sub(1), value.abs());
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if value < 0.0 { "−" } else { "" };
    if !(-4..7).contains(&exponent) {
        return format!("{sign}{}×10{}", trim_zeros(mantissa), superscript(exponent));
    }
    // Digits before the point are never rounded away.
    let rounded = if exponent < digits as i32 { scientific.parse().unwrap_or(value.abs()) } else { value.abs() };
    let decimals = usize::try_from(digits as i32 - 1 - exponent).unwrap_or(0);
    format!("{sign}{rounded:.decimals$}")
}

/// A number of a tick: as few digits as it needs.
pub(crate) fn tick(value: f64) -> String {
    let text = significant(value, 6);
    if text.contains('×') || !text.contains('.') {
        return text;
    }
    trim_zeros(&text).to_owned()
}

/// The numbers of an axis: tiny ones all with the same power of ten.
pub(crate) fn ticks(values: &[f64]) -> Vec<String> {
    let largest = values.iter().fold(0.0f64, |largest, value| largest.max(value.abs()));
    if largest == 0.0 || largest >= 0.001 {
        return values.iter().map(|&value| tick(value)).collect();
    }
    let exponent = largest.log10().floor() as i32;
    let power = 10f64.powi(exponent);
    let text = |value: f64| match value {
        0.0 => "0".to_owned(),
        value => format!("{}×10{}", tick(value / power), superscript(exponent)),
    };
    values.iter().map(|&value| text(value)).collect()
}

/// A number with a fixed count of decimals.
pub(crate) fn fixed(value: f64, decimals: usize) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    let text = format!("{:.decimals$}", value.abs());
    let zero = text.bytes().all(|byte| matches!(byte, b'0' | b'.'));
    if value < 0.0 && !zero { format!("−{text}") } else { text }
}

/// As [`fixed`], with a plus sign where it is above zero.
pub(crate) fn signed(value: f64, decimals: usize) -> String {
    let text = fixed(value, decimals);
    let zero = text.bytes().all(|byte| matches!(byte, b'0' | b'.'));
    if value > 0.0 && !zero { format!("+{text}") } else { text }
}

/// A whole number in groups of three digits.
pub(crate) fn count(value: usize) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes in MiB, or in KiB when small.
pub(crate) fn bytes(value: f64) -> String {
    if !value.is_finite() || value < 0.0 {
        return "–".to_owned();
    }
    let (number, unit) = if value < 1024.0 * 1024.0 { (value / 1024.0, "KiB") } else { (value / 1048576.0, "MiB") };
    let decimals = usize::from(number < 1000.0);
    format!("{number:.decimals$} {unit}")
}

fn trim_zeros(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

fn superscript(number: i32) -> String {
    let raised = |c| match c {
        '-' => '⁻',
        '1' => '¹',
        '2' => '²',
        '3' => '³',
        digit => char::from_u32(0x2070 + (digit as u32 - 0x30)).unwrap_or(digit),
    };
    number.to_string().chars().map(raised).collect()
}

/// A text that begins with a capital letter and ends with a full stop.
pub(crate) fn sentence(text: &str) -> String {
    let text = text.trim();
    let mut letters = text.chars();
    let start: String = letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default();
    if start.is_empty() || start.ends_with(['.', '!', '?']) { start } else { start + "." }
}

/// A text cut at [`LONGEST`] characters.
pub(crate) fn cut(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Text in which nothing is hidden: white space is one blank, controls and direction overrides are named, the rest is
/// as it was.
pub(crate) fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.split_whitespace().collect::<Vec<_>>().join(" ").chars() {
        if is_hidden(character) {
            let _ = write!(out, "⟨U+{:04X}⟩", character as u32);
        } else {
            out.push(character);
        }
    }
    out
}

fn is_hidden(character: char) -> bool {
    let code = character as u32;
    let control = character.is_control();
    let direction = matches!(code, 0x061C | 0x200E | 0x200F | 0x202A..=0x202E | 0x2066..=0x2069);
    let none = code & 0xFFFE == 0xFFFE || (0xFDD0..=0xFDEF).contains(&code);
    let invisible = matches!(code, 0x00AD | 0x200B | 0x2028 | 0x2029 | 0x2060 | 0xFEFF | 0xE0000..=0xE007F);
    control || direction || none || invisible
}

/// Untrusted text for HTML and SVG: nothing hidden, nothing markup.
pub(crate) fn safe(text: &str) -> String {
    escape(&visible(text)).into_owned()
}

/// Text for HTML and SVG, in elements and in quoted attributes.
fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(['<', '>', '&', '"', '\'']) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match character {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    Cow::Owned(out)
}

/// Text for Markdown: marks of the syntax lose their meaning, HTML does too.
pub(crate) fn escape_markdown(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match character {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' | '~' | '!' | '$' => {
                out.push('\\');
                out.push(character);
            }
            '\n' | '\r' => out.push(' '),
            other => out.push(other),
        }
    }
    // Renderers turn bare addresses into links.
    out.replace("://", ":&#47;&#47;").replace("www.", "www&#46;").replace('@', "&#64;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_sensible_digits() {
        let cases = [
            (69.655, "69.7"),
            (123.4, "123"),
            (1.234, "1.23"),
            (0.001_234, "0.00123"),
            (9.996, "10.0"),
            (0.92560, "0.926"),
            (-9.96547, "−9.97"),
            (1234.6, "1235"),
            (0.000123456, "0.000123"),
            (2.1e-7, "2.1×10⁻⁷"),
            (1.5e12, "1.5×10¹²"),
            (0.0, "0"),
            (-0.0, "0"),
            (f64::NAN, "–"),
            (f64::INFINITY, "–"),
        ];
        for (value, text) in cases {
            assert_eq!(significant(value, 3), text);
        }
        assert_eq!([tick(0.25), tick(100.0), tick(-2.0), tick(8e-5)], ["0.25", "100", "−2", "8×10⁻⁵"]);
        assert_eq!(ticks(&[0.0, 5e-5, 1e-4]), ["0", "0.5×10⁻⁴", "1×10⁻⁴"]);
        assert_eq!(ticks(&[0.0, 0.5]), ["0", "0.5"]);
        assert_eq!(
            [signed(0.004, 2), signed(-0.2, 1), signed(1.25, 1), fixed(-0.001, 2)],
            ["0.00", "−0.2", "+1.2", "0.00"]
        );
        assert_eq!([count(7), count(1000), count(67349), count(1234567)], ["7", "1,000", "67,349", "1,234,567"]);
        assert_eq!([bytes(90_867_952.0), bytes(2048.0), bytes(f64::NAN)], ["86.7 MiB", "2.0 KiB", "–"]);
    }

    #[test]
    fn what_hides_is_shown_and_what_reads_from_the_right_is_kept() {
        assert_eq!(visible("a\u{202E}b\u{0}c\td\n"), "a⟨U+202E⟩b⟨U+0000⟩c d");
        assert_eq!(visible("שלום עולם"), "שלום עולם");
        assert_eq!(visible("👩‍👩‍👧 é\u{301}"), "👩‍👩‍👧 é\u{301}");
        assert_eq!(visible("\u{FEFF}x\u{FFFF}"), "⟨U+FEFF⟩x⟨U+FFFF⟩");
        assert_eq!(cut(&"é".repeat(1000)).chars().count(), LONGEST + 1);
    }

    #[test]
    fn markup_stays_text() {
        assert_eq!(escape("<script>\"&'"), "&lt;script&gt;&quot;&amp;&#39;");
        assert_eq!(escape_markdown("|<b>*x*\n[a](http://x)"), "\\|&lt;b&gt;\\*x\\* \\[a\\](http:&#47;&#47;x)");
    }
}
