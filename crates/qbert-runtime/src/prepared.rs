//! A request in three steps, for programs that decide themselves what is computed together: prepare (tokenize), compute
//! sequences of many requests in one unpadded batch, finish (decode).
//!
//! [`Session::predict`] and [`Session::embed`] do all three at once. A server wants them apart: it tokenizes on one thread,
//! fills a batch with whatever sequences are waiting, and cuts a long text into several batches so that short ones get in
//! between. The answer has the same bits either way, because a sequence gets the same scores in every batch.

use qbert_model::{Head, Module, Pooling, Problem};
use qbert_tasks::Encoded;
use qbert_tasks::classify::encode;

use crate::embed::EmbedOptions;
use crate::encoder::{Scope, Tokens};
use crate::error::{Error, Result};
use crate::hidden::HiddenStates;
use crate::input::Input;
use crate::predict::answer::EncodedQuestion;
use crate::predict::classify::EncodedText;
use crate::predict::tag::EncodedSentence;
use crate::predict::values::{EncodedLabels, EncodedValue};
use crate::predict::{Encoding, Prediction, answer, classify, tag};
use crate::session::Session;
use crate::vectors::Vectors;

/// An input that is tokenized and waits to be computed: one sequence, or several for a long text.
///
/// It belongs to the session that prepared it.
#[derive(Debug)]
pub struct Prepared {
    asked: Asked,
}

#[derive(Debug)]
enum Asked {
    Label(EncodedText),
    Labels(EncodedLabels),
    Value(EncodedValue),
    Entities(EncodedSentence),
    Answers(EncodedQuestion<'static>),
    Embedding(Encoded, EmbedOptions),
    HiddenStates(Encoded, HiddenStates),
}

/// What a [`Prepared`] input becomes.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Outcome {
    /// Of [`Session::prepare`].
    Prediction(Prediction),
    /// Of [`Session::prepare_embedding`].
    Embedding(Vec<f32>),
    /// Of [`Session::prepare_hidden_states`].
    HiddenStates(HiddenStates),
}

impl Prepared {
    /// The number of sequences, at least 1.
    pub fn sequences(&self) -> usize {
        match &self.asked {
            Asked::Entities(own) => own.sequences().count(),
            Asked::Answers(own) => own.sequences().count(),
            _ => 1,
        }
    }

    /// The tokens of each sequence: what computing it costs.
    pub fn tokens(&self) -> Vec<usize> {
        match &self.asked {
            Asked::Entities(own) => own.sequences().map(Encoded::len).collect(),
            Asked::Answers(own) => own.sequences().map(Encoded::len).collect(),
            _ => self.sequence(0).map(Encoded::len).into_iter().collect(),
        }
    }

    /// How many word pieces were cut off because the model takes no more.
    pub fn removed(&self) -> usize {
        match &self.asked {
            Asked::Entities(own) => own.sequences().map(|sequence| sequence.removed).sum(),
            _ => self.sequence(0).map_or(0, |sequence| sequence.removed),
        }
    }

    /// How far a pass has to go. Only sequences of the same scope can be computed together.
    pub fn scope(&self) -> Scope {
        match &self.asked {
            Asked::HiddenStates(..) => Scope::Hidden,
            Asked::Embedding(_, options) => options.scope(),
            _ => Scope::Scores,
        }
    }

    fn sequence(&self, index: usize) -> Option<&Encoded> {
        match &self.asked {
            Asked::Label(own) => own.sequences().nth(index),
            Asked::Labels(own) => own.sequences().nth(index),
            Asked::Value(own) => own.sequences().nth(index),
            Asked::Entities(own) => own.sequences().nth(index),
            Asked::Answers(own) => own.sequences().nth(index),
            Asked::Embedding(own, _) | Asked::HiddenStates(own, _) => (index == 0).then_some(own),
        }
    }
}

impl Session {
    /// Tokenizes an input.
    ///
    /// ```
    /// # mod tiny { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/model.rs")); }
    /// use qbert_runtime::Outcome;
    ///
    /// # let session = tiny::classifier();
    /// let (first, second) = (session.prepare("two owls")?, session.prepare("the owl of Ostby")?);
    /// let scores = session.compute_together(&[(&first, 0), (&second, 0)])?;
    /// let Outcome::Prediction(answer) = session.finish(first, &[&scores[0]])? else { unreachable!() };
    /// assert_eq!(answer, session.predict_one("two owls")?);
    /// # Ok::<(), qbert_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Session::predict_each`].
    pub fn prepare(&self, input: impl Into<Input>) -> Result<Prepared> {
        let input = input.into();
        self.check(&input)?;
        let wrong = || self.wrong_task(input.describe());
        let asked = match self.head() {
            Head::None => return Err(wrong()),
            Head::SequenceClassification => {
                let source = classify::source(&input).ok_or_else(wrong)?;
                match self.problem() {
                    Problem::SingleLabel => Asked::Label(EncodedText::encode(self, source)?),
                    Problem::MultiLabel => Asked::Labels(EncodedLabels::encode(self, source)?),
                    Problem::Regression => Asked::Value(EncodedValue::encode(self, source)?),
                }
            }
            Head::TokenClassification => {
                let source = tag::source(&input, self.tokenizer().ideographs()).ok_or_else(wrong)?;
                Asked::Entities(EncodedSentence::encode(self, source)?)
            }
            Head::QuestionAnswering => {
                let source = answer::source(&input).ok_or_else(wrong)?;
                Asked::Answers(EncodedQuestion::encode(self, source)?.into_owned())
            }
        };
        self.checked(asked)
    }

    /// Tokenizes a text to embed.
    ///
    /// # Errors
    /// If the text cannot be encoded; [`Error::Dimensions`] or [`Error::NoPooler`] if the model has no such vectors.
    pub fn prepare_embedding(&self, text: &str, options: impl Into<EmbedOptions>) -> Result<Prepared> {
        let options = options.into();
        // Here, because a request that fails in a batch takes the others of the batch with it.
        options.width(self)?;
        if options.pooling == Pooling::Pooler && self.model().layout().role(Module::Pooler.weight()).is_none() {
            return Err(Error::NoPooler { path: self.model().path().to_owned() });
        }
        self.checked(Asked::Embedding(encode(self.tokenizer(), text, None, self.max_len())?, options))
    }

    /// Tokenizes a text whose tokens get a vector each.
    ///
    /// # Errors
    /// If the text cannot be encoded.
    pub fn prepare_hidden_states(&self, text: &str) -> Result<Prepared> {
        let encoded = encode(self.tokenizer(), text, None, self.max_len())?;
        let states = self.states_of(text, &encoded)?;
        self.checked(Asked::HiddenStates(encoded, states))
    }

    fn checked(&self, asked: Asked) -> Result<Prepared> {
        let prepared = Prepared { asked };
        (0..).map_while(|index| prepared.sequence(index)).try_for_each(|sequence| self.check_sequence(sequence))?;
        Ok(prepared)
    }

    /// Computes sequences in one unpadded pass: number `index` of each input. All of them need the same
    /// [scope](Prepared::scope). The result is what [`Session::finish`] takes.
    ///
    /// # Errors
    /// [`Error::Tokens`] if a sequence does not exist, belongs to another model, or has another scope;
    /// [`Error::NoPooler`] if a pooler is asked for; [`Error::Model`] if something wrote into the mapped file.
    pub fn compute_together(&self, sequences: &[(&Prepared, usize)]) -> Result<Vec<Vec<f32>>> {
        let Some((first, _)) = sequences.first() else { return Ok(Vec::new()) };
        let scope = first.scope();
        let (mut ids, mut segments, mut offsets) = (Vec::new(), Vec::new(), vec![0]);
        for (prepared, index) in sequences {
            let sequence = prepared.sequence(*index).filter(|_| prepared.scope() == scope);
            let Some(sequence) = sequence else {
                return Err(Error::Tokens { problem: format!("no sequence {index} of this scope in the input") });
            };
            ids.extend_from_slice(&sequence.input_ids);
            segments.extend_from_slice(&sequence.segments);
            offsets.push(ids.len());
        }
        let output = self.forward(Tokens { ids: &ids, segments: &segments, offsets: &offsets }, scope)?;
        let mut whole = Vec::new();
        let result = sequences.iter().enumerate().map(|(place, (prepared, _))| match &prepared.asked {
            Asked::Embedding(_, options) => {
                let mut vector = vec![0.0; options.width(self)?];
                options.write(self, (&output, place), &mut whole, &mut vector)?;
                Ok(vector)
            }
            Asked::HiddenStates(..) => Ok(output.hidden_of(place).to_vec()),
            _ => Ok(output.logits_of(place).to_vec()),
        });
        result.collect()
    }

    /// The answer to an input whose sequences are all computed, given in their order.
    ///
    /// # Errors
    /// [`Error::Tokens`] if their number is not that of the input's sequences; otherwise if the scores cannot be decoded.
    pub fn finish(&self, prepared: Prepared, computed: &[&[f32]]) -> Result<Outcome> {
        if computed.len() != prepared.sequences() {
            let problem = format!("{} of {} sequences computed", computed.len(), prepared.sequences());
            return Err(Error::Tokens { problem });
        }
        Ok(match prepared.asked {
            Asked::Label(own) => Outcome::Prediction(Prediction::Classification(own.decode(self, computed)?)),
            Asked::Labels(own) => Outcome::Prediction(Prediction::LabelSet(own.decode(self, computed)?)),
            Asked::Value(own) => Outcome::Prediction(Prediction::Score(own.decode(self, computed)?)),
            Asked::Entities(own) => Outcome::Prediction(Prediction::Tagging(own.decode(self, computed)?)),
            Asked::Answers(own) => Outcome::Prediction(Prediction::Answers(own.decode(self, computed)?)),
            Asked::Embedding(..) => Outcome::Embedding(computed.concat()),
            Asked::HiddenStates(_, mut states) => {
                states.vectors = Vectors::with_capacity(states.tokens.len(), self.config().hidden_size);
                computed.iter().for_each(|rows| states.vectors.extend(rows));
                Outcome::HiddenStates(states)
            }
        })
    }
}
