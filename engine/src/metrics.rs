//! Counters of the engine, as values. The server exposes them at `/metrics`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use abide_live::TemplateWork;
use abide_schema::{Checksum, Value};

macro_rules! metrics {
    (
        $($(#[doc = $doc:literal])+ $name:ident;)+ ;
        $($(#[doc = $labelled_doc:literal])+ $labelled:ident by $label:ident;)+
    ) => {
        /// Counters since the engine was opened, and a few gauges.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $($(#[doc = $doc])+ pub $name: Counter,)+
            $($(#[doc = $labelled_doc])+ pub $labelled: Labelled,)+
        }

        impl Metrics {
            /// Returns each counter: name, meaning, value.
            #[must_use]
            pub fn read(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$({
                    let meaning = concat!($($doc),+).trim_ascii_start();
                    (stringify!($name), meaning, self.$name.get())
                }),+]
            }

            /// Returns each labelled counter: name, meaning, label, and the value for each label value.
            #[must_use]
            pub fn read_labelled(&self) -> Vec<Series> {
                vec![$(Series {
                    name: stringify!($labelled),
                    meaning: concat!($($labelled_doc),+).trim_ascii_start(),
                    label: stringify!($label),
                    values: self.$labelled.read(),
                }),+]
            }
        }
    };
}

/// One counter for each value of a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// Its name.
    pub name: &'static str,
    /// Its meaning.
    pub meaning: &'static str,
    /// The label's name.
    pub label: &'static str,
    /// The label's values, each with its count.
    pub values: Vec<(String, u64)>,
}

/// Maximum number of template labels: a label's values must stay few.
const TEMPLATES: usize = 50;
/// Maximum letters of a template's SQL in a label.
const TEMPLATE_LETTERS: usize = 300;

/// Returns the cost of the most expensive live query templates, as series.
#[must_use]
pub fn template_series(templates: &[TemplateWork]) -> Vec<Series> {
    type Read = fn(&TemplateWork) -> u64;
    let series: [(&'static str, &'static str, Read); 5] = [
        (
            "live_template_bindings",
            "Distinct bindings (template and parameters) that are subscribed.",
            |work| work.bindings as u64,
        ),
        (
            "live_template_deltas_total",
            "Deltas that commits required for a template's bindings.",
            |work| work.deltas,
        ),
        (
            "live_template_over_budget_total",
            "Deltas that were not made because they cost too much.",
            |work| work.over_budget,
        ),
        (
            "live_template_statements_total",
            "SQL statements run for a template within commits.",
            |work| work.spent.statements,
        ),
        (
            "live_template_steps_total",
            "Steps of SQLite's virtual machine that these took.",
            |work| work.spent.steps,
        ),
    ];
    let templates = &templates[..templates.len().min(TEMPLATES)];
    series
        .into_iter()
        .map(|(name, meaning, read)| Series {
            name,
            meaning,
            label: "template",
            values: templates.iter().map(|work| (label(&work.sql), read(work))).collect(),
        })
        .collect()
}

/// A template's SQL; long ones are truncated, with a number that distinguishes equal prefixes.
fn label(sql: &str) -> String {
    let Some((end, _)) = sql.char_indices().nth(TEMPLATE_LETTERS) else { return sql.to_owned() };
    let text = [Value::Text(sql.to_owned())];
    format!("{}… {}", &sql[..end], Checksum::from_rows([&text[..]]))
}

metrics! {
    /// Calls that were run to a result.
    calls_total;
    /// Calls that were refused.
    refusals_total;
    /// Calls answered from an earlier one.
    duplicates_total;
    /// Calls made by deadlines: timers, expired leases.
    deadline_calls_total;
    /// Calls deferred because of expensive work, such as validations; readers did it.
    deferred_total;
    /// Denied attempts, recorded or not.
    denied_total;
    /// Calls and queries refused by their caller's rate limit or quota.
    rate_limited_total;
    /// Groups of calls committed to the journal.
    commits_total;
    /// Commits of SQLite, each of one or more groups.
    row_commits_total;
    /// Bytes of the journal that the database file may not have.
    journal_bytes;
    /// Steps of SQLite's virtual machine on the writer, for calls, live queries and deadlines.
    writer_steps_total;
    /// Transactions rerun because a refused call had already written.
    savepoint_reruns_total;
    /// Syncs of the journal.
    syncs_total;
    /// Microseconds spent in syncs of the WAL.
    sync_us_total;
    /// Checkpoints run.
    checkpoints_total;
    /// Checkpoints that held queries back, because the WAL or the journal had become long.
    draining_checkpoints_total;
    /// Queries answered.
    queries_total;
    /// Steps of SQLite's virtual machine in these queries.
    query_steps_total;
    /// Subscriptions made.
    subscriptions_total;
    /// Deltas made, before they are shared among subscribers.
    deltas_total;
    /// Deltas handed to subscribers.
    deliveries_total;
    /// Times a slow client's queue was dropped, to be caught up from its seq.
    slow_consumers_total;
    /// Rows examined by the router of live queries.
    live_rows_routed_total;
    /// Live bindings that the router evaluated for a change.
    live_bindings_probed_total;
    /// SQL statements run for live queries within commits.
    live_statements_total;
    /// Steps of SQLite's virtual machine in these statements.
    live_steps_total;
    /// Bytes of cached state of live queries.
    live_state_bytes;
    /// Live bindings that are evaluated for every change of some table.
    live_residual_bindings;
    /// Full reruns of live queries by a reader, because their deltas were too expensive.
    live_reruns_total;
    /// The seq from which on a client can resume or query past states.
    change_log_oldest_seq;
    ;
    /// Calls that were refused, by the code of the refusal.
    refusals_by_code_total by code;
}

/// One counter.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
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
}

/// A counter per label value. The values must be few.
#[derive(Debug, Default)]
pub struct Labelled(Mutex<BTreeMap<String, u64>>);

impl Labelled {
    /// Counts.
    pub fn add(&self, value: &str, n: u64) {
        let mut counts = self.lock();
        match counts.get_mut(value) {
            Some(count) => *count += n,
            None => {
                counts.insert(value.to_owned(), n);
            }
        }
    }

    /// Sets all values, for values counted elsewhere.
    pub fn set_all(&self, counts: impl IntoIterator<Item = (String, u64)>) {
        *self.lock() = counts.into_iter().collect();
    }

    /// Reads all values, in label order.
    #[must_use]
    pub fn read(&self) -> Vec<(String, u64)> {
        self.lock().iter().map(|(value, count)| (value.clone(), *count)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
