//! Settings that only some families have: biases, windows, rotary positions, poolers.

use serde_json::Value;

use super::{File, MOST_LAYERS, listed, problem, shown};
use crate::error::Result;
use crate::family::{
    ACTIVATIONS, AttentionPattern, Family, OptionalKey, PoolerActivation, PoolerReads, Positions, RotaryKeys,
    SequencePooling,
};
use crate::head::Head;

/// Which linear layers and norms have a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Biases {
    /// Query, key, value and the projection after attention.
    pub attention: bool,
    /// The feed-forward network.
    pub feed_forward: bool,
    /// The norms.
    pub norms: bool,
    /// The pooler.
    pub pooler: bool,
}

/// How a layer's attention sees its sequence.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LayerAttention {
    /// How far a token sees to each side; `None` for the whole sequence.
    pub reach: Option<usize>,
    /// The base of the angles that queries and keys are turned by; `None` where they are not.
    pub theta: Option<f32>,
}

/// How a pooler computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolerSettings {
    /// What follows the linear layer.
    pub activation: PoolerActivation,
    /// What it reads.
    pub reads: SequencePooling,
}

impl File<'_> {
    pub(super) fn biases(&self, family: &Family) -> Result<Biases> {
        let keys = &family.biases;
        Ok(Biases {
            attention: self.flag_at(keys.attention)?,
            feed_forward: self.flag_at(keys.feed_forward)?,
            norms: self.flag_at(keys.norms)?,
            pooler: self.flag_at(keys.pooler)?,
        })
    }

    /// How each layer's attention sees its sequence.
    pub(super) fn attention(&self, family: &Family, layers: usize) -> Result<Vec<LayerAttention>> {
        // More are refused later; none is listed for what a damaged file claims.
        let layers = layers.min(MOST_LAYERS);
        let (global, local) = match family.positions {
            Positions::Learned | Positions::LearnedAfterPadding(_) => (None, None),
            Positions::Rotary(keys) => {
                let (global, local) = match family.attention {
                    AttentionPattern::Global => ("", ""),
                    AttentionPattern::Alternating(kinds) => (kinds.global, kinds.local),
                };
                (Some(self.theta(keys, global, keys.global)?), Some(self.theta(keys, local, keys.local)?))
            }
        };
        let global = LayerAttention { reach: None, theta: global };
        match family.attention {
            AttentionPattern::Global => Ok(vec![global; layers]),
            AttentionPattern::Alternating(keys) => {
                let local = LayerAttention { reach: Some(self.size_at(keys.width)? / 2), theta: local };
                match self.raw.get(keys.kinds) {
                    None | Some(Value::Null) => {
                        let every = self.size_at(keys.every)?;
                        Ok((0..layers).map(|layer| if layer % every == 0 { global } else { local }).collect())
                    }
                    Some(Value::Array(kinds)) if kinds.len() == layers => {
                        let kind = |kind: &Value| match kind.as_str() {
                            Some(name) if name == keys.global => Ok(global),
                            Some(name) if name == keys.local => Ok(local),
                            _ => {
                                let (key, accepted) = (keys.kinds, listed(&[keys.global, keys.local]));
                                let text = format!("`{key}` names {}; only {accepted} are supported", shown(kind));
                                Err(problem(self.path, text))
                            }
                        };
                        kinds.iter().map(kind).collect()
                    }
                    Some(other) => {
                        let (key, of_layers) = (keys.kinds, family.keys.layers);
                        let text = format!(
                            "`{key}` is {}; it must have a kind for each of the {layers} layers that `{of_layers}` counts",
                            shown(other)
                        );
                        Err(problem(self.path, text))
                    }
                }
            }
        }
    }

    /// The base of the angles in layers of a kind.
    fn theta(&self, keys: RotaryKeys, kind: &str, own: OptionalKey<f32>) -> Result<f32> {
        let by_kind = match self.raw.get(keys.by_kind) {
            None | Some(Value::Null) => None,
            Some(Value::Object(kinds)) => kinds.get(kind).filter(|entry| !entry.is_null()),
            Some(other) => {
                let text = format!("`{}` is {}; it must be an object", keys.by_kind, shown(other));
                return Err(problem(self.path, text));
            }
        };
        let name = |key: &str| format!("{}.{kind}.{key}", keys.by_kind);
        let rule = by_kind.and_then(|entry| entry.get(keys.rule)).filter(|rule| !rule.is_null());
        if let Some(rule) = rule.filter(|rule| *rule != "default") {
            let text = format!("`{}` is {}; only default is supported", name(keys.rule), shown(rule));
            return Err(problem(self.path, text));
        }
        let (key, theta) = match by_kind.and_then(|entry| entry.get(keys.theta)).filter(|theta| !theta.is_null()) {
            None => (own.key.unwrap_or_default().to_owned(), self.number_at(own)?),
            // What is no number becomes NaN, which is refused below.
            Some(theta) => (name(keys.theta), theta.as_f64().map_or(f32::NAN, |theta| theta as f32)),
        };
        if !(theta > 0.0 && theta.is_finite()) {
            return Err(problem(self.path, format!("`{key}` is {theta}; it must be a number above 0")));
        }
        Ok(theta)
    }

    /// How the poolers of all heads compute.
    pub(super) fn poolers(&self, family: &Family) -> Result<[Option<PoolerSettings>; 4]> {
        let mut poolers = [None; 4];
        for (settings, head) in poolers.iter_mut().zip(Head::ALL) {
            let Some(pooler) = family.class(head).pooler else { continue };
            let key = pooler.activation_key.filter(|key| self.raw.get(*key).is_some_and(|value| !value.is_null()));
            let activation = match key {
                None => pooler.activation,
                Some(key) => PoolerActivation::Of(self.choice(key, ACTIVATIONS.into_iter())?),
            };
            let reads = match pooler.reads {
                PoolerReads::FirstToken => SequencePooling::FirstToken,
                PoolerReads::EveryToken => SequencePooling::EveryToken,
                PoolerReads::AsConfigured(key) => {
                    let known = [("cls", SequencePooling::FirstToken), ("mean", SequencePooling::Mean)];
                    self.choice(key, known.into_iter())?
                }
            };
            *settings = Some(PoolerSettings { activation, reads });
        }
        Ok(poolers)
    }

    fn flag_at(&self, OptionalKey { key, default }: OptionalKey<bool>) -> Result<bool> {
        match key.and_then(|key| Some((key, self.raw.get(key)?))) {
            None | Some((_, Value::Null)) => Ok(default),
            Some((_, Value::Bool(flag))) => Ok(*flag),
            Some((key, value)) => {
                Err(problem(self.path, format!("`{key}` is {}; it must be true or false", shown(value))))
            }
        }
    }
}
