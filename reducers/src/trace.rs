//! Traces: whether the trace of a run has reached the sinks of its runtime. The spans are derived from the rows of the
//! run; here is only what was sent.

use abide_schema::reducer::{ReducerResult, RowVisibility};
use abide_schema::{
    Abort, Code, Context, Micros, Module, Refusal, Seq, TextEnum, limits, reducer, table,
};

use crate::check;
use crate::run::{self, Run};

/// Status of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TextEnum)]
pub enum TraceStatus {
    /// Every sink has accepted all spans.
    Complete,
    /// A sink has not accepted all spans.
    Partial,
}

/// The trace of a run that has ended.
#[table(name = "run_traces", without_rowid, index(session_id))]
pub struct RunTrace {
    /// The run.
    #[column(key, references = "runs(id)")]
    pub run_id: String,
    /// Its session.
    #[column(references = "sessions(id)")]
    pub session_id: String,
    /// The id of the trace in the sinks, in hexadecimal.
    pub trace_id: String,
    /// Its status.
    pub status: TraceStatus,
    /// Number of its spans.
    pub spans: i64,
    /// Why it is partial.
    pub error: Option<String>,
    /// When it was sent.
    pub created_at: Micros,
    /// The event that recorded it.
    pub seq: Seq,
}

/// Returns the module.
#[must_use]
pub fn module() -> Module {
    Module::new("trace")
        .visible::<RunTrace>(RowVisibility::InScope)
        .reducer(record_trace::definition())
}

/// Records that the trace of a run was sent. A later record replaces it.
#[reducer(roles(app, agent))]
pub fn record_trace(
    ctx: &mut Context<'_>,
    #[id(Run)] id: String,
    /// The id of the trace in the sinks.
    trace_id: String,
    /// Number of its spans.
    spans: i64,
    status: TraceStatus,
    /// Why it is partial.
    error: Option<String>,
) -> Result<ReducerResult<RunTrace>, Abort> {
    check::name("trace_id", &trace_id)?;
    check::in_range("spans", Some(spans), &(0..=i64::from(u32::MAX)))?;
    if let Some(bytes) = error.as_ref().map(String::len).filter(|it| *it > limits::REASON_BYTES) {
        let detail = format!("error has {bytes} bytes; the limit is {}", limits::REASON_BYTES);
        return Err(Refusal::new(Code::LimitExceeded, detail).into());
    }
    let run = run::find(ctx, &id)?;
    if !run.status.is_terminal() {
        let detail = format!("run {id} is {} and has no complete trace yet", run.status);
        let hint = "record the trace when the run has ended";
        return Err(Refusal::new(Code::BadTransition, detail).hint(hint).into());
    }
    let before = ctx.get::<RunTrace>(&id)?;
    let trace = RunTrace {
        run_id: run.id,
        session_id: run.session_id,
        trace_id,
        status,
        spans,
        error,
        created_at: before.as_ref().map_or(ctx.now, |before| before.created_at),
        seq: before.as_ref().map_or(ctx.seq, |before| before.seq),
    };
    match before {
        None => ctx.insert(trace).map(ReducerResult::Fresh),
        Some(before) if before == trace => Ok(ReducerResult::Duplicate(before.seq, before)),
        Some(_) => {
            let trace = RunTrace { created_at: ctx.now, seq: ctx.seq, ..trace };
            ctx.update(&trace)?;
            Ok(ReducerResult::Fresh(trace))
        }
    }
}
