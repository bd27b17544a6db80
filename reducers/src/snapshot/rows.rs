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
    /// Number of messages that were copied.
    pub messages: i64,
    /// Number of tool calls whose outcomes were copied.
    pub calls: i64,
    /// The caller that forked it.
    pub forked_by: String,
    /// When it was forked.
    pub created_at: Micros,
    /// The event that forked it.
    pub seq: Seq,
}
