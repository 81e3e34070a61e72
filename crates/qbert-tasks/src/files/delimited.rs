//! Rows of a tsv or csv file with a header line.
//!
//! GLUE's tsv files have no quoting: a `"` means nothing there, which generic CSV readers get wrong on MNLI. So
//! the two layouts share only the header and the column count.

use std::path::Path;

use super::Format;
use super::csv_fields::RecordParser;
use super::lines::{LONGEST_LINE, Lines};
use crate::{Error, Result};

const TSV_LAYOUT: &str = "tabs separate columns and there is no quoting, so a text must not contain a tab";
const CSV_LAYOUT: &str = "commas separate columns, and a text with a comma stands in quotes";

/// A table, read row by row.
pub(crate) struct Table {
    lines: Lines,
    quoting: bool,
    parser: RecordParser,
    header: Vec<String>,
}

/// One row: where it begins, and its fields.
pub(crate) struct Row {
    pub(crate) line: usize,
    pub(crate) fields: Vec<String>,
}

impl Table {
    /// Opens the file and reads the header.
    pub(crate) fn open(path: &Path, format: Format) -> Result<Self> {
        let mut table = Self {
            lines: Lines::open(path)?,
            quoting: format == Format::Csv,
            parser: RecordParser::default(),
            header: Vec::new(),
        };
        let Some(row) = table.next_record()? else { return Err(Error::Empty { path: path.to_owned() }) };
        table.header = row.fields.iter().map(|name| name.trim().to_owned()).collect();
        for (index, name) in table.header.iter().enumerate() {
            if !name.is_empty() && table.header[..index].contains(name) {
                return Err(Error::DuplicateColumn { path: path.to_owned(), name: name.clone() });
            }
        }
        Ok(table)
    }

    pub(crate) fn header(&self) -> &[String] {
        &self.header
    }

    /// The next row, with as many fields as the header; empty lines are skipped.
    pub(crate) fn next_row(&mut self) -> Result<Option<Row>> {
        let Some(row) = self.next_record()? else { return Ok(None) };
        if row.fields.len() != self.header.len() {
            let path = self.lines.path().to_owned();
            return Err(Error::ColumnCount {
                path,
                line: row.line,
                expected: self.header.len(),
                found: row.fields.len(),
                layout: if self.quoting { CSV_LAYOUT } else { TSV_LAYOUT },
            });
        }
        Ok(Some(row))
    }

    fn next_record(&mut self) -> Result<Option<Row>> {
        let (mut first_line, mut length) = (None, 0);
        loop {
            let path = self.lines.path().to_owned();
            let Some((number, line)) = self.lines.next_line()? else {
                return match self.parser.open_quote() {
                    Some(line) => Err(Error::Quoting { path, line, problem: "a quote opens here and never closes" }),
                    None => Ok(None),
                };
            };
            if line.is_empty() && first_line.is_none() {
                continue;
            }
            let begin = *first_line.get_or_insert(number);
            // A quote that is never closed makes one record of the rest of the file.
            length += line.len() + 1;
            if length > LONGEST_LINE {
                return Err(Error::TooLong { path, line: Some(begin), limit: LONGEST_LINE });
            }
            if !self.quoting {
                return Ok(Some(Row { line: begin, fields: line.split('\t').map(str::to_owned).collect() }));
            }
            let pushed = self.parser.push_line(number, line);
            if let Some(fields) = pushed.map_err(|(line, problem)| Error::Quoting { path, line, problem })? {
                return Ok(Some(Row { line: begin, fields }));
            }
        }
    }
}
