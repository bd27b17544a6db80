//! A claimed call: its lease is renewed while its tool runs, and its outcome is stored. This file decides what is recorded of an
//! outcome; the reducers `complete_tool_call` and `fail_tool_call` decide what becomes of the call (`reducers/src/tool_call/finish.rs`).

use std::borrow::Cow;

use abide_client::arguments::{AcknowledgeCancel, CancelToolCall, CompleteToolCall, FailToolCall};
use abide_client::rows::ToolCall;
use abide_client::{Abide, Call, Code, Error};
use abide_json_integers as integers;
use abide_tools::{Effect, Failure, ToolOutcome};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::run::heartbeat::HeldLeases;
use crate::run::lease::fencing_token;
use crate::run::settings::Settings;
use crate::run::step_batch::{RecordedStep, StepBatch};
use crate::tools::exchange::CallLog;

/// Maximum size of a result as JSON, in bytes: the limit of a reducer call (`CALL_BYTES` in
/// `schema/src/limits.rs`), minus room for the other arguments.
const RESULT_BYTES: usize = (8 << 20) - (64 << 10);

/// Maximum size of a stored error, in bytes.
const ERROR_BYTES: usize = 256 << 10;

/// What the model is told about a call that may have run.
pub(crate) const MAY_HAVE_TAKEN_EFFECT: &str =
    "It may have taken effect: find out before you repeat it.";

/// A call that this process has claimed.
#[derive(Clone, Copy)]
pub(crate) struct ClaimedCall<'a> {
    pub(crate) abide: &'a Abide,
    pub(crate) settings: &'a Settings,
    pub(crate) leases: &'a HeldLeases,
    pub(crate) call: &'a ToolCall,
    /// The exchange of the call with a server.
    pub(crate) exchange: Option<&'a CallLog>,
}

impl ClaimedCall<'_> {
    /// Renews the lease while the tool runs. If the lease is lost or the call is cancelled, the tool is asked to stop.
    ///
    /// # Errors
    /// The outcome of a tool that did not stop.
    pub(crate) async fn keep<T>(
        self,
        running: impl Future<Output = T>,
        cancel: &CancellationToken,
    ) -> Result<T, ToolOutcome> {
        let too_late = async {
            cancel.cancelled().await;
            tokio::time::sleep(self.settings.grace).await;
        };
        let _held = self.leases.hold_call(self.call, cancel);
        tokio::select! {
            ran = running => Ok(ran),
            () = too_late => {
                let text = format!("{} did not stop when it was asked to", self.call.tool_name);
                Err(ToolOutcome::failed(Failure::Lost, text))
            }
        }
    }

    /// Stores the outcome of a tool with this effect. A failed call runs again if `retries` says so, within the retry
    /// policy of the tool. `delivery`: the step that gives the result to the model, which is one batch with a success. Returns
    /// the step if it is recorded.
    pub(crate) async fn record(
        self,
        outcome: &ToolOutcome,
        effect: Effect,
        retries: bool,
        delivery: Option<StepBatch>,
    ) -> Result<Option<RecordedStep>, Error> {
        let call_id = self.call.call_id.as_str();
        let token = fencing_token(self.call);
        let failure = outcome.failure;
        let recorded = match failure {
            None if !outcome.is_error => self.complete(result_of(outcome), delivery).await,
            // It has no outcome yet.
            Some(Failure::Suspended) => return Ok(None),
            // The task of a call that this process no longer follows goes on: the lease expires, and another worker continues with it.
            Some(failure)
                if effect == Effect::AtMostOnce
                    && self.exchange.is_some_and(|exchange| exchange.goes_on(failure)) =>
            {
                return Ok(None);
            }
            // A read-only call had no effect. For any other call that was stopped midway, the effect is unknown.
            Some(Failure::Cancelled) if effect == Effect::ReadOnly => {
                let acknowledge = AcknowledgeCancel::new(call_id, token);
                // The run's deadline may have stopped the call, without a cancel request.
                let cancel = CancelToolCall::new(call_id);
                self.abide.batch([Call::from(cancel), Call::from(acknowledge)]).await.map(|_| None)
            }
            failure => {
                let text = failed_text(outcome, effect);
                let failed = FailToolCall::new(call_id, token, beginning(&text));
                // A call that must not run twice becomes unknown with this reason, for the person who settles it.
                let failed = match failure {
                    Some(failure) if failure.leaves_open() => failed.may_have_run(true),
                    _ => failed,
                };
                // Without one, a failure counts as exit code 1.
                let failed = match i64::from(outcome.exit_code) {
                    1 => failed,
                    code => failed.exit_code(code),
                };
                let failed = match failure {
                    Some(Failure::Unavailable) => failed.retryable(true),
                    _ if retries => failed.retryable(true),
                    _ => failed,
                };
                match self.closing(outcome.failure) {
                    Some(closing) => self.abide.batch([closing, failed.into()]).await.map(|_| None),
                    None => self.abide.call(failed).await.map(|_| None),
                }
            }
        };
        match recorded {
            // The row has the call's current state; a lost lease is recorded.
            Err(error) if error.code().is_some() => Ok(None),
            recorded => recorded,
        }
    }

    /// Records a result. If the result is too large or too deep, or has integers that would lose digits or a reserved name, the call
    /// fails with that reason. Otherwise the call would look like one whose worker had crashed, and it would run again.
    async fn complete(
        self,
        result: Value,
        delivery: Option<StepBatch>,
    ) -> Result<Option<RecordedStep>, Error> {
        let name = &self.call.tool_name;
        if let Err(found) = integers::check_depth(&result) {
            let message = format!("{name} ran, but its result cannot be stored: it {found}");
            return self.fail(message).await.map(|()| None);
        }
        if integers::has_reserved_name(&result) {
            let reserved = integers::RESERVED_NAME;
            let message = format!(
                "{name} ran, but its result cannot be stored: the name {reserved} is reserved"
            );
            return self.fail(message).await.map(|()| None);
        }
        let text = result.to_string();
        let bytes = text.len();
        // The size first: no lease is renewed here, and the other check reads all of it.
        if bytes <= RESULT_BYTES {
            if let Err(found) = integers::check(&text) {
                let message = format!("{name} ran, but its result cannot be stored: {found}");
                return self.fail(message).await.map(|()| None);
            }
            let token = fencing_token(self.call);
            let done = CompleteToolCall::new(&self.call.call_id, token, result);
            match self.complete_and_deliver(done, delivery).await {
                Err(error) if error.code() == Some(Code::LimitExceeded) => {}
                completed => return completed,
            }
        }
        let message = format!(
            "{name} ran, but its result of {bytes} bytes is too large to store: ask for less"
        );
        self.fail(message).await.map(|()| None)
    }

    /// Records a result, and delivers it in the same commit, unless the delivery is refused: the tool has run, even for a
    /// run that has ended meanwhile. Then the next step of the run delivers it.
    async fn complete_and_deliver(
        self,
        done: CompleteToolCall,
        delivery: Option<StepBatch>,
    ) -> Result<Option<RecordedStep>, Error> {
        if let Some(delivery) = delivery {
            let before = self.closing(None).into_iter().chain([Call::from(&done)]).collect();
            match (StepBatch { before, ..delivery }).send(self.abide).await {
                Err(error) if error.code().is_some() => {}
                delivered => return delivered.map(Some),
            }
        }
        match self.closing(None) {
            Some(closing) => self.abide.batch([closing, done.into()]).await.map(|_| None),
            None => self.abide.call(done).await.map(|_| None),
        }
    }

    async fn fail(self, error: String) -> Result<(), Error> {
        let failed = FailToolCall::new(&self.call.call_id, fencing_token(self.call), error);
        match self.closing(None) {
            Some(closing) => self.abide.batch([closing, failed.into()]).await.map(drop),
            None => self.abide.call(failed).await.map(drop),
        }
    }

    /// Returns the call that reports the end of the exchange with a server, in the same commit as the outcome.
    fn closing(self, failure: Option<Failure>) -> Option<Call> {
        self.exchange.and_then(|exchange| exchange.closing(failure))
    }
}

/// Returns the result of a call, as its row has it.
pub(crate) fn result_of(outcome: &ToolOutcome) -> Value {
    json!({"text": outcome.text, "content": outcome.content, "exit_code": outcome.exit_code})
}

/// Returns the error of a failed call. The model must not take a call that was stopped midway for one without an
/// effect.
fn failed_text(outcome: &ToolOutcome, effect: Effect) -> Cow<'_, str> {
    let text = outcome.text.as_str();
    let was_stopped = matches!(outcome.failure, Some(Failure::Cancelled | Failure::Lost));
    if !was_stopped || effect == Effect::ReadOnly || text.contains(MAY_HAVE_TAKEN_EFFECT) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{}. {MAY_HAVE_TAKEN_EFFECT}", beginning(text).trim_end_matches('.')))
}

/// Returns the first [`ERROR_BYTES`] of an error.
fn beginning(text: &str) -> &str {
    &text[..text.floor_char_boundary(ERROR_BYTES)]
}

#[cfg(test)]
mod tests;
