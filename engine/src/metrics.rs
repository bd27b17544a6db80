//! The numbers of the engine, in one registry. The server shows them at `/metrics`.
//!
//! Every thread of the engine counts here, also the writer, so counting is an atomic addition without a lock. The names of
//! the fields are the names of the metrics; `docs/metrics.md` lists them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use abide_live::TemplateWork;
use abide_schema::Code;
use abide_schema::metrics::{
    Metric, MetricFamily, MetricKind, MetricLabels, MetricSample, histogram_samples,
};
use sha2::{Digest as _, Sha256};

macro_rules! metrics {
    ($($(#[doc = $doc:literal])+ $name:ident: $kind:ident;)+) => {
        /// All numbers of an engine since it was opened.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $($(#[doc = $doc])+ pub $name: $kind,)+
        }

        impl Metrics {
            /// Returns each metric with its current values.
            #[must_use]
            pub fn families(&self) -> Vec<MetricFamily> {
                vec![$({
                    let meaning = concat!($($doc),+).trim_ascii_start();
                    let metric = Metric { name: stringify!($name), meaning, kind: $kind::KIND };
                    metric.with(self.$name.samples())
                }),+]
            }
        }
    };
}

metrics! {
    /// Calls that were run to a result.
    calls_total: Counter;
    /// Time from a call or batch to its answer, which is durable.
    call_seconds: Histogram;
    /// Calls that were refused.
    refusals_total: Counter;
    /// Calls that were refused, by the code of the refusal.
    refusals_by_code_total: CodeCounter;
    /// Calls answered from an earlier one.
    duplicates_total: Counter;
    /// Calls made by deadlines: timers, expired leases.
    deadline_calls_total: Counter;
    /// Calls deferred because of expensive work, such as validations; readers did it.
    deferred_total: Counter;
    /// Denied attempts, recorded or not.
    denied_total: Counter;
    /// Calls and queries refused by their caller's rate limit or quota.
    rate_limited_total: Counter;
    /// Groups of calls committed to the journal.
    commits_total: Counter;
    /// Commits of SQLite, each of one or more groups.
    row_commits_total: Counter;
    /// Bytes of the journal that the database file may not have.
    journal_bytes: Gauge;
    /// Steps of SQLite's virtual machine on the writer, for calls, live queries and deadlines.
    writer_steps_total: Counter;
    /// Transactions rerun because a refused call had already written.
    savepoint_reruns_total: Counter;
    /// Durations of syncs of the journal.
    sync_seconds: Histogram;
    /// Checkpoints run.
    checkpoints_total: Counter;
    /// Checkpoints that held queries back, because the WAL or the journal had become long.
    draining_checkpoints_total: Counter;
    /// Queries answered.
    queries_total: Counter;
    /// Time from a query to its result, also of queries that are refused.
    query_seconds: Histogram;
    /// Steps of SQLite's virtual machine in these queries.
    query_steps_total: Counter;
    /// Subscriptions made.
    subscriptions_total: Counter;
    /// Deltas made, before they are shared among subscribers.
    deltas_total: Counter;
    /// Time from the start of the sync of a group until its deltas are handed to their subscribers.
    delta_seconds: Histogram;
    /// Deltas handed to subscribers.
    deliveries_total: Counter;
    /// Times a slow client's queue was dropped, to be caught up from its seq.
    slow_consumers_total: Counter;
    /// Rows examined by the router of live queries.
    live_rows_routed_total: Counter;
    /// Live bindings that the router evaluated for a change.
    live_bindings_probed_total: Counter;
    /// SQL statements run for live queries within commits.
    live_statements_total: Counter;
    /// Steps of SQLite's virtual machine in these statements.
    live_steps_total: Counter;
    /// Bytes of cached state of live queries.
    live_state_bytes: Gauge;
    /// Live bindings that are evaluated for every change of some table.
    live_residual_bindings: Gauge;
    /// Full reruns of live queries by a reader, because their deltas were too expensive.
    live_reruns_total: Counter;
    /// The seq from which on a client can resume or query past states.
    change_log_oldest_seq: Gauge;
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    const KIND: MetricKind = MetricKind::Counter;

    /// Counts.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Sets the value, for values counted elsewhere.
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// Reads the value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn samples(&self) -> Vec<MetricSample> {
        vec![MetricSample::new(Vec::new(), self.get() as f64)]
    }
}

/// A current value.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    const KIND: MetricKind = MetricKind::Gauge;

    /// Sets the value.
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// Reads the value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn samples(&self) -> Vec<MetricSample> {
        vec![MetricSample::new(Vec::new(), self.get() as f64)]
    }
}

/// The upper bounds of durations in microseconds: a sync of a fast disk takes 100, and a call that waits for an overloaded one
/// seconds.
const BOUNDS_US: [u64; 16] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000, 10_000_000,
];

/// Durations, in fixed buckets.
#[derive(Debug, Default)]
pub struct Histogram {
    /// The number in each interval below a bound.
    buckets: [AtomicU64; BOUNDS_US.len()],
    above: AtomicU64,
    sum_us: AtomicU64,
}

impl Histogram {
    const KIND: MetricKind = MetricKind::Histogram;

    /// Counts a duration.
    pub fn add(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_US.iter().position(|bound| us <= *bound);
        bucket.map_or(&self.above, |at| &self.buckets[at]).fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    /// Reads the number of durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts().iter().sum()
    }

    /// Reads the sum of all durations.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration::from_micros(self.sum_us.load(Ordering::Relaxed))
    }

    fn counts(&self) -> Vec<u64> {
        let all = self.buckets.iter().chain([&self.above]);
        all.map(|count| count.load(Ordering::Relaxed)).collect()
    }

    fn samples(&self) -> Vec<MetricSample> {
        let bounds = BOUNDS_US.map(|us| us as f64 / 1e6);
        histogram_samples(&[], &bounds, &self.counts(), self.sum().as_secs_f64())
    }
}

/// A counter for each code of refusals.
#[derive(Debug)]
pub struct CodeCounter(Box<[AtomicU64]>);

impl Default for CodeCounter {
    fn default() -> CodeCounter {
        CodeCounter(Code::ALL.iter().map(|_| AtomicU64::new(0)).collect())
    }
}

impl CodeCounter {
    const KIND: MetricKind = MetricKind::Counter;

    /// Counts a refusal.
    pub fn add(&self, code: Code) {
        if let Some(at) = Code::ALL.iter().position(|known| *known == code) {
            self.0[at].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// All codes: of one that appears with its first refusal, Prometheus would not see the increase.
    fn samples(&self) -> Vec<MetricSample> {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        Code::ALL
            .iter()
            .zip(counts)
            .map(|(code, count)| {
                MetricSample::new(vec![("code", code.as_str().to_owned())], count as f64)
            })
            .collect()
    }
}

/// Maximum number of template labels: a label's values must stay few.
const TEMPLATES: usize = 50;

/// Returns the cost of the most expensive live query templates.
#[must_use]
pub fn template_families(templates: &[TemplateWork]) -> Vec<MetricFamily> {
    type Read = fn(&TemplateWork) -> u64;
    let metrics: [(Metric, Read); 5] = [
        (
            Metric::gauge(
                "live_template_bindings",
                "Distinct bindings (template and parameters) that are subscribed.",
            ),
            |work| work.bindings as u64,
        ),
        (
            Metric::counter(
                "live_template_deltas_total",
                "Deltas that commits required for a template's bindings.",
            ),
            |work| work.deltas,
        ),
        (
            Metric::counter(
                "live_template_over_budget_total",
                "Deltas that were not made because they cost too much.",
            ),
            |work| work.over_budget,
        ),
        (
            Metric::counter(
                "live_template_statements_total",
                "SQL statements run for a template within commits.",
            ),
            |work| work.spent.statements,
        ),
        (
            Metric::counter(
                "live_template_steps_total",
                "Steps of SQLite's virtual machine that these took.",
            ),
            |work| work.spent.steps,
        ),
    ];
    let templates = &templates[..templates.len().min(TEMPLATES)];
    let labels: Vec<MetricLabels> =
        templates.iter().map(|work| vec![("template", template_digest(&work.sql))]).collect();
    metrics
        .into_iter()
        .map(|(metric, read)| {
            let samples = templates.iter().zip(&labels);
            let samples =
                samples.map(|(work, labels)| MetricSample::new(labels.clone(), read(work) as f64));
            metric.with(samples.collect())
        })
        .collect()
}

/// Returns the digest of a template's SQL, under which metrics name it: the SQL is long, and not everybody who reads metrics may see
/// what callers ask.
#[must_use]
pub fn template_digest(sql: &str) -> String {
    let digest = Sha256::digest(sql.as_bytes());
    digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}

/// Rows of a module that wait ([`abide_schema::reducer::WaitingRows`]).
#[derive(Clone, Debug, PartialEq)]
pub struct WaitingCount {
    /// What waits.
    pub kind: &'static str,
    /// How many; at most [`abide_schema::limits::WAITING_ROWS`].
    pub count: u64,
    /// How long the oldest one has waited; zero if there is none.
    pub oldest: Duration,
}

/// Returns the rows that wait as metrics.
#[must_use]
pub fn waiting_families(waiting: &[WaitingCount]) -> Vec<MetricFamily> {
    let number = Metric::gauge(
        "waiting_rows",
        "Rows that wait for a person, a worker, a driver or a receiver, by kind; at most 10000 are counted.",
    );
    let age = Metric::gauge(
        "waiting_oldest_seconds",
        "How long the oldest of these rows has waited; 0 without one.",
    );
    let labels = |of: &WaitingCount| vec![("kind", of.kind.to_owned())];
    let counts = waiting.iter().map(|of| MetricSample::new(labels(of), of.count as f64));
    let ages = waiting.iter().map(|of| MetricSample::new(labels(of), of.oldest.as_secs_f64()));
    vec![number.with(counts.collect()), age.with(ages.collect())]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_duration_is_in_the_first_bucket_that_has_room_for_it() {
        for (us, bound) in [
            (0, "0.0001"),
            (100, "0.0001"),
            (101, "0.00025"),
            (1_000_000, "1"),
            (10_000_000, "10"),
            (10_000_001, "+Inf"),
            (u64::MAX, "+Inf"),
        ] {
            let histogram = Histogram::default();
            histogram.add(Duration::from_micros(us));
            let samples = histogram.samples();
            let first = samples.iter().find(|sample| sample.value > 0.0).expect("it is counted");
            assert_eq!(first.labels, [("le", bound.to_owned())], "{us} µs");
            assert_eq!(histogram.count(), 1);
        }
    }

    #[test]
    fn names_follow_the_conventions() {
        let mut names = BTreeSet::new();
        let families = Metrics::default().families().into_iter();
        let others = template_families(&[]).into_iter().chain(waiting_families(&[]));
        for Metric { name, meaning, kind } in families.chain(others).map(|family| family.metric) {
            assert!(names.insert(name), "{name} twice");
            assert_eq!(name.ends_with("_total"), kind == MetricKind::Counter, "{name}");
            assert!(kind != MetricKind::Histogram || name.ends_with("_seconds"), "{name}");
            assert!(!name.contains("_us_") && !name.contains("_ms"), "{name} is not in seconds");
            assert!(meaning.ends_with('.'), "{name}: {meaning}");
        }
    }

    #[test]
    fn codes_are_counted_one_by_one() {
        let refusals = CodeCounter::default();
        for code in [Code::Denied, Code::Internal, Code::Denied] {
            refusals.add(code);
        }
        assert_eq!(refusals.samples().len(), Code::ALL.len());
        let samples: Vec<(String, f64)> = refusals
            .samples()
            .into_iter()
            .map(|sample| (sample.labels[0].1.clone(), sample.value))
            .filter(|(_, count)| *count > 0.0)
            .collect();
        assert_eq!(samples, [("denied".to_owned(), 2.0), ("internal".to_owned(), 1.0)]);
    }

    #[test]
    fn a_template_has_a_short_digest_of_its_own() {
        let digest = template_digest("SELECT id FROM t WHERE name = 'secret'");
        assert!(digest.len() == 12 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_ne!(digest, template_digest("SELECT id FROM t WHERE name = 'other'"));
    }
}
