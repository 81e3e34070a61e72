//! Which rows a study has, and the plan and size of each.

use qbert_quant::{Axis, GroupSpec, ModelShape, Plan, Precision, Preset, RangeMethod};
use qbert_tasks::{Kind, Task};
use qbert_train::qat::method::Method;

use super::Study;
use crate::result::{PaperMib, paper_sizes};
use crate::rows::{HEADLINE_COMPRESSION, HEADLINE_METHOD, PaperTable, Row, Selection};
use qbert_pipeline::{Error, ErrorKind, Result};

impl Study {
    /// The rows that are selected, the baseline first where it is one of them.
    ///
    /// # Errors
    /// A name that no row has.
    pub fn rows(&self, selection: &Selection) -> Result<Vec<Row>> {
        let mut methods: Vec<(Method, Option<usize>)> = Vec::new();
        for table in &selection.tables {
            for printed in table.printed() {
                methods.extend(printed.rows()?.iter().map(|row| (row.method, None)));
            }
            if *table == PaperTable::Headline {
                methods.extend(self.headline()?);
            }
        }
        selection.rows(&methods)
    }

    /// The headline's method with as many layers at the higher width as its compression allows; `None` where the model
    /// is too small for it.
    fn headline(&self) -> Result<Option<(Method, Option<usize>)>> {
        let method: Method = HEADLINE_METHOD.parse()?;
        let usual = usual_high(&method, self.experiment.data.task, self.layers)?;
        for high in (1..self.layers).rev() {
            // Only the number of layers matters for the size.
            let sensitive: Vec<usize> = (0..high).collect();
            let plan = with_fitting_groups(method.plan(self.layers, &sensitive, RangeMethod::MinMax)?, &self.shape)?;
            let (_, [encoder, _]) = paper_sizes(&self.shape, &plan, &self.full_plan()?)?;
            if encoder >= HEADLINE_COMPRESSION {
                return Ok(Some((method, (high != usual).then_some(high))));
            }
        }
        Ok(None)
    }

    fn full_plan(&self) -> Result<Plan> {
        let full: Method = "full".parse()?;
        with_fitting_groups(full.plan(self.layers, &[], RangeMethod::MinMax)?, &self.shape)
    }

    /// The plan of a row.
    ///
    /// # Errors
    /// Mixed precision without sensitivities.
    pub fn plan(&self, row: &Row) -> Result<Plan> {
        let range = row.treatment.ranges().map_or(RangeMethod::MinMax, |ranges| ranges.method());
        let mut sensitive = Vec::new();
        if row.method.is_mixed() {
            let ranking = self.ranking.as_ref().ok_or_else(|| {
                let message = format!("{} needs the layers' sensitivities", row.name());
                let hint = "give --sensitivity FILE (from `qbert analyze`), or leave such rows out with --rows";
                Error::new(ErrorKind::BadInput, message, hint.to_owned())
            })?;
            let usual = usual_high(&row.method, self.experiment.data.task, self.layers)?;
            let high = row.high.unwrap_or(usual).min(self.layers);
            // Turned round, as many layers as before have the higher width: the least sensitive ones.
            let first = if row.method.is_reversed() { self.layers - high } else { high };
            sensitive = ranking.order()[..first].to_vec();
        }
        with_fitting_groups(row.method.plan(self.layers, &sensitive, range)?, &self.shape)
    }

    /// The paper's size of a row, and how many times smaller than full precision encoder and whole are.
    ///
    /// # Errors
    /// As [`Study::plan`].
    pub fn paper_sizes(&self, row: &Row) -> Result<(PaperMib, [f64; 2])> {
        paper_sizes(&self.shape, &self.plan(row)?, &self.full_plan()?)
    }
}

/// Limits groups to a matrix's output neurons, so that the paper's plans also fit small models.
fn with_fitting_groups(mut plan: Plan, shape: &ModelShape) -> Result<Plan> {
    for tensor in &shape.tensors {
        let neurons = match tensor.axis {
            Axis::Rows | Axis::TableRows => tensor.rows,
            Axis::Columns => tensor.cols,
        };
        let own = plan.site_mut(tensor.site)?;
        if let GroupSpec::Count(count) = own.groups {
            own.groups = GroupSpec::Count(count.min(neurons));
        }
    }
    Ok(plan)
}

/// How many layers have the higher width in a plan with mixed precision: the share that the paper's plan for the task has
/// (Tab. 6 and 7; a user's own task takes the paper's of its kind), of this many layers, halves rounded up, and at least
/// one layer of each width. Half of the layers for widths that the paper has no plan for.
///
/// # Errors
/// None with the paper's plans as they are.
pub fn usual_high(method: &Method, task: Task, layers: usize) -> Result<usize> {
    let (low, high) = method.widths();
    let named = match task.kind() {
        Kind::Classify | Kind::MultiLabel | Kind::Score | Kind::Embed => Task::Sst2,
        Kind::Pair | Kind::ScorePair => Task::Mnli,
        Kind::Ner => Task::Conll03,
        Kind::Qa => Task::Squad,
    };
    let is_high = |width: Precision| width == high;
    let (wide, all) = match Preset::parse(&format!("{named}-{low}-{high}")) {
        Ok(preset) => {
            let plan = preset.plan(12)?;
            (plan.layers().iter().filter(|layer| is_high(layer.query.bits)).count(), plan.layers().len())
        }
        Err(_) => (1, 2),
    };
    let share = (2 * wide * layers + all) / (2 * all);
    Ok(share.clamp(1, layers.saturating_sub(1).max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_share_of_layers_is_scaled_to_the_model() {
        let high = |method: &str, task, layers| usual_high(&method.parse().unwrap(), task, layers).unwrap();
        // Tab. 6 and 7 themselves.
        let tasks = [Task::Sst2, Task::Mnli, Task::Conll03, Task::Squad];
        assert_eq!(tasks.map(|task| high("q-bert:2/3", task, 12)), [6, 4, 4, 6]);
        assert_eq!(tasks.map(|task| high("q-bert:2/4", task, 12)), [6, 5, 5, 5]);
        // Half the layers; 2.5 is 3, which is also the size that the paper prints.
        assert_eq!(tasks.map(|task| high("q-bert:2/3", task, 6)), [3, 2, 2, 3]);
        assert_eq!(tasks.map(|task| high("q-bert:2/4", task, 6)), [3, 3, 3, 3]);
        // A user's own tasks, the variants of a method, widths without a plan, and models of two layers.
        assert_eq!(high("q-bert:2/3", Task::Ner, 12), 4);
        assert_eq!(high("q-bert:2/3,attention=1/2", Task::Sst2, 12), 6);
        assert_eq!(high("q-bert:2/3-rev", Task::Mnli, 12), 4);
        assert_eq!(high("q-bert:3/8", Task::Sst2, 6), 3);
        assert_eq!(high("q-bert:2/3", Task::Mnli, 2), 1);
        assert_eq!(high("q-bert:2/3", Task::Mnli, 1), 1);
    }
}
