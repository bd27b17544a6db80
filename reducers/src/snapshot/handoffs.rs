//! The handoffs in a snapshot. Each makes another agent active, with its prompt, tools and limits. A message of a snapshot can
//! be forged, so an import accepts only handoffs that the definitions of this file allow.

use std::collections::BTreeMap;

use abide_schema::{Abort, Context, Json, Micros, Refusal};
use serde_json::{Value as JsonValue, json};

use super::format::{SnapshotMessage, SnapshotRun};
use super::invalid;
use crate::agent::{self, AgentRevision, RunPurpose};

/// Counters of an imported run. Those of its handoffs are not larger.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counters {
    pub(super) iterations: i64,
    pub(super) tool_calls: i64,
    pub(super) worked_us: i64,
}

/// Refuses a run with a handoff that its agents could not have made, or that would give the active agent more than its
/// limits. `results` are the results of calls that drivers of runs wrote, `revisions` those of the agents in this file.
pub(super) fn check<'a>(
    ctx: &mut Context<'_>,
    source: &'a SnapshotRun,
    results: impl Iterator<Item = &'a SnapshotMessage>,
    revisions: &BTreeMap<String, i64>,
    counters: Counters,
) -> Result<(), Abort> {
    let scope = Json::from(json!(source.scope));
    let of_summary = source.context.summary.iter().flat_map(|summary| &summary.handoffs);
    let of_messages = results.filter_map(|message| message.data.as_ref()?.get("handoff"));
    // Those of the summary are in effect at its last message, and the messages have all.
    for all in [of_summary.collect::<Vec<_>>(), of_messages.collect()] {
        let mut active = vec![source.agent.as_str()];
        for handoff in all.into_iter().filter(|it| it["run_id"] == source.id.as_str()) {
            let Some(to) = handoff["agent"].as_str() else {
                if active.len() > 1 {
                    active.pop();
                }
                continue;
            };
            let from = active.last().copied().unwrap_or_default();
            check_agents(ctx, revisions, &scope, from, to)?;
            check_numbers(handoff, source, counters, ctx.now)?;
            active.push(to);
        }
    }
    Ok(())
}

/// Checks that an agent can hand over to another one.
fn check_agents(
    ctx: &mut Context<'_>,
    revisions: &BTreeMap<String, i64>,
    session_scope: &Json,
    from: &str,
    to: &str,
) -> Result<(), Abort> {
    if !revisions.contains_key(to) {
        return Err(
            invalid(format!("agents does not name {to}, which a message makes active")).into()
        );
    }
    let starter = ctx.caller.clone();
    agent::find_ready(ctx, to, RunPurpose::Delegation, &starter, session_scope)?;
    let revision = revisions.get(from).copied().unwrap_or_default();
    let definition = ctx.without_policies(|ctx| ctx.get::<AgentRevision>((from, revision)))?;
    let allowed = definition.map(|it| agent::subagents(from, &it.definition.value()));
    if allowed.unwrap_or_default().iter().any(|name| name == to) {
        Ok(())
    } else {
        Err(invalid(format!("agent {from} does not hand over to {to} here")).into())
    }
}

/// Checks the counters and the time of a handoff. The limits of the active agent apply from there on.
fn check_numbers(
    handoff: &JsonValue,
    source: &SnapshotRun,
    counters: Counters,
    now: Micros,
) -> Result<(), Refusal> {
    let tokens = source.input_tokens.saturating_add(source.output_tokens);
    for (name, max) in [
        ("iterations", counters.iterations),
        ("tool_calls", counters.tool_calls),
        ("worked_us", counters.worked_us),
        ("tokens", tokens),
        ("cost_micros", source.cost_micros.unwrap_or(0)),
        ("at", now.0),
    ] {
        let number = handoff.get(name).map_or(Some(0), JsonValue::as_i64);
        if !number.is_some_and(|number| (0..=max).contains(&number)) {
            return Err(invalid(format!("{name} of a handoff must be between 0 and {max}")));
        }
    }
    Ok(())
}

/// Refuses a handoff with counters that the answers after it contradict: they count against the limits of the agent that it made
/// active. `messages` are those that drivers of runs wrote.
pub(super) fn check_order(
    source: &SnapshotRun,
    messages: &[&SnapshotMessage],
    counters: Counters,
) -> Result<(), Refusal> {
    // What follows the current message.
    let mut first_iteration: Option<i64> = None;
    let mut tool_calls = 0;
    for message in messages.iter().rev() {
        let Some(data) = &message.data else { continue };
        if data["run_id"] == source.id.as_str() {
            let iteration = data["iteration"].as_i64();
            first_iteration = first_iteration.into_iter().chain(iteration).min();
            // The structured answer is not a tool call.
            let calls = data["calls"].as_array().into_iter().flatten();
            tool_calls += calls.filter(|call| call["name"] != "response").count() as i64;
        }
        let Some(handoff) = data.get("handoff") else { continue };
        if handoff["run_id"] != source.id.as_str() || message.role != "tool" {
            continue;
        }
        let iterations_before = handoff["iterations"].as_i64().unwrap_or(0);
        let calls_before = handoff["tool_calls"].as_i64().unwrap_or(0);
        let is_late = first_iteration.is_some_and(|first| iterations_before >= first);
        if is_late || calls_before + tool_calls > counters.tool_calls {
            return Err(invalid("a handoff counts answers or calls that follow it"));
        }
    }
    Ok(())
}
