// Post-training codes for packed models in tests, here and in `qbert-runtime`, which includes this file.

use std::collections::BTreeMap;

use qbert_model::{Config, Parameters};
use qbert_quant::{Codebook, Plan, Precision, QuantParams, QuantizedMatrix, Scratch, Site};

/// The codes of every site that the plan quantizes, with ranges fitted as the plan says.
pub(crate) fn quantize_sites(config: &Config, parameters: &Parameters, plan: &Plan) -> BTreeMap<Site, QuantizedMatrix> {
    let mut scratch = Scratch::default();
    let mut sites = BTreeMap::new();
    for tensor in config.shape(None).tensors {
        let planned = plan.site(tensor.site).unwrap();
        let Precision::Bits(bits) = planned.bits else { continue };
        let layout = planned.layout(tensor.rows, tensor.cols, tensor.axis, config.heads).unwrap();
        let values = parameters.site(tensor.site).unwrap();
        let params = QuantParams::fit(values, layout, bits, planned.range, &mut scratch).unwrap();
        let stored = match planned.product {
            None => QuantizedMatrix::quantize(values, &params).unwrap(),
            Some(width) => {
                let mut codebook = Codebook::empty(width, &params);
                for part in 0..codebook.parts() {
                    let entries = codebook.fit_part(part, values, &params).unwrap();
                    codebook.set_part(part, &entries, &params).unwrap();
                }
                QuantizedMatrix::quantize_product(values, &params, &codebook).unwrap()
            }
        };
        sites.insert(tensor.site, stored);
    }
    sites
}
