//! The check of new messages by request guardrails. It comes first: before it, nothing is searched, summarised or sent for a
//! message.

use abide_client::rows::RunEventKind;
use serde_json::json;

use crate::context::entry::AssistantEntry;
use crate::middleware::unchecked::messages;
use crate::middleware::verdict;
use crate::run::driver::Driver;
use crate::run::lease::run_event;
use crate::run::step::Step;

/// Checks the messages since the last answer; messages before it were checked then. Returns whether a rule denies one: its
/// message has been recorded as the answer.
pub(crate) async fn denies(driver: &mut Driver) -> Step<bool> {
    let texts: Vec<&str> = messages(driver).filter_map(|it| it.content.as_deref()).collect();
    if let Some(message) = verdict::rule_request(driver, &texts).await? {
        deny(driver, &message).await?;
        return Ok(true);
    }
    driver.agent.checked_id = driver.state.entries.last().map_or(0, |entry| entry.id);
    Ok(false)
}

/// Records the message of a rule as the answer. The texts of the messages since the answer before are not used any more.
pub(crate) async fn deny(driver: &Driver, message: &str) -> Step {
    let run_id = driver.state.run.id.clone();
    let entry = AssistantEntry { run_id, denies_request: true, ..AssistantEntry::default() };
    let token = run_event(RunEventKind::Token, json!({"content": message}));
    let answer = driver.message("assistant", message, &entry).into();
    driver.record(&[token], None, vec![answer]).await
}
