//! The row of a run's newest pause. Apart from the reducers, which use `run::drive`, which uses this row.

use abide_schema::{Micros, Seq, TextEnum, table};

/// A stage of the loop at which a run can pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, TextEnum)]
pub enum PauseStage {
    /// An answer of the model is recorded; none of its tool calls has begun.
    AfterAgent,
    /// The results of all tool calls of an answer are recorded as messages.
    AfterTools,
    /// The run has an answer that ends it, and has not ended.
    AfterLoop,
    /// The model is about to be asked; no guardrail has checked the request.
    BeforeGuardrails,
}

/// Status of a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TextEnum)]
pub enum PauseStatus {
    /// The run pauses when it reaches the stage.
    Requested,
    /// The run waits.
    Paused,
    /// The run was resumed, or the request was withdrawn.
    Resumed,
}

/// The newest pause of a run.
#[table(name = "pauses", without_rowid, index(session_id))]
pub struct Pause {
    /// The run.
    #[column(key, references = "runs(id)")]
    pub run_id: String,
    /// Its session.
    #[column(references = "sessions(id)")]
    pub session_id: String,
    /// Its status.
    pub status: PauseStatus,
    /// The requested stage; null: the next one, whichever it is.
    pub requested_stage: Option<PauseStage>,
    /// The stage of the last pause.
    pub stage: Option<PauseStage>,
    /// How many answers the run had at the last pause.
    pub iteration: Option<i64>,
    /// Why, for people.
    pub reason: Option<String>,
    /// The caller that requested it; null if a rule or a callback paused the run.
    pub requested_by: Option<String>,
    /// When it was requested.
    pub requested_at: Micros,
    /// When the run paused.
    pub paused_at: Option<Micros>,
    /// When the run was resumed.
    pub resumed_at: Option<Micros>,
    /// The event of the last change.
    pub seq: Seq,
}
