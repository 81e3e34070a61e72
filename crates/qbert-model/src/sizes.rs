//! The shape of a model, from which the sizes of the paper's tables and of a packed file are computed.

use qbert_quant::{ModelShape, TransformerDimensions};

use crate::config::Config;
use crate::layout::ParameterLayout;

impl Config {
    /// The shape of every site, and the number of parameters that no plan quantizes: the embedding's norm, and the pooler
    /// and head of `layout`, if it is given.
    pub fn shape(&self, layout: Option<&ParameterLayout>) -> ModelShape {
        let on_top: usize = layout
            .into_iter()
            .flat_map(ParameterLayout::parameters)
            .filter(|p| p.role.is_on_top())
            .map(|p| p.span.len())
            .sum();
        ModelShape::transformer(&TransformerDimensions {
            vocabulary: self.vocab_size,
            positions: self.max_positions,
            types: self.type_vocab_size,
            hidden: self.hidden_size,
            intermediate: self.intermediate_size,
            layers: self.layers,
            heads: self.heads,
            uncounted: 2 * self.hidden_size + on_top,
        })
    }
}
