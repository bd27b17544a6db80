//! Snapshots: a run that waits, as one JSON value that another file imports and continues. Forks: a new session with the
//! history of another one.
//!
//! Both copy a conversation, the outcomes of its tool calls, so nothing runs twice, and what else decides what the model
//! sees: `snapshot/context.rs`. A call without an outcome is not copied: the driver that continues the run requests
//! it again, under the rules of the file that it is in. So nothing in a snapshot replaces an approval.
//!
//! The format is in `snapshot/format.rs`, what is read of a conversation in `snapshot/conversation.rs`; then follow
//! [`mod@export`], [`mod@import`] and [`mod@fork`].

use std::fmt;

use abide_schema::reducer::{Continuation, RowVisibility};
use abide_schema::{Code, Json, Module, Refusal, limits};
use serde_json::{Map, Value as JsonValue};

pub mod export;
pub mod fork;
pub mod import;

mod context;
mod conversation;
mod format;
mod handoffs;
mod rows;

pub use context::{
    SnapshotArchivedResult, SnapshotContext, SnapshotFact, SnapshotHealth, SnapshotPlan,
    SnapshotSummary,
};
pub use export::export_run;
use fork::continue_fork;
pub use fork::fork_session;
pub use format::{
    RunSnapshot, SnapshotAgent, SnapshotCall, SnapshotCallStatus, SnapshotMessage, SnapshotRun,
};
pub use import::import_run;
pub use rows::{RunImport, RunMove, SessionCopy, SessionFork};

/// Returns the module.
#[must_use]
pub fn module() -> Module {
    Module::new("snapshot")
        // A copy of the whole run: callers with restrictions read its rows instead.
        .visible::<RunMove>(RowVisibility::Closed)
        .visible::<RunImport>(RowVisibility::InScope)
        .visible::<SessionFork>(RowVisibility::InScope)
        .table::<SessionCopy>()
        .paced_deadline::<SessionCopy>(
            "due_at",
            "due_at IS NOT NULL",
            limits::FORK_STEPS_PER_COMMIT,
            continue_fork::definition(),
        )
        .continuing(Continuation {
            reducer: "fork_session",
            subject: "session_id",
            caller: "caller",
            authority: "authority",
        })
        .reducer(export_run::definition())
        .reducer(import_run::definition().wrapping(limits::SNAPSHOT_DEPTH))
        .reducer(fork_session::definition())
}

/// Returns the refusal of a snapshot that cannot be right.
fn invalid(detail: impl fmt::Display) -> Refusal {
    Refusal::new(Code::BadArguments, format!("invalid snapshot: {detail}"))
        .hint("export the run again; an edited snapshot is refused")
}

/// Returns the refusal of a history with more rows than one call copies.
fn too_many_rows(rows: usize) -> Refusal {
    let max = limits::SNAPSHOT_ROWS;
    let detail =
        format!("the history has {rows} messages and tool calls or more; the limit is {max}");
    Refusal::new(Code::LimitExceeded, detail).hint("fork the session at an earlier event")
}

/// Returns the members of a column that holds an object.
fn object(column: &Json) -> Map<String, JsonValue> {
    match column.value() {
        JsonValue::Object(members) => members,
        _ => Map::new(),
    }
}
