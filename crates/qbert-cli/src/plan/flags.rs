//! Which flags of `qbert plan` go together. Checked here rather than by clap, so that the error for a contradiction says what
//! to do about it, before the model is opened.

use qbert_pipeline::{Error, ErrorKind, Result};

use super::Options;

/// The flags, in the order of the help, with whether each was given.
struct Given {
    bits: bool,
    modules: Vec<&'static str>,
    /// What decides how many layers get a higher width.
    deciding: Vec<&'static str>,
    /// What needs sensitivities.
    of_sensitivity: Vec<&'static str>,
    /// How weights and embeddings are quantized.
    details: Vec<&'static str>,
    /// What only a plan that is measured needs.
    of_measuring: Vec<&'static str>,
}

impl Given {
    fn new(options: &Options) -> Self {
        let those = |flags: &[(&'static str, bool)]| {
            flags.iter().filter(|(_, given)| *given).map(|(flag, _)| *flag).collect::<Vec<_>>()
        };
        let deciding = [
            ("--high", !options.high.is_empty()),
            ("--size", options.size.is_some()),
            ("--budget", options.budget.is_some()),
            ("--max-drop", options.max_drop.is_some()),
        ];
        let choosing = [
            ("--granularity", options.granularity.is_some()),
            ("--metric", options.metric.is_some()),
            ("--reverse", options.reverse),
        ];
        Self {
            bits: !options.bits.is_empty(),
            modules: those(&[
                ("--attention-bits", options.attention_bits.is_some()),
                ("--ffn-bits", options.ffn_bits.is_some()),
            ]),
            deciding: those(&deciding),
            of_sensitivity: those(&[&deciding[..], &choosing].concat()),
            details: those(&[
                ("--groups", options.groups.is_some()),
                ("--range", options.range.is_some()),
                ("--embedding-bits", !options.embedding_bits.is_empty()),
                ("--embedding-groups", options.embedding_groups.is_some()),
                ("--activation-bits", options.activation_bits.is_some()),
                ("--activation-range", options.activation_range.is_some()),
            ]),
            of_measuring: those(&[
                ("--confidence", options.confidence.is_some()),
                ("--tries", options.tries.is_some()),
                ("--task", options.reading.is_task_given()),
                ("--train", !options.train.is_empty()),
                ("--dev", options.dev.is_some()),
            ]),
        }
    }

    /// The flags that set widths.
    fn of_widths(&self, options: &Options) -> Vec<&'static str> {
        let bits = self.bits.then_some("--bits");
        let sensitivity = options.sensitivity.is_some().then_some("--sensitivity");
        let all = bits.into_iter().chain(self.modules.iter().copied()).chain(sensitivity);
        all.chain(self.of_sensitivity.iter().copied()).collect()
    }
}

/// Refuses flags that contradict each other or would have no effect.
pub(super) fn check(options: &Options) -> Result<()> {
    let given = Given::new(options);
    if let (None, Some(flag)) = (options.max_drop, given.of_measuring.first()) {
        let message = format!("{flag} has no effect: only --max-drop measures plans");
        return refuse(message, format!("add --max-drop POINTS, or leave {flag} out"));
    }
    if options.check.is_some() {
        return check_alone(options, &given);
    }
    if options.preset.is_some() {
        return preset_alone(options, &given);
    }
    widths(options, &given)?;
    sensitivities(options, &given)?;
    measuring(options)?;
    for (flag, size) in [("--size", options.size), ("--budget", options.budget)] {
        if let Some(size) = size.filter(|size| !(size.is_finite() && *size > 0.0)) {
            return refuse(
                format!("{flag}: {size} is not a size"),
                format!("give a number of MB, such as {flag} 12.5"),
            );
        }
    }
    if options.embedding_bits.len() > 2 {
        let count = options.embedding_bits.len();
        return refuse(format!("--embedding-bits: {count} widths"), "give one for all tables, or WORD,REST: 4,8");
    }
    Ok(())
}

fn check_alone(options: &Options, given: &Given) -> Result<()> {
    let preset = options.preset.is_some().then_some("--preset");
    let widths = given.of_widths(options);
    let first = preset.into_iter().chain(widths).chain(given.details.iter().copied()).next();
    first.map_or(Ok(()), |flag| {
        let message = format!("--check takes the plan as it is, so {flag} has no effect");
        refuse(message, format!("leave {flag} out, or make a new plan without --check"))
    })
}

fn preset_alone(options: &Options, given: &Given) -> Result<()> {
    // The paper reverses its own plans in App. C.1.
    let other = given.of_widths(options).into_iter().find(|flag| *flag != "--reverse");
    other.map_or(Ok(()), |flag| {
        let message = format!("--preset has the widths of every layer already, so {flag} has no effect");
        refuse(message, format!("give either --preset or {flag}"))
    })
}

fn widths(options: &Options, given: &Given) -> Result<()> {
    match given.modules[..] {
        [_, _] if given.bits => {
            let message = "--attention-bits and --ffn-bits together leave nothing for --bits";
            refuse(message, "leave out the one whose matrices --bits is for, or --bits")
        }
        [one] if !given.bits && options.max_drop.is_none() => {
            let other = if one == "--ffn-bits" { "--attention-bits" } else { "--ffn-bits" };
            refuse(
                format!("{one} alone leaves the other matrices open"),
                format!("add {other}, or --bits for the rest"),
            )
        }
        _ if options.bits.len() > 1 && options.sensitivity.is_none() => {
            let message = format!("--bits: nothing says which layer gets which of {} widths", options.bits.len());
            refuse(message, "give one width, or the sensitivities of the layers: --sensitivity FILE")
        }
        _ => Ok(()),
    }
}

fn sensitivities(options: &Options, given: &Given) -> Result<()> {
    if options.sensitivity.is_none() {
        return match given.of_sensitivity.first() {
            Some(flag) => refuse(
                format!("{flag} needs the sensitivities of the layers"),
                match *flag {
                    "--max-drop" => "add --sensitivity FILE (from `qbert analyze --method kl`)",
                    _ => "add --sensitivity FILE (from `qbert analyze`)",
                },
            ),
            None => Ok(()),
        };
    }
    if !given.bits && options.max_drop.is_none() {
        let message = "--sensitivity: all widths are given already";
        return refuse(message, "add --bits with the widths to choose from, such as --bits 2,3");
    }
    match given.deciding[..] {
        [] => {
            let message = "--sensitivity says which layers come first, but not how far to go";
            return refuse(message, "add --high N, --size MB, --budget MB or --max-drop POINTS");
        }
        [one, other, ..] => {
            return refuse(format!("{one} and {other} both decide the widths"), "give one of them");
        }
        [_] => {}
    }
    if options.reverse && (options.budget.is_some() || options.max_drop.is_some()) {
        let message = "--reverse: the best widths of a size follow no order that could be turned round";
        return refuse(message, "use --reverse with --high or --size");
    }
    if options.granularity.is_some() && options.budget.is_none() && options.max_drop.is_none() {
        let message = "--granularity: --high and --size give one width to all matrices of a layer";
        return refuse(message, "use --granularity with --budget or --max-drop");
    }
    Ok(())
}

/// What a plan that is measured needs.
fn measuring(options: &Options) -> Result<()> {
    let Some(limit) = options.request()?.max_drop else { return Ok(()) };
    limit.check()?;
    let needed = [
        ("--task", options.reading.is_task_given(), "the task that the metric is of, such as --task sst2"),
        ("--train", !options.train.is_empty(), "training files to calibrate with"),
        ("--dev", options.dev.is_some(), "a file to measure the drop on"),
        ("--out", options.out.is_some(), "a file for the plan; every plan tried is kept beside it"),
    ];
    if let Some((flag, _, what)) = needed.iter().find(|(_, given, _)| !given) {
        return refuse(format!("--max-drop needs {flag}"), format!("give {what}"));
    }
    match options.metric.as_deref() {
        None | Some("kl") => Ok(()),
        Some(other) => {
            let message = format!("--metric {other}: --max-drop goes by measured divergence");
            refuse(message, "leave --metric out")
        }
    }
}

fn refuse(message: impl Into<String>, hint: impl Into<String>) -> Result<()> {
    Err(Error::new(ErrorKind::BadInput, message, hint.into()))
}
