//! The middleware `observability`: counts the requests and the calls of a run in [`AgentMetrics`].

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use abide_models::{ModelError, ModelErrorKind, ModelEvent, ModelResponse, ModelStream};
use abide_tools::ToolOutcome;
use futures_util::Stream;

use crate::definition::middleware::{Middleware, Observability, ObservedAt};
use crate::run::driver::Driver;
use crate::trace::metrics::{AgentMetrics, Consumed, ModelLabels, ToolLabels};

/// Whether the middleware of a run counts this.
fn counts(driver: &Driver, what: ObservedAt) -> bool {
    driver.middleware().any(|entry| match entry {
        Middleware::Observability(Observability { at }) => at.is_empty() || at.contains(&what),
        _ => false,
    })
}

/// Counts the attempts of a request whose first candidate is this provider and model.
pub(crate) fn of_request(
    driver: &Driver,
    stream: ModelStream,
    provider: &str,
    model: &str,
) -> ModelStream {
    if !counts(driver, ObservedAt::Models) {
        return stream;
    }
    let labels = ModelLabels {
        agent: driver.definition.name.clone(),
        provider: provider.to_owned(),
        model: model.to_owned(),
    };
    let (metrics, since) = (driver.shared.metrics.clone(), Some(Instant::now()));
    Box::pin(ObservedStream { stream, metrics, labels, since })
}

/// The events of a request, while its attempts are counted.
struct ObservedStream {
    stream: ModelStream,
    metrics: AgentMetrics,
    /// Those of the current attempt.
    labels: ModelLabels,
    /// When the current attempt began; `None` after the last one.
    since: Option<Instant>,
}

impl ObservedStream {
    fn ended(&mut self, outcome: &'static str, consumed: Consumed) {
        let Some(since) = self.since.take() else { return };
        self.metrics.model(self.labels.clone(), outcome, consumed, since.elapsed());
    }
}

impl Stream for ObservedStream {
    type Item = Result<ModelEvent, ModelError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let event = std::task::ready!(self.stream.as_mut().poll_next(context));
        match &event {
            Some(Ok(ModelEvent::Answer(answer))) => self.ended("answered", consumed(answer)),
            Some(Ok(ModelEvent::Restarted(restart))) => {
                self.ended(restart.error.code(), Consumed::default());
                self.labels.provider.clone_from(&restart.provider);
                self.labels.model.clone_from(&restart.model);
                // The wait before the attempt is not part of it.
                self.since = Some(Instant::now() + restart.after);
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => self.ended(error.code(), Consumed::default()),
            None => self.ended(ModelErrorKind::InvalidResponse.code(), Consumed::default()),
        }
        Poll::Ready(event)
    }
}

/// A request that is dropped was cancelled.
impl Drop for ObservedStream {
    fn drop(&mut self) {
        self.ended(ModelErrorKind::Cancelled.code(), Consumed::default());
    }
}

fn consumed(answer: &ModelResponse) -> Consumed {
    let cost = answer.cost_micros.and_then(|cost| u64::try_from(cost).ok());
    Consumed {
        input_tokens: answer.usage.input_tokens.unwrap_or(0),
        output_tokens: answer.usage.output_tokens.unwrap_or(0),
        cost_micros: cost.unwrap_or(0),
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

    /// Counts the call.
    pub(crate) fn ended(self, tool: &str, outcome: &ToolOutcome) {
        if !counts(self.driver, ObservedAt::Tools) {
            return;
        }
        let labels =
            ToolLabels { agent: self.driver.definition.name.clone(), tool: tool.to_owned() };
        let outcome = match outcome.failure {
            Some(failure) => failure.code(),
            None if outcome.is_error => "tool",
            None => "succeeded",
        };
        self.driver.shared.metrics.tool(labels, outcome, self.since.elapsed());
    }
}
