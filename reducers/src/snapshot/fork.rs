//! Forking a session: a new session with the history of another one up to an event of the log, and the outcomes of its
//! tool calls at that time. Nothing is executed: the next run in the new session starts with this history.
//!
//! A fork works in steps of a bounded number of rows and bytes, so that no step occupies the writer for long. The call takes
//! the first step itself: short sessions are copied in one transaction. For the rest it leaves a row in `session_copies`,
//! and the engine calls [`continue_fork()`] as the same caller, one step per transaction. So each step sees the rows that the
//! caller may see, and is refused if the caller may no longer fork sessions. The row survives a crash. Until the last step,
//! `session_forks.ended_at` is null, and the new session refuses other calls.
//!
//! The copy is what there was at the event, although the origin can change meanwhile: messages, outcomes and summaries never
//! change, and later ones are skipped by their seq. The plan and the first facts are copied by the call itself. Of a longer
//! list, facts that changed meanwhile are missing, as in a fork at an earlier event.

use std::collections::BTreeSet;

use abide_schema::reducer::{DERIVED, ReducerResult, keyed_digest};
use abide_schema::{Abort, Code, Context, Json, Micros, Refusal, Seq, Value, limits, reducer};
use serde::{Deserialize, Serialize};
use serde_json::{Value as JsonValue, json};

use super::context;
use super::conversation::{NewIds, call_ids};
use super::rows::{SessionCopy, SessionFork};
use super::{object, too_many_rows};
use crate::access::identity;
use crate::check;
use crate::handoff::HandoffCall;
use crate::memory::{self, NewMemory};
use crate::message::rows::{self, AgentState, NewEntry};
use crate::plan::{self, NewPlanStep, PlanVersion};
use crate::session::{self, NewSession, Session, SessionStatus};
use crate::summary::{ArchivedResult, ContextSummary};
use crate::tool_call::{ToolCall, ToolCallStatus};

/// Creates a session with the messages of another one up to an event of the log, and with the outcomes that its tool
/// calls had then. It has the agent, the scope and the metadata of the other one. No tool runs: a call that had not begun is
/// cancelled in the copy, and one that ran stays without an outcome. The row of `session_forks` links both. A long history is
/// copied in several transactions; the answer waits for the last one. The same call of the same caller again, with `id`, is about
/// the same copy, and waits for it.
#[reducer(roles(app, agent))]
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
) -> Result<ReducerResult<SessionFork>, Abort> {
    // First, so that a caller that may not read the session learns nothing of the log.
    let origin = session::find(ctx, &session_id)?;
    let last_event = resolve_at(ctx, at)?;
    let id = match id {
        Some(id) => id,
        None => ctx.new_id("s"),
    };
    check::name("id", &id)?;
    if let Some(existing) = ctx.get::<Session>(&id)? {
        let same_title = title.is_none() || title == existing.title;
        if same_title && let Some(fork) = find_earlier(ctx, &existing, &origin, at)? {
            ctx.about(&id);
            return Ok(ReducerResult::Duplicate(fork.seq, fork));
        }
        let detail = format!("session {id} already exists");
        let hint = "omit id to get a generated one";
        return Err(Refusal::new(Code::Conflict, detail).hint(hint).into());
    }
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
    ctx.about(&id);
    let fork = ctx.insert(SessionFork {
        session_id: id,
        origin_id: origin.id.clone(),
        at: Seq(last_event),
        messages: 0,
        calls: 0,
        forked_by: ctx.caller.id().to_owned(),
        created_at: ctx.now,
        seq: ctx.seq,
        ended_at: None,
    })?;
    let progress = Progress { key: ctx.digest(&fork.session_id), ..Progress::default() };
    let mut copy = ForkStep::new(origin, session, fork, progress);
    copy.begin(ctx)?;
    let fork = copy.take_step(ctx)?;
    Ok(ReducerResult::Fresh(fork))
}

/// Returns the fork that an earlier call of the caller has begun: its process can have ended before the answer. A copy that
/// failed is none.
fn find_earlier(
    ctx: &mut Context<'_>,
    copy: &Session,
    origin: &Session,
    at: Option<i64>,
) -> Result<Option<SessionFork>, Abort> {
    if copy.status == SessionStatus::Failed {
        return Ok(None);
    }
    let fork = ctx.get::<SessionFork>(&copy.id)?;
    let caller = ctx.caller.id();
    Ok(fork.filter(|fork| {
        fork.origin_id == origin.id
            && fork.forked_by == caller
            && at.is_none_or(|at| fork.at == Seq(at))
    }))
}

/// Why a step was refused.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StepError {
    /// The code of the refusal.
    pub code: String,
    /// What it says.
    pub message: String,
}

/// Takes the next step of a fork, or ends it after a step was refused.
#[reducer]
pub fn continue_fork(
    ctx: &mut Context<'_>,
    id: String,
    due_at: Micros,
    /// Why the last step was refused.
    error: Option<StepError>,
) -> Result<SessionFork, Abort> {
    let row = ctx.without_policies(|ctx| ctx.get::<SessionCopy>(&*id))?;
    let Some(row) = row.filter(|row| row.due_at == due_at) else {
        return Err(Refusal::new(Code::Conflict, format!("there is no copy {id}")).into());
    };
    ctx.about(&row.session_id);
    let (session, fork) = ctx.without_policies(|ctx| -> Result<_, Abort> {
        ctx.delete::<SessionCopy>(&*id)?;
        let session = ctx.get::<Session>(&*row.session_id)?;
        Ok((session, ctx.get::<SessionFork>(&*row.session_id)?))
    })?;
    let (Some(session), Some(fork)) = (session, fork) else {
        let detail = format!("there is no session {}", row.session_id);
        return Err(Refusal::new(Code::NotFound, detail).into());
    };
    if let Some(StepError { code, message }) = error {
        session::fail_copy(ctx, session, code, message)?;
        let fork = SessionFork { ended_at: Some(ctx.now), ..fork };
        ctx.update(&fork)?;
        return Ok(fork);
    }
    identity::check_unchanged(ctx)?;
    // With the caller's rights: it must still see the session.
    let origin = ctx.get::<Session>(&*fork.origin_id)?.ok_or_else(|| {
        Refusal::new(Code::NotFound, format!("there is no session {}", fork.origin_id))
    })?;
    let progress =
        serde_json::from_str(row.progress.as_str()).map_err(|why| Abort::Broken(Box::new(why)))?;
    ForkStep::new(origin, session, fork, progress).take_step(ctx)
}

/// Returns the event that the history ends with.
fn resolve_at(ctx: &Context<'_>, at: Option<i64>) -> Result<i64, Refusal> {
    let newest = ctx.seq.0 - 1;
    let at = at.unwrap_or(newest);
    if (1..=newest).contains(&at) {
        return Ok(at);
    }
    let detail = format!("at must be between 1 and {newest}, the newest event, not {at}");
    let hint = "at is a seq of the log: `abide events --session SESSION` lists them";
    Err(Refusal::new(Code::BadArguments, detail).hint(hint))
}

/// What one step leaves to the next one. Its size does not depend on the number of messages.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Progress {
    /// The ids of calls in the copy derive from it and from their ids at the origin.
    key: String,
    /// The last message that was copied, by its id at the origin.
    after: i64,
    /// Bytes so far.
    bytes: usize,
    /// The calls of the last answer without a message with their result. The messages behind the answer are in the copy
    /// already, if there were too many of them for one step.
    open: Vec<OpenCall>,
    /// The summary to copy.
    summary: Option<CopiedSummary>,
    /// The spaces of facts to copy, in order.
    spaces: Vec<CopiedSpace>,
}

/// A call that no message has the result of.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct OpenCall {
    /// Its id at the origin.
    call_id: String,
    provider_call_id: JsonValue,
}

/// A summary of the origin, and the ids that it has in the copy instead of those of the origin.
#[derive(Debug, Serialize, Deserialize)]
struct CopiedSummary {
    number: i64,
    through: Mark,
    folded: Mark,
    goal: Mark,
    goal_folded: Mark,
    kept: Vec<i64>,
}

/// A place in the history.
#[derive(Debug, Serialize, Deserialize)]
struct Mark {
    /// The id of a message of the origin.
    origin: i64,
    /// The last message of the copy up to there; 0 if there is none.
    copy: i64,
    /// Whether a later message was copied.
    is_passed: bool,
}

impl Mark {
    fn new(origin: i64) -> Mark {
        Mark { origin, copy: 0, is_passed: false }
    }

    /// Notes the next message. Returns whether it is before the place.
    fn note(&mut self, origin: i64, copy: i64) -> bool {
        self.is_passed |= origin > self.origin;
        if !self.is_passed {
            self.copy = copy;
        }
        !self.is_passed
    }
}

/// A space of facts.
#[derive(Debug, Serialize, Deserialize)]
struct CopiedSpace {
    space: String,
    /// The last fact that was copied: when it changed, and its id.
    after: (i64, i64),
    is_complete: bool,
}

/// A message to write.
struct NewMessage {
    /// Its id at the origin; that of the answer for the result of a call that was no message.
    origin: i64,
    role: String,
    kind: String,
    content: Option<String>,
    data: Option<JsonValue>,
    /// Whether the driver of a run wrote it.
    is_of_run: bool,
    /// Whether it is a message at the origin, too.
    is_copy: bool,
}

/// One step of a fork.
struct ForkStep {
    origin: Session,
    session: Session,
    fork: SessionFork,
    progress: Progress,
    /// The last message that was read.
    read_to: i64,
    /// The calls of the last answer that no message has the result of.
    open: Vec<OpenCall>,
    /// The last answer with open calls and the messages behind it, which are not written yet: results that are missing come
    /// before messages of other roles.
    tail: Vec<(NewMessage, usize)>,
    /// Whether messages behind the last answer are held back in `tail`.
    holds_back: bool,
    /// The messages of the origin that the summary keeps.
    kept: BTreeSet<i64>,
    /// What this step may still copy.
    rows_left: usize,
    bytes_left: usize,
    /// Whether this step has copied anything.
    has_copied: bool,
}

impl ForkStep {
    fn new(origin: Session, session: Session, fork: SessionFork, progress: Progress) -> ForkStep {
        ForkStep {
            origin,
            session,
            fork,
            read_to: progress.after,
            open: progress.open.clone(),
            progress,
            tail: Vec::new(),
            holds_back: false,
            kept: BTreeSet::new(),
            rows_left: limits::FORK_STEP_ROWS,
            bytes_left: limits::FORK_STEP_BYTES,
            has_copied: false,
        }
    }

    /// Copies the plan, and finds what else there is besides messages and calls.
    fn begin(&mut self, ctx: &mut Context<'_>) -> Result<(), Abort> {
        let own = memory::own_space(&self.origin);
        self.progress.spaces.push(CopiedSpace::new(own));
        let at_event = [Value::from(self.origin.id.as_str()), Value::from(self.fork.at.0)];
        let newest = "WHERE session_id = ?1 AND seq <= ?2 ORDER BY version DESC LIMIT 1";
        if let Some(row) = ctx.find::<PlanVersion>(newest, &at_event)?.pop() {
            let steps: Vec<NewPlanStep> = serde_json::from_str(row.steps.as_str())
                .map_err(|why| Abort::Broken(Box::new(why)))?;
            self.count(row.steps.as_str().len(), steps.len())?;
            plan::restore(ctx, &self.session.id, &row.run_id, row.version, &steps)?;
        }
        let newest = "WHERE session_id = ?1 AND seq <= ?2 ORDER BY number DESC LIMIT 1";
        self.progress.summary =
            ctx.find::<ContextSummary>(newest, &at_event)?.pop().map(|row| CopiedSummary {
                number: row.number,
                through: Mark::new(row.through_id),
                folded: Mark::new(row.folded_id),
                goal: Mark::new(row.goal_id),
                goal_folded: Mark::new(row.goal_folded_id),
                kept: Vec::new(),
            });
        Ok(())
    }

    /// Copies as much as one step may, and leaves the rest.
    fn take_step(mut self, ctx: &mut Context<'_>) -> Result<SessionFork, Abort> {
        if let Some(summary) = &self.progress.summary
            && !summary.folded.is_passed
            && let Some(row) = self.source_summary(ctx)?
        {
            let ids = row.kept.value();
            self.kept =
                ids.as_array().into_iter().flatten().filter_map(JsonValue::as_i64).collect();
        }
        let is_complete = self.copy(ctx)?;
        let has_messages = self.fork.messages > 0;
        if is_complete {
            session::end_copy(ctx, self.session, has_messages)?;
            self.fork.ended_at = Some(ctx.now);
        } else {
            if !self.session.is_being_copied() {
                session::begin_copy(ctx, &mut self.session)?;
            }
            let row = SessionCopy {
                id: ctx.new_id("cp"),
                session_id: self.session.id,
                caller: ctx.caller.id().to_owned(),
                authority: ctx.caller.authority().map(str::to_owned),
                progress: Json::from(json!(self.progress)),
                due_at: ctx.now,
                seq: ctx.seq,
            };
            ctx.without_policies(|ctx| ctx.insert(row))?;
        }
        ctx.without_policies(|ctx| ctx.update(&self.fork))?;
        Ok(self.fork)
    }

    /// Copies within the bounds of the step. Returns whether nothing is left.
    fn copy(&mut self, ctx: &mut Context<'_>) -> Result<bool, Abort> {
        if !self.copy_facts(ctx)? {
            return Ok(false);
        }
        // One at a time: each can have several megabytes.
        let next = "WHERE session_id = ?1 AND id > ?2 AND seq <= ?3 ORDER BY id LIMIT 1";
        loop {
            let id = self.origin.id.as_str();
            let params = [id.into(), self.read_to.into(), self.fork.at.0.into()];
            let Some(entry) = ctx.find::<AgentState>(next, &params)?.pop() else { break };
            let entry_id = entry.id;
            if !self.add(ctx, entry)? {
                self.pause(ctx)?;
                return Ok(false);
            }
            self.read_to = entry_id;
        }
        if !self.copy_facts(ctx)? {
            self.pause(ctx)?;
            return Ok(false);
        }
        self.finish(ctx)?;
        Ok(true)
    }

    /// Copies a message and the outcomes of the calls that it names. Returns `false` if the step has no room.
    fn add(&mut self, ctx: &mut Context<'_>, entry: AgentState) -> Result<bool, Abort> {
        let AgentState { id: origin, role, kind, content, data, run_id, .. } = entry;
        let bytes = content.as_ref().map_or(0, String::len)
            + data.as_ref().map_or(0, |data| data.as_str().len());
        let has_begun = self.has_copied || !self.tail.is_empty();
        if has_begun && !self.has_room_for(bytes) {
            return Ok(false);
        }
        let mut data = data.map(|data| data.value());
        if let Some(data) = &mut data {
            let ids = call_ids(data);
            let max = limits::FORK_CALLS_OF_A_MESSAGE;
            if ids.len() > max {
                let detail = format!("message {origin} names more than {max} tool calls");
                return Err(Refusal::new(Code::LimitExceeded, detail).into());
            }
            for call_id in &ids {
                if !self.add_call(ctx, call_id)? {
                    return Ok(false);
                }
            }
            if let Some(space) = context::space_in(&kind, data) {
                self.add_space(space)?;
            }
            match data["calls"].as_array().filter(|_| role == "assistant") {
                Some(calls) => {
                    self.write_tail(ctx)?;
                    self.open = calls.iter().filter_map(OpenCall::from_request).collect();
                    self.holds_back = true;
                }
                // A later answer ends the one before. The outcomes of its open calls are rows of the copy, and a message behind
                // the later answer would be a result without a call.
                None if role == "assistant" && kind == "message" && run_id.is_some() => {
                    self.write_tail(ctx)?;
                    self.open.clear();
                }
                None => self.open.retain(|call| data["call_id"] != call.call_id.as_str()),
            }
            let ids = call_ids(data).into_iter().map(|id| (id.to_owned(), self.new_id(id)));
            NewIds { calls: ids.collect(), ..NewIds::default() }.apply(data);
        }
        let is_of_run = run_id.is_some();
        let message = NewMessage { origin, role, kind, content, data, is_of_run, is_copy: true };
        self.spend(bytes, 1);
        self.tail.push((message, bytes));
        if self.open.is_empty() || !self.holds_back {
            self.write_tail(ctx)?;
        }
        Ok(true)
    }

    /// Copies a call, if it had an outcome at the event or had not begun, and is not copied yet. Returns `false` if the step has
    /// no room.
    fn add_call(&mut self, ctx: &mut Context<'_>, call_id: &str) -> Result<bool, Abort> {
        let new_id = self.new_id(call_id);
        if ctx.without_policies(|ctx| ctx.get::<ToolCall>(&*new_id))?.is_some() {
            return Ok(true);
        }
        let found = ctx.get::<ToolCall>(call_id)?;
        let Some(call) = found.filter(|call| call.session_id == self.origin.id) else {
            return Ok(true);
        };
        let had_ended = call.status.is_terminal() && call.seq <= self.fork.at;
        let call = if had_ended {
            call
        } else if let Some(why) = self.why_without_effect(ctx, &call)? {
            ToolCall {
                status: ToolCallStatus::Cancelled,
                attempt: 0,
                claimed_by: None,
                claimed_at: None,
                cancel_requested_at: Some(ctx.now),
                result: None,
                error: Some(why.to_owned()),
                evidence: None,
                settled_by: None,
                ..call
            }
        } else {
            return Ok(true);
        };
        let bytes = call.bytes();
        if self.has_copied && !self.has_room_for(bytes) {
            return Ok(false);
        }
        self.count(bytes, 1)?;
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
        self.fork.calls += 1;
        Ok(true)
    }

    /// Why a call that had no outcome at the event had no effect either; `None` if it may have run. Later claims do not count.
    fn why_without_effect(
        &self,
        ctx: &mut Context<'_>,
        call: &ToolCall,
    ) -> Result<Option<&'static str>, Abort> {
        let was_claimed_later = call.fencing_token.is_some_and(|token| token > self.fork.at.0);
        if call.created_seq > self.fork.at
            || call.attempt == 0
            || (call.attempt == 1 && was_claimed_later)
        {
            return Ok(Some("The call did not run: the session was forked before it began."));
        }
        let of_call = "WHERE call_id = ?1";
        let id = [Value::from(call.call_id.as_str())];
        let handoff = ctx.without_policies(|ctx| ctx.find::<HandoffCall>(of_call, &id))?;
        let was_handed_off = handoff.iter().any(|handoff| handoff.seq <= self.fork.at);
        Ok(was_handed_off.then_some("No supervisor has answered: the session was forked before."))
    }

    /// Returns the id of a call in the copy. It is below the new session, so that no other caller can take it.
    fn new_id(&self, call_id: &str) -> String {
        let digest = keyed_digest(&self.progress.key, call_id);
        format!("{}{DERIVED}{}", self.session.id, &digest[..16])
    }

    fn add_space(&mut self, space: String) -> Result<(), Refusal> {
        if self.progress.spaces.iter().any(|known| known.space == space) {
            return Ok(());
        }
        let max = limits::FORK_SPACES;
        if self.progress.spaces.len() >= max {
            let detail = format!("the history has facts of more than {max} spaces");
            return Err(Refusal::new(Code::LimitExceeded, detail));
        }
        self.progress.spaces.push(CopiedSpace::new(space));
        Ok(())
    }

    /// Copies facts of the spaces that are known so far. Returns `false` if the step has no room.
    fn copy_facts(&mut self, ctx: &mut Context<'_>) -> Result<bool, Abort> {
        for nth in 0..self.progress.spaces.len() {
            while !self.progress.spaces[nth].is_complete {
                if !self.has_room() {
                    return Ok(false);
                }
                let CopiedSpace { space, after, .. } = &self.progress.spaces[nth];
                let max = self.rows_left;
                let facts = memory::find_next_of_session(
                    ctx,
                    &self.origin,
                    space,
                    self.fork.at.0,
                    *after,
                    max,
                )?;
                self.progress.spaces[nth].is_complete = facts.len() < max;
                for fact in facts {
                    self.progress.spaces[nth].after = (fact.updated_at.0, fact.id);
                    self.count(fact.key.len() + fact.value.len(), 1)?;
                    let new = NewMemory {
                        key: fact.key,
                        value: fact.value,
                        confidence: Some(fact.confidence),
                        source_seq: None,
                    };
                    memory::restore(ctx, &self.session, &fact.namespace, vec![new])?;
                }
            }
        }
        Ok(true)
    }

    /// Ends the step before the history ends. Messages that are held back are read again by the next step. If there are too
    /// many for a step, they are written, and missing results come behind them.
    fn pause(&mut self, ctx: &mut Context<'_>) -> Result<(), Abort> {
        if !self.tail.is_empty() && self.has_copied {
            self.progress.open.clear();
            return Ok(());
        }
        self.write_tail(ctx)?;
        self.progress.open.clone_from(&self.open);
        Ok(())
    }

    /// Writes what was held back and the outcomes that the runtime had not written as messages at the event. The results of
    /// an answer come before other messages.
    fn finish(&mut self, ctx: &mut Context<'_>) -> Result<(), Abort> {
        let mut missing = Vec::new();
        for call in std::mem::take(&mut self.open) {
            let new_id = self.new_id(&call.call_id);
            let Some(copied) = ctx.get::<ToolCall>(&*new_id)? else { continue };
            let (text, is_error) = outcome(&copied);
            let data = json!({"call_id": new_id, "name": copied.tool_name,
                "provider_call_id": call.provider_call_id, "is_error": is_error,
                "exit_code": i32::from(is_error)});
            let bytes = text.len();
            let message = NewMessage {
                origin: self.tail.first().map_or(self.read_to, |(message, _)| message.origin),
                role: "tool".to_owned(),
                kind: "message".to_owned(),
                content: Some(text),
                data: Some(data),
                is_of_run: true,
                is_copy: false,
            };
            missing.push((message, bytes));
        }
        if !missing.is_empty() {
            let tail = std::mem::take(&mut self.tail);
            let (mut first, others): (Vec<_>, Vec<_>) = tail
                .into_iter()
                .partition(|(message, _)| message.role == "tool" || message.role == "assistant");
            first.extend(missing);
            first.extend(others);
            self.tail = first;
        }
        self.write_tail(ctx)?;
        self.write_summary(ctx)
    }

    fn write_tail(&mut self, ctx: &mut Context<'_>) -> Result<(), Abort> {
        for (message, bytes) in std::mem::take(&mut self.tail) {
            self.count_bytes(bytes)?;
            self.write(ctx, message)?;
        }
        Ok(())
    }

    fn write(&mut self, ctx: &mut Context<'_>, message: NewMessage) -> Result<(), Abort> {
        let NewMessage { origin, role, kind, content, data, is_of_run, is_copy } = message;
        let run_id = data.as_ref().filter(|_| is_of_run).and_then(rows::run_in_data);
        let data = data.map(Json::from);
        let entry =
            rows::append(ctx, &self.session, NewEntry { role, kind, content, data, run_id })?;
        self.has_copied = true;
        self.fork.messages += 1;
        self.progress.after = self.progress.after.max(origin);
        if self.fork.messages > limits::SNAPSHOT_ROWS as i64 {
            return Err(too_many_rows(limits::SNAPSHOT_ROWS + 1).into());
        }
        let Some(summary) = &mut self.progress.summary else { return Ok(()) };
        let is_covered = summary.through.note(origin, entry.id);
        let is_folded = summary.folded.note(origin, entry.id);
        summary.goal.note(origin, entry.id);
        summary.goal_folded.note(origin, entry.id);
        if is_folded && is_copy && self.kept.contains(&origin) {
            summary.kept.push(entry.id);
        }
        let number = summary.number;
        if is_covered && is_copy {
            self.copy_archived(ctx, origin, entry.id, number)?;
        }
        Ok(())
    }

    /// Copies the mark of a result that the model sees as a marker.
    fn copy_archived(
        &mut self,
        ctx: &mut Context<'_>,
        origin: i64,
        entry_id: i64,
        number: i64,
    ) -> Result<(), Abort> {
        let row = ctx.get::<ArchivedResult>(origin)?;
        let Some(row) = row.filter(|row| row.number <= number) else { return Ok(()) };
        self.count(row.call_id.len(), 1)?;
        ctx.insert(ArchivedResult {
            entry_id,
            session_id: self.session.id.clone(),
            call_id: self.new_id(&row.call_id),
            created_at: ctx.now,
            seq: ctx.seq,
            ..row
        })
        .map(drop)
    }

    /// Returns the summary of the origin.
    fn source_summary(&self, ctx: &mut Context<'_>) -> Result<Option<ContextSummary>, Abort> {
        let Some(summary) = &self.progress.summary else { return Ok(None) };
        ctx.get::<ContextSummary>((self.origin.id.as_str(), summary.number))
    }

    /// Copies the summary, if the copy has messages that it covers.
    fn write_summary(&mut self, ctx: &mut Context<'_>) -> Result<(), Abort> {
        let Some(row) = self.source_summary(ctx)? else { return Ok(()) };
        let Some(copied) = self.progress.summary.take() else { return Ok(()) };
        if copied.through.copy == 0 {
            return Ok(());
        }
        self.count(row.summary.as_str().len() + row.kept.as_str().len(), 1)?;
        ctx.insert(ContextSummary {
            session_id: self.session.id.clone(),
            through_id: copied.through.copy,
            folded_id: copied.folded.copy,
            goal_id: copied.goal.copy,
            goal_folded_id: copied.goal_folded.copy,
            kept: Json::from(json!(copied.kept)),
            // They were in effect in a run, which is not copied.
            handoffs: Json::from(json!([])),
            created_at: ctx.now,
            seq: ctx.seq,
            ..row
        })
        .map(drop)
    }

    fn has_room(&self) -> bool {
        self.rows_left > 0 && self.bytes_left > 0
    }

    /// Returns `true` if the step may copy one more row of this size.
    fn has_room_for(&self, bytes: usize) -> bool {
        self.rows_left > 0 && bytes <= self.bytes_left
    }

    fn spend(&mut self, bytes: usize, rows: usize) {
        self.rows_left = self.rows_left.saturating_sub(rows);
        self.bytes_left = self.bytes_left.saturating_sub(bytes);
    }

    /// Counts rows that are copied now.
    fn count(&mut self, bytes: usize, rows: usize) -> Result<(), Refusal> {
        self.has_copied = true;
        self.spend(bytes, rows);
        self.count_bytes(bytes)
    }

    /// Counts bytes of the whole copy.
    fn count_bytes(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.progress.bytes += bytes;
        if self.progress.bytes <= limits::FORK_BYTES {
            return Ok(());
        }
        let max = limits::FORK_BYTES;
        let detail = format!("the history has more than {max} bytes");
        let hint = "fork the session at an earlier event";
        Err(Refusal::new(Code::LimitExceeded, detail).hint(hint))
    }
}

impl OpenCall {
    /// Reads a call that an answer requests.
    fn from_request(call: &JsonValue) -> Option<OpenCall> {
        let call_id = call["call_id"].as_str()?.to_owned();
        Some(OpenCall { call_id, provider_call_id: call["provider_call_id"].clone() })
    }
}

impl CopiedSpace {
    fn new(space: String) -> CopiedSpace {
        CopiedSpace { space, after: (i64::MIN, i64::MIN), is_complete: false }
    }
}

/// Returns the outcome of a call as a text for a model, and whether it is an error.
fn outcome(call: &ToolCall) -> (String, bool) {
    match call.status {
        ToolCallStatus::Succeeded => {
            let result = call.result.as_ref().map(Json::value).unwrap_or_default();
            match result.get("text").unwrap_or(&result) {
                JsonValue::String(text) => (text.clone(), false),
                other => (other.to_string(), false),
            }
        }
        _ => (call.error.clone().unwrap_or_else(|| format!("The call is {}.", call.status)), true),
    }
}
