//! The arguments of one call as canonical JSON.
//!
//! They are read once, on the caller's thread: from the text of a message with any deserializer of `serde`, or from a
//! value. The canonical text is what the log stores, and the reducer's own arguments are decoded from it
//! ([`crate::arguments`]).
//!
//! Nothing is refused here except text that is not JSON. Depth, large integers, and a value that is not an object are
//! noted, and `engine/src/commit/registry.rs` refuses them, because it knows the reducer and its limits.

use std::ops::Range;

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value as JsonValue};

use crate::canonical::{Canonical, Member};
use crate::integers::{self, OutOfRange, TooDeep};

/// The maximum number of levels of a member that is written: writing recurses. No reducer takes so many levels, and no
/// stored value has them.
const WRITABLE_LEVELS: usize = 1_024;

/// The arguments of one call.
#[derive(Debug)]
pub struct CallArguments {
    text: String,
    /// In the order of the text.
    members: Vec<Member>,
    is_object: bool,
    /// The first member that has more levels than [`WRITABLE_LEVELS`]. The text ends before it.
    unwritten: Option<String>,
    has_large_number: bool,
    has_reserved_name: bool,
}

impl CallArguments {
    /// Returns the arguments in a value. Null means none. A value that is not an object is dropped, because no reducer
    /// takes it: only [`CallArguments::is_object`] tells it from no arguments.
    #[must_use]
    pub fn from_value(value: &JsonValue) -> CallArguments {
        match value {
            JsonValue::Object(members) => CallArguments::from_members(members),
            other => CallArguments { is_object: other.is_null(), ..CallArguments::default() },
        }
    }

    /// Returns the arguments with these names and values.
    #[must_use]
    pub fn from_members(members: &Map<String, JsonValue>) -> CallArguments {
        let unwritable = members
            .iter()
            .filter(|(_, value)| integers::check_depth_within(value, WRITABLE_LEVELS).is_err());
        let Some(first) = unwritable.map(|(name, _)| name).min() else {
            return CallArguments::from_canonical(Canonical::from_members(members));
        };
        let before = members
            .iter()
            .filter(|(name, _)| *name < first)
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        let written = CallArguments::from_canonical(Canonical::from_members(&before));
        CallArguments { unwritten: Some(first.clone()), ..written }
    }

    fn from_canonical(canonical: Canonical) -> CallArguments {
        let Canonical { text, members, has_large_number, has_reserved_name } = canonical;
        if text == "null" {
            return CallArguments::default();
        }
        let is_object = text.starts_with('{');
        CallArguments {
            text,
            members,
            is_object,
            unwritten: None,
            has_large_number,
            has_reserved_name,
        }
    }

    /// Returns `true` if they are a JSON object, as the arguments of every reducer are.
    #[must_use]
    pub fn is_object(&self) -> bool {
        self.is_object
    }

    /// Returns the canonical text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns `true` if a number may be an integer beyond signed 64 bits. The text that they were read from must then
    /// be checked ([`integers::check`]), because a very large integer has become a double here.
    #[must_use]
    pub fn has_large_number(&self) -> bool {
        self.has_large_number
    }

    /// Returns `true` if a member at any depth has the name [`integers::RESERVED_NAME`]. Its object would be read as
    /// another value than the one that is stored.
    #[must_use]
    pub fn has_reserved_name(&self) -> bool {
        self.has_reserved_name
    }

    /// Checks the integers of the canonical text.
    ///
    /// # Errors
    /// The first one that is out of range.
    pub fn check_integers(&self) -> Result<(), OutOfRange> {
        if self.has_large_number { integers::check(&self.text) } else { Ok(()) }
    }

    /// Checks the depth of each member. No maximum allows more than 1024 levels.
    ///
    /// # Errors
    /// The name of the first one that is too deep.
    pub fn check_depths(&self, max: usize) -> Result<(), (String, TooDeep)> {
        let max = max.min(WRITABLE_LEVELS);
        let deeper = self.members.iter().find(|member| member.depth > max);
        let name = deeper.map(|member| unquote(&self.text[member.name.clone()]));
        name.or_else(|| self.unwritten.clone()).map_or(Ok(()), |name| Err((name, TooDeep { max })))
    }

    /// Returns the members, in the order of their names.
    pub fn members(&self) -> impl Iterator<Item = CallArgument<'_>> {
        self.members.iter().map(|member| CallArgument { text: &self.text, member })
    }

    /// Returns the canonical text of a member. The name must be that of a reducer's argument, which needs no escapes.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.members().find(|argument| argument.is_named(name)).map(|argument| argument.value())
    }
}

/// No arguments.
impl Default for CallArguments {
    fn default() -> CallArguments {
        CallArguments {
            text: "{}".to_owned(),
            members: Vec::new(),
            is_object: true,
            unwritten: None,
            has_large_number: false,
            has_reserved_name: false,
        }
    }
}

impl From<&JsonValue> for CallArguments {
    fn from(value: &JsonValue) -> CallArguments {
        CallArguments::from_value(value)
    }
}

impl<'de> Deserialize<'de> for CallArguments {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<CallArguments, D::Error> {
        Canonical::deserialize(from).map(CallArguments::from_canonical)
    }
}

/// A member of the arguments.
#[derive(Clone, Copy, Debug)]
pub struct CallArgument<'a> {
    text: &'a str,
    member: &'a Member,
}

impl<'a> CallArgument<'a> {
    /// Returns `true` if it has this name, which must be one that needs no escapes.
    #[must_use]
    pub fn is_named(self, name: &str) -> bool {
        let quoted = self.quoted_name();
        quoted.len() == name.len() + 2 && quoted[1..].starts_with(name)
    }

    /// Returns its name.
    #[must_use]
    pub fn name(self) -> String {
        unquote(self.quoted_name())
    }

    /// Returns its name as canonical JSON: with quotes and escapes.
    #[must_use]
    pub fn quoted_name(self) -> &'a str {
        &self.text[self.member.name.clone()]
    }

    /// Returns its value, as canonical JSON.
    #[must_use]
    pub fn value(self) -> &'a str {
        &self.text[self.value_range()]
    }

    /// Returns the range of its value in the text, in bytes.
    #[must_use]
    pub fn value_range(self) -> Range<usize> {
        self.member.value.clone()
    }
}

fn unquote(name: &str) -> String {
    serde_json::from_str(name).expect("a name is a JSON string")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_arguments_are_an_empty_object() {
        for none in [
            CallArguments::default(),
            CallArguments::from_value(&JsonValue::Null),
            CallArguments::from_value(&json!({})),
            serde_json::from_str("null").expect("it is read"),
        ] {
            assert!(none.is_object() && none.text() == "{}" && none.members().next().is_none());
        }
        assert!(!CallArguments::from_value(&json!([1])).is_object());
        let text: CallArguments = serde_json::from_str("\"{}\"").expect("it is read");
        assert!(!text.is_object());
    }

    #[test]
    fn members_are_found_by_their_names() {
        let arguments = CallArguments::from_value(&json!({"b": [1], "ab": 2, "é\"": null}));
        assert_eq!(arguments.get("b"), Some("[1]"));
        assert_eq!(arguments.get("ab"), Some("2"));
        assert_eq!(arguments.get("a"), None);
        let names: Vec<String> = arguments.members().map(CallArgument::name).collect();
        assert_eq!(names, ["ab", "b", "é\""]);
    }

    /// Writing recurses, so that a value of an embedded caller could end the process. The first member that is too deep is
    /// named, however deep it is.
    #[test]
    fn a_member_of_any_depth_is_an_error() {
        let deepest = |depths: &[(&str, usize)], max: usize| {
            let members = depths.iter().map(|(name, levels)| ((*name).to_owned(), nested(*levels)));
            let arguments = CallArguments::from_members(&members.collect());
            arguments.check_depths(max).map_err(|(name, found)| format!("{name} {found}"))
        };
        let error = |name: &str, max: usize| Err(format!("{name} {}", TooDeep { max }));
        assert_eq!(deepest(&[("a", 64), ("b", 0)], 64), Ok(()));
        assert_eq!(deepest(&[("a", 65), ("b", 65)], 64), error("a", 64));
        assert_eq!(deepest(&[("a", 65), ("b", 3_000)], 64), error("a", 64));
        assert_eq!(deepest(&[("b", 3_000), ("c", 65)], 64), error("b", 64));
        assert_eq!(deepest(&[("a", WRITABLE_LEVELS)], usize::MAX), Ok(()));
        let max = WRITABLE_LEVELS;
        assert_eq!(deepest(&[("a", max + 1)], usize::MAX), error("a", max));
    }

    fn nested(levels: usize) -> JsonValue {
        (0..levels).fold(json!(1), |inner, _| JsonValue::Array(vec![inner]))
    }
}
