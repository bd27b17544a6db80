//! Calls of a run that repeats a recording: a call that was cancelled or rejected while it ran ends in the same way again. The
//! outcomes of all other calls come from the tools that [`crate::recorded_run::repeat`] puts in place of the real ones, and from
//! the tools of the runtime that read [`RuntimeContext::recorded_outcomes`](crate::run::context::RuntimeContext).

use abide_client::arguments::{AcknowledgeCancel, CancelToolCall, RequestSupervisorHandoff};
use abide_client::rows::{ToolCall, ToolCallStatus};
use abide_client::{Call, Code};
use abide_tools::{Failure, ToolOutcome};

use crate::run::driver::Driver;
use crate::run::lease::fencing_token;
use crate::run::step::{Step, StepError};

/// Returns `true` if a call was cancelled in the recording.
pub(crate) fn was_cancelled(driver: &Driver, call: &ToolCall) -> bool {
    has_failed_with(driver, call, Failure::Cancelled)
}

/// Returns `true` if a supervisor has rejected a call in the recording.
pub(crate) fn was_rejected(driver: &Driver, call: &ToolCall) -> bool {
    has_failed_with(driver, call, Failure::Denied)
}

fn has_failed_with(driver: &Driver, call: &ToolCall, failure: Failure) -> bool {
    let recorded = driver.shared.recorded_outcomes.get(&call.call_id);
    recorded.is_some_and(|outcome| outcome.failure == Some(failure))
}

/// Cancels a call that was cancelled in the recording.
pub(crate) async fn cancel(driver: &Driver, call: &ToolCall) -> Step {
    let mut calls = vec![Call::from(CancelToolCall::new(&call.call_id))];
    if call.status == ToolCallStatus::Claimed {
        calls.push(AcknowledgeCancel::new(&call.call_id, fencing_token(call)).into());
    }
    driver.abide.batch(calls).await.map(drop).map_err(StepError::Refused)
}

/// Hands the session off for a call that a supervisor has rejected in the recording; the repetition rejects it. Returns the outcome
/// of a call that has to try again.
pub(crate) async fn hand_off(driver: &Driver, claimed: &ToolCall) -> Step<Option<ToolOutcome>> {
    let request = RequestSupervisorHandoff {
        call_id: Some(claimed.call_id.clone()),
        call_fencing_token: Some(fencing_token(claimed)),
        ..RequestSupervisorHandoff::new(&claimed.session_id, "recorded", "recorded")
    };
    match driver.record(&[], None, vec![request.into()]).await {
        // Another handoff of the session is open. The call asks when it has ended.
        Err(StepError::Refused(error)) if error.code() == Some(Code::Conflict) => {
            Ok(Some(ToolOutcome::failed(Failure::Unavailable, error.to_string())))
        }
        recorded => recorded.map(|()| None),
    }
}
