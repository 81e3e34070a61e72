//! Every error of this crate.
//!
//! The message says what is wrong and where; [`Error::hint`] says what to do about it.

use crate::bits::{BitWidth, Precision};
use thiserror::Error as ThisError;

/// What is wrong, with the names and numbers that show where.
#[derive(Debug, Clone, PartialEq, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// Not a bit width.
    #[error("{found} is not a bit width")]
    BitWidth {
        /// What was given.
        found: String,
    },
    /// Not the width of product codes.
    #[error("{found} is not a width of product codes")]
    ProductWidth {
        /// What was given.
        found: String,
    },
    /// A range for each row where rows have none.
    #[error("groups of \"row\" do not fit")]
    RowGroups,
    /// Product codes for a matrix, or with another width than 8.
    #[error("{site} cannot have product codes")]
    Product {
        /// The site.
        site: crate::site::Site,
    },
    /// Not a range method.
    #[error("{text:?} is not a range method")]
    RangeMethod {
        /// The text given.
        text: String,
    },
    /// A range whose ends are not finite, too large or in the wrong order.
    #[error("[{low}, {high}] is not a valid quantization range")]
    Range {
        /// The lower end given.
        low: f32,
        /// The upper end given.
        high: f32,
    },
    /// A quantizer whose offset or step cannot be used.
    #[error("offset {low} with step {step} is not a valid quantizer")]
    Affine {
        /// The value of code 0.
        low: f32,
        /// The distance between adjacent values.
        step: f32,
    },
    /// Not a valid activation step.
    #[error("{step} is not a valid activation step")]
    ActivationStep {
        /// The step given.
        step: f32,
    },
    /// No values to take a range of.
    #[error("no values to quantize")]
    NoValues,
    /// A value that is NaN, infinite, or (where a range is taken) larger than any range may be.
    #[error("value {value} at index {index} cannot be quantized")]
    BadValue {
        /// Where the value is in the slice given.
        index: usize,
        /// The value.
        value: f32,
    },
    /// Not a grouping.
    #[error("{text:?} is not a number of groups")]
    GroupSpec {
        /// The text given.
        text: String,
    },
    /// Zero groups.
    #[error("0 groups: at least 1 is needed")]
    ZeroGroups,
    /// More groups than output neurons.
    #[error("{groups} groups for {neurons} output neurons: some would be empty")]
    TooManyGroups {
        /// The number of groups asked for.
        groups: usize,
        /// The number of output neurons there are.
        neurons: usize,
    },
    /// A matrix with no elements or with more than can be counted.
    #[error("a matrix of {rows} rows and {cols} columns cannot be quantized")]
    Shape {
        /// Rows.
        rows: usize,
        /// Columns.
        cols: usize,
    },
    /// A slice of the wrong length.
    #[error("{what}: {expected} elements expected, {found} found")]
    Length {
        /// What the slice holds.
        what: &'static str,
        /// How many elements it must have.
        expected: usize,
        /// How many it has.
        found: usize,
    },
    /// A span of rows that the matrix does not have.
    #[error("rows {start}..{end} of a matrix of {rows} rows")]
    Rows {
        /// First row.
        start: usize,
        /// One past the last row.
        end: usize,
        /// Rows there are.
        rows: usize,
    },
    /// A code that needs more bits than there are.
    #[error("code {code} at index {index} does not fit in {bits} bits")]
    Code {
        /// Where the code is.
        index: usize,
        /// The code.
        code: u8,
        /// The width it should fit.
        bits: BitWidth,
    },
    /// Not the name of a site.
    #[error("{text:?} is not a site of the model")]
    UnknownSite {
        /// The name given.
        text: String,
        /// The nearest valid name.
        nearest: Option<String>,
    },
    /// Not the name of a published plan.
    #[error("{text:?} is not a preset")]
    UnknownPreset {
        /// The name given.
        text: String,
        /// The nearest valid name.
        nearest: Option<String>,
    },
    /// A published plan asked for a model of another depth.
    #[error("preset {preset:?} is for {expected} encoder layers, the model has {found}")]
    PresetLayers {
        /// The preset.
        preset: &'static str,
        /// The layers the preset is for.
        expected: usize,
        /// The layers the model has.
        found: usize,
    },
    /// A plan used with a model of another depth.
    #[error("the plan is for {plan} encoder layers, the model has {model}")]
    PlanLayers {
        /// Layers of the plan.
        plan: usize,
        /// Layers of the model.
        model: usize,
    },
    /// A part of the model that cannot be quantized as planned.
    #[error("{site}: {source}")]
    AtSite {
        /// Which part.
        site: crate::site::Site,
        /// What is wrong with it.
        source: Box<Error>,
    },
    /// A layer that the plan does not have.
    #[error("the plan has no layer {layer}: its {layers} layers are numbered from 0")]
    NoSuchLayer {
        /// The layer asked for.
        layer: usize,
        /// The layers there are.
        layers: usize,
    },
    /// An unknown word.
    #[error("{text:?} is not a {what}")]
    Word {
        /// The word given.
        text: String,
        /// What it should name.
        what: &'static str,
        /// The words there are.
        known: &'static str,
        /// The nearest valid word.
        nearest: Option<String>,
    },
    /// A measured sensitivity that cannot be used.
    #[error("layer {layer}: {}", sensitivity_problem(what, *value))]
    Sensitivity {
        /// The encoder layer, from 0.
        layer: usize,
        /// The number that is wrong.
        what: &'static str,
        /// Its value, or `None` when it is absent.
        value: Option<f64>,
    },
    /// Fewer than two widths to choose from, or widths that do not rise.
    #[error("{}", if widths.len() < 2 { "one width leaves nothing to choose".to_owned() } else {
        format!("the widths {} do not rise", number_list(widths))
    })]
    Widths {
        /// The widths given.
        widths: Vec<Precision>,
    },
    /// Not one number of layers for each higher width.
    #[error("{given} {} for the higher {} {}", plural(*given, "number", "numbers"),
        plural(higher.len(), "width", "widths"), number_list(higher))]
    HighCounts {
        /// How many numbers there are.
        given: usize,
        /// The widths above the lowest.
        higher: Vec<Precision>,
    },
    /// More layers at higher widths than there are layers.
    #[error("{high} layers at a higher width, but the model has {layers}")]
    TooManyHigh {
        /// The layers asked for.
        high: usize,
        /// The layers there are.
        layers: usize,
    },
    /// A size limit that even the smallest model exceeds.
    #[error("nothing fits in {limit} bytes: the smallest possible size is {smallest} bytes ({:.3} MB)", megabytes_up(*smallest))]
    OverBudget {
        /// The limit, in bytes.
        limit: u64,
        /// The size with the lowest widths everywhere, in bytes.
        smallest: u64,
    },
    /// A cost that cannot be added up.
    #[error("{cost} is not a valid cost")]
    Cost {
        /// The cost given.
        cost: f64,
    },
    /// An item of a knapsack without choices, or with an invalid cost.
    #[error("item {item}: {}", cost.map_or_else(|| "no choices".to_owned(), |cost| format!("{cost} is not a valid cost")))]
    Choice {
        /// Which one, from 0.
        item: usize,
        /// The cost that is wrong, or `None` when there are no choices.
        cost: Option<f64>,
    },
    /// A knapsack whose exact solution takes too much memory.
    #[error("more than {most} combinations of widths would have to be compared")]
    TooManyStates {
        /// The most that are kept.
        most: usize,
    },
    /// Something wrong at a line of a plan's text.
    #[error("{file}:{line}: {problem}")]
    Plan {
        /// The name of the text, as given to the parser; usually a path.
        file: String,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong there.
        problem: PlanProblem,
    },
}

/// What is wrong at one place of a plan's text.
#[derive(Debug, Clone, PartialEq, ThisError)]
#[non_exhaustive]
pub enum PlanProblem {
    /// The text is not TOML.
    #[error("not valid TOML: {message}")]
    NotToml {
        /// The parser's words.
        message: String,
    },
    /// A version this crate does not read.
    #[error("version {found} of the plan format is not known")]
    Version {
        /// The version given.
        found: String,
    },
    /// A required key is missing.
    #[error("{key} is missing in {table}")]
    MissingKey {
        /// The key.
        key: String,
        /// The table it belongs to.
        table: String,
    },
    /// Sites that the plan does not name.
    #[error("missing {}: {}", if sites.len() == 1 { "site" } else { "sites" }, sites.join(", "))]
    MissingSites {
        /// Their names.
        sites: Vec<String>,
    },
    /// A key that means nothing there.
    #[error("unknown key {key:?} in {table}")]
    UnknownKey {
        /// The key.
        key: String,
        /// The table it is in.
        table: String,
        /// The nearest valid key.
        nearest: Option<String>,
    },
    /// A key that appears twice.
    #[error("{key} appears twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A layer without a valid number.
    #[error("layer.{text}: {text:?} is not a layer number")]
    LayerNumber {
        /// What was found in place of the number.
        text: String,
    },
    /// A layer that is missing between others.
    #[error("layer.{missing} is missing, but layer.{found} exists")]
    LayerGap {
        /// The first number that is missing.
        missing: usize,
        /// The layer found instead.
        found: usize,
    },
    /// A value of the wrong kind.
    #[error("{key} must be {expected}, not {found}")]
    WrongType {
        /// The key.
        key: String,
        /// What it must be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// A value of the right kind that is not valid.
    #[error("{key}: {reason}")]
    Value {
        /// The key.
        key: String,
        /// Why it is not valid.
        #[source]
        reason: Box<Error>,
    },
}

impl Error {
    /// What to do about it, where there is something to say.
    pub fn hint(&self) -> Option<String> {
        let text = match self {
            Self::BitWidth { .. } => {
                "use 1 to 8 bits, 1.6 for ternary codes, or 32 to leave the values in f32".to_owned()
            }
            Self::ProductWidth { .. } => {
                "use 8/N for a byte that N values of a row share, with N from 2 to 16: 8/6".to_owned()
            }
            Self::Product { .. } => "product codes (8/6) are for embedding tables: use 1 to 8 bits, or 32".to_owned(),
            Self::RangeMethod { .. } => {
                "use \"min-max\", \"mse\" or \"percentile:P\" with 0 < P <= 100, such as \"percentile:99.9\"".to_owned()
            }
            Self::Range { .. } => "both ends must be finite, at most 8.5e37 in size, and low <= high".to_owned(),
            Self::Affine { .. } => "the offset must be finite, the step finite and not negative".to_owned(),
            Self::ActivationStep { .. } => "the step must be finite and above 0".to_owned(),
            Self::BadValue { .. } => {
                "the tensor holds NaN, infinity or absurdly large values: check the checkpoint or the training run"
                    .to_owned()
            }
            Self::GroupSpec { .. } | Self::ZeroGroups => {
                "use a number of groups from 1 up, \"head\", \"neuron\", or \"row\" for an embedding table".to_owned()
            }
            Self::RowGroups => {
                "a range for each row is for embedding tables without product codes: use a number of groups".to_owned()
            }
            Self::TooManyGroups { neurons, .. } => {
                format!("use at most {neurons} groups, or \"neuron\" for one group per output neuron")
            }
            Self::UnknownSite { nearest, .. } => did_you_mean(nearest.as_deref())
                .unwrap_or_else(|| "sites are named like layer.0.query or embedding.word".to_owned()),
            Self::UnknownPreset { nearest, .. } => did_you_mean(nearest.as_deref()).unwrap_or_else(|| {
                "presets are named task-widths, with task sst2, mnli, conll03 or squad and widths 2-3 or 2-4".to_owned()
            }),
            Self::PresetLayers { .. } => {
                "the paper publishes plans for BERT-base only: make a plan for this model instead".to_owned()
            }
            Self::PlanLayers { model, .. } => format!("use a plan with layer.0 to layer.{}", model.saturating_sub(1)),
            Self::Code { .. } => "the codes are damaged, or were packed with another width".to_owned(),
            Self::Word { known, nearest, .. } => {
                let nearest = did_you_mean(nearest.as_deref()).map(|text| text + " ").unwrap_or_default();
                format!("{nearest}use {known}")
            }
            Self::Sensitivity { what: "trace", value: None, .. } => {
                "measure the trace too, or go by omega or mean".to_owned()
            }
            Self::Sensitivity { what: "divergence" | "error", value: None, .. } => {
                "measure it first (`qbert analyze --method kl`), or go by another metric".to_owned()
            }
            Self::Sensitivity { what: "mean", value: None, .. } => {
                "the file has measured divergences only: go by kl, or add the eigenvalues with `qbert analyze`"
                    .to_owned()
            }
            Self::Sensitivity { .. } | Self::Cost { .. } | Self::Choice { .. } => {
                "sensitivities and costs must be finite, deviations and costs not negative".to_owned()
            }
            Self::Widths { .. } => "give two or more widths from low to high, such as 2,3".to_owned(),
            Self::HighCounts { higher, .. } => format!(
                "give {} {}, in the order of the widths: how many layers get {} bits",
                higher.len(),
                plural(higher.len(), "number", "numbers"),
                number_list(higher)
            ),
            Self::TooManyHigh { layers, .. } => format!("use at most {layers}"),
            Self::OverBudget { smallest, .. } => {
                format!("allow {:.3} MB or more, or offer a lower width", megabytes_up(*smallest))
            }
            Self::TooManyStates { .. } => "offer fewer widths, or choose by module or layer".to_owned(),
            Self::Plan { problem, .. } => return problem.hint(),
            Self::AtSite { source, .. } => return source.hint(),
            Self::NoValues
            | Self::Shape { .. }
            | Self::Length { .. }
            | Self::Rows { .. }
            | Self::NoSuchLayer { .. } => {
                return None;
            }
        };
        Some(text)
    }
}

impl PlanProblem {
    /// What to do about it, where there is something to say.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NotToml { .. } => Some("the file must be a plan as the plan command writes it".to_owned()),
            Self::Version { .. } => Some("this program reads plans with version = 1".to_owned()),
            Self::MissingKey { key, .. } if key.starts_with('[') => Some(format!("add a section {key}")),
            Self::MissingKey { key, .. } => Some(format!("add {key} = …")),
            Self::DuplicateKey { .. } => Some("keep one of the two".to_owned()),
            Self::MissingSites { .. } => Some("every site must be named; write 32 to leave one unquantized".to_owned()),
            Self::UnknownKey { nearest, .. } => did_you_mean(nearest.as_deref()),
            Self::LayerGap { .. } | Self::LayerNumber { .. } => {
                Some("layers are numbered 0, 1, 2, … without gaps".to_owned())
            }
            Self::WrongType { .. } => None,
            Self::Value { reason, .. } => reason.hint(),
        }
    }
}

fn sensitivity_problem(what: &str, value: Option<f64>) -> String {
    value.map_or_else(|| format!("there is no {what}"), |value| format!("{what} is {value}"))
}

fn plural(count: usize, one: &'static str, several: &'static str) -> &'static str {
    if count == 1 { one } else { several }
}

fn number_list(widths: &[Precision]) -> String {
    widths.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// MB (10^6 bytes) rounded up to three places, so that a limit of that size is enough.
fn megabytes_up(bytes: u64) -> f64 {
    bytes.div_ceil(1000) as f64 / 1000.0
}

fn did_you_mean(nearest: Option<&str>) -> Option<String> {
    nearest.map(|name| format!("did you mean {name:?}?"))
}
