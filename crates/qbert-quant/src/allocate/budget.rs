//! The best widths within a size: each part of the encoder chooses one, and the sum of sensitivity times squared
//! quantization error, `Σ s_layer · ‖W - Q_b(W)‖²`, is the least possible.
//!
//! That sum stands for what quantization adds to the loss, to second order: a step `ΔW` adds about `½ ΔWᵀHΔW`, which
//! is at most `½ λ ‖ΔW‖²`. It is a prediction before any training on quantized weights; use it to compare plans of
//! one model, not to predict a metric.

use super::knapsack::{self, Choice, Solution, solve};
use super::{SizeBudget, Widths};
use crate::bits::Precision;
use crate::error::Error;
use crate::nearest::nearest;
use crate::site::{Matrix, Site};
use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// What has one width in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Granularity {
    /// All six matrices of a layer, as in the paper's plans. Text form: `layer`.
    Layer,
    /// The self-attention of a layer, and its feed-forward network (Tab. 3 b). Text form: `module`.
    Module,
    /// Nothing: each matrix has its own. Text form: `site`.
    #[default]
    Site,
}

impl Granularity {
    /// All of them, coarsest first.
    pub const ALL: [Self; 3] = [Self::Layer, Self::Module, Self::Site];

    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Layer => "layer",
            Self::Module => "module",
            Self::Site => "site",
        }
    }

    /// A key that is equal for what has one width.
    fn key(self, layer: usize, matrix: Matrix) -> (usize, Option<Matrix>) {
        match self {
            Self::Layer => (layer, None),
            Self::Module if matrix.is_attention() => (layer, Some(Matrix::Query)),
            Self::Module => (layer, Some(Matrix::Intermediate)),
            Self::Site => (layer, Some(matrix)),
        }
    }
}

impl fmt::Display for Granularity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Granularity {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|granularity| granularity.name() == text).ok_or_else(|| Error::Word {
            text: text.to_owned(),
            what: "granularity",
            known: "layer, module or site",
            nearest: nearest(text, Self::ALL.map(Self::name)),
        })
    }
}

impl Serialize for Granularity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A matrix whose width is open, with its size and its cost at every width.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenSite {
    /// The encoder layer, from 0.
    pub layer: usize,
    /// Which of its matrices.
    pub matrix: Matrix,
    /// For each width, the bytes it takes and sensitivity times squared error.
    pub choices: Vec<Choice>,
}

impl OpenSite {
    /// Its name.
    pub fn site(&self) -> Site {
        Site::Layer(self.layer, self.matrix)
    }
}

/// The best widths.
#[derive(Clone, Debug, PartialEq)]
pub struct Allocation {
    /// The width of each site, in the order given.
    pub widths: Vec<Precision>,
    /// The bytes of all sites together with [`SizeBudget::fixed`].
    pub bytes: u64,
    /// The least possible sum of costs.
    pub cost: f64,
}

/// Chooses a width for every site such that the sum of costs is the least possible within `budget`.
///
/// Of allocations that cost the same the smallest is taken, and of those the one with the lower width for the last
/// site, then for the last but one, and so on.
///
/// # Errors
/// [`Error::AtSite`] with [`Error::Length`] when a site has not one choice for each width, or with [`Error::Cost`] when
/// a cost is negative or not finite; otherwise as [`solve`].
pub fn within(
    sites: &[OpenSite],
    widths: &Widths,
    granularity: Granularity,
    budget: SizeBudget,
) -> Result<Allocation, Error> {
    let items = Items::new(sites, widths, granularity)?;
    Ok(items.allocation(&solve(&items.choices, budget)?, widths, budget.fixed))
}

/// Every allocation that no other beats in both bytes and cost, from the smallest to the cheapest: what [`within`] finds
/// for all budgets. `fixed` is what everything else takes.
///
/// # Errors
/// As [`within`], but for a budget.
pub fn frontier(
    sites: &[OpenSite],
    widths: &Widths,
    granularity: Granularity,
    fixed: u64,
) -> Result<Vec<Allocation>, Error> {
    let items = Items::new(sites, widths, granularity)?;
    let all = knapsack::frontier(&items.choices)?;
    Ok(all.iter().map(|solution| items.allocation(solution, widths, fixed)).collect())
}

/// What chooses a width: sites, or sites that share one.
struct Items {
    /// For each item, the sums over its sites at each width.
    choices: Vec<Vec<Choice>>,
    /// The item of each site.
    item_of: Vec<usize>,
}

impl Items {
    fn new(sites: &[OpenSite], widths: &Widths, granularity: Granularity) -> Result<Self, Error> {
        let count = widths.as_slice().len();
        for site in sites {
            let at = |source: Error| Error::AtSite { site: site.site(), source: Box::new(source) };
            crate::range::check_length("choices", count, site.choices.len()).map_err(at)?;
            // Checked here too, where the site's name is known.
            if let Some(bad) = site.choices.iter().find(|choice| !(choice.cost.is_finite() && choice.cost >= 0.0)) {
                return Err(at(Error::Cost { cost: bad.cost }));
            }
        }
        let mut keys = Vec::new();
        let mut choices: Vec<Vec<Choice>> = Vec::new();
        let mut item_of = Vec::with_capacity(sites.len());
        for site in sites {
            let key = granularity.key(site.layer, site.matrix);
            let item = keys.iter().position(|known| *known == key).unwrap_or_else(|| {
                keys.push(key);
                choices.push(vec![Choice { bytes: 0, cost: 0.0 }; count]);
                choices.len() - 1
            });
            for (sum, choice) in choices[item].iter_mut().zip(&site.choices) {
                sum.bytes = sum.bytes.saturating_add(choice.bytes);
                sum.cost += choice.cost;
            }
            item_of.push(item);
        }
        Ok(Self { choices, item_of })
    }

    fn allocation(&self, solution: &Solution, widths: &Widths, fixed: u64) -> Allocation {
        let width = |&item: &usize| widths.as_slice()[solution.choices[item]];
        Allocation {
            widths: self.item_of.iter().map(width).collect(),
            bytes: solution.bytes.saturating_add(fixed),
            cost: solution.cost,
        }
    }
}
