//! The runs behind the paper's tables, and their names.

use std::fmt;
use std::str::FromStr;

use qbert_quant::{Mask, RangeMethod};
use qbert_train::qat::method::Method;
use qbert_train::qat::weights::WeightRanges;
use serde::{Deserialize, Serialize};

use super::paper::Printed;
use qbert_pipeline::{Error, ErrorKind, Result};

/// A table to reproduce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PaperTable {
    /// Tab. 1.
    Main,
    /// Tab. 2.
    Groups,
    /// Tab. 3, (a) and (b).
    Modules,
    /// Tab. 4.
    Reverse,
    /// Tab. 5.
    Embedding,
    /// The paper's headline, an encoder 13 times smaller: 2/3 bits, with as many 3-bit layers as that allows.
    Headline,
}

/// How many times smaller the paper's headline says encoder weights become.
pub const HEADLINE_COMPRESSION: f64 = 13.0;
/// How many points the paper's headline allows to be lost.
pub const HEADLINE_DROP: f64 = 2.3;
/// The headline's method.
pub const HEADLINE_METHOD: &str = "q-bert:2/3";

impl PaperTable {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Main, Self::Groups, Self::Modules, Self::Reverse, Self::Embedding, Self::Headline];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Main => "main",
            Self::Groups => "groups",
            Self::Modules => "modules",
            Self::Reverse => "reverse",
            Self::Embedding => "embedding",
            Self::Headline => "headline",
        }
    }

    /// The tables of the paper it stands for.
    pub fn printed(self) -> &'static [Printed] {
        match self {
            Self::Main => &[Printed::Main],
            Self::Groups => &[Printed::Groups],
            Self::Modules => &[Printed::EmbeddingWidths, Printed::ModuleWidths],
            Self::Reverse => &[Printed::Reverse],
            Self::Embedding => &[Printed::MixedEmbedding],
            Self::Headline => &[],
        }
    }
}

impl FromStr for PaperTable {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|table| table.name() == text).ok_or_else(|| {
            let hint = format!("the tables are {}", Self::ALL.map(Self::name).join(", "));
            Error::new(ErrorKind::BadInput, format!("unknown table {text:?}"), hint)
        })
    }
}

/// Where the ranges of weights come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ranges {
    /// A group's smallest and largest weight: our reading of the paper.
    MinMax,
    /// The sub-interval with the least squared error.
    Optimal,
}

impl Ranges {
    /// Both.
    pub const ALL: [Self; 2] = [Self::MinMax, Self::Optimal];

    /// The name in files and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::MinMax => "min-max",
            Self::Optimal => "optimal",
        }
    }

    /// The method of the plan.
    pub fn method(self) -> RangeMethod {
        match self {
            Self::MinMax => RangeMethod::MinMax,
            Self::Optimal => RangeMethod::Mse,
        }
    }
}

/// How the model of a row is treated.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "treatment", rename_all = "kebab-case")]
pub enum RowTreatment {
    /// Nothing: the baseline.
    FullPrecision,
    /// Quantized and calibrated; nothing in it is random.
    PostTraining {
        /// Ranges of the weights.
        ranges: Ranges,
        /// Whether rounding compensates for errors of other weights, which the paper does not do.
        compensate: bool,
    },
    /// Quantization-aware training.
    Trained {
        /// Ranges of the weights.
        ranges: Ranges,
        /// Whether training starts from weights with compensated rounding.
        compensate: bool,
        /// Whether training distills from the full-precision model.
        distill: bool,
        /// What else is trained otherwise than the paper does.
        #[serde(default, skip_serializing_if = "Recipe::is_default")]
        recipe: Recipe,
        /// Seed of everything random.
        seed: u64,
    },
}

/// Pieces of the training recipe that the paper does not have. The default is without any.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Recipe {
    /// Which weights get a gradient.
    pub mask: Mask,
    /// How the ranges of matrices change.
    pub weight_ranges: WeightRanges,
    /// Steps for each layer to fit its output to that of the full-precision layer, before training; 0 for none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub fit_steps: usize,
}

/// Rows from before the setting do not have it.
fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl Recipe {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The part of a row's name.
    fn suffix(self) -> String {
        let mut text = String::new();
        if self.mask != Mask::default() {
            text += &format!(".mask-{}", self.mask.name());
        }
        if let WeightRanges::Learned(multiple) = self.weight_ranges {
            text += &format!(".learned-{multiple}");
        }
        if self.fit_steps > 0 {
            text += &format!(".fitted-{}", self.fit_steps);
        }
        text
    }
}

impl RowTreatment {
    /// Ranges of the weights, if they have any.
    pub fn ranges(self) -> Option<Ranges> {
        match self {
            Self::FullPrecision => None,
            Self::PostTraining { ranges, .. } | Self::Trained { ranges, .. } => Some(ranges),
        }
    }

    /// Whether rounding compensates for errors of other weights.
    pub fn compensate(self) -> bool {
        matches!(self, Self::PostTraining { compensate: true, .. } | Self::Trained { compensate: true, .. })
    }

    /// Whether training distills from the full-precision model.
    pub fn distill(self) -> bool {
        matches!(self, Self::Trained { distill: true, .. })
    }

    /// What else is trained otherwise than the paper does.
    pub fn recipe(self) -> Recipe {
        match self {
            Self::Trained { recipe, .. } => recipe,
            _ => Recipe::default(),
        }
    }
}

/// One run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    /// The method.
    pub method: Method,
    /// The number of layers at the higher width, if not the task's usual one ([`super::usual_high`]).
    pub high: Option<usize>,
    /// What is done.
    pub treatment: RowTreatment,
}

impl Row {
    /// The full-precision model.
    ///
    /// # Errors
    /// None: `full` is a method.
    pub fn baseline() -> Result<Self> {
        Ok(Self { method: "full".parse()?, high: None, treatment: RowTreatment::FullPrecision })
    }

    /// The method's name in files: `directq-4`, `qbert-mp-2-3-rev`, `qbert-4-groups-head`.
    pub fn name(&self) -> String {
        method_name(&self.method, self.high)
    }

    /// The row's name, that of its file.
    pub fn id(&self) -> String {
        let mut id = self.name();
        if let Some(ranges) = self.treatment.ranges() {
            id = format!("{id}.{}", ranges.name());
        }
        if self.treatment.compensate() {
            id += ".compensate";
        }
        if self.treatment.distill() {
            id += ".distill";
        }
        id += &self.treatment.recipe().suffix();
        match self.treatment {
            RowTreatment::FullPrecision => id,
            RowTreatment::PostTraining { .. } => id + ".post-training",
            RowTreatment::Trained { seed, .. } => format!("{id}.seed{seed}"),
        }
    }
}

/// A method's name in files.
pub fn method_name(method: &Method, high: Option<usize>) -> String {
    if method.is_full() {
        return "baseline".to_owned();
    }
    let text = method.to_string().replace(",embedding-groups=1", "-layerwise");
    let text = match text.strip_prefix("q-bert:") {
        Some(rest) if method.is_mixed() => format!("qbert-mp-{rest}"),
        Some(rest) => format!("qbert-{rest}"),
        None => text,
    };
    let name: String = text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    high.map_or(name.clone(), |high| format!("{name}-high{high}"))
}

impl fmt::Display for Row {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&self.id())
    }
}

/// Which rows of the tables are wanted.
#[derive(Debug, Clone)]
pub struct Selection {
    /// The tables.
    pub tables: Vec<PaperTable>,
    /// Ranges, each row once with each.
    pub ranges: Vec<Ranges>,
    /// Without and with compensated rounding.
    pub compensate: Vec<bool>,
    /// Without and with distillation.
    pub distill: Vec<bool>,
    /// What else is trained otherwise than the paper does, in every row.
    pub recipe: Recipe,
    /// Seeds.
    pub seeds: Vec<u64>,
    /// Whether anything is trained; without, seeds and distillation make no difference.
    pub trained: bool,
    /// Only rows with these names, of row or method; all rows if empty.
    pub names: Vec<String>,
}

impl Selection {
    /// The rows of these methods, and of those that are asked for by name and in no table, seed by seed, so that every seed
    /// completes whole tables.
    pub(super) fn rows(&self, methods: &[(Method, Option<usize>)]) -> Result<Vec<Row>> {
        let mut rows: Vec<Row> = vec![Row::baseline()?];
        let others = self.names.iter().filter_map(|name| Some((name.parse::<Method>().ok()?, None)));
        let methods: Vec<_> = methods.iter().copied().chain(others).collect();
        for treatment in self.treatments() {
            for &(method, high) in methods.iter().filter(|(method, _)| !method.is_full()) {
                let row = Row { method, high, treatment };
                if !rows.contains(&row) {
                    rows.push(row);
                }
            }
        }
        if self.names.is_empty() {
            return Ok(rows);
        }
        let means =
            |name: &str, row: &Row| [row.id(), row.name(), row.method.to_string()].iter().any(|own| own == name);
        for name in &self.names {
            if !rows.iter().any(|row| means(name, row)) {
                let mut known: Vec<String> = rows.iter().map(Row::name).collect();
                known.sort();
                known.dedup();
                let hint = format!("the rows are {}", known.join(", "));
                return Err(Error::new(ErrorKind::BadInput, format!("no row {name:?} in these tables"), hint));
            }
        }
        rows.retain(|row| self.names.iter().any(|name| means(name, row)));
        Ok(rows)
    }

    fn treatments(&self) -> Vec<RowTreatment> {
        let starts = || self.compensate.iter().flat_map(|&c| self.ranges.iter().map(move |&ranges| (c, ranges)));
        if !self.trained {
            return starts().map(|(compensate, ranges)| RowTreatment::PostTraining { ranges, compensate }).collect();
        }
        let mut all = Vec::new();
        for &seed in &self.seeds {
            for &distill in &self.distill {
                all.extend(starts().map(|(compensate, ranges)| RowTreatment::Trained {
                    ranges,
                    compensate,
                    distill,
                    recipe: self.recipe,
                    seed,
                }));
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(method: &str, high: Option<usize>, treatment: RowTreatment) -> Row {
        Row { method: method.parse().unwrap(), high, treatment }
    }

    #[test]
    fn a_row_is_called_the_same_for_ever() {
        let trained = |distill| RowTreatment::Trained {
            ranges: Ranges::MinMax,
            compensate: false,
            distill,
            recipe: Recipe::default(),
            seed: 1,
        };
        let post = RowTreatment::PostTraining { ranges: Ranges::Optimal, compensate: false };
        let all = |recipe| RowTreatment::Trained {
            ranges: Ranges::Optimal,
            compensate: true,
            distill: true,
            recipe,
            seed: 3,
        };
        let plain = row("q-bert:2", None, all(Recipe::default()));
        assert_eq!(plain.id(), "qbert-2.optimal.compensate.distill.seed3");
        let recipe = Recipe { mask: Mask::HalfStep, weight_ranges: WeightRanges::Learned(10.0), fit_steps: 200 };
        let learned = row("q-bert:2", None, all(recipe));
        assert_eq!(learned.id(), "qbert-2.optimal.compensate.distill.mask-half-step.learned-10.fitted-200.seed3");
        assert_eq!(Row::baseline().unwrap().id(), "baseline");
        assert_eq!(row("q-bert:2/3", None, trained(false)).id(), "qbert-mp-2-3.min-max.seed1");
        assert_eq!(row("q-bert:2/3-rev", None, trained(true)).id(), "qbert-mp-2-3-rev.min-max.distill.seed1");
        assert_eq!(row("q-bert:2/3", Some(2), post).id(), "qbert-mp-2-3-high2.optimal.post-training");
        assert_eq!(row("directq:4", None, post).id(), "directq-4.optimal.post-training");
        assert_eq!(row("q-bert:4,groups=head", None, post).name(), "qbert-4-groups-head");
        let layerwise = row("q-bert:8,embedding=4/8,embedding-groups=1", None, post);
        assert_eq!(layerwise.name(), "qbert-8-embedding-4-8-layerwise");
    }

    #[test]
    fn every_method_of_the_paper_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<String> =
            qbert_train::qat::method::PAPER.iter().map(|text| method_name(&text.parse().unwrap(), None)).collect();
        assert_eq!(names.len(), qbert_train::qat::method::PAPER.len());
    }

    #[test]
    fn rows_come_once_and_seed_by_seed() {
        let selection = Selection {
            tables: vec![],
            ranges: Ranges::ALL.to_vec(),
            compensate: vec![false],
            distill: vec![false],
            recipe: Recipe::default(),
            seeds: vec![1, 2],
            trained: true,
            names: vec![],
        };
        let methods = ["full", "directq:4", "q-bert:4", "directq:4"].map(|text| (text.parse().unwrap(), None));
        let ids =
            |selection: &Selection| -> Vec<String> { selection.rows(&methods).unwrap().iter().map(Row::id).collect() };
        let all = ids(&selection);
        assert_eq!(all.len(), 1 + 2 * 2 * 2);
        assert_eq!(all[..3], ["baseline", "directq-4.min-max.seed1", "qbert-4.min-max.seed1"]);
        assert!(all[5..].iter().all(|id| id.ends_with("seed2")));
        let named = Selection { names: vec!["q-bert:4".to_owned()], ..selection.clone() };
        assert_eq!(ids(&named).len(), 4);
        let untrained = Selection { trained: false, ..selection.clone() };
        assert_eq!(ids(&untrained).len(), 1 + 2 * 2);
        let wrong = Selection { names: vec!["qbert-5".to_owned()], ..selection };
        assert!(wrong.rows(&methods).unwrap_err().hint().unwrap().contains("directq-4, qbert-4"));
    }
}
