//! The check of new messages by request guardrails. It comes first: before it, nothing is searched, summarised or sent for a
//! message.

use abide_client::RunEventKind;
use abide_definitions::guardrail::{Guardrail, GuardrailAt};
use serde_json::json;

use crate::context::entry::{self, AssistantEntry, SessionEntry};
use crate::middleware::verdict;
use crate::run::driver::Driver;
use crate::run::lease::run_event;
use crate::run::step::Step;

/// The request guardrails of the run now. Those of all agents do not apply to programs and remote agents.
pub(crate) fn rules(driver: &Driver) -> impl Iterator<Item = &Guardrail> {
    let is_external = driver.definition.external_kind().is_some();
    driver.guardrails().filter(move |rule| rule.at == GuardrailAt::Request && !is_external)
}

/// Checks the messages since the last answer; messages before it were checked then. Returns whether a rule denies one: its
/// message has been recorded as the answer.
pub(crate) async fn denies(driver: &mut Driver) -> Step<bool> {
    let texts: Vec<&str> = unchecked(driver).filter_map(|it| it.content.as_deref()).collect();
    if let Some(message) = verdict::rule_request(driver, &texts).await? {
        deny(driver, &message).await?;
        return Ok(true);
    }
    driver.checked_id = driver.entries.last().map_or(0, |entry| entry.id);
    Ok(false)
}

/// Records the message of a rule as the answer. The texts of the messages since the answer before are not used any more.
pub(crate) async fn deny(driver: &Driver, message: &str) -> Step {
    let run_id = driver.run.id.clone();
    let entry = AssistantEntry { run_id, denies_request: true, ..AssistantEntry::default() };
    let token = run_event(RunEventKind::Token, json!({"content": message}));
    let answer = driver.message("assistant", message, &entry).into();
    driver.record(&[token], None, vec![answer]).await
}

/// Whether a message has not been checked.
pub(crate) fn has_unchecked(driver: &Driver) -> bool {
    rules(driver).next().is_some() && unchecked(driver).next().is_some()
}

/// The messages of others since the last answer that have not been checked.
fn unchecked(driver: &Driver) -> impl Iterator<Item = &SessionEntry> {
    let after = driver.entries.iter().rposition(|entry| entry::is_answer(entry));
    let new = &driver.entries[after.map_or(0, |at| at + 1)..];
    // What the model reads as instructions or requests, see `transcript`.
    new.iter().filter(|entry| entry::is_of_others(entry) && entry.id > driver.checked_id)
}
