//! Announces that an answer starts again (the event `restart`): its driver ended in the middle of it, or a program, a
//! remote agent or a loop in Rust says it once more. The pieces of the answer that were recorded before are void: a
//! consumer that has shown them replaces them with the pieces after the announcement.

use abide_client::arguments::NewRunEvent;
use abide_client::rows::RunEventKind;
use serde_json::json;

use crate::context::entry::{self, SessionEntry};
use crate::run::driver::Driver;
use crate::run::lease::run_event;
use crate::run::step::Step;

/// The code of these restarts. The other restarts, after an error of the model, have the code of the error.
const RESTARTED: &str = "runtime_restarted";

/// The condition for the events of a model that end its previous answer: all but the pieces of an answer.
const NO_PIECE_OF_MODEL: &str = "kind NOT IN ('token', 'reasoning')";

/// The condition for the events of a program or a remote agent that end its previous text. Lines, status and usage are
/// published in the middle of a text too.
const NO_PIECE_OF_PROGRAM: &str = "kind NOT IN ('token', 'reasoning', 'line', 'status', 'usage')";

/// Announces the restart of an answer if the run ends with pieces of an incomplete one. Does so before the driver asks
/// its model for the first time: what it finds then is from an earlier driver.
pub(crate) async fn announce_answer(driver: &mut Driver) -> Step {
    if driver.has_asked_model {
        return Ok(());
    }
    driver.has_asked_model = true;
    // The pieces of an answer are consecutive, and an event of another kind follows a complete answer.
    let before = last_event_number(driver, NO_PIECE_OF_MODEL).await?;
    if before >= driver.state.run.events {
        return Ok(());
    }
    let why = "the runtime ended during the answer";
    driver.record(&[restart_event(before + 1, why)], None, Vec::new()).await
}

/// Returns the announcement that a program continues in its own session. The text since its last tool call is void.
pub(crate) async fn program_event(driver: &Driver) -> Step<NewRunEvent> {
    let before = last_event_number(driver, NO_PIECE_OF_PROGRAM).await?;
    Ok(restart_event(before + 1, "the runtime ended while the program ran; the program continues"))
}

/// Returns the announcement that a remote agent's text starts again after the run's last question; `None` if none of it
/// was published.
pub(crate) async fn text_event(driver: &Driver, why: &str) -> Step<Option<NewRunEvent>> {
    let before = last_event_number(driver, NO_PIECE_OF_PROGRAM).await?;
    let last_token = last_event_number(driver, "kind = 'token'").await?;
    Ok((last_token > before).then(|| restart_event(before + 1, why)))
}

/// Returns the announcement that the answer of a loop in Rust starts again: the loop is called again after a crash or a
/// wait, or it returns another answer than the text that it has published. `None` if none of the answer was published.
pub(crate) async fn loop_event(driver: &Driver, why: &str) -> Step<Option<NewRunEvent>> {
    let last_answer = driver.state.entries.iter().rfind(|entry| is_final_answer(entry));
    let answered = last_answer.map_or(0, |entry| entry.seq.0);
    let sql = "SELECT number FROM run_events WHERE run_id = :id AND kind = 'token' AND seq > :answered \
               ORDER BY number LIMIT 1";
    let query = driver.abide.sql(sql).param("id", &driver.state.run.id).param("answered", answered);
    let found: Vec<(i64,)> = query.fetch().await?;
    Ok(found.first().map(|(number,)| restart_event(*number, why)))
}

/// Returns `true` if an entry is an answer that requests no calls.
fn is_final_answer(entry: &SessionEntry) -> bool {
    entry::is_answer(entry) && entry.assistant().is_some_and(|answer| answer.calls.is_empty())
}

/// Returns the event of a restart: the pieces from the event with the number `since` on are void.
fn restart_event(since: i64, why: &str) -> NewRunEvent {
    let data = json!({"since": since, "code": RESTARTED, "error": why});
    run_event(RunEventKind::Restart, data)
}

/// Returns the number of the run's last event that meets a condition, which is SQL; 0 if there is none.
async fn last_event_number(driver: &Driver, condition: &str) -> Step<i64> {
    let sql = format!(
        "SELECT number FROM run_events WHERE run_id = :id AND {condition} \
         ORDER BY number DESC LIMIT 1"
    );
    let found: Vec<(i64,)> =
        driver.abide.sql(sql).param("id", &driver.state.run.id).fetch().await?;
    Ok(found.first().map_or(0, |(number,)| *number))
}
