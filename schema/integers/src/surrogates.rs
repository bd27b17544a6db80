//! Unpaired surrogates in JSON text.
//!
//! JavaScript cuts strings by UTF-16 units. Half of an emoji is then written as `"\ud83d"`, which is JSON but no
//! Unicode text, and `serde_json` refuses the whole message for it. Text of a peer that cannot be asked to fix its
//! output is therefore made readable first.

use std::borrow::Cow;
use std::fmt;

use memchr::memchr;

use crate::{pointer, truncate};

/// The length of `\ud83d` in bytes.
const ESCAPE_BYTES: usize = 6;

/// An escape that is half of a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnpairedSurrogate {
    /// The position of its text, as a JSON pointer; empty if it is the whole text.
    pub pointer: String,
    /// The escape as written.
    pub literal: String,
}

/// One sentence; a long pointer is truncated.
impl fmt::Display for UnpairedSurrogate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unpaired surrogate {}", self.literal)?;
        if self.pointer.is_empty() {
            Ok(())
        } else {
            write!(f, " in the string at {}", truncate(&self.pointer))
        }
    }
}

impl std::error::Error for UnpairedSurrogate {}

/// Checks a JSON text of a caller that can be asked to fix it.
///
/// # Errors
/// The first half of a pair.
pub fn check_surrogates(text: &str) -> Result<(), UnpairedSurrogate> {
    match unpaired_surrogates(text).next() {
        None => Ok(()),
        Some(at) => {
            let literal = text[at..at + ESCAPE_BYTES].to_owned();
            Err(UnpairedSurrogate { pointer: pointer(text, at), literal })
        }
    }
}

/// Returns the JSON text of a peer with the replacement character U+FFFD in place of what is not Unicode: each
/// unpaired surrogate escape becomes `\ufffd`, and each invalid sequence of UTF-8 becomes the character itself.
/// Everything else stays byte for byte, and nothing is copied if nothing changes.
///
/// Arguments of calls and values that are signed or compared must not be changed: find theirs with
/// [`unpaired_surrogates`].
#[must_use]
pub fn readable(bytes: &[u8]) -> Cow<'_, str> {
    let text = String::from_utf8_lossy(bytes);
    let mut unpaired = unpaired_surrogates(&text).peekable();
    if unpaired.peek().is_none() {
        drop(unpaired);
        return text;
    }
    let mut readable = String::with_capacity(text.len());
    let mut copied = 0;
    for at in unpaired {
        readable.push_str(&text[copied..at]);
        readable.push_str("\\ufffd");
        copied = at + ESCAPE_BYTES;
    }
    readable.push_str(&text[copied..]);
    Cow::Owned(readable)
}

/// Returns the positions of the unpaired surrogate escapes of a JSON text, or of a part of one that does not begin
/// within an escape.
pub fn unpaired_surrogates(text: &str) -> impl Iterator<Item = usize> {
    let bytes = text.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        while let Some(more) = memchr(b'\\', bytes.get(at..)?) {
            let escape = at + more;
            at = match (surrogate(bytes, escape), surrogate(bytes, escape + ESCAPE_BYTES)) {
                (Some(Half::High), Some(Half::Low)) => escape + 2 * ESCAPE_BYTES,
                (Some(_), _) => {
                    at = escape + ESCAPE_BYTES;
                    return Some(escape);
                }
                // The second byte may be a backslash, which begins no escape.
                (None, _) => escape + 2,
            };
        }
        None
    })
}

/// The half of a pair that an escape stands for.
enum Half {
    High,
    Low,
}

/// Returns which surrogate is written at a position, if one is.
fn surrogate(text: &[u8], at: usize) -> Option<Half> {
    let [b'\\', b'u', b'd' | b'D', second, third, fourth] = text.get(at..at + ESCAPE_BYTES)? else {
        return None;
    };
    if !(third.is_ascii_hexdigit() && fourth.is_ascii_hexdigit()) {
        return None;
    }
    match second {
        b'8' | b'9' | b'a' | b'b' | b'A' | b'B' => Some(Half::High),
        b'c'..=b'f' | b'C'..=b'F' => Some(Half::Low),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    #[test]
    fn unpaired_surrogates_are_replaced() {
        for (text, expected) in [
            (r#""\ud83d""#, r#""\ufffd""#),
            (r#""\uDD11 and \uD83D""#, r#""\ufffd and \ufffd""#),
            (r#""\ud83d\ud83d\udd11\udd11""#, r#""\ufffd\ud83d\udd11\ufffd""#),
            (r#"{"\udfff":"\ud83d\u0041"}"#, r#"{"\ufffd":"\ufffd\u0041"}"#),
            (r#""\ud83d\n\udd11""#, r#""\ufffd\n\ufffd""#),
            (r#""\\\ud83d""#, r#""\\\ufffd""#),
        ] {
            assert_eq!(readable(text.as_bytes()), expected);
            serde_json::from_str::<Value>(expected).expect("it is JSON");
        }
    }

    #[test]
    fn an_error_has_the_place_of_its_text() {
        let found = |text: &str| check_surrogates(text).map_err(|found| found.to_string());
        assert_eq!(
            found(r#"{"a":["x",{"b/c":"\u0041 \ud83d"}]}"#).expect_err("a half is reported"),
            r"unpaired surrogate \ud83d in the string at /a/1/b~1c"
        );
        assert_eq!(
            found(r#""\udd11""#).expect_err("a half is reported"),
            r"unpaired surrogate \udd11"
        );
        assert_eq!(found(r#"{"a":"\ud83d\udd11"}"#), Ok(()));
    }

    #[test]
    fn other_text_is_not_copied() {
        for text in [
            r#""\ud83d\udd11 \uD83D\uDD11 🔑""#,
            r#""\\ud83d \\\\udd11 \ud7ff \ue000 \n""#,
            r#""\ud83"#,
            r#""\ud8zz" \"#,
            "",
            "no JSON",
        ] {
            assert!(matches!(readable(text.as_bytes()), Cow::Borrowed(same) if same == text));
        }
    }

    #[test]
    fn invalid_utf8_is_replaced() {
        assert_eq!(readable(b"\"a\xff\xf0\x9f\x94 b\""), "\"a\u{fffd}\u{fffd} b\"");
        assert_eq!(readable(b"\"\xed\xa0\xbd\\ud83d\""), "\"\u{fffd}\u{fffd}\u{fffd}\\ufffd\"");
    }

    /// Writes UTF-16 as `JSON.stringify` or as an ASCII-only writer does.
    fn stringified(units: &[u16], ascii: bool) -> String {
        let mut text = "\"".to_owned();
        for character in char::decode_utf16(units.iter().copied()) {
            match character {
                Ok(character) if ascii => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        text.push_str(&format!("\\u{unit:04X}"));
                    }
                }
                Ok(character) => {
                    let quoted = serde_json::to_string(&character).expect("it is text");
                    text.push_str(&quoted[1..quoted.len() - 1]);
                }
                Err(lone) => text.push_str(&format!("\\u{:04x}", lone.unpaired_surrogate())),
            }
        }
        text + "\""
    }

    fn units() -> impl Strategy<Value = Vec<u16>> {
        let unit = prop_oneof![
            0xd800_u16..=0xdfff,
            0xd83c_u16..=0xd83e,
            0xdc00_u16..=0xdc10,
            prop::sample::select("\\\"udn8\u{0}\u{fffd}é".encode_utf16().collect::<Vec<_>>()),
            any::<u16>(),
        ];
        prop::collection::vec(unit, 0..12)
    }

    proptest! {
        /// A text of UTF-16 units is read as JavaScript's `toWellFormed` gives it.
        #[test]
        fn any_string_of_javascript_is_readable(units in units(), ascii in any::<bool>()) {
            let written = stringified(&units, ascii);
            let read: String = serde_json::from_str(&readable(written.as_bytes()))
                .expect("it is JSON");
            prop_assert_eq!(read, String::from_utf16_lossy(&units));
            let is_whole = char::decode_utf16(units).all(|character| character.is_ok());
            prop_assert_eq!(matches!(readable(written.as_bytes()), Cow::Borrowed(_)), is_whole);
        }

        /// Any bytes become text, once and for all.
        #[test]
        fn no_bytes_cause_a_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..40),
            like in "[\\\\uUdD89aAcCfF0\"é]{0,60}",
        ) {
            for bytes in [bytes, like.into_bytes()] {
                let once = readable(&bytes);
                prop_assert_eq!(readable(once.as_bytes()), once.clone());
                prop_assert_eq!(unpaired_surrogates(&once).count(), 0);
            }
        }
    }
}
