//! Parses a duration: `90s`, `30m`, `12h`, `7d`, `4w`.

use std::time::Duration;

/// Parses a duration.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let (count, unit) =
        text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let seconds: u64 = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        "w" => 7 * 86_400,
        _ => return Err("expected a number and a unit: 90s, 30m, 12h, 7d or 4w".to_owned()),
    };
    let count: u64 = count.parse().map_err(|_| format!("{count:?} is not a number"))?;
    let time = count.checked_mul(seconds).map(Duration::from_secs);
    time.ok_or_else(|| "the duration is too long".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_of_time_has_a_unit() {
        let seconds = [("0s", 0), ("90s", 90), ("30m", 1_800), ("12h", 43_200), ("7d", 604_800)];
        for (text, seconds) in seconds {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for wrong in ["", "7", "d", "-7d", "7 d", "1.5h", "7days", "99999999999999999999s", "é"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert!(parse(&format!("{}w", u64::MAX)).is_err());
    }
}
