//! Cleanup: ends the calls, timers and child sessions that remain when a session ends or is cancelled, or when a
//! run is aborted. It works in steps of a bounded number of rows and bytes, so that no call occupies the writer for longer
//! than a step, however many rows a session has and however large they are.
//!
//! The call that ends a session takes the first step itself: small sessions end in one transaction. For the rest it
//! leaves rows in `cleanups`, and the engine calls [`continue_cleanup()`] as the caller `system`, one step per
//! transaction, interleaved with other calls. The rows survive a crash.
//!
//! Steps traverse the tree depth first. A step marks a session or a run, ends its contents, and continues with its
//! first child, or with its next sibling if it has no child. The row stores the current position, so a tree of any
//! size needs one row.
//!
//! Meanwhile reducers check ancestors, not the progress of the cleanup. No new work starts for a session that has
//! ended or is cancelled, nor for its descendants that the steps have not reached yet (see `session::is_closing`).
//! The same holds for descendants of an ended run (`delegation::is_cut_off`). So concurrently created descendants
//! cannot escape the cleanup.

use abide_schema::{Abort, Code, Context, Micros, Module, Refusal, Seq, limits, reducer};

use crate::delegation::{self, Delegation};
use crate::run::{self, Run};
use crate::session::{self, Session};
use crate::timer;
use crate::tool_call::cancel;

pub(crate) mod rows;

pub use rows::{Cleanup, CleanupKind, CleanupStep};
use rows::{Room, insert_task};
pub(crate) use rows::{Task, defer, has_unfinished, is_aborting};

/// The domain.
#[must_use]
pub fn module() -> Module {
    // Restricted callers cannot read the table; the rows of their sessions show the same.
    Module::new("cleanup").table::<Cleanup>().paced_deadline::<Cleanup>(
        "due_at",
        "due_at IS NOT NULL",
        limits::CLEANUPS_PER_COMMIT,
        continue_cleanup::definition(),
    )
}

/// Takes one step of a cleanup.
#[reducer]
pub fn continue_cleanup(
    ctx: &mut Context<'_>,
    id: String,
    due_at: Micros,
) -> Result<CleanupStep, Abort> {
    let Some(row) = ctx.get::<Cleanup>(&id)?.filter(|row| row.due_at == due_at) else {
        return Err(Refusal::new(Code::Conflict, format!("there is no cleanup {id}")).into());
    };
    ctx.delete::<Cleanup>(&id)?;
    let Cleanup { kind, session_id, reason, after, up_to, run_id, top, .. } = row;
    let task = Task { kind, session_id, reason, after, up_to, run_id, top };
    // A caller that sees the top of a tree sees the whole tree.
    let about = task.top_session(ctx)?;
    ctx.about(&about);
    take_steps(ctx, task)
}

impl Task {
    /// Returns the session where the cleanup started.
    fn top_session(&self, ctx: &mut Context<'_>) -> Result<String, Abort> {
        let top = match (&self.top, self.kind) {
            (Some(top), CleanupKind::Abort) => ctx.get::<Run>(top)?.map(|run| run.session_id),
            (top, _) => top.clone(),
        };
        Ok(top.unwrap_or_else(|| self.session_id.clone()))
    }

    /// Moves to the next child of the current session or run, and marks it.
    fn go_down(&mut self, ctx: &mut Context<'_>) -> Result<Below, Abort> {
        match self.kind {
            CleanupKind::End => Ok(Below::Nothing),
            CleanupKind::Cancel => self.reach_next_session(ctx),
            CleanupKind::Abort => self.reach_next_run(ctx),
        }
    }

    fn reach_next_session(&mut self, ctx: &mut Context<'_>) -> Result<Below, Abort> {
        let after = self.after.as_deref().unwrap_or_default();
        let Some(child) = session::next_made_for(ctx, &self.session_id, after)? else {
            return Ok(Below::Nothing);
        };
        self.after = Some(child.id.clone());
        let bytes = child.bytes();
        if child.cancel_requested_at.is_some() || child.status.is_terminal() {
            return Ok(Below::Passed { bytes });
        }
        let above = std::mem::replace(&mut self.session_id, child.id.clone());
        self.top.get_or_insert(above);
        self.after = None;
        let has_run = run::find_active(ctx, &child.id)?.is_some();
        session::mark_cancelled(ctx, child, self.reason.as_deref())?;
        Ok(Below::Reached { rows: 1 + usize::from(has_run), bytes })
    }

    fn reach_next_run(&mut self, ctx: &mut Context<'_>) -> Result<Below, Abort> {
        let Some(run_id) = self.run_id.clone() else { return Ok(Below::Nothing) };
        let after = self.after.as_deref().unwrap_or_default();
        let Some(child) = delegation::next_child(ctx, &run_id, after)? else {
            return Ok(Below::Nothing);
        };
        self.after = Some(child.run_id.clone());
        // An ended or marked run has its own cleanup for the runs that it delegated.
        let run = ctx.get::<Run>(&child.run_id)?;
        let bytes = run.as_ref().map_or(0, Run::bytes);
        let Some(run) = run.filter(run::stop::may_continue) else {
            return Ok(Below::Passed { bytes });
        };
        self.top.get_or_insert(run_id);
        self.session_id = child.session_id;
        self.run_id = Some(child.run_id);
        self.up_to = ctx.seq;
        self.after = None;
        run::stop::stop_alone(ctx, run, Some(run::stop::CUT_OFF))?;
        // The run, and the row of its delegation.
        Ok(Below::Reached { rows: 2, bytes })
    }

    /// Moves to the parent of the current session or run, which is complete; `false` at the top.
    fn go_up(&mut self, ctx: &mut Context<'_>) -> Result<bool, Abort> {
        let reached = self.run_id.as_ref().unwrap_or(&self.session_id).clone();
        if self.top.as_ref().is_none_or(|top| *top == reached) {
            return Ok(false);
        }
        if self.kind == CleanupKind::Abort {
            let Some(delegation) = ctx.get::<Delegation>(&reached)? else { return Ok(false) };
            let Some(above) = ctx.get::<Run>(&delegation.parent_id)? else { return Ok(false) };
            self.session_id = above.session_id;
            self.run_id = Some(above.id);
            // The calls of the parent are ended; its remaining calls belong to a later run.
            self.up_to = Seq::ZERO;
        } else {
            let parent_id = ctx.get::<Session>(&reached)?.and_then(|session| session.parent_id);
            let Some(parent_id) = parent_id else { return Ok(false) };
            self.session_id = parent_id;
        }
        self.after = Some(reached);
        Ok(true)
    }
}

/// The next child of a session or run.
enum Below {
    /// It was marked now; this many rows changed.
    Reached { rows: usize, bytes: usize },
    /// It was marked or has ended before.
    Passed { bytes: usize },
    /// There is none.
    Nothing,
}

/// Starts a cleanup: takes the first step, and leaves a row for the rest.
pub(crate) fn begin(ctx: &mut Context<'_>, task: Task) -> Result<(), Abort> {
    take_steps(ctx, task).map(drop)
}

fn take_steps(ctx: &mut Context<'_>, mut task: Task) -> Result<CleanupStep, Abort> {
    let mut room = Room { rows: limits::CLEANUP_ROWS, bytes: limits::CLEANUP_BYTES };
    ctx.without_policies(|ctx| {
        let is_done = work_on(ctx, &mut task, &mut room)?;
        if !is_done {
            insert_task(ctx, task)?;
        }
        Ok(CleanupStep { rows: limits::CLEANUP_ROWS - room.rows, left: usize::from(!is_done) })
    })
}

/// Processes a task as long as there is room. Returns whether it is complete.
fn work_on(ctx: &mut Context<'_>, task: &mut Task, room: &mut Room) -> Result<bool, Abort> {
    // Looking for rows counts as well.
    room.take(1, 0);
    loop {
        cancel::some_of_session(ctx, &task.session_id, task.up_to, room)?;
        if task.kind != CleanupKind::Abort {
            timer::cancel_some_of_session(ctx, &task.session_id, room)?;
        }
        loop {
            if !room.is_left() {
                return Ok(false);
            }
            match task.go_down(ctx)? {
                Below::Reached { rows, bytes } => {
                    room.take(rows, bytes);
                    break;
                }
                Below::Passed { bytes } => room.take(1, bytes),
                Below::Nothing if task.go_up(ctx)? => {}
                Below::Nothing => return Ok(true),
            }
        }
    }
}
