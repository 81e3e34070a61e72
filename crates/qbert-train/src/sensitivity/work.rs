//! One run of the analysis: all its layers in lock step over one sample of the data.
//!
//! A pass over the sample forms the next product of every layer that is not done. The result of a layer does not depend on
//! which other layers share its passes, so shards and resumed runs give the same numbers.

use qbert_documents::AnalysisRun;
use qbert_hessian::{Basis, Lanczos, Method as _, PowerIteration, Trace};
use qbert_kernels::Compute;
use serde::{Deserialize, Serialize};

use super::file::Found;
use super::settings::{Method, Settings};
use crate::batch::Batch;
use crate::bert::{HessianPass, Point};
use crate::error::{Error, Result};
use crate::features::Features;
use crate::loading::Loaded;
use crate::random::Stream;
use crate::team;

/// Tokens of a batch: enough to keep matrix products busy, few enough to stay far below a training step's memory.
const BATCH_TOKENS: usize = 1024;

/// A sample of the data in batches, each with its share of the mean loss.
pub(crate) struct Sample {
    batches: Vec<(Batch, f64)>,
    examples: usize,
}

impl Sample {
    /// The sequences of one run, in batches of similar length.
    pub(crate) fn draw(features: &Features, count: usize, seed: u64, run: usize) -> Result<Self> {
        let mut indices: Vec<usize> = (0..features.len()).collect();
        Stream::new(seed, "analysis sample", run as u64).shuffle(&mut indices);
        indices.truncate(count);
        let examples = indices.len();
        let batches = features.batches_of(indices, BATCH_TOKENS);
        let batches =
            batches.iter().map(|batch| features.batch(batch, true)).collect::<qbert_tasks::Result<Vec<_>>>()?;
        let terms: usize = batches.iter().map(|batch| batch.targets.terms()).sum();
        let share = |batch: Batch| {
            let share = batch.targets.terms() as f64 / terms.max(1) as f64;
            (batch, share)
        };
        Ok(Self { batches: batches.into_iter().map(share).collect(), examples })
    }

    /// Batches with their shares of the mean.
    pub(crate) fn batches(&self) -> &[(Batch, f64)] {
        &self.batches
    }

    /// Number of sequences.
    pub(crate) fn examples(&self) -> usize {
        self.examples
    }

    fn tokens(&self) -> usize {
        self.batches.iter().map(|(batch, _)| batch.tokens()).sum()
    }

    /// The product of every vector with the Hessian block of its layer, all from one pass over the sample: one ordinary
    /// forward and backward pass per batch serves all of them. Returns the mean loss.
    pub(crate) fn products(
        &self,
        loaded: &Loaded,
        compute: &Compute,
        pass: &mut HessianPass,
        run: usize,
        wanted: &mut [Wanted<'_>],
    ) -> Result<f64> {
        let lowest = wanted.iter().map(|wanted| wanted.layer).min().unwrap_or(0);
        wanted.iter_mut().for_each(|wanted| wanted.product.fill(0.0));
        let (bert, weights) = (&loaded.bert, loaded.weights.values());
        let mut loss = 0.0;
        for (batch, share) in &self.batches {
            let point = Point { bert, compute, weights, batch };
            loss += share * pass.prepare(point, lowest, *share).mean;
            for Wanted { layer, vector, product } in &mut *wanted {
                pass.product(point, *layer, vector, product);
            }
        }
        // One sum tells whether any element is NaN or infinite.
        let finite = |product: &[f32]| product.iter().map(|&value| f64::from(value)).sum::<f64>().is_finite();
        match wanted.iter().find(|wanted| !finite(wanted.product)) {
            Some(wanted) => Err(Error::Curvature { run, layer: wanted.layer }),
            None => Ok(loss),
        }
    }
}

/// A vector to multiply with the Hessian block of a layer, and where the product goes.
pub(crate) struct Wanted<'a> {
    pub(crate) layer: usize,
    pub(crate) vector: &'a [f32],
    pub(crate) product: &'a mut [f32],
}

/// Which rank forms each product. Tangents run from their layer to the last one, so lower layers take longer; each goes
/// to the rank that has least to do, the longest first.
fn owners(wanted: &[Wanted<'_>], layers: usize, ranks: usize) -> Vec<usize> {
    let (mut owners, mut load) = (vec![0; wanted.len()], vec![0; ranks]);
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by_key(|&index| wanted[index].layer);
    for index in order {
        let least = (0..ranks).min_by_key(|&rank| (load[rank], rank)).unwrap_or(0);
        owners[index] = least;
        load[least] += layers - wanted[index].layer.min(layers - 1);
    }
    owners
}

/// The eigenvalue iteration of a layer.
#[derive(Debug, Serialize, Deserialize)]
enum Solver {
    Power(PowerIteration),
    Lanczos(Lanczos),
}

impl Solver {
    fn new(settings: &Settings, start: &[f32]) -> Self {
        match settings.method {
            Method::Power => Self::Power(PowerIteration::new(start, settings.stop)),
            Method::Lanczos => Self::Lanczos(Lanczos::new(start, settings.stop, Basis::Forgotten)),
        }
    }

    fn method(&self) -> &dyn qbert_hessian::Method {
        match self {
            Self::Power(power) => power,
            Self::Lanczos(lanczos) => lanczos,
        }
    }

    fn method_mut(&mut self) -> &mut dyn qbert_hessian::Method {
        match self {
            Self::Power(power) => power,
            Self::Lanczos(lanczos) => lanczos,
        }
    }

    fn vectors(&self) -> Vec<&[f32]> {
        match self {
            Self::Power(power) => vec![power.eigenvector()],
            Self::Lanczos(lanczos) => lanczos.vectors().iter().map(Vec::as_slice).collect(),
        }
    }

    fn with_vectors(self, mut vectors: Vec<Vec<f32>>) -> Self {
        match self {
            Self::Power(state) => Self::Power(PowerIteration::restore(state, vectors.swap_remove(0))),
            Self::Lanczos(state) => Self::Lanczos(Lanczos::restore(state, vectors)),
        }
    }
}

/// A layer's work without its vectors, to save it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LayerState {
    pub(super) layer: usize,
    solver: Solver,
    traces: Vec<f64>,
}

/// A layer within a run: first its eigenvalue, then the samples of its trace.
#[derive(Debug)]
pub(super) struct LayerWork {
    state: LayerState,
    probe: Option<Trace>,
    product: Vec<f32>,
}

impl LayerWork {
    pub(super) fn state(&self) -> &LayerState {
        &self.state
    }

    pub(super) fn vectors(&self) -> Vec<&[f32]> {
        self.state.solver.vectors()
    }

    fn vector(&self) -> Option<&[f32]> {
        self.state.solver.method().vector().or_else(|| self.probe.as_ref()?.vector())
    }

    fn found(&self, run: usize) -> Found {
        let (eigenvalue, residual, lowest, iterations, converged) = match &self.state.solver {
            Solver::Power(power) => {
                let found = power.found();
                (found.value, found.residual, None, found.iterations, found.converged)
            }
            Solver::Lanczos(lanczos) => {
                let found = lanczos.spectrum();
                let (value, residual) = found.dominant();
                (value, residual, Some(found.lowest), found.iterations, found.converged)
            }
        };
        let traces = &self.state.traces;
        let trace = (!traces.is_empty()).then(|| traces.iter().sum::<f64>() / traces.len() as f64);
        Found { run, layer: self.state.layer, eigenvalue, residual, lowest, iterations, converged, trace }
    }
}

/// A run in progress.
pub(super) struct RunWork<'a> {
    loaded: &'a Loaded,
    settings: &'a Settings,
    run: usize,
    sample: Sample,
    pass: HessianPass,
    works: Vec<LayerWork>,
    info: AnalysisRun,
}

impl<'a> RunWork<'a> {
    pub(super) fn new(loaded: &'a Loaded, settings: &'a Settings, run: usize) -> Result<Self> {
        let (count, _) = settings.examples(loaded.data.features.len());
        let sample = Sample::draw(&loaded.data.features, count, settings.seed, run)?;
        sample.batches.iter().try_for_each(|(batch, _)| loaded.bert.check(batch))?;
        let info = AnalysisRun { run, examples: sample.examples, tokens: sample.tokens(), loss: 0.0 };
        Ok(Self { loaded, settings, run, sample, pass: HessianPass::new(), works: Vec::new(), info })
    }

    fn size(&self, layer: usize) -> usize {
        self.loaded.bert.layout().layers()[layer].len()
    }

    /// Starts a layer from its starting vector.
    pub(super) fn start(&mut self, layer: usize) {
        let mut start = vec![0.0; self.size(layer)];
        let index = self.run * self.loaded.bert.config().distinct_layers() + layer;
        Stream::new(self.settings.seed, "analysis start", index as u64).fill_normal(&mut start, 1.0);
        let state = LayerState { layer, solver: Solver::new(self.settings, &start), traces: Vec::new() };
        self.add(state);
    }

    /// Continues a layer from its saved work; `None` if the vectors do not fit the layer.
    pub(super) fn restore(&mut self, state: LayerState, vectors: Vec<Vec<f32>>) -> Option<()> {
        if vectors.is_empty() || vectors.iter().any(|vector| vector.len() != self.size(state.layer)) {
            return None;
        }
        let LayerState { layer, solver, traces } = state;
        self.add(LayerState { layer, solver: solver.with_vectors(vectors), traces });
        Some(())
    }

    fn add(&mut self, state: LayerState) {
        let product = vec![0.0; self.size(state.layer)];
        let mut work = LayerWork { state, probe: None, product };
        self.draw_probe(&mut work);
        self.works.push(work);
    }

    /// The next random signs of a layer's trace, once its eigenvalue is found and while samples are missing.
    fn draw_probe(&self, work: &mut LayerWork) {
        let LayerState { layer, traces, .. } = &work.state;
        work.probe = None;
        if work.state.solver.method().vector().is_none() && traces.len() < self.settings.trace {
            let unit = self.run * self.loaded.bert.config().distinct_layers() + layer;
            let index = unit * self.settings.trace + traces.len();
            let mut stream = Stream::new(self.settings.seed, "analysis trace", index as u64);
            let signs = (0..self.size(*layer)).map(|_| if stream.next_u64() >> 63 == 0 { 1.0 } else { -1.0 });
            work.probe = Some(Trace::new(vec![signs.collect()]));
        }
    }

    /// The layers in progress, to save them.
    pub(super) fn works(&self) -> &[LayerWork] {
        &self.works
    }

    /// The run's sample; the loss is known after the first step.
    pub(super) fn info(&self) -> AnalysisRun {
        self.info
    }

    /// One product for every layer that is not done, from one pass over the sample. Returns the layers that are done now.
    pub(super) fn step(&mut self, compute: &Compute) -> Result<Vec<Found>> {
        let mut wanted = Vec::with_capacity(self.works.len());
        for LayerWork { state, probe, product } in &mut self.works {
            let vector = state.solver.method().vector().or_else(|| probe.as_ref()?.vector());
            // Finished layers are no longer in the list.
            wanted.extend(vector.map(|vector| Wanted { layer: state.layer, vector, product }));
        }
        let (sample, run) = (&self.sample, self.run);
        self.info.loss = match compute.ranks() {
            None => sample.products(self.loaded, compute, &mut self.pass, run, &mut wanted)?,
            Some(ranks) => {
                let layers = self.loaded.bert.config().distinct_layers();
                let owners = owners(&wanted, layers, ranks.size());
                let mine = owners.iter().zip(&mut wanted).filter(|(owner, _)| **owner == ranks.rank());
                let mut mine: Vec<Wanted<'_>> = mine
                    .map(|(_, Wanted { layer, vector, product })| Wanted { layer: *layer, vector, product })
                    .collect();
                let loss = match &mut mine[..] {
                    [] => 0.0,
                    mine => sample.products(self.loaded, compute, &mut self.pass, run, mine)?,
                };
                for (Wanted { product, .. }, &owner) in wanted.iter_mut().zip(&owners) {
                    let own = if owner == ranks.rank() { product.to_vec() } else { Vec::new() };
                    let counts: Vec<usize> =
                        (0..ranks.size()).map(|rank| if rank == owner { product.len() } else { 0 }).collect();
                    ranks.gather(&own, &counts, product);
                }
                // All that have a layer have the same loss.
                team::numbers(ranks, &[loss])[owners.first().copied().unwrap_or(0)][0]
            }
        };
        Ok(self.advance())
    }

    fn advance(&mut self) -> Vec<Found> {
        let run = self.run;
        let mut works = std::mem::take(&mut self.works);
        for work in &mut works {
            let LayerWork { state, probe, product } = work;
            if state.solver.method().vector().is_some() {
                state.solver.method_mut().advance(product);
            } else if let Some(probe) = probe {
                probe.advance(product);
                state.traces.push(probe.estimate().mean);
            }
            self.draw_probe(work);
        }
        let (left, done): (Vec<_>, Vec<_>) = works.into_iter().partition(|work| work.vector().is_some());
        self.works = left;
        done.iter().map(|work| work.found(run)).collect()
    }
}
