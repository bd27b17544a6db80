//! What `serde_json` loses or refuses in the JSON text of others: integers that do not fit a signed 64-bit integer,
//! unpaired surrogates ([`readable`]), and deep nesting ([`parse`], [`check_depth`]).
//!
//! `serde_json` parses such an integer as a double, which keeps about 16 of its digits, and reports nothing. So all
//! JSON input is checked with [`check`] as text before it is parsed. The range is that of an INTEGER in
//! SQLite: a larger one would become a REAL in `json_extract` and in query parameters.
//!
//! A number with a fraction or an exponent is always a double and is not checked. The check does not validate
//! JSON: for other text the result is unspecified, but it never panics.

mod depth;
mod surrogates;
#[cfg(test)]
mod tests;

pub use depth::{
    DEPTH_HINT, MAX_DEPTH, ReservedName, TooDeep, check_depth, check_depth_within, check_names,
    check_parses, parse,
};
pub use surrogates::{UnpairedSurrogate, check_surrogates, readable, unpaired_surrogates};

use std::borrow::Cow;
use std::fmt;

use memchr::memchr2;

/// The hint in errors about such an integer.
pub const HINT: &str = "send it as a string: JSON integers are signed 64-bit integers";

/// The name that `serde_json` gives to raw JSON. It reads an object whose first member has this name as the JSON in that member, so
/// an object with it has no reliable meaning, and is refused where JSON is stored.
pub const RESERVED_NAME: &str = "$serde_json::private::RawValue";

/// Returns `true` if an object in a value has a member with [`RESERVED_NAME`]. It recurses: check the depth of the value first.
#[must_use]
pub fn has_reserved_name(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::Object(members) => {
            members.contains_key(RESERVED_NAME) || members.values().any(has_reserved_name)
        }
        serde_json::Value::Array(items) => items.iter().any(has_reserved_name),
        _ => false,
    }
}

/// Maximum length in bytes of a pointer or a number in an error.
const MAX_CHARS: usize = 80;

/// An out-of-range integer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfRange {
    /// Its position, as a JSON pointer; empty if it is the whole text.
    pub pointer: String,
    /// The integer as written.
    pub literal: String,
}

/// One sentence without its subject; long texts are truncated.
impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the integer {} ", truncate(&self.literal))?;
        if self.pointer.is_empty() {
            f.write_str("does not fit a signed 64-bit integer")
        } else {
            write!(f, "at {} does not fit a signed 64-bit integer", truncate(&self.pointer))
        }
    }
}

impl std::error::Error for OutOfRange {}

/// Returns a text, truncated if it is long.
fn truncate(text: &str) -> Cow<'_, str> {
    let Some((cut, _)) = text.char_indices().nth(MAX_CHARS) else { return Cow::Borrowed(text) };
    Cow::Owned(format!("{}… ({} bytes)", &text[..cut], text.len()))
}

/// Checks the integers of a JSON text, in one pass and without an allocation.
///
/// # Errors
/// The first one that is out of range.
pub fn check(text: &str) -> Result<(), OutOfRange> {
    match first(text.as_bytes(), 0) {
        None => Ok(()),
        Some((from, to)) => {
            let literal = text[from..to].to_owned();
            Err(OutOfRange { pointer: pointer(text, from), literal })
        }
    }
}

/// Replaces each out-of-range integer with a string. For output of another program that cannot be asked to
/// fix it.
#[must_use]
pub fn quoted(text: &str) -> Cow<'_, str> {
    let Some(mut found) = first(text.as_bytes(), 0) else { return Cow::Borrowed(text) };
    let mut out = String::with_capacity(text.len() + 2);
    let mut copied = 0;
    loop {
        let (from, to) = found;
        out.push_str(&text[copied..from]);
        out.push('"');
        out.push_str(&text[from..to]);
        out.push('"');
        copied = to;
        match first(text.as_bytes(), to) {
            Some(next) => found = next,
            None => break,
        }
    }
    out.push_str(&text[copied..]);
    Cow::Owned(out)
}

/// Returns the range of the first out-of-range integer at or after a position outside of strings.
fn first(text: &[u8], mut at: usize) -> Option<(usize, usize)> {
    while at < text.len() {
        match text[at] {
            b'"' => at = after_string(text, at),
            b'-' | b'0'..=b'9' => {
                let end = after_number(text, at);
                if is_out_of_range(&text[at..end]) {
                    return Some((at, end));
                }
                at = end;
            }
            _ => at += 1,
        }
    }
    None
}

/// Returns the position after a string that begins at `begin`.
fn after_string(text: &[u8], begin: usize) -> usize {
    let mut at = begin + 1;
    while at < text.len() {
        match memchr2(b'"', b'\\', &text[at..]) {
            None => return text.len(),
            Some(more) if text[at + more] == b'"' => return at + more + 1,
            Some(more) => at += more + 2,
        }
    }
    text.len()
}

fn after_number(text: &[u8], begin: usize) -> usize {
    text[begin..]
        .iter()
        .position(|byte| !matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E'))
        .map_or(text.len(), |more| begin + more)
}

/// Returns `true` if a number is an integer beyond signed 64 bits.
fn is_out_of_range(number: &[u8]) -> bool {
    let (digits, max): (&[u8], &[u8]) = match number.strip_prefix(b"-") {
        Some(digits) => (digits, b"9223372036854775808"),
        None => (number, b"9223372036854775807"),
    };
    // Digit strings of equal length sort like the numbers.
    digits.len() >= max.len()
        && digits.iter().all(u8::is_ascii_digit)
        && (digits.len() > max.len() || digits > max)
}

/// A step of the path to a value.
enum Step<'a> {
    /// The member with this name, in its escaped form.
    Member(&'a str),
    /// The item at this index.
    Item(usize),
}

/// Returns the JSON pointer of the value at a position.
fn pointer(text: &str, place: usize) -> String {
    let bytes = text.as_bytes();
    let mut path: Vec<Step<'_>> = Vec::new();
    // The last complete string: before a colon, it is a member name.
    let mut name = "";
    let mut at = 0;
    while at < place {
        match bytes[at] {
            b'"' => {
                let end = after_string(bytes, at);
                name = text.get(at + 1..end - 1).unwrap_or_default();
                at = end;
                continue;
            }
            b'{' => path.push(Step::Member("")),
            b'[' => path.push(Step::Item(0)),
            b'}' | b']' => drop(path.pop()),
            b':' => {
                if let Some(Step::Member(current)) = path.last_mut() {
                    *current = name;
                }
            }
            b',' => {
                if let Some(Step::Item(index)) = path.last_mut() {
                    *index += 1;
                }
            }
            _ => {}
        }
        at += 1;
    }
    let mut pointer = String::new();
    for step in path {
        pointer.push('/');
        match step {
            Step::Item(index) => pointer.push_str(&index.to_string()),
            Step::Member(name) => {
                pointer.push_str(&unescape(name).replace('~', "~0").replace('/', "~1"));
            }
        }
    }
    pointer
}

/// Decodes the escapes of a JSON string. Invalid escapes are kept unchanged.
fn unescape(written: &str) -> Cow<'_, str> {
    if !written.contains('\\') {
        return Cow::Borrowed(written);
    }
    let mut out = String::with_capacity(written.len());
    let mut rest = written;
    while let Some((before, after)) = rest.split_once('\\') {
        out.push_str(before);
        let (read, bytes) = escape(after);
        match read {
            Some(character) => out.push(character),
            None => out.push('\\'),
        }
        rest = &after[bytes..];
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// Returns the decoded character of an escape, and its length in bytes after the backslash.
fn escape(after: &str) -> (Option<char>, usize) {
    let simple = match after.as_bytes().first() {
        Some(b'n') => '\n',
        Some(b't') => '\t',
        Some(b'r') => '\r',
        Some(b'b') => '\u{8}',
        Some(b'f') => '\u{c}',
        Some(byte @ (b'"' | b'\\' | b'/')) => char::from(*byte),
        Some(b'u') => return unicode(after),
        _ => return (None, 0),
    };
    (Some(simple), 1)
}

/// `u` and four hexadecimal digits, or two such escapes for a pair of surrogates.
fn unicode(after: &str) -> (Option<char>, usize) {
    let Some(first) = code_unit(after, 1) else { return (None, 0) };
    let has_second = after.get(5..7) == Some("\\u");
    let second = if has_second { code_unit(after, 7) } else { None };
    match char::decode_utf16([first, second.unwrap_or_default()]).next() {
        Some(Ok(character)) if character.len_utf16() == 2 => (Some(character), 11),
        Some(Ok(character)) => (Some(character), 5),
        _ => (None, 0),
    }
}

/// Returns the UTF-16 code unit whose four hexadecimal digits begin at a position.
fn code_unit(text: &str, at: usize) -> Option<u16> {
    u16::from_str_radix(text.get(at..at + 4)?, 16).ok()
}
