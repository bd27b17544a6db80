//! Scalars and their types: the core schema of YAML 1.2, by which `no`, `on` and `1_000` are texts.
//!
//! A typed reader asks for a type and gets it from any notation, so `"5"` is an integer where one is expected. An untyped
//! reader gets the type that the notation says, so `"5"` is a text.

use granit_parser::Tag as ParsedTag;

use crate::error::{ErrorKind, Expected};

/// The namespace of the tags of YAML, which `!!` stands for.
pub(crate) const YAML: &str = "tag:yaml.org,2002:";

/// A scalar as it is written.
#[derive(Debug)]
pub(crate) struct Scalar {
    /// The text, without quotes and with its escapes replaced.
    pub(crate) text: String,
    /// Whether it has neither quotes nor is a block.
    pub(crate) is_plain: bool,
    pub(crate) tag: Tag,
}

/// The explicit type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tag {
    /// None, or a tag of an application, which has no meaning here.
    None,
    /// `!`: a text, unless another type is expected.
    Unspecific,
    /// `!!str`.
    Text,
    /// `!!null`.
    Null,
    /// `!!bool`.
    Boolean,
    /// `!!int`.
    Integer,
    /// `!!float`.
    Number,
    /// `!!binary`: Base64 of a text.
    Binary,
    /// `!!timestamp`, a type that no value here has.
    Timestamp,
    /// `!!seq`.
    List,
    /// `!!map`.
    Map,
}

/// A scalar with the type that its notation says.
#[derive(Debug, PartialEq)]
pub(crate) enum Resolved<'a> {
    Null,
    Boolean(bool),
    Unsigned(u64),
    Signed(i64),
    Number(f64),
    Text(&'a str),
}

impl Tag {
    /// Returns the type that a tag names. `!int` is `!!int`, as most readers have it.
    pub(crate) fn new(tag: Option<&ParsedTag>) -> Tag {
        let Some(tag) = tag else { return Tag::None };
        let name = tag
            .suffix_in_namespace(YAML)
            .or_else(|| tag.suffix_in_namespace("!"))
            .unwrap_or_default();
        let is_local = tag.suffix_in_namespace("!").is_some();
        match name.trim_start_matches('!') {
            "" if is_local => Tag::Unspecific,
            "str" => Tag::Text,
            "null" => Tag::Null,
            "bool" => Tag::Boolean,
            "int" => Tag::Integer,
            "float" => Tag::Number,
            "binary" => Tag::Binary,
            "timestamp" => Tag::Timestamp,
            "seq" => Tag::List,
            "map" => Tag::Map,
            _ => Tag::None,
        }
    }
}

impl Scalar {
    /// Whether it is `null`.
    pub(crate) fn is_null(&self) -> bool {
        self.tag == Tag::Null
            || (self.tag == Tag::None
                && self.is_plain
                && matches!(&*self.text, "" | "~" | "null" | "Null" | "NULL"))
    }

    /// Whether nothing is written.
    pub(crate) fn is_blank(&self) -> bool {
        self.tag == Tag::None && self.is_plain && self.text.is_empty()
    }

    /// Returns the value for a reader that expects a text. `5` and `true` are texts, `null` is none.
    pub(crate) fn as_text(&self) -> Result<&str, ErrorKind> {
        match self.tag {
            Tag::None | Tag::Unspecific | Tag::Text if !self.is_null() => Ok(&self.text),
            _ => Err(ErrorKind::WrongType(Expected::Text)),
        }
    }

    /// Returns the value for a reader that expects a boolean.
    pub(crate) fn as_boolean(&self) -> Result<bool, ErrorKind> {
        self.typed(Tag::Boolean, boolean).ok_or(ErrorKind::WrongType(Expected::Boolean))
    }

    /// Returns the value for a reader that expects an integer of a range.
    pub(crate) fn as_integer(&self, min: i128, max: i128) -> Result<i128, ErrorKind> {
        let is_unsigned = min == 0;
        Err(ErrorKind::WrongType(match self.typed(Tag::Integer, integer) {
            Some(value) if (min..=max).contains(&value) => return Ok(value),
            Some(value) if value > 0 || !is_unsigned => Expected::IntegerIn { min, max },
            _ if is_unsigned => Expected::UnsignedInteger,
            _ => Expected::Integer,
        }))
    }

    /// Returns the value for a reader that expects a number, which can be infinite.
    pub(crate) fn as_number(&self) -> Result<f64, ErrorKind> {
        self.typed(Tag::Number, number).ok_or(ErrorKind::WrongType(Expected::Number))
    }

    /// Returns the value with the type that the notation says.
    pub(crate) fn resolve(&self) -> Result<Resolved<'_>, ErrorKind> {
        if self.is_null() {
            return Ok(Resolved::Null);
        }
        match self.tag {
            Tag::Boolean => self.as_boolean().map(Resolved::Boolean),
            Tag::Integer => self.as_tagged_integer(),
            Tag::Number => match number_or_overflow(self.trimmed()) {
                Some(value) => self.finite(value),
                None => Err(ErrorKind::WrongType(Expected::Number)),
            },
            Tag::None if self.is_plain => self.resolve_plain(),
            _ => self.as_text().map(Resolved::Text),
        }
    }

    fn resolve_plain(&self) -> Result<Resolved<'_>, ErrorKind> {
        let text = self.trimmed();
        if let Some(value) = boolean(text) {
            return Ok(Resolved::Boolean(value));
        }
        if text.contains('_') {
            return Ok(Resolved::Text(&self.text));
        }
        if let Some(value) = integer(text).and_then(resolved_integer) {
            return Ok(value);
        }
        match number_or_overflow(text) {
            Some(value) => self.finite(value),
            None => Ok(Resolved::Text(&self.text)),
        }
    }

    fn as_tagged_integer(&self) -> Result<Resolved<'_>, ErrorKind> {
        integer(self.trimmed())
            .and_then(resolved_integer)
            .ok_or(ErrorKind::WrongType(Expected::Integer))
    }

    /// An untyped value is JSON, which has no infinity and no NaN.
    fn finite(&self, value: f64) -> Result<Resolved<'_>, ErrorKind> {
        if value.is_finite() {
            return Ok(Resolved::Number(value));
        }
        Err(ErrorKind::Sentence(format!("`{}` is not a finite number", self.text)))
    }

    /// Reads the text unless a tag says that it is something else.
    fn typed<T>(&self, tag: Tag, read: fn(&str) -> Option<T>) -> Option<T> {
        let fits = self.tag == tag || matches!(self.tag, Tag::None | Tag::Unspecific);
        fits.then(|| read(self.trimmed())).flatten()
    }

    fn trimmed(&self) -> &str {
        self.text.trim_matches([' ', '\t', '\r', '\n'])
    }
}

fn resolved_integer(value: i128) -> Option<Resolved<'static>> {
    if let Ok(value) = u64::try_from(value) {
        return Some(Resolved::Unsigned(value));
    }
    i64::try_from(value).ok().map(Resolved::Signed)
}

fn boolean(text: &str) -> Option<bool> {
    match text {
        "true" | "True" | "TRUE" => Some(true),
        "false" | "False" | "FALSE" => Some(false),
        _ => None,
    }
}

/// Reads an integer: decimal, or with `0x`, `0o` or `0b`. Single underscores between digits are skipped; a text with
/// them gets here only if an integer is expected.
fn integer(text: &str) -> Option<i128> {
    let is_negative = text.starts_with('-');
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let radixes = [("0x", 16), ("0X", 16), ("0o", 8), ("0O", 8), ("0b", 2), ("0B", 2)];
    let prefixed = radixes
        .iter()
        .find_map(|(prefix, radix)| digits.strip_prefix(prefix).map(|rest| (rest, *radix)));
    let (digits, radix) = prefixed.unwrap_or((digits, 10));
    // A decimal number with a leading zero was octal in YAML 1.1. It is none here.
    let is_ambiguous = radix == 10 && digits.starts_with('0') && digits != "0";
    let is_separated = digits.split('_').all(|group| !group.is_empty());
    if is_ambiguous || !is_separated {
        return None;
    }
    let mut value = 0_i128;
    for digit in digits.chars().filter(|c| *c != '_') {
        let digit = i128::from(digit.to_digit(radix)?);
        value = value.checked_mul(i128::from(radix))?.checked_add(digit)?;
    }
    Some(if is_negative { -value } else { value })
}

/// Reads a number: decimal, or an infinity or NaN as YAML writes them.
fn number(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let special = match unsigned {
        ".nan" | ".NaN" | ".NAN" => Some(f64::NAN),
        ".inf" | ".Inf" | ".INF" if text.starts_with('-') => Some(f64::NEG_INFINITY),
        ".inf" | ".Inf" | ".INF" => Some(f64::INFINITY),
        _ => None,
    };
    // Rust reads `inf` and `nan` as well, which are texts in YAML.
    special.or_else(|| text.parse::<f64>().ok().filter(|value| value.is_finite()))
}

/// Reads a number, and one that is too large as an infinity: `1e999` is not a text.
fn number_or_overflow(text: &str) -> Option<f64> {
    number(text).or_else(|| {
        text.parse::<f64>().ok().filter(|_| {
            text.trim_start_matches(['+', '-']).starts_with(|c: char| c.is_ascii_digit())
        })
    })
}
