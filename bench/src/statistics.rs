//! The statistics that are reported.

/// The median.
pub(crate) fn median(figures: impl IntoIterator<Item = f64>) -> f64 {
    percentile(figures, 0.5)
}

/// The percentile by the nearest-rank method. NaN without values.
pub(crate) fn percentile(figures: impl IntoIterator<Item = f64>, share: f64) -> f64 {
    let mut sorted: Vec<f64> = figures.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// A number with thousands separators: `12 345`.
pub(crate) fn thousands(count: f64) -> String {
    let digits = format!("{count:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_use_the_nearest_rank() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(percentile((1..=100).map(f64::from), 0.99), 99.0);
        assert!(median([]).is_nan());
        assert_eq!(thousands(1_234_567.0), "1 234 567");
        assert_eq!(thousands(12.0), "12");
    }
}
