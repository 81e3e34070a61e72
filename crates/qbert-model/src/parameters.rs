//! The weights of one model in memory: one flat array, and the layout that divides it into tensors.

use std::sync::Arc;

use qbert_quant::{Embedding, Site};

use crate::config::Config;
use crate::head::Head;
use crate::layout::{Parameter, ParameterLayout};
use crate::role::{Module, Role};

/// Weights, or anything of the same shape: gradients, optimizer moments, a Hessian eigenvector.
#[derive(Debug, Clone)]
pub struct Parameters {
    layout: Arc<ParameterLayout>,
    values: Vec<f32>,
}

impl Parameters {
    /// A flat array with its layout.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn new(layout: Arc<ParameterLayout>, values: Vec<f32>) -> Self {
        assert_eq!(layout.len(), values.len(), "a flat array of another layout");
        Self { layout, values }
    }

    /// All zero.
    pub fn zeros(layout: Arc<ParameterLayout>) -> Self {
        let values = vec![0.0; layout.len()];
        Self { layout, values }
    }

    /// The layout.
    pub fn layout(&self) -> &Arc<ParameterLayout> {
        &self.layout
    }

    /// The flat array.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// The flat array, to be changed.
    pub fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }

    /// The same weights without a pooler that nobody reads: that of an encoder without a head whose vectors are pooled from
    /// all tokens. Every other model stays as it is.
    #[must_use]
    pub fn without_unread_pooler(self, config: &Config) -> Self {
        if !(self.layout.head() == Head::None && config.pools_tokens()) {
            return self;
        }
        let layout = Arc::new(ParameterLayout::new(config, Head::None, 0, false));
        let mut kept = Self::zeros(layout.clone());
        for parameter in layout.parameters() {
            let Some(own) = self.layout.role(parameter.role) else { return self };
            kept.values[parameter.span.clone()].copy_from_slice(self.get(own));
        }
        kept
    }

    /// The same weights with these rows of the word table, in this order, and as many rows of the position table as `config`
    /// asks for, from the first; `config` is that of the result.
    ///
    /// # Panics
    /// If there is no such row, or `config` is for another number of words.
    #[must_use]
    pub fn with_rows(&self, config: &Config, rows: &[u32]) -> Self {
        let [words, positions] = [Embedding::Word, Embedding::Position].map(|table| Module::table(table).weight());
        let head = self.layout.head();
        let outputs = self.layout.role(Module::Head.weight()).map_or(0, |parameter| parameter.shape[0]);
        let pooler = self.layout.role(Module::Pooler.weight()).is_some();
        let mut result = Self::zeros(Arc::new(ParameterLayout::new(config, head, outputs, pooler)));
        for parameter in result.layout.clone().parameters() {
            let Some(own) = self.layout.role(parameter.role) else { continue };
            let target = &mut result.values[parameter.span.clone()];
            if parameter.role == words {
                let (width, table) = (own.shape[1], self.get(own));
                let taken = rows.iter().flat_map(|&row| &table[row as usize * width..][..width]);
                assert_eq!(target.len(), rows.len() * width, "a configuration for another vocabulary");
                target.iter_mut().zip(taken).for_each(|(target, value)| *target = *value);
            } else if parameter.role == positions {
                target.copy_from_slice(&self.get(own)[..target.len()]);
            } else {
                target.copy_from_slice(self.get(own));
            }
        }
        result
    }

    /// The values of a parameter of this layout.
    pub fn get(&self, parameter: &Parameter) -> &[f32] {
        &self.values[parameter.span.clone()]
    }

    /// The weights of a quantization site.
    pub fn site(&self, site: Site) -> Option<&[f32]> {
        self.layout.site(site).map(|parameter| self.get(parameter))
    }

    /// The values of the parameter of this role, to be changed.
    pub fn role_mut(&mut self, role: Role) -> Option<&mut [f32]> {
        self.layout.role(role).map(|parameter| &mut self.values[parameter.span.clone()])
    }

    /// The values of the parameter of this canonical name.
    pub fn named(&self, name: &str) -> Option<&[f32]> {
        self.layout.get(name).map(|parameter| &self.values[parameter.span.clone()])
    }

    /// The values of the parameter of this canonical name, to be changed.
    pub fn named_mut(&mut self, name: &str) -> Option<&mut [f32]> {
        self.layout.get(name).map(|parameter| &mut self.values[parameter.span.clone()])
    }
}
