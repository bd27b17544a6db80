//! Denied attempts: a record of calls that lacked permission. Their number is bounded: the engine records
//! some of each caller's attempts, each with the number of unrecorded ones before it.
//!
//! Attempts on rows outside a caller's scope are not recorded. They are answered as if the row did not exist,
//! and a record would reveal it through the next seq of the log.

use abide_schema::reducer::RowVisibility;
use abide_schema::{Abort, Context, Micros, Module, Seq, reducer, table};

/// A denied attempt.
#[table(name = "denied_attempts", index(caller))]
pub struct DeniedAttempt {
    /// Its number.
    #[column(key)]
    pub id: i64,
    /// The caller.
    pub caller: String,
    /// The reducer, or the other kind of request.
    pub what: String,
    /// The reason.
    pub why: String,
    /// Number of this caller's unrecorded attempts since the previous record.
    pub missed: i64,
    /// When it happened.
    pub at: Micros,
    /// The event.
    pub seq: Seq,
}

/// They have no scope, so only callers without a scope may see them.
const AUDITORS: RowVisibility =
    RowVisibility::Where(":caller_role = 'auditor' AND :caller_scope = '{}'", &[]);

/// Returns the module.
#[must_use]
pub fn module() -> Module {
    Module::new("denial")
        .visible::<DeniedAttempt>(AUDITORS)
        .denial_recorder(record_denied::definition())
}

/// Records a denied attempt.
#[reducer]
pub fn record_denied(
    ctx: &mut Context<'_>,
    caller: String,
    what: String,
    why: String,
    missed: i64,
) -> Result<DeniedAttempt, Abort> {
    let at = ctx.now;
    let seq = ctx.seq;
    ctx.insert(DeniedAttempt { id: 0, caller, what, why, missed, at, seq })
}
