//! Named entities in CoNLL columns: CoNLL-2003 (word, part of speech, chunk, tag) and users' own files.
//!
//! The word is the first column and the tag the last; every line of a file must have the same number of columns.
//! Columns are separated by spaces or tabs (a no-break space belongs to its word). Blank lines end sentences;
//! `-DOCSTART-` lines are counted and skipped.
//!
//! Tags of any scheme are converted to IOB2: an entity begins at `B-` (or `S-`, `U-`) and wherever the
//! previous word has no tag of the same type, which is how `conlleval` reads every scheme. That makes the conversion
//! the same for IOB1, IOB2 and broken files; the scheme is detected only to be reported.
//!
//! Files in which no tag has a mark are as good: parts of speech, or entity types without `B-` and `I-`. Such tags stay as
//! they are. A file with both has a mistake, which is reported with its line.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::{NerData, NerSentence, TagScheme, TagStyle};
use crate::files::lines::Lines;
use crate::files::{ReadOptions, unknown_label};
use crate::{Error, Labels, Result, Task};

const DOCUMENT_START: &str = "-DOCSTART-";
const LAYOUT: &str =
    "each line has a word first and its tag last, with spaces or tabs between, a blank line ends a sentence";

/// A parsed tag.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Tag {
    Outside,
    Inside {
        prefix: char,
        kind: String,
    },
    /// Without a mark for the place in an entity.
    Plain(String),
}

#[derive(Default)]
struct RawSentence {
    words: Vec<String>,
    tags: Vec<Tag>,
    lines: Vec<usize>,
}

/// The sentences of one file, with its path for errors.
struct RawFile {
    path: PathBuf,
    sentences: Vec<RawSentence>,
    documents: usize,
}

pub(crate) fn read(task: Task, paths: &[&Path], options: &ReadOptions) -> Result<NerData> {
    let files = paths.iter().map(|path| read_file(path, options.require_labels)).collect::<Result<Vec<_>>>()?;
    refuse_stray_tags(task, &files)?;
    let found: BTreeSet<String> =
        files.iter().flat_map(|file| &file.sentences).flat_map(|sentence| iob2(&sentence.tags)).collect();
    let own = listed(&found);
    let count = own.as_ref().map_or(0, Labels::len);
    let labels = options.labels.for_data(task, &found, count)?.or(own);
    let scheme = files.first().and_then(|file| detect_scheme(&file.sentences));
    let documents = files.iter().map(|file| file.documents).sum();
    let mut sentences = Vec::new();
    for file in files {
        for raw in file.sentences {
            sentences.push(labelled(&file.path, raw, labels.as_ref())?);
        }
    }
    Ok(NerData { sentences, labels, found, scheme, documents })
}

fn read_file(path: &Path, require_labels: bool) -> Result<RawFile> {
    let mut lines = Lines::open(path)?;
    let mut file = RawFile { path: path.to_owned(), sentences: Vec::new(), documents: 0 };
    let mut sentence = RawSentence::default();
    let mut columns = None;
    let mut any_line = false;
    while let Some((number, line)) = lines.next_line()? {
        any_line = true;
        let fields: Vec<&str> = line.split([' ', '\t']).filter(|field| !field.is_empty()).collect();
        let (Some(&word), Some(&last)) = (fields.first(), fields.last()) else {
            file.end_sentence(&mut sentence);
            continue;
        };
        if word == DOCUMENT_START {
            file.end_sentence(&mut sentence);
            file.documents += 1;
            continue;
        }
        let expected = *columns.get_or_insert(fields.len());
        let too_few = require_labels && fields.len() < 2;
        if fields.len() != expected || too_few {
            let expected = expected.max(if require_labels { 2 } else { 1 });
            return Err(Error::ColumnCount {
                path: path.to_owned(),
                line: number,
                expected,
                found: fields.len(),
                layout: LAYOUT,
            });
        }
        sentence.words.push(word.to_owned());
        sentence.lines.push(number);
        if fields.len() > 1 {
            sentence.tags.push(parse_tag(last));
        }
    }
    file.end_sentence(&mut sentence);
    match (any_line, file.sentences.is_empty()) {
        (false, _) => Err(Error::Empty { path: path.to_owned() }),
        (true, true) => Err(Error::NoExamples { path: path.to_owned(), what: "only blank and -DOCSTART- lines" }),
        (true, false) => Ok(file),
    }
}

impl RawFile {
    fn end_sentence(&mut self, sentence: &mut RawSentence) {
        if !sentence.words.is_empty() {
            self.sentences.push(std::mem::take(sentence));
        }
    }
}

fn parse_tag(text: &str) -> Tag {
    match TagStyle::split(text) {
        _ if text == "O" => Tag::Outside,
        Some((prefix, kind)) => Tag::Inside { prefix, kind: kind.to_owned() },
        None => Tag::Plain(text.to_owned()),
    }
}

/// Refuses tags without a mark beside tags that have one, and in a task whose tags have them.
fn refuse_stray_tags(task: Task, files: &[RawFile]) -> Result<()> {
    let tags = || files.iter().flat_map(|file| &file.sentences).flat_map(|sentence| &sentence.tags);
    let marked = task.default_labels().is_some() || tags().any(|tag| matches!(tag, Tag::Inside { .. }));
    for file in files.iter().filter(|_| marked) {
        for sentence in &file.sentences {
            for (tag, &line) in sentence.tags.iter().zip(&sentence.lines) {
                if let Tag::Plain(tag) = tag {
                    return Err(Error::BadTag { path: file.path.clone(), line, tag: tag.clone() });
                }
            }
        }
    }
    Ok(())
}

impl Tag {
    fn kind(&self) -> Option<&str> {
        match self {
            Tag::Outside | Tag::Plain(_) => None,
            Tag::Inside { kind, .. } => Some(kind),
        }
    }

    fn prefix(&self) -> Option<char> {
        match self {
            Tag::Outside | Tag::Plain(_) => None,
            Tag::Inside { prefix, .. } => Some(*prefix),
        }
    }

    fn closes(&self) -> bool {
        matches!(self.prefix(), Some('E' | 'S' | 'L' | 'U'))
    }
}

/// Whether an entity begins at `tag`, given the tag before it in the sentence.
fn begins(previous: Option<&Tag>, tag: &Tag) -> bool {
    let Some(kind) = tag.kind() else { return false };
    let continues = previous.is_some_and(|previous| previous.kind() == Some(kind) && !previous.closes());
    matches!(tag.prefix(), Some('B' | 'S' | 'U')) || !continues
}

fn iob2(tags: &[Tag]) -> Vec<String> {
    let name = |(index, tag): (usize, &Tag)| match tag {
        Tag::Outside => "O".to_owned(),
        Tag::Plain(name) => name.clone(),
        Tag::Inside { kind, .. } => {
            let previous = index.checked_sub(1).map(|before| &tags[before]);
            format!("{}-{kind}", if begins(previous, tag) { 'B' } else { 'I' })
        }
    };
    tags.iter().enumerate().map(name).collect()
}

/// The scheme by which entities begin away from a neighbour of their type. One stray tag in a hundred does not make
/// a file another scheme's: the original CoNLL-2003 training file has two.
fn detect_scheme(sentences: &[RawSentence]) -> Option<TagScheme> {
    if sentences.iter().flat_map(|sentence| &sentence.tags).any(|tag| matches!(tag, Tag::Plain(_))) {
        return Some(TagScheme::Plain);
    }
    let (mut tagged, mut end_marks, mut bare_starts, mut marked_starts) = (false, false, 0, 0);
    for sentence in sentences {
        let mut previous_kind = None;
        for tag in &sentence.tags {
            tagged = true;
            end_marks |= tag.closes();
            if tag.kind().is_some() && tag.kind() != previous_kind {
                bare_starts += usize::from(tag.prefix() == Some('I'));
                marked_starts += usize::from(tag.prefix() == Some('B'));
            }
            previous_kind = tag.kind();
        }
    }
    tagged.then_some(if end_marks {
        TagScheme::Iobes
    } else if bare_starts * 100 <= marked_starts {
        TagScheme::Iob2
    } else if marked_starts * 100 <= bare_starts {
        TagScheme::Iob1
    } else {
        TagScheme::Mixed
    })
}

/// The labels of a head for these tags: `O` first, then both marks of each type, or the plain tags.
pub(super) fn listed(found: &BTreeSet<String>) -> Option<Labels> {
    if found.is_empty() {
        return None;
    }
    let types: BTreeSet<&str> = found.iter().filter_map(|tag| TagStyle::split(tag)).map(|(_, kind)| kind).collect();
    if types.is_empty() {
        let outside = found.get("O").into_iter();
        return Labels::new(outside.chain(found.iter().filter(|tag| *tag != "O")).cloned()).ok();
    }
    Some(Labels::for_entity_types(types))
}

fn labelled(path: &Path, raw: RawSentence, labels: Option<&Labels>) -> Result<NerSentence> {
    let RawSentence { words, tags, lines } = raw;
    let Some(labels) = labels.filter(|_| !tags.is_empty()) else {
        return Ok(NerSentence { words, tags: None });
    };
    let id = |(name, line): (String, usize)| labels.id(&name).ok_or_else(|| unknown_label(path, line, &name, labels));
    let tags = iob2(&tags).into_iter().zip(lines).map(id).collect::<Result<Vec<_>>>()?;
    Ok(NerSentence { words, tags: Some(tags) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentence(tags: &str) -> RawSentence {
        RawSentence { tags: tags.split(' ').map(parse_tag).collect(), ..RawSentence::default() }
    }

    #[test]
    fn every_scheme_becomes_iob2() {
        let cases = [
            ("I-A I-A O I-B", "B-A I-A O B-B", TagScheme::Iob1),
            ("I-A B-A I-A I-B", "B-A B-A I-A B-B", TagScheme::Iob1),
            ("B-A I-A B-A O", "B-A I-A B-A O", TagScheme::Iob2),
            ("O O", "O O", TagScheme::Iob2),
            ("B-A I-A O I-B", "B-A I-A O B-B", TagScheme::Mixed),
            ("B-A E-A S-A O S-B", "B-A I-A B-A O B-B", TagScheme::Iobes),
            ("B-A L-A I-A U-A", "B-A I-A B-A B-A", TagScheme::Iobes),
        ];
        for (given, expected, scheme) in cases {
            let raw = sentence(given);
            assert_eq!(iob2(&raw.tags).join(" "), expected, "{given}");
            assert_eq!(detect_scheme(&[raw]), Some(scheme), "{given}");
        }
    }

    #[test]
    fn plain_tags_stay_whole() {
        for text in ["-", "B", "B-", "X-PER", "NNP", "BPER", "é-PER", "O-PER", "B_PER", "PER-B", "LABEL_0"] {
            assert_eq!(parse_tag(text), Tag::Plain(text.to_owned()), "{text}");
        }
        assert_eq!(parse_tag("B-a-b").kind(), Some("a-b"));
        let raw = sentence("DET ADJ NOUN NOUN");
        assert_eq!(iob2(&raw.tags).join(" "), "DET ADJ NOUN NOUN");
        assert_eq!(detect_scheme(&[raw]), Some(TagScheme::Plain));
        let found = ["PER", "O", "LOC"].map(str::to_owned).into();
        assert_eq!(listed(&found).unwrap().names(), ["O", "LOC", "PER"]);
    }
}
