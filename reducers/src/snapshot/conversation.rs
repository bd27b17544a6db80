//! The references in messages of a runtime that a copy rewrites: the ids of runs and calls in their data. An assistant message has
//! `run_id` and `calls: [{call_id}]`, a tool message `call_id` and for a change of the agent `handoff: {run_id, agent,
//! revision}`. Messages of other authors can have any data; these members are then ids, too, or have no effect.

use std::collections::{BTreeMap, BTreeSet};

use abide_schema::{Abort, Context, limits};
use serde_json::Value as JsonValue;

use super::too_many_rows;
use crate::message::AgentState;
use crate::session::Session;

/// How many messages are read at once: each can have several megabytes.
const PAGE: i64 = 4;

/// Calls a function with each message of a session up to an event, in order.
pub(super) fn each_message(
    ctx: &mut Context<'_>,
    session: &Session,
    up_to: i64,
    mut each: impl FnMut(&mut Context<'_>, AgentState) -> Result<(), Abort>,
) -> Result<(), Abort> {
    let mut after = 0;
    let mut count = 0;
    loop {
        let next = "WHERE session_id = ?1 AND id > ?2 AND seq <= ?3 ORDER BY id LIMIT ?4";
        let id = session.id.as_str();
        let params = [id.into(), after.into(), up_to.into(), PAGE.into()];
        let page = ctx.find::<AgentState>(next, &params)?;
        let is_last = (page.len() as i64) < PAGE;
        for entry in page {
            after = entry.id;
            count += 1;
            if count > limits::SNAPSHOT_ROWS {
                return Err(too_many_rows(count).into());
            }
            each(ctx, entry)?;
        }
        if is_last {
            return Ok(());
        }
    }
}

/// Returns the ids of the calls that a message names.
pub(super) fn call_ids(data: &JsonValue) -> Vec<&str> {
    let requested = data["calls"].as_array().into_iter().flatten();
    let ids = requested.filter_map(|call| call["call_id"].as_str());
    ids.chain(data["call_id"].as_str()).collect()
}

/// Returns the agents that take over in a message or in the result of a handoff, with their revisions.
pub(super) fn read_handoff(value: &JsonValue) -> Option<(&str, i64)> {
    let handoff = &value["handoff"];
    Some((handoff["agent"].as_str()?, handoff["revision"].as_i64()?))
}

/// The ids of a copy.
#[derive(Debug, Default)]
pub(super) struct NewIds {
    /// The run in the origin, and in the copy. A copy without a run keeps the ids of runs.
    pub(super) run: Option<(String, String)>,
    /// The calls.
    pub(super) calls: BTreeMap<String, String>,
    /// The revisions of the agents.
    pub(super) revisions: BTreeMap<String, i64>,
}

impl NewIds {
    /// Replaces the ids in the data of a message.
    pub(super) fn apply(&self, data: &mut JsonValue) {
        self.replace_run(data.get_mut("run_id"));
        self.replace_call(data.get_mut("call_id"));
        let calls = data.get_mut("calls").and_then(JsonValue::as_array_mut);
        for call in calls.into_iter().flatten() {
            self.replace_call(call.get_mut("call_id"));
        }
        self.apply_handoff(data);
    }

    /// Replaces the revision and the run of a handoff.
    pub(super) fn apply_handoff(&self, value: &mut JsonValue) {
        let Some(handoff) = value.get_mut("handoff") else { return };
        self.replace_run(handoff.get_mut("run_id"));
        let agent = handoff.get("agent").and_then(JsonValue::as_str);
        let revision = agent.and_then(|agent| self.revisions.get(agent)).copied();
        if let (Some(revision), Some(handoff)) = (revision, handoff.as_object_mut()) {
            handoff.insert("revision".to_owned(), revision.into());
        }
    }

    fn replace_run(&self, id: Option<&mut JsonValue>) {
        let (Some(id), Some((from, to))) = (id, &self.run) else { return };
        match id.as_str() {
            Some(old) if old == from => *id = to.as_str().into(),
            // An earlier run of the session must not become a part of this one.
            Some(old) if old == to => *id = format!("{old} at its origin").into(),
            _ => {}
        }
    }

    fn replace_call(&self, id: Option<&mut JsonValue>) {
        let Some(id) = id else { return };
        let to = id.as_str().and_then(|id| self.calls.get(id));
        if let Some(to) = to {
            *id = to.as_str().into();
        }
    }
}

/// The ids of all calls that messages name, in order, each once.
#[derive(Debug, Default)]
pub(super) struct NamedCalls {
    pub(super) ids: Vec<String>,
    known: BTreeSet<String>,
}

impl NamedCalls {
    pub(super) fn add(&mut self, data: &JsonValue) {
        for id in call_ids(data) {
            if self.known.insert(id.to_owned()) {
                self.ids.push(id.to_owned());
            }
        }
    }
}
