//! The messages that request guardrails have not checked yet.

use abide_definitions::guardrail::{Guardrail, GuardrailAt};

use crate::context::entry::{self, SessionEntry};
use crate::run::driver::Driver;

/// Returns the request guardrails of the run now. Those of all agents do not apply to programs and remote agents.
pub(crate) fn rules(driver: &Driver) -> impl Iterator<Item = &Guardrail> {
    let is_external = driver.agent.definition.external_kind().is_some();
    driver.guardrails().filter(move |rule| rule.at == GuardrailAt::Request && !is_external)
}

/// Returns `true` if a message has not been checked.
pub(crate) fn exist(driver: &Driver) -> bool {
    rules(driver).next().is_some() && messages(driver).next().is_some()
}

/// Returns the messages of others since the last answer that have not been checked.
pub(crate) fn messages(driver: &Driver) -> impl Iterator<Item = &SessionEntry> {
    let after = driver.state.entries.iter().rposition(|entry| entry::is_answer(entry));
    let new = &driver.state.entries[after.map_or(0, |at| at + 1)..];
    // What the model reads as instructions or requests, see `transcript`.
    new.iter().filter(|entry| entry::is_of_others(entry) && entry.id > driver.agent.checked_id)
}
