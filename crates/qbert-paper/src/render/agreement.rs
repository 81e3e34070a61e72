//! The paper's statements beside our figures: which hold, which do not, and which are within noise.

use std::fmt::Write as _;

use super::collect::{Collected, Variant};
use super::compare::{CLAIMS, Claim, Difference, ERRORS, LOST, Verdict};
use super::markdown::MarkdownTable;
use super::{shown, task_title};
use qbert_pipeline::Result;

/// The paper's statements, in its own setting and in the others.
pub(super) fn agreement(all: &[Collected]) -> Result<String> {
    let mut text = format!(
        "Each line is a statement of the paper about a difference between scores, in points of the task's metric. It shows the \
         paper's difference and ours with its standard error, which covers the choice of the dev examples (both models were \
         scored on the same ones) and of the seeds (n). A row with one seed uses the mean variance of the three rows of the \
         task with several seeds and the most similar drop, if there are any. A * marks rows that do not record the \
         outcome of each example: their error assumes different examples (entities for NER), and is usually too large. \
         Questions about one text count as independent.\n\n\
         A difference of at least {ERRORS} standard errors counts: the statement *holds* or *does not hold*. Anything \
         smaller is *within noise*. If all rows of a statement are {LOST} points or more below full precision, *nothing* was \
         *learned*, and their difference means nothing.\n\n"
    );
    let _ = write!(text, "Number of statements, counted once for each task:\n\n{}\n", counts(all)?);
    for variant in shown(all) {
        let (run, rest) = split(all, variant)?;
        let _ = write!(text, "### With {}\n\n", variant.text());
        if !run.is_empty() {
            let _ = write!(text, "{}\n{}", claims(all, variant, &run)?, lists(all, variant, &run)?);
        }
        text += &missing(&run, &rest);
    }
    Ok(text)
}

/// How many statements hold and do not, in every setting.
fn counts(all: &[Collected]) -> Result<MarkdownTable> {
    let verdicts = [Verdict::Holds, Verdict::WithinNoise, Verdict::DoesNotHold];
    let words = verdicts.iter().map(|verdict| verdict.word()).chain(["nothing learned"]);
    let mut table = MarkdownTable::new(std::iter::once("with").chain(words));
    for variant in shown(all) {
        let measured = |collected| CLAIMS.iter().map(move |claim| claim.measured(collected, variant));
        let found = all.iter().flat_map(measured).collect::<Result<Vec<Difference>>>()?;
        let count = |is: &dyn Fn(&&Difference) -> bool| found.iter().filter(is).count().to_string();
        let mut cells = vec![variant.text()];
        cells.extend(verdicts.map(|verdict| count(&|difference| difference.verdict() == Some(verdict))));
        cells.push(count(&|difference| **difference == Difference::Lost));
        if found.iter().any(|difference| *difference != Difference::NotRun) {
            table.row(cells);
        }
    }
    Ok(table)
}

/// The statements that some task has the runs for, and the others.
fn split(all: &[Collected], variant: Variant) -> Result<(Vec<Claim>, Vec<Claim>)> {
    let (mut run, mut rest) = (Vec::new(), Vec::new());
    for claim in CLAIMS {
        let found = all.iter().map(|collected| claim.measured(collected, variant)).collect::<Result<Vec<_>>>()?;
        let is_run = found.iter().any(|difference| *difference != Difference::NotRun);
        if is_run { run.push(claim) } else { rest.push(claim) }
    }
    Ok((run, rest))
}

fn missing(run: &[Claim], rest: &[Claim]) -> String {
    match (run, rest) {
        (_, []) => String::new(),
        ([], _) => "No statement has both of its rows.\n\n".to_owned(),
        (_, rest) => {
            let texts: Vec<&str> = rest.iter().map(|claim| claim.text).collect();
            format!("Not run on any task: {}.\n\n", texts.join("; "))
        }
    }
}

fn claims(all: &[Collected], variant: Variant, run: &[Claim]) -> Result<MarkdownTable> {
    let mut header = ["statement", "table"].map(str::to_owned).to_vec();
    for collected in all {
        let title = task_title(collected.task);
        header.extend([format!("{title}: paper"), format!("{title}: here")]);
    }
    let mut table = MarkdownTable::new(header);
    for claim in run {
        let mut cells = vec![claim.text.to_owned(), claim.table.number().to_owned()];
        for collected in all {
            let printed = claim.printed(collected.task, collected.metric())?;
            cells.push(printed.map_or("–".to_owned(), |value| format!("{value:+.2}")));
            cells.push(claim.measured(collected, variant)?.with(Verdict::word));
        }
        table.row(cells);
    }
    Ok(table)
}

/// The statements by what became of them, each with its tasks.
fn lists(all: &[Collected], variant: Variant, run: &[Claim]) -> Result<String> {
    let mut text = String::new();
    for verdict in [Verdict::Holds, Verdict::WithinNoise, Verdict::DoesNotHold] {
        let mut found = Vec::new();
        for claim in run {
            let mut tasks = Vec::new();
            for collected in all {
                if claim.measured(collected, variant)?.verdict() == Some(verdict) {
                    tasks.push(task_title(collected.task));
                }
            }
            if !tasks.is_empty() {
                found.push(format!("{} ({})", claim.text, tasks.join(", ")));
            }
        }
        let found = if found.is_empty() { "nothing".to_owned() } else { found.join("; ") };
        let _ = writeln!(text, "- **{}:** {found}.", capital(verdict.word()));
    }
    Ok(text + "\n")
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}
