//! Parses a size in bytes: `512kB`, `96MB`, `2GB`.

/// Parses a size. The units are powers of 1024.
pub(crate) fn parse(text: &str) -> Result<usize, String> {
    let (count, unit) =
        text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let bytes: usize = match unit {
        "kB" | "KB" => 1 << 10,
        "MB" => 1 << 20,
        "GB" => 1 << 30,
        _ => return Err("expected a number and a unit: 512kB, 96MB or 2GB".to_owned()),
    };
    let count: usize = count.parse().map_err(|_| format!("{count:?} is not a number"))?;
    count.checked_mul(bytes).ok_or_else(|| "the size is too large".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_has_a_unit() {
        let sizes = [("512kB", 512 << 10), ("1KB", 1 << 10), ("96MB", 96 << 20), ("2GB", 2 << 30)];
        for (text, bytes) in sizes {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "7", "MB", "-7MB", "7 MB", "1.5GB", "7mb", "7TB", "é"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert!(parse("99999999999999999999MB").is_err(), "no number of this machine");
        assert!(parse(&format!("{}GB", usize::MAX)).is_err(), "too large");
    }
}
