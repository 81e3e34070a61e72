//! The name of the field at some place of a JSON text: the parser reports line and column, people look for a name.

enum Step {
    /// In an object, behind this key; empty while the key is still to come.
    Key(String),
    /// In a list, at this element.
    Index(usize),
}

/// The field in which a parser stopped at this line (counted from 1) and column (in bytes), such as `layers[2].mean`;
/// empty outside of all fields.
pub(crate) fn at(text: &[u8], line: usize, column: usize) -> String {
    let before: usize = text.split_inclusive(|byte| *byte == b'\n').take(line.saturating_sub(1)).map(<[u8]>::len).sum();
    let read = &text[..(before + column).min(text.len())];
    let mut path: Vec<Step> = Vec::new();
    let mut place = 0;
    while let Some(byte) = read.get(place) {
        place += 1;
        match byte {
            b'"' => {
                let end = end_of_string(read, place);
                if let Some(Step::Key(key)) =
                    path.last_mut().filter(|step| matches!(step, Step::Key(key) if key.is_empty()))
                {
                    *key = String::from_utf8_lossy(&read[place..end]).into_owned();
                }
                place = end + 1;
            }
            b'{' => path.push(Step::Key(String::new())),
            b'[' => path.push(Step::Index(0)),
            b'}' | b']' => drop(path.pop()),
            b',' => match path.last_mut() {
                Some(Step::Key(key)) => key.clear(),
                Some(Step::Index(index)) => *index += 1,
                None => {}
            },
            _ => {}
        }
    }
    named(&path)
}

/// Where the string that begins here ends: at its closing quotation mark, or with the text.
fn end_of_string(text: &[u8], start: usize) -> usize {
    let mut place = start;
    while let Some(byte) = text.get(place) {
        match byte {
            b'"' => return place,
            b'\\' => place += 2,
            _ => place += 1,
        }
    }
    text.len()
}

fn named(path: &[Step]) -> String {
    let mut name = String::new();
    for step in path {
        match step {
            Step::Key(key) if key.is_empty() => {}
            Step::Key(key) if name.is_empty() => name += key,
            Step::Key(key) => name += &format!(".{key}"),
            Step::Index(index) => name += &format!("[{index}]"),
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_a_text_has_the_name_of_its_field() {
        let text =
            "{\"a\": 1,\n \"layers\": [{\"mean\": 1},\n  {\"mean\": \"x, \\\"{\", \"std\": [0, 5]}],\n \"end\": 2}";
        let lines: Vec<&str> = text.lines().collect();
        let after =
            |line: usize, part: &str| at(text.as_bytes(), line, lines[line - 1].find(part).unwrap() + part.len());
        assert_eq!(after(1, "1"), "a");
        assert_eq!(after(2, "1"), "layers[0].mean");
        assert_eq!(after(3, "\\\"{\""), "layers[1].mean");
        assert_eq!(after(3, "5"), "layers[1].std[1]");
        assert_eq!(after(4, "2"), "end");
        assert_eq!(after(4, "}"), "");
        assert_eq!(at(text.as_bytes(), 0, 0), "");
        assert_eq!(at(b"", 9, 9), "");
        assert_eq!(at(b"{\"cut", 1, 5), "cut");
    }
}
