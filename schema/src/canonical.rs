//! Canonical JSON: equal values have equal texts.
//!
//! Object keys are sorted by their UTF-8 bytes, there is no white space, integers are digits, doubles have the
//! shortest form that reads back as the same double, and the last of duplicate keys is kept. Unlike in RFC 8785 (JCS),
//! `1.0` and `1` are different values, as in SQLite, and integers keep all of their digits: integers that do not
//! fit 64 bits are refused on input ([`crate::integers`]).
//!
//! The keys are sorted here and not by `serde_json::Map`: any dependency of a program can turn on the feature
//! `preserve_order` of `serde_json`, with which a map keeps the order of insertion.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::integers::RESERVED_NAME;

/// Returns the canonical text of a JSON value.
#[must_use]
pub fn to_text(value: &Value) -> String {
    let mut writer = Writer::new();
    writer.value(value);
    writer.finish().text
}

/// The canonical text of a JSON value, and what its reader must know. It is read without a [`Value`] in between, whose
/// strings, names and nodes are an allocation each.
#[derive(Debug)]
pub struct Canonical {
    /// The text.
    pub text: String,
    /// The members in the order of the text, if the value is an object.
    pub members: Vec<Member>,
    /// Whether a number may be an integer beyond signed 64 bits. The text that was read must then be checked
    /// ([`crate::integers::check`]): `serde_json` reads a large integer as a double.
    pub has_large_number: bool,
    /// Whether a member at any depth has the name [`RESERVED_NAME`].
    pub has_reserved_name: bool,
}

/// A member of an object: where it is in the canonical text, in bytes.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its name, with the quotes.
    pub name: Range<usize>,
    /// Its value.
    pub value: Range<usize>,
    /// The depth of its value, as in [`crate::integers::check_depth`].
    pub depth: usize,
}

impl Canonical {
    /// Returns the canonical form of an object.
    #[must_use]
    pub fn from_members(members: &Map<String, Value>) -> Canonical {
        let mut writer = Writer::new();
        writer.object(members);
        writer.finish()
    }
}

impl<'de> Deserialize<'de> for Canonical {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Canonical, D::Error> {
        let mut writer = Writer::new();
        ValueSeed(&mut writer).deserialize(from)?;
        Ok(writer.finish())
    }
}

/// Writes a value. Its members are sorted when all of it is written, so that what is deep in it is moved once.
struct Writer<'a> {
    text: Vec<u8>,
    /// The members so far of the open objects, outermost first. Only those of the outermost object stay when it is closed.
    members: Vec<NamedMember<'a>>,
    /// The number of open arrays and objects.
    level: usize,
    /// The objects whose members are not in their order.
    unsorted: Vec<UnsortedObject>,
    has_large_number: bool,
    has_reserved_name: bool,
}

/// An object whose members are not in their order in the text.
struct UnsortedObject {
    place: Range<usize>,
    /// In their order.
    members: Vec<Member>,
}

/// A member with its name as names are compared: without escapes.
struct NamedMember<'a> {
    name: Cow<'a, str>,
    member: Member,
}

/// An open object.
#[derive(Clone, Copy)]
struct OpenObject {
    /// Where it begins in the text.
    begin: usize,
    /// Its first member among those of all open objects.
    first: usize,
}

/// Room for what follows a long string: a buffer that has grown by the length of the string would double for the next byte.
const ROOM_BYTES: usize = 256;

/// Doubles from here on may have been integers beyond signed 64 bits. It is 2⁶³, without rounding.
const LARGE: f64 = 9_223_372_036_854_775_808.0;

impl<'a> Writer<'a> {
    fn new() -> Writer<'a> {
        Writer {
            text: Vec::with_capacity(ROOM_BYTES),
            members: Vec::new(),
            level: 0,
            unsorted: Vec::new(),
            has_large_number: false,
            has_reserved_name: false,
        }
    }

    fn finish(mut self) -> Canonical {
        if !self.unsorted.is_empty() {
            self.unsorted.sort_by_key(|object| object.place.start);
            self = self.sorted();
        }
        Canonical {
            text: String::from_utf8(self.text).expect("serde_json writes UTF-8"),
            members: self.members.into_iter().map(|named| named.member).collect(),
            has_large_number: self.has_large_number,
            has_reserved_name: self.has_reserved_name,
        }
    }

    /// Writes everything again, in its order.
    fn sorted(mut self) -> Writer<'a> {
        let mut sorted = Writer {
            has_large_number: self.has_large_number,
            has_reserved_name: self.has_reserved_name,
            ..Writer::new()
        };
        sorted.text.reserve(self.text.len());
        if self.members.is_empty() {
            self.copy_sorted(0..self.text.len(), &mut sorted.text);
            return sorted;
        }
        let object = sorted.open_object();
        for NamedMember { name, member } in std::mem::take(&mut self.members) {
            let place = sorted.written_name(object, &self.text[member.name]);
            self.copy_sorted(member.value, &mut sorted.text);
            sorted.end_member(name, place, member.depth);
        }
        sorted.close_object(object);
        sorted
    }

    /// Copies a part of the text, with the members of each object in their order.
    fn copy_sorted(&self, part: Range<usize>, to: &mut Vec<u8>) {
        let mut at = part.start;
        while let Some(object) = self.next_unsorted(at, part.end) {
            to.extend_from_slice(&self.text[at..object.place.start]);
            to.push(b'{');
            for (position, member) in object.members.iter().enumerate() {
                if position > 0 {
                    to.push(b',');
                }
                to.extend_from_slice(&self.text[member.name.clone()]);
                to.push(b':');
                self.copy_sorted(member.value.clone(), to);
            }
            to.push(b'}');
            at = object.place.end;
        }
        to.extend_from_slice(&self.text[at..part.end]);
    }

    /// Returns the first unsorted object that begins in a part of the text.
    fn next_unsorted(&self, from: usize, to: usize) -> Option<&UnsortedObject> {
        let nth = self.unsorted.partition_point(|object| object.place.start < from);
        self.unsorted.get(nth).filter(|object| object.place.start < to)
    }

    /// Writes a value that is in memory, and returns its depth.
    fn value(&mut self, value: &'a Value) -> usize {
        match value {
            Value::Object(members) => self.object(members),
            Value::Array(items) => {
                self.open_array();
                let depths = items.iter().enumerate().map(|(position, item)| {
                    self.separate(position);
                    self.value(item)
                });
                let depth = depths.max().unwrap_or(0);
                self.close_array(depth)
            }
            Value::String(text) => self.string(text),
            Value::Number(number) => {
                self.has_large_number |= number.is_u64() && !number.is_i64();
                self.scalar(number)
            }
            Value::Bool(_) | Value::Null => self.scalar(value),
        }
    }

    fn object(&mut self, members: &'a Map<String, Value>) -> usize {
        let object = self.open_object();
        for (name, value) in members {
            let place = self.name(object, name);
            let depth = self.value(value);
            self.end_member(Cow::Borrowed(name), place, depth);
        }
        self.close_object(object)
    }

    /// Writes what has no depth.
    fn scalar(&mut self, scalar: &impl serde::Serialize) -> usize {
        serde_json::to_writer(&mut self.text, scalar).expect("a scalar serialises into memory");
        0
    }

    fn string(&mut self, text: &str) -> usize {
        if text.len() > ROOM_BYTES {
            self.text.reserve(text.len() + ROOM_BYTES);
        }
        self.scalar(&text)
    }

    fn separate(&mut self, position: usize) {
        if position > 0 {
            self.text.push(b',');
        }
    }

    fn open_array(&mut self) {
        self.level += 1;
        self.text.push(b'[');
    }

    /// Returns the depth of the array; `depth` is that of its deepest item.
    fn close_array(&mut self, depth: usize) -> usize {
        self.level -= 1;
        self.text.push(b']');
        depth + 1
    }

    fn open_object(&mut self) -> OpenObject {
        self.level += 1;
        let object = OpenObject { begin: self.text.len(), first: self.members.len() };
        self.text.push(b'{');
        object
    }

    /// Writes the name of the next member of the innermost object. Its value follows. Returns where the name is.
    fn name(&mut self, object: OpenObject, name: &str) -> Range<usize> {
        self.has_reserved_name |= name == RESERVED_NAME;
        self.separate(self.members.len() - object.first);
        let begin = self.text.len();
        self.string(name);
        self.end_name(begin)
    }

    /// Writes a name that is JSON already.
    fn written_name(&mut self, object: OpenObject, name: &[u8]) -> Range<usize> {
        self.separate(self.members.len() - object.first);
        let begin = self.text.len();
        self.text.extend_from_slice(name);
        self.end_name(begin)
    }

    fn end_name(&mut self, begin: usize) -> Range<usize> {
        let end = self.text.len();
        self.text.push(b':');
        begin..end
    }

    /// Ends the member whose value was written last.
    fn end_member(&mut self, name: Cow<'a, str>, place: Range<usize>, depth: usize) {
        let value = place.end + 1..self.text.len();
        self.members.push(NamedMember { name, member: Member { name: place, value, depth } });
    }

    /// Returns the depth of the object.
    fn close_object(&mut self, object: OpenObject) -> usize {
        self.text.push(b'}');
        self.level -= 1;
        let members = &self.members[object.first..];
        if !members.is_sorted_by(|one, next| one.name < next.name) {
            self.sort_members(object);
        }
        let members = &self.members[object.first..];
        let depth = members.iter().map(|named| named.member.depth).max().unwrap_or(0);
        if self.level > 0 {
            self.members.truncate(object.first);
        }
        depth + 1
    }

    /// Sorts the members of an object by name, but not in the text. The last member of a name is kept.
    fn sort_members(&mut self, object: OpenObject) {
        let mut members = self.members.split_off(object.first);
        members.sort_by(|one, other| one.name.cmp(&other.name));
        for named in members {
            match self.members[object.first..].last_mut() {
                Some(last) if last.name == named.name => *last = named,
                _ => self.members.push(named),
            }
        }
        let members =
            self.members[object.first..].iter().map(|named| named.member.clone()).collect();
        self.unsorted.push(UnsortedObject { place: object.begin..self.text.len(), members });
    }
}

/// Writes the value that is read, and returns its depth.
struct ValueSeed<'a, 'de>(&'a mut Writer<'de>);

impl<'de> DeserializeSeed<'de> for ValueSeed<'_, 'de> {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<usize, D::Error> {
        from.deserialize_any(self)
    }
}

/// It accepts what [`Value`] accepts, and has the same errors.
impl<'de> Visitor<'de> for ValueSeed<'_, 'de> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any valid JSON value")
    }

    fn visit_unit<E>(self) -> Result<usize, E> {
        Ok(self.0.scalar(&()))
    }

    fn visit_none<E>(self) -> Result<usize, E> {
        Ok(self.0.scalar(&()))
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<usize, D::Error> {
        self.deserialize(from)
    }

    fn visit_bool<E>(self, value: bool) -> Result<usize, E> {
        Ok(self.0.scalar(&value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<usize, E> {
        Ok(self.0.scalar(&value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<usize, E> {
        self.0.has_large_number |= i64::try_from(value).is_err();
        Ok(self.0.scalar(&value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<usize, E> {
        self.0.has_large_number |= value.abs() >= LARGE;
        Ok(self.0.scalar(&value))
    }

    fn visit_str<E>(self, value: &str) -> Result<usize, E> {
        Ok(self.0.string(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<usize, A::Error> {
        self.0.open_array();
        let mut depth = 0;
        let mut position = 0;
        loop {
            let before = self.0.text.len();
            self.0.separate(position);
            let Some(item_depth) = items.next_element_seed(ValueSeed(&mut *self.0))? else {
                self.0.text.truncate(before);
                return Ok(self.0.close_array(depth));
            };
            depth = depth.max(item_depth);
            position += 1;
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<usize, A::Error> {
        let object = self.0.open_object();
        while let Some(name) = members.next_key_seed(NameSeed)? {
            let place = self.0.name(object, &name);
            let depth = members.next_value_seed(ValueSeed(&mut *self.0))?;
            self.0.end_member(name, place, depth);
        }
        Ok(self.0.close_object(object))
    }
}

/// Reads the name of a member; it is borrowed if it has no escapes.
struct NameSeed;

impl<'de> DeserializeSeed<'de> for NameSeed {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Cow<'de, str>, D::Error> {
        from.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for NameSeed {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string key")
    }

    fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Borrowed(name))
    }

    fn visit_str<E>(self, name: &str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::integers;

    #[test]
    fn equal_values_have_equal_texts() {
        let text =
            r#" { "b" : [1, 1.0, 1e2, "\u00e9\/"], "a":{"z":null,"é":true,"B":-0.0} , "b":2.50 } "#;
        let value = serde_json::from_str(text).expect("it is JSON");
        assert_eq!(to_text(&value), r#"{"a":{"B":-0.0,"z":null,"é":true},"b":2.5}"#);
    }

    fn values() -> impl Strategy<Value = Value> {
        let scalar = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        scalar.prop_recursive(4, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
                prop::collection::vec((".{0,3}", inner), 0..8)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    /// A JSON text as a client may write it, which repeats names and has numbers of every form.
    fn texts() -> impl Strategy<Value = String> {
        let number = prop_oneof![
            "-?(0|[1-9][0-9]{0,22})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?",
            "-?922337203685477580[0-9]",
            "1844674407370955161[0-9]",
        ];
        let string = prop_oneof![
            any::<String>().prop_map(|text| serde_json::to_string(&text).expect("it is text")),
            r#""(a|b|\\n|\\u00e9|\\u0000|\\ud83d|\\ude00|\\/|\\u0061|é|\\"){0,4}""#,
            Just(format!("\"{}\"", "long ".repeat(100))),
        ];
        let word = prop_oneof![Just("null"), Just("true"), Just("{}"), Just("[]"), Just("x")];
        let scalar = prop_oneof![
            8 => number,
            8 => string.clone(),
            4 => word.prop_map(str::to_owned),
        ];
        scalar.prop_recursive(4, 40, 6, move |inner| {
            let member = (string.clone(), inner.clone())
                .prop_map(|(name, value)| format!("{name} :{value}"));
            prop_oneof![
                prop::collection::vec(inner, 0..6)
                    .prop_map(|items| format!("[{}]", items.join(" , "))),
                prop::collection::vec(member, 0..6)
                    .prop_map(|members| format!("{{ {} }}", members.join(",\n"))),
            ]
        })
    }

    fn depth(value: &Value) -> usize {
        (0..)
            .find(|levels| integers::check_depth_within(value, *levels).is_ok())
            .expect("it is finite")
    }

    /// Checks what is read from a text against the value of that text.
    fn check_read(text: &str) {
        let read = serde_json::from_str::<Canonical>(text);
        let value = match serde_json::from_str::<Value>(text) {
            Ok(value) => value,
            Err(why) => {
                let error = read.expect_err("the text has no value").to_string();
                return assert_eq!(error, why.to_string(), "{text}");
            }
        };
        let read = read.expect("the text has a value");
        assert_eq!(read.text, value.to_string(), "{text}");
        if integers::check(text).is_err() || integers::check(&read.text).is_err() {
            assert!(read.has_large_number, "{text}");
        }
        let members = value.as_object().cloned().unwrap_or_default();
        check_members(&read, &members);
        // A message is read through `serde`'s own values, because its `op` selects its type.
        #[derive(Deserialize)]
        #[serde(tag = "op")]
        enum Message {
            #[serde(rename = "call")]
            Call { args: Canonical },
        }
        let message = format!(r#"{{"args":{text},"op":"call"}}"#);
        let Message::Call { args } = serde_json::from_str(&message).expect("it is read");
        assert_eq!(args.text, read.text, "{text}");
        assert_eq!(args.has_large_number, read.has_large_number);
        check_members(&args, &members);
        if !value.is_object() {
            return;
        }
        let made = Canonical::from_members(&members);
        assert_eq!(made.text, read.text);
        assert!(made.has_large_number || integers::check(&made.text).is_ok());
        check_members(&made, &members);
    }

    fn check_members(canonical: &Canonical, members: &Map<String, Value>) {
        let text = |place: &Range<usize>| canonical.text[place.clone()].to_owned();
        let found = canonical.members.iter();
        let found = found.map(|member| (text(&member.name), text(&member.value), member.depth));
        let expected = members
            .iter()
            .map(|(name, value)| (json!(name).to_string(), value.to_string(), depth(value)));
        assert_eq!(found.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }

    /// `serde_json` reads an object with this name as another value, but only if it is the first one. So it was stored as one value
    /// and read as another, or as none: a row that nobody could read any more.
    #[test]
    fn a_reserved_name_is_found_anywhere() {
        let name = RESERVED_NAME;
        for (text, is_reserved) in [
            (format!(r#"{{"{name}":"1"}}"#), true),
            (format!(r#"{{"!":2,"{name}":"1"}}"#), true),
            (format!(r#"{{"a":[{{"z":1,"b":{{"c":1,"{name}":"["}}}}]}}"#), true),
            (r#"{"\u0024serde_json::private::RawValue":1}"#.to_owned(), true),
            (format!(r#"{{"a":"{name}","{name} ":1}}"#), false),
        ] {
            let read: Canonical = serde_json::from_str(&text).expect("it is read");
            assert_eq!(read.has_reserved_name, is_reserved, "{text}");
        }
        let mut value = json!({"a": [{"b": 1}]});
        value["a"][0][name] = json!("1");
        let members = value.as_object().expect("an object");
        assert!(Canonical::from_members(members).has_reserved_name);
    }

    #[test]
    fn a_text_is_read_as_its_value() {
        let deep =
            |levels: usize| format!("{}1{}", r#"{"a":["#.repeat(levels), "]}".repeat(levels));
        for text in [
            "-0",
            "1e400",
            "-1e400",
            "1.0",
            "1E+2",
            "9223372036854775807",
            "9223372036854775808",
            "-9223372036854775809",
            "18446744073709551616",
            "1e300",
            r#"{"b":1,"a":2,"b":{"z":[{"y":1,"x":2}],"a":3}}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"{"a":{"b":[[[]]]},"a":1}"#,
            r#"{"c":{"b":{"z":1,"y":[{"b":1,"a":{"d":1,"c":2}}],"z":2},"a":[1]},"b":{"d":3,"c":4,"d":5},"d":6}"#,
            r#"[{"b":1,"a":2},{"b":{"b":1,"a":2},"a":3},[{"a":{"b":1,"a":2}}]]"#,
            r#"{"\u0000":"\u0000","é":"\ud83d\ude00"}"#,
            r#""\ud83d""#,
            r#"{"a":1 "b"}"#,
            r#"{1:2}"#,
            "[1,]",
            "[1] 2",
            "",
            &deep(30),
            &deep(63),
            &deep(64),
        ] {
            check_read(text);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_as_its_value(text in texts()) {
            check_read(&text);
        }

        /// Without `preserve_order` the maps of `serde_json` are sorted: its own text is the oracle.
        #[test]
        fn the_text_is_that_of_sorted_maps(value in values()) {
            prop_assert_eq!(to_text(&value), value.to_string());
        }
    }
}
