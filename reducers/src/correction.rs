//! Corrections: the result of a run that has ended, as a better parser reads the program's stored lines. The run, its events
//! and its messages stay as they happened. A correction is a row of its own, the last one of a run counts, and what it replaces
//! is in it.

use std::cmp::Ordering;

use abide_schema::reducer::{ReducerResult, RowVisibility};
use abide_schema::{
    Abort, Code, Context, Json, Micros, Module, Refusal, Seq, Value, limits, reducer, table,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::check;
use crate::run::{self, NewRunEvent, Run, RunStatus};

const CORRECTIONS_STAY: &str =
    "CREATE TRIGGER run_corrections_stay BEFORE UPDATE ON run_corrections
BEGIN SELECT RAISE(FAIL, 'conflict: a correction is never changed'); END";

/// The results of runs that have ended, with the last correction of each.
const RUN_RESULTS: &str = "SELECT r.id AS run_id, r.session_id, r.agent,
  COALESCE(c.number, 0) AS corrections,
  CASE WHEN c.run_id IS NULL THEN r.status ELSE c.after ->> '$.status' END AS status,
  CASE WHEN c.run_id IS NULL THEN r.error_code ELSE c.after ->> '$.error_code' END AS error_code,
  CASE WHEN c.run_id IS NULL THEN r.error_message ELSE c.after ->> '$.error_message' END
    AS error_message,
  CASE WHEN c.run_id IS NULL THEN r.output ->> '$.content' ELSE c.after ->> '$.answer' END AS answer,
  CASE WHEN c.run_id IS NULL THEN r.tool_calls ELSE c.after ->> '$.tool_calls' END AS tool_calls,
  CASE WHEN c.run_id IS NULL THEN r.input_tokens ELSE c.after ->> '$.input_tokens' END
    AS input_tokens,
  CASE WHEN c.run_id IS NULL THEN r.output_tokens ELSE c.after ->> '$.output_tokens' END
    AS output_tokens,
  CASE WHEN c.run_id IS NULL THEN r.cost_micros ELSE c.after ->> '$.cost_micros' END AS cost_micros,
  r.ended_at, COALESCE(c.seq, r.seq) AS seq
FROM runs r LEFT JOIN run_corrections c ON c.run_id = r.id
  AND NOT EXISTS (SELECT 1 FROM run_corrections l WHERE l.run_id = c.run_id AND l.number > c.number)
WHERE r.ended_at IS NOT NULL";

/// A correction of the result of a run.
#[table(name = "run_corrections", index(session_id), trigger = CORRECTIONS_STAY)]
pub struct RunCorrection {
    /// The run.
    #[column(key, references = "runs(id)")]
    pub run_id: String,
    /// Its number among the corrections of the run, from 1. The last one counts.
    #[column(key)]
    pub number: i64,
    /// The session of the run.
    #[column(references = "sessions(id)")]
    pub session_id: String,
    /// The result before it: that of the run, or of the correction before.
    pub before: Json,
    /// The result after it: `status`, `error_code`, `error_message`, `answer`, `tool_calls`, `input_tokens`, `output_tokens`,
    /// `cost_micros`.
    pub after: Json,
    /// All lines that are read differently than in the events of the run: a JSON array of `{number, events}`, with the number of
    /// the line's event and what the line means.
    pub lines: Json,
    /// Why, for people.
    pub reason: Option<String>,
    /// When it was recorded.
    pub created_at: Micros,
    /// The event that recorded it.
    pub seq: Seq,
}

/// The result of a run, as it is read again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CorrectedResult {
    /// `done`, `failed` or `aborted`.
    pub status: RunStatus,
    /// Why it failed, for programs.
    pub error_code: Option<String>,
    /// Why it failed, for people.
    pub error_message: Option<String>,
    /// The text of the answer.
    pub answer: Option<String>,
    /// Number of tool calls.
    pub tool_calls: i64,
    /// Input tokens.
    pub input_tokens: i64,
    /// Output tokens.
    pub output_tokens: i64,
    /// The cost in millionths of a dollar, if known.
    pub cost_micros: Option<i64>,
}

/// What a line of a program means, as it is read again.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CorrectedLine {
    /// The number of the line's event in the run.
    pub number: i64,
    /// What it means; empty if nothing.
    pub events: Vec<NewRunEvent>,
}

/// Returns the module.
#[must_use]
pub fn module() -> Module {
    Module::new("correction")
        .visible::<RunCorrection>(RowVisibility::InScope)
        .copied(("runs", "output"), &[("run_corrections", "before"), ("run_corrections", "after")])
        .copied(("run_events", "data"), &[("run_corrections", "lines")])
        .view("run_results", RUN_RESULTS)
        .reducer(correct_run::definition().wrapping(limits::RECORD_DEPTH))
}

/// Corrects the result of a run that has ended. The run, its events and its messages stay as they are; the correction is a
/// row with the result before and after. Budgets keep what was spent. The same correction again returns the stored row.
#[reducer]
pub fn correct_run(
    ctx: &mut Context<'_>,
    #[id(Run)] id: String,
    /// The result of the run.
    result: CorrectedResult,
    /// All lines that are read differently than in the events of the run, in order.
    lines: Vec<CorrectedLine>,
    /// Why, for people.
    reason: Option<String>,
) -> Result<ReducerResult<RunCorrection>, Abort> {
    check_result(&result)?;
    if let Some(bytes) = reason.as_ref().map(String::len).filter(|it| *it > limits::REASON_BYTES) {
        let detail = format!("reason has {bytes} bytes; the limit is {}", limits::REASON_BYTES);
        return Err(Refusal::new(Code::LimitExceeded, detail).into());
    }
    for (one, next) in lines.iter().zip(lines.iter().skip(1)) {
        let detail = match one.number.cmp(&next.number) {
            Ordering::Less => continue,
            Ordering::Equal => format!("lines contains the number {} twice", one.number),
            Ordering::Greater => {
                format!("lines contains the number {} after {}", next.number, one.number)
            }
        };
        let hint = "give each line once, in the order of the numbers";
        return Err(Refusal::new(Code::BadArguments, detail).hint(hint).into());
    }
    let run = run::find(ctx, &id)?;
    if !run.status.is_terminal() {
        let detail = format!("run {id} is {} and has no result yet", run.status);
        return Err(Refusal::new(Code::BadTransition, detail)
            .hint("correct the run when it has ended")
            .into());
    }
    let numbers = 1..=run.events;
    lines.iter().try_for_each(|line| check::in_range("number", Some(line.number), &numbers))?;
    let newest = "WHERE run_id = ?1 ORDER BY number DESC LIMIT 1";
    let last = ctx.find::<RunCorrection>(newest, &[Value::from(id.as_str())])?.into_iter().next();
    let after = Json::from(json!(result));
    let lines = Json::from(json!(lines));
    let (number, before) = match last {
        Some(last) if last.after == after && last.lines == lines => {
            return Ok(ReducerResult::Duplicate(last.seq, last));
        }
        Some(last) => (last.number + 1, last.after),
        None => (1, Json::from(json!(recorded_result(&run)))),
    };
    if number == 1 && before == after && lines.value() == json!([]) {
        let detail = format!("the correction of run {id} changes nothing");
        return Err(Refusal::new(Code::BadArguments, detail).into());
    }
    let session_id = run.session_id;
    let created_at = ctx.now;
    let seq = ctx.seq;
    let run_id = run.id;
    let correction =
        RunCorrection { run_id, number, session_id, before, after, lines, reason, created_at, seq };
    ctx.insert(correction).map(ReducerResult::Fresh)
}

/// Returns the result of a run as it is in its row.
#[must_use]
pub fn recorded_result(run: &Run) -> CorrectedResult {
    let output = run.output.as_ref().map(Json::value).unwrap_or_default();
    CorrectedResult {
        status: run.status,
        error_code: run.error_code.clone(),
        error_message: run.error_message.clone(),
        answer: output["content"].as_str().map(str::to_owned),
        tool_calls: run.tool_calls,
        input_tokens: run.input_tokens,
        output_tokens: run.output_tokens,
        cost_micros: run.cost_micros,
    }
}

fn check_result(result: &CorrectedResult) -> Result<(), Refusal> {
    let amounts = [
        ("tool_calls", Some(result.tool_calls)),
        ("input_tokens", Some(result.input_tokens)),
        ("output_tokens", Some(result.output_tokens)),
        ("cost_micros", result.cost_micros),
    ];
    amounts
        .into_iter()
        .try_for_each(|(name, amount)| check::in_range(name, amount, &(0..=i64::MAX)))?;
    if let Some(code) = &result.error_code {
        check::name("error_code", code)?;
    }
    let is_valid = match result.status {
        RunStatus::Done => result.error_code.is_none() && result.error_message.is_none(),
        RunStatus::Failed => result.error_code.is_some(),
        RunStatus::Aborted => true,
        RunStatus::Running | RunStatus::Waiting => false,
    };
    if is_valid {
        return Ok(());
    }
    let detail = format!("result.status {} contradicts the error of the result", result.status);
    let hint = "status is done without an error, failed with error_code, or aborted";
    Err(Refusal::new(Code::BadArguments, detail).hint(hint))
}
