//! Cleanup: what is left to be ended when a session ends or is cancelled, or a run is aborted: calls, timers,
//! and the sessions made for a cancelled one. It is done in steps of a bounded number of rows, so that no
//! call holds the writer for longer than a step, however much belongs to a session.
//!
//! The call that ends a session takes the first step itself: what is small ends in one transaction. For the rest
//! it leaves rows in `cleanups`, and the engine calls [`continue_cleanup()`] as the caller `system`, one step in
//! each transaction, with calls of others in between. The rows outlive a crash.
//!
//! Meanwhile the rules look at the session, and not at what is left: nothing new begins for a session that has
//! ended or is cancelled, nor for one below it that the steps have yet to reach (see
//! `session::is_closing`). So no descendant that is made at the same time can stay ahead of them.

use std::collections::VecDeque;

use abide_schema::{
    Abort, Code, Context, Micros, Module, Refusal, Seq, TextEnum, limits, reducer, table,
};

use crate::tool_call::{ToolCall, cancel};
use crate::{session, timer};

/// What is to be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TextEnum)]
pub enum CleanupKind {
    /// Calls and timers of a session that has ended.
    End,
    /// The same of a session that is cancelled, and the sessions made for it.
    Cancel,
    /// Calls of a session whose run is aborted.
    Abort,
}

/// A cleanup that is not finished.
#[table(name = "cleanups", without_rowid, index(due_at), index(session_id))]
pub struct Cleanup {
    /// Its id. Each step has a new one: what time calls for is never the same call twice.
    #[column(key)]
    pub id: String,
    /// What is to be ended.
    pub kind: CleanupKind,
    /// Of which session.
    #[column(references = "sessions(id)")]
    pub session_id: String,
    /// Why, for the sessions made for it.
    pub reason: Option<String>,
    /// The last of these sessions, in the order of their ids, that a step has reached.
    pub after: Option<String>,
    /// The last event whose calls are meant. A run that begins after one was aborted keeps its own.
    pub up_to: Seq,
    /// From when on the next step is due: at once.
    pub due_at: Micros,
    /// The event that left it.
    pub seq: Seq,
}

/// What `continue_cleanup` answers.
#[derive(Debug, serde::Serialize, schemars::JsonSchema)]
pub struct CleanupStep {
    /// Rows that it ended or looked at.
    pub rows: usize,
    /// Cleanups that it left.
    pub left: usize,
}

/// The domain.
#[must_use]
pub fn module() -> Module {
    // The table is closed to bounded callers: what they may know of it, the rows of their sessions say.
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

/// What is to be ended of one session.
#[derive(Debug)]
pub(crate) struct Task {
    kind: CleanupKind,
    session_id: String,
    reason: Option<String>,
    after: Option<String>,
    up_to: Seq,
}

impl Task {
    /// For a session that has ended.
    pub(crate) fn end(session_id: &str) -> Task {
        let session_id = session_id.to_owned();
        Task { kind: CleanupKind::End, session_id, reason: None, after: None, up_to: Seq(i64::MAX) }
    }

    /// For a session that was marked as cancelled.
    pub(crate) fn cancel(session_id: &str, reason: Option<&str>) -> Task {
        let reason = reason.map(str::to_owned);
        Task { kind: CleanupKind::Cancel, reason, ..Task::end(session_id) }
    }

    /// For a session whose run is aborted by the event of that seq.
    pub(crate) fn abort(session_id: &str, seq: Seq) -> Task {
        Task { kind: CleanupKind::Abort, up_to: seq, ..Task::end(session_id) }
    }
}

/// Begins a cleanup: takes the first step, and leaves a row for what is not done then.
pub(crate) fn begin(ctx: &mut Context<'_>, task: Task) -> Result<(), Abort> {
    take_steps(ctx, task).map(drop)
}

/// Whether a step is yet to cancel a call, because its run was aborted.
pub(crate) fn is_aborting(ctx: &mut Context<'_>, call: &ToolCall) -> Result<bool, Abort> {
    let of_session = "WHERE session_id = ?1 AND up_to >= ?2";
    let params = [call.session_id.as_str().into(), call.created_seq.0.into()];
    Ok(ctx.count_everywhere::<Cleanup>(of_session, &params)? > 0)
}

/// Leaves a cleanup to steps of its own: for one of many that follow from one call.
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

/// One step: rows that it may still look at, and what is to be done, first to last.
struct Step {
    left: usize,
    tasks: VecDeque<Task>,
}

impl Step {
    /// Does as much of a task as there is room for, and gives what is left of it.
    fn work_on(&mut self, ctx: &mut Context<'_>, mut task: Task) -> Result<Option<Task>, Abort> {
        // To look whether there is anything counts as well.
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
