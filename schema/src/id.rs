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

    /// The position after this one.
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
        let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
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
        let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

/// Whether a character is forbidden in ids and names: control characters, line separators and the controls of
/// the bidirectional algorithm (Unicode UAX #9). They can make two different ids look the same in a
/// terminal or a log.
#[must_use]
pub fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61C}' | '\u{200E}' | '\u{200F}' | '\u{2028}' | '\u{2029}')
        || matches!(c, '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

/// A ULID: 48 bits of milliseconds, then 80 bits of randomness, in Crockford base 32 (26 characters),
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
