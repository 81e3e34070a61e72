//! Quantization of a model's weights alone, for tests of the packed file here and in the runtime.

use std::collections::BTreeMap;

use qbert_model::{Config, Parameters, site_tensor};
use qbert_quant::{Layout, Plan, Precision, QuantParams, QuantizedMatrix, Scratch, Site};

/// Every site that the plan quantizes, with ranges found by the plan's method.
pub(crate) fn quantize_sites(config: &Config, parameters: &Parameters, plan: &Plan) -> BTreeMap<Site, QuantizedMatrix> {
    let mut scratch = Scratch::default();
    let mut sites = BTreeMap::new();
    for tensor in config.shape(None).tensors {
        let site_plan = plan.site(tensor.site).unwrap();
        let Precision::Bits(bits) = site_plan.bits else { continue };
        let layout = Layout::resolve(tensor.rows, tensor.cols, tensor.axis, site_plan.groups, config.heads);
        let values = parameters.named(&site_tensor(tensor.site)).unwrap_or_default();
        let params = layout.and_then(|layout| QuantParams::fit(values, layout, bits, site_plan.range, &mut scratch));
        let matrix = params.and_then(|params| QuantizedMatrix::quantize(values, &params)).unwrap();
        sites.insert(tensor.site, matrix);
    }
    sites
}
