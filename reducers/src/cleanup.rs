//! Cleanup: ends the calls, timers and child sessions that remain when a session ends or is cancelled, or when a
//! run is aborted. It works in steps of a bounded number of rows, so that no call occupies the writer for longer
//! than a step, however many rows a session has.
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
//!
//! Version 1 ended a tree of runs in one transaction, and had one row per session of a tree: see `cleanup/former.rs`.

use abide_schema::{
    Abort, Code, Context, Micros, Module, Refusal, Seq, TextEnum, limits, reducer, table,
};

use crate::delegation::{self, Delegation};
use crate::run::{self, Run};
use crate::session::{self, Session};
use crate::timer;
use crate::tool_call::{ToolCall, cancel};

mod former;

/// What a cleanup ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TextEnum)]
pub enum CleanupKind {
    /// Calls and timers of an ended session.
    End,
    /// The same for a cancelled session, and its child sessions.
    Cancel,
    /// Calls of a session whose run is aborted, and the runs that it delegated. For a run that ends by itself, only
    /// those runs.
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
    /// The last processed child, in the order of ids.
    pub after: Option<String>,
    /// Calls created up to this event are ended. A run that starts after an abort keeps its own calls.
    pub up_to: Seq,
    /// When the next step is due: immediately.
    pub due_at: Micros,
    /// The event that wrote it.
    pub seq: Seq,
    /// The run that the steps have reached, for a cleanup of delegated runs.
    pub run_id: Option<String>,
    /// The session or run where the cleanup started, if the steps are below it.
    pub top: Option<String>,
}

/// Version 2: one row for a whole tree.
const TREES: &str = "ALTER TABLE cleanups ADD COLUMN run_id TEXT;
ALTER TABLE cleanups ADD COLUMN top TEXT";

/// The result of `continue_cleanup`.
#[derive(Debug, serde::Serialize, schemars::JsonSchema)]
pub struct CleanupStep {
    /// Rows that it ended or examined.
    pub rows: usize,
    /// Cleanups that remain.
    pub left: usize,
}

const MODULE: &str = "cleanup";

/// The domain.
#[must_use]
pub fn module() -> Module {
    // Restricted callers cannot read the table; the rows of their sessions show the same.
    Module::new(MODULE).step(TREES).table::<Cleanup>().paced_deadline::<Cleanup>(
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

/// What is left of a cleanup: its row without id and times.
#[derive(Debug)]
pub(crate) struct Task {
    kind: CleanupKind,
    session_id: String,
    reason: Option<String>,
    after: Option<String>,
    up_to: Seq,
    run_id: Option<String>,
    top: Option<String>,
}

impl Task {
    /// For an ended session.
    pub(crate) fn end(session_id: &str) -> Task {
        Task {
            kind: CleanupKind::End,
            session_id: session_id.to_owned(),
            reason: None,
            after: None,
            up_to: Seq(i64::MAX),
            run_id: None,
            top: None,
        }
    }

    /// For a session marked as cancelled.
    pub(crate) fn cancel(session_id: &str, reason: Option<&str>) -> Task {
        let reason = reason.map(str::to_owned);
        Task { kind: CleanupKind::Cancel, reason, ..Task::end(session_id) }
    }

    /// For a run that is aborted by the event with this seq.
    pub(crate) fn abort(run: &Run, seq: Seq) -> Task {
        let run_id = Some(run.id.clone());
        Task { kind: CleanupKind::Abort, up_to: seq, run_id, ..Task::end(&run.session_id) }
    }

    /// The same without delegated runs, by the rules of version 1.
    pub(crate) fn abort_alone(run: &Run, seq: Seq) -> Task {
        Task { run_id: None, ..Task::abort(run, seq) }
    }

    /// For the delegated runs of a run, without the run itself.
    pub(crate) fn delegated(run: &Run) -> Task {
        Task::abort(run, Seq::ZERO)
    }

    /// The session where the cleanup started.
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
        if child.cancel_requested_at.is_some() || child.status.is_terminal() {
            return Ok(Below::Passed);
        }
        let above = std::mem::replace(&mut self.session_id, child.id.clone());
        self.top.get_or_insert(above);
        self.after = None;
        let has_run = run::active(ctx, &child.id)?.is_some();
        session::mark_cancelled(ctx, child, self.reason.as_deref())?;
        Ok(Below::Reached { rows: 1 + usize::from(has_run) })
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
        let Some(run) = run.filter(run::end::is_wanted) else { return Ok(Below::Passed) };
        self.top.get_or_insert(run_id);
        (self.session_id, self.run_id) = (child.session_id, Some(child.run_id));
        (self.up_to, self.after) = (ctx.seq, None);
        run::end::stop(ctx, run, Some(run::end::CUT_OFF))?;
        // The run, and the row of its delegation.
        Ok(Below::Reached { rows: 2 })
    }

    /// Moves to the parent of the current session or run, which is complete; `false` at the top.
    fn go_up(&mut self, ctx: &mut Context<'_>) -> Result<bool, Abort> {
        let reached = self.run_id.as_ref().unwrap_or(&self.session_id).clone();
        if self.top.as_ref().is_none_or(|top| *top == reached) {
            return Ok(false);
        }
        if self.kind == CleanupKind::Abort {
            let above = ctx.get::<Delegation>(&reached)?.map(|it| it.parent_id);
            let above = above.map_or(Ok(None), |above| ctx.get::<Run>(&above))?;
            let Some(above) = above else { return Ok(false) };
            (self.session_id, self.run_id) = (above.session_id, Some(above.id));
            // The calls of the parent are ended; its remaining calls belong to a later run.
            self.up_to = Seq::ZERO;
        } else {
            let above = ctx.get::<Session>(&reached)?.and_then(|session| session.parent_id);
            let Some(above) = above else { return Ok(false) };
            self.session_id = above;
        }
        self.after = Some(reached);
        Ok(true)
    }
}

/// The next child of a session or run.
enum Below {
    /// It was marked now; this many rows changed.
    Reached { rows: usize },
    /// It was marked or has ended before.
    Passed,
    /// There is none.
    Nothing,
}

/// Starts a cleanup: takes the first step, and leaves a row for the rest.
pub(crate) fn begin(ctx: &mut Context<'_>, task: Task) -> Result<(), Abort> {
    take_steps(ctx, task).map(drop)
}

/// Whether the rules of version 1 apply: in a replay of events of that version.
pub(crate) fn is_former(ctx: &mut Context<'_>) -> bool {
    ctx.is_before(MODULE, 2)
}

/// Whether there is an unfinished cleanup. If there is none, every descendant that must end is marked.
pub(crate) fn are_any(ctx: &mut Context<'_>) -> Result<bool, Abort> {
    const FIRST: &str = "WHERE id = (SELECT min(id) FROM cleanups)";
    Ok(ctx.count_everywhere::<Cleanup>(FIRST, &[])? > 0)
}

/// Whether a cleanup will cancel a call, because its run was aborted.
pub(crate) fn is_aborting(ctx: &mut Context<'_>, call: &ToolCall) -> Result<bool, Abort> {
    let of_session = "WHERE session_id = ?1 AND up_to >= ?2";
    let params = [call.session_id.as_str().into(), call.created_seq.0.into()];
    Ok(ctx.count_everywhere::<Cleanup>(of_session, &params)? > 0)
}

/// Defers a cleanup to later steps: for one of many caused by one call.
pub(crate) fn later(ctx: &mut Context<'_>, task: Task) -> Result<(), Abort> {
    ctx.without_policies(|ctx| leave(ctx, task))
}

fn leave(ctx: &mut Context<'_>, task: Task) -> Result<(), Abort> {
    let Task { kind, session_id, reason, after, up_to, run_id, top } = task;
    let (id, due_at, seq) = (ctx.new_id("cl"), ctx.now, ctx.seq);
    let row = Cleanup { id, kind, session_id, reason, after, up_to, due_at, seq, run_id, top };
    ctx.insert(row).map(drop)
}

fn take_steps(ctx: &mut Context<'_>, mut task: Task) -> Result<CleanupStep, Abort> {
    if is_former(ctx) {
        return former::take_steps(ctx, task);
    }
    let mut step = Step { left: limits::CLEANUP_ROWS };
    ctx.without_policies(|ctx| {
        let is_done = step.work_on(ctx, &mut task)?;
        if !is_done {
            leave(ctx, task)?;
        }
        Ok(CleanupStep { rows: limits::CLEANUP_ROWS - step.left, left: usize::from(!is_done) })
    })
}

/// One step, with its remaining row budget.
struct Step {
    left: usize,
}

impl Step {
    /// Processes a task within the budget. Returns whether it is complete.
    fn work_on(&mut self, ctx: &mut Context<'_>, task: &mut Task) -> Result<bool, Abort> {
        // Looking for rows counts as well.
        self.left -= 1;
        loop {
            self.left -= cancel::some_of_session(ctx, &task.session_id, task.up_to, self.left)?;
            if task.kind != CleanupKind::Abort {
                self.left -= timer::cancel_some_of_session(ctx, &task.session_id, self.left)?;
            }
            loop {
                if self.left == 0 {
                    return Ok(false);
                }
                match task.go_down(ctx)? {
                    Below::Reached { rows } => {
                        self.left = self.left.saturating_sub(rows);
                        break;
                    }
                    Below::Passed => self.left -= 1,
                    Below::Nothing if task.go_up(ctx)? => {}
                    Below::Nothing => return Ok(true),
                }
            }
        }
    }
}
