//! Numbers of agents: durations of steps and of requests to models for all, and for agents with the middleware `observability`
//! their runs, requests and calls of tools. They are those of this process since its start, as Prometheus expects it; the rows have
//! the whole history.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use abide_client::metrics::{Metric, MetricFamily, MetricLabels, MetricSample, histogram_samples};
use tokio::sync::watch;

/// Maximum number of label sets of each kind. Names of agents, models and tools come from definitions, which callers can
/// post. What goes beyond is counted under the names `other`, so that no counter is lost.
const LABEL_SETS: usize = 1_000;

/// The name of everything beyond [`LABEL_SETS`].
const OTHER: &str = "other";

/// The upper bounds of durations, in seconds.
const BOUNDS: [f64; 10] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

const STEP_SECONDS: Metric =
    Metric::histogram("agent_step_seconds", "Durations of the steps of runs, by what a step does.");
const MODEL_CALL_SECONDS: Metric = Metric::histogram(
    "model_call_seconds",
    "Durations of requests to models, by provider and outcome.",
);
const RUNS_TOTAL: Metric = Metric::counter("agent_runs_total", "Runs of agents that have ended.");
const RUN_SECONDS: Metric = Metric::histogram(
    "agent_run_seconds",
    "Durations of runs of agents, with the time that they waited.",
);
const AGENT_MODEL_CALLS_TOTAL: Metric =
    Metric::counter("agent_model_calls_total", "Requests of agents to models.");
const AGENT_MODEL_TOKENS_TOTAL: Metric =
    Metric::counter("agent_model_tokens_total", "Tokens of agents, as providers report them.");
const AGENT_MODEL_COST_TOTAL: Metric = Metric::counter(
    "agent_model_cost_dollars_total",
    "Cost of agents in dollars, as far as prices are configured.",
);
const AGENT_MODEL_CALL_SECONDS: Metric =
    Metric::histogram("agent_model_call_seconds", "Durations of requests of agents to models.");
const TOOL_CALLS_TOTAL: Metric =
    Metric::counter("agent_tool_calls_total", "Calls of tools by agents.");
const TOOL_CALL_SECONDS: Metric =
    Metric::histogram("agent_tool_call_seconds", "Durations of calls of tools by agents.");

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
    /// By what the step does.
    steps: BTreeMap<&'static str, Histogram>,
    /// By provider and outcome.
    requests: BTreeMap<(String, &'static str), Histogram>,
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
    /// How many durations are in each interval below a bound, and then those above all bounds.
    buckets: [u64; BOUNDS.len() + 1],
    sum: Duration,
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

    /// Counts a step of a run.
    pub(crate) fn step(&self, step: &'static str, took: Duration) {
        self.lock().steps.entry(step).or_default().add(took);
    }

    /// Counts a request to a model for all agents. `outcome` is `answered` or the code of the error.
    pub(crate) fn request(&self, provider: &str, outcome: &'static str, took: Duration) {
        let labels = (provider.to_owned(), outcome);
        let mut counters = self.lock();
        bounded_entry(&mut counters.requests, labels, || (OTHER.to_owned(), outcome)).add(took);
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

    /// Returns the current values, also of metrics without samples.
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
                MetricSample::new(with_label(&labels, "direction", direction), count as f64)
            }));
            let dollars = of.consumed.cost_micros as f64 / 1e6;
            cost.push(MetricSample::new(labels.clone(), dollars));
            if of.durations.has_any() {
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
        vec![
            STEP_SECONDS.with(counters.step_samples()),
            MODEL_CALL_SECONDS.with(counters.request_samples()),
            RUNS_TOTAL.with(runs),
            RUN_SECONDS.with(run_seconds),
            AGENT_MODEL_CALLS_TOTAL.with(calls),
            AGENT_MODEL_TOKENS_TOTAL.with(tokens),
            AGENT_MODEL_COST_TOTAL.with(cost),
            AGENT_MODEL_CALL_SECONDS.with(seconds),
            TOOL_CALLS_TOTAL.with(tools),
            TOOL_CALL_SECONDS.with(tool_seconds),
        ]
    }

    fn lock(&self) -> MutexGuard<'_, Counters> {
        self.0.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counters {
    fn step_samples(&self) -> Vec<MetricSample> {
        let steps = self.steps.iter();
        steps.flat_map(|(step, of)| of.samples(&[("step", (*step).to_owned())])).collect()
    }

    fn request_samples(&self) -> Vec<MetricSample> {
        let requests = self.requests.iter();
        requests
            .flat_map(|((provider, outcome), of)| {
                let labels = [("provider", provider.clone()), ("outcome", (*outcome).to_owned())];
                of.samples(&labels)
            })
            .collect()
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

fn with_label(labels: &[(&'static str, String)], name: &'static str, value: &str) -> MetricLabels {
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
        .map(|(outcome, count)| {
            MetricSample::new(with_label(labels, "outcome", outcome), *count as f64)
        })
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
        let bucket = BOUNDS.iter().position(|bound| took.as_secs_f64() <= *bound);
        self.buckets[bucket.unwrap_or(BOUNDS.len())] += 1;
        self.sum = self.sum.saturating_add(took);
    }

    fn has_any(&self) -> bool {
        self.buckets.iter().any(|count| *count > 0)
    }

    fn samples(&self, labels: &[(&'static str, String)]) -> Vec<MetricSample> {
        histogram_samples(labels, &BOUNDS, &self.buckets, self.sum.as_secs_f64())
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
                let name = family.metric.name;
                let labels = labels.join(" ");
                writeln!(text, "{name}{suffix} {labels} {value}").expect("it is a string");
            }
        }
        text
    }

    #[test]
    fn buckets_are_cumulative() {
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
        let calls = families.iter().find(|it| it.metric == AGENT_MODEL_CALLS_TOTAL);
        let calls = &calls.expect("it is a metric").samples;
        assert_eq!(calls.len(), LABEL_SETS + 1);
        assert_eq!(calls.iter().map(|sample| sample.value).sum::<f64>(), 2_010.0);
        let of_other = calls.iter().find(|sample| sample.labels[0].1 == OTHER);
        assert_eq!(of_other.map(|sample| sample.value), Some(10.0));
    }
}
