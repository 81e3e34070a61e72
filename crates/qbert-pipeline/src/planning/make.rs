//! From a request to a plan: the same for every layer, the paper's, or from sensitivities.

use std::path::Path;

use qbert_documents::BitCount;
use qbert_kernels::Threads;
use qbert_model::sizes::file_size;
use qbert_quant::{
    Embedding, EmbeddingPlan, GroupSpec, LayerSensitivity, Metric, ModelShape, Plan, Precision, Preset, RangeMethod,
    Ranking, Site, SitePlan, Widths,
};

use super::choose::Mixed;
use super::origin::Origin;
use super::sensitivity::{self, Measured};
use super::{Model, NewPlan, PlanRequest};
use crate::error::{Error, ErrorKind, Result};

/// Gets the number of sites that are priced, and of all.
pub(super) type Watch<'a> = &'a mut dyn FnMut(usize, usize);

/// Makes the plan of a request without contradictions.
pub(super) fn make(request: &PlanRequest, model: &Model<'_>, threads: &Threads, watch: Watch<'_>) -> Result<NewPlan> {
    if let Some(name) = &request.preset {
        return preset(request, name, model.shape);
    }
    if request.max_drop.is_some() {
        let message = "`plan.max_drop`: such a plan is found by measuring, which needs data".to_owned();
        return Err(Error::new(ErrorKind::BadInput, message, "search for it with training and dev data".to_owned()));
    }
    if request.sensitivity.is_none() {
        return Ok(NewPlan { plan: base(request, model.shape)?, origin: Origin::Uniform });
    }
    let mixed = mixed(request, model)?;
    match request.budget {
        Some(megabytes) => mixed.by_budget(megabytes, threads, watch),
        None => mixed.by_rank(),
    }
}

/// A plan in the making, with the sensitivities that decide about it.
pub(super) fn mixed<'a>(request: &'a PlanRequest, model: &'a Model<'a>) -> Result<Mixed<'a>> {
    let path = request.sensitivity.as_deref().unwrap_or(Path::new(""));
    let (base, widths) = (base(request, model.shape)?, widths(request)?);
    let metric = request.metric.unwrap_or_default();
    let measured = sensitivity::read(path, model.shape.layers)?;
    let ranking = Ranking::new(&measured.layers, metric)
        .map_err(|error| Error::from(error).about(&format!("`plan.metric` {metric}: {}", path.display())))?;
    Ok(Mixed { request, model, base, widths, metric, measured, ranking })
}

/// The request with what a search by measured divergences needs: that metric, and the measured widths if it names none.
pub(super) fn measured_request(request: &PlanRequest, layers: usize) -> Result<PlanRequest> {
    let path = request.sensitivity.as_deref().unwrap_or(Path::new(""));
    let refuse = |message: String, hint: &str| Err(Error::new(ErrorKind::BadInput, message, hint.to_owned()));
    let Some(sites) = sensitivity::read(path, layers)?.sites else {
        let message = format!("`plan.max_drop`: {} has no measured divergences", path.display());
        let hint = "measure them with `qbert analyze --method kl` in the directory of that file";
        return refuse(message, hint);
    };
    let mut request = PlanRequest { metric: Some(Metric::Divergence), ..request.clone() };
    if request.bits.is_empty() {
        let is_everywhere =
            |bits: BitCount| sites.sites.iter().all(|site| site.widths.iter().any(|own| own.bits == bits));
        let first = sites.sites.first().map(|site| &site.widths[..]).unwrap_or_default();
        let everywhere = first.iter().map(|own| own.bits).filter(|&bits| is_everywhere(bits));
        request.bits =
            everywhere.map(|bits| Precision::from_number(bits.get())).collect::<std::result::Result<_, _>>()?;
    }
    if request.bits.len() < 2 {
        let message = "`plan.max_drop`: one width leaves nothing to choose from".to_owned();
        return refuse(message, "give several that were measured, such as `plan.bits` 2,3,4,8");
    }
    Ok(request)
}

/// Makes the plan as if all layers were equally sensitive, as far as possible without reading weights.
pub(super) fn check(request: &PlanRequest, model: &Model<'_>) -> Result<()> {
    let layers = model.shape.layers;
    let plan = match &request.preset {
        Some(name) => preset(request, name, model.shape)?.plan,
        None => base(request, model.shape)?,
    };
    file_size(model.shape, &plan)?;
    decided(request)?;
    if request.preset.is_some() || request.bits.len() < 2 {
        return Ok(());
    }
    let alike = vec![
        LayerSensitivity { mean: 1.0, std: 0.0, trace: Some(1.0), divergence: Some(1.0), error: Some(1.0) };
        layers
    ];
    let metric = request.metric.unwrap_or_default();
    let (measured, ranking) =
        (Measured { task: None, model: None, layers: alike.clone(), sites: None }, Ranking::new(&alike, metric)?);
    let mixed = Mixed { request, model, base: plan, widths: widths(request)?, metric, measured, ranking };
    match (&request.max_drop, request.budget) {
        (Some(limit), _) => limit.check(),
        (None, None) => mixed.by_rank().map(drop),
        (None, Some(megabytes)) => mixed.check_budget(megabytes),
    }
}

/// Refuses several widths without a rule to choose among them, and such a rule without several widths.
fn decided(request: &PlanRequest) -> Result<()> {
    let deciding = [
        ("`plan.high`", !request.high.is_empty()),
        ("`plan.size`", request.size.is_some()),
        ("`plan.budget`", request.budget.is_some()),
        ("`plan.max_drop`", request.max_drop.is_some()),
    ];
    let given = deciding.iter().find(|(_, given)| *given).map(|(setting, _)| *setting);
    let refuse = |message: String, hint: &str| Err(Error::new(ErrorKind::BadInput, message, hint.to_owned()));
    match (request.bits.len(), given) {
        (0 | 1, Some(setting)) => {
            refuse(format!("{setting}: one width leaves nothing to choose from"), "give several: `plan.bits` 2,3")
        }
        (count @ 3.., None) => {
            let message = format!("`plan.bits`: nothing says how many layers get each of {count} widths");
            refuse(message, "add `plan.high` with a number for each higher width, `plan.size` MB or `plan.budget` MB")
        }
        _ if request.embedding_bits.len() > 2 => {
            let message = format!("`plan.embedding_bits`: {} widths", request.embedding_bits.len());
            refuse(message, "give one for all tables, or WORD,REST: 4,8")
        }
        _ => {
            let sizes = [("`plan.size`", request.size), ("`plan.budget`", request.budget)];
            let wrong = sizes.into_iter().find(|(_, size)| size.is_some_and(|size| !(size.is_finite() && size > 0.0)));
            match wrong {
                Some((setting, _)) => refuse(format!("{setting}: not a size"), "give a number of MB, such as 12.5"),
                None => Ok(()),
            }
        }
    }
}

/// The widths to choose from.
fn widths(request: &PlanRequest) -> Result<Widths> {
    Widths::new(request.bits.clone()).map_err(|error| Error::from(error).about("`plan.bits`"))
}

fn preset(request: &PlanRequest, name: &str, shape: &ModelShape) -> Result<NewPlan> {
    let of_preset = |error: qbert_quant::Error| Error::from(error).about("`plan.preset`");
    let preset = Preset::parse(name).map_err(of_preset)?;
    let mut plan = preset.plan(shape.layers).map_err(of_preset)?;
    if request.reverse {
        let widths = || plan.layers().iter().map(|layer| layer.query.bits);
        let (low, high) = (widths().min(), widths().max());
        if let (Some(low), Some(high)) = (low, high) {
            plan = plan.reverse(low, high);
        }
    }
    plan = details(request, shape, plan)?;
    Ok(NewPlan { plan, origin: Origin::Preset { preset: preset.name().to_owned(), reverse: request.reverse } })
}

/// The plan before sensitivities: the given width, or the lowest of those to choose from.
fn base(request: &PlanRequest, shape: &ModelShape) -> Result<Plan> {
    let (attention, ffn, bits) = (request.attention_bits, request.ffn_bits, request.bits.first().copied());
    let lowest = [bits, attention, ffn].into_iter().flatten().min();
    let lowest = lowest.unwrap_or(Precision::Bits(qbert_quant::BitWidth::EIGHT));
    let mut plan = Plan::uniform(shape.layers, lowest, GroupSpec::Count(GroupSpec::DEFAULT_COUNT), RangeMethod::Mse);
    for site in Site::all(shape.layers) {
        if let Site::Layer(_, matrix) = site {
            let own = if matrix.is_attention() { attention } else { ffn };
            plan.site_mut(site)?.bits = own.or(bits).unwrap_or(lowest);
        }
    }
    let groups = GroupSpec::Count(GroupSpec::DEFAULT_COUNT);
    let embedding = SitePlan::new(Precision::Bits(qbert_quant::BitWidth::EIGHT), groups, RangeMethod::Mse);
    details(request, shape, plan.with_embedding(EmbeddingPlan::uniform(embedding)))
}

/// The plan with the groups, ranges, embedding widths and activations of the request.
fn details(request: &PlanRequest, shape: &ModelShape, mut plan: Plan) -> Result<Plan> {
    if let Some(range) = request.range {
        plan = plan.with_weight_range(range);
    }
    if let Some(groups) = groups(request, shape)? {
        for site in Site::all(plan.layers().len()).filter(|site| site.layer().is_some()) {
            plan.site_mut(site)?.groups = groups;
        }
    }
    let mut embedding = *plan.embedding();
    if let (Some(&word), Some(&rest)) = (request.embedding_bits.first(), request.embedding_bits.last()) {
        embedding.word = SitePlan::table(word, embedding.word.groups, embedding.word.range);
        // The other tables are too small for codebooks.
        (embedding.position.bits, embedding.token_type.bits) = (rest.bits, rest.bits);
    }
    let columns = shape.tensors.iter().find(|tensor| tensor.site.layer().is_none()).map_or(1, |table| table.cols);
    for table in Embedding::ALL {
        let own = embedding.get_mut(table);
        // The paper's plans have the paper's groups.
        let usual = request.preset.is_none().then(|| GroupSpec::default_for_table(own.width(), columns));
        own.groups = request.embedding_groups.or(usual).unwrap_or(own.groups);
        if own.product.is_some() && own.groups == GroupSpec::PerRow {
            return Err(Error::from(qbert_quant::Error::RowGroups).about("`plan.embedding_groups`"));
        }
    }
    let mut activation = *plan.activation();
    activation.bits = request.activation_bits.unwrap_or(activation.bits);
    activation.range = request.activation_range.unwrap_or(activation.range);
    Ok(plan.with_embedding(embedding).with_activation(activation))
}

/// The groups of encoder matrices if they differ from the plan's: those of the request, or one per output neuron in a model
/// that is too small for the default.
fn groups(request: &PlanRequest, shape: &ModelShape) -> Result<Option<GroupSpec>> {
    let matrices = shape.tensors.iter().filter(|tensor| tensor.site.layer().is_some());
    let neurons = matrices.map(|tensor| tensor.rows).min().unwrap_or(usize::MAX);
    match request.groups {
        Some(GroupSpec::Count(groups)) if groups > neurons => {
            let problem = qbert_quant::Error::TooManyGroups { groups, neurons };
            let hint =
                format!("give `plan.groups` {neurons} or fewer, or `plan.groups` neuron for one per output neuron");
            Err(Error::new(ErrorKind::BadInput, format!("`plan.groups`: {problem}"), hint))
        }
        None if neurons < GroupSpec::DEFAULT_COUNT => Ok(Some(GroupSpec::default_for(neurons))),
        given => Ok(given),
    }
}
