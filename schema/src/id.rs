//! Ids and numbers with their own types: [`Seq`], [`Micros`], and ULID text.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A position in the event log: 1 for the first event, dense, never reused. 0 is "before everything".
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
#[serde(transparent)]
pub struct Seq(pub i64);

impl Seq {
    /// Before the first event.
    pub const ZERO: Seq = Seq(0);

    /// Returns the position after this one.
    #[must_use]
    pub fn next(self) -> Seq {
        Seq(self.0 + 1)
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A point in time: microseconds since the Unix epoch, UTC.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
#[serde(transparent)]
pub struct Micros(pub i64);

impl Micros {
    /// This time plus a duration.
    #[must_use]
    pub fn plus_ms(self, span_ms: i64) -> Micros {
        Micros(self.0.saturating_add(span_ms.saturating_mul(1000)))
    }
}

impl fmt::Display for Micros {
    /// ISO 8601 in UTC with seconds, as in error texts: `2026-11-21T14:02:11Z`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.div_euclid(1_000_000);
        let days = seconds.div_euclid(86_400);
        let second_of_day = seconds.rem_euclid(86_400);
        // Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days.
        let z = days + 719_468;
        let era = z.div_euclid(146_097);
        let day_of_era = z.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted_month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
        let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let hour = second_of_day / 3_600;
        let minute = second_of_day / 60 % 60;
        let second = second_of_day % 60;
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

/// Returns the first character of a text that ids and names must not have: one that is invisible, or a blank other than
/// the space. Two ids that differ only in such characters look the same to a person who compares them.
#[must_use]
pub fn forbidden_character(text: &str) -> Option<char> {
    text.chars().find(|c| is_invisible(*c) || (*c != ' ' && c.is_whitespace()))
}

/// Returns `true` if a character has no glyph of its own, or another one on each machine, so that it can hide, reorder
/// or smuggle text. These are, by their general category in Unicode:
///
/// - Cc, Zl, Zp: control characters, separators of lines and paragraphs
/// - Cf: zero-width characters, the controls of the bidirectional algorithm (UAX #9), tags. Seven signs of Arabic,
///   Syriac and Kaithi in Cf have a glyph and are not included
/// - the other characters with the property `Default_Ignorable_Code_Point`: variation selectors, fillers, and code points
///   that are reserved for more of them; and the empty Braille pattern
/// - Co, and of Cn the noncharacters. Other code points of Cn get characters in later versions of Unicode
///
/// Joiners and variation selectors are part of emoji and of several scripts, so text for people can contain them.
#[must_use]
pub fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{00AD}' | '\u{034F}' | '\u{061C}' | '\u{115F}'..='\u{1160}' | '\u{17B4}'..='\u{17B5}'
            | '\u{180B}'..='\u{180F}' | '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}'
            | '\u{2060}'..='\u{206F}' | '\u{2800}' | '\u{3164}' | '\u{E000}'..='\u{F8FF}'
            | '\u{FDD0}'..='\u{FDEF}' | '\u{FE00}'..='\u{FE0F}' | '\u{FEFF}' | '\u{FFA0}'
            | '\u{FFF0}'..='\u{FFFB}' | '\u{13430}'..='\u{1343F}' | '\u{1BCA0}'..='\u{1BCA3}'
            | '\u{1D173}'..='\u{1D17A}' | '\u{E0000}'..='\u{E0FFF}' | '\u{F0000}'..)
        // The last two code points of each plane.
        || u32::from(c) & 0xFFFE == 0xFFFE
}

/// Returns a ULID: 48 bits of milliseconds, then 80 bits of randomness, in Crockford base 32 (26 characters),
/// so that ids sort by creation time. Layout: <https://github.com/ulid/spec>.
#[must_use]
pub fn ulid(at: Micros, randomness: [u8; 10]) -> String {
    const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    let at_ms = (at.0.max(0) / 1000) as u128 & 0xFFFF_FFFF_FFFF;
    let bits = randomness.iter().fold(at_ms, |bits, byte| bits << 8 | u128::from(*byte));
    (0..26).rev().map(|digit| char::from(ALPHABET[(bits >> (digit * 5)) as usize & 31])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ulids_start_with_their_time() {
        // The example of the ULID specification: 1469918176385 ms is 01ARYZ6S41.
        let id = ulid(Micros(1_469_918_176_385_000), [0; 10]);
        assert_eq!(id, "01ARYZ6S410000000000000000");
        assert_eq!(ulid(Micros(0), [0xFF; 10]), "0000000000ZZZZZZZZZZZZZZZZ");
    }

    /// A zero-width space in `adm\u{200b}in` was accepted in an id, while the terminal knew that it is invisible: each
    /// place had a list of its own. There is one list, and ids have no blank but the space.
    #[test]
    fn ids_have_no_invisible_character() {
        let forbidden = [
            '\0',
            '\n',
            '\u{1b}',
            '\u{7f}',
            '\u{9b}',
            '\u{a0}',
            '\u{ad}',
            '\u{34f}',
            '\u{61c}',
            '\u{1160}',
            '\u{180e}',
            '\u{200b}',
            '\u{200c}',
            '\u{200d}',
            '\u{200e}',
            '\u{2003}',
            '\u{2028}',
            '\u{2029}',
            '\u{202e}',
            '\u{2060}',
            '\u{2063}',
            '\u{2066}',
            '\u{206f}',
            '\u{2800}',
            '\u{3000}',
            '\u{3164}',
            '\u{e000}',
            '\u{fdd0}',
            '\u{fe00}',
            '\u{fe0f}',
            '\u{feff}',
            '\u{ffa0}',
            '\u{fff9}',
            '\u{ffff}',
            '\u{13430}',
            '\u{1d173}',
            '\u{1fffe}',
            '\u{e0001}',
            '\u{e0041}',
            '\u{e0100}',
            '\u{10ffff}',
        ];
        for c in forbidden {
            assert_eq!(
                forbidden_character(&format!("adm{c}in")),
                Some(c),
                "{}",
                c.escape_unicode()
            );
        }
        for text in [
            "s1",
            "tenant=acme/order 8",
            "grüße",
            "заказ",
            "注文",
            "a\u{301}",
            "طلب\u{660}",
            "👩",
            "~",
        ] {
            assert_eq!(forbidden_character(text), None, "{text}");
        }
    }

    #[test]
    fn times_are_shown_as_iso_8601() {
        let texts = [0, 951_782_400, 1_795_269_731, -1].map(|s| Micros(s * 1_000_000).to_string());
        assert_eq!(
            texts,
            [
                "1970-01-01T00:00:00Z",
                "2000-02-29T00:00:00Z",
                "2026-11-21T14:02:11Z",
                "1969-12-31T23:59:59Z"
            ]
        );
    }
}
