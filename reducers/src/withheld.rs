//! The denied part of an answer. The conversation has the guardrail's message in its place; the original
//! is kept here, apart from the rows that everyone in the session's scope can read.

use abide_schema::reducer::{ReducerResult, RowVisibility};
use abide_schema::{
    Abort, Code, Context, Json, Micros, Module, Refusal, Seq, limits, reducer, table,
};
use serde_json::Value as JsonValue;

use crate::run::{self, Run};

/// The withheld part of an answer.
#[table(name = "withheld_answers", index(session_id))]
pub struct WithheldAnswer {
    /// The run.
    #[column(key, references = "runs(id)")]
    pub run_id: String,
    /// The number of the answer in the run, from 1: `iteration` in the data of its message.
    #[column(key)]
    pub iteration: i64,
    /// The session of the run.
    #[column(references = "sessions(id)")]
    pub session_id: String,
    /// The original: `{"text", "reasoning", "calls", "carry"}`, only the withheld members.
    pub original: Json,
    /// When it was recorded.
    pub created_at: Micros,
    /// The event that recorded it.
    pub seq: Seq,
}

/// Returns the module.
#[must_use]
pub fn module() -> Module {
    Module::new("withheld")
        // A policy opens the table for those who may read originals.
        .visible::<WithheldAnswer>(RowVisibility::Closed)
        .secret(&withhold_answer::definition(), "original")
        .reducer(withhold_answer::definition().wrapping(limits::RECORD_DEPTH))
}

/// Keeps the original of an answer that a guardrail has denied, or of a part of it. The message in its place is
/// recorded in the same batch.
#[reducer(roles(app, agent))]
pub fn withhold_answer(
    ctx: &mut Context<'_>,
    #[id(Run)] id: String,
    /// The fencing token of the claim.
    fencing_token: i64,
    /// The number of the answer in the run, from 1.
    iteration: i64,
    /// The withheld value: an object.
    original: JsonValue,
) -> Result<ReducerResult<WithheldKey>, Abort> {
    // The event names no session: events of a session are visible to everyone in its scope.
    let run = run::drive::find_claimed_unnamed(ctx, &id, fencing_token)?;
    let original = Json::from(original);
    let key = WithheldKey { run_id: run.id, iteration };
    let before =
        ctx.without_policies(|ctx| ctx.get::<WithheldAnswer>((key.run_id.as_str(), iteration)))?;
    if let Some(before) = before {
        if before.original == original {
            return Ok(ReducerResult::Duplicate(before.seq, key));
        }
        let detail = format!("answer {iteration} of run {id} is stored with another original text");
        let hint = "the first original stands; record the next answer under its own number";
        return Err(Refusal::new(Code::Conflict, detail).hint(hint).into());
    }
    let created_at = ctx.now;
    let seq = ctx.seq;
    let session_id = run.session_id;
    let run_id = key.run_id.clone();
    let row = WithheldAnswer { run_id, iteration, session_id, original, created_at, seq };
    ctx.without_policies(|ctx| ctx.insert(row))?;
    Ok(ReducerResult::Fresh(key))
}

/// The result of `withhold_answer`: the key of the row, without the original.
#[derive(
    Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
pub struct WithheldKey {
    /// The run.
    pub run_id: String,
    /// The number of the answer in the run.
    pub iteration: i64,
}
