//! Exporting a run that waits. By default the run ends here, with the code `moved`, so that it continues in one place.

use std::collections::{BTreeMap, BTreeSet};

use abide_schema::reducer::ReducerResult;
use abide_schema::{
    Abort, Code, Context, Json, Refusal, Value, integers, json_values, limits, reducer,
};
use serde_json::{Map, Value as JsonValue};

use super::context::{self, SnapshotContext};
use super::conversation::{NamedCalls, each_message, read_handoff};
use super::format::{
    FORMAT, RunSnapshot, SnapshotAgent, SnapshotCall, SnapshotCallStatus, SnapshotMessage,
    SnapshotRun, VERSION, check_tag,
};
use super::rows::RunMove;
use super::{object, too_many_rows};
use crate::access::policy::Policy;
use crate::agent::AgentRevision;
use crate::budget::RunBudget;
use crate::check;
use crate::cleanup::{self, Task};
use crate::delegation;
use crate::message::AgentState;
use crate::pause::Pause;
use crate::run::{self, Run, RunStatus};
use crate::session::{self, Session, SessionStatus};
use crate::tool::Tool;
use crate::tool_call::{self, ToolCall, ToolCallStatus};

/// Exports a run that waits, for `import_run` in another file: its conversation, the outcomes of its tool calls, and the
/// delegated runs that it waits for. The run ends here as `aborted` with the code `moved`; the same call again returns
/// the same snapshot. With `copy` the run stays, and both continue independently.
/// Refused while a tool call of the run is running.
#[reducer]
pub fn export_run(
    ctx: &mut Context<'_>,
    #[id(Run)] id: String,
    /// Leaves the run as it is.
    copy: Option<bool>,
    /// A label for people, which the snapshot keeps.
    tag: Option<String>,
) -> Result<ReducerResult<RunSnapshot>, Abort> {
    check_tag(tag.as_deref())?;
    let is_copy = copy == Some(true);
    let run = run::find(ctx, &id)?;
    check_whole(ctx, &run)?;
    if let Some(moved) = ctx.without_policies(|ctx| ctx.get::<RunMove>(&id))? {
        let snapshot = serde_json::from_value(moved.snapshot.value())
            .map_err(|why| Abort::Broken(Box::new(why)))?;
        return Ok(ReducerResult::Duplicate(moved.seq, snapshot));
    }
    check_status(&run)?;
    if let Some(parent) = &run.parent_id {
        let detail = format!("run {id} is a part of run {parent}, which delegated it");
        let hint = "export the run that has no parent_id: it includes the delegated runs";
        return Err(Refusal::new(Code::BadTransition, detail).hint(hint).into());
    }
    let mut export = Export::default();
    export.add_tree(ctx, &run)?;
    let snapshot = RunSnapshot {
        format: FORMAT.to_owned(),
        version: VERSION,
        id: ctx.new_id("snap"),
        created_at: ctx.now,
        tag,
        is_copy,
        tools: export.tools.into_iter().collect(),
        agents: export.agents.into_values().collect(),
        runs: export.runs,
    };
    let text = serde_json::to_string(&snapshot).map_err(|why| Abort::Broken(Box::new(why)))?;
    if text.len() > limits::SNAPSHOT_BYTES {
        return Err(too_large(text.len()).into());
    }
    json_values::check(&text)?;
    let value = serde_json::to_value(&snapshot).map_err(|why| Abort::Broken(Box::new(why)))?;
    // Values from before there was a limit can be deeper than what an import accepts: the run would be lost.
    if !ctx.is_replay() {
        let max = integers::MAX_DEPTH + limits::SNAPSHOT_DEPTH;
        integers::check_depth_within(&value, max).map_err(|found| {
            let detail = format!("run {} cannot be exported: the snapshot {found}", run.id);
            Refusal::new(Code::LimitExceeded, detail)
                .hint("the run stays; fork_session copies the history of its session in this file")
        })?;
    }
    if !is_copy {
        move_away(ctx, run, &snapshot, value)?;
    }
    Ok(ReducerResult::Fresh(snapshot))
}

/// Ends the run here, and the runs that it delegated.
fn move_away(
    ctx: &mut Context<'_>,
    run: Run,
    snapshot: &RunSnapshot,
    value: JsonValue,
) -> Result<(), Abort> {
    let row = RunMove {
        run_id: run.id.clone(),
        session_id: run.session_id.clone(),
        snapshot_id: snapshot.id.clone(),
        snapshot: Json::from(value),
        exported_by: ctx.caller.id().to_owned(),
        created_at: ctx.now,
        seq: ctx.seq,
    };
    ctx.without_policies(|ctx| ctx.insert(row))?;
    let task = Task::abort(&run, ctx.seq);
    let why = format!("the run was exported as {} and continues elsewhere", snapshot.id);
    run::stop::end_moved(ctx, run, &why)?;
    cleanup::begin(ctx, task)
}

fn check_status(run: &Run) -> Result<(), Refusal> {
    if run.status == RunStatus::Waiting && run.abort_requested_at.is_none() {
        return Ok(());
    }
    let detail = format!("run {} is {}; only a run that waits can be exported", run.id, run.status);
    let hint = if run.status.is_terminal() {
        let session = check::shell_word(&run.session_id);
        format!("`abide agent fork {session}` copies the history of its session")
    } else {
        format!("pause it first: `abide agent pause {}`", check::shell_word(&run.id))
    };
    Err(Refusal::new(Code::BadTransition, detail).hint(hint))
}

/// The tables that a snapshot copies from.
const COPIED: [&str; 10] = [
    "sessions",
    "agent_state",
    "tool_calls",
    "runs",
    "delegations",
    "context_summaries",
    "archived_results",
    "plan_versions",
    "memories",
    "run_health",
];

/// Refuses a snapshot that would not be whole: a policy hides columns or rows of it from the caller.
fn check_whole(ctx: &mut Context<'_>, run: &Run) -> Result<(), Abort> {
    if ctx.caller.is_unrestricted() {
        return Ok(());
    }
    let role = ctx.caller.role().to_owned();
    for table in COPIED {
        let of_role = "WHERE table_name = ?1 AND role IN (?2, '*')";
        let params = [Value::from(table), Value::from(role.as_str())];
        let policies = ctx.without_policies(|ctx| ctx.find::<Policy>(of_role, &params))?;
        if policies.iter().any(|it| it.condition.is_some() || it.hidden.as_str() != "[]") {
            let detail = format!(
                "a policy hides a part of {table} from the role {role}, so a snapshot of run {} \
                 would not be whole",
                run.id
            );
            let hint = "let an identity export it whose role sees all of the session";
            return Err(Refusal::new(Code::Denied, detail).hint(hint).into());
        }
    }
    Ok(())
}

/// A snapshot in progress.
#[derive(Default)]
struct Export {
    runs: Vec<SnapshotRun>,
    agents: BTreeMap<(String, i64), SnapshotAgent>,
    tools: BTreeSet<String>,
    rows: usize,
    bytes: usize,
}

impl Export {
    /// Adds a run and the active runs below it, each after the one that delegated it.
    fn add_tree(&mut self, ctx: &mut Context<'_>, root: &Run) -> Result<(), Abort> {
        let mut open = vec![root.clone()];
        while let Some(run) = open.pop() {
            let below = delegation::active_children(ctx, &run.id)?;
            below.iter().try_for_each(check_status)?;
            self.add(ctx, run, &below)?;
            open.extend(below);
        }
        Ok(())
    }

    fn add(&mut self, ctx: &mut Context<'_>, run: Run, below: &[Run]) -> Result<(), Abort> {
        let session = session::find(ctx, &run.session_id)?;
        if session.status == SessionStatus::HandedOff || session.status.is_terminal() {
            let detail = format!("session {} is {}", session.id, session.status);
            let hint = "export the run when the supervisor has resolved the handoff";
            return Err(Refusal::new(Code::BadTransition, detail).hint(hint).into());
        }
        if tool_call::has_any(ctx, &session.id, ToolCallStatus::Claimed)? {
            let detail = format!("a tool call of session {} is running", session.id);
            let hint = "export the run when the call has ended; cancel_tool_call asks it to stop";
            return Err(Refusal::new(Code::Conflict, detail).hint(hint).into());
        }
        self.add_agent(ctx, &run.agent, run.revision)?;
        let mut messages = Vec::new();
        let mut named_calls = NamedCalls::default();
        let mut ids = Vec::new();
        let mut spaces = BTreeSet::new();
        each_message(ctx, &session, i64::MAX, |ctx, entry| {
            ids.push(entry.id);
            spaces.extend(
                entry.data.as_ref().and_then(|it| context::space_in(&entry.kind, &it.value())),
            );
            self.add_message(ctx, entry, &mut messages, &mut named_calls)
        })?;
        let context = self.context(ctx, &run, &session, &ids, &spaces)?;
        let mut calls = Vec::new();
        for id in &named_calls.ids {
            let Some(call) = ctx.get::<ToolCall>(id)? else { continue };
            if call.session_id != session.id {
                continue;
            }
            // A call without an outcome is requested again, with its tool.
            self.tools.insert(call.tool_name.clone());
            let delegated = below.iter().any(|child| child.session_id == call.call_id);
            let status = match SnapshotCallStatus::from_outcome(call.status) {
                Some(status) => status,
                None if delegated => SnapshotCallStatus::Delegated,
                None => continue,
            };
            self.add_call(ctx, call, status, &mut calls)?;
        }
        let budget = ctx.without_policies(|ctx| ctx.get::<RunBudget>(&run.id))?;
        let pause = ctx.without_policies(|ctx| ctx.get::<Pause>(&run.id))?;
        let worked_us = Some(run.worked_us(ctx.now));
        let output = snapshot_run(run, session, budget, messages, calls, context);
        let (stage, stage_iteration) = pause.map_or((None, None), |it| (it.stage, it.iteration));
        self.runs.push(SnapshotRun { stage, stage_iteration, worked_us, ..output });
        Ok(())
    }

    fn context(
        &mut self,
        ctx: &mut Context<'_>,
        run: &Run,
        session: &Session,
        ids: &[i64],
        spaces: &BTreeSet<String>,
    ) -> Result<SnapshotContext, Abort> {
        let count = &mut |bytes| self.count(bytes);
        let read = context::read(ctx, session, i64::MAX, ids, spaces, count)?;
        let mut context = read.context;
        if read.summary_run.as_ref() != Some(&run.id)
            && let Some(summary) = &mut context.summary
        {
            // They were in effect in an earlier run.
            summary.handoffs.clear();
        }
        context.health = context::read_health(ctx, run)?;
        Ok(context)
    }

    fn add_message(
        &mut self,
        ctx: &mut Context<'_>,
        entry: AgentState,
        messages: &mut Vec<SnapshotMessage>,
        named_calls: &mut NamedCalls,
    ) -> Result<(), Abort> {
        let AgentState { role, kind, content, data, run_id, .. } = entry;
        let is_of_run = run_id.is_some();
        let bytes = content.as_ref().map_or(0, String::len);
        self.count(bytes + data.as_ref().map_or(0, |data| data.as_str().len()))?;
        let data = data.map(|data| data.value());
        if let Some(data) = &data {
            named_calls.add(data);
            if let Some((agent, revision)) = read_handoff(data) {
                self.add_agent(ctx, agent, revision)?;
            }
        }
        messages.push(SnapshotMessage { role, kind, content, data, is_of_run });
        Ok(())
    }

    fn add_call(
        &mut self,
        ctx: &mut Context<'_>,
        call: ToolCall,
        status: SnapshotCallStatus,
        calls: &mut Vec<SnapshotCall>,
    ) -> Result<(), Abort> {
        let result = call.result.as_ref().map_or(0, |result| result.as_str().len());
        self.count(call.arguments.as_str().len() + result)?;
        // A failed call has the exit code of its program.
        let may_have_one =
            matches!(status, SnapshotCallStatus::Succeeded | SnapshotCallStatus::Failed);
        let result = call.result.map(|result| result.value());
        let content = result.as_ref().map(|result| &result["content"]);
        if let Some((agent, revision)) = content.and_then(read_handoff) {
            self.add_agent(ctx, agent, revision)?;
        }
        calls.push(SnapshotCall {
            call_id: call.call_id,
            tool_name: call.tool_name,
            arguments: call.arguments.value(),
            provider_call_id: call.provider_call_id,
            status,
            attempt: call.attempt,
            result: result.filter(|_| may_have_one),
            error: call.error,
        });
        Ok(())
    }

    fn count(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.rows += 1;
        self.bytes += bytes;
        if self.rows > limits::SNAPSHOT_ROWS {
            return Err(too_many_rows(self.rows));
        }
        if self.bytes > limits::SNAPSHOT_BYTES { Err(too_large(self.bytes)) } else { Ok(()) }
    }

    /// Adds an agent, with its definition and its tools if the caller may read definitions.
    fn add_agent(&mut self, ctx: &mut Context<'_>, name: &str, revision: i64) -> Result<(), Abort> {
        let key = (name.to_owned(), revision);
        if self.agents.contains_key(&key) {
            return Ok(());
        }
        let row = ctx.without_policies(|ctx| ctx.get::<AgentRevision>((name, revision)))?;
        let definition = row.map(|row| row.definition.value()).unwrap_or_default();
        if !definition["cli"].is_null() {
            let detail = format!("agent {name} is a program, whose own session stays here");
            let hint = "only runs of agents with a model can be exported";
            return Err(Refusal::new(Code::BadTransition, detail).hint(hint).into());
        }
        // Prompts and the lists of tools belong to the operator.
        let may_read =
            ctx.caller.scope().is_empty() && ctx.get::<AgentRevision>((name, revision))?.is_some();
        let definition = match definition {
            JsonValue::Object(definition) if may_read => Some(definition),
            _ => None,
        };
        if let Some(definition) = &definition {
            for tool in selected_tools(ctx, definition)? {
                self.tools.insert(tool);
            }
        }
        let agent = SnapshotAgent { name: name.to_owned(), revision, definition };
        self.agents.insert(key, agent);
        Ok(())
    }
}

/// Returns the registered tools that a definition selects.
fn selected_tools(
    ctx: &mut Context<'_>,
    definition: &Map<String, JsonValue>,
) -> Result<BTreeSet<String>, Abort> {
    let mut tools = BTreeSet::new();
    for name in listed_names(definition, "tools") {
        let Some(prefix) = name.strip_suffix('*') else {
            tools.insert(name.to_owned());
            continue;
        };
        let of_prefix = "WHERE name >= ?1 AND substr(name, 1, length(?1)) = ?1
            ORDER BY name LIMIT ?2";
        let params = [prefix.into(), (limits::TOOLS_OF_A_CLAIM as i64).into()];
        let found = ctx.find::<Tool>(of_prefix, &params)?;
        // All tools of this file: which of them the run needs is not known.
        if !prefix.is_empty() {
            tools.extend(found.into_iter().map(|tool| tool.name));
        }
    }
    for excluded in listed_names(definition, "excluded_tools") {
        tools.remove(excluded);
    }
    Ok(tools)
}

/// Returns the names that a member of a definition lists.
fn listed_names<'a>(
    definition: &'a Map<String, JsonValue>,
    member: &str,
) -> impl Iterator<Item = &'a str> {
    let names = definition.get(member).and_then(JsonValue::as_array).into_iter().flatten();
    names.filter_map(JsonValue::as_str)
}

fn snapshot_run(
    run: Run,
    session: Session,
    budget: Option<RunBudget>,
    messages: Vec<SnapshotMessage>,
    calls: Vec<SnapshotCall>,
    context: SnapshotContext,
) -> SnapshotRun {
    let own_tokens = run.input_tokens + run.output_tokens;
    let own_cost = run.cost_micros.unwrap_or(0);
    SnapshotRun {
        id: run.id,
        session_id: run.session_id,
        agent: run.agent,
        revision: run.revision,
        parent_id: run.parent_id,
        title: session.title,
        scope: object(&session.scope),
        metadata: object(&session.metadata),
        reason: run.reason,
        turn: Some(run.turn),
        iterations: run.iterations,
        tool_calls: run.tool_calls,
        input_tokens: run.input_tokens,
        output_tokens: run.output_tokens,
        usage_missing: run.usage_missing,
        cost_micros: run.cost_micros,
        budget_tokens: budget.as_ref().map_or(own_tokens, |budget| budget.tokens),
        budget_cost_micros: budget.as_ref().map_or(own_cost, |budget| budget.cost_micros),
        deadline_at: run.deadline_at,
        began_at: run.created_at,
        worked_us: None,
        stage: None,
        stage_iteration: None,
        messages,
        calls,
        context,
    }
}

fn too_large(bytes: usize) -> Refusal {
    let max = limits::SNAPSHOT_BYTES;
    let detail = format!("the snapshot has {bytes} bytes or more; the limit is {max}");
    let hint = "copy the file with `abide backup` to continue a long run elsewhere";
    Refusal::new(Code::LimitExceeded, detail).hint(hint)
}
