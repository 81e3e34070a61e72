//! Distillation from the full-precision model (not in the paper; off where its tables are reproduced).
//!
//! The teacher is the model before quantization. One evaluation pass of it per batch gives soft answers, hidden states and
//! attention probabilities that the student is trained towards ([`crate::ops::distill`] defines the terms). It needs the
//! memory of a second model and about a third of a step's time.

use qbert_kernels::Compute;
use serde::{Deserialize, Serialize};

use crate::batch::{Batch, Targets};
use crate::bert::{Activations, BackwardBuffers, Bert, Mode, SoftTargets};
use crate::error::{Error, Result};
use crate::ops::attention::{self, Side};
use crate::ops::distill;
use crate::team::Team;

/// The weights of the terms of the loss.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Distillation {
    /// Cross-entropy with the labels.
    pub labels: f64,
    /// Distance to the teacher's answers.
    pub answers: f64,
    /// Distance to each of the teacher's hidden states, the embedding's included.
    pub hidden: f64,
    /// Distance to the attention of each of the teacher's layers.
    pub attention: f64,
    /// Distance to how similar the teacher finds the texts of a batch, for models of vectors.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub similarities: f64,
    /// Divides the logits of teacher and student before they are compared.
    pub temperature: f64,
}

impl Default for Distillation {
    fn default() -> Self {
        Self { labels: 1.0, answers: 1.0, hidden: 1.0, attention: 1.0, similarities: 1.0, temperature: 1.0 }
    }
}

/// What was not always a setting is not written where it is as it was, so that older files stay comparable.
fn one() -> f64 {
    1.0
}

fn is_one(weight: &f64) -> bool {
    *weight == 1.0
}

impl Distillation {
    /// Refuses weights that make no sense.
    ///
    /// # Errors
    /// A weight that is negative or not a number; a temperature that is not above 0.
    pub fn check(&self) -> Result<()> {
        for weight in [self.labels, self.answers, self.hidden, self.attention, self.similarities] {
            if !(weight >= 0.0 && weight.is_finite()) {
                let rule = "a weight of the loss is a number from 0 up";
                return Err(Error::Setting { name: "`qat.distillation`", value: weight.to_string(), rule });
            }
        }
        if [self.labels, self.answers, self.hidden, self.attention] == [0.0; 4] {
            let rule = "with all weights of the loss at 0 there is nothing to learn";
            return Err(Error::Setting { name: "`qat.distillation`", value: "0,0,0,0".to_owned(), rule });
        }
        if !(self.temperature > 0.0 && self.temperature.is_finite()) {
            let rule = "it must be above 0";
            return Err(Error::Setting {
                name: "`qat.distillation.temperature`",
                value: self.temperature.to_string(),
                rule,
            });
        }
        Ok(())
    }
}

/// The full-precision model.
#[derive(Debug)]
pub struct Teacher {
    settings: Distillation,
    weights: Vec<f32>,
    activations: Activations,
}

/// The loss of a student.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DistilledLoss {
    /// All terms, weighted.
    pub total: f64,
    /// The labels' cross-entropy alone.
    pub labels: f64,
}

impl Teacher {
    /// A teacher with these weights, in the student's layout.
    pub fn new(weights: Vec<f32>, settings: Distillation) -> Self {
        Self { settings, weights, activations: Activations::for_training() }
    }

    /// One pass over a batch in evaluation mode, for [`Teacher::loss`] and [`Teacher::targets`].
    pub fn look(&mut self, bert: &Bert, compute: &Compute, batch: &Batch) {
        bert.forward(compute, &self.weights, batch, Mode::Evaluate, &mut self.activations);
    }

    /// The student's loss on the batch last looked at; the gradient of its logits times `scale` goes to `buffers`.
    pub fn loss(
        &self,
        bert: &Bert,
        compute: &Compute,
        batch: &Batch,
        student: &Activations,
        scale: f64,
        buffers: &mut BackwardBuffers,
    ) -> DistilledLoss {
        let Distillation { labels, answers, hidden, attention, similarities, temperature } = self.settings;
        let own = bert.loss_of_whole(compute, batch, student, scale * labels, buffers).mean;
        let (team, whole) = (Team::of(compute, batch), batch.whole());
        let softened = |logits: (&[f32], &[f32]), d_logits: &mut [f32]| {
            let soft = distill::answers(logits, whole, bert.outputs(), (temperature, scale * answers), d_logits);
            let alike = match whole.targets {
                Targets::Vectors { .. } if similarities > 0.0 => {
                    distill::similarities(logits, bert.outputs(), scale * similarities, d_logits)
                }
                _ => 0.0,
            };
            (soft, alike)
        };
        let logits = (&student.logits[..], &self.activations.logits[..]);
        let (soft, alike) = match team {
            None => softened(logits, &mut buffers.d_logits),
            Some(team) => {
                let rows = bert.logit_rows();
                let [s, t, mut d] = [logits.0, logits.1, &buffers.d_logits].map(|own| team.rows(rows, own));
                let terms = softened((&s, &t), &mut d);
                buffers.d_logits.copy_from_slice(team.own_part(rows, &d));
                terms
            }
        };
        let states = student.hidden.iter().zip(&self.activations.hidden);
        let states: f64 = states
            .map(|(s, t)| match team {
                None => distill::mean_square(compute, s, t),
                Some(team) => {
                    let starts = team.starts_of_tokens(bert.config().hidden_size);
                    let elements = (whole.tokens() * bert.config().hidden_size).max(1) as f64;
                    team.sum_of_pairs(starts, (s, t), |a, b| compute.squared_distances(a, b)) / elements
                }
            })
            .sum();
        let rows = (whole.tokens() * bert.config().heads) as f64;
        let divergence: f64 = if attention == 0.0 {
            0.0
        } else {
            (0..student.layers.len()).map(|layer| self.divergence(bert, compute, batch, student, layer) / rows).sum()
        };
        let soft = answers * soft + similarities * alike;
        DistilledLoss { total: labels * own + soft + hidden * states + attention * divergence, labels: own }
    }

    /// The divergence of the student's attention from the teacher's in a layer, over all heads and rows.
    fn divergence(&self, bert: &Bert, compute: &Compute, batch: &Batch, student: &Activations, layer: usize) -> f64 {
        let (heads, own, teacher) = (bert.heads(layer), &student.layers[layer], &self.activations.layers[layer]);
        if heads.keeps_all(batch.whole()) {
            let Some(team) = Team::of(compute, batch) else {
                return distill::divergence(compute, &own.probabilities, &teacher.probabilities);
            };
            let starts = team.starts_of_sequences(|length| heads.count * length * length);
            let pair = (&teacher.probabilities[..], &own.probabilities[..]);
            return team.sum_of_pairs(starts, pair, |p, q| compute.divergences(p, q));
        }
        let sides = [(teacher, &self.activations.bias), (own, &student.bias)].map(|(own, bias)| Side {
            qkv: &own.qkv,
            probabilities: &own.probabilities,
            treatment: attention::Treatment {
                quantized: own.quantized.as_ref().map(|notes| notes.attention),
                bias: bias.as_ref(),
                ..attention::Treatment::default()
            },
        });
        let kernels = compute.kernels();
        attention::divergences(compute, heads, batch, sides, |p, q| kernels.divergence(p, q)).iter().sum()
    }

    /// What the backward pass trains the student towards.
    pub fn targets(&self, scale: f64) -> SoftTargets<'_> {
        let Distillation { hidden, attention, .. } = self.settings;
        SoftTargets { teacher: &self.activations, hidden: scale * hidden, attention: scale * attention }
    }
}
