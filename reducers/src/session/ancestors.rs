//! Whether new work can start in a session: it and its ancestors are not cancelled.

use abide_schema::{Abort, Code, Context, Refusal, limits};

use super::{Session, open};
use crate::cleanup;

/// The session `?1` and its ancestors from which a cancellation would reach it. An ended session stops
/// the propagation.
const ABOVE: &str = "WITH RECURSIVE above(id, parent_id, depth) AS (
  SELECT id, parent_id, 0 FROM sessions WHERE id = ?1
  UNION ALL
  SELECT s.id, s.parent_id, above.depth + 1 FROM above JOIN sessions AS s ON s.id = above.parent_id
  WHERE above.depth < ?2
    AND (s.cancel_requested_at IS NOT NULL OR s.status NOT IN ('completed', 'failed')))
  SELECT id FROM above";

/// Returns `true` if a session has ended, is cancelled, or has a cancelled ancestor: then nothing new starts in it.
/// Ancestors are checked only while a cleanup is unfinished; afterwards all descendants are marked.
pub(crate) fn is_closing(ctx: &mut Context<'_>, session: &Session) -> Result<bool, Abort> {
    if session.cancel_requested_at.is_some() || session.status.is_terminal() {
        return Ok(true);
    }
    if session.parent_id.is_none() || !cleanup::has_unfinished(ctx)? {
        return Ok(false);
    }
    let above = format!("WHERE cancel_requested_at IS NOT NULL AND id IN ({ABOVE})");
    let params = [session.id.as_str().into(), limits::SESSION_DEPTH.into()];
    Ok(ctx.count_everywhere::<Session>(&above, &params)? > 0)
}

/// Loads a session that has not ended and is not cancelled, so that new work can start for it.
pub(crate) fn find_accepting(ctx: &mut Context<'_>, id: &str) -> Result<Session, Abort> {
    let session = open(ctx, id)?;
    if is_closing(ctx, &session)? {
        let detail = format!("session {id} is being cancelled and accepts no new work");
        return Err(Refusal::new(Code::BadTransition, detail).hint("create a new session").into());
    }
    Ok(session)
}

/// Refuses a session with so many ancestors that checking them would be slow.
pub(crate) fn check_depth(ctx: &mut Context<'_>, parent: &Session) -> Result<(), Abort> {
    if parent.parent_id.is_none() {
        return Ok(());
    }
    let max = limits::SESSION_DEPTH;
    let params = [parent.id.as_str().into(), max.into()];
    let above = ctx.count_everywhere::<Session>(&format!("WHERE id IN ({ABOVE})"), &params)?;
    if above <= max {
        return Ok(());
    }
    let detail = format!("session {} already has {max} ancestors", parent.id);
    let hint = "omit parent_id, or give the id of an ancestor of that session";
    Err(Refusal::new(Code::LimitExceeded, detail).hint(hint).into())
}
