//! The methods that the paper compares, by name, and the plan that each comes to.
//!
//! A name is `full`, or a grouping with the encoder's widths, and what differs from the paper's usual setting:
//!
//! | name | what | where |
//! |---|---|---|
//! | `full` | nothing is quantized | Tab. 1, "Baseline" |
//! | `directq:4` | one group per matrix | Tab. 1, "DirectQ" |
//! | `q-bert:4` | 128 groups | Tab. 1, "Q-BERT" |
//! | `q-bert:2/3`, `q-bert:2/4` | sensitive layers have the second width, the others the first | Tab. 1, "Q-BERT MP" |
//! | `q-bert:2/3-rev` | the other way round | App. C.1, "MP-rev" |
//! | `q-bert:4,groups=head` | 1, 12 (`head`), 128 or 768 (`neuron`) groups | Tab. 2 |
//! | `q-bert:2/3,embedding=4/8` | word and position embedding, in 128 groups of columns | Tab. 5 |
//! | `q-bert:8,embedding=4/8,embedding-groups=1` | the same in one group per table ("layerwise", §5.1) | Tab. 3 (a) |
//! | `q-bert:2/3,attention=1/2` | "s-bits": the self-attention's own widths | Tab. 3 (b) |
//! | `q-bert:2/3,feed-forward=1/2` | "f-bits": the feed-forward network's own | Tab. 3 (b) |
//!
//! Embeddings have 8 bits in one group and activations 8 bits where nothing else is said. Which layers are sensitive is
//! measured elsewhere; ranges are the caller's choice, because the paper leaves them open. The published plans of
//! BERT-base are [`qbert_quant::Preset`].

use std::fmt;
use std::str::FromStr;

use qbert_quant::{
    EmbeddingPlan, Error as QuantError, GroupSpec, Matrix, Plan, Precision, RangeMethod, Site, SitePlan,
};

use crate::error::{Error, Result};

/// The paper's usual grouping, whatever the model.
const GROUPS: GroupSpec = GroupSpec::Count(GroupSpec::DEFAULT_COUNT);

/// Every method of the paper's tables, each once.
pub const PAPER: [&str; 22] = [
    "full",
    "directq:8",
    "directq:4",
    "directq:3",
    "directq:2",
    "q-bert:8",
    "q-bert:4",
    "q-bert:3",
    "q-bert:2",
    "q-bert:2/4",
    "q-bert:2/3",
    "q-bert:2/4-rev",
    "q-bert:2/3-rev",
    "q-bert:4,groups=head",
    "q-bert:4,groups=neuron",
    "q-bert:8,embedding=4/8,embedding-groups=1",
    "q-bert:8,embedding=8/4,embedding-groups=1",
    "q-bert:8,embedding=4/4,embedding-groups=1",
    "q-bert:2/4,embedding=4/8",
    "q-bert:2/3,embedding=4/8",
    "q-bert:2/3,attention=1/2",
    "q-bert:2/3,feed-forward=1/2",
];

/// The widths of a part of the encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Widths {
    /// Of layers that are not sensitive.
    others: Precision,
    /// Of sensitive layers.
    sensitive: Precision,
}

/// A method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Method {
    attention: Widths,
    feed_forward: Widths,
    groups: GroupSpec,
    /// Word embedding, then position and type, where they are not 8 bits in one group.
    embedding: Option<(Precision, Precision)>,
    /// Of the embedding tables whose widths are given.
    embedding_groups: GroupSpec,
    full: bool,
}

impl Method {
    /// The plan for a model of this many layers, of which `sensitive` are those that Hessians single out (counted from
    /// 0), with weight ranges by `range`.
    ///
    /// # Errors
    /// When the method tells sensitive layers from others and none are given, or one that the model does not have.
    pub fn plan(&self, layers: usize, sensitive: &[usize], range: RangeMethod) -> Result<Plan> {
        if self.full {
            return Ok(Plan::uniform(layers, Precision::Full, self.groups, range));
        }
        if self.is_mixed() && sensitive.is_empty() {
            return Err(refused(self.to_string(), "it needs to be told which layers are sensitive"));
        }
        if let Some(&layer) = sensitive.iter().find(|&&layer| layer >= layers) {
            return Err(QuantError::NoSuchLayer { layer, layers }.into());
        }
        let mut plan = Plan::uniform(layers, self.attention.others, self.groups, range);
        for layer in 0..layers {
            for matrix in Matrix::ALL {
                let widths = if matrix.is_attention() { self.attention } else { self.feed_forward };
                let bits = if sensitive.contains(&layer) { widths.sensitive } else { widths.others };
                plan.site_mut(Site::Layer(layer, matrix))?.bits = bits;
            }
        }
        if let Some((word, position)) = self.embedding {
            let table = |bits| SitePlan::new(bits, self.embedding_groups, range);
            let tables = EmbeddingPlan { word: table(word), position: table(position), token_type: table(position) };
            plan = plan.with_embedding(tables);
        }
        Ok(plan)
    }

    /// The lower and the higher width of the encoder's layers; where its parts differ, of the part with the wider ones.
    pub fn widths(&self) -> (Precision, Precision) {
        let Widths { others, sensitive } = self.base();
        (others.min(sensitive), others.max(sensitive))
    }

    /// What all share; the part with the narrower widths is the one that is named.
    fn base(&self) -> Widths {
        let sum = |widths: Widths| widths.others.number() + widths.sensitive.number();
        if sum(self.attention) < sum(self.feed_forward) { self.feed_forward } else { self.attention }
    }

    /// Whether sensitive layers have the lower widths (MP-rev).
    pub fn is_reversed(&self) -> bool {
        [self.attention, self.feed_forward].iter().any(|widths| widths.others > widths.sensitive)
    }

    /// Whether nothing is quantized.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// How many groups each encoder matrix has.
    pub fn groups(&self) -> GroupSpec {
        self.groups
    }

    /// Whether sensitive layers are treated differently from others.
    pub fn is_mixed(&self) -> bool {
        [self.attention, self.feed_forward].iter().any(|widths| widths.others != widths.sensitive)
    }
}

fn refused(value: String, rule: &'static str) -> Error {
    Error::Setting { name: "the method", value, rule }
}

const RULE: &str = "it is full, directq:4, q-bert:4, q-bert:2/3 or q-bert:2/3-rev, with ,groups= ,embedding=4/8 ,embedding-groups=1 ,attention=1/2 ,feed-forward=1/2";

impl FromStr for Method {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let unknown = || refused(format!("{text:?}"), RULE);
        let mut parts = text.split(',');
        let (name, widths) = match parts.next().map(|first| first.split_once(':').unwrap_or((first, ""))) {
            Some(("full", "")) => ("full", Some(Widths { others: Precision::Full, sensitive: Precision::Full })),
            Some((name @ ("directq" | "q-bert"), widths)) => (name, Widths::parse(widths)),
            _ => return Err(unknown()),
        };
        let widths = widths.ok_or_else(unknown)?;
        let groups = if name == "directq" { GroupSpec::Count(1) } else { GROUPS };
        let full = name == "full";
        let mut method =
            Self { attention: widths, feed_forward: widths, groups, embedding: None, embedding_groups: GROUPS, full };
        for option in parts {
            match option.split_once('=').filter(|_| !full) {
                Some(("groups", groups)) => method.groups = groups.parse()?,
                Some(("attention", own)) => method.attention = Widths::parse(own).ok_or_else(unknown)?,
                Some(("feed-forward", own)) => method.feed_forward = Widths::parse(own).ok_or_else(unknown)?,
                Some(("embedding-groups", groups)) if method.embedding.is_some() => {
                    method.embedding_groups = groups.parse()?;
                }
                Some(("embedding", own)) => method.embedding = Some(pair(own).ok_or_else(unknown)?),
                _ => return Err(unknown()),
            }
        }
        Ok(method)
    }
}

impl Widths {
    /// `4`, `2/3` or `2/3-rev`.
    fn parse(text: &str) -> Option<Self> {
        if let Some((others, sensitive)) = pair(text.strip_suffix("-rev").unwrap_or(text)) {
            let reversed = text.ends_with("-rev");
            let (others, sensitive) = if reversed { (sensitive, others) } else { (others, sensitive) };
            return Some(Self { others, sensitive });
        }
        let bits = bits(text)?;
        Some(Self { others: bits, sensitive: bits })
    }
}

fn bits(text: &str) -> Option<Precision> {
    text.parse().ok()
}

fn pair(text: &str) -> Option<(Precision, Precision)> {
    let (first, second) = text.split_once('/')?;
    Some((bits(first)?, bits(second)?))
}

impl fmt::Display for Widths {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { others, sensitive } = self;
        match others.cmp(sensitive) {
            std::cmp::Ordering::Equal => write!(formatter, "{others}"),
            std::cmp::Ordering::Less => write!(formatter, "{others}/{sensitive}"),
            std::cmp::Ordering::Greater => write!(formatter, "{sensitive}/{others}-rev"),
        }
    }
}

/// The name, as [`Method::from_str`] reads it.
impl fmt::Display for Method {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.full {
            return formatter.write_str("full");
        }
        let base = self.base();
        match self.groups {
            GroupSpec::Count(1) => write!(formatter, "directq:{base}")?,
            GROUPS => write!(formatter, "q-bert:{base}")?,
            groups => write!(formatter, "q-bert:{base},groups={groups}")?,
        }
        if self.attention != base {
            write!(formatter, ",attention={}", self.attention)?;
        }
        if self.feed_forward != base {
            write!(formatter, ",feed-forward={}", self.feed_forward)?;
        }
        match self.embedding {
            Some((word, position)) => write!(formatter, ",embedding={word}/{position}")?,
            None => return Ok(()),
        }
        if self.embedding_groups == GROUPS {
            return Ok(());
        }
        write!(formatter, ",embedding-groups={}", self.embedding_groups)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qbert_quant::Preset;

    fn plan(name: &str, sensitive: &[usize]) -> Plan {
        name.parse::<Method>().unwrap().plan(12, sensitive, RangeMethod::MinMax).unwrap()
    }

    fn layer_bits(plan: &Plan, matrix: Matrix) -> Vec<f64> {
        plan.layers().iter().map(|layer| layer.get(matrix).bits.number()).collect()
    }

    #[test]
    fn every_method_of_the_paper_has_a_plan_and_a_name() {
        for name in PAPER {
            let method: Method = name.parse().unwrap();
            assert_eq!(method.to_string(), name);
            let plan = method.plan(12, &[3, 4], RangeMethod::MinMax).unwrap();
            assert_eq!(plan.activation().bits.number(), if name == "full" { 32.0 } else { 8.0 }, "{name}");
            assert!(plan.sites().all(|(_, site)| site.range == RangeMethod::MinMax), "{name}");
        }
    }

    #[test]
    fn mixed_precision_is_the_published_setting() {
        // Tab. 6, SST-2: the paper's layers 4 to 9 have 3 bits.
        let published = Preset::parse("sst2-2-3").unwrap().plan(12).unwrap().with_weight_range(RangeMethod::MinMax);
        assert_eq!(plan("q-bert:2/3", &[3, 4, 5, 6, 7, 8]), published);
        let [two, three] = [2, 3].map(|bits| Precision::from_number(bits).unwrap());
        assert_eq!(plan("q-bert:2/3-rev", &[3, 4, 5, 6, 7, 8]), published.reverse(two, three));
    }

    #[test]
    fn groups_modules_and_embeddings_are_as_the_tables_say() {
        let direct = plan("directq:3", &[]);
        assert!(direct.sites().all(|(_, site)| site.groups == GroupSpec::Count(1)));
        assert_eq!(plan("q-bert:4,groups=head", &[]).layers()[0].value.groups, GroupSpec::PerHead);
        let module = plan("q-bert:2/3,attention=1/2", &[1]);
        assert_eq!(layer_bits(&module, Matrix::AttentionOutput)[..3], [1.0, 2.0, 1.0]);
        assert_eq!(layer_bits(&module, Matrix::Output)[..3], [2.0, 3.0, 2.0]);
        assert_eq!(layer_bits(&plan("q-bert:1/1.6", &[1]), Matrix::Value)[..3], [1.0, 1.6, 1.0]);
        let module = plan("q-bert:2/3,feed-forward=1/2", &[1]);
        assert_eq!(layer_bits(&module, Matrix::Query)[..3], [2.0, 3.0, 2.0]);
        assert_eq!(layer_bits(&module, Matrix::Intermediate)[..3], [1.0, 2.0, 1.0]);
        let tables = *plan("q-bert:8,embedding=4/8", &[]).embedding();
        assert_eq!((tables.word.bits.number(), tables.position.bits.number()), (4.0, 8.0));
        assert_eq!((tables.word.groups, tables.token_type.bits.number()), (GROUPS, 8.0));
        assert_eq!(plan("q-bert:8", &[]).embedding().word.groups, GroupSpec::Count(1));
        let layerwise = *plan("q-bert:8,embedding=8/4,embedding-groups=1", &[]).embedding();
        assert_eq!((layerwise.position.bits.number(), layerwise.position.groups), (4.0, GroupSpec::Count(1)));
    }

    #[test]
    fn what_is_no_method_is_refused() {
        for name in [
            "",
            "qbert:4",
            "q-bert",
            "q-bert:9",
            "q-bert:2/",
            "full:4",
            "full,groups=1",
            "q-bert:4,bits=3",
            "q-bert:4,embedding-groups=1",
        ] {
            assert!(name.parse::<Method>().is_err(), "{name}");
        }
        let mixed: Method = "q-bert:2/4".parse().unwrap();
        let error = mixed.plan(6, &[], RangeMethod::Mse).unwrap_err().to_string();
        assert!(error.contains("which layers are sensitive"), "{error}");
        assert!(mixed.plan(6, &[6], RangeMethod::Mse).is_err());
    }
}
