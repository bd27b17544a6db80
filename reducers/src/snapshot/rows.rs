//! The rows that say where a run or a session comes from, and where a run has gone.

use abide_schema::{Json, Micros, Seq, table};

/// A run that was exported and continues elsewhere. It has ended here, with the code `moved`.
#[table(name = "run_moves", index(session_id))]
pub struct RunMove {
    /// The run.
    #[column(key, references = "runs(id)")]
    pub run_id: String,
    /// Its session.
    #[column(references = "sessions(id)")]
    pub session_id: String,
    /// The id of the snapshot.
    pub snapshot_id: String,
    /// The snapshot: a repeated export returns it.
    pub snapshot: Json,
    /// The caller that exported it.
    pub exported_by: String,
    /// When it was exported.
    pub created_at: Micros,
    /// The event that exported it.
    pub seq: Seq,
}

/// A run that was imported.
#[table(name = "run_imports", without_rowid, index(session_id), index(snapshot_id))]
pub struct RunImport {
    /// The run.
    #[column(key, references = "runs(id)")]
    pub run_id: String,
    /// Its session.
    #[column(references = "sessions(id)")]
    pub session_id: String,
    /// The id of the snapshot.
    pub snapshot_id: String,
    /// The id of the run where it was exported.
    pub origin_run_id: String,
    /// Whether the snapshot is a copy: the run continues at its origin, too.
    pub is_copy: bool,
    /// The caller that imported it.
    pub imported_by: String,
    /// When it was imported.
    pub created_at: Micros,
    /// The event that imported it.
    pub seq: Seq,
}

/// A session that was forked from another one.
#[table(name = "session_forks", without_rowid, index(origin_id))]
pub struct SessionFork {
    /// The new session.
    #[column(key, references = "sessions(id)")]
    pub session_id: String,
    /// The session that it has the history of.
    #[column(references = "sessions(id)")]
    pub origin_id: String,
    /// The last event of the log that the history includes.
    pub at: Seq,
    /// Number of messages that were copied so far.
    pub messages: i64,
    /// Number of tool calls whose outcomes were copied so far.
    pub calls: i64,
    /// The caller that forked it.
    pub forked_by: String,
    /// When it was forked.
    pub created_at: Micros,
    /// The event that forked it.
    pub seq: Seq,
    /// When the copy ended; null while it is in progress. If it failed, the new session is `failed`.
    #[column(omit_null)]
    pub ended_at: Option<Micros>,
}

/// A fork that is not complete: its next step.
#[table(name = "session_copies", index(due_at), index(session_id))]
pub struct SessionCopy {
    /// Its id. Each step has a new one, so that no two deadline calls have the same key.
    #[column(key)]
    pub id: String,
    /// The new session.
    #[column(references = "sessions(id)")]
    pub session_id: String,
    /// The caller that forked the session, and makes the steps.
    pub caller: String,
    /// Its restrictions, as in the log; null if it has none.
    pub authority: Option<String>,
    /// The place that the steps have reached.
    pub progress: Json,
    /// When the next step is due: immediately.
    pub due_at: Micros,
    /// The event that wrote it.
    pub seq: Seq,
}
