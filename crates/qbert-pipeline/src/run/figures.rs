//! Figures that only the report needs: the loss around the most and the least sensitive layer (`landscape.json`) and how far
//! attention moved (`attention-kl.json`), as `qbert landscape` and `qbert attention-kl` write them.

use qbert_quant::{Metric, Ranking};
use qbert_train::attention_kl::{self, attention_kl_from};
use qbert_train::landscape::{self, landscapes_on};
use qbert_train::loading::read_data;
use qbert_train::sensitivity::{self, FILE as SENSITIVITY};
use serde_json::json;

use super::context::{Context, Step};
use super::{CHECKPOINT, Stage, analyze, verify, write_document};
use crate::error::Result;
use crate::planning;

pub(super) const LANDSCAPE: &str = "landscape.json";
pub(super) const ATTENTION: &str = "attention-kl.json";

pub(super) fn stage(context: &mut Context<'_>) -> Result<()> {
    let job = context.job;
    let Some(figures) = &job.figures else {
        // Otherwise the report would show the figures of another model.
        context.put_away(&[LANDSCAPE, ATTENTION])?;
        context.pass_over(Stage::Figures, "not asked for");
        return Ok(());
    };
    let (model, checkpoint) = (context.model(), job.path(CHECKPOINT));
    let layers = layers(context)?;
    let step = Step {
        stage: Stage::Figures,
        inputs: json!({
            "model": context.model_hash()?,
            "checkpoint": context.checkpoint_hash()?,
            "layers": layers,
            "settings": figures,
        }),
        replaces: &[LANDSCAPE, ATTENTION],
    };
    context.perform(step, |context| {
        let (compute, watch, shared) = (context.compute, &mut *context.watch, &mut context.checked.shared);
        let around =
            landscape::Job { model: model.clone(), data: job.data.clone(), layers, settings: figures.landscape };
        let data = read_data(&model, &job.data, shared)?;
        let mut results = vec![ATTENTION.to_owned()];
        match landscapes_on(&around, data, compute, &mut |what, done, total| watch.progress(done, total, what)) {
            Ok(found) => {
                write_document(&job.path(LANDSCAPE), &found)?;
                results.push(LANDSCAPE.to_owned());
            }
            // A layer that the loss does not depend on has no landscape; everything else of the run stands.
            Err(qbert_train::Error::Batch { problem }) => watch.say(&format!("no loss landscape: {problem}")),
            Err(error) => return Err(error.into()),
        }
        let between =
            attention_kl::Job { first: model, second: checkpoint, data: job.dev_data(), settings: figures.attention };
        let found =
            attention_kl_from(shared, &between, compute, &mut |done, total| watch.progress(done, total, "attention"))?;
        write_document(&job.path(ATTENTION), &found)?;
        Ok(results)
    })
}

/// The most and the least sensitive layer, or the first and the last if there was no analysis.
fn layers(context: &Context<'_>) -> Result<Vec<usize>> {
    let job = context.job;
    let order = if verify::is_asked(job) {
        let layers = planning::shape(&context.model())?.layers;
        let measured = planning::read_sensitivity(&job.path(SENSITIVITY), layers)?;
        Ranking::new(&measured.layers, Metric::Divergence)?.order().to_vec()
    } else if analyze::is_needed(job) {
        sensitivity::read(&job.path(SENSITIVITY))?.ranking
    } else {
        (0..planning::shape(&context.model())?.layers).collect()
    };
    let mut layers: Vec<usize> = order.first().into_iter().chain(order.last()).copied().collect();
    layers.dedup();
    Ok(layers)
}
