//! Reads a plan's text, and says by name and line what is wrong with it.
//!
//! It walks the TOML tree itself instead of deriving a deserializer, because a person edits these files:
//! an unknown key gets the nearest right one, missing sites are listed, and every error has a line.

use super::{ActivationPlan, EmbeddingPlan, LayerPlan, Plan, SitePlan, VERSION};
use crate::bits::Precision;
use crate::error::{Error, PlanProblem};
use crate::groups::GroupSpec;
use crate::nearest::nearest;
use crate::product::TableWidth;
use crate::range::RangeMethod;
use crate::shorten::shorten;
use crate::site::{Embedding, Matrix, Site, layer_number};
use std::ops::Range as Span;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// More layers than any model has; keeps a typing error from taking all memory.
const MOST_LAYERS: usize = 10_000;

type Value<'text> = Spanned<DeValue<'text>>;

pub(super) fn parse(text: &str, source_name: &str) -> Result<Plan, Error> {
    let source = Source { text, name: source_name };
    let document = DeTable::parse(text).map_err(|error| {
        let span = error.span().unwrap_or(0..0);
        let message = error.message().lines().next().unwrap_or("unreadable").to_owned();
        let problem = match message.as_str() {
            "duplicate key" => PlanProblem::DuplicateKey { key: shorten(source.dotted_key(&span)).into_owned() },
            _ => PlanProblem::NotToml { message },
        };
        source.error(span, problem)
    })?;
    let root = Table { source, name: "the plan".to_owned(), span: 0..0, table: document.get_ref() };
    version(&root)?;
    root.only(&["version", "encoder", "embedding", "activation"])?;
    let encoder = root.table("encoder", "[encoder]")?;
    let embedding = root.table("embedding", "[embedding]")?;
    let activation = root.table("activation", "[activation]")?;
    Ok(Plan::new(layers(&encoder)?, tables(&embedding)?, activations(&activation)?))
}

/// The text, to turn places into lines.
#[derive(Clone, Copy)]
struct Source<'text> {
    text: &'text str,
    name: &'text str,
}

impl Source<'_> {
    fn error(&self, span: Span<usize>, problem: PlanProblem) -> Error {
        let before = self.text.as_bytes().get(..span.start).unwrap_or(self.text.as_bytes());
        let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
        Error::Plan { file: self.name.to_owned(), line, problem }
    }

    /// The key at a place, with the dotted names before it on the line: `layer.0`. A quoted key may hold spaces and dots
    /// of its own, so it stands alone.
    fn dotted_key(&self, span: &Span<usize>) -> &str {
        let key = self.text.get(span.clone()).unwrap_or_default();
        let before = self.text.get(..span.start).unwrap_or_default();
        let is_plain = |character: char| character.is_ascii_alphanumeric() || "_-.".contains(character);
        let prefix = before.len() - before.trim_end_matches(is_plain).len();
        let dotted = self.text.get(span.start - prefix..span.end).unwrap_or(key);
        if key.starts_with(['"', '\'']) { key } else { dotted }
    }
}

/// A table of the text, with what is needed to complain about it.
struct Table<'tree, 'text> {
    source: Source<'text>,
    /// How errors call it.
    name: String,
    span: Span<usize>,
    table: &'tree DeTable<'text>,
}

impl<'tree, 'text> Table<'tree, 'text> {
    fn get(&self, key: &str) -> Option<&'tree Value<'text>> {
        self.table.get(key)
    }

    fn missing(&self, key: &str) -> Error {
        let problem = PlanProblem::MissingKey { key: key.to_owned(), table: self.name.clone() };
        self.source.error(self.span.clone(), problem)
    }

    fn require(&self, key: &str) -> Result<&'tree Value<'text>, Error> {
        self.get(key).ok_or_else(|| self.missing(key))
    }

    /// Refuses the first key, in the order of the text, that is not among `known`.
    fn only(&self, known: &[&str]) -> Result<(), Error> {
        let unknown = self.table.iter().filter(|(key, _)| !known.contains(&key.get_ref().as_ref()));
        let Some((key, _)) = unknown.min_by_key(|(key, _)| key.span().start) else { return Ok(()) };
        let text = key.get_ref().to_string();
        let nearest = nearest(&text, known);
        let problem = PlanProblem::UnknownKey { key: shorten(&text).into_owned(), table: self.name.clone(), nearest };
        Err(self.source.error(key.span(), problem))
    }

    fn table(&self, key: &str, name: &str) -> Result<Self, Error> {
        self.as_table(self.get(key).ok_or_else(|| self.missing(name))?, key, name)
    }

    fn as_table(&self, value: &'tree Value<'text>, key: &str, name: &str) -> Result<Self, Error> {
        let Some(table) = value.get_ref().as_table() else {
            return Err(self.wrong_type(value, key, "a table"));
        };
        Ok(Self { source: self.source, name: name.to_owned(), span: value.span(), table })
    }

    fn wrong_type(&self, value: &Value<'_>, key: &str, expected: &'static str) -> Error {
        let found = match value.get_ref() {
            DeValue::String(text) => format!("the string {:?}", shorten(text)),
            DeValue::Integer(number) => format!("the number {}", shorten(number.as_str())),
            DeValue::Float(number) => format!("the number {}", shorten(number.as_str())),
            DeValue::Boolean(word) => word.to_string(),
            DeValue::Datetime(_) => "a date".to_owned(),
            DeValue::Array(_) => "a list".to_owned(),
            DeValue::Table(_) => "a table".to_owned(),
        };
        let problem = PlanProblem::WrongType { key: key.to_owned(), expected, found };
        self.source.error(value.span(), problem)
    }

    fn bad_value(&self, value: &Value<'_>, key: &str, reason: Error) -> Error {
        let problem = PlanProblem::Value { key: key.to_owned(), reason: Box::new(reason) };
        self.source.error(value.span(), problem)
    }

    fn bits(&self, value: &Value<'_>, key: &str) -> Result<Precision, Error> {
        let float = || value.get_ref().as_float().and_then(|number| number.as_str().parse().ok());
        let number = integer(value).map(|number| number as f64).or_else(float);
        let number = number.ok_or_else(|| self.wrong_type(value, key, "a number of bits"))?;
        Precision::from_number(number).map_err(|reason| self.bad_value(value, key, reason))
    }

    /// The width of a site: a number of bits, or the text of product codes, which only tables may have.
    fn width(&self, value: &Value<'_>, key: &str, site: Site) -> Result<TableWidth, Error> {
        let Some(text) = value.get_ref().as_str() else { return Ok(self.bits(value, key)?.into()) };
        let width: TableWidth = text.parse().map_err(|reason| self.bad_value(value, key, reason))?;
        match width.product {
            Some(_) if site.layer().is_some() => Err(self.bad_value(value, key, Error::Product { site })),
            Some(_) => Ok(width),
            None => Err(self.wrong_type(value, key, "a number of bits")),
        }
    }

    /// The `groups` of this table, or `None` when it says nothing.
    fn groups(&self) -> Result<Option<GroupSpec>, Error> {
        let Some(value) = self.get("groups") else { return Ok(None) };
        let text = match value.get_ref() {
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(number) => integer(value).map_or_else(|| number.to_string(), |number| number.to_string()),
            _ => return Err(self.wrong_type(value, "groups", "a number, \"head\", \"neuron\" or \"row\"")),
        };
        text.parse().map(Some).map_err(|reason| self.bad_value(value, &format!("groups of {}", self.name), reason))
    }

    /// The `range` of this table, or `None` when it says nothing.
    fn range(&self) -> Result<Option<RangeMethod>, Error> {
        let Some(value) = self.get("range") else { return Ok(None) };
        let text = value.get_ref().as_str().ok_or_else(|| self.wrong_type(value, "range", "a string"))?;
        text.parse().map(Some).map_err(|reason| self.bad_value(value, &format!("range of {}", self.name), reason))
    }
}

fn integer(value: &Value<'_>) -> Option<i64> {
    let number = value.get_ref().as_integer()?;
    i64::from_str_radix(number.as_str(), number.radix()).ok()
}

fn version(root: &Table<'_, '_>) -> Result<(), Error> {
    let value = root.require("version")?;
    let number = integer(value).ok_or_else(|| root.wrong_type(value, "version", "a number"))?;
    if number == VERSION {
        return Ok(());
    }
    Err(root.source.error(value.span(), PlanProblem::Version { found: number.to_string() }))
}

/// What sites of a section have when they do not say otherwise.
struct Defaults<'section, 'tree, 'text> {
    section: &'section Table<'tree, 'text>,
    groups: Option<GroupSpec>,
    range: Option<RangeMethod>,
}

impl<'section, 'tree, 'text> Defaults<'section, 'tree, 'text> {
    fn read(section: &'section Table<'tree, 'text>) -> Result<Self, Error> {
        Ok(Self { section, groups: section.groups()?, range: section.range()? })
    }

    /// Reads the plan of a site: a number of bits, or a table with `bits` and what differs.
    fn site(&self, value: &Value<'text>, site: Site) -> Result<SitePlan, Error> {
        let name = site.to_string();
        let section = self.section;
        let (width, groups, range) = match value.get_ref() {
            DeValue::Table(_) => {
                let table = section.as_table(value, &name, &name)?;
                table.only(&["bits", "groups", "range"])?;
                let width = table.width(table.require("bits")?, &format!("{name}.bits"), site)?;
                (width, table.groups()?, table.range()?)
            }
            DeValue::Integer(_) | DeValue::Float(_) => (section.width(value, &name, site)?, None, None),
            DeValue::String(text) if text.contains('/') => (section.width(value, &name, site)?, None, None),
            _ => {
                return Err(section.wrong_type(
                    value,
                    &name,
                    "a number of bits or { bits = …, groups = …, range = … }",
                ));
            }
        };
        let groups = groups.or(self.groups).ok_or_else(|| section.missing("groups"))?;
        let range = range.or(self.range).ok_or_else(|| section.missing("range"))?;
        let fits = groups != GroupSpec::PerRow || (site.layer().is_none() && width.product.is_none());
        if !fits {
            return Err(section.bad_value(value, &format!("groups of {name}"), Error::RowGroups));
        }
        Ok(SitePlan::table(width, groups, range))
    }
}

fn layers(encoder: &Table<'_, '_>) -> Result<Vec<LayerPlan>, Error> {
    encoder.only(&["groups", "range", "layer"])?;
    let defaults = Defaults::read(encoder)?;
    let layers = encoder.table("layer", "layer.0")?;
    let mut numbered = Vec::new();
    for (key, value) in layers.table {
        let Some(number) = layer_number(key.get_ref()).filter(|&number| number < MOST_LAYERS) else {
            let problem = PlanProblem::LayerNumber { text: shorten(key.get_ref()).into_owned() };
            return Err(encoder.source.error(key.span(), problem));
        };
        numbered.push((number, key.span(), value));
    }
    numbered.sort_unstable_by_key(|(number, ..)| *number);
    let mut plans = Vec::with_capacity(numbered.len());
    for (expected, (number, span, value)) in numbered.into_iter().enumerate() {
        if number != expected {
            let problem = PlanProblem::LayerGap { missing: expected, found: number };
            return Err(encoder.source.error(span, problem));
        }
        plans.push(layer(&defaults, value, number)?);
    }
    Ok(plans)
}

fn layer(defaults: &Defaults<'_, '_, '_>, value: &Value<'_>, number: usize) -> Result<LayerPlan, Error> {
    let name = format!("layer.{number}");
    let table = defaults.section.as_table(value, &name, &name)?;
    table.only(&Matrix::ALL.map(Matrix::name))?;
    let sites = Matrix::ALL.map(|matrix| (matrix.name(), Site::Layer(number, matrix)));
    all_named(&table, &sites)?;
    let site = |matrix: Matrix| defaults.site(table.require(matrix.name())?, Site::Layer(number, matrix));
    Ok(LayerPlan {
        query: site(Matrix::Query)?,
        key: site(Matrix::Key)?,
        value: site(Matrix::Value)?,
        attention_output: site(Matrix::AttentionOutput)?,
        intermediate: site(Matrix::Intermediate)?,
        output: site(Matrix::Output)?,
    })
}

fn tables(section: &Table<'_, '_>) -> Result<EmbeddingPlan, Error> {
    section.only(&["groups", "range", "word", "position", "type"])?;
    let sites = Embedding::ALL.map(|table| (table.name(), Site::Embedding(table)));
    all_named(section, &sites)?;
    let defaults = Defaults::read(section)?;
    let site = |table: Embedding| defaults.site(section.require(table.name())?, Site::Embedding(table));
    Ok(EmbeddingPlan {
        word: site(Embedding::Word)?,
        position: site(Embedding::Position)?,
        token_type: site(Embedding::Type)?,
    })
}

fn all_named(table: &Table<'_, '_>, sites: &[(&str, Site)]) -> Result<(), Error> {
    let missing = sites.iter().filter(|(key, _)| table.get(key).is_none());
    let sites: Vec<String> = missing.map(|(_, site)| site.to_string()).collect();
    if sites.is_empty() {
        return Ok(());
    }
    Err(table.source.error(table.span.clone(), PlanProblem::MissingSites { sites }))
}

fn activations(section: &Table<'_, '_>) -> Result<ActivationPlan, Error> {
    section.only(&["bits", "range"])?;
    Ok(ActivationPlan {
        bits: section.bits(section.require("bits")?, "bits of [activation]")?,
        range: section.range()?.ok_or_else(|| section.missing("range"))?,
    })
}
