//! The bit plans that the paper publishes for BERT-base (Tab. 6 and 7), under names.
//!
//! Use them to repeat the paper's experiments; for any other model (or task) make a plan from measured
//! sensitivities. They have 128 groups, 8-bit embeddings in one group each and 8-bit activations.
//! Weight ranges are by `mse`, the project's default; the paper does not say which it used
//! ([`Plan::with_weight_range`] changes it).

use crate::bits::{BitWidth, Precision};
use crate::error::Error;
use crate::groups::GroupSpec;
use crate::nearest::nearest;
use crate::plan::Plan;
use crate::range::RangeMethod;
use std::fmt;

/// A published plan, known by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    name: &'static str,
    /// The width of each encoder layer, the paper's layer 1 first.
    layers: [u8; 12],
}

impl Preset {
    /// All eight, by task and widths.
    pub const ALL: [Self; 8] = [
        Self { name: "sst2-2-3", layers: [2, 2, 2, 3, 3, 3, 3, 3, 3, 2, 2, 2] },
        Self { name: "sst2-2-4", layers: [2, 2, 4, 4, 4, 2, 4, 4, 4, 2, 2, 2] },
        Self { name: "mnli-2-3", layers: [2, 2, 2, 2, 3, 3, 3, 3, 2, 2, 2, 2] },
        Self { name: "mnli-2-4", layers: [2, 2, 2, 4, 4, 4, 4, 4, 2, 2, 2, 2] },
        Self { name: "conll03-2-3", layers: [2, 3, 3, 3, 3, 2, 2, 2, 2, 2, 2, 2] },
        Self { name: "conll03-2-4", layers: [2, 2, 2, 4, 4, 4, 4, 4, 2, 2, 2, 2] },
        Self { name: "squad-2-3", layers: [2, 2, 2, 3, 3, 3, 3, 3, 3, 2, 2, 2] },
        Self { name: "squad-2-4", layers: [2, 2, 2, 4, 4, 4, 4, 4, 2, 2, 2, 2] },
    ];

    /// Finds a preset by its name.
    ///
    /// # Errors
    /// [`Error::UnknownPreset`] with the nearest right name.
    pub fn parse(name: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|preset| preset.name == name).ok_or_else(|| Error::UnknownPreset {
            text: name.to_owned(),
            nearest: nearest(name, Self::ALL.map(Self::name)),
        })
    }

    /// The name: task, lower width, higher width.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// The plan, for a model of this many encoder layers.
    ///
    /// # Errors
    /// [`Error::PresetLayers`] unless `layers` is 12.
    pub fn plan(self, layers: usize) -> Result<Plan, Error> {
        if layers != self.layers.len() {
            return Err(Error::PresetLayers { preset: self.name, expected: self.layers.len(), found: layers });
        }
        let two = Precision::Bits(BitWidth::new(2)?);
        let mut plan = Plan::uniform(layers, two, GroupSpec::Count(128), RangeMethod::Mse);
        for (layer, &bits) in self.layers.iter().enumerate() {
            plan = plan.with_layer_bits(layer, Precision::Bits(BitWidth::new(bits)?))?;
        }
        Ok(plan)
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name)
    }
}
