//! The row of a delegation, and questions about the tree of runs.

use abide_schema::{Abort, Context, Micros, Seq, Value, limits, table};

use crate::cleanup;
use crate::run::Run;

/// A run that another run has delegated a task to.
#[table(name = "delegations", without_rowid, index(session_id), index(parent_id), index(root_id))]
pub struct Delegation {
    /// The session of the child run.
    #[column(references = "sessions(id)")]
    pub session_id: String,
    /// The child run.
    #[column(key, references = "runs(id)")]
    pub run_id: String,
    /// The run that it was started for.
    #[column(references = "runs(id)")]
    pub parent_id: String,
    /// The root run, which has no parent.
    #[column(references = "runs(id)")]
    pub root_id: String,
    /// The tool call that it was started for, if any.
    #[column(references = "tool_calls(call_id)")]
    pub call_id: Option<String>,
    /// The number of its ancestors.
    pub depth: i64,
    /// When it was started.
    pub created_at: Micros,
    /// The event that started it.
    pub seq: Seq,
}

/// Returns `true` if a run has delegated to a run that is active and not marked as aborted.
pub(crate) fn has_delegated(ctx: &mut Context<'_>, run_id: &str) -> Result<bool, Abort> {
    // At most as many are looked at as a run may have descendants.
    let of_run = "WHERE parent_id = ?1 AND EXISTS (SELECT 1 FROM runs AS r WHERE r.id = run_id
        AND r.status IN ('running', 'waiting') AND r.abort_requested_at IS NULL)";
    Ok(ctx.count_everywhere::<Delegation>(of_run, &[Value::from(run_id)])? > 0)
}

/// Returns the next run that a run has delegated to directly, in the order of ids.
pub(crate) fn next_child(
    ctx: &mut Context<'_>,
    run_id: &str,
    after: &str,
) -> Result<Option<Delegation>, Abort> {
    let next = "WHERE parent_id = ?1 AND run_id > ?2 ORDER BY run_id LIMIT 1";
    Ok(ctx.find::<Delegation>(next, &[run_id.into(), after.into()])?.pop())
}

/// Returns the active runs that a run has delegated to directly. Others can have large outputs, and are not read.
pub(crate) fn active_children(ctx: &mut Context<'_>, run_id: &str) -> Result<Vec<Run>, Abort> {
    let active = "WHERE status IN ('running', 'waiting') AND id IN
        (SELECT run_id FROM delegations WHERE parent_id = ?1) ORDER BY id";
    ctx.find::<Run>(active, &[Value::from(run_id)])
}

/// The runs above one (`?1`).
const ABOVE: &str = "WITH RECURSIVE above(id, depth) AS (
  SELECT parent_id, 1 FROM delegations WHERE run_id = ?1
  UNION ALL
  SELECT d.parent_id, above.depth + 1 FROM above JOIN delegations AS d ON d.run_id = above.id
  WHERE above.depth < ?2)
  SELECT id FROM above";

/// Returns `true` if an ancestor of a run has ended or is being aborted, so that a cleanup will abort this run. Such a
/// run starts nothing new.
pub(crate) fn is_cut_off(ctx: &mut Context<'_>, run_id: &str) -> Result<bool, Abort> {
    if !cleanup::has_unfinished(ctx)? {
        return Ok(false);
    }
    let above = format!(
        "WHERE id IN ({ABOVE})
         AND (abort_requested_at IS NOT NULL OR status NOT IN ('running', 'waiting'))"
    );
    let params = [run_id.into(), limits::DELEGATION_DEPTH.into()];
    Ok(ctx.count_everywhere::<Run>(&above, &params)? > 0)
}
