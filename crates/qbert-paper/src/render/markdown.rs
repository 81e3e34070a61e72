//! Tables in Markdown.

use std::fmt;

/// A table; every row has as many cells as the header.
#[derive(Debug)]
pub(super) struct MarkdownTable {
    rows: Vec<Vec<String>>,
}

impl MarkdownTable {
    pub(super) fn new<S: Into<String>>(header: impl IntoIterator<Item = S>) -> Self {
        Self { rows: vec![header.into_iter().map(Into::into).collect()] }
    }

    pub(super) fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }
}

impl fmt::Display for MarkdownTable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, row) in self.rows.iter().enumerate() {
            writeln!(formatter, "| {} |", row.join(" | "))?;
            if index == 0 {
                writeln!(formatter, "|{}", "---|".repeat(row.len()))?;
            }
        }
        Ok(())
    }
}
