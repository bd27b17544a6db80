//! Forking a session: a new session with the history of another one up to an event of the log, and the outcomes of its
//! tool calls at that time. Nothing is executed: the next run in the new session starts with this history.

use std::collections::{BTreeMap, BTreeSet};

use abide_schema::reducer::DERIVED;
use abide_schema::{Abort, Code, Context, Json, Refusal, Seq, limits, reducer};
use serde_json::{Map, Value as JsonValue, json};

use super::context::{self, Target};
use super::conversation::{NewIds, call_ids, each_message};
use super::format::is_former;
use super::rows::SessionFork;
use crate::check;
use crate::message::rows::{self, AgentState, NewEntry};
use crate::session::{self, NewSession, Session};
use crate::tool_call::{ToolCall, ToolCallStatus};

/// Creates a session with the messages of another one up to an event of the log, and with the outcomes that its tool
/// calls had then. It has the agent, the scope and the metadata of the other one. No tool runs: a call without an outcome
/// at that event stays without one. The row of `session_forks` links both.
#[reducer]
pub fn fork_session(
    ctx: &mut Context<'_>,
    #[id(Session)] session_id: String,
    /// The last event of the log that the history includes; the newest one if omitted.
    at: Option<i64>,
    /// The id of the new session; generated if omitted.
    #[id(new, Session)]
    id: Option<String>,
    /// The title of the new session; that of the other one if omitted.
    title: Option<String>,
) -> Result<SessionFork, Abort> {
    let at = checked(ctx, at)?;
    let origin = session::find(ctx, &session_id)?;
    let id = match id {
        Some(id) => id,
        None => ctx.new_id("s"),
    };
    check::name("id", &id)?;
    if ctx.get::<Session>(&id)?.is_some() {
        let detail = format!("session {id} already exists");
        let hint = "omit id to get a generated one";
        return Err(Refusal::new(Code::Conflict, detail).hint(hint).into());
    }
    let object = |json: &Json| match json.value() {
        JsonValue::Object(object) => object,
        _ => Map::new(),
    };
    let new = NewSession {
        id: id.clone(),
        agent: origin.agent.clone(),
        title: title.or_else(|| origin.title.clone()),
        // A child session would end with its parent, and is the work of a run that is not copied.
        parent_id: None,
        scope: object(&origin.scope),
        metadata: object(&origin.metadata),
    };
    let session = session::insert(ctx, new)?;
    let mut fork = Fork {
        session,
        at,
        ids: NewIds::default(),
        copied: BTreeMap::new(),
        counts: (0, 0),
        bytes: 0,
        open: Vec::new(),
        tail: Vec::new(),
        origins: Vec::new(),
        messages: Vec::new(),
        spaces: BTreeSet::new(),
    };
    each_message(ctx, &origin, at, |ctx, entry| fork.add(ctx, &origin, entry))?;
    fork.finish(ctx)?;
    fork.add_context(ctx, &origin)?;
    let (messages, calls) = fork.counts;
    if messages > 0 {
        session::to_status(ctx, fork.session, session::SessionStatus::Active, |_| {})?;
    }
    ctx.about(&id);
    ctx.insert(SessionFork {
        session_id: id,
        origin_id: origin.id,
        at: Seq(at),
        messages,
        calls,
        forked_by: ctx.caller.id().to_owned(),
        created_at: ctx.now,
        seq: ctx.seq,
    })
}

/// The event that the history ends with.
fn checked(ctx: &Context<'_>, at: Option<i64>) -> Result<i64, Refusal> {
    let newest = ctx.seq.0 - 1;
    let at = at.unwrap_or(newest);
    if (1..=newest).contains(&at) {
        return Ok(at);
    }
    let detail = format!("at is {at}, not between 1 and {newest}, the newest event");
    let hint = "at is a seq of the log: `abide events --session SESSION` lists them";
    Err(Refusal::new(Code::BadArguments, detail).hint(hint))
}

/// A fork in progress.
struct Fork {
    session: Session,
    /// The last event that the history includes.
    at: i64,
    ids: NewIds,
    /// The calls with an outcome, by their ids at the origin.
    copied: BTreeMap<String, ToolCall>,
    /// Messages and calls so far.
    counts: (i64, i64),
    bytes: usize,
    /// The calls of the last answer that no message has the result of.
    open: Vec<JsonValue>,
    /// The messages since the last answer with calls, which are not written yet.
    tail: Vec<NewMessage>,
    /// The ids of the written messages at the origin.
    origins: Vec<i64>,
    /// Their ids in the copy.
    messages: Vec<i64>,
    /// The spaces of facts that the messages name.
    spaces: BTreeSet<String>,
}

#[derive(Clone)]
struct NewMessage {
    /// Its id at the origin. The result of a call that was no message has that of its answer.
    origin: i64,
    role: String,
    kind: String,
    content: Option<String>,
    data: Option<JsonValue>,
    /// Whether the driver of a run wrote it.
    is_of_run: bool,
}

impl Fork {
    fn add(
        &mut self,
        ctx: &mut Context<'_>,
        origin: &Session,
        entry: AgentState,
    ) -> Result<(), Abort> {
        let AgentState { id: origin_id, role, kind, content, data, run_id, .. } = entry;
        let entry_bytes = data.as_ref().map_or(0, |data| data.as_str().len());
        let mut data = data.map(|data| data.value());
        if let Some(data) = &data {
            self.spaces.extend(context::space_in(&kind, data));
            for call_id in call_ids(data) {
                if !self.ids.calls.contains_key(call_id) {
                    self.add_call(ctx, origin, call_id)?;
                }
            }
            match data["calls"].as_array().filter(|_| role == "assistant") {
                Some(calls) => {
                    self.open.clone_from(calls);
                    self.append_tail(ctx)?;
                }
                None => self.open.retain(|call| call["call_id"] != data["call_id"]),
            }
        }
        if let Some(data) = &mut data {
            self.ids.apply(data);
        }
        let bytes = content.as_ref().map_or(0, String::len);
        self.count(bytes + entry_bytes)?;
        self.tail.push(NewMessage {
            origin: origin_id,
            role,
            kind,
            content,
            data,
            is_of_run: run_id.is_some(),
        });
        Ok(())
    }

    /// Writes the messages since the last answer with calls.
    fn append_tail(&mut self, ctx: &mut Context<'_>) -> Result<(), Abort> {
        for message in std::mem::take(&mut self.tail) {
            let NewMessage { origin, role, kind, content, data, is_of_run } = message;
            let run_id = data.as_ref().filter(|_| is_of_run).and_then(rows::named_run);
            let data = data.map(Json::from);
            let entry = NewEntry { role, kind, content, data, run_id };
            let entry = rows::append(ctx, &self.session, entry)?;
            self.origins.push(origin);
            self.messages.push(entry.id);
            self.counts.0 += 1;
        }
        Ok(())
    }

    /// Copies a call, if it had an outcome at the event.
    fn add_call(
        &mut self,
        ctx: &mut Context<'_>,
        origin: &Session,
        call_id: &str,
    ) -> Result<(), Abort> {
        let number = self.ids.calls.len() + 1;
        let new_id = format!("{}{DERIVED}{number}", self.session.id);
        self.ids.calls.insert(call_id.to_owned(), new_id.clone());
        let found = ctx.get::<ToolCall>(call_id)?;
        let had_ended = |call: &ToolCall| {
            call.session_id == origin.id && call.status.is_terminal() && call.seq.0 <= self.at
        };
        let Some(call) = found.filter(had_ended) else { return Ok(()) };
        self.count(
            call.arguments.as_str().len()
                + call.result.as_ref().map_or(0, |result| result.as_str().len()),
        )?;
        self.copied.insert(call_id.to_owned(), call.clone());
        ctx.insert(ToolCall {
            call_id: new_id,
            session_id: self.session.id.clone(),
            // The lease belongs to the call that ran.
            fencing_token: None,
            lease_expires_at: None,
            retry_at: None,
            created_at: ctx.now,
            created_seq: ctx.seq,
            updated_at: ctx.now,
            seq: ctx.seq,
            ..call
        })?;
        self.counts.1 += 1;
        Ok(())
    }

    /// Writes the rest, with the outcomes that the runtime had not written as messages at the event. The results of an
    /// answer come before other messages.
    fn finish(&mut self, ctx: &mut Context<'_>) -> Result<(), Abort> {
        let mut missing = Vec::new();
        for asked in std::mem::take(&mut self.open) {
            let id = asked["call_id"].as_str().unwrap_or_default();
            let Some(call) = self.copied.get(id) else { continue };
            let (text, is_error) = outcome(call);
            let data = json!({"call_id": self.ids.calls.get(id), "name": call.tool_name,
                "provider_call_id": asked["provider_call_id"], "is_error": is_error,
                "exit_code": i32::from(is_error)});
            let (role, kind) = ("tool".to_owned(), "message".to_owned());
            let origin = self.tail.first().map_or(0, |message| message.origin);
            let (content, data) = (Some(text), Some(data));
            missing.push(NewMessage { origin, role, kind, content, data, is_of_run: true });
        }
        if !missing.is_empty() {
            let is_first =
                |message: &NewMessage| message.role == "tool" || message.role == "assistant";
            let tail = std::mem::take(&mut self.tail);
            let (first, others): (Vec<_>, Vec<_>) = tail.into_iter().partition(is_first);
            self.tail = [first, missing, others].concat();
        }
        self.append_tail(ctx)
    }

    /// Copies the summary, the plan and the facts of the session as they were at the event.
    fn add_context(&mut self, ctx: &mut Context<'_>, origin: &Session) -> Result<(), Abort> {
        if is_former(ctx) {
            return Ok(());
        }
        let (at, origins) = (self.at, self.origins.clone());
        let spaces = std::mem::take(&mut self.spaces);
        let mut count = |bytes| self.count(bytes);
        let found = context::read(ctx, origin, at, &origins, &spaces, &mut count)?;
        let target = |run_id| Target {
            session: &self.session,
            run_id,
            messages: &self.messages,
            ids: &self.ids,
        };
        if let (Some(run), Some(mut summary)) = (&found.summary_run, found.context.summary) {
            // They were in effect in a run, which is not copied.
            summary.handoffs.clear();
            target(run).write_summary(ctx, &summary)?;
        }
        if let (Some(run), Some(plan)) = (&found.plan_run, &found.context.plan) {
            target(run).write_plan(ctx, plan)?;
        }
        target("").write_facts(ctx, &found.context.facts)
    }

    fn count(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.bytes += bytes;
        if self.bytes <= limits::FORK_BYTES {
            return Ok(());
        }
        let max = limits::FORK_BYTES;
        let detail = format!("the history has more than {max} bytes");
        let hint = "fork the session at an earlier event";
        Err(Refusal::new(Code::LimitExceeded, detail).hint(hint))
    }
}

/// The outcome of a call as a text for a model, and whether it is an error.
fn outcome(call: &ToolCall) -> (String, bool) {
    let text_of = |value: &JsonValue| match value {
        JsonValue::String(text) => text.clone(),
        other => other.to_string(),
    };
    match call.status {
        ToolCallStatus::Succeeded => {
            let result = call.result.as_ref().map(Json::value).unwrap_or_default();
            let text = result.get("text").unwrap_or(&result);
            (text_of(text), false)
        }
        _ => (call.error.clone().unwrap_or_else(|| format!("The call is {}.", call.status)), true),
    }
}
