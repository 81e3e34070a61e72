//! What the paper does not have: optimal ranges, compensated rounding and distillation.

use std::fmt::Write as _;

use super::collect::{Collected, Variant, name_of};
use super::compare::{Difference, Verdict, difference};
use super::markdown::MarkdownTable;
use super::{shown, task_title};
use crate::paper::Printed;
use crate::rows::{Ranges, method_name};
use qbert_pipeline::Result;

/// What optimal ranges, compensated rounding and distillation change, method by method.
pub(super) fn beyond(all: &[Collected]) -> Result<String> {
    let effects = effects(all);
    let mut text =
        "The change that each one makes, in points, with its standard error as above. It *helps* or *hurts* if the \
                    difference counts.\n\n"
            .to_owned();
    let mut header = vec!["task".to_owned(), "row".to_owned()];
    header.extend(effects.iter().map(|(what, ..)| what.clone()));
    let mut table = MarkdownTable::new(header);
    for collected in all {
        let mut names: Vec<&str> = collected.rows.iter().map(name_of).collect();
        let order = printed_order()?;
        names.sort_by_key(|name| order.iter().position(|known| known == name).unwrap_or(order.len()));
        names.dedup();
        for name in names {
            let term = |sign, variant| (sign, name.to_owned(), variant);
            let between = |with, without| difference(collected, &[term(1.0, with), term(-1.0, without)]);
            let found: Vec<Difference> = effects.iter().map(|&(_, with, without)| between(with, without)).collect();
            if found.iter().any(|difference| *difference != Difference::NotRun) {
                let cells = found.iter().map(|difference| difference.with(Verdict::effect));
                table.row([task_title(collected.task).to_owned(), format!("`{name}`")].into_iter().chain(cells));
            }
        }
    }
    let _ = write!(text, "{table}");
    Ok(text)
}

/// The pairs to compare: optimal with min/max ranges, compensated rounding and distillation with none. Pairs that the
/// paper could have had are shown even if they were not run.
fn effects(all: &[Collected]) -> Vec<(String, Variant, Variant)> {
    let mut effects = Vec::new();
    for with in shown(all) {
        if with.ranges == Ranges::Optimal && with.is_plain() {
            let end = if with.trained { "trained" } else { "not trained" };
            effects.push((format!("optimal ranges, {end}"), with, Variant { ranges: Ranges::MinMax, ..with }));
        }
        if with.compensate && !with.distill {
            let without = Variant { compensate: false, ..with };
            effects.push((format!("compensation, {}", without.text()), with, without));
        }
        if with.distill {
            let without = Variant { distill: false, ..with };
            effects.push((format!("distillation, {}", without.text()), with, without));
        }
    }
    effects
}

/// The names of all rows of the paper's tables, in its order.
pub(super) fn printed_order() -> Result<Vec<String>> {
    let mut order = Vec::new();
    for printed in Printed::ALL {
        order.extend(printed.rows()?.iter().map(|row| method_name(&row.method, None)));
    }
    Ok(order)
}
