//! What a run does next. It follows from rows alone, so it is the same after a pause, an approval or a crash.

use std::collections::BTreeMap;

use abide_client::rows::{Session, SessionStatus, ToolCall, ToolCallStatus};

use crate::context::entry::{self, RequestedCall};
use crate::run::state::RunState;

/// What a run does next.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// Suspend the run: its session is suspended or handed off. The text is the reason of the interrupt.
    Suspend(&'static str),
    /// Ask the model: the last message has no answer yet.
    Ask,
    /// Do what the calls of the last answer need.
    Calls(CallStep),
    /// End the run: the model has answered.
    Finish(String),
    /// End the run: the model keeps calling tools beyond the limit. The text is that of its last answer.
    EndAtLimit(String),
}

impl Action {
    /// Returns what the step does, as metrics name it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Action::Suspend(_) => "suspend",
            Action::Ask => "ask",
            Action::Calls(CallStep::Request(_)) => "request_calls",
            Action::Calls(CallStep::Run(_)) => "run_calls",
            Action::Calls(CallStep::Await) => "await_calls",
            Action::Calls(CallStep::Interrupt(_)) => "interrupt",
            Action::Calls(CallStep::Deliver(_)) => "deliver",
            Action::Finish(_) | Action::EndAtLimit(_) => "finish",
        }
    }
}

/// What the calls of an answer need.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum CallStep {
    /// Request these calls, which are not recorded yet.
    Request(Vec<RequestedCall>),
    /// Run these calls.
    Run(Vec<ToolCall>),
    /// Wait with this driver: the calls are claimed, or scheduled for their next attempt.
    Await,
    /// Suspend the run until there is a decision on these calls, or on calls of the runs that they have started.
    Interrupt(Vec<ToolCall>),
    /// Every call has ended: give the results to the model.
    Deliver(Vec<(RequestedCall, ToolCall)>),
}

/// Maximum number of requests after the tool call limit: one with the notice, and one more if the model calls tools
/// again.
const TURNS_PAST_LIMIT: i64 = 2;

impl RunState {
    /// Returns the next action.
    pub(crate) fn decide(&self) -> Action {
        if let Some(reason) = self.session.as_ref().and_then(suspension) {
            return Action::Suspend(reason);
        }
        let Some((at, answer)) = self.last_answer() else { return Action::Ask };
        let after = &self.entries[at + 1..];
        let open: Vec<RequestedCall> = entry::open_calls(answer, after).cloned().collect();
        if !open.is_empty() {
            return Action::Calls(self.continue_calls(open));
        }
        let text = self.entries[at].content.as_deref().unwrap_or_default();
        if !answer.calls.is_empty() && answer.past_limit >= TURNS_PAST_LIMIT {
            return Action::EndAtLimit(text.to_owned());
        }
        // There is a newer message (from a supervisor or a timer), or the model waits for its results.
        let has_news = after.iter().any(|entry| entry.role != "assistant");
        if answer.calls.is_empty() && !has_news {
            Action::Finish(text.to_owned())
        } else {
            Action::Ask
        }
    }

    /// Returns what these calls of the last answer need, which have no result yet.
    fn continue_calls(&self, open: Vec<RequestedCall>) -> CallStep {
        let rows: BTreeMap<&str, &ToolCall> =
            self.calls.iter().map(|call| (call.call_id.as_str(), call)).collect();
        let mut requested = Vec::new();
        let mut missing = Vec::new();
        for call in open {
            match rows.get(call.call_id.as_str()) {
                Some(row) => requested.push((call, *row)),
                None => missing.push(call),
            }
        }
        if !missing.is_empty() {
            return CallStep::Request(missing);
        }
        use ToolCallStatus::{AwaitingApproval, Claimed, Pending, Unknown};
        let with_status = |statuses: &[ToolCallStatus]| -> Vec<ToolCall> {
            let rows = requested.iter().map(|(_, row)| *row);
            rows.filter(|row| statuses.contains(&row.status)).cloned().collect()
        };
        // While one of them waits for an approval, none of the others starts: the decision comes before any effect.
        let is_halted = !with_status(&[AwaitingApproval]).is_empty();
        let mut ready = with_status(&[Pending]);
        ready.retain(|call| call.retry_at.is_none() && !self.waits_for_run(call));
        if !ready.is_empty() && !is_halted {
            return CallStep::Run(ready);
        }
        let (delegating, mut running): (Vec<_>, Vec<_>) = with_status(&[Claimed, Pending])
            .into_iter()
            .partition(|call| call.status == Pending && self.waits_for_run(call));
        running.retain(|call| !is_halted || call.status == Claimed);
        if !running.is_empty() {
            return CallStep::Await;
        }
        let undecided = [with_status(&[AwaitingApproval, Unknown]), delegating].concat();
        if !undecided.is_empty() {
            return CallStep::Interrupt(undecided);
        }
        CallStep::Deliver(requested.into_iter().map(|(call, row)| (call, row.clone())).collect())
    }

    /// Returns `true` if the run that a call has started waits for a decision. Its session has the id of the call.
    fn waits_for_run(&self, call: &ToolCall) -> bool {
        self.waiting.iter().any(|run| run.session_id == call.call_id)
    }
}

/// Returns why no run of a session goes on now: the reason of the interrupt. `None` if a run can go on.
pub(crate) fn suspension(session: &Session) -> Option<&'static str> {
    match session.status {
        SessionStatus::Suspended => Some("resume"),
        SessionStatus::HandedOff => Some("handoff"),
        _ => None,
    }
}
