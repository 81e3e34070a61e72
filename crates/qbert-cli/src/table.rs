//! Small aligned tables for the terminal.

/// Rows of text whose columns are padded to equal width: the first to the left, the others to the right.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these column titles and no rows yet.
    pub fn new<const N: usize>(header: [&str; N]) -> Self {
        Self { rows: vec![header.iter().map(|&cell| cell.to_owned()).collect()] }
    }

    /// Adds a row.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }
}

/// A size for people, in KiB for models so small that MiB would show 0.0.
pub fn size(mib: f64) -> String {
    if is_small(mib) { format!("{:.1} KiB", 1024.0 * mib) } else { format!("{mib:.1} MiB") }
}

/// Whether a size is clearer in KiB.
pub fn is_small(mib: f64) -> bool {
    mib < 0.1
}

impl std::fmt::Display for Table {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows.first().map_or(0, Vec::len);
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                if column == 0 {
                    line.push_str(&format!("  {cell:<width$}"));
                } else {
                    line.push_str(&format!("  {cell:>width$}"));
                }
            }
            writeln!(formatter, "{}", line.trim_end())?;
        }
        Ok(())
    }
}
