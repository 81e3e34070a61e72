//! `qbert-paper reproduce`: arguments in, rows, errors of weights or a page out.

mod arguments;
mod list;
mod render;
mod rows;
mod weight_errors;

use qbert_cli::{compute, json, model};
use qbert_model::Checkpoint;
use qbert_paper::{Experiment, MeasuredSensitivity, Study};
use qbert_pipeline::{Error, ErrorKind, Result, planning};
use qbert_train::qat::run::recipe;

pub(crate) use arguments::Options;

/// Does what the arguments ask for; returns what to print.
pub(crate) fn run(options: &Options, quiet: bool) -> Result<String> {
    if let Some(directory) = &options.render {
        return render::run(directory, &options.out, options.readme.as_deref());
    }
    let experiment = experiment(options, quiet)?;
    let trained = experiment.budget.steps.unwrap_or(experiment.budget.epochs) > 0;
    let selection = options.choice.selection(&options.table, trained)?;
    let study = Study::open(experiment)?;
    let rows = study.rows(&selection)?;
    if options.list {
        return list::run(&study, &rows, options.json);
    }
    if options.weight_errors {
        return weight_errors::run(&study, &rows, options, quiet);
    }
    // Before anything is computed: rows that cannot be made, or were made with other settings.
    rows.iter().try_for_each(|row| study.check(row))?;
    let compute = compute(options.threads)?;
    let results = rows::run(&study, &rows, &compute, quiet)?;
    Ok(if options.json { json(&results) } else { rows::table(&results) })
}

fn experiment(options: &Options, quiet: bool) -> Result<Experiment> {
    let task = options.reading.task()?;
    let directory = model::directory(options.model.as_deref().unwrap_or_default(), quiet)?;
    let layers = Checkpoint::open(&directory)?.config().distinct_layers();
    let sensitivity = options.sensitivity.as_ref().map(|path| {
        let measured = planning::read_sensitivity(path, layers)?;
        if let Some(other) = measured.task.filter(|other| other != task.name()) {
            let message = format!("{}: measured on {other}, but the task is {task}", path.display());
            let hint = "use the sensitivities of this task".to_owned();
            return Err(Error::new(ErrorKind::BadInput, message, hint));
        }
        Ok(MeasuredSensitivity { path: path.clone(), layers: measured.layers })
    });
    Ok(Experiment {
        data: options.reading.source(&options.train, &directory)?,
        dev: options.dev.clone().unwrap_or_default(),
        model: directory,
        sensitivity: sensitivity.transpose()?,
        budget: options.budget.apply(recipe(task)),
        max_train: options.budget.max_train,
        max_dev: options.budget.max_dev,
        out: options.out.clone(),
        keep: options.keep,
        redo: options.redo,
    })
}
