//! Which flag sets which setting of the library.
//!
//! The library's errors name a setting by its field in backticks, `` `training.batch` ``. Before they are shown, this one
//! table turns such names into flags. A flag with another name changes here and in its verb, nowhere else.

/// Settings with their flags. Those of a run's two trainings, `finetune.…` and `quantize.…`, have the flags of
/// `training.…` unless they have their own.
const FLAGS: &[(&str, &str)] = &[
    ("training.epochs", "--epochs"),
    ("training.batch", "--batch"),
    ("training.accumulate", "--accumulate"),
    ("training.warmup", "--warmup"),
    ("training.optimizer.learning_rate", "--lr"),
    ("training.optimizer.weight_decay", "--weight-decay"),
    ("training.optimizer.clip", "--clip"),
    ("training.optimizer.table_rate", "--table-lr"),
    ("training.max_train", "--max-train"),
    ("training.max_dev", "--max-dev"),
    ("quantize.epochs", "--qat-epochs"),
    ("quantize.optimizer.learning_rate", "--qat-lr"),
    ("quantize.max_train", "--qat-max-train"),
    ("qat.calibration", "--range-batches"),
    ("qat.freeze", "--range-freeze"),
    ("qat.distillation", "--distill"),
    ("qat.learn_pairs", "--learn-pairs"),
    ("qat.distillation.temperature", "--temperature"),
    ("analysis.runs", "--runs"),
    ("analysis.fraction", "--fraction"),
    ("analysis.max_examples", "--max-examples"),
    ("analysis.stop.iterations", "--iterations"),
    ("analysis.stop.tolerance", "--tol"),
    ("analysis.shard", "--shard"),
    ("measure.widths", "--widths"),
    ("measure.examples", "--max-examples"),
    ("attention.fraction", "--fraction"),
    ("landscape.points", "--points"),
    ("landscape.extent", "--extent"),
    ("landscape.max_examples", "--max-examples"),
    ("landscape.layers", "--layer"),
    ("plan.bits", "--bits"),
    ("plan.attention_bits", "--attention-bits"),
    ("plan.ffn_bits", "--ffn-bits"),
    ("plan.preset", "--preset"),
    ("plan.groups", "--groups"),
    ("plan.embedding_bits", "--embedding-bits"),
    ("plan.high", "--high"),
    ("plan.size", "--size"),
    ("plan.budget", "--budget"),
    ("plan.metric", "--metric"),
    ("plan.max_drop", "--max-drop"),
    ("plan.confidence", "--confidence"),
    ("plan.tries", "--tries"),
    ("plan.activation.bits", "--activation-bits"),
    ("packing.calibration", "--calibrate FILE and --task"),
    ("data.max_len", "--max-len"),
    ("read.columns.text", "--text"),
    ("read.columns.text2", "--text2"),
    ("read.columns.label", "--label"),
    ("read.labels", "--labels"),
    ("read.format", "--format"),
    ("session.max_input_bytes", "--max-input-bytes"),
    ("serve.threads", "--threads"),
    ("serve.max_batch_tokens", "--max-batch-tokens"),
    ("serve.max_queue", "--max-queue"),
    ("serve.max_queue_tokens", "--max-queue-tokens"),
    ("serve.max_body_bytes", "--max-body-bytes"),
    ("serve.max_items", "--max-items"),
    ("serve.max_request_tokens", "--max-request-tokens"),
    ("serve.max_connections", "--max-connections"),
    ("job.resume", "--resume"),
    ("job.out", "--out"),
    ("run.out", "--out"),
];

fn flag_of(setting: &str) -> Option<&'static str> {
    let find = |setting: &str| FLAGS.iter().find(|(name, _)| *name == setting).map(|(_, flag)| *flag);
    let (part, field) = setting.split_once('.')?;
    match part {
        "finetune" | "quantize" => find(setting).or_else(|| find(&format!("training.{field}"))),
        _ => find(setting),
    }
}

/// The text with every setting that has a flag called by it.
pub fn in_flags(text: &str) -> String {
    let mut parts = text.split('`');
    let mut result = parts.next().unwrap_or_default().to_owned();
    // After an opening backtick stands a name, after a closing one ordinary text.
    let mut is_name = true;
    let mut parts = parts.peekable();
    while let Some(part) = parts.next() {
        let is_closed = parts.peek().is_some();
        match flag_of(part).filter(|_| is_name && is_closed) {
            Some(flag) => {
                result += flag;
                result += parts.next().unwrap_or_default();
            }
            None => {
                result.push('`');
                result += part;
                is_name = !is_name;
            }
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::in_flags;

    #[test]
    fn settings_become_flags_and_other_words_stay() {
        for (text, expected) in [
            ("`training.batch` is 0: it must be at least 1", "--batch is 0: it must be at least 1"),
            ("`quantize.optimizer.learning_rate` is 2", "--qat-lr is 2"),
            ("`quantize.warmup` is 2, `finetune.epochs` 0", "--warmup is 2, --epochs 0"),
            ("no column `label`; `plan.bits` 2,3", "no column `label`; --bits 2,3"),
            ("no flag sets `plan.nothing`", "no flag sets `plan.nothing`"),
            ("set `read.columns.label` or `read.labels`", "set --label or --labels"),
            ("`run.out` and `job.resume`", "--out and --resume"),
            ("one ` alone", "one ` alone"),
            ("`plan.bits", "`plan.bits"),
            ("", ""),
        ] {
            assert_eq!(in_flags(text), expected);
        }
    }
}
