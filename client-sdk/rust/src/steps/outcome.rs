//! One attempt at a claimed call: run the function, and record the outcome.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use abide_reducers::arguments::{
    AcknowledgeCancel, CompleteToolCall, FailToolCall, HeartbeatToolCall,
};
use abide_reducers::{ToolCall, ToolCallStatus};
use abide_schema::reducer::Arguments;
use serde::de::DeserializeOwned;
use serde_json::Value as JsonValue;
use tokio::time::sleep;
use uuid::Uuid;

use super::lease::{self, WorkEnd, is_passing};
use crate::{Abide, Error};

/// Why a tool failed. Any error converts to it, so that a tool can use `?`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolError {
    message: String,
    retryable: bool,
}

impl ToolError {
    /// Returns the error of a call that has failed.
    #[must_use]
    pub fn new(message: impl Into<String>) -> ToolError {
        ToolError { message: message.into(), retryable: false }
    }

    /// Returns the error of an attempt that has failed without an effect: the call can be tried again, if the retry
    /// policy of the tool permits it.
    #[must_use]
    pub fn retryable(message: impl Into<String>) -> ToolError {
        ToolError { message: message.into(), retryable: true }
    }
}

impl fmt::Display for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl<E: std::error::Error> From<E> for ToolError {
    fn from(error: E) -> ToolError {
        ToolError::new(error.to_string())
    }
}

/// The result of an attempt.
pub(super) enum Attempt {
    /// It succeeded, and this result is recorded.
    Succeeded(JsonValue),
    /// It can be tried again, if the call has attempts left.
    Again,
}

/// Pause before an outcome is reported again. A limit that asks for a longer pause refuses at once.
const PAUSE: Duration = Duration::from_secs(1);

/// How long to try to record an outcome.
#[derive(Clone, Debug)]
pub(super) enum Recording {
    /// Until the deadline of the client, after which the caller gets the error.
    UntilDeadline,
    /// Until the server answers, however long it is away: nobody else can report what the tool has done. When this is
    /// `true`, until the next deadline.
    UntilAnswered(Arc<AtomicBool>),
}

impl Recording {
    fn goes_on(&self) -> bool {
        match self {
            Recording::UntilDeadline => false,
            Recording::UntilAnswered(is_stopping) => !is_stopping.load(Ordering::Acquire),
        }
    }

    /// Records an outcome. All attempts are the same request, so it has at most one effect.
    async fn record<A>(&self, abide: &Abide, outcome: A) -> Result<(), Error>
    where
        A: Arguments,
        A::Result: DeserializeOwned + 'static,
    {
        let request_id = Uuid::now_v7().to_string();
        loop {
            match abide.call(&outcome).request_id(&request_id).await {
                Err(error) if is_passing(&error) && self.goes_on() => {
                    tracing::warn!(
                        name: "outcome_not_recorded_yet",
                        reducer = A::REDUCER,
                        error = format_args!("{error:#}"),
                        "the outcome is not recorded yet; trying again"
                    );
                    // tidy: the pause before another attempt
                    sleep(PAUSE).await;
                }
                recorded => return recorded.map(drop),
            }
        }
    }
}

/// Runs the function once, with heartbeats, and records its outcome.
///
/// # Errors
/// [`Error::ToolFailed`] if the function failed or the call was cancelled; [`Error::Refused`] if another worker has the
/// call now: then the result is kept for a settlement.
pub(super) async fn run_attempt(
    abide: &Abide,
    call: &ToolCall,
    lease: Duration,
    recording: &Recording,
    work: impl Future<Output = Result<JsonValue, ToolError>>,
) -> Result<Attempt, Error> {
    let id = &call.call_id;
    let token = call.fencing_token.unwrap_or_default();
    let heartbeat = || async {
        let extend = HeartbeatToolCall::new(id, token).lease_ms(lease::millis(lease));
        let call = abide.call(extend).deadline(lease).await?.into_inner();
        Ok(call.cancel_requested_at.is_none())
    };
    let tool_failed = |status, error: String| Error::ToolFailed {
        call_id: id.clone(),
        status,
        error: Some(error),
    };
    match lease::run(work, lease, heartbeat).await? {
        WorkEnd::Done(Ok(result)) => {
            recording.record(abide, CompleteToolCall::new(id, token, result.clone())).await?;
            Ok(Attempt::Succeeded(result))
        }
        WorkEnd::Done(Err(ToolError { message, retryable: true })) => {
            let failed = FailToolCall::new(id, token, message).retryable(true);
            recording.record(abide, failed).await?;
            Ok(Attempt::Again)
        }
        WorkEnd::Done(Err(ToolError { message, .. })) => {
            recording.record(abide, FailToolCall::new(id, token, &message)).await?;
            Err(tool_failed(ToolCallStatus::Failed, message))
        }
        WorkEnd::Cancelled => {
            recording.record(abide, AcknowledgeCancel::new(id, token)).await?;
            let why = "the call was cancelled while it ran".to_owned();
            Err(tool_failed(ToolCallStatus::Cancelled, why))
        }
    }
}
