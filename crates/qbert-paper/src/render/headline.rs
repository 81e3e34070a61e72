//! The paper's headline on our models: 2/3 bits, an encoder 13 times smaller, at most 2.3 points lost.

use qbert_train::qat::method::Method;

use super::collect::{Collected, StandardError, name_of};
use super::markdown::MarkdownTable;
use super::{shown, task_title};
use crate::result::RowResult;
use crate::rows::{HEADLINE_COMPRESSION, HEADLINE_DROP, HEADLINE_METHOD, method_name};
use qbert_pipeline::Result;

/// Whether 2/3 bits at the headline's compression lose no more than the headline says.
pub(super) fn headline(all: &[Collected]) -> Result<String> {
    let method: Method = HEADLINE_METHOD.parse()?;
    let plain = method_name(&method, None);
    let mut header = ["task", "row", "encoder, times smaller"].map(str::to_owned).to_vec();
    let variants = shown(all);
    header.extend(variants.iter().map(|variant| format!("drop: {}", variant.text())));
    header.push("verdict".to_owned());
    let mut table = MarkdownTable::new(header);
    let (mut holds, mut known) = (Vec::new(), 0);
    for collected in all {
        let title = task_title(collected.task);
        let Some(row) = headline_row(collected, &plain) else {
            let empty = std::iter::repeat_n("not run".to_owned(), variants.len() + 3);
            table.row(std::iter::once(title.to_owned()).chain(empty));
            continue;
        };
        known += 1;
        let lost: Vec<_> = variants.iter().map(|&variant| collected.loss(name_of(row), variant)).collect();
        let good = variants.iter().zip(&lost).filter(|(_, lost)| lost.is_some_and(|(lost, _)| lost <= HEADLINE_DROP));
        let good: Vec<String> = good.map(|(variant, _)| variant.text()).collect();
        let times = format!("{:.1}", row.sizes.compression.encoder);
        let mut cells = vec![title.to_owned(), format!("`{}`", name_of(row)), times];
        let number = |(lost, error): (f64, StandardError)| format!("{lost:.2} {error}");
        cells.extend(lost.into_iter().map(|lost| lost.map_or("not run".to_owned(), number)));
        if good.is_empty() {
            cells.push("does not hold".to_owned());
        } else {
            holds.push(title);
            cells.push(format!("holds: {}", good.join("; ")));
        }
        table.row(cells);
    }
    if known == 0 {
        return Ok(format!("No row at 2/3 bits makes the encoder {HEADLINE_COMPRESSION} times smaller or more.\n"));
    }
    let which = if holds.is_empty() { String::new() } else { format!(" ({})", holds.join(", ")) };
    Ok(format!(
        "The claim: at 2/3 bits, encoder weights are at least {HEADLINE_COMPRESSION} times smaller than f32, and at most \
         {HEADLINE_DROP} points are lost. It holds on {} of the {known} tasks that were run{which}.\n\n{table}\n\
         It holds for a variant whose mean drop is at most {HEADLINE_DROP}. ± is the standard error of the drop; errors \
         marked with * are usually too large, as explained below.\n",
        holds.len()
    ))
}

/// Of the plans that are small enough, the largest: the one with the most layers at the higher width.
fn headline_row<'a>(collected: &'a Collected, plain: &str) -> Option<&'a RowResult> {
    let is_headline = |name: &str| name == plain || name.strip_prefix(plain).is_some_and(|s| s.starts_with("-high"));
    let times = |row: &&RowResult| row.sizes.compression.encoder;
    let rows = collected.rows.iter().filter(|row| is_headline(name_of(row)) && times(row) >= HEADLINE_COMPRESSION);
    rows.min_by(|a, b| times(a).total_cmp(&times(b)))
}
