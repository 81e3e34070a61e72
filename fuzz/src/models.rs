//! Tiny packed models: those of the runtime's tests.

#![allow(dead_code, reason = "the tests use more of it")]

mod tests {
    include!("../../crates/qbert-runtime/tests/common/model.rs");

    pub(crate) fn quantized(
        config: &qbert_model::Config,
        parameters: &qbert_model::Parameters,
        plan: &qbert_quant::Plan,
    ) -> BTreeMap<Site, qbert_quant::QuantizedMatrix> {
        quantize_sites(config, parameters, plan)
    }
}

pub(crate) use tests::{ALL_WIDTHS, noise, quantized, session};

/// The bytes of a tiny model for every head, with every mixture of widths.
pub fn packed_models() -> Vec<(String, Vec<u8>)> {
    use qbert_model::Head::{None, QuestionAnswering, SequenceClassification, TokenClassification};
    let heads = [("encoder", None), ("classify", SequenceClassification), ("tag", TokenClassification)];
    let heads = heads.into_iter().chain([("answer", QuestionAnswering)]);
    let widths = ALL_WIDTHS.into_iter().enumerate();
    let all = heads.flat_map(|(name, head)| {
        let model = move |(index, own)| (format!("{name}-{index}.qbert"), tests::packed(head, 24, own));
        widths.clone().filter(|(index, _)| [0, 4].contains(index)).map(model).collect::<Vec<_>>()
    });
    all.collect()
}
