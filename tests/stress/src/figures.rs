//! The results of a run, one line each: `figure  what: value`. `cargo xtask proofs` parses
//! them.

use std::fmt;

/// Prints one figure.
pub(crate) fn figure(what: &str, value: impl fmt::Display) {
    println!("figure  {what}: {value}");
}

/// A number with thousands separators.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes as megabytes.
pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{} MB", count(bytes.div_ceil(1 << 20)))
}

/// A percentile; zero for an empty list.
pub(crate) fn percentile(values: &[f64], of_hundred: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (sorted.len() as f64 * of_hundred / 100.0).ceil() as usize;
    sorted.get(at.saturating_sub(1)).copied().unwrap_or_default()
}
