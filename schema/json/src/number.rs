//! Numbers as JSON Schema defines them: compared by value, not by notation.

use std::cmp::Ordering;

use serde_json::Number;

/// Compares two numbers by value.
pub(crate) fn compare(a: &Number, b: &Number) -> Ordering {
    match (integer(a), integer(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        (Some(a), None) => against(a, float(b)),
        (None, Some(b)) => against(b, float(a)).reverse(),
        (None, None) => float(a).partial_cmp(&float(b)).unwrap_or(Ordering::Equal),
    }
}

/// Whether the value is whole, even if written as a float.
pub(crate) fn is_whole(number: &Number) -> bool {
    integer(number).is_some() || float(number).fract() == 0.0
}

/// Whether it is written as a whole number.
pub(crate) fn is_written_whole(number: &Number) -> bool {
    integer(number).is_some()
}

/// Whether one is a multiple of the other, exactly: as decimals if both are short enough.
pub(crate) fn is_multiple(number: &Number, of: &Number) -> bool {
    if let (Some(number), Some(of)) = (decimal(number), decimal(of))
        && of.0 != 0
    {
        let exponent = number.1.min(of.1);
        let scale = |(digits, own): (i128, i32)| {
            let power = u32::try_from(own - exponent).ok()?;
            digits.checked_mul(10_i128.checked_pow(power)?)
        };
        if let (Some(number), Some(of)) = (scale(number), scale(of)) {
            return number % of == 0;
        }
    }
    float(number) % float(of) == 0.0
}

/// A text that is the same for equal numbers.
pub(crate) fn canonical(number: &Number) -> String {
    match integer(number) {
        Some(whole) => whole.to_string(),
        None => {
            let float = float(number);
            // Exact: a whole float below 2^100 is an integer.
            if float.fract() == 0.0 && float.abs() < 1e30 {
                (float as i128).to_string()
            } else {
                format!("{float:e}")
            }
        }
    }
}

fn integer(number: &Number) -> Option<i128> {
    number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from))
}

fn float(number: &Number) -> f64 {
    number.as_f64().unwrap_or(f64::MAX)
}

fn against(whole: i128, float: f64) -> Ordering {
    // Beyond all 64-bit integers.
    if float.abs() > 1e30 {
        return if float > 0.0 { Ordering::Less } else { Ordering::Greater };
    }
    let truncated = float.trunc();
    let fraction = float - truncated;
    whole.cmp(&(truncated as i128)).then(0.0.partial_cmp(&fraction).unwrap_or(Ordering::Equal))
}

/// Digits and a power of ten.
fn decimal(number: &Number) -> Option<(i128, i32)> {
    let text = number.to_string();
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (text.as_str(), 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}").parse().ok()?;
    Some((digits, exponent.checked_sub(i32::try_from(fraction.len()).ok()?)?))
}
