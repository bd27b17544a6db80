//! Parses quantities with a unit: a duration (`90s`, `30m`, `12h`, `7d`, `4w`) or a size in bytes (`512kB`, `96MB`, `2GB`).

use std::time::Duration;

/// Parses a duration.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let (count, unit) = split_unit(text);
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

/// Parses a size. The units are powers of 1024.
pub(crate) fn parse_size(text: &str) -> Result<usize, String> {
    let (count, unit) = split_unit(text);
    let bytes: usize = match unit {
        "kB" | "KB" => 1 << 10,
        "MB" => 1 << 20,
        "GB" => 1 << 30,
        _ => return Err("expected a number and a unit: 512kB, 96MB or 2GB".to_owned()),
    };
    let count: usize = count.parse().map_err(|_| format!("{count:?} is not a number"))?;
    count.checked_mul(bytes).ok_or_else(|| "the size is too large".to_owned())
}

/// Splits a text after its leading digits.
fn split_unit(text: &str) -> (&str, &str) {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_of_time_has_a_unit() {
        let seconds = [("0s", 0), ("90s", 90), ("30m", 1_800), ("12h", 43_200), ("7d", 604_800)];
        for (text, seconds) in seconds {
            assert_eq!(parse_duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for wrong in ["", "7", "d", "-7d", "7 d", "1.5h", "7days", "99999999999999999999s", "é"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
        assert!(parse_duration(&format!("{}w", u64::MAX)).is_err());
    }

    #[test]
    fn a_size_has_a_unit() {
        let sizes = [("512kB", 512 << 10), ("1KB", 1 << 10), ("96MB", 96 << 20), ("2GB", 2 << 30)];
        for (text, bytes) in sizes {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "7", "MB", "-7MB", "7 MB", "1.5GB", "7mb", "7TB", "é"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
        assert!(parse_size("99999999999999999999MB").is_err(), "no number of this machine");
        assert!(parse_size(&format!("{}GB", usize::MAX)).is_err(), "too large");
    }
}
