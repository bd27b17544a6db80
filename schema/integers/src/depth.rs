//! The depth of JSON: the number of arrays and objects around its innermost value, `[]` being one level.
//!
//! `serde_json` writes any depth and reads 127 levels. So a value that came in at that depth, and was stored within
//! another one, could never be read again. [`check_depth`] is the limit for everything that comes in. It leaves room for all that is
//! put around a value: records of a run, snapshots, batches and the messages of protocols. [`parse`] reads more than
//! `serde_json`, for files that were written before there was a limit.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::RESERVED_NAME;

/// Maximum depth of a JSON value that comes in: an argument of a call, the arguments that a model wrote, a result of a tool.
pub const MAX_DEPTH: usize = 64;

/// The hint in errors about the depth.
pub const DEPTH_HINT: &str = "send deeply nested parts as a string of JSON";

/// Maximum depth that [`parse`] reads; its recursion and that of the value's users must fit a thread's stack.
const READABLE: usize = 512;

/// The depth up to which `serde_json` reads.
const OF_SERDE: usize = 127;

/// A value is too deep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooDeep {
    /// The maximum.
    pub max: usize,
}

/// One sentence without its subject.
impl fmt::Display for TooDeep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "is nested more than {} levels deep", self.max)
    }
}

impl std::error::Error for TooDeep {}

/// Checks the depth of a value that comes in.
///
/// # Errors
/// [`TooDeep`] for more than [`MAX_DEPTH`] levels.
pub fn check_depth(value: &Value) -> Result<(), TooDeep> {
    check_depth_within(value, MAX_DEPTH)
}

/// Checks the depth of a value against another maximum.
///
/// # Errors
/// [`TooDeep`].
pub fn check_depth_within(value: &Value, max: usize) -> Result<(), TooDeep> {
    if is_deeper(value, max) { Err(TooDeep { max }) } else { Ok(()) }
}

/// Returns `true` if a value has more than `max` levels. The recursion ends there, however deep the value is.
fn is_deeper(value: &Value, max: usize) -> bool {
    match value {
        Value::Array(items) => max == 0 || items.iter().any(|item| is_deeper(item, max - 1)),
        Value::Object(members) => {
            max == 0 || members.values().any(|member| is_deeper(member, max - 1))
        }
        _ => false,
    }
}

/// Parses stored JSON, of up to 512 levels.
///
/// # Errors
/// Those of `serde_json`.
pub fn parse(text: &str) -> serde_json::Result<Value> {
    serde_json::from_str(text).or_else(|why| match levels(text) {
        OF_SERDE..=READABLE => parse_outermost(text),
        _ => Err(why),
    })
}

/// Parses a text level by level until `serde_json` can read the rest. It finds the end of a raw value without recursion.
fn parse_outermost(text: &str) -> serde_json::Result<Value> {
    if levels(text) <= OF_SERDE {
        return serde_json::from_str(text);
    }
    if text.trim_start().starts_with('[') {
        let items: Vec<&RawValue> = serde_json::from_str(text)?;
        return items.into_iter().map(|item| parse_outermost(item.get())).collect();
    }
    let members: BTreeMap<String, &RawValue> = serde_json::from_str(text)?;
    members
        .into_iter()
        .map(|(name, member)| parse_outermost(member.get()).map(|value| (name, value)))
        .collect()
}

/// Returns the depth of a JSON text.
fn levels(text: &str) -> usize {
    let text = text.as_bytes();
    let mut open = 0_usize;
    let mut most = 0;
    let mut at = 0;
    while at < text.len() {
        match text[at] {
            b'"' => {
                at = crate::after_string(text, at);
                continue;
            }
            b'[' | b'{' => open += 1,
            b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        most = most.max(open);
        at += 1;
    }
    most
}

/// Checks that [`parse`] can read a text, without building the value.
///
/// # Errors
/// Those of [`parse`].
pub fn check_parses(text: &str) -> serde_json::Result<()> {
    serde_json::from_str::<Skimmed>(text).map(drop).or_else(|why| match levels(text) {
        OF_SERDE..=READABLE => parse_outermost(text).map(drop),
        _ => Err(why),
    })
}

/// Checks that no object in a text has a member with [`RESERVED_NAME`], which a parsed value does not show.
///
/// # Errors
/// There is one, or the text is not JSON.
pub fn check_names(text: &str) -> Result<(), ReservedName> {
    // Escapes can hide the name.
    if !text.contains(RESERVED_NAME) && !text.contains(r"\u") {
        return Ok(());
    }
    check_parses(text).map_err(|_| ReservedName)
}

/// A member of an object has [`RESERVED_NAME`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservedName;

impl fmt::Display for ReservedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a member is named {RESERVED_NAME}, which is reserved")
    }
}

impl std::error::Error for ReservedName {}

/// A JSON value that is read and not kept. Unlike `IgnoredAny` it reads numbers and strings as a [`Value`] does.
struct Skimmed;

impl<'de> Deserialize<'de> for Skimmed {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Skimmed, D::Error> {
        from.deserialize_any(SkimmedVisitor)
    }
}

struct SkimmedVisitor;

impl<'de> Visitor<'de> for SkimmedVisitor {
    type Value = Skimmed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Skimmed, E> {
        Ok(Skimmed)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Skimmed, E> {
        Ok(Skimmed)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Skimmed, E> {
        Ok(Skimmed)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Skimmed, E> {
        Ok(Skimmed)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Skimmed, E> {
        Ok(Skimmed)
    }

    fn visit_str<E>(self, _: &str) -> Result<Skimmed, E> {
        Ok(Skimmed)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Skimmed, A::Error> {
        while items.next_element::<Skimmed>()?.is_some() {}
        Ok(Skimmed)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Skimmed, A::Error> {
        while let Some(name) = members.next_key::<std::borrow::Cow<'de, str>>()? {
            if name == RESERVED_NAME {
                return Err(A::Error::custom(format!("a member is named {RESERVED_NAME}")));
            }
            members.next_value::<Skimmed>()?;
        }
        Ok(Skimmed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(open: &str, close: &str, levels: usize) -> String {
        let innermost = if close == "}" { "1" } else { "" };
        format!("{}{innermost}{}", open.repeat(levels), close.repeat(levels))
    }

    /// Regression: what was written deeper than 127 levels could not be read back.
    #[test]
    fn what_is_written_at_any_depth_is_read_back() {
        for (open, close) in [("[", "]"), (r#"{"a":"#, "}"), (r#"{"]":["#, "]}")] {
            for depth in 1..=READABLE / open.matches(['[', '{']).count() {
                let text = nested(open, close, depth);
                let value = parse(&text).expect("it is read");
                assert!(check_parses(&text).is_ok(), "{depth}");
                assert_eq!(value.to_string(), text, "{depth}");
                let levels = depth * open.matches(['[', '{']).count();
                assert!(check_depth_within(&value, levels).is_ok());
                assert_eq!(
                    check_depth_within(&value, levels - 1),
                    Err(TooDeep { max: levels - 1 })
                );
            }
        }
    }

    #[test]
    fn a_reserved_name_is_found_in_any_spelling() {
        let escaped = RESERVED_NAME.replace('$', r"\u0024");
        for name in [RESERVED_NAME, &escaped] {
            let text = format!(r#"[{{"a": {{"{name}": "1"}}}}]"#);
            assert_eq!(check_names(&text), Err(ReservedName), "{text}");
        }
        for text in [r#"{"a": "\u0024"}"#.to_owned(), format!(r#"["{RESERVED_NAME}"]"#)] {
            assert_eq!(check_names(&text), Ok(()), "{text}");
        }
    }

    #[test]
    fn a_text_that_is_deeper_or_no_json_is_an_error() {
        let deep = nested("[", "]", READABLE + 1);
        let endless = "[".repeat(1 << 20);
        let within = format!("{}1e999{}", "[".repeat(200), "]".repeat(200));
        let raw = format!(r#"{{"{RESERVED_NAME}":"["}}"#);
        for text in [&deep, &endless, &within, "[", "", "1e999", r#""\ud800""#, "{1}", &raw] {
            assert!(parse(text).is_err());
            assert!(check_parses(text).is_err());
        }
    }
}
