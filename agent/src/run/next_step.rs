//! The next step of a run. It is computed from rows alone, so it is the same after a pause, an approval or a crash.

use std::collections::{BTreeMap, BTreeSet};

use abide_client::{Run, ToolCall, ToolCallStatus};

use crate::context::entry::{self, AssistantEntry, RequestedCall, SessionEntry};

/// The next step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum NextStep {
    /// Ask the model.
    Ask,
    /// Request these calls of the last answer, which are not recorded yet.
    Request(Vec<RequestedCall>),
    /// Run these calls.
    Run(Vec<ToolCall>),
    /// Wait: the calls are claimed, or scheduled for their next attempt.
    Await,
    /// Wait for a decision on these calls, or on calls of the runs that they have started.
    Interrupt(Vec<ToolCall>),
    /// Every call has ended: give the results to the model.
    Deliver(Vec<(RequestedCall, ToolCall)>),
    /// The model has answered.
    Finish(String),
    /// The model keeps calling tools beyond the limit. End the run.
    Stop(String),
}

/// The run's last answer, if only its own tool results follow it.
pub(crate) fn last_answer<'a>(
    run: &Run,
    entries: &'a [SessionEntry],
) -> Option<(usize, &'a AssistantEntry)> {
    let at = entries.iter().rposition(|entry| entry::is_answer(entry))?;
    let answer = entries[at].assistant()?;
    // The data alone could name a run that begins later.
    let is_own = answer.run_id == run.id && entries[at].run_id.as_ref() == Some(&run.id);
    is_own.then_some((at, answer))
}

/// The calls of an answer that have no result among the entries after it.
pub(crate) fn open<'a>(
    answer: &'a AssistantEntry,
    after: &'a [SessionEntry],
) -> impl Iterator<Item = &'a RequestedCall> {
    let results = after.iter().filter(|entry| entry::is_result(entry));
    let answered: BTreeSet<&str> =
        results.filter_map(|entry| Some(entry.tool()?.call_id.as_str())).collect();
    answer.calls.iter().filter(move |call| !answered.contains(call.call_id.as_str()))
}

/// Maximum number of requests after the tool call limit: one with the notice, and one more if the model calls tools
/// again.
const TURNS_PAST_LIMIT: i64 = 2;

/// The next step of a run, from the session's messages, the calls of the run's last answer, and those runs started by
/// these calls that wait for a decision.
pub(crate) fn next(
    run: &Run,
    entries: &[SessionEntry],
    calls: &[ToolCall],
    waiting: &[Run],
) -> NextStep {
    let Some((at, answer)) = last_answer(run, entries) else { return NextStep::Ask };
    let after = &entries[at + 1..];
    let open: Vec<RequestedCall> = open(answer, after).cloned().collect();
    if open.is_empty() {
        let text = || entries[at].content.clone().unwrap_or_default();
        if !answer.calls.is_empty() && answer.past_limit >= TURNS_PAST_LIMIT {
            return NextStep::Stop(text());
        }
        // There is a newer message (from a supervisor or a timer), or the model waits for its results.
        let spoken = after.iter().any(|entry| entry.role != "assistant");
        return match answer.calls.is_empty() && !spoken {
            true => NextStep::Finish(text()),
            false => NextStep::Ask,
        };
    }
    let rows: BTreeMap<&str, &ToolCall> =
        calls.iter().map(|call| (call.call_id.as_str(), call)).collect();
    let missing: Vec<RequestedCall> =
        open.iter().filter(|call| !rows.contains_key(call.call_id.as_str())).cloned().collect();
    if !missing.is_empty() {
        return NextStep::Request(missing);
    }
    of_calls(open, &rows, waiting)
}

fn of_calls(
    open: Vec<RequestedCall>,
    rows: &BTreeMap<&str, &ToolCall>,
    waiting: &[Run],
) -> NextStep {
    // The session of a delegated run has the id of its call.
    let waits = |call: &ToolCall| waiting.iter().any(|run| run.session_id == call.call_id);
    let of = |statuses: &[ToolCallStatus]| -> Vec<ToolCall> {
        let found = open.iter().filter_map(|call| rows.get(call.call_id.as_str()));
        found.filter(|row| statuses.contains(&row.status)).map(|row| (*row).clone()).collect()
    };
    use ToolCallStatus::{AwaitingApproval, Claimed, Pending, Unknown};
    // While one of them waits for an approval, none of the others starts: the decision comes before any effect.
    let is_halted = !of(&[AwaitingApproval]).is_empty();
    let mut ready = of(&[Pending]);
    ready.retain(|call| call.retry_at.is_none() && !waits(call));
    if !ready.is_empty() && !is_halted {
        return NextStep::Run(ready);
    }
    let (delegating, mut running): (Vec<_>, Vec<_>) =
        of(&[Claimed, Pending]).into_iter().partition(|call| call.status == Pending && waits(call));
    running.retain(|call| !is_halted || call.status == Claimed);
    if !running.is_empty() {
        return NextStep::Await;
    }
    let undecided = [of(&[AwaitingApproval, Unknown]), delegating].concat();
    if !undecided.is_empty() {
        return NextStep::Interrupt(undecided);
    }
    let ended = open.into_iter().filter_map(|call| {
        let row = (*rows.get(call.call_id.as_str())?).clone();
        Some((call, row))
    });
    NextStep::Deliver(ended.collect())
}
