//! The tree of a document.

use std::rc::Rc;

use crate::error::{Error, Position};
use crate::scalar::Scalar;

/// A value. An alias is the value that it refers to.
#[derive(Debug)]
pub(crate) struct Node {
    /// Where it begins.
    pub(crate) position: Position,
    pub(crate) content: Content,
}

#[derive(Debug)]
pub(crate) enum Content {
    Scalar(Scalar),
    List(Vec<Rc<Node>>),
    /// Keys are scalars, each is there once, and those of merge keys are among them.
    Map(Vec<Entry>),
    /// The text has no document.
    Absent,
}

/// A field of a map.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: Rc<Node>,
    pub(crate) value: Rc<Node>,
}

impl Node {
    /// Returns the text, if it is a scalar.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.content {
            Content::Scalar(scalar) => Some(&scalar.text),
            _ => None,
        }
    }

    /// Adds a position in this value to an error that has none. serde reads some values ahead, those of untagged enums and
    /// flattened fields, and reports their errors without a position: the wrong word is then searched in the value.
    pub(crate) fn locate(&self, error: Error) -> Error {
        if error.position().is_some() {
            return error;
        }
        let word = error.word().and_then(|word| self.position_of(word));
        error.at(word.unwrap_or(self.position))
    }

    /// Returns the outermost value that begins at a position.
    pub(crate) fn at(&self, position: Position) -> Option<&Node> {
        self.first(&|node| node.position == position)
    }

    /// Returns the position of the key or scalar with this text, if there is only one.
    pub(crate) fn position_of(&self, text: &str) -> Option<Position> {
        let found = self.first(&|node| node.text() == Some(text))?.position;
        let other = self.first(&|node| node.text() == Some(text) && node.position != found);
        other.is_none().then_some(found)
    }

    /// Returns the first scalar with this text that a field with one of these names has.
    pub(crate) fn field(&self, names: &[&str], text: &str) -> Option<&Node> {
        match &self.content {
            Content::List(items) => items.iter().find_map(|item| item.field(names, text)),
            Content::Map(entries) => entries.iter().find_map(|Entry { key, value }| {
                let is_named = key.text().is_some_and(|key| names.contains(&key));
                if is_named && value.text() == Some(text) {
                    Some(&**value)
                } else {
                    value.field(names, text)
                }
            }),
            Content::Scalar(_) | Content::Absent => None,
        }
    }

    /// Returns the first value that fits, a container before what is in it and a key before its value.
    fn first(&self, fits: &dyn Fn(&Node) -> bool) -> Option<&Node> {
        if fits(self) {
            return Some(self);
        }
        match &self.content {
            Content::List(items) => items.iter().find_map(|item| item.first(fits)),
            Content::Map(entries) => entries
                .iter()
                .find_map(|entry| entry.key.first(fits).or_else(|| entry.value.first(fits))),
            Content::Scalar(_) | Content::Absent => None,
        }
    }
}
