//! The fields of one CSV record (RFC 4180), parsed line by line.
//!
//! The `csv` crate accepts an opening quote that is never closed and reads the rest of the file into one field; a
//! reader of users' files must report the line of that quote instead. The tests compare this parser with the `csv`
//! crate's writer. Not for tsv, which has no quoting.

/// What is wrong with the quotes of a record.
pub(crate) type QuotingFault = (usize, &'static str);

/// Takes lines until a record is complete.
#[derive(Debug, Default)]
pub(crate) struct RecordParser {
    fields: Vec<String>,
    field: String,
    /// The line of the quote that is still open.
    open_quote: Option<usize>,
}

impl RecordParser {
    /// Where the quoted field began that continues on the next line, if one does.
    pub(crate) fn open_quote(&self) -> Option<usize> {
        self.open_quote
    }

    /// Takes the next line; returns the fields once the record is complete.
    pub(crate) fn push_line(&mut self, number: usize, line: &str) -> Result<Option<Vec<String>>, QuotingFault> {
        let mut rest = line;
        if self.open_quote.is_some() {
            self.field.push('\n');
        }
        loop {
            if self.open_quote.is_some() || rest.starts_with('"') {
                if self.open_quote.is_none() {
                    self.open_quote = Some(number);
                    rest = &rest[1..];
                }
                let Some(after) = self.take_quoted(rest) else { return Ok(None) };
                if !after.is_empty() && !after.starts_with(',') {
                    return Err((number, "text follows the closing quote of a field"));
                }
                self.open_quote = None;
                rest = after;
            } else {
                let end = rest.find(',').unwrap_or(rest.len());
                self.field.push_str(&rest[..end]);
                rest = &rest[end..];
            }
            self.fields.push(std::mem::take(&mut self.field));
            match rest.strip_prefix(',') {
                Some(after) => rest = after,
                None => return Ok(Some(std::mem::take(&mut self.fields))),
            }
        }
    }

    /// Takes a quoted field up to its closing quote and returns what follows, or `None` if the field continues.
    fn take_quoted<'a>(&mut self, mut rest: &'a str) -> Option<&'a str> {
        while let Some(at) = rest.find('"') {
            self.field.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            match rest.strip_prefix('"') {
                Some(after) => {
                    self.field.push('"');
                    rest = after;
                }
                None => return Some(rest),
            }
        }
        self.field.push_str(rest);
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Vec<Vec<String>>, QuotingFault> {
        let mut parser = RecordParser::default();
        let mut records = Vec::new();
        for (index, line) in text.split_terminator('\n').enumerate() {
            records.extend(parser.push_line(index + 1, line)?);
        }
        match parser.open_quote() {
            Some(line) => Err((line, "open")),
            None => Ok(records),
        }
    }

    #[test]
    fn quotes_by_the_book() {
        assert_eq!(parse("a,b\n").unwrap(), [["a", "b"]]);
        assert_eq!(parse("\"a,\"\"x\"\"\",\n").unwrap(), [["a,\"x\"", ""]]);
        assert_eq!(parse("\"two\nlines\",b\n").unwrap(), [["two\nlines", "b"]]);
        assert_eq!(parse("mid\"quote,b\n").unwrap(), [["mid\"quote", "b"]]);
        assert_eq!(parse("\"\"\n").unwrap(), [[""]]);
    }

    #[test]
    fn faults_carry_the_line_of_the_quote() {
        assert_eq!(parse("a,b\nc,\"d\ne\nf\n").unwrap_err().0, 2);
        assert_eq!(parse("a,b\n\"c\"d,e\n").unwrap_err(), (2, "text follows the closing quote of a field"));
    }

    proptest! {
        #[test]
        fn reads_what_the_csv_crate_writes(
            rows in prop::collection::vec(prop::collection::vec("[a-c\",\n é]{0,6}", 3), 1..6)
        ) {
            let mut writer = csv::Writer::from_writer(Vec::new());
            for row in &rows {
                writer.write_record(row).unwrap();
            }
            let text = String::from_utf8(writer.into_inner().unwrap()).unwrap();
            prop_assert_eq!(parse(&text).unwrap(), rows);
        }
    }
}
