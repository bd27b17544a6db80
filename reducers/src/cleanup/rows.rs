//! The row of an unfinished cleanup, the task that it stands for, and questions about cleanups.

use abide_schema::{Abort, Context, Micros, Seq, TextEnum, table};

use crate::run::Run;
use crate::tool_call::ToolCall;

/// The objects that a cleanup ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TextEnum)]
pub enum CleanupKind {
    /// Calls and timers of an ended session.
    End,
    /// Calls and timers of a cancelled session, and its child sessions.
    Cancel,
    /// Calls of a session whose run is aborted or fails, and the runs that it delegated. For a run that is done, only
    /// those runs.
    Abort,
}

/// An unfinished cleanup.
#[table(name = "cleanups", without_rowid, index(due_at), index(session_id))]
pub struct Cleanup {
    /// Its id. Each step has a new one, so that no two deadline calls have the same key.
    #[column(key)]
    pub id: String,
    /// The object that it ends.
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

/// The result of `continue_cleanup`.
#[derive(Debug, serde::Serialize, schemars::JsonSchema)]
pub struct CleanupStep {
    /// Rows that it ended or examined.
    pub rows: usize,
    /// Cleanups that remain.
    pub left: usize,
}

/// The remaining work of a cleanup: its row without id and times.
#[derive(Debug)]
pub(crate) struct Task {
    pub(super) kind: CleanupKind,
    pub(super) session_id: String,
    pub(super) reason: Option<String>,
    pub(super) after: Option<String>,
    pub(super) up_to: Seq,
    pub(super) run_id: Option<String>,
    pub(super) top: Option<String>,
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

    /// For a run that is aborted or fails by the event with this seq.
    pub(crate) fn abort(run: &Run, seq: Seq) -> Task {
        let run_id = Some(run.id.clone());
        Task { kind: CleanupKind::Abort, up_to: seq, run_id, ..Task::end(&run.session_id) }
    }

    /// For the delegated runs of a run, without the run itself.
    pub(crate) fn delegated(run: &Run) -> Task {
        Task::abort(run, Seq::ZERO)
    }
}

/// What a step of a cleanup may still do. Its last row can have more bytes than are left.
pub(crate) struct Room {
    pub(crate) rows: usize,
    pub(crate) bytes: usize,
}

impl Room {
    pub(crate) fn is_left(&self) -> bool {
        self.rows > 0 && self.bytes > 0
    }

    pub(crate) fn take(&mut self, rows: usize, bytes: usize) {
        self.rows = self.rows.saturating_sub(rows);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// Returns `true` if there is an unfinished cleanup. If there is none, every descendant that must end is marked.
pub(crate) fn has_unfinished(ctx: &mut Context<'_>) -> Result<bool, Abort> {
    const FIRST: &str = "WHERE id = (SELECT min(id) FROM cleanups)";
    Ok(ctx.count_everywhere::<Cleanup>(FIRST, &[])? > 0)
}

/// Returns `true` if a cleanup will cancel a call, because its run was aborted or has failed.
pub(crate) fn is_aborting(ctx: &mut Context<'_>, call: &ToolCall) -> Result<bool, Abort> {
    let of_session = "WHERE session_id = ?1 AND up_to >= ?2";
    let params = [call.session_id.as_str().into(), call.created_seq.0.into()];
    Ok(ctx.count_everywhere::<Cleanup>(of_session, &params)? > 0)
}

/// Defers a cleanup to later steps: for one of many caused by one call.
pub(crate) fn defer(ctx: &mut Context<'_>, task: Task) -> Result<(), Abort> {
    ctx.without_policies(|ctx| insert_task(ctx, task))
}

pub(super) fn insert_task(ctx: &mut Context<'_>, task: Task) -> Result<(), Abort> {
    let Task { kind, session_id, reason, after, up_to, run_id, top } = task;
    let id = ctx.new_id("cl");
    let due_at = ctx.now;
    let seq = ctx.seq;
    let row = Cleanup { id, kind, session_id, reason, after, up_to, due_at, seq, run_id, top };
    ctx.insert(row).map(drop)
}
