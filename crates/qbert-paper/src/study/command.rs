//! The command recorded in a result's file: it names files without their directories.

use qbert_quant::Mask;
use qbert_tasks::DataSource;
use qbert_train::qat::weights::WeightRanges;
use qbert_train::trainer::TrainingPrecision;

use super::{Experiment, Study, name_of};
use crate::rows::{Recipe, Row, RowTreatment};

impl Study {
    /// The command that makes only this row.
    pub(crate) fn command(&self, row: &Row) -> String {
        let task = self.experiment.data.task;
        let Experiment { max_train, max_dev, ref budget, .. } = self.experiment;
        let mut words: Vec<String> = vec![format!("qbert-paper reproduce --task {task} --rows {}", row.name())];
        words.extend(row.treatment.ranges().map(|ranges| format!("--ranges {}", ranges.name())));
        words.extend(row.treatment.compensate().then(|| "--compensate".to_owned()));
        words.extend(row.treatment.distill().then(|| "--distill".to_owned()));
        let Recipe { mask, weight_ranges, fit_steps } = row.treatment.recipe();
        words.extend((mask != Mask::default()).then(|| format!("--mask {}", mask.name())));
        let learned = weight_ranges != WeightRanges::default();
        words.extend(learned.then(|| format!("--weight-ranges {weight_ranges}")));
        words.extend((fit_steps > 0).then(|| format!("--fit-layers {fit_steps}")));
        match row.treatment {
            RowTreatment::FullPrecision => {}
            RowTreatment::PostTraining { .. } => words.push("--steps 0".to_owned()),
            RowTreatment::Trained { seed, .. } => {
                words.push(format!("--seeds {seed}"));
                words.push(match budget.steps {
                    Some(steps) => format!("--steps {steps}"),
                    None => format!("--epochs {}", budget.epochs),
                });
                words.push(format!("--lr {:?}", budget.optimizer.learning_rate));
                let other = budget.precision != TrainingPrecision::default();
                words.extend(other.then(|| format!("--precision {}", budget.precision)));
            }
        }
        if row.treatment != RowTreatment::FullPrecision {
            words.push(format!("--batch {}", budget.batch));
            words.extend(max_train.map(|count| format!("--max-train {count}")));
        }
        words.extend(max_dev.map(|count| format!("--max-dev {count}")));
        words.extend(self.files(row.method.is_mixed()));
        words.join(" ")
    }

    /// The command that measures weight errors, of these methods or, if none are named, of all.
    pub(crate) fn errors_command(&self, names: &[String]) -> String {
        let mut words = vec![format!("qbert-paper reproduce --task {} --weight-errors", self.experiment.data.task)];
        words.extend((!names.is_empty()).then(|| format!("--rows {}", names.join(" "))));
        words.extend(self.files(true));
        words.join(" ")
    }

    /// The arguments for model, data and output.
    fn files(&self, sensitivity: bool) -> impl Iterator<Item = String> {
        let DataSource { task, max_len, .. } = self.experiment.data;
        let max_len = (max_len != task.default_max_len()).then(|| format!("--max-len {max_len}"));
        let names: Vec<&str> = self.train.iter().map(|source| source.name.as_str()).collect();
        let data = format!("--model {} --train {} --dev {}", self.model.name, names.join(" "), self.dev.name);
        let sensitivity = self.sensitivity.as_ref().filter(|_| sensitivity);
        let sensitivity = sensitivity.map(|source| format!("--sensitivity {}", source.name));
        let out = format!("--out {}", name_of(&self.experiment.out));
        max_len.into_iter().chain([data]).chain(sensitivity).chain([out])
    }
}
