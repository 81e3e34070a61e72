//! Choosing a width for every layer or matrix by sensitivity: in the order of the ranking, or the optimum within a budget.

use qbert_documents::BitCount;
use qbert_kernels::Threads;
use qbert_model::Checkpoint;
use qbert_model::sizes::{file_size, site_bytes};
use qbert_quant::allocate::budget::{self, Allocation, OpenSite, within};
use qbert_quant::allocate::knapsack::Choice;
use qbert_quant::allocate::{assign, counts_within};
use qbert_quant::{Matrix, Metric, Plan, Precision, Ranking, Site, SitePlan, SizeBudget, Widths};

use super::make::Watch;
use super::origin::{By, Cost, Found, Limit, Origin, Ranked, Sensitive, UniformCost};
use super::sensitivity::Measured;
use super::{Model, NewPlan, PlanRequest, Trial, quantization_errors};
use crate::error::{Error, ErrorKind, Result};

/// A plan in the making, with several widths to choose from.
pub(super) struct Mixed<'data> {
    pub(super) request: &'data PlanRequest,
    pub(super) model: &'data Model<'data>,
    /// Every open matrix at the lowest width.
    pub(super) base: Plan,
    pub(super) widths: Widths,
    pub(super) metric: Metric,
    pub(super) measured: Measured,
    pub(super) ranking: Ranking,
}

impl Mixed<'_> {
    /// The matrices without a width of their own in the request.
    fn open_matrices(&self) -> impl Iterator<Item = Matrix> {
        let (attention, ffn) = (self.request.attention_bits.is_none(), self.request.ffn_bits.is_none());
        Matrix::ALL.into_iter().filter(move |matrix| if matrix.is_attention() { attention } else { ffn })
    }

    fn open_sites(&self) -> impl Iterator<Item = Site> {
        let layers = 0..self.model.shape.layers;
        layers.flat_map(|layer| self.open_matrices().map(move |matrix| Site::Layer(layer, matrix)))
    }

    /// The bytes of a site at a width.
    fn bytes(&self, site: Site, bits: Precision) -> Result<u64> {
        let planned = SitePlan { bits, ..*self.base.site(site)? };
        Ok(site_bytes(self.model.shape, site, &planned)?)
    }

    fn size_budget(&self, limit: &Limit) -> Result<SizeBudget> {
        Ok(SizeBudget { limit: limit.bytes, fixed: self.fixed_bytes()? })
    }

    /// The bytes of the packed file that no choice of widths changes.
    fn fixed_bytes(&self) -> Result<u64> {
        let all = file_size(self.model.shape, &self.base)?.total();
        let open = self.open_sites().map(|site| self.bytes(site, self.widths.lowest()));
        Ok(all - open.sum::<Result<u64>>()? + self.model.besides_weights()?)
    }

    /// The plan with these widths of the open sites.
    pub(super) fn with_widths(&self, widths: &[Precision]) -> Result<Plan> {
        let mut plan = self.base.clone();
        for (site, &width) in self.open_sites().zip(widths) {
            plan.site_mut(site)?.bits = width;
        }
        Ok(plan)
    }

    /// The plan with one width for all matrices of the encoder.
    pub(super) fn at(&self, width: Precision) -> Result<Plan> {
        let mut plan = self.base.clone();
        for site in Site::all(self.model.shape.layers).filter(|site| site.layer().is_some()) {
            plan.site_mut(site)?.bits = width;
        }
        Ok(plan)
    }

    /// The best widths of every size by measured divergence, smallest first; sizes are those of the whole file.
    pub(super) fn frontier(&self) -> Result<Vec<Allocation>> {
        let sites = self.open_sites().filter_map(|site| self.price_measured(site).transpose());
        let sites = sites.collect::<Result<Vec<OpenSite>>>()?;
        let granularity = self.request.granularity.unwrap_or_default();
        Ok(budget::frontier(&sites, &self.widths, granularity, self.fixed_bytes()?)?)
    }

    /// How a plan of the frontier was found.
    pub(super) fn by_measurement(&self, found: Found) -> Sensitive {
        Sensitive { found: Some(found), ..self.origin(By::MaxDrop) }
    }

    /// One width for each layer, in the order of the ranking: for `high` and `size`.
    pub(super) fn by_rank(self) -> Result<NewPlan> {
        let limit = self.request.size.map(Limit::new);
        let (setting, higher) = match &limit {
            None => ("`plan.high`", self.request.high.clone()),
            Some(limit) => {
                let layer = |&width: &Precision| {
                    self.open_matrices().map(|matrix| self.bytes(Site::Layer(0, matrix), width)).sum::<Result<u64>>()
                };
                let sizes = self.widths.as_slice().iter().map(layer).collect::<Result<Vec<_>>>()?;
                let counts = counts_within(&self.ranking, &self.widths, &sizes, self.size_budget(limit)?);
                ("`plan.size`", counts.map_err(|error| Error::from(error).about("`plan.size`"))?)
            }
        };
        let along = if self.request.reverse { self.ranking.clone().reversed() } else { self.ranking.clone() };
        let assigned = assign(&along, &self.widths, &higher).map_err(|error| Error::from(error).about(setting))?;
        let mut plan = self.base.clone();
        for site in self.open_sites() {
            plan.site_mut(site)?.bits = assigned[site.layer().unwrap_or(0)];
        }
        let by = if limit.is_some() { By::Size } else { By::High };
        let sensitive = Sensitive { higher: Some(higher), limit, ..self.origin(by) };
        Ok(NewPlan { plan, origin: Origin::Sensitivity(Box::new(sensitive)) })
    }

    /// The exact optimum over all widths of all matrices: for `budget`.
    pub(super) fn by_budget(self, megabytes: f64, threads: &Threads, watch: Watch<'_>) -> Result<NewPlan> {
        let of_budget = |error: qbert_quant::Error| Error::from(error).about("`plan.budget`");
        let limit = Limit::new(megabytes);
        let granularity = self.request.granularity.unwrap_or_default();
        let (sites, size_budget) = (self.open_sites().collect::<Vec<Site>>(), self.size_budget(&limit)?);
        // Before the weights are read, which may take a while.
        size_budget.check(self.smallest(&sites)?).map_err(of_budget)?;
        let open = self.price(&sites, threads, watch)?;
        let best = within(&open, &self.widths, granularity, size_budget).map_err(of_budget)?;
        let plan = self.with_widths(&best.widths)?;
        let uniform = self.widths.as_slice().iter().enumerate().map(|(index, width)| UniformCost {
            bits: *width,
            predicted_cost: open.iter().map(|site| site.choices[index].cost).sum(),
            file_bytes: size_budget.fixed + open.iter().map(|site| site.choices[index].bytes).sum::<u64>(),
        });
        let cost = Cost { granularity, predicted_cost: best.cost, uniform: uniform.collect() };
        let sensitive = Sensitive { limit: Some(limit), cost: Some(cost), ..self.origin(By::Budget) };
        Ok(NewPlan { plan, origin: Origin::Sensitivity(Box::new(sensitive)) })
    }

    /// Checks that something fits in a budget, without reading the weights.
    pub(super) fn check_budget(&self, megabytes: f64) -> Result<()> {
        let sites: Vec<Site> = self.open_sites().collect();
        let size_budget = self.size_budget(&Limit::new(megabytes))?;
        size_budget.check(self.smallest(&sites)?).map_err(|error| Error::from(error).about("`plan.budget`"))
    }

    /// The fewest bytes that these sites take together.
    fn smallest(&self, sites: &[Site]) -> Result<u64> {
        let least = |&site: &Site| {
            let sizes = self.widths.as_slice().iter().map(|&width| self.bytes(site, width));
            Ok(sizes.collect::<Result<Vec<_>>>()?.into_iter().min().unwrap_or(0))
        };
        sites.iter().map(least).sum()
    }

    /// The size of every site at every width, and its cost: sensitivity times squared error of the weights, or the
    /// divergence that was measured.
    fn price(&self, sites: &[Site], threads: &Threads, watch: Watch<'_>) -> Result<Vec<OpenSite>> {
        if self.metric == Metric::Divergence {
            return sites.iter().filter_map(|&site| self.price_measured(site).transpose()).collect();
        }
        let parameters = Checkpoint::open(self.model.directory)?.load()?;
        let site = self.base.site(sites.first().copied().unwrap_or(Site::Layer(0, Matrix::Query)))?;
        let widths = self.widths.as_slice().to_vec();
        let trial = Trial { widths, groups: site.groups, range: site.range, heads: self.model.shape.heads };
        let errors = quantization_errors(&parameters, sites, &trial, threads, watch)?;
        let priced = |(&site, errors): (&Site, Vec<f64>)| {
            let Site::Layer(layer, matrix) = site else { return Ok(None) };
            let weight = match self.metric {
                // The error at each width is the other factor.
                Metric::TraceError => Metric::Trace.of(&self.measured.layers[layer], layer)?,
                _ => self.ranking.values()[layer],
            };
            let choices = self.widths.as_slice().iter().zip(errors);
            let choices =
                choices.map(|(&width, error)| Ok(Choice { bytes: self.bytes(site, width)?, cost: weight * error }));
            Ok(Some(OpenSite { layer, matrix, choices: choices.collect::<Result<_>>()? }))
        };
        sites.iter().zip(errors).map(priced).filter_map(Result::transpose).collect()
    }

    /// The size and the measured divergence of a matrix at every width.
    fn price_measured(&self, site: Site) -> Result<Option<OpenSite>> {
        let Site::Layer(layer, matrix) = site else { return Ok(None) };
        let name = site.to_string();
        let sites = self.measured.sites.iter().flat_map(|own| &own.sites);
        let found = sites.into_iter().find(|own| own.site == name);
        let choice = |&width: &Precision| {
            let bits = BitCount::from(width.number());
            let measured = found.and_then(|own| own.widths.iter().find(|own| own.bits == bits));
            let cost = match measured {
                Some(own) => own.divergence,
                None if width == Precision::Full => 0.0,
                None => {
                    let message = format!("`plan.bits`: {name} was not measured at {bits} bits");
                    let hint = "measure with that width too (`qbert analyze --method kl --widths …`), or leave it out";
                    return Err(Error::new(ErrorKind::BadInput, message, hint.to_owned()));
                }
            };
            // Divergences are not negative but for rounding.
            Ok(Choice { bytes: self.bytes(site, width)?, cost: cost.max(0.0) })
        };
        let choices = self.widths.as_slice().iter().map(choice).collect::<Result<_>>()?;
        Ok(Some(OpenSite { layer, matrix, choices }))
    }

    fn origin(&self, by: By) -> Sensitive {
        let ranked = self.ranking.order().iter().map(|&layer| Ranked {
            layer,
            sensitivity: self.ranking.values()[layer],
            omega: self.measured.layers[layer].omega(),
            measured: self.measured.layers[layer],
        });
        Sensitive {
            by,
            file: self.request.sensitivity.as_ref().map_or_else(String::new, |path| path.display().to_string()),
            task: self.measured.task.clone(),
            metric: self.metric,
            reverse: self.request.reverse,
            widths: self.widths.clone(),
            attention_bits: self.request.attention_bits,
            ffn_bits: self.request.ffn_bits,
            ranking: ranked.collect(),
            higher: None,
            limit: None,
            cost: None,
            found: None,
        }
    }
}
