//! The tree of a text: events of the parser become nodes, aliases and merge keys become what they stand for.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use granit_parser::{
    ErrorKind as ParserError, Event, Parser, ScalarStyle, ScanError, Span, StrInput,
    Tag as ParsedTag, options,
};

use crate::error::{Error, ErrorKind, Position};
use crate::node::{Content, Entry, Node};
use crate::scalar::{Scalar, Tag, YAML};

/// Maximum depth of maps and lists. Nodes are composed, decoded and dropped by recursion.
const MAX_DEPTH: usize = 64;

/// Maximum number of values. A value counts each time that an alias repeats it, because a decoded value has it each time:
/// ten lines of aliases of aliases are ten billion values.
const MAX_NODES: usize = 250_000;

/// Maximum length of all scalars in bytes, counted in the same way.
const MAX_TEXT_BYTES: usize = 64 << 20;

/// Composes the only document of a text.
pub(crate) fn document(text: &str) -> Result<Rc<Node>, Error> {
    let mut composer = Composer {
        parser: Parser::new_from_str_with_options(text, options! { emit_comments: false }),
        anchors: HashMap::new(),
        nodes: 0,
        text_bytes: 0,
    };
    let mut root = None;
    loop {
        let (event, span) = composer.next()?;
        match event {
            Event::StreamEnd => break,
            Event::DocumentStart(..) if root.is_some() => {
                let why = "the file has several documents, and only one can be read";
                return Err(Error::new(ErrorKind::Syntax(why.to_owned()), start(&span)));
            }
            Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd => {}
            event => root = Some(composer.compose(event, &span, 0)?.node),
        }
    }
    Ok(root.unwrap_or_else(|| {
        Rc::new(Node { position: Position { line: 1, column: 1 }, content: Content::Absent })
    }))
}

struct Composer<'a> {
    parser: Parser<'a, StrInput<'a>>,
    anchors: HashMap<usize, Anchored>,
    /// The values so far, with those that aliases repeat.
    nodes: usize,
    text_bytes: usize,
}

struct Composed {
    node: Rc<Node>,
    /// How many maps and lists are in one another, at most.
    height: usize,
}

/// A value with an anchor.
struct Anchored {
    node: Rc<Node>,
    height: usize,
    nodes: usize,
    text_bytes: usize,
}

impl<'a> Composer<'a> {
    /// Returns the next event. After the end of the stream it is an error.
    fn next(&mut self) -> Result<(Event<'a>, Span), Error> {
        match self.parser.next() {
            Some(next) => next.map_err(|error| syntax_error(&error)),
            None => Err(ErrorKind::Syntax("unexpected end of the text".to_owned()).into()),
        }
    }

    /// Composes the value that begins with an event, within this many maps and lists.
    fn compose(&mut self, event: Event<'a>, span: &Span, depth: usize) -> Result<Composed, Error> {
        let position = start(span);
        let nodes_before = self.nodes;
        let text_bytes_before = self.text_bytes;
        let (anchor, composed) = match event {
            Event::Alias(anchor) => return self.alias(anchor, position, depth),
            Event::Scalar(text, style, anchor, tag) => {
                self.count(1, text.len(), position)?;
                // The parser reports `~` where nothing is written.
                let is_blank = span.start.index() == span.end.index();
                let text = if is_blank { "" } else { &*text };
                let scalar = scalar(text, style, tag.as_deref(), position)?;
                let node = Rc::new(Node { position, content: Content::Scalar(scalar) });
                (anchor, Composed { node, height: 0 })
            }
            Event::SequenceStart(_, anchor, tag) => {
                check_tag(tag.as_deref(), Tag::List, position)?;
                self.enter(depth + 1, position)?;
                (anchor, self.list(position, depth + 1)?)
            }
            Event::MappingStart(_, anchor, tag) => {
                check_tag(tag.as_deref(), Tag::Map, position)?;
                self.enter(depth + 1, position)?;
                (anchor, self.map(position, depth + 1)?)
            }
            _ => {
                return Err(Error::new(ErrorKind::Syntax("expected a value".to_owned()), position));
            }
        };
        if anchor != 0 {
            let anchored = Anchored {
                node: Rc::clone(&composed.node),
                height: composed.height,
                nodes: self.nodes - nodes_before,
                text_bytes: self.text_bytes - text_bytes_before,
            };
            self.anchors.insert(anchor, anchored);
        }
        Ok(composed)
    }

    fn alias(&mut self, anchor: usize, at: Position, depth: usize) -> Result<Composed, Error> {
        let Some(anchored) = self.anchors.get(&anchor) else {
            let why = "the alias is within the value that it refers to";
            return Err(Error::new(ErrorKind::Syntax(why.to_owned()), at));
        };
        let node = Rc::clone(&anchored.node);
        let height = anchored.height;
        let nodes = anchored.nodes;
        let text_bytes = anchored.text_bytes;
        if depth + height > MAX_DEPTH {
            return Err(too_deep(at));
        }
        self.count(nodes, text_bytes, at)?;
        Ok(Composed { node, height })
    }

    fn list(&mut self, position: Position, depth: usize) -> Result<Composed, Error> {
        let mut items = Vec::new();
        let mut height = 0;
        loop {
            let (event, span) = self.next()?;
            if event == Event::SequenceEnd {
                break;
            }
            let item = self.compose(event, &span, depth)?;
            height = height.max(item.height);
            items.push(item.node);
        }
        let node = Rc::new(Node { position, content: Content::List(items) });
        Ok(Composed { node, height: height + 1 })
    }

    fn map(&mut self, position: Position, depth: usize) -> Result<Composed, Error> {
        let mut entries = Vec::new();
        let mut merged = Vec::new();
        let mut height = 0;
        loop {
            let (event, span) = self.next()?;
            if event == Event::MappingEnd {
                break;
            }
            let is_merge_key = is_merge_key(&event);
            let key = self.compose(event, &span, depth)?.node;
            if key.text().is_none() {
                let why = "a key must be a text";
                return Err(Error::new(ErrorKind::Syntax(why.to_owned()), start(&span)));
            }
            let (event, span) = self.next()?;
            let value = self.compose(event, &span, depth)?;
            height = height.max(value.height);
            if is_merge_key {
                merge(&value.node, &mut merged)?;
            } else {
                entries.push(Entry { key, value: value.node });
            }
        }
        entries.extend(unseen(&entries, &merged)?);
        let node = Rc::new(Node { position, content: Content::Map(entries) });
        Ok(Composed { node, height: height + 1 })
    }

    fn enter(&mut self, depth: usize, position: Position) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(too_deep(position));
        }
        self.count(1, 0, position)
    }

    fn count(&mut self, nodes: usize, text_bytes: usize, position: Position) -> Result<(), Error> {
        self.nodes += nodes;
        self.text_bytes += text_bytes;
        let why = if self.nodes > MAX_NODES {
            format!("the file has more than {MAX_NODES} values, with those that aliases repeat")
        } else if self.text_bytes > MAX_TEXT_BYTES {
            format!("the texts of the file are longer than {MAX_TEXT_BYTES} bytes")
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::Limit(why), position))
    }
}

fn too_deep(position: Position) -> Error {
    let why = format!("maps and lists are more than {MAX_DEPTH} deep in one another");
    Error::new(ErrorKind::Limit(why), position)
}

/// Whether a key is `<<`, whose value is merged into the map.
fn is_merge_key(event: &Event<'_>) -> bool {
    match event {
        Event::Scalar(text, style, _, tag) if text == "<<" => match tag {
            Some(tag) => tag.suffix_in_namespace(YAML).is_some_and(|name| name == "merge"),
            None => *style == ScalarStyle::Plain,
        },
        _ => false,
    }
}

/// Adds the fields of the value of a merge key: those of a map, or of each map of a list.
fn merge(value: &Rc<Node>, merged: &mut Vec<Entry>) -> Result<(), Error> {
    match &value.content {
        Content::Map(entries) => merged.extend(entries.iter().cloned()),
        Content::List(items) => {
            for item in items {
                merge(item, merged)?;
            }
        }
        Content::Scalar(scalar) if scalar.is_null() => {}
        Content::Scalar(_) | Content::Absent => {
            let why = "the value of << must be a map or a list of maps";
            return Err(Error::new(ErrorKind::Syntax(why.to_owned()), value.position));
        }
    }
    Ok(())
}

/// Returns the merged fields that the map does not have; the first one of a name wins. A key that the map itself has twice
/// is an error: one of the values would be lost. Keys are the same if their texts are, because typed values have texts as
/// keys: `1` and `"1"` would be the same there.
fn unseen(entries: &[Entry], merged: &[Entry]) -> Result<Vec<Entry>, Error> {
    let mut seen = HashSet::new();
    for Entry { key, .. } in entries {
        let text = key.text().unwrap_or_default();
        if !seen.insert(text) {
            return Err(Error::new(ErrorKind::DuplicateKey(text.to_owned()), key.position));
        }
    }
    let mut unseen = Vec::new();
    for entry in merged {
        if seen.insert(entry.key.text().unwrap_or_default()) {
            unseen.push(entry.clone());
        }
    }
    Ok(unseen)
}

/// Checks that the tag of a list or a map is not that of another value.
fn check_tag(tag: Option<&ParsedTag>, expected: Tag, position: Position) -> Result<(), Error> {
    match Tag::new(tag) {
        Tag::None | Tag::Unspecific => Ok(()),
        found if found == expected => Ok(()),
        _ => Err(misplaced_tag(tag, position)),
    }
}

fn misplaced_tag(tag: Option<&ParsedTag>, position: Position) -> Error {
    let tag = tag.map(ParsedTag::original).unwrap_or_default();
    let why = format!("the tag {tag} does not fit the value");
    Error::new(ErrorKind::Syntax(why), position)
}

fn scalar(
    text: &str,
    style: ScalarStyle,
    tag: Option<&ParsedTag>,
    position: Position,
) -> Result<Scalar, Error> {
    let is_plain = style == ScalarStyle::Plain;
    match Tag::new(tag) {
        Tag::List | Tag::Map => Err(misplaced_tag(tag, position)),
        Tag::Binary => {
            let encoded: String = text.split_ascii_whitespace().collect();
            let bytes = STANDARD.decode(encoded).ok();
            let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok()).ok_or_else(|| {
                let why = "the value of !!binary must be a text in Base64";
                Error::new(ErrorKind::Syntax(why.to_owned()), position)
            })?;
            Ok(Scalar { text, is_plain: false, tag: Tag::Text })
        }
        tag => Ok(Scalar { text: text.to_owned(), is_plain, tag }),
    }
}

fn syntax_error(error: &ScanError) -> Error {
    let mark = error.marker();
    let position = position(mark.line(), mark.col());
    let why = match error.kind() {
        ParserError::RecursionLimitExceeded => return too_deep(position),
        ParserError::UnknownAnchor => "the alias refers to an unknown anchor".to_owned(),
        _ => error.info(),
    };
    Error::new(ErrorKind::Syntax(why), position)
}

fn start(span: &Span) -> Position {
    position(span.start.line(), span.start.col())
}

/// The parser counts lines from 1 and columns from 0.
fn position(line: usize, column: usize) -> Position {
    Position { line: line as u64, column: column as u64 + 1 }
}
