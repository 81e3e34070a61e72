//! How the results were made: commands, seeds, versions, hashes.

use crate::content::{Block, Cell, DataTable, Section};
use crate::data::Report;

/// The section.
pub(super) fn section(report: &Report) -> Option<Section> {
    let provenance = &report.provenance;
    let mut blocks = Vec::new();
    if !provenance.commands.is_empty() {
        blocks.push(Block::Commands(provenance.commands.clone()));
    }
    if !provenance.facts.is_empty() {
        let mut table = DataTable::new("Settings, seeds, versions and hashes", &["of", "what", "value"]);
        let mut last = "";
        for fact in &provenance.facts {
            let group = if fact.group == last { "" } else { &fact.group };
            last = &fact.group;
            table.row([Cell::from(group), Cell::from(fact.name.as_str()), Cell::Code(fact.value.clone())]);
        }
        blocks.push(Block::Table(table));
    }
    (!blocks.is_empty()).then_some(Section { id: "provenance", title: "Provenance", blocks })
}
