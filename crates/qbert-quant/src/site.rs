//! Names for the parts of the model that a plan may quantize: the *sites*.
//!
//! A site is a matrix of one encoder layer or an embedding table. The names are stable, they appear in
//! plans, reports and packed files. Layers are numbered **from 0**, as in Hugging Face tensor names; the
//! paper counts encoder layers from 1 (its "Layer 4" is `layer.3` here).
//!
//! Biases, LayerNorm, pooler and task heads are not sites: they are never quantized.

use crate::error::Error;
use crate::nearest::nearest;
use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// The six weight matrices of an encoder layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Matrix {
    /// `W_q` of the self-attention, all heads together.
    Query,
    /// `W_k` of the self-attention.
    Key,
    /// `W_v` of the self-attention.
    Value,
    /// `W_o`, the projection after the self-attention.
    AttentionOutput,
    /// The first matrix of the feed-forward network.
    Intermediate,
    /// The second matrix of the feed-forward network.
    Output,
}

impl Matrix {
    /// All matrices of a layer, in the order the data goes.
    pub const ALL: [Self; 6] =
        [Self::Query, Self::Key, Self::Value, Self::AttentionOutput, Self::Intermediate, Self::Output];

    /// The name in plans and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Key => "key",
            Self::Value => "value",
            Self::AttentionOutput => "attention_output",
            Self::Intermediate => "intermediate",
            Self::Output => "output",
        }
    }

    /// Whether the matrix belongs to the self-attention (`true`) or to the feed-forward network: the two
    /// modules that Tab. 3 (b) gives different widths.
    pub fn is_attention(self) -> bool {
        !matches!(self, Self::Intermediate | Self::Output)
    }
}

/// The three embedding tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Embedding {
    /// Word pieces.
    Word,
    /// Positions.
    Position,
    /// Token types (segments).
    Type,
}

impl Embedding {
    /// All tables, in the order the model adds them.
    pub const ALL: [Self; 3] = [Self::Word, Self::Position, Self::Type];

    /// The name in plans and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Word => "word",
            Self::Position => "position",
            Self::Type => "type",
        }
    }
}

/// A part of the model that has its own width, groups and ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Site {
    /// An embedding table: `embedding.word`, `embedding.position`, `embedding.type`.
    Embedding(Embedding),
    /// A matrix of an encoder layer, counted from 0: `layer.0.query`, ….
    Layer(usize, Matrix),
}

impl Site {
    /// Every site of a model with this many encoder layers: the embeddings, then layer by layer.
    pub fn all(layers: usize) -> impl Iterator<Item = Self> {
        let embeddings = Embedding::ALL.into_iter().map(Self::Embedding);
        let matrices = (0..layers).flat_map(|layer| Matrix::ALL.map(|matrix| Self::Layer(layer, matrix)));
        embeddings.chain(matrices)
    }

    /// The encoder layer, or `None` for an embedding.
    pub fn layer(self) -> Option<usize> {
        match self {
            Self::Layer(layer, _) => Some(layer),
            Self::Embedding(_) => None,
        }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Layer(layer, matrix) => write!(formatter, "layer.{layer}.{}", matrix.name()),
            Self::Embedding(table) => write!(formatter, "embedding.{}", table.name()),
        }
    }
}

impl FromStr for Site {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        exact(text).ok_or_else(|| Error::UnknownSite { text: text.to_owned(), nearest: suggestion(text) })
    }
}

impl Serialize for Site {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

fn exact(text: &str) -> Option<Site> {
    if let Some(name) = text.strip_prefix("embedding.") {
        return Embedding::ALL.into_iter().find(|table| table.name() == name).map(Site::Embedding);
    }
    let (number, name) = text.strip_prefix("layer.")?.split_once('.')?;
    let layer = layer_number(number)?;
    Matrix::ALL.into_iter().find(|matrix| matrix.name() == name).map(|matrix| Site::Layer(layer, matrix))
}

/// Reads a layer's number in its only form: decimal digits, no sign, no leading zero.
pub(crate) fn layer_number(text: &str) -> Option<usize> {
    let number: usize = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

/// The right name for a wrong one: the layer's number is kept where one can be read.
fn suggestion(text: &str) -> Option<String> {
    let layer = text.split('.').find_map(layer_number).unwrap_or(0);
    let layers = Matrix::ALL.map(|matrix| Site::Layer(layer, matrix).to_string());
    let tables = Embedding::ALL.map(|table| Site::Embedding(table).to_string());
    nearest(text, layers.into_iter().chain(tables))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back_and_the_order_is_fixed() {
        let sites: Vec<Site> = Site::all(12).collect();
        assert_eq!(sites.len(), 3 + 12 * 6);
        for site in &sites {
            assert_eq!(site.to_string().parse::<Site>().unwrap(), *site);
        }
        let names: Vec<String> = Site::all(1).map(|site| site.to_string()).collect();
        let expected = [
            "embedding.word",
            "embedding.position",
            "embedding.type",
            "layer.0.query",
            "layer.0.key",
            "layer.0.value",
            "layer.0.attention_output",
            "layer.0.intermediate",
            "layer.0.output",
        ];
        assert_eq!(names, expected);
        assert!(sites.is_sorted());
    }

    #[test]
    fn wrong_names_are_refused_with_the_nearest_right_one() {
        struct Case {
            text: &'static str,
            nearest: Option<&'static str>,
        }
        let cases = [
            Case { text: "layer.3.qurey", nearest: Some("layer.3.query") },
            Case { text: "layer.11.attention.output", nearest: Some("layer.11.attention_output") },
            Case { text: "layers.2.value", nearest: Some("layer.2.value") },
            Case { text: "embeddings.word", nearest: Some("embedding.word") },
            Case { text: "layer.01.key", nearest: Some("layer.0.key") },
            Case { text: "pooler", nearest: None },
            Case { text: "", nearest: None },
        ];
        for case in cases {
            match case.text.parse::<Site>() {
                Err(Error::UnknownSite { nearest, .. }) => {
                    assert_eq!(nearest.as_deref(), case.nearest, "{}", case.text);
                }
                other => panic!("{}: {other:?}", case.text),
            }
        }
    }
}
