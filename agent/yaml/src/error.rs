//! What is wrong with a text, as data and as a sentence.

use std::fmt;

use serde::de::{self, Unexpected};

/// A place in a text. Both numbers begin with 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line.
    pub line: u64,
    /// The character in the line.
    pub column: u64,
}

impl fmt::Display for Position {
    /// `line:column`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// Why a text cannot be read as the expected value. Its text is one sentence without the position.
#[derive(Clone, Debug, PartialEq)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug, PartialEq)]
struct Inner {
    kind: ErrorKind,
    position: Option<Position>,
    /// The wrong word of a value or a key.
    word: Option<String>,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The text is not YAML.
    Syntax(String),
    /// The text exceeds a bound, which is there for hostile files.
    Limit(String),
    /// A key is there twice.
    DuplicateKey(String),
    /// A map has a field that is not known.
    UnknownField {
        /// The field.
        name: String,
        /// The known fields.
        known: Vec<&'static str>,
    },
    /// A word is not one of the known ones.
    UnknownValue {
        /// The word.
        name: String,
        /// The known words.
        known: Vec<&'static str>,
    },
    /// A map lacks a field.
    MissingField(&'static str),
    /// A value has another type.
    WrongType(Expected),
    /// A reason that the reader of a type gives.
    Sentence(String),
}

/// The expected type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Expected {
    /// A map.
    Map,
    /// A list.
    List,
    /// A text.
    Text,
    /// `true` or `false`.
    Boolean,
    /// An integer.
    Integer,
    /// An integer that is not negative.
    UnsignedInteger,
    /// An integer of a range.
    IntegerIn {
        /// The smallest one.
        min: i128,
        /// The largest one.
        max: i128,
    },
    /// A number.
    Number,
    /// `null`.
    Null,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, position: Position) -> Error {
        Error(Box::new(Inner { kind, position: Some(position), word: None }))
    }

    /// Returns what is wrong.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// Returns the position of the wrong part.
    #[must_use]
    pub fn position(&self) -> Option<Position> {
        self.0.position
    }

    /// Removes names from the known ones: those of fields that no file may have.
    #[must_use]
    pub fn without_known(mut self, hidden: &[&str]) -> Error {
        if let ErrorKind::UnknownField { known, .. } | ErrorKind::UnknownValue { known, .. } =
            &mut self.0.kind
        {
            known.retain(|name| !hidden.contains(name));
        }
        self
    }

    /// Returns the wrong word, as it is written.
    pub(crate) fn word(&self) -> Option<&str> {
        self.0.word.as_deref()
    }

    /// Sets the position.
    pub(crate) fn at(mut self, position: Position) -> Error {
        self.0.position = Some(position);
        self
    }

    fn with_word(kind: ErrorKind, word: Option<String>) -> Error {
        Error(Box::new(Inner { kind, position: None, word }))
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Error {
        Error::with_word(kind, None)
    }
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.kind.fmt(f)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ErrorKind::Syntax(why) | ErrorKind::Limit(why) | ErrorKind::Sentence(why) => {
                f.write_str(why)
            }
            ErrorKind::DuplicateKey(key) => write!(f, "the key {key} is there twice"),
            ErrorKind::UnknownField { name, known } => {
                write!(f, "unknown field `{name}`, expected one of {}", known.join(", "))
            }
            ErrorKind::UnknownValue { name, known } => {
                write!(f, "unknown value `{name}`, expected one of {}", known.join(", "))
            }
            ErrorKind::MissingField(name) => write!(f, "missing field `{name}`"),
            ErrorKind::WrongType(expected) => write!(f, "expected {expected}"),
        }
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Expected::Map => "a map of fields",
            Expected::List => "a list",
            Expected::Text => "a text",
            Expected::Boolean => "true or false",
            Expected::Integer => "an integer",
            Expected::UnsignedInteger => "an integer that is not negative",
            Expected::IntegerIn { min, max } => {
                return write!(f, "an integer from {min} to {max}");
            }
            Expected::Number => "a number",
            Expected::Null => "no value",
        })
    }
}

impl de::Error for Error {
    fn custom<T: fmt::Display>(why: T) -> Error {
        ErrorKind::Sentence(why.to_string()).into()
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn de::Expected) -> Error {
        let why = format!("invalid type: {found}, expected {expected}");
        Error::with_word(ErrorKind::Sentence(why), written(found))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn de::Expected) -> Error {
        let why = format!("invalid value: {found}, expected {expected}");
        Error::with_word(ErrorKind::Sentence(why), written(found))
    }

    fn unknown_field(name: &str, known: &'static [&'static str]) -> Error {
        let kind = ErrorKind::UnknownField { name: name.to_owned(), known: known.to_vec() };
        Error::with_word(kind, Some(name.to_owned()))
    }

    fn unknown_variant(name: &str, known: &'static [&'static str]) -> Error {
        let kind = ErrorKind::UnknownValue { name: name.to_owned(), known: known.to_vec() };
        Error::with_word(kind, Some(name.to_owned()))
    }

    fn missing_field(name: &'static str) -> Error {
        ErrorKind::MissingField(name).into()
    }
}

/// Returns how a scalar is usually written.
fn written(found: Unexpected<'_>) -> Option<String> {
    match found {
        Unexpected::Str(text) => Some(text.to_owned()),
        Unexpected::Unsigned(value) => Some(value.to_string()),
        Unexpected::Signed(value) => Some(value.to_string()),
        Unexpected::Bool(value) => Some(value.to_string()),
        _ => None,
    }
}
