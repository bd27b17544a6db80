//! Cleanup: ends the calls, timers and child sessions that remain when a session ends or is cancelled, or a run
//! is aborted. It works in steps of a bounded number of rows, so that no call occupies the writer for longer
//! than a step, however many rows a session has.
//!
//! The call that ends a session takes the first step itself: small sessions end in one transaction. For the rest
//! it leaves rows in `cleanups`, and the engine calls [`continue_cleanup()`] as the caller `system`, one step per
//! transaction, interleaved with other calls. The rows survive a crash.
//!
//! Meanwhile the rules check the session, not its remaining rows: no new work starts for a session that has
//! ended or is cancelled, nor for one below it that the steps have not reached yet (see
//! `session::is_closing`). So concurrently created descendants cannot escape the cleanup.

use std::collections::VecDeque;

use abide_schema::{
    Abort, Code, Context, Micros, Module, Refusal, Seq, TextEnum, limits, reducer, table,
};

use crate::tool_call::{ToolCall, cancel};
use crate::{session, timer};

/// What a cleanup ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TextEnum)]
pub enum CleanupKind {
    /// Calls and timers of an ended session.
    End,
    /// The same for a cancelled session, and its child sessions.
    Cancel,
    /// Calls of a session whose run is aborted.
    Abort,
}

/// An unfinished cleanup.
#[table(name = "cleanups", without_rowid, index(due_at), index(session_id))]
pub struct Cleanup {
    /// Its id. Each step has a new one, so that no two deadline calls have the same key.
    #[column(key)]
    pub id: String,
    /// What it ends.
    pub kind: CleanupKind,
    /// The session.
    #[column(references = "sessions(id)")]
    pub session_id: String,
    /// The reason, for its child sessions.
    pub reason: Option<String>,
    /// The last child session processed, in the order of ids.
    pub after: Option<String>,
    /// Calls up to this event are ended. A run that begins after an abort keeps its own.
    pub up_to: Seq,
    /// When the next step is due: immediately.
    pub due_at: Micros,
    /// The event that wrote it.
    pub seq: Seq,
}

/// The result of `continue_cleanup`.
#[derive(Debug, serde::Serialize, schemars::JsonSchema)]
pub struct CleanupStep {
    /// Rows that it ended or examined.
    pub rows: usize,
    /// Cleanups that remain.
    pub left: usize,
}

/// The module.
#[must_use]
pub fn module() -> Module {
    // Hidden from restricted callers: the rows of their sessions show the same.
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
    ctx.about(&row.session_id);
    ctx.delete::<Cleanup>(&id)?;
    let Cleanup { kind, session_id, reason, after, up_to, .. } = row;
    take_steps(ctx, Task { kind, session_id, reason, after, up_to })
}

/// The task of ending the contents of one session.
#[derive(Debug)]
pub(crate) struct Task {
    kind: CleanupKind,
    session_id: String,
    reason: Option<String>,
    after: Option<String>,
    up_to: Seq,
}

impl Task {
    /// For an ended session.
    pub(crate) fn end(session_id: &str) -> Task {
        let session_id = session_id.to_owned();
        Task { kind: CleanupKind::End, session_id, reason: None, after: None, up_to: Seq(i64::MAX) }
    }

    /// For a session marked as cancelled.
    pub(crate) fn cancel(session_id: &str, reason: Option<&str>) -> Task {
        let reason = reason.map(str::to_owned);
        Task { kind: CleanupKind::Cancel, reason, ..Task::end(session_id) }
    }

    /// For a session whose run is aborted by the event of that seq.
    pub(crate) fn abort(session_id: &str, seq: Seq) -> Task {
        Task { kind: CleanupKind::Abort, up_to: seq, ..Task::end(session_id) }
    }
}

/// Begins a cleanup: takes the first step, and leaves a row for the rest.
pub(crate) fn begin(ctx: &mut Context<'_>, task: Task) -> Result<(), Abort> {
    take_steps(ctx, task).map(drop)
}

/// Whether a pending step will cancel a call because its run was aborted.
pub(crate) fn is_aborting(ctx: &mut Context<'_>, call: &ToolCall) -> Result<bool, Abort> {
    let of_session = "WHERE session_id = ?1 AND up_to >= ?2";
    let params = [call.session_id.as_str().into(), call.created_seq.0.into()];
    Ok(ctx.count_everywhere::<Cleanup>(of_session, &params)? > 0)
}

/// Leaves a cleanup to later steps: for one of many caused by one call.
pub(crate) fn later(ctx: &mut Context<'_>, task: Task) -> Result<(), Abort> {
    ctx.beyond_policies(|ctx| leave(ctx, task))
}

fn leave(ctx: &mut Context<'_>, task: Task) -> Result<(), Abort> {
    let Task { kind, session_id, reason, after, up_to } = task;
    let (id, due_at, seq) = (ctx.new_id("cl"), ctx.now, ctx.seq);
    ctx.insert(Cleanup { id, kind, session_id, reason, after, up_to, due_at, seq }).map(drop)
}

fn take_steps(ctx: &mut Context<'_>, task: Task) -> Result<CleanupStep, Abort> {
    let mut step = Step { left: limits::CLEANUP_ROWS, tasks: VecDeque::from([task]) };
    ctx.beyond_policies(|ctx| {
        while step.left > 0
            && let Some(task) = step.tasks.pop_front()
        {
            if let Some(rest) = step.work_on(ctx, task)? {
                step.tasks.push_front(rest);
            }
        }
        let (rows, left) = (limits::CLEANUP_ROWS - step.left, step.tasks.len());
        step.tasks.into_iter().try_for_each(|task| leave(ctx, task))?;
        Ok(CleanupStep { rows, left })
    })
}

/// One step: its remaining row budget, and the tasks in order.
struct Step {
    left: usize,
    tasks: VecDeque<Task>,
}

impl Step {
    /// Works on a task within the budget, and returns the rest.
    fn work_on(&mut self, ctx: &mut Context<'_>, mut task: Task) -> Result<Option<Task>, Abort> {
        // A lookup counts even if it finds nothing.
        self.left -= 1;
        self.left -= cancel::some_of_session(ctx, &task.session_id, task.up_to, self.left)?;
        if task.kind != CleanupKind::Abort {
            self.left -= timer::cancel_some_of_session(ctx, &task.session_id, self.left)?;
        }
        if task.kind == CleanupKind::Cancel && self.left > 0 {
            let after = task.after.as_deref().unwrap_or_default();
            let children = session::made_for(ctx, &task.session_id, after, self.left)?;
            self.left -= children.len();
            for child in children {
                task.after = Some(child.id.clone());
                if child.cancel_requested_at.is_none() && !child.status.is_terminal() {
                    self.tasks.push_back(Task::cancel(&child.id, task.reason.as_deref()));
                    session::mark_cancelled(ctx, child, task.reason.as_deref())?;
                }
            }
        }
        Ok((self.left == 0).then_some(task))
    }
}
