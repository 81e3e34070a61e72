//! From wishes to a plan: the same for every layer, the paper's, or from sensitivities.

use qbert_kernels::Threads;
use qbert_model::Checkpoint;
use qbert_model::sizes::{file_size, site_bytes};
use qbert_quant::allocate::budget::{OpenSite, within};
use qbert_quant::allocate::knapsack::Choice;
use qbert_quant::allocate::{assign, counts_within};
use qbert_quant::{
    EmbeddingPlan, GroupSpec, LayerSensitivity, Matrix, Metric, ModelShape, Plan, Precision, Preset, RangeMethod,
    Ranking, Site, SitePlan, SizeBudget, Widths,
};

use super::origin::{By, Cost, Limit, Origin, Ranked, Sensitive, UniformCost};
use super::sensitivity::{self, Measured};
use super::{Made, Model, Wishes};
use crate::error::{Error, ErrorKind, Result};
use crate::{Trial, quantization_errors};

/// The paper's number of groups; a smaller model takes one group per neuron.
const GROUPS: usize = 128;

/// Who hears how many sites of how many are priced.
pub(super) type Watch<'a> = &'a mut dyn FnMut(usize, usize);

/// Makes the plan; the wishes are known not to contradict each other.
pub(super) fn make(options: &Wishes, model: &Model<'_>, threads: &Threads, watch: Watch<'_>) -> Result<Made> {
    if let Some(name) = &options.preset {
        return preset(options, name, model.shape);
    }
    let base = base(options, model.shape)?;
    let Some(path) = &options.sensitivity else {
        return Ok(Made { plan: base, origin: Origin::Uniform });
    };
    let widths = widths(options)?;
    let metric = options.metric.unwrap_or_default();
    let measured = sensitivity::read(path, model.shape.layers)?;
    let ranking = Ranking::new(&measured.layers, metric)
        .map_err(|error| Error::from(error).of_flag(&format!("--metric {metric}: {}", path.display())))?;
    let mixed = Mixed { options, model, base, widths, metric, measured, ranking };
    match options.budget {
        Some(mib) => mixed.by_budget(mib, threads, watch),
        None => mixed.by_rank(),
    }
}

/// Makes the plan as if all layers were equally sensitive, as far as that goes without reading weights.
pub(super) fn check(options: &Wishes, model: &Model<'_>) -> Result<()> {
    let layers = model.shape.layers;
    let plan = match &options.preset {
        Some(name) => preset(options, name, model.shape)?.plan,
        None => base(options, model.shape)?,
    };
    file_size(model.shape, &plan)?;
    decided(options)?;
    if options.preset.is_some() || options.bits.len() < 2 {
        return Ok(());
    }
    let alike = vec![LayerSensitivity { mean: 1.0, std: 0.0, trace: Some(1.0) }; layers];
    let metric = options.metric.unwrap_or_default();
    let (measured, ranking) =
        (Measured { task: None, model: None, layers: alike.clone() }, Ranking::new(&alike, metric)?);
    let mixed = Mixed { options, model, base: plan, widths: widths(options)?, metric, measured, ranking };
    match options.budget {
        None => mixed.by_rank().map(drop),
        Some(mib) => {
            let sites: Vec<Site> = mixed.open_sites().collect();
            let size_budget = mixed.size_budget(&Limit::new(mib))?;
            size_budget.check(mixed.smallest(&sites)?).map_err(|error| Error::from(error).of_flag("--budget"))
        }
    }
}

/// Refuses widths that nothing chooses among, and choices that there are no widths for.
fn decided(options: &Wishes) -> Result<()> {
    let deciding = [
        ("--high", !options.high.is_empty()),
        ("--size", options.size.is_some()),
        ("--budget", options.budget.is_some()),
    ];
    let given = deciding.iter().find(|(_, given)| *given).map(|(flag, _)| *flag);
    let refuse = |message: String, hint: &str| Err(Error::new(ErrorKind::BadInput, message, hint.to_owned()));
    match (options.bits.len(), given) {
        (0 | 1, Some(flag)) => {
            refuse(format!("{flag}: one width leaves nothing to choose from"), "give several: --bits 2,3")
        }
        (count @ 3.., None) => {
            let message = format!("--bits: nothing says how many layers get each of {count} widths");
            refuse(message, "add --high with a number for each higher width, --size MiB or --budget MiB")
        }
        _ if options.embedding_bits.len() > 2 => {
            let message = format!("--embedding-bits: {} widths", options.embedding_bits.len());
            refuse(message, "give one for all tables, or WORD,REST: 4,8")
        }
        _ => {
            let sizes = [("--size", options.size), ("--budget", options.budget)];
            let wrong = sizes.into_iter().find(|(_, size)| size.is_some_and(|size| !(size.is_finite() && size > 0.0)));
            match wrong {
                Some((flag, _)) => refuse(format!("{flag}: that is no size"), "give a number of MiB, such as 12.5"),
                None => Ok(()),
            }
        }
    }
}

/// The widths to choose from.
fn widths(options: &Wishes) -> Result<Widths> {
    let widths = options.bits.iter().map(|&bits| precision("--bits", bits)).collect::<Result<Vec<_>>>()?;
    Widths::new(widths).map_err(|error| Error::from(error).of_flag("--bits"))
}

fn preset(options: &Wishes, name: &str, shape: &ModelShape) -> Result<Made> {
    let of_flag = |error: qbert_quant::Error| Error::from(error).of_flag("--preset");
    let preset = Preset::parse(name).map_err(of_flag)?;
    let mut plan = preset.plan(shape.layers).map_err(of_flag)?;
    if options.reverse {
        let widths = || plan.layers().iter().map(|layer| layer.query.bits);
        let (low, high) = (widths().min(), widths().max());
        if let (Some(low), Some(high)) = (low, high) {
            plan = plan.reverse(low, high);
        }
    }
    plan = details(options, shape, plan)?;
    Ok(Made { plan, origin: Origin::Preset { preset: preset.name().to_owned(), reverse: options.reverse } })
}

/// The plan before sensitivities: the width that is given, or the lowest that is open.
fn base(options: &Wishes, shape: &ModelShape) -> Result<Plan> {
    let module = |flag: &str, bits: Option<u32>| bits.map(|bits| precision(flag, bits)).transpose();
    let attention = module("--attention-bits", options.attention_bits)?;
    let ffn = module("--ffn-bits", options.ffn_bits)?;
    let bits = options.bits.first().map(|&bits| precision("--bits", bits)).transpose()?;
    let lowest = [bits, attention, ffn].into_iter().flatten().min();
    let lowest = lowest.unwrap_or(Precision::Bits(qbert_quant::BitWidth::EIGHT));
    let mut plan = Plan::uniform(shape.layers, lowest, GroupSpec::Count(GROUPS), RangeMethod::Mse);
    for site in Site::all(shape.layers) {
        if let Site::Layer(_, matrix) = site {
            let own = if matrix.is_attention() { attention } else { ffn };
            plan.site_mut(site)?.bits = own.or(bits).unwrap_or(lowest);
        }
    }
    let embedding =
        SitePlan { bits: precision("--embedding-bits", 8)?, groups: GroupSpec::Count(1), range: RangeMethod::Mse };
    details(options, shape, plan.with_embedding(EmbeddingPlan::uniform(embedding)))
}

/// The plan with the groups, ranges and embedding widths that were given.
fn details(options: &Wishes, shape: &ModelShape, mut plan: Plan) -> Result<Plan> {
    if let Some(range) = options.range {
        plan = plan.with_weight_range(range);
    }
    if let Some(groups) = groups(options, shape)? {
        for site in Site::all(plan.layers().len()).filter(|site| site.layer().is_some()) {
            plan.site_mut(site)?.groups = groups;
        }
    }
    let mut embedding = *plan.embedding();
    if let Some(groups) = options.embedding_groups {
        (embedding.word.groups, embedding.position.groups, embedding.token_type.groups) = (groups, groups, groups);
    }
    if let (Some(&word), Some(&rest)) = (options.embedding_bits.first(), options.embedding_bits.last()) {
        let rest = precision("--embedding-bits", rest)?;
        embedding.word.bits = precision("--embedding-bits", word)?;
        (embedding.position.bits, embedding.token_type.bits) = (rest, rest);
    }
    Ok(plan.with_embedding(embedding))
}

/// The groups of encoder matrices, where they are not the plan's own: those that were given, or one for each output neuron
/// in a model that is too small for the usual number.
fn groups(options: &Wishes, shape: &ModelShape) -> Result<Option<GroupSpec>> {
    let matrices = shape.tensors.iter().filter(|tensor| tensor.site.layer().is_some());
    let neurons = matrices.map(|tensor| tensor.rows).min().unwrap_or(GROUPS);
    match options.groups {
        Some(GroupSpec::Count(groups)) if groups > neurons => {
            let problem = qbert_quant::Error::TooManyGroups { groups, neurons };
            let hint = format!("give --groups {neurons} or fewer, or --groups neuron for one per output neuron");
            Err(Error::new(ErrorKind::BadInput, format!("--groups: {problem}"), hint))
        }
        None if neurons < GROUPS => Ok(Some(GroupSpec::Count(neurons))),
        given => Ok(given),
    }
}

/// A width, or what is wrong with it, said of a flag.
pub(super) fn precision(flag: &str, bits: u32) -> Result<Precision> {
    Precision::from_number(i64::from(bits)).map_err(|error| Error::from(error).of_flag(flag))
}

/// A plan in the making, with several widths to choose from.
struct Mixed<'data> {
    options: &'data Wishes,
    model: &'data Model<'data>,
    /// Every open matrix at the lowest width.
    base: Plan,
    widths: Widths,
    metric: Metric,
    measured: Measured,
    ranking: Ranking,
}

impl Mixed<'_> {
    /// The matrices whose width is not given.
    fn open_matrices(&self) -> impl Iterator<Item = Matrix> {
        let (attention, ffn) = (self.options.attention_bits.is_none(), self.options.ffn_bits.is_none());
        Matrix::ALL.into_iter().filter(move |matrix| if matrix.is_attention() { attention } else { ffn })
    }

    fn open_sites(&self) -> impl Iterator<Item = Site> {
        let layers = 0..self.model.shape.layers;
        layers.flat_map(|layer| self.open_matrices().map(move |matrix| Site::Layer(layer, matrix)))
    }

    /// What a site takes at a width.
    fn bytes(&self, site: Site, bits: Precision) -> Result<u64> {
        let planned = SitePlan { bits, ..*self.base.site(site)? };
        Ok(site_bytes(self.model.shape, site, &planned)?)
    }

    fn size_budget(&self, limit: &Limit) -> Result<SizeBudget> {
        let all = file_size(self.model.shape, &self.base)?.total();
        let open = self.open_sites().map(|site| self.bytes(site, self.widths.lowest()));
        Ok(SizeBudget { limit: limit.bytes, fixed: all - open.sum::<Result<u64>>()? })
    }

    /// `--high` and `--size`: one width for a layer, in the order of the ranking.
    fn by_rank(self) -> Result<Made> {
        let limit = self.options.size.map(Limit::new);
        let (flag, higher) = match &limit {
            None => ("--high", self.options.high.clone()),
            Some(limit) => {
                let layer = |&width: &Precision| {
                    self.open_matrices().map(|matrix| self.bytes(Site::Layer(0, matrix), width)).sum::<Result<u64>>()
                };
                let sizes = self.widths.as_slice().iter().map(layer).collect::<Result<Vec<_>>>()?;
                let counts = counts_within(&self.ranking, &self.widths, &sizes, self.size_budget(limit)?);
                ("--size", counts.map_err(|error| Error::from(error).of_flag("--size"))?)
            }
        };
        let along = if self.options.reverse { self.ranking.clone().reversed() } else { self.ranking.clone() };
        let assigned = assign(&along, &self.widths, &higher).map_err(|error| Error::from(error).of_flag(flag))?;
        let mut plan = self.base.clone();
        for site in self.open_sites() {
            plan.site_mut(site)?.bits = assigned[site.layer().unwrap_or(0)];
        }
        let by = if limit.is_some() { By::Size } else { By::High };
        let sensitive = Sensitive { higher: Some(higher), limit, ..self.origin(by) };
        Ok(Made { plan, origin: Origin::Sensitivity(Box::new(sensitive)) })
    }

    /// `--budget`: the exact optimum over all widths of all matrices.
    fn by_budget(self, mib: f64, threads: &Threads, watch: Watch<'_>) -> Result<Made> {
        let of_flag = |error: qbert_quant::Error| Error::from(error).of_flag("--budget");
        let limit = Limit::new(mib);
        let granularity = self.options.granularity.unwrap_or_default();
        let size_budget = self.size_budget(&limit)?;
        let sites: Vec<Site> = self.open_sites().collect();
        // Said before the weights are read, which may take a while.
        size_budget.check(self.smallest(&sites)?).map_err(of_flag)?;
        let open = self.price(&sites, threads, watch)?;
        let best = within(&open, &self.widths, granularity, size_budget).map_err(of_flag)?;
        let mut plan = self.base.clone();
        for (&site, &width) in sites.iter().zip(&best.widths) {
            plan.site_mut(site)?.bits = width;
        }
        let uniform = self.widths.as_slice().iter().enumerate().map(|(index, width)| UniformCost {
            bits: width.number(),
            predicted_cost: open.iter().map(|site| site.choices[index].cost).sum(),
            file_bytes: size_budget.fixed + open.iter().map(|site| site.choices[index].bytes).sum::<u64>(),
        });
        let cost = Cost { granularity, predicted_cost: best.cost, uniform: uniform.collect() };
        let sensitive = Sensitive { limit: Some(limit), cost: Some(cost), ..self.origin(By::Budget) };
        Ok(Made { plan, origin: Origin::Sensitivity(Box::new(sensitive)) })
    }

    /// The least that these sites take together.
    fn smallest(&self, sites: &[Site]) -> Result<u64> {
        let least = |&site: &Site| {
            let sizes = self.widths.as_slice().iter().map(|&width| self.bytes(site, width));
            Ok(sizes.collect::<Result<Vec<_>>>()?.into_iter().min().unwrap_or(0))
        };
        sites.iter().map(least).sum()
    }

    /// The size of every site at every width, and its cost: sensitivity times squared error of the weights.
    fn price(&self, sites: &[Site], threads: &Threads, watch: Watch<'_>) -> Result<Vec<OpenSite>> {
        let parameters = Checkpoint::open(self.model.directory)?.load()?;
        let site = self.base.site(sites.first().copied().unwrap_or(Site::Layer(0, Matrix::Query)))?;
        let widths = self.widths.as_slice().to_vec();
        let trial = Trial { widths, groups: site.groups, range: site.range, heads: self.model.shape.heads };
        let errors = quantization_errors(&parameters, sites, &trial, threads, watch)?;
        let priced = |(&site, errors): (&Site, Vec<f64>)| {
            let Site::Layer(layer, matrix) = site else { return Ok(None) };
            let weight = self.ranking.values()[layer];
            let choices = self.widths.as_slice().iter().zip(errors);
            let choices =
                choices.map(|(&width, error)| Ok(Choice { bytes: self.bytes(site, width)?, cost: weight * error }));
            Ok(Some(OpenSite { layer, matrix, choices: choices.collect::<Result<_>>()? }))
        };
        sites.iter().zip(errors).map(priced).filter_map(Result::transpose).collect()
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
            file: self.options.sensitivity.as_ref().map_or_else(String::new, |path| path.display().to_string()),
            task: self.measured.task.clone(),
            metric: self.metric,
            reverse: self.options.reverse,
            widths: self.widths.clone(),
            attention_bits: self.options.attention_bits,
            ffn_bits: self.options.ffn_bits,
            ranking: ranked.collect(),
            higher: None,
            limit: None,
            cost: None,
        }
    }
}
