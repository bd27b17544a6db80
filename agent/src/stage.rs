//! The next step of a run. It is computed from rows alone, so it is the same after a pause, an approval or a crash.

use std::collections::{BTreeMap, BTreeSet};

use abide_client::{AgentState, Run, ToolCall, ToolCallStatus};

use crate::transcript::{AskedCall, Result, Said, data};

/// The next step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Stage {
    /// Ask the model.
    Ask,
    /// Request these calls of the last answer, which are not recorded yet.
    Request(Vec<AskedCall>),
    /// Run these calls.
    Run(Vec<ToolCall>),
    /// Wait: the calls are claimed, or scheduled for their next attempt.
    Await,
    /// Wait for a decision on these calls.
    Interrupt(Vec<ToolCall>),
    /// Every call has ended: give the results to the model.
    Deliver(Vec<(AskedCall, ToolCall)>),
    /// The model has answered.
    Finish(String),
    /// The model keeps calling tools beyond the limit. End the run.
    Stop(String),
}

/// The run's last answer, if only its own tool results follow it.
pub(crate) fn last_answer(run: &Run, entries: &[AgentState]) -> Option<(usize, Said)> {
    let at =
        entries.iter().rposition(|entry| entry.role == "assistant" && entry.kind == "message")?;
    let said: Said = data(&entries[at]);
    (said.run_id == run.id).then_some((at, said))
}

/// Maximum number of requests after the tool call limit: one with the notice, and one more if the model calls tools
/// again.
const TURNS_PAST_LIMIT: i64 = 2;

/// The next step of a run, from the session's messages and the calls of the run's last answer.
pub(crate) fn next(run: &Run, entries: &[AgentState], calls: &[ToolCall]) -> Stage {
    let Some((at, said)) = last_answer(run, entries) else { return Stage::Ask };
    let after = &entries[at + 1..];
    let answered: BTreeSet<String> = after
        .iter()
        .filter(|entry| entry.role == "tool" && entry.kind == "message")
        .map(|entry| data::<Result>(entry).call_id)
        .collect();
    let open: Vec<AskedCall> =
        said.calls.iter().filter(|call| !answered.contains(&call.call_id)).cloned().collect();
    if open.is_empty() {
        let text = || entries[at].content.clone().unwrap_or_default();
        if !said.calls.is_empty() && said.past_limit >= TURNS_PAST_LIMIT {
            return Stage::Stop(text());
        }
        // There is a newer message (from a supervisor or a timer), or the model waits for its results.
        let spoken = after.iter().any(|entry| entry.role != "assistant");
        return match said.calls.is_empty() && !spoken {
            true => Stage::Finish(text()),
            false => Stage::Ask,
        };
    }
    let rows: BTreeMap<&str, &ToolCall> =
        calls.iter().map(|call| (call.call_id.as_str(), call)).collect();
    let missing: Vec<AskedCall> =
        open.iter().filter(|call| !rows.contains_key(call.call_id.as_str())).cloned().collect();
    if !missing.is_empty() {
        return Stage::Request(missing);
    }
    of_calls(open, &rows)
}

fn of_calls(open: Vec<AskedCall>, rows: &BTreeMap<&str, &ToolCall>) -> Stage {
    let of = |statuses: &[ToolCallStatus]| -> Vec<ToolCall> {
        let found = open.iter().filter_map(|call| rows.get(call.call_id.as_str()));
        found.filter(|row| statuses.contains(&row.status)).map(|row| (*row).clone()).collect()
    };
    use ToolCallStatus::{AwaitingApproval, Claimed, Pending, Unknown};
    let mut ready = of(&[Pending]);
    ready.retain(|call| call.retry_at.is_none());
    if !ready.is_empty() {
        return Stage::Run(ready);
    }
    if !of(&[Claimed, Pending]).is_empty() {
        return Stage::Await;
    }
    let undecided = of(&[AwaitingApproval, Unknown]);
    if !undecided.is_empty() {
        return Stage::Interrupt(undecided);
    }
    let ended = open.into_iter().filter_map(|call| {
        let row = (*rows.get(call.call_id.as_str())?).clone();
        Some((call, row))
    });
    Stage::Deliver(ended.collect())
}
