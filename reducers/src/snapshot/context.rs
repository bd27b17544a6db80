//! State of a session in addition to its messages and calls that determines the model's view: the newest summary with
//! the results that it archives, the plan, the facts that belong to the session alone, and the newest measurements of the
//! run. A copy has them, so its next request is the one of the original.
//!
//! Messages are named by their number in the copied history, from 1: their ids differ from file to file.

use std::collections::{BTreeMap, BTreeSet};

use abide_schema::{Abort, Context, Json, Refusal, Value, limits};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value as JsonValue, json};

use super::conversation::NewIds;
use super::invalid;
use crate::check;
use crate::health::{self, HealthAction, NewHealth, RunHealth};
use crate::memory::{self, NewMemory};
use crate::plan::{self, NewPlanStep, PlanVersion};
use crate::run::Run;
use crate::session::Session;
use crate::summary::{ArchivedResult, ContextSummary};

/// State of a session in addition to its messages and calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SnapshotContext {
    /// The newest summary; absent if nothing is summarised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<SnapshotSummary>,
    /// The current plan; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<SnapshotPlan>,
    /// The facts that belong to the session alone, the one that changed last at the end. Facts that sessions share stay where
    /// they are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub facts: Vec<SnapshotFact>,
    /// The measurements of the newest answers of the run, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub health: Vec<SnapshotHealth>,
}

/// A summary of the messages of a session: see `context_summaries`. Messages are numbered from 1; 0 is before all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotSummary {
    /// Its number in the session.
    pub number: i64,
    /// It covers the messages up to this one.
    pub through: i64,
    /// The model does not see messages up to this one, except those in `kept`.
    pub folded: i64,
    /// Where its compaction ends.
    pub goal: i64,
    /// `folded` at the end of its compaction.
    pub goal_folded: i64,
    /// The summary.
    pub summary: JsonValue,
    /// Messages that the model always sees.
    pub kept: Vec<i64>,
    /// The number of the model's answers up to `folded`.
    pub answers: i64,
    /// The handoffs of the run that are in effect at `folded`.
    pub handoffs: Vec<JsonValue>,
    /// How it was made.
    pub origin: String,
    /// Repairs of the integrity check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repaired: Option<JsonValue>,
    /// The size of the request in tokens before the compaction.
    pub tokens_before: i64,
    /// The results that the model sees as markers.
    pub archived: Vec<SnapshotArchivedResult>,
}

/// A result that the model sees as a marker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotArchivedResult {
    /// The message with the result.
    pub message: i64,
    /// The call at the origin.
    pub call_id: String,
    /// The provider's id of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_call_id: Option<String>,
    /// The tool.
    pub tool_name: String,
    /// The number of the summary that covers it.
    pub number: i64,
    /// The size of the result in characters.
    pub characters: i64,
}

/// A plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotPlan {
    /// The number of changes so far.
    pub version: i64,
    /// Its steps, in order.
    pub steps: Vec<NewPlanStep>,
}

/// A fact that belongs to a session alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotFact {
    /// The namespace.
    pub namespace: String,
    /// The subject of the fact.
    pub key: String,
    /// The fact.
    pub value: String,
    /// How certain it is, from 0 to 1.
    pub confidence: f64,
}

/// The measurements of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotHealth {
    /// The number of the answer in the run.
    pub iteration: i64,
    /// The measurements.
    pub measured: NewHealth,
    /// The action of the watchdog.
    pub action: HealthAction,
}

/// The rows that are read of a session, and the runs that made it.
pub(super) struct SessionContext {
    pub(super) context: SnapshotContext,
    /// The run that made the summary.
    pub(super) summary_run: Option<String>,
}

/// How many measurements a driver looks back.
const HEALTH_ROWS: i64 = 5;

/// A function that counts a copied row of some bytes, and refuses too many.
pub(super) type Count<'a> = dyn FnMut(usize) -> Result<(), Refusal> + 'a;

/// Reads what a session had at an event. `ids` are its copied messages, in their order in the copy; `spaces` are the spaces of facts
/// that its messages name.
pub(super) fn read(
    ctx: &mut Context<'_>,
    session: &Session,
    at: i64,
    ids: &[i64],
    spaces: &BTreeSet<String>,
    count: &mut Count<'_>,
) -> Result<SessionContext, Abort> {
    let of_session = [Value::from(session.id.as_str()), Value::from(at)];
    let newest = "WHERE session_id = ?1 AND seq <= ?2 ORDER BY number DESC LIMIT 1";
    let row = ctx.find::<ContextSummary>(newest, &of_session)?.pop();
    let summary_run = row.as_ref().map(|row| row.run_id.clone());
    let summary = match row {
        Some(row) => read_summary(ctx, row, ids, count)?,
        None => None,
    };
    let newest = "WHERE session_id = ?1 AND seq <= ?2 ORDER BY version DESC LIMIT 1";
    let row = ctx.find::<PlanVersion>(newest, &of_session)?.pop();
    let plan = row.map(|row| {
        count(row.steps.as_str().len())?;
        let steps =
            serde_json::from_str(row.steps.as_str()).map_err(|why| Abort::Broken(Box::new(why)))?;
        Ok::<_, Abort>(SnapshotPlan { version: row.version, steps })
    });
    let mut facts = Vec::new();
    for fact in memory::find_of_session(ctx, session, spaces, at)? {
        count(fact.key.len() + fact.value.len())?;
        let namespace = fact.namespace;
        let key = fact.key;
        let value = fact.value;
        facts.push(SnapshotFact { namespace, key, value, confidence: fact.confidence });
    }
    let context = SnapshotContext { summary, plan: plan.transpose()?, facts, health: Vec::new() };
    Ok(SessionContext { context, summary_run })
}

/// Returns the number of the last message of the copy before the first one that is newer than `id`.
fn message_number(ids: &[i64], id: i64) -> i64 {
    ids.iter().take_while(|it| **it <= id).count() as i64
}

/// `None` if the copy has none of the messages that the summary covers.
fn read_summary(
    ctx: &mut Context<'_>,
    row: ContextSummary,
    ids: &[i64],
    count: &mut Count<'_>,
) -> Result<Option<SnapshotSummary>, Abort> {
    let through = message_number(ids, row.through_id);
    if through == 0 {
        return Ok(None);
    }
    count(row.summary.as_str().len() + row.kept.as_str().len() + row.handoffs.as_str().len())?;
    let numbers: BTreeMap<i64, i64> = ids.iter().copied().zip(1..).collect();
    let folded = message_number(ids, row.folded_id);
    let kept = array(&row.kept)
        .iter()
        .filter_map(|id| numbers.get(&id.as_i64()?).copied())
        .filter(|number| *number <= folded)
        .collect();
    let of_session = "WHERE session_id = ?1 ORDER BY call_id LIMIT ?2";
    let params = [Value::from(row.session_id.as_str()), (limits::SNAPSHOT_ROWS as i64 + 1).into()];
    let mut archived = Vec::new();
    for result in ctx.find::<ArchivedResult>(of_session, &params)? {
        let Some(message) = numbers.get(&result.entry_id).copied() else { continue };
        if message > through || result.number > row.number {
            continue;
        }
        count(result.call_id.len())?;
        archived.push(SnapshotArchivedResult {
            message,
            call_id: result.call_id,
            provider_call_id: result.provider_call_id,
            tool_name: result.tool_name,
            number: result.number,
            characters: result.characters,
        });
    }
    archived.sort_by_key(|result| result.message);
    Ok(Some(SnapshotSummary {
        number: row.number,
        through,
        folded,
        goal: message_number(ids, row.goal_id),
        goal_folded: message_number(ids, row.goal_folded_id),
        summary: row.summary.value(),
        kept,
        answers: row.answers,
        handoffs: array(&row.handoffs),
        origin: row.origin,
        repaired: row.repaired.map(|json| json.value()),
        tokens_before: row.tokens_before,
        archived,
    }))
}

/// Returns the items of a column that holds an array.
fn array(column: &Json) -> Vec<JsonValue> {
    column.value().as_array().cloned().unwrap_or_default()
}

/// Reads the newest measurements of a run, the oldest of them first.
pub(super) fn read_health(ctx: &mut Context<'_>, run: &Run) -> Result<Vec<SnapshotHealth>, Abort> {
    let newest = "WHERE run_id = ?1 ORDER BY iteration DESC LIMIT ?2";
    let rows = ctx.find::<RunHealth>(newest, &[run.id.as_str().into(), HEALTH_ROWS.into()])?;
    let measurements = rows.into_iter().rev().map(|row| SnapshotHealth {
        iteration: row.iteration,
        action: row.action,
        measured: NewHealth {
            tokens: row.tokens,
            token_drift: row.token_drift,
            messages: row.messages,
            new_messages: row.new_messages,
            tool_messages: row.tool_messages,
            over_tooling: row.over_tooling,
            context_rot: row.context_rot,
            repeats: row.repeats,
            signals: serde_json::from_str(row.signals.as_str()).unwrap_or_default(),
            unhealthy: row.unhealthy,
        },
    });
    Ok(measurements.collect())
}

/// Returns the space of facts that a message of the runtime names, if it is one about the memory.
pub(super) fn space_in(kind: &str, data: &JsonValue) -> Option<String> {
    let space = data["space"].as_str().filter(|_| kind == "memory")?;
    Some(space.to_owned())
}

impl SnapshotContext {
    pub(super) fn is_empty(&self) -> bool {
        *self == SnapshotContext::default()
    }

    /// How many rows it has.
    pub(super) fn rows(&self) -> usize {
        self.summary.as_ref().map_or(0, |summary| summary.archived.len() + summary.kept.len())
            + self.facts.len()
            + self.health.len()
    }

    /// Checks what does not depend on the file, for a session of so many messages.
    pub(super) fn check(&self, messages: usize) -> Result<(), Refusal> {
        if let Some(summary) = &self.summary {
            summary.check(messages as i64)?;
        }
        if self.health.len() as i64 > HEALTH_ROWS {
            let max = HEALTH_ROWS;
            return Err(invalid(format!("it has measurements of more than {max} answers")));
        }
        let mut before = 0;
        for row in &self.health {
            health::check_health(row.iteration, &row.measured)?;
            if row.iteration <= before {
                return Err(invalid("its measurements are not in order"));
            }
            before = row.iteration;
        }
        match &self.plan {
            Some(plan) => {
                check::in_range("version", Some(plan.version), &(1..=i64::from(u32::MAX)))?;
                plan::check_steps(&plan.steps)
            }
            None => Ok(()),
        }
    }
}

impl SnapshotSummary {
    fn check(&self, messages: i64) -> Result<(), Refusal> {
        let counts = 0..=i64::from(u32::MAX);
        check::in_range("number", Some(self.number), &(1..=*counts.end()))?;
        check::in_range("through", Some(self.through), &(1..=messages))?;
        check::in_range("folded", Some(self.folded), &(0..=self.through))?;
        check::in_range("goal", Some(self.goal), &(self.through..=messages))?;
        check::in_range("goal_folded", Some(self.goal_folded), &(self.folded..=self.goal))?;
        check::in_range("answers", Some(self.answers), &(0..=messages))?;
        check::in_range("tokens_before", Some(self.tokens_before), &(0..=(1 << 53)))?;
        check::name("origin", &self.origin)?;
        for number in &self.kept {
            check::in_range("kept", Some(*number), &(1..=self.folded))?;
        }
        let mut known = BTreeSet::new();
        for result in &self.archived {
            check::in_range("message", Some(result.message), &(1..=self.through))?;
            check::in_range("number", Some(result.number), &(1..=self.number))?;
            check::in_range("characters", Some(result.characters), &counts)?;
            check::name("tool_name", &result.tool_name)?;
            if !known.insert(result.message) {
                let detail = format!("the result in message {} is archived twice", result.message);
                return Err(invalid(detail));
            }
        }
        Ok(())
    }
}

/// Where a context is written.
pub(super) struct Target<'a> {
    pub(super) session: &'a Session,
    /// The run that the rows name.
    pub(super) run_id: &'a str,
    /// The ids of the copied messages, in order.
    pub(super) messages: &'a [i64],
    pub(super) ids: &'a NewIds,
}

impl Target<'_> {
    /// Returns the id of a message; 0 for the place before all.
    fn message(&self, number: i64) -> i64 {
        let at = usize::try_from(number - 1).ok();
        at.and_then(|at| self.messages.get(at)).copied().unwrap_or(0)
    }

    pub(super) fn write_summary(
        &self,
        ctx: &mut Context<'_>,
        source: &SnapshotSummary,
    ) -> Result<(), Abort> {
        let session_id = self.session.id.clone();
        let created_at = ctx.now;
        let seq = ctx.seq;
        for result in &source.archived {
            let call_id =
                self.ids.calls.get(&result.call_id).cloned().ok_or_else(|| {
                    invalid(format!("no message names the call {}", result.call_id))
                })?;
            ctx.insert(ArchivedResult {
                entry_id: self.message(result.message),
                session_id: session_id.clone(),
                call_id,
                provider_call_id: result.provider_call_id.clone(),
                tool_name: result.tool_name.clone(),
                number: result.number,
                characters: result.characters,
                created_at,
                seq,
            })?;
        }
        let kept: Vec<i64> = source.kept.iter().map(|number| self.message(*number)).collect();
        let handoffs = source.handoffs.iter().map(|handoff| {
            let mut holder = json!({ "handoff": handoff });
            self.ids.apply_handoff(&mut holder);
            holder["handoff"].take()
        });
        ctx.insert(ContextSummary {
            session_id,
            number: source.number,
            run_id: self.run_id.to_owned(),
            through_id: self.message(source.through),
            folded_id: self.message(source.folded),
            goal_id: self.message(source.goal),
            goal_folded_id: self.message(source.goal_folded),
            summary: Json::from(&source.summary),
            kept: Json::from(json!(kept)),
            answers: source.answers,
            handoffs: Json::from(JsonValue::Array(handoffs.collect())),
            origin: source.origin.clone(),
            repaired: source.repaired.clone().map(Json::from),
            tokens_before: source.tokens_before,
            created_at,
            seq,
        })
        .map(drop)
    }

    pub(super) fn write_plan(
        &self,
        ctx: &mut Context<'_>,
        source: &SnapshotPlan,
    ) -> Result<(), Abort> {
        plan::restore(ctx, &self.session.id, self.run_id, source.version, &source.steps)
    }

    pub(super) fn write_facts(
        &self,
        ctx: &mut Context<'_>,
        source: &[SnapshotFact],
    ) -> Result<(), Abort> {
        let mut by_namespace: BTreeMap<&str, Vec<NewMemory>> = BTreeMap::new();
        for fact in source {
            let new = NewMemory {
                key: fact.key.clone(),
                value: fact.value.clone(),
                confidence: Some(fact.confidence),
                source_seq: None,
            };
            by_namespace.entry(&fact.namespace).or_default().push(new);
        }
        for (namespace, facts) in by_namespace {
            memory::restore(ctx, self.session, namespace, facts)?;
        }
        Ok(())
    }

    pub(super) fn write_health(
        &self,
        ctx: &mut Context<'_>,
        source: &[SnapshotHealth],
        iterations: i64,
    ) -> Result<(), Abort> {
        // A forged measurement must not stand for a later answer.
        for row in source.iter().filter(|row| row.iteration <= iterations) {
            health::insert(
                ctx,
                self.run_id,
                &self.session.id,
                row.iteration,
                row.measured.clone(),
                row.action,
            )?;
        }
        Ok(())
    }
}
