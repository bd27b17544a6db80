//! YAML for configuration files: YAML 1.2, of which JSON is a subset.
//!
//! A text is parsed once, into a tree whose values know their position ([`Document`]). A typed value is decoded from the
//! tree by serde, and an [`Error`] says what is wrong as data: an unknown field with the known ones, a wrong type, a
//! missing field, a duplicate key, a syntax error, each with the position of the wrong part.
//!
//! What differs from other readers: only `true` and `false` are booleans, a number with underscores is a text, a key that
//! is there twice is an error, and so is an optional field without a value (`null` is one). A hostile file cannot exhaust memory or the stack: see the bounds in `compose`.
//!
//! This crate changes when the meaning of YAML does. It knows no setting of any file.
//!
//! `compose` the tree of a text · `decode` typed values of a tree · `error` what is wrong · `node` the tree · `scalar` the
//! types of scalars.

mod compose;
mod decode;
mod error;
mod node;
mod scalar;

use std::rc::Rc;

use serde::de::DeserializeOwned;

pub use error::{Error, ErrorKind, Expected, Position};

use node::Node;

/// A parsed text.
#[derive(Debug)]
pub struct Document {
    root: Rc<Node>,
}

impl Document {
    /// Parses a text with one document. A text without a document, such as one of comments only, is valid: it is `null`,
    /// an empty list and an empty map.
    ///
    /// # Errors
    /// The text is not YAML, has several documents, a duplicate key or a key that is not a scalar, or exceeds a bound.
    pub fn parse(text: &str) -> Result<Document, Error> {
        compose::document(text).map(|root| Document { root })
    }

    /// Returns `true` if the text has no content: it is empty, has only comments, or is `null`.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.root.is_null()
    }

    /// Returns the content as a value of a type. It can be called with several types.
    ///
    /// # Errors
    /// The content is not such a value. The error has the position of the wrong part, or that of the smallest value
    /// around it.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, Error> {
        T::deserialize(&*self.root).map_err(|error| self.root.locate(error))
    }

    /// Returns the position of the key or scalar with this text in the value that begins at a position, if there is only
    /// one.
    #[must_use]
    pub fn position_of(&self, text: &str, within: Position) -> Option<Position> {
        self.root.at(within)?.position_of(text)
    }

    /// Returns the position of the key or scalar with this text, if there is only one.
    #[must_use]
    pub fn position_of_text(&self, text: &str) -> Option<Position> {
        self.root.position_of(text)
    }

    /// Returns the position of the first value that a field with one of these names has.
    #[must_use]
    pub fn position_of_field(&self, names: &[&str], value: &str) -> Option<Position> {
        self.root.field(names, value).map(|node| node.position)
    }
}

/// Parses a text with one document, and decodes it.
///
/// # Errors
/// Those of [`Document::parse`] and [`Document::decode`].
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, Error> {
    Document::parse(text)?.decode()
}

#[cfg(test)]
mod tests;
