//! The numbers of `/metrics` in the terms of Prometheus: what each crate reports, and the text format (0.0.4).
//!
//! Names here have no prefix; the text has `abide_` before each.

use std::fmt::Write as _;

/// The kinds of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A number that only grows. Its name ends with `_total`.
    Counter,
    /// A current value.
    Gauge,
    /// Durations in seconds, counted in buckets. Its name ends with `_seconds`.
    Histogram,
}

impl MetricKind {
    /// Returns the name of the format.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        }
    }
}

/// A metric, without its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name, without the prefix: units last, then `_total` for a counter.
    pub name: &'static str,
    /// Its meaning, in one sentence.
    pub meaning: &'static str,
    /// Its kind.
    pub kind: MetricKind,
}

impl Metric {
    /// Returns a counter.
    #[must_use]
    pub const fn counter(name: &'static str, meaning: &'static str) -> Metric {
        Metric { name, meaning, kind: MetricKind::Counter }
    }

    /// Returns a gauge.
    #[must_use]
    pub const fn gauge(name: &'static str, meaning: &'static str) -> Metric {
        Metric { name, meaning, kind: MetricKind::Gauge }
    }

    /// Returns a histogram.
    #[must_use]
    pub const fn histogram(name: &'static str, meaning: &'static str) -> Metric {
        Metric { name, meaning, kind: MetricKind::Histogram }
    }

    /// Returns the metric with its samples.
    #[must_use]
    pub fn with(self, samples: Vec<MetricSample>) -> MetricFamily {
        MetricFamily { metric: self, samples }
    }

    /// Returns the metric with its only value.
    #[must_use]
    pub fn with_value(self, value: u64) -> MetricFamily {
        self.with(vec![MetricSample::new(Vec::new(), value as f64)])
    }
}

/// A metric with its values. One without samples is shown too, so that all names are known.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricFamily {
    /// The metric.
    pub metric: Metric,
    /// Its samples.
    pub samples: Vec<MetricSample>,
}

/// The labels of a sample: names and values.
pub type MetricLabels = Vec<(&'static str, String)>;

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricSample {
    /// The suffix of the name: `_bucket`, `_sum` and `_count` of a histogram, else nothing.
    pub suffix: &'static str,
    /// Its labels.
    pub labels: MetricLabels,
    /// The value.
    pub value: f64,
}

impl MetricSample {
    /// Returns a value of a counter or a gauge.
    #[must_use]
    pub fn new(labels: MetricLabels, value: f64) -> MetricSample {
        MetricSample { suffix: "", labels, value }
    }
}

/// Returns the samples of a histogram: cumulative buckets, the sum and the count.
///
/// `bounds` are in seconds. `counts` has the number of durations in each interval that ends at a bound, and then of those
/// above all bounds.
///
/// # Panics
/// If `counts` does not have one element more than `bounds`.
#[must_use]
pub fn histogram_samples(
    labels: &[(&'static str, String)],
    bounds: &[f64],
    counts: &[u64],
    sum_seconds: f64,
) -> Vec<MetricSample> {
    assert_eq!(counts.len(), bounds.len() + 1, "one interval is above all bounds");
    let names = bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
    let mut below: u64 = 0;
    let mut samples: Vec<MetricSample> = names
        .zip(counts)
        .map(|(bound, count)| {
            below += count;
            let labels = labels.iter().cloned().chain([("le", bound)]).collect();
            MetricSample { suffix: "_bucket", labels, value: below as f64 }
        })
        .collect();
    samples.push(MetricSample { suffix: "_sum", labels: labels.to_vec(), value: sum_seconds });
    samples.push(MetricSample { suffix: "_count", labels: labels.to_vec(), value: below as f64 });
    samples
}

/// Returns metrics in the text format of Prometheus.
#[must_use]
pub fn metrics_text(families: &[MetricFamily]) -> String {
    let mut text = String::new();
    for MetricFamily { metric: Metric { name, meaning, kind }, samples } in families {
        let kind = kind.as_str();
        let meaning = meaning.replace('\\', "\\\\").replace('\n', "\\n");
        // Writing into a String cannot fail.
        let _ = write!(text, "# HELP abide_{name} {meaning}\n# TYPE abide_{name} {kind}\n");
        for MetricSample { suffix, labels, value } in samples {
            let _ = write!(text, "abide_{name}{suffix}");
            if !labels.is_empty() {
                let labels: Vec<String> = labels
                    .iter()
                    .map(|(name, value)| format!("{name}=\"{}\"", escape_label(value)))
                    .collect();
                let _ = write!(text, "{{{}}}", labels.join(","));
            }
            let _ = writeln!(text, " {value}");
        }
    }
    text
}

/// Escapes a label's value: one line, with quotes and backslashes escaped.
fn escape_label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of agents, models and tools cannot add lines or labels.
    #[test]
    fn label_values_are_escaped() {
        let metric = Metric::counter("steps_total", "Steps,\nby \\template.");
        let samples =
            [r#"SELECT "id" FROM t"#, "two\nlines", r"back\slash", "é{}=,", "a\"} 1\nx 7"]
                .map(|value| MetricSample::new(vec![("template", value.to_owned())], 7.0));
        let expected = r##"# HELP abide_steps_total Steps,\nby \\template.
# TYPE abide_steps_total counter
abide_steps_total{template="SELECT \"id\" FROM t"} 7
abide_steps_total{template="two\nlines"} 7
abide_steps_total{template="back\\slash"} 7
abide_steps_total{template="é{}=,"} 7
abide_steps_total{template="a\"} 1\nx 7"} 7
"##;
        assert_eq!(metrics_text(&[metric.with(samples.to_vec())]), expected);
    }

    #[test]
    fn buckets_are_cumulative_and_a_metric_without_samples_has_its_head() {
        let labels = [("tool", "look".to_owned())];
        let samples = histogram_samples(&labels, &[0.000_25, 0.5, 10.0], &[2, 0, 3, 1], 27.5);
        let of_tools = Metric::histogram("call_seconds", "Durations.").with(samples);
        let nothing = Metric::gauge("waiting", "Rows that wait.").with(Vec::new());
        let seq = Metric::gauge("seq", "The last event.").with_value(1 << 52);
        let expected = r##"# HELP abide_call_seconds Durations.
# TYPE abide_call_seconds histogram
abide_call_seconds_bucket{tool="look",le="0.00025"} 2
abide_call_seconds_bucket{tool="look",le="0.5"} 2
abide_call_seconds_bucket{tool="look",le="10"} 5
abide_call_seconds_bucket{tool="look",le="+Inf"} 6
abide_call_seconds_sum{tool="look"} 27.5
abide_call_seconds_count{tool="look"} 6
# HELP abide_waiting Rows that wait.
# TYPE abide_waiting gauge
# HELP abide_seq The last event.
# TYPE abide_seq gauge
abide_seq 4503599627370496
"##;
        assert_eq!(metrics_text(&[of_tools, nothing, seq]), expected);
    }
}
