//! Acknowledged is durable: what was answered before a crash is there after it, under the same seq and
//! with the same result, once; what was asked and not answered is there once or not at all; and what was
//! answered with the word that nothing was written is not there.

use abide_schema::reducer::Caller;
use abide_schema::{Code, Refusal, Value};
use serde_json::Map;

use super::Finding;
use crate::history::History;
use crate::rig::{Ask, Rig, Told};

const NAME: &str = "acknowledged is durable";

/// Asks everything again, as a client does that lost its connection.
///
/// # Errors
/// The first thing that is not as it was told.
pub fn check(rig: &Rig, history: &History) -> Result<(), Finding> {
    for (ask, told) in &history.told {
        let again = rig.run(ask.put(rig.engine()));
        let again = again.map_err(|refusal| lost(ask, told, &refusal))?;
        if again.results != told.results {
            let what = format!("{} was told {told:?}, and now {again:?}", ask.request_id);
            return Err(Finding::new(NAME, what));
        }
        if !again.duplicate {
            return Err(Finding::new(NAME, format!("{} was run a second time", ask.request_id)));
        }
    }
    for ask in &history.open {
        let before = rig.run(ask.put(rig.engine()));
        let again = rig.run(ask.put(rig.engine()));
        match (&before, &again) {
            (Ok(before), Ok(again)) if before.results == again.results && again.duplicate => {}
            // What a rule refuses it may well refuse again.
            (Err(before), Err(again))
                if before.code == again.code && before.code != Code::Internal => {}
            _ => {
                let what = format!("{}: {before:?}, and then {again:?}", ask.request_id);
                return Err(Finding::new(NAME, what));
            }
        }
    }
    history.unwritten.iter().try_for_each(|ask| not_written(rig, ask))?;
    once_each(rig)
}

fn not_written(rig: &Rig, ask: &Ask) -> Result<(), Finding> {
    let sql = "SELECT seq FROM events WHERE request_id = :id";
    let id = Map::from_iter([("id".to_owned(), ask.request_id.as_str().into())]);
    let answer = rig.run(rig.engine().query(&Caller::local(), sql, &id, None));
    let answer = answer.map_err(|refusal| Finding::new(NAME, refusal))?;
    match answer.rows.first() {
        None => Ok(()),
        Some(row) => {
            let what = format!("{} was told that nothing was written: {row:?}", ask.request_id);
            Err(Finding::new(NAME, what))
        }
    }
}

fn lost(ask: &Ask, told: &Told, refusal: &Refusal) -> Finding {
    let what = format!("{} was told {told:?}, and now {refusal}", ask.request_id);
    Finding::new(NAME, what)
}

/// No request stands in the log twice: as many events of it as calls.
fn once_each(rig: &Rig) -> Result<(), Finding> {
    let sql = "SELECT e.caller, e.request_id, count(*), json_array_length(r.seqs) FROM events e
        LEFT JOIN request_ids r ON r.request_id = e.request_id AND r.caller = e.caller ||
        coalesce(nullif(char(9) || json_extract(e.authority, '$.scope'), char(9) || '{}'), '')
        WHERE e.request_id IS NOT NULL GROUP BY e.caller, e.request_id";
    let answer = rig.run(rig.engine().query(&Caller::local(), sql, &Map::new(), None));
    let answer = answer.map_err(|refusal| Finding::new(NAME, refusal))?;
    for row in &answer.rows {
        let (Value::Text(id), Value::Integer(events)) = (&row[1], &row[2]) else { continue };
        // A call that an earlier one had done already has its seq, and no event of its own.
        if !matches!(&row[3], Value::Integer(calls) if calls >= events) {
            let what = format!("{id} has {events} events for {} calls", row[3].to_json());
            return Err(Finding::new(NAME, what));
        }
    }
    Ok(())
}
