//! Summaries: what stands in a model's context in place of older messages. The messages stay; a summary is derived
//! from them, and each is a row.
//!
//! The summaries of a session are a chain. Each covers the messages up to `through_id`, with what the one before it
//! knew. A driver that takes over continues the chain where it ends, so it gets the same context.

use abide_schema::reducer::RowVisibility;
use abide_schema::{
    Abort, Code, Context, Json, Micros, Module, Refusal, Seq, Value, limits, reducer, table,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as JsonValue;

use crate::check;
use crate::message::AgentState;
use crate::run::{self, Run};

const SUMMARIES_STAY: &str =
    "CREATE TRIGGER context_summaries_stay BEFORE UPDATE ON context_summaries
BEGIN SELECT RAISE(FAIL, 'conflict: a summary cannot be changed; record the next one'); END";

const FORWARD: &str = "CREATE TRIGGER context_summaries_forward BEFORE INSERT ON context_summaries
WHEN EXISTS (SELECT 1 FROM context_summaries WHERE session_id = NEW.session_id
  AND (number >= NEW.number OR through_id >= NEW.through_id OR folded_id > NEW.folded_id))
BEGIN SELECT RAISE(FAIL, 'conflict: a summary covers more than the one before it'); END";

/// A summary of a session's messages.
#[table(
    name = "context_summaries",
    constraint = "CHECK (folded_id <= through_id AND through_id <= goal_id)",
    constraint = "CHECK (folded_id <= goal_folded_id AND goal_folded_id <= goal_id)",
    trigger = SUMMARIES_STAY,
    trigger = FORWARD
)]
pub struct ContextSummary {
    /// The session.
    #[column(key, references = "sessions(id)")]
    pub session_id: String,
    /// Its number in the session: 1, 2, 3 …
    #[column(key)]
    pub number: i64,
    /// The run that made it.
    #[column(references = "runs(id)")]
    pub run_id: String,
    /// It covers all messages up to this `agent_state.id`. The model sees markers in place of their results.
    pub through_id: i64,
    /// The model does not see messages up to this id, except those in `kept`.
    pub folded_id: i64,
    /// The compaction that it belongs to is complete when a summary covers the messages up to this id.
    pub goal_id: i64,
    /// `folded_id` of the last summary of that compaction.
    pub goal_folded_id: i64,
    /// The summary: `{stable_facts: [{key, value, confidence}], active_goals, open_questions, discarded_obsolete,
    /// raw_summary}`.
    pub summary: Json,
    /// Ids of messages up to `folded_id` that the model always sees: system messages and the first user message.
    pub kept: Json,
    /// The number of the model's answers up to `folded_id`.
    pub answers: i64,
    /// The handoffs in effect at `folded_id`: an array.
    pub handoffs: Json,
    /// How it was made: `model`, or `fallback` if the model gave no usable summary.
    pub origin: String,
    /// The repairs of the integrity check: `{lost, revived}`; null if none.
    pub repaired: Option<Json>,
    /// The size of the request in tokens before the compaction.
    pub tokens_before: i64,
    /// When it was recorded.
    pub created_at: Micros,
    /// The event that recorded it.
    pub seq: Seq,
}

/// A result that the model sees as a marker. The original stays in `tool_calls` and `agent_state`.
#[table(name = "archived_results", index(session_id, call_id), index(session_id, provider_call_id))]
pub struct ArchivedResult {
    /// The message with the result.
    #[column(key, references = "agent_state(id)")]
    pub entry_id: i64,
    /// The session.
    #[column(references = "sessions(id)")]
    pub session_id: String,
    /// The execution id in the marker: the id of the call.
    pub call_id: String,
    /// The model provider's id of the call.
    pub provider_call_id: Option<String>,
    /// The tool.
    pub tool_name: String,
    /// The number of the summary that covers it.
    pub number: i64,
    /// The size of the result in characters.
    pub characters: i64,
    /// When it was archived.
    pub created_at: Micros,
    /// The event that archived it.
    pub seq: Seq,
}

/// A result to archive.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewArchivedResult {
    /// The message with the result.
    pub entry_id: i64,
    /// The id of the call.
    pub call_id: String,
    /// The model provider's id of the call.
    pub provider_call_id: Option<String>,
    /// The tool.
    pub tool_name: String,
    /// The size of the result in characters.
    pub characters: i64,
}

/// A summary as a driver records it. The fields are those of the row.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSummary {
    /// Its number in the session: one more than the last.
    pub number: i64,
    /// It covers all messages up to this id.
    pub through_id: i64,
    /// The model does not see messages up to this id.
    pub folded_id: i64,
    /// Where the compaction ends.
    pub goal_id: i64,
    /// The last message that the compaction folds.
    pub goal_folded_id: i64,
    /// The summary.
    pub summary: JsonValue,
    /// Ids of messages that the model always sees.
    pub kept: Vec<i64>,
    /// The number of the model's answers up to `folded_id`.
    pub answers: i64,
    /// The handoffs in effect at `folded_id`.
    pub handoffs: Vec<JsonValue>,
    /// `model` or `fallback`.
    pub origin: String,
    /// Repairs of the integrity check.
    pub repaired: Option<JsonValue>,
    /// The size of the request in tokens before the compaction.
    pub tokens_before: i64,
}

/// Returns the module.
#[must_use]
pub fn module() -> Module {
    Module::new("summary")
        .visible::<ContextSummary>(RowVisibility::InScope)
        .visible::<ArchivedResult>(RowVisibility::InScope)
        .copied(("agent_state", "content"), &[("context_summaries", "summary")])
        .copied(("agent_state", "data"), &[("context_summaries", "summary")])
        .reducer(record_summary::definition().wrapping(limits::RECORD_DEPTH))
}

/// Records a summary of a session's messages, and the results that the model sees as markers from now on. It must
/// cover more than the last one.
#[reducer(roles(app, agent))]
pub fn record_summary(
    ctx: &mut Context<'_>,
    #[id(Run)] id: String,
    /// The fencing token of the claim.
    fencing_token: i64,
    /// The summary.
    summary: NewSummary,
    /// The results that it archives. Their messages are in the session.
    archived: Option<Vec<NewArchivedResult>>,
) -> Result<ContextSummary, Abort> {
    let run = run::drive::find_claimed(ctx, &id, fencing_token)?;
    let last = ctx.find::<ContextSummary>(
        "WHERE session_id = ?1 ORDER BY number DESC LIMIT 1",
        &[Value::from(run.session_id.as_str())],
    )?;
    let (number, through_id) = last.first().map_or((0, 0), |last| (last.number, last.through_id));
    if summary.number != number + 1 || summary.through_id <= through_id {
        let detail = format!(
            "the last summary of the session is number {number}, through message {through_id}"
        );
        let hint = "record the next number, for messages after that one";
        return Err(Refusal::new(Code::Conflict, detail).hint(hint).into());
    }
    check_numbers(&summary)?;
    check_entry(ctx, &run, summary.through_id)?;
    for result in archived.unwrap_or_default() {
        archive(ctx, &run, number + 1, &summary, result)?;
    }
    let created_at = ctx.now;
    let seq = ctx.seq;
    ctx.insert(ContextSummary {
        session_id: run.session_id,
        number: summary.number,
        run_id: run.id,
        through_id: summary.through_id,
        folded_id: summary.folded_id,
        goal_id: summary.goal_id,
        goal_folded_id: summary.goal_folded_id,
        summary: Json::from(summary.summary),
        kept: Json::from(JsonValue::from(summary.kept)),
        answers: summary.answers,
        handoffs: Json::from(JsonValue::from(summary.handoffs)),
        origin: summary.origin,
        repaired: summary.repaired.map(Json::from),
        tokens_before: summary.tokens_before,
        created_at,
        seq,
    })
}

fn check_numbers(summary: &NewSummary) -> Result<(), Refusal> {
    let NewSummary { folded_id, through_id, goal_id, goal_folded_id, .. } = *summary;
    check::in_range("folded_id", Some(folded_id), &(0..=through_id))?;
    check::in_range("goal_id", Some(goal_id), &(through_id..=i64::MAX))?;
    check::in_range("goal_folded_id", Some(goal_folded_id), &(folded_id..=goal_id))?;
    check::name("origin", &summary.origin)
}

fn archive(
    ctx: &mut Context<'_>,
    run: &Run,
    number: i64,
    summary: &NewSummary,
    result: NewArchivedResult,
) -> Result<(), Abort> {
    let NewArchivedResult { entry_id, call_id, provider_call_id, tool_name, characters } = result;
    check_entry(ctx, run, entry_id)?;
    if entry_id > summary.through_id {
        let through = summary.through_id;
        let detail = format!("the summary covers messages up to {through}, not {entry_id}");
        return Err(Refusal::new(Code::BadArguments, detail).into());
    }
    let session_id = run.session_id.clone();
    let created_at = ctx.now;
    let seq = ctx.seq;
    ctx.insert(ArchivedResult {
        entry_id,
        session_id,
        call_id,
        provider_call_id,
        tool_name,
        number,
        characters,
        created_at,
        seq,
    })
    .map(drop)
}

/// Checks that a message belongs to the session of a run.
fn check_entry(ctx: &mut Context<'_>, run: &Run, id: i64) -> Result<(), Abort> {
    let found = ctx.get::<AgentState>(id)?;
    if found.is_some_and(|entry| entry.session_id == run.session_id) {
        return Ok(());
    }
    let detail = format!("session {} has no message {id}", run.session_id);
    Err(Refusal::new(Code::NotFound, detail).hint_query("SELECT id, role FROM agent_state").into())
}
