//! Counters of agents with the middleware `observability`: runs, requests to models, and calls of tools. They are those of this
//! process since its start, as Prometheus expects it; the rows have the whole history.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

/// Maximum number of label sets of each kind. Names of agents, models and tools come from definitions, which callers can
/// post. What goes beyond is counted under the names `other`, so that no counter is lost.
const LABEL_SETS: usize = 1_000;

/// The name of everything beyond [`LABEL_SETS`].
const OTHER: &str = "other";

/// The upper bounds of durations, in seconds.
const BOUNDS: [f64; 10] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// Counters of a runtime. A clone refers to the same ones.
#[derive(Clone, Debug, Default)]
pub struct AgentMetrics(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    counters: Mutex<Counters>,
    changes: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Counters {
    /// By agent.
    runs: BTreeMap<String, RunCounters>,
    models: BTreeMap<ModelLabels, ModelCounters>,
    tools: BTreeMap<ToolLabels, ToolCounters>,
}

/// The labels of requests to a model.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ModelLabels {
    pub(crate) agent: String,
    pub(crate) provider: String,
    pub(crate) model: String,
}

/// The labels of calls of a tool.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ToolLabels {
    pub(crate) agent: String,
    pub(crate) tool: String,
}

/// The consumption of an answer, as far as the provider reports it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Consumed {
    pub(crate) input_tokens: u64,
    pub(crate) output_tokens: u64,
    pub(crate) cost_micros: u64,
}

#[derive(Debug, Default)]
struct RunCounters {
    /// By outcome: `done`, `aborted`, or the code of the failure.
    outcomes: BTreeMap<String, u64>,
    durations: Histogram,
}

#[derive(Debug, Default)]
struct ModelCounters {
    /// By outcome: `answered`, or the code of the error.
    outcomes: BTreeMap<String, u64>,
    consumed: Consumed,
    durations: Histogram,
}

#[derive(Debug, Default)]
struct ToolCounters {
    /// By outcome: `succeeded`, or the code of the failure.
    outcomes: BTreeMap<String, u64>,
    durations: Histogram,
}

#[derive(Debug, Default)]
struct Histogram {
    /// How many durations are in each interval, below each bound; those above all are in `count` only.
    buckets: [u64; BOUNDS.len()],
    count: u64,
    sum: Duration,
}

/// Samples of one name, in the terms of Prometheus.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricFamily {
    /// The name, without the prefix of the program.
    pub name: &'static str,
    /// Its meaning, in one sentence.
    pub meaning: &'static str,
    /// `counter` or `histogram`.
    pub kind: &'static str,
    /// The samples.
    pub samples: Vec<MetricSample>,
}

/// One sample.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricSample {
    /// The suffix of the name: `_bucket`, `_sum` and `_count` of a histogram.
    pub suffix: &'static str,
    /// Names and values of the labels.
    pub labels: Vec<(&'static str, String)>,
    /// The value.
    pub value: f64,
}

impl AgentMetrics {
    /// Counts a run that has ended. `outcome` is `done`, `aborted` or the code of the failure.
    pub(crate) fn run(&self, agent: &str, outcome: &str, took: Duration) {
        let mut counters = self.lock();
        let of = bounded_entry(&mut counters.runs, agent.to_owned(), || OTHER.to_owned());
        count(&mut of.outcomes, outcome);
        of.durations.add(took);
        drop(counters);
        self.0.changes.send_replace(());
    }

    /// Counts what a program has consumed. It reports no requests.
    pub(crate) fn program(&self, labels: ModelLabels, consumed: Consumed) {
        let mut counters = self.lock();
        bounded_entry(&mut counters.models, labels, ModelLabels::other).consumed.add(consumed);
    }

    /// Counts a request to a model. `outcome` is `answered` or the code of the error.
    pub(crate) fn model(
        &self,
        labels: ModelLabels,
        outcome: &'static str,
        consumed: Consumed,
        took: Duration,
    ) {
        let mut counters = self.lock();
        let of = bounded_entry(&mut counters.models, labels, ModelLabels::other);
        count(&mut of.outcomes, outcome);
        of.consumed.add(consumed);
        of.durations.add(took);
    }

    /// Counts a call of a tool. `outcome` is `succeeded` or the code of the failure.
    pub(crate) fn tool(&self, labels: ToolLabels, outcome: &'static str, took: Duration) {
        let mut counters = self.lock();
        let of = bounded_entry(&mut counters.tools, labels, || ToolLabels {
            agent: OTHER.into(),
            tool: OTHER.into(),
        });
        count(&mut of.outcomes, outcome);
        of.durations.add(took);
    }

    /// Changes after each run that is counted.
    #[must_use]
    pub fn runs(&self) -> watch::Receiver<()> {
        self.0.changes.subscribe()
    }

    /// Returns the current values. Families without samples are omitted.
    #[must_use]
    pub fn families(&self) -> Vec<MetricFamily> {
        let counters = self.lock();
        let mut calls = Vec::new();
        let mut tokens = Vec::new();
        let mut cost = Vec::new();
        let mut seconds = Vec::new();
        for (labels, of) in &counters.models {
            let labels = labels.pairs();
            calls.extend(outcomes(&labels, &of.outcomes));
            let input = of.consumed.input_tokens;
            let output = of.consumed.output_tokens;
            tokens.extend([("input", input), ("output", output)].map(|(direction, count)| {
                sample("", with_label(&labels, "direction", direction), count as f64)
            }));
            cost.push(sample("", labels.clone(), of.consumed.cost_micros as f64 / 1e6));
            if of.durations.count > 0 {
                seconds.extend(of.durations.samples(&labels));
            }
        }
        let mut runs = Vec::new();
        let mut run_seconds = Vec::new();
        for (agent, of) in &counters.runs {
            let labels = vec![("agent", agent.clone())];
            runs.extend(outcomes(&labels, &of.outcomes));
            run_seconds.extend(of.durations.samples(&labels));
        }
        let mut tools = Vec::new();
        let mut tool_seconds = Vec::new();
        for (labels, of) in &counters.tools {
            let labels = labels.pairs();
            tools.extend(outcomes(&labels, &of.outcomes));
            tool_seconds.extend(of.durations.samples(&labels));
        }
        let family = |name, meaning, kind, samples| MetricFamily { name, meaning, kind, samples };
        let all = [
            family("agent_runs_total", "Runs of agents that have ended.", "counter", runs),
            family(
                "agent_run_seconds",
                "Durations of runs of agents, with the time that they waited.",
                "histogram",
                run_seconds,
            ),
            family("agent_model_calls_total", "Requests of agents to models.", "counter", calls),
            family(
                "agent_model_tokens_total",
                "Tokens of agents, as providers report them.",
                "counter",
                tokens,
            ),
            family(
                "agent_model_cost_dollars_total",
                "Cost of agents in dollars, as far as prices are configured.",
                "counter",
                cost,
            ),
            family(
                "agent_model_call_seconds",
                "Durations of requests of agents to models.",
                "histogram",
                seconds,
            ),
            family("agent_tool_calls_total", "Calls of tools by agents.", "counter", tools),
            family(
                "agent_tool_call_seconds",
                "Durations of calls of tools by agents.",
                "histogram",
                tool_seconds,
            ),
        ];
        all.into_iter().filter(|family| !family.samples.is_empty()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Counters> {
        self.0.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the counters of these labels, or those of all others if there are too many label sets.
fn bounded_entry<K: Ord, V: Default>(
    all: &mut BTreeMap<K, V>,
    labels: K,
    other: impl FnOnce() -> K,
) -> &mut V {
    let fits = all.len() < LABEL_SETS || all.contains_key(&labels);
    all.entry(if fits { labels } else { other() }).or_default()
}

fn sample(suffix: &'static str, labels: Vec<(&'static str, String)>, value: f64) -> MetricSample {
    MetricSample { suffix, labels, value }
}

fn with_label(
    labels: &[(&'static str, String)],
    name: &'static str,
    value: &str,
) -> Vec<(&'static str, String)> {
    labels.iter().cloned().chain([(name, value.to_owned())]).collect()
}

/// Maximum number of outcomes of one label set. Codes of failures come from programs in Rust, too.
const OUTCOMES: usize = 100;

fn count(outcomes: &mut BTreeMap<String, u64>, outcome: &str) {
    let fits = outcomes.len() < OUTCOMES || outcomes.contains_key(outcome);
    *outcomes.entry(if fits { outcome } else { OTHER }.to_owned()).or_default() += 1;
}

fn outcomes(
    labels: &[(&'static str, String)],
    outcomes: &BTreeMap<String, u64>,
) -> Vec<MetricSample> {
    outcomes
        .iter()
        .map(|(outcome, count)| sample("", with_label(labels, "outcome", outcome), *count as f64))
        .collect()
}

impl ModelLabels {
    fn other() -> ModelLabels {
        ModelLabels { agent: OTHER.into(), provider: OTHER.into(), model: OTHER.into() }
    }

    fn pairs(&self) -> Vec<(&'static str, String)> {
        let ModelLabels { agent, provider, model } = self.clone();
        vec![("agent", agent), ("provider", provider), ("model", model)]
    }
}

impl ToolLabels {
    fn pairs(&self) -> Vec<(&'static str, String)> {
        let ToolLabels { agent, tool } = self.clone();
        vec![("agent", agent), ("tool", tool)]
    }
}

impl Consumed {
    fn add(&mut self, other: Consumed) {
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.cost_micros = self.cost_micros.saturating_add(other.cost_micros);
    }
}

impl Histogram {
    fn add(&mut self, took: Duration) {
        if let Some(at) = BOUNDS.iter().position(|bound| took.as_secs_f64() <= *bound) {
            self.buckets[at] += 1;
        }
        self.count += 1;
        self.sum = self.sum.saturating_add(took);
    }

    /// Returns the samples: buckets are cumulative.
    fn samples(&self, labels: &[(&'static str, String)]) -> Vec<MetricSample> {
        let mut below = 0;
        let mut samples: Vec<MetricSample> = BOUNDS
            .iter()
            .zip(self.buckets)
            .map(|(bound, count)| {
                below += count;
                sample("_bucket", with_label(labels, "le", &bound.to_string()), below as f64)
            })
            .collect();
        samples.push(sample("_bucket", with_label(labels, "le", "+Inf"), self.count as f64));
        samples.push(sample("_sum", labels.to_vec(), self.sum.as_secs_f64()));
        samples.push(sample("_count", labels.to_vec(), self.count as f64));
        samples
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use expect_test::expect;

    use super::*;

    fn text(metrics: &AgentMetrics) -> String {
        let mut text = String::new();
        for family in metrics.families() {
            for MetricSample { suffix, labels, value } in family.samples {
                let labels: Vec<String> =
                    labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
                let name = family.name;
                let labels = labels.join(" ");
                writeln!(text, "{name}{suffix} {labels} {value}").expect("it is a string");
            }
        }
        text
    }

    #[test]
    fn buckets_are_cumulative_and_families_without_samples_are_left_out() {
        let metrics = AgentMetrics::default();
        let labels = ToolLabels { agent: "clerk".to_owned(), tool: "look".to_owned() };
        for millis in [50, 100, 700, 400_000] {
            metrics.tool(labels.clone(), "succeeded", Duration::from_millis(millis));
        }
        metrics.tool(labels, "timed_out", Duration::from_secs(1));
        expect![[r#"
            agent_tool_calls_total agent=clerk tool=look outcome=succeeded 4
            agent_tool_calls_total agent=clerk tool=look outcome=timed_out 1
            agent_tool_call_seconds_bucket agent=clerk tool=look le=0.1 2
            agent_tool_call_seconds_bucket agent=clerk tool=look le=0.25 2
            agent_tool_call_seconds_bucket agent=clerk tool=look le=0.5 2
            agent_tool_call_seconds_bucket agent=clerk tool=look le=1 4
            agent_tool_call_seconds_bucket agent=clerk tool=look le=2.5 4
            agent_tool_call_seconds_bucket agent=clerk tool=look le=5 4
            agent_tool_call_seconds_bucket agent=clerk tool=look le=10 4
            agent_tool_call_seconds_bucket agent=clerk tool=look le=30 4
            agent_tool_call_seconds_bucket agent=clerk tool=look le=60 4
            agent_tool_call_seconds_bucket agent=clerk tool=look le=300 4
            agent_tool_call_seconds_bucket agent=clerk tool=look le=+Inf 5
            agent_tool_call_seconds_sum agent=clerk tool=look 401.85
            agent_tool_call_seconds_count agent=clerk tool=look 5
        "#]]
        .assert_eq(&text(&metrics));
    }

    /// Agents that callers post cannot fill the memory.
    #[test]
    fn label_sets_are_bounded_and_no_call_is_lost() {
        let metrics = AgentMetrics::default();
        for number in 0..LABEL_SETS + 5 {
            let labels = ModelLabels {
                agent: format!("agent{number}"),
                provider: "p".to_owned(),
                model: "m".to_owned(),
            };
            let consumed = Consumed { input_tokens: 1, ..Consumed::default() };
            metrics.model(labels.clone(), "answered", consumed, Duration::ZERO);
            metrics.model(labels, "answered", consumed, Duration::ZERO);
        }
        let families = metrics.families();
        let calls = &families[0].samples;
        assert_eq!(calls.len(), LABEL_SETS + 1);
        assert_eq!(calls.iter().map(|sample| sample.value).sum::<f64>(), 2_010.0);
        let of_other = calls.iter().find(|sample| sample.labels[0].1 == OTHER);
        assert_eq!(of_other.map(|sample| sample.value), Some(10.0));
    }
}
