//! Importing a snapshot. It comes from outside, so everything in it may be forged. What it can do:
//!
//! - It creates a session and a run of the importing caller, within its scope, with new or free ids. Ids inside the
//!   snapshot are replaced by ids below the new run; they refer to nothing else.
//! - Calls with an outcome are stored as reported by the importing caller (`settled_by`), with the snapshot as evidence.
//!   Calls without one are not stored: the driver requests them, with the approvals that this file demands.
//! - The definitions and the tools are those of this file.

use std::collections::{BTreeMap, BTreeSet};

use abide_schema::reducer::{DERIVED, IdArgumentKind, ReducerResult, check_chosen};
use abide_schema::{Abort, Code, Context, Json, Micros, Refusal, Value, limits, reducer};
use serde_json::{Map, Value as JsonValue, json};

use super::context::{SnapshotContext, Target};
use super::conversation::{NamedCalls, NewIds};
use super::format::{RunSnapshot, SnapshotCall, SnapshotCallStatus, SnapshotMessage, SnapshotRun};
use super::handoffs::{self, Counters};
use super::invalid;
use super::rows::RunImport;
use crate::agent::{Agent, AgentRevision, RunPurpose};
use crate::message::rows::{self, NewEntry};
use crate::run::{self, Run, RunEventKind, RunStatus};
use crate::session::{self, NewSession, Session, SessionStatus};
use crate::tool::Tool;
use crate::tool_call::{RequestedCall, ToolCall};
use crate::{agent, budget, check, claim_queue, delegation, lease, pause};

/// Imports a snapshot of `export_run`: creates its session and its run, which a driver continues. The tools and agents
/// of the snapshot must exist here, with the same definitions; `any_definition` accepts others. The same snapshot with
/// the same `id` is the same run.
#[reducer]
pub fn import_run(
    ctx: &mut Context<'_>,
    snapshot: RunSnapshot,
    /// The id of the run here; the id at its origin if omitted.
    #[id(new, Run)]
    id: Option<String>,
    /// The id of its session here; the id of the run if omitted.
    #[id(new, Session)]
    session_id: Option<String>,
    /// Continues with the definitions of this file, even if they differ from those of the snapshot.
    any_definition: Option<bool>,
) -> Result<ReducerResult<Run>, Abort> {
    snapshot.check(ctx)?;
    let root = &snapshot.runs[0];
    let id = match id {
        Some(id) => id,
        None => ctx.stored_id::<Run>(root.id.clone(), NEW)?,
    };
    let session_id = match session_id {
        Some(session_id) => session_id,
        // As `agent run` names both.
        None => ctx.stored_id::<Session>(id.clone(), NEW)?,
    };
    check::name("id", &id)?;
    check::name("session_id", &session_id)?;
    let before = find_imported(ctx, &snapshot.id)?;
    if let Some(before) = before.filter(|before| !snapshot.is_copy || before.id == id) {
        return repeat_import(ctx, before, &id);
    }
    check_free(ctx, &id, &session_id)?;
    check_tools(ctx, &snapshot)?;
    let revisions = find_revisions(ctx, &snapshot, any_definition == Some(true))?;
    let mut import = Import { snapshot: &snapshot, revisions, runs: BTreeMap::new() };
    let mut first = None;
    for (at, source) in snapshot.runs.iter().enumerate() {
        let run = match at {
            0 => import.add(ctx, source, id.clone(), session_id.clone(), None)?,
            _ => import.add_delegated(ctx, source)?,
        };
        first.get_or_insert(run);
    }
    let run = first.ok_or_else(|| invalid("it has no run"))?;
    ctx.about(&session_id);
    ctx.insert(RunImport {
        run_id: id.clone(),
        session_id,
        snapshot_id: snapshot.id.clone(),
        origin_run_id: root.id.clone(),
        is_copy: snapshot.is_copy,
        imported_by: ctx.caller.id().to_owned(),
        created_at: ctx.now,
        seq: ctx.seq,
    })?;
    Ok(ReducerResult::Fresh(ctx.get::<Run>(&id)?.unwrap_or(run)))
}

const NEW: IdArgumentKind = IdArgumentKind::New;

/// Returns the run of this snapshot, if it was imported before.
fn find_imported(ctx: &mut Context<'_>, snapshot_id: &str) -> Result<Option<Run>, Abort> {
    let of_snapshot = "WHERE snapshot_id = ?1 ORDER BY run_id LIMIT 1";
    let found = ctx.find::<RunImport>(of_snapshot, &[Value::from(snapshot_id)])?;
    match found.first() {
        Some(import) => ctx.get::<Run>(&import.run_id),
        None => Ok(None),
    }
}

fn repeat_import(
    ctx: &mut Context<'_>,
    mut before: Run,
    id: &str,
) -> Result<ReducerResult<Run>, Abort> {
    ctx.about(&before.session_id);
    if before.id == id {
        lease::hide_token(ctx, &mut before.fencing_token)?;
        return Ok(ReducerResult::Duplicate(before.seq, before));
    }
    let detail = format!("this snapshot was imported as run {}", before.id);
    let hint = "a snapshot continues once; export with copy=true to continue several times";
    Err(Refusal::new(Code::Conflict, detail).hint(hint).into())
}

fn check_free(ctx: &mut Context<'_>, id: &str, session_id: &str) -> Result<(), Abort> {
    // The default id comes from the snapshot and can be anything.
    check_chosen(id)?;
    check_chosen(session_id)?;
    let hint = "give another id: `abide agent import FILE --id ID`";
    if ctx.get::<Run>(id)?.is_some() {
        let detail = format!("there is already a run {id}");
        return Err(Refusal::new(Code::Conflict, detail).hint(hint).into());
    }
    if ctx.get::<Session>(session_id)?.is_some() {
        let detail = format!("there is already a session {session_id}");
        return Err(Refusal::new(Code::Conflict, detail).hint(hint).into());
    }
    Ok(())
}

fn check_tools(ctx: &mut Context<'_>, snapshot: &RunSnapshot) -> Result<(), Abort> {
    let calls = snapshot.runs.iter().flat_map(|run| &run.calls);
    let names: BTreeSet<&str> =
        calls.map(|call| &*call.tool_name).chain(snapshot.tools.iter().map(|it| &**it)).collect();
    let mut missing = Vec::new();
    for name in names {
        check::name("a name in tools", name)?;
        if ctx.get::<Tool>(name)?.is_none() {
            missing.push(name);
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let detail = format!("this file does not have the tools of the run: {}", missing.join(", "));
    let hint = "start a runtime that has these tools and the agents behind them on this file, \
                or register_tool, and import again";
    Err(Refusal::new(Code::NotFound, detail).hint(hint).into())
}

/// Returns the revisions of the agents in this file.
fn find_revisions(
    ctx: &mut Context<'_>,
    snapshot: &RunSnapshot,
    any_definition: bool,
) -> Result<BTreeMap<String, i64>, Abort> {
    let mut revisions = BTreeMap::new();
    for source in &snapshot.agents {
        check::name("the name of an agent", &source.name)?;
        let agent = agent::find(ctx, &source.name)?;
        if agent.retired_at.is_some() {
            return Err(agent::agent_retired(&agent.name).into());
        }
        revisions.insert(source.name.clone(), agent.revision);
        if !any_definition {
            check_definition(ctx, snapshot, &agent)?;
        }
    }
    Ok(revisions)
}

/// Refuses an agent that is defined differently here.
fn check_definition(
    ctx: &mut Context<'_>,
    snapshot: &RunSnapshot,
    agent: &Agent,
) -> Result<(), Abort> {
    let name = &agent.name;
    let hint = "any_definition (--any-definition) continues the run with the definition here";
    // A caller with a scope learns nothing about a definition by comparing it with guesses.
    let may_read = ctx.caller.scope().is_empty();
    let own = ctx.get::<AgentRevision>((name.as_str(), agent.revision))?.filter(|_| may_read);
    let source: Vec<&Map<String, JsonValue>> = snapshot
        .agents
        .iter()
        .filter(|agent| agent.name == *name)
        .filter_map(|agent| agent.definition.as_ref())
        .collect();
    let (Some(own), false) = (own, source.is_empty()) else {
        let detail = format!(
            "the definition of agent {name} at the origin cannot be compared with the one in this file"
        );
        return Err(Refusal::new(Code::Conflict, detail).hint(hint).into());
    };
    let own = own.definition.value();
    if source.iter().any(|source| own.as_object() == Some(*source)) {
        return Ok(());
    }
    let empty = Map::new();
    let own = own.as_object().unwrap_or(&empty);
    let last = source.last().copied().unwrap_or(&empty);
    let all: BTreeSet<&String> = own.keys().chain(last.keys()).collect();
    // The members of a snapshot can have any names.
    let other: Vec<String> = all
        .into_iter()
        .filter(|it| own.get(*it) != last.get(*it))
        .map(|it| it.escape_debug().to_string())
        .collect();
    let detail = format!("agent {name} is defined differently here: {}", other.join(", "));
    Err(Refusal::new(Code::Conflict, detail).hint(hint).into())
}

/// Writes what else belongs to the session of a run.
fn add_context(
    ctx: &mut Context<'_>,
    target: &Target<'_>,
    source: &SnapshotContext,
    iterations: i64,
) -> Result<(), Abort> {
    if let Some(summary) = &source.summary {
        target.write_summary(ctx, summary)?;
    }
    if let Some(plan) = &source.plan {
        target.write_plan(ctx, plan)?;
    }
    target.write_facts(ctx, &source.facts)?;
    target.write_health(ctx, &source.health, iterations)
}

/// What a run and the runs below it have consumed: at least what their own counters say. A forged budget must not give a run
/// more than its limits.
struct Consumed {
    tokens: i64,
    cost_micros: i64,
}

impl Consumed {
    fn count(snapshot: &RunSnapshot, run: &SnapshotRun) -> Consumed {
        let mut counted = Consumed {
            tokens: run.input_tokens.saturating_add(run.output_tokens),
            cost_micros: run.cost_micros.unwrap_or(0),
        };
        let below = snapshot.runs.iter().filter(|it| it.parent_id.as_ref() == Some(&run.id));
        for below in below.map(|run| Consumed::count(snapshot, run)) {
            counted.tokens = counted.tokens.saturating_add(below.tokens);
            counted.cost_micros = counted.cost_micros.saturating_add(below.cost_micros);
        }
        Consumed {
            tokens: counted.tokens.max(run.budget_tokens),
            cost_micros: counted.cost_micros.max(run.budget_cost_micros),
        }
    }
}

/// Checks the numbers in a message of a driver, with which later answers count.
fn check_numbers(message: &SnapshotMessage) -> Result<(), Refusal> {
    const NUMBERS: [&str; 4] = ["past_limit", "input_tokens", "estimated_tokens", "cut_results"];
    let Some(data) = &message.data else { return Ok(()) };
    for name in NUMBERS {
        let counts = 0..=i64::from(u32::MAX);
        let number = data.get(name).map_or(Some(0), JsonValue::as_i64);
        if !number.is_some_and(|number| counts.contains(&number)) {
            return Err(invalid(format!("{name} of a message must be between 0 and {}", u32::MAX)));
        }
    }
    Ok(())
}

/// Returns the microseconds since a run began.
fn lived_us(source: &SnapshotRun, now: Micros) -> i64 {
    now.0.saturating_sub(source.began_at.0).max(0)
}

/// Returns the microseconds in which a run has not waited: at least those that its handoffs count, and at most all since it began.
/// The rest until now is the time that it has waited.
fn worked_us<'a>(
    source: &SnapshotRun,
    messages: impl Iterator<Item = &'a SnapshotMessage>,
    now: Micros,
) -> i64 {
    let lived = lived_us(source, now);
    let Some(worked) = source.worked_us else { return lived };
    let handoffs = messages.filter_map(|message| message.data.as_ref()?.get("handoff"));
    let own = handoffs.filter(|handoff| handoff["run_id"] == source.id.as_str());
    let counted = own.filter_map(|handoff| handoff["worked_us"].as_i64()).max();
    // The clock of a driver can be ahead of that of the file.
    worked.max(counted.unwrap_or(0)).min(lived)
}

/// Returns the part of a call's id behind the id of its run; `None` if it is not a call of this run.
fn place_in_run(call_id: &str, run_id: &str) -> Option<String> {
    let place = call_id.strip_prefix(run_id)?.strip_prefix(DERIVED)?;
    (!place.is_empty() && !place.contains(DERIVED)).then(|| place.to_owned())
}

/// An import in progress.
struct Import<'a> {
    snapshot: &'a RunSnapshot,
    /// The revisions of the agents in this file.
    revisions: BTreeMap<String, i64>,
    /// The runs so far, by their ids at the origin, with the ids of their calls.
    runs: BTreeMap<String, (Run, NewIds)>,
}

impl Import<'_> {
    /// Adds a run that a run before it delegated.
    fn add_delegated(&mut self, ctx: &mut Context<'_>, source: &SnapshotRun) -> Result<Run, Abort> {
        let missing_parent = || invalid(format!("run {} has no parent", source.id));
        let (parent, ids) = source
            .parent_id
            .as_ref()
            .and_then(|id| self.runs.get(id))
            .ok_or_else(missing_parent)?;
        let call_id = ids.calls.get(&source.session_id).cloned().ok_or_else(missing_parent)?;
        // As it is stored now: its children have changed it.
        let parent = ctx.get::<Run>(&parent.id)?.ok_or_else(missing_parent)?;
        let above = session::find_accepting(ctx, &parent.session_id)?;
        let starter = ctx.caller.clone();
        let purpose = RunPurpose::Delegation;
        let agent = agent::find_ready(ctx, &source.agent, purpose, &starter, &above.scope)?;
        let place = delegation::check_admission(ctx, &parent)?;
        let id = format!("{call_id}{DERIVED}run");
        let source = SnapshotRun { agent: agent.name, ..source.clone() };
        let run = self.add(ctx, &source, id, call_id.clone(), Some(&parent))?;
        delegation::insert_row(ctx, &run, &parent, place, Some(call_id))?;
        Ok(run)
    }

    fn add(
        &mut self,
        ctx: &mut Context<'_>,
        source: &SnapshotRun,
        id: String,
        session_id: String,
        parent: Option<&Run>,
    ) -> Result<Run, Abort> {
        let session = match parent {
            Some(parent) => {
                let above = session::find_accepting(ctx, &parent.session_id)?;
                session::create_child(ctx, session_id, source.agent.clone(), &above)?
            }
            None => {
                let starter = ctx.caller.clone();
                let scope = Json::from(json!(source.scope));
                agent::find_ready(ctx, &source.agent, RunPurpose::Session, &starter, &scope)?;
                let scope = source.scope.clone();
                let metadata = source.metadata.clone();
                let agent = source.agent.clone();
                let title = source.title.clone();
                let id = session_id;
                session::insert(
                    ctx,
                    NewSession { id, agent, title, parent_id: None, scope, metadata },
                )?
            }
        };
        let session = session::to_status(ctx, session, SessionStatus::Active, |_| {})?;
        let ids = self.new_ids(source, &id);
        let mut messages = Vec::new();
        for message in &source.messages {
            let mut data = message.data.clone();
            if let Some(data) = &mut data {
                ids.apply(data);
            }
            let role = message.role.clone();
            let kind = message.kind.clone();
            let content = message.content.clone();
            let run_id = data.as_ref().filter(|_| message.is_of_run).and_then(rows::run_in_data);
            let data = data.map(Json::from);
            let entry = NewEntry { role, kind, content, data, run_id };
            messages.push(rows::append(ctx, &session, entry)?.id);
        }
        for call in &source.calls {
            self.add_call(ctx, &session, call, &ids)?;
        }
        let run = self.add_run(ctx, source, id, &session, parent)?;
        for message in source.messages.iter().filter(|it| it.role == "tool" && it.is_of_run) {
            let mut data = message.data.clone().unwrap_or_default();
            ids.apply(&mut data);
            if rows::run_in_data(&data).as_ref() == Some(&run.id) {
                run::active_agent::apply(ctx, &run.id, &data)?;
            }
        }
        if let (Some(stage), Some(iteration)) = (source.stage, source.stage_iteration) {
            // A forged place must not skip the pauses of later answers.
            pause::restore(ctx, &run, stage, iteration.min(run.iterations))?;
        }
        let Consumed { tokens, cost_micros } = Consumed::count(self.snapshot, source);
        budget::restore(ctx, &run, tokens, cost_micros)?;
        let target = Target { session: &session, run_id: &run.id, messages: &messages, ids: &ids };
        add_context(ctx, &target, &source.context, run.iterations)?;
        self.runs.insert(source.id.clone(), (run.clone(), ids));
        Ok(run)
    }

    /// Returns the ids of a run's calls: those of the run keep their place in it; others, of earlier runs in the
    /// session, get ids that the run cannot request.
    fn new_ids(&self, source: &SnapshotRun, id: &str) -> NewIds {
        let mut named_calls = NamedCalls::default();
        source
            .messages
            .iter()
            .filter_map(|message| message.data.as_ref())
            .for_each(|it| named_calls.add(it));
        source.calls.iter().for_each(|call| named_calls.add(&json!({"call_id": call.call_id})));
        let taken: BTreeSet<String> = named_calls
            .ids
            .iter()
            .filter_map(|call_id| place_in_run(call_id, &source.id))
            .collect();
        let mut free = (1..).map(|n: usize| format!("h{n}")).filter(|it| !taken.contains(it));
        let calls = named_calls
            .ids
            .into_iter()
            .filter_map(|call_id| {
                let place = place_in_run(&call_id, &source.id).or_else(|| free.next())?;
                Some((call_id, format!("{id}{DERIVED}{place}")))
            })
            .collect();
        let run = Some((source.id.clone(), id.to_owned()));
        NewIds { run, calls, revisions: self.revisions.clone() }
    }

    fn add_call(
        &self,
        ctx: &mut Context<'_>,
        session: &Session,
        source: &SnapshotCall,
        ids: &NewIds,
    ) -> Result<(), Abort> {
        let call_id = ids
            .calls
            .get(&source.call_id)
            .cloned()
            .ok_or_else(|| invalid(format!("call {} has no id", source.call_id)))?;
        check::name("call_id", &call_id)?;
        let tool = ctx
            .get::<Tool>(&*source.tool_name)?
            .ok_or_else(|| invalid(format!("there is no tool {}", source.tool_name)))?;
        let mut result = source.result.clone();
        if let Some(content) = result.as_mut().and_then(|result| result.get_mut("content")) {
            ids.apply_handoff(content);
        }
        let is_open = source.status == SnapshotCallStatus::Delegated;
        let by = (source.status != SnapshotCallStatus::Unknown && !is_open)
            .then(|| ctx.caller.id().to_owned());
        let evidence = by.as_ref().map(|_| Json::from(json!({"snapshot": self.snapshot.id})));
        let requested = RequestedCall {
            call_id,
            session_id: session.id.clone(),
            tool_name: tool.name.clone(),
            tool_version: tool.version,
            arguments: Json::from(&source.arguments),
            provider_call_id: source.provider_call_id.clone(),
            status: source.status.imported(),
        };
        let call = ToolCall {
            attempt: source.attempt,
            result: result.map(Json::from),
            error: source.error.clone(),
            evidence,
            settled_by: by,
            ..requested.into_row(ctx)
        };
        let call = ctx.insert(call)?;
        if is_open {
            claim_queue::set(ctx, call.entry(), true)?;
        }
        Ok(())
    }

    /// Checks the messages that drivers wrote, and returns the counters of a run. They are at least those of its messages: a
    /// forged count must not give a run more than its limits.
    fn checked_counters(
        &self,
        ctx: &mut Context<'_>,
        source: &SnapshotRun,
    ) -> Result<Counters, Abort> {
        let written = source.messages.iter().filter(|message| message.is_of_run);
        let answers = written
            .clone()
            .filter_map(|message| message.data.as_ref())
            .filter(|data| data["run_id"] == source.id.as_str());
        let counted = answers.clone().filter_map(|it| it["iteration"].as_i64()).max();
        let counts = 0..=i64::from(u32::MAX);
        if let Some(number) = counted.filter(|it| !counts.contains(it)) {
            return Err(invalid(format!("an answer has the number {number}")).into());
        }
        // The structured answer is not a tool call.
        let requested = answers
            .filter_map(|data| data["calls"].as_array())
            .flatten()
            .filter(|call| call["name"] != "response")
            .count();
        let counters = Counters {
            iterations: source.iterations.max(counted.unwrap_or(0)),
            tool_calls: source.tool_calls.max(requested as i64),
            worked_us: worked_us(source, written.clone(), ctx.now),
        };
        let messages = written.clone().filter(|message| message.role == "tool");
        handoffs::check(ctx, source, messages, &self.revisions, counters)?;
        written.clone().try_for_each(check_numbers)?;
        handoffs::check_order(source, &written.collect::<Vec<_>>(), counters)?;
        Ok(counters)
    }

    fn add_run(
        &self,
        ctx: &mut Context<'_>,
        source: &SnapshotRun,
        id: String,
        session: &Session,
        parent: Option<&Run>,
    ) -> Result<Run, Abort> {
        let Counters { iterations, tool_calls, worked_us } = self.checked_counters(ctx, source)?;
        let now = ctx.now;
        let seq = ctx.seq;
        let revision = self.revisions.get(&source.agent).copied().unwrap_or_default();
        // Neither must a forged time, or the limit of another definition.
        let last = now.plus_ms(*limits::AHEAD_MS.end());
        let deadline_at =
            run::must_end(ctx, &source.agent, revision, source.began_at, source.deadline_at)?
                .map(|at| at.min(last));
        let mut run = Run {
            id,
            session_id: session.id.clone(),
            agent: source.agent.clone(),
            revision,
            parent_id: parent.map(|parent| parent.id.clone()),
            status: RunStatus::Running,
            reason: None,
            driver: None,
            fencing_token: None,
            lease_expires_at: None,
            turn: source.turn.unwrap_or(0) + 1,
            iterations,
            tool_calls,
            input_tokens: source.input_tokens,
            output_tokens: source.output_tokens,
            usage_missing: source.usage_missing.min(iterations),
            cost_micros: source.cost_micros,
            events: 0,
            deadline_at,
            abort_requested_at: None,
            output: None,
            error_code: None,
            error_message: None,
            created_at: source.began_at,
            ended_at: None,
            updated_at: now,
            seq,
            waited_us: Some(lived_us(source, now) - worked_us).filter(|waited| *waited > 0),
            waiting_since: None,
        };
        let starter = ctx.caller.clone();
        run::starter::insert(ctx, &run, &starter)?;
        claim_queue::set(ctx, run.entry(), true)?;
        run::list::insert_entries(ctx, &run.listed())?;
        let mut from = json!({"status": "imported", "snapshot_id": self.snapshot.id,
            "origin_run_id": source.id, "iterations": run.iterations});
        if let Some(tag) = &self.snapshot.tag {
            from["tag"] = json!(tag);
        }
        run::add_consequence(ctx, &mut run, RunEventKind::Status, from)?;
        run::save(ctx, run)
    }
}
