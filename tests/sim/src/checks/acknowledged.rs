//! Acknowledged is durable. A call acknowledged before a crash is in the log after it exactly once,
//! with the same seq and result. A call without a response is in the log once or not at all. A call
//! whose refusal says that nothing was written is not in the log.

use abide_schema::reducer::Caller;
use abide_schema::{Code, Refusal, Value};
use serde_json::Map;

use super::Finding;
use crate::history::History;
use crate::rig::{Rig, SimReply, SimRequest};

const NAME: &str = "acknowledged is durable";

/// Retries everything, as a client does after it lost its connection.
///
/// # Errors
/// The first violation.
pub fn check(rig: &Rig, history: &History) -> Result<(), Finding> {
    for (ask, output) in &history.acknowledged {
        let again =
            rig.run(ask.send(rig.engine())).map_err(|refusal| lost(ask, output, &refusal))?;
        if again.results != output.results {
            let what = format!("{} got {output:?}, and on retry {again:?}", ask.request_id);
            return Err(Finding::new(NAME, what));
        }
        if !again.duplicate {
            return Err(Finding::new(NAME, format!("{} ran a second time", ask.request_id)));
        }
    }
    for ask in &history.open {
        let before = rig.run(ask.send(rig.engine()));
        let again = rig.run(ask.send(rig.engine()));
        match (&before, &again) {
            (Ok(before), Ok(again)) if before.results == again.results && again.duplicate => {}
            // A call refused by a rule may be refused again.
            (Err(before), Err(again))
                if before.code == again.code && before.code != Code::Internal => {}
            _ => {
                let what = format!("{}: {before:?}, and on retry {again:?}", ask.request_id);
                return Err(Finding::new(NAME, what));
            }
        }
    }
    history.unwritten.iter().try_for_each(|ask| not_written(rig, ask))?;
    once_each(rig)
}

fn not_written(rig: &Rig, ask: &SimRequest) -> Result<(), Finding> {
    let sql = "SELECT seq FROM events WHERE request_id = :id";
    let id = Map::from_iter([("id".to_owned(), ask.request_id.as_str().into())]);
    let answer = rig
        .run(rig.engine().query(&Caller::local(), sql, &id, None))
        .map_err(|refusal| Finding::new(NAME, refusal))?;
    match answer.rows.first() {
        None => Ok(()),
        Some(row) => {
            let what =
                format!("{} got the response that nothing was written: {row:?}", ask.request_id);
            Err(Finding::new(NAME, what))
        }
    }
}

fn lost(ask: &SimRequest, output: &SimReply, refusal: &Refusal) -> Finding {
    let what = format!("{} got {output:?}, and on retry {refusal}", ask.request_id);
    Finding::new(NAME, what)
}

/// Checks that no request is in the log twice: it has at most as many events as calls.
fn once_each(rig: &Rig) -> Result<(), Finding> {
    let sql = "SELECT e.caller, e.request_id, count(*), json_array_length(r.seqs) FROM events e
        LEFT JOIN request_ids r ON r.request_id = e.request_id AND r.caller = e.caller ||
        coalesce(nullif(char(9) || json_extract(e.authority, '$.scope'), char(9) || '{}'), '')
        WHERE e.request_id IS NOT NULL GROUP BY e.caller, e.request_id";
    let answer = rig
        .run(rig.engine().query(&Caller::local(), sql, &Map::new(), None))
        .map_err(|refusal| Finding::new(NAME, refusal))?;
    for row in &answer.rows {
        let (Value::Text(id), Value::Integer(events)) = (&row[1], &row[2]) else { continue };
        // A call that an earlier request already made has that request's seq, and no event of its
        // own.
        if !matches!(&row[3], Value::Integer(calls) if calls >= events) {
            let what = format!("{id} has {events} events for {} calls", row[3].to_json());
            return Err(Finding::new(NAME, what));
        }
    }
    Ok(())
}
