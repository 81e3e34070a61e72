//! The content of a section, independent of HTML and Markdown.
//!
//! All strings are plain text; both writers escape them, trusted or not.

use crate::plot::canvas::Canvas;
use crate::plot::surface::Surface;

/// A part of the page.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Section {
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) blocks: Vec<Block>,
}

/// What a section is made of.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Block {
    Text(String),
    Note(String),
    Warning(String),
    Tiles(Vec<Tile>),
    Figure(Figure),
    Table(DataTable),
    Commands(Vec<String>),
    /// Missing parts, with the commands that make them.
    Missing(Vec<(&'static str, &'static str)>),
}

/// Whether a value is good or bad news.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Good,
    Bad,
}

/// One large figure.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tile {
    pub(crate) label: String,
    pub(crate) value: String,
    pub(crate) detail: String,
    pub(crate) tone: Tone,
}

/// One or more drawings with a caption and their numbers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Figure {
    /// Letters and digits: the name of its file and anchor.
    pub(crate) name: &'static str,
    pub(crate) panels: Vec<Panel>,
    /// What it shows, and the conclusion.
    pub(crate) caption: String,
    pub(crate) table: Option<DataTable>,
}

/// One drawing.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Panel {
    /// Above the drawing; empty when the section's title says enough.
    pub(crate) title: String,
    /// Alternative text for screen readers.
    pub(crate) description: String,
    pub(crate) wide: Canvas,
    /// For phones, if `wide` is too wide.
    pub(crate) narrow: Option<Canvas>,
    /// The surface, if readers can rotate it.
    pub(crate) surface: Option<Surface>,
}

/// A table with a header row.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DataTable {
    pub(crate) caption: String,
    pub(crate) head: Vec<Head>,
    pub(crate) rows: Vec<Vec<Cell>>,
    /// On phones a row becomes a card: for tables with long texts.
    pub(crate) cards: bool,
}

/// A column's name; numeric columns are right-aligned.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Head {
    pub(crate) name: String,
    pub(crate) numeric: bool,
}

/// One cell.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Cell {
    Text(String),
    /// Running text from a data file, of unknown direction.
    Quote(String),
    Code(String),
    Marked(Tone, String),
}

impl DataTable {
    /// A table whose columns are numbers where their name starts with `#`.
    pub(crate) fn new(caption: impl Into<String>, head: &[&str]) -> Self {
        let head = head.iter().map(|name| match name.strip_prefix('#') {
            Some(name) => Head { name: name.to_owned(), numeric: true },
            None => Head { name: (*name).to_owned(), numeric: false },
        });
        Self { caption: caption.into(), head: head.collect(), rows: Vec::new(), cards: false }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = impl Into<Cell>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl Figure {
    /// A figure of one drawing, drawn for both widths.
    pub(crate) fn drawn(
        name: &'static str,
        caption: impl Into<String>,
        description: impl Into<String>,
        draw: impl Fn(f64) -> Canvas,
    ) -> Self {
        let panel = Panel {
            title: String::new(),
            description: description.into(),
            wide: draw(crate::plot::WIDE),
            narrow: Some(draw(crate::plot::NARROW)),
            surface: None,
        };
        Self { name, panels: vec![panel], caption: caption.into(), table: None }
    }

    /// With a title above the drawing.
    pub(crate) fn titled(mut self, title: &str) -> Self {
        if let Some(panel) = self.panels.first_mut() {
            title.clone_into(&mut panel.title);
        }
        self
    }

    pub(crate) fn with_table(mut self, table: DataTable) -> Self {
        self.table = Some(table);
        self
    }
}
