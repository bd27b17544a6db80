//! Numbers as JSON Schema defines them: compared by value, not by notation.

use std::cmp::Ordering;

use serde_json::Number;

/// Compares two numbers by value.
pub(crate) fn compare(a: &Number, b: &Number) -> Ordering {
    match (to_integer(a), to_integer(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        (Some(a), None) => compare_with_float(a, to_float(b)),
        (None, Some(b)) => compare_with_float(b, to_float(a)).reverse(),
        (None, None) => to_float(a).partial_cmp(&to_float(b)).unwrap_or(Ordering::Equal),
    }
}

/// Returns `true` if the value is whole, even if written as a float.
pub(crate) fn is_whole(number: &Number) -> bool {
    to_integer(number).is_some() || to_float(number).fract() == 0.0
}

/// Returns `true` if it is written as a whole number.
pub(crate) fn is_written_whole(number: &Number) -> bool {
    to_integer(number).is_some()
}

/// Returns `true` if one is a multiple of the other, exactly: as decimals if both are short enough.
pub(crate) fn is_multiple(number: &Number, divisor: &Number) -> bool {
    is_decimal_multiple(number, divisor)
        .unwrap_or_else(|| to_float(number) % to_float(divisor) == 0.0)
}

/// Returns `None` if the decimals are too long.
fn is_decimal_multiple(number: &Number, divisor: &Number) -> Option<bool> {
    let number = Decimal::parse(number)?;
    let divisor = Decimal::parse(divisor)?;
    let exponent = number.exponent.min(divisor.exponent);
    number.digits_at(exponent)?.checked_rem(divisor.digits_at(exponent)?).map(|rest| rest == 0)
}

/// Returns a text that is the same for equal numbers.
pub(crate) fn canonical_text(number: &Number) -> String {
    match to_integer(number) {
        Some(whole) => whole.to_string(),
        None => {
            let float = to_float(number);
            // Exact: a whole float below 2^100 is an integer.
            if float.fract() == 0.0 && float.abs() < 1e30 {
                (float as i128).to_string()
            } else {
                format!("{float:e}")
            }
        }
    }
}

fn to_integer(number: &Number) -> Option<i128> {
    number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from))
}

fn to_float(number: &Number) -> f64 {
    number.as_f64().unwrap_or(f64::MAX)
}

fn compare_with_float(whole: i128, float: f64) -> Ordering {
    // Beyond all 64-bit integers.
    if float.abs() > 1e30 {
        return if float > 0.0 { Ordering::Less } else { Ordering::Greater };
    }
    let truncated = float.trunc();
    let fraction = float - truncated;
    whole.cmp(&(truncated as i128)).then(0.0.partial_cmp(&fraction).unwrap_or(Ordering::Equal))
}

/// Digits and a power of ten.
struct Decimal {
    digits: i128,
    exponent: i32,
}

impl Decimal {
    fn parse(number: &Number) -> Option<Decimal> {
        let text = number.to_string();
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
            None => (text.as_str(), 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = format!("{whole}{fraction}").parse().ok()?;
        let exponent = exponent.checked_sub(i32::try_from(fraction.len()).ok()?)?;
        Some(Decimal { digits, exponent })
    }

    /// Returns the digits of the same number with a smaller or equal exponent.
    fn digits_at(&self, exponent: i32) -> Option<i128> {
        let power = u32::try_from(self.exponent.checked_sub(exponent)?).ok()?;
        self.digits.checked_mul(10_i128.checked_pow(power)?)
    }
}
