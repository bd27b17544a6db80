//! Runs that are answered as one text. A large one is loaded and encoded by one request of a scope at a time, apart from
//! the threads that serve requests, and its text is counted for the caller until it is sent.

use abide_engine::Engine;
use abide_schema::{Caller, Code, Refusal, Value};
use abide_server::port::{ParseTurn, rows::deny_hidden};
use serde_json::json;

use crate::limits;
use crate::start::{RunRow, params};
use crate::state::ProtocolState;

/// Waits for the permit to load a run.
///
/// # Errors
/// `limit_exceeded` if its events are too large for one text.
pub(super) async fn acquire_load_permit(
    app: &ProtocolState,
    by: &Caller,
    run: &RunRow,
) -> Result<Option<ParseTurn>, Refusal> {
    let bytes = size_of_events(&app.engine, by, &run.id).await?;
    if bytes > limits::WHOLE_RUN_BYTES {
        let most = limits::WHOLE_RUN_BYTES;
        let detail =
            format!("the events of the run have {bytes} bytes; the limit of one answer is {most}");
        let hint = format!("read them as a stream: GET /v1/runs/{}/events", run.id);
        return Err(Refusal::new(Code::LimitExceeded, detail).hint(hint));
    }
    Ok(acquire_permit(app, by, bytes).await)
}

/// Waits for the permit to encode what has this size.
pub(super) async fn acquire_permit(
    app: &ProtocolState,
    by: &Caller,
    bytes: usize,
) -> Option<ParseTurn> {
    app.run_limiter.acquire(by, bytes).await
}

/// Returns the size of the events of a run.
///
/// # Errors
/// A policy hides them.
pub(super) async fn size_of_events(
    engine: &Engine,
    by: &Caller,
    run_id: &str,
) -> Result<usize, Refusal> {
    // It reads the sizes of large values, and not the values.
    let sql = "SELECT sum(octet_length(data)) FROM run_events WHERE run_id = :run";
    let params = params([("run", json!(run_id))]);
    let found = engine.query(by, sql, &params, None).await.map_err(deny_hidden)?;
    match found.rows.first().and_then(|row| row.first()) {
        Some(Value::Integer(bytes)) => Ok(usize::try_from(*bytes).unwrap_or_default()),
        _ => Ok(0),
    }
}
