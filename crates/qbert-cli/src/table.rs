//! Small aligned tables for the terminal.

use super::one_line;

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

    /// A table with titles whose number is not known beforehand.
    pub fn with_titles(titles: impl IntoIterator<Item = String>) -> Self {
        Self { rows: vec![titles.into_iter().collect()] }
    }

    /// Adds a row with as many cells as there are titles; missing ones are empty.
    pub fn push(&mut self, cells: impl IntoIterator<Item = String>) {
        let columns = self.rows.first().map_or(0, Vec::len);
        let mut row: Vec<String> = cells.into_iter().map(|cell| one_line(&cell)).collect();
        row.resize(columns, String::new());
        self.rows.push(row);
    }

    /// Adds a row.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.iter().map(|cell| one_line(cell)).collect());
    }
}

/// A size for people, in KiB for models so small that MiB would show 0.0.
pub fn size(mib: f64) -> String {
    if is_small(mib) { format!("{:.1} KiB", 1024.0 * mib) } else { format!("{mib:.1} MiB") }
}

/// How large a file is beside the same model in f32: `10.38 MB, 8.7 times smaller than 90.87 MB in f32`.
pub fn beside_f32(bytes: u64, f32_bytes: u64) -> String {
    let (now, full) = (file_size(bytes), file_size(f32_bytes));
    let ratio = f32_bytes as f64 / bytes.max(1) as f64;
    // A tiny model's header and tokenizer outweigh what its weights lose.
    let (times, comparison) = if ratio >= 1.0 { (ratio, "smaller") } else { (1.0 / ratio, "larger") };
    if format!("{times:.1}") == "1.0" {
        return format!("{now}, about as large as in f32 ({full})");
    }
    format!("{now}, {times:.1} times {comparison} than {full} in f32")
}

/// The size of a file in MB of 10^6 bytes, as file managers count; in kB for a small one.
pub fn file_size(bytes: u64) -> String {
    let bytes = bytes as f64;
    if bytes < 1e5 { format!("{:.2} kB", bytes / 1e3) } else { format!("{:.2} MB", bytes / 1e6) }
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

#[cfg(test)]
mod tests {
    use super::beside_f32;

    #[test]
    fn a_larger_file_is_not_called_smaller() {
        assert_eq!(beside_f32(10_383_632, 90_867_968), "10.38 MB, 8.8 times smaller than 90.87 MB in f32");
        assert_eq!(beside_f32(30_000, 10_000), "30.00 kB, 3.0 times larger than 10.00 kB in f32");
        assert_eq!(beside_f32(101_000, 100_000), "0.10 MB, about as large as in f32 (0.10 MB)");
    }
}
