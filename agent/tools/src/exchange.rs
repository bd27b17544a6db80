//! A call that needs more than one request: its server asks for input, or makes a task of it. This is what was recorded of the
//! exchange so far, and the interface that records more. The tool can so be continued by another worker.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use abide_client::arguments::{NewExchange, NewInput};
use abide_client::rows::ExchangeKind;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use crate::outcome::{Failure, ToolOutcome};

/// The only field of the form that asks a person to log in to the server of a tool.
pub const LOGIN_FIELD: &str = "logged_in";

/// Records the exchange of one claimed call.
pub trait ExchangeLog: Send + Sync {
    /// Records steps.
    fn record(&self, steps: Vec<NewExchange>) -> BoxFuture<'_, Result<(), ExchangeError>>;

    /// Records steps and puts the call back. It waits for the answers to `inputs`; without inputs, for a time. The tool
    /// returns [`Failure::Suspended`] then.
    fn suspend(
        &self,
        steps: Vec<NewExchange>,
        inputs: Vec<NewInput>,
        retry: Option<Duration>,
    ) -> BoxFuture<'_, Result<(), ExchangeError>>;

    /// Cancels the undecided questions of the call: its server no longer waits for them.
    fn withdraw(&self) -> BoxFuture<'_, ()>;

    /// Returns whether the cancellation of the call was requested. It is false if only the lease was lost.
    fn wants_cancel(&self) -> BoxFuture<'_, bool>;

    /// Completes when the call has ended without this worker.
    fn until_ended(&self) -> BoxFuture<'_, ()>;
}

/// Why a step is not recorded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeError {
    /// It exceeds a limit, or the question is not supported.
    #[error("{0}")]
    Refused(String),
    /// The call is no longer held, or the connection is lost.
    #[error("{0}")]
    Lost(String),
}

impl ExchangeError {
    /// Returns the outcome of the call.
    pub(crate) fn outcome(self) -> ToolOutcome {
        match self {
            ExchangeError::Refused(why) => ToolOutcome::failed(Failure::Tool, why),
            ExchangeError::Lost(why) => ToolOutcome::failed(Failure::Lost, why),
        }
    }
}

/// A recorded step.
#[derive(Clone, Debug, PartialEq)]
pub struct ExchangeStep {
    /// Its kind.
    pub kind: ExchangeKind,
    /// Its data.
    pub data: Value,
    /// Whether it is a task that has not ended.
    pub is_open: bool,
    /// The time since it was recorded.
    pub age: Duration,
}

/// The answer to a question.
#[derive(Clone, Debug, PartialEq)]
pub enum InputAnswer {
    /// Accepted, with the content of the form if there is one.
    Accepted(Option<Value>),
    /// A person has declined.
    Declined,
    /// The question was cancelled, or it has expired.
    Cancelled,
}

impl InputAnswer {
    /// As the result of an elicitation.
    pub(crate) fn to_json(&self) -> Value {
        match self {
            InputAnswer::Accepted(Some(content)) => json!({"action": "accept", "content": content}),
            InputAnswer::Accepted(None) => json!({"action": "accept"}),
            InputAnswer::Declined => json!({"action": "decline"}),
            InputAnswer::Cancelled => json!({"action": "cancel"}),
        }
    }
}

/// The exchange of a call so far.
#[derive(Clone, Default)]
pub struct Exchange {
    /// The recorded steps, in order.
    pub steps: Vec<ExchangeStep>,
    /// The answers to the questions of the last step, in their order.
    pub answers: Vec<InputAnswer>,
    /// Records the next steps. Without it, the call cannot be suspended: questions of its server are cancelled.
    pub log: Option<Arc<dyn ExchangeLog>>,
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange")
            .field("steps", &self.steps)
            .field("answers", &self.answers)
            .finish_non_exhaustive()
    }
}
