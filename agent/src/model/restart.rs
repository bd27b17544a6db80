//! Announces that an answer starts again because its driver ended in the middle of it. Its recorded pieces are void:
//! a consumer that has shown them replaces them with the pieces after the announcement.

use abide_client::arguments::NewRunEvent;
use abide_client::rows::RunEventKind;
use serde_json::json;

use crate::context::entry::{self, SessionEntry};
use crate::run::driver::Driver;
use crate::run::lease::run_event;
use crate::run::step::Step;

/// The code of a restart because of a new driver, next to those of model errors.
const RESTARTED: &str = "runtime_restarted";

/// Announces the restart of an answer, before a driver asks its model for the first time.
pub(crate) async fn announce_answer(driver: &mut Driver) -> Step {
    if std::mem::replace(&mut driver.has_asked_model, true) {
        return Ok(());
    }
    // The pieces of an answer are consecutive, and an event of another kind follows a complete one.
    let before = last_number(driver, "kind NOT IN ('token', 'reasoning')").await?;
    if before >= driver.state.run.events {
        return Ok(());
    }
    let why = "the runtime ended during the answer";
    driver.record(&[event(before + 1, why)], None, Vec::new()).await
}

/// Returns the announcement that a program continues in its own session. The text since its last tool call is void.
pub(crate) async fn program_event(driver: &Driver) -> Step<NewRunEvent> {
    let before =
        last_number(driver, "kind NOT IN ('token', 'reasoning', 'line', 'status', 'usage')")
            .await?;
    Ok(event(before + 1, "the runtime ended while the program ran; the program continues"))
}

/// Returns the announcement that a remote agent's text starts again after the run's last question; `None` if none of it
/// was published.
pub(crate) async fn text_event(driver: &Driver, why: &str) -> Step<Option<NewRunEvent>> {
    let others = "kind NOT IN ('token', 'reasoning', 'line', 'status', 'usage')";
    let before = last_number(driver, others).await?;
    let last = last_number(driver, "kind = 'token'").await?;
    Ok((last > before).then(|| event(before + 1, why)))
}

/// Returns the announcement that the answer of a loop in Rust starts again: it is called again after a crash or a wait,
/// or its answer is not what it has said. `None` if none of the answer was published.
pub(crate) async fn loop_event(driver: &Driver, why: &str) -> Step<Option<NewRunEvent>> {
    let is_answer = |entry: &&SessionEntry| {
        entry::is_answer(entry) && entry.assistant().is_some_and(|answer| answer.calls.is_empty())
    };
    let answered = driver.state.entries.iter().rfind(is_answer).map_or(0, |entry| entry.seq.0);
    let sql = "SELECT number FROM run_events WHERE run_id = :id AND kind = 'token' AND seq > :answered \
               ORDER BY number LIMIT 1";
    let first = driver.abide.sql(sql).param("id", &driver.state.run.id).param("answered", answered);
    let first: Vec<(i64,)> = first.fetch().await?;
    Ok(first.first().map(|(number,)| event(*number, why)))
}

fn event(since: i64, why: &str) -> NewRunEvent {
    let data = json!({"since": since, "code": RESTARTED, "error": why});
    run_event(RunEventKind::Restart, data)
}

/// Returns the number of the run's last event that meets a condition; 0 if there is none.
async fn last_number(driver: &Driver, condition: &str) -> Step<i64> {
    let sql = format!(
        "SELECT number FROM run_events WHERE run_id = :id AND {condition} \
         ORDER BY number DESC LIMIT 1"
    );
    let found: Vec<(i64,)> =
        driver.abide.sql(sql).param("id", &driver.state.run.id).fetch().await?;
    Ok(found.first().map_or(0, |(number,)| *number))
}
