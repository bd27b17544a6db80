//! The middleware `observability`: counts a run, its requests and its calls in [`AgentMetrics`]. Requests of agents without it are
//! counted by provider alone.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use abide_client::rows::RunStatus;
use abide_client::{Error, Micros};
use abide_definitions::middleware::{Middleware, Observability, ObservedAt};
use abide_models::{ModelError, ModelErrorKind, ModelEvent, ModelResponse, ModelStream};
use abide_tools::{Failure, ToolOutcome};
use futures_util::Stream;

use crate::program::calls::ProgramCall;
use crate::run::driver::Driver;
use crate::trace::metrics::{AgentMetrics, Consumed, ModelLabels, ToolLabels};

/// Returns `true` if the middleware of a run counts this.
fn counts(driver: &Driver, what: ObservedAt) -> bool {
    driver.middleware().any(|entry| match entry {
        Middleware::Observability(Observability { at }) => at.is_empty() || at.contains(&what),
        _ => false,
    })
}

/// Counts the attempts of a request whose first candidate is this provider and model.
pub(crate) fn count_attempts(
    driver: &Driver,
    stream: ModelStream,
    provider: &str,
    model: &str,
) -> ModelStream {
    let is_observed = counts(driver, ObservedAt::Models);
    let labels = ModelLabels {
        agent: driver.agent.definition.name.clone(),
        provider: provider.to_owned(),
        model: model.to_owned(),
    };
    let metrics = driver.shared.metrics.clone();
    let since = Some(Instant::now());
    Box::pin(ObservedStream { stream, metrics, labels, is_observed, since })
}

/// The events of a request, while its attempts are counted.
struct ObservedStream {
    stream: ModelStream,
    metrics: AgentMetrics,
    /// The labels of the current attempt.
    labels: ModelLabels,
    /// Whether the agent has the middleware.
    is_observed: bool,
    /// When the current attempt began; `None` after the last one.
    since: Option<Instant>,
}

impl ObservedStream {
    fn count_attempt(&mut self, outcome: &'static str, consumed: Consumed) {
        let Some(since) = self.since.take() else { return };
        let took = since.elapsed();
        self.metrics.request(&self.labels.provider, outcome, took);
        if self.is_observed {
            self.metrics.model(self.labels.clone(), outcome, consumed, took);
        }
    }
}

impl Stream for ObservedStream {
    type Item = Result<ModelEvent, ModelError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let event = std::task::ready!(self.stream.as_mut().poll_next(context));
        match &event {
            Some(Ok(ModelEvent::Answer(answer))) => {
                self.count_attempt("answered", consumption_of(answer))
            }
            Some(Ok(ModelEvent::Restarted(restart))) => {
                self.count_attempt(restart.error.code(), Consumed::default());
                self.labels.provider.clone_from(&restart.provider);
                self.labels.model.clone_from(&restart.model);
                // The wait before the attempt is not part of it.
                self.since = Some(Instant::now() + restart.after);
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => self.count_attempt(error.code(), Consumed::default()),
            None => self.count_attempt(ModelErrorKind::InvalidResponse.code(), Consumed::default()),
        }
        Poll::Ready(event)
    }
}

/// A request that is dropped was cancelled.
impl Drop for ObservedStream {
    fn drop(&mut self) {
        self.count_attempt(ModelErrorKind::Cancelled.code(), Consumed::default());
    }
}

fn consumption_of(answer: &ModelResponse) -> Consumed {
    let cost = answer.cost_micros.and_then(|cost| u64::try_from(cost).ok());
    Consumed {
        input_tokens: answer.usage.input_tokens.unwrap_or(0),
        output_tokens: answer.usage.output_tokens.unwrap_or(0),
        cost_micros: cost.unwrap_or(0),
    }
}

/// The row of a run that has ended.
type EndedRun = (RunStatus, Option<String>, i64, i64, Option<i64>, Option<Micros>);

/// Counts a run that has ended, and what its program has consumed. The requests of other runs are counted when they are made.
pub(crate) async fn run_ended(driver: &Driver) {
    let of_runs = counts(driver, ObservedAt::Runs);
    let of_models = counts(driver, ObservedAt::Models);
    let is_external = driver.own_definition.external_kind().is_some();
    if !(of_runs || of_models && is_external) {
        return;
    }
    let sql = "SELECT status, error_code, input_tokens, output_tokens, cost_micros, ended_at \
               FROM runs WHERE id = :id AND ended_at IS NOT NULL";
    let found: Result<Vec<EndedRun>, Error> =
        driver.abide.sql(sql).param("id", &driver.state.run.id).fetch().await;
    let Some((status, code, input, output, cost, ended_at)) =
        found.unwrap_or_default().into_iter().next()
    else {
        return;
    };
    let metrics = &driver.shared.metrics;
    let agent = driver.own_definition.name.clone();
    if let Some(provider) = driver.own_definition.external_kind().filter(|_| of_models) {
        let count = |tokens: i64| u64::try_from(tokens).unwrap_or(0);
        let consumed = Consumed {
            input_tokens: count(input),
            output_tokens: count(output),
            cost_micros: count(cost.unwrap_or(0)),
        };
        // A remote agent does not report what it consumes.
        if (input, output, cost.unwrap_or(0)) != (0, 0, 0) {
            let model = agent.clone();
            let provider = provider.to_owned();
            metrics.program(ModelLabels { agent: agent.clone(), provider, model }, consumed);
        }
    }
    if of_runs {
        let micros =
            ended_at.map_or(0, |at| at.0 - driver.state.run.created_at.0).max(0).unsigned_abs();
        let outcome = match status {
            RunStatus::Failed => code.as_deref().unwrap_or("failed"),
            status => status.as_str(),
        };
        metrics.run(&agent, outcome, Duration::from_micros(micros));
    }
}

/// Counts calls that a program has made of its own tools.
pub(crate) fn program_tools(driver: &Driver, calls: Vec<ProgramCall>) {
    if calls.is_empty() || !counts(driver, ObservedAt::Tools) {
        return;
    }
    for ProgramCall { tool, outcome, took } in calls {
        let labels = ToolLabels { agent: driver.own_definition.name.clone(), tool };
        driver.shared.metrics.tool(labels, outcome, took);
    }
}

/// A call of a tool that runs.
pub(crate) struct ToolTimer<'a> {
    driver: &'a Driver,
    since: Instant,
}

impl ToolTimer<'_> {
    pub(crate) fn start(driver: &Driver) -> ToolTimer<'_> {
        ToolTimer { driver, since: Instant::now() }
    }

    /// Logs a call whose tool was stopped, or ended without a result.
    fn log_stopped(&self, tool: &str, outcome: &ToolOutcome) {
        let reason = match outcome.failure {
            Some(
                failure @ (Failure::TimedOut
                | Failure::Lost
                | Failure::Panicked
                | Failure::TooLarge),
            ) => failure.code(),
            // A command of a sandbox that was stopped is a result for the model.
            None if outcome.content["stopped"] == true => "stopped",
            _ => return,
        };
        let run = &self.driver.state.run.id;
        let duration_ms = self.since.elapsed().as_millis();
        tracing::warn!(name: "tool_stopped", run, tool, reason, duration_ms, "a tool was stopped or lost");
    }

    /// Counts the call.
    pub(crate) fn count_call(self, tool: &str, outcome: &ToolOutcome) {
        self.log_stopped(tool, outcome);
        if !counts(self.driver, ObservedAt::Tools) {
            return;
        }
        let labels =
            ToolLabels { agent: self.driver.agent.definition.name.clone(), tool: tool.to_owned() };
        let outcome = match outcome.failure {
            Some(failure) => failure.code(),
            None if outcome.is_error => "tool",
            None => "succeeded",
        };
        self.driver.shared.metrics.tool(labels, outcome, self.since.elapsed());
    }
}
