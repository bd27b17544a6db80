//! The rows of exchanges, and the ids of the calls that stand for questions: what other domains need of them.

use abide_schema::reducer::DERIVED;
use abide_schema::{Abort, Context, Json, Micros, Seq, TextEnum, Value, table};

use crate::tool_call::{self, ToolCall, ToolCallStatus};

/// The tool whose calls stand for questions of other tools.
pub const INPUT_TOOL: &str = "tool_input";

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TextEnum)]
pub enum ExchangeKind {
    /// The server has asked for input.
    Asked,
    /// The answers, before they are sent.
    Answered,
    /// The server has made a task of the call.
    Task,
}

/// A step of the exchange between a tool and its server during one call. The request is the call itself, and the last
/// answer is its result; the steps between them are here, so that another worker can continue.
#[table(
    name = "tool_exchanges",
    index(session_id),
    index(call_id, where = "kind = 'task' AND ended_at IS NULL")
)]
pub struct ToolExchange {
    /// The call.
    #[column(key, references = "tool_calls(call_id)")]
    pub call_id: String,
    /// Its number in the call, from 1.
    #[column(key)]
    pub number: i64,
    /// The call's session.
    #[column(references = "sessions(id)")]
    pub session_id: String,
    /// Its kind.
    pub kind: ExchangeKind,
    /// Its data. The tool defines the structure.
    pub data: Json,
    /// When the task has ended, or was cancelled.
    pub ended_at: Option<Micros>,
    /// When it was recorded.
    pub created_at: Micros,
    /// The event that last changed it.
    pub seq: Seq,
}

/// Returns the id of the call for a question.
#[must_use]
pub fn input_id(call_id: &str, step: i64, index: usize) -> String {
    format!("{}{INPUT}{step}.{index}", question_prefix(call_id))
}

/// Returns the prefix of the ids of a call's questions.
fn question_prefix(call_id: &str) -> String {
    // An id of a run has a separator already: only the holder of the run can make others that begin with it.
    let separator = if call_id.contains(DERIVED) { INSIDE } else { DERIVED };
    format!("{call_id}{separator}")
}

/// Separates the parts of an id that derives from a run.
const INSIDE: char = '.';

/// Marks the id of a question.
const INPUT: &str = "input.";

/// Returns the call that asks, if this is the id of a question. No other caller can choose such an id.
#[must_use]
pub fn asked_by(call_id: &str) -> Option<&str> {
    let (before, rest) = call_id.rsplit_once(INPUT)?;
    let (step, index) = rest.split_once('.')?;
    let asker = match before.strip_suffix(DERIVED) {
        Some(asker) => Some(asker).filter(|asker| !asker.contains(DERIVED)),
        None => before.strip_suffix(INSIDE).filter(|asker| asker.contains(DERIVED)),
    };
    asker.filter(|asker| !asker.is_empty() && is_number(step) && is_number(index))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns the call that asks, if a call stands for a question.
pub(crate) fn find_asker(call: &ToolCall) -> Option<&str> {
    asked_by(&call.call_id).filter(|_| call.tool_name == INPUT_TOOL)
}

/// The state of a call's exchange for its next attempt.
pub(crate) struct Progress {
    /// Whether the server continues the call as a task that has not ended.
    pub(crate) has_task: bool,
    /// How often the server has asked: each answer needed a claim that was no repetition.
    pub(crate) requests_for_input: i64,
}

/// How far the exchange of a call has come.
pub(crate) fn find_progress(ctx: &mut Context<'_>, call_id: &str) -> Result<Progress, Abort> {
    let has_task = !open_tasks(ctx, call_id)?.is_empty();
    let asked = "WHERE call_id = ?1 AND kind = 'asked'";
    let params = [Value::from(call_id)];
    let requests_for_input =
        ctx.without_policies(|ctx| ctx.count::<ToolExchange>(asked, &params))?;
    Ok(Progress { has_task, requests_for_input })
}

/// Returns the tasks of a call that have not ended.
pub(crate) fn open_tasks(ctx: &mut Context<'_>, call_id: &str) -> Result<Vec<ToolExchange>, Abort> {
    let open = "WHERE call_id = ?1 AND kind = 'task' AND ended_at IS NULL ORDER BY number";
    ctx.without_policies(|ctx| ctx.find::<ToolExchange>(open, &[Value::from(call_id)]))
}

/// Returns the undecided questions of a call.
pub(crate) fn find_questions(
    ctx: &mut Context<'_>,
    call: &ToolCall,
) -> Result<Vec<ToolCall>, Abort> {
    // Their ids have this prefix, and end before the next character.
    let first = format!("{}{INPUT}", question_prefix(&call.call_id));
    let end = format!("{}/", first.trim_end_matches('.'));
    // With `+` by id: many other calls of a file can wait.
    let undecided = "WHERE call_id > ?1 AND call_id < ?2 AND +status = 'awaiting_approval'
        ORDER BY call_id";
    let params = [Value::from(first.as_str()), Value::from(end.as_str())];
    let found = ctx.without_policies(|ctx| ctx.find::<ToolCall>(undecided, &params))?;
    Ok(found.into_iter().filter(|it| find_asker(it) == Some(&call.call_id)).collect())
}

/// Lets the call that asks go on, if this was its last undecided question.
pub(crate) fn resume_asker(ctx: &mut Context<'_>, question: &ToolCall) -> Result<(), Abort> {
    let Some(asker) = find_asker(question) else { return Ok(()) };
    ctx.without_policies(|ctx| {
        let Some(mut call) = ctx.get::<ToolCall>(asker)? else { return Ok(()) };
        if call.status != ToolCallStatus::AwaitingApproval
            || !find_questions(ctx, &call)?.is_empty()
        {
            return Ok(());
        }
        call.status = ToolCallStatus::Pending;
        tool_call::save(ctx, call).map(drop)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_question_names_the_call_that_asks() {
        for call_id in ["c1", "run~7.1", "s~4~run~2", "input.1"] {
            let id = input_id(call_id, 3, 1);
            assert_eq!(asked_by(&id), Some(call_id), "{id}");
        }
        // Ids that another caller can choose, and ids of other rows.
        for id in [
            "c1",
            "input.1.1",
            "~input.1.1",
            "c1.input.1.1",
            "a~b~input.1.1",
            "c1~input.1",
            "c1~input.1.x",
            "c1~input..1",
            "r~1.input.1",
        ] {
            assert_eq!(asked_by(id), None, "{id}");
        }
    }
}
