//! Denied attempts: who wanted what and was not let. A flood of them is a bounded number of rows: the
//! engine records some of each caller's, and with each how many it passed over.
//!
//! What is out of a caller's scope is not among them. It is answered as if it did not exist, and were
//! that on record, the log's next number would give it away.

use abide_schema::reducer::Sight;
use abide_schema::{Abort, Context, Micros, Module, Seq, reducer, table};

/// One attempt that was denied.
#[table(name = "denied_attempts", index(caller))]
pub struct DeniedAttempt {
    /// Its number.
    #[column(key)]
    pub id: i64,
    /// Who tried.
    pub caller: String,
    /// What: a reducer, or another thing that was asked for.
    pub what: String,
    /// Why not.
    pub why: String,
    /// How many of this caller's were passed over since the one before.
    pub missed: i64,
    /// When.
    pub at: Micros,
    /// The event.
    pub seq: Seq,
}

/// They are of no scope, so only who has none may see them.
const AUDITORS: Sight = Sight::Where(":caller_role = 'auditor' AND :caller_scope = '{}'", &[]);

/// The domain.
#[must_use]
pub fn module() -> Module {
    Module::new("denial").seen::<DeniedAttempt>(AUDITORS).witness(record_denied::definition())
}

/// Keeps a record of an attempt that was denied.
#[reducer]
pub fn record_denied(
    ctx: &mut Context<'_>,
    caller: String,
    what: String,
    why: String,
    missed: i64,
) -> Result<DeniedAttempt, Abort> {
    let (at, seq) = (ctx.now, ctx.seq);
    ctx.insert(DeniedAttempt { id: 0, caller, what, why, missed, at, seq })
}
