//! The messages that request guardrails have not checked yet.

use abide_definitions::guardrail::{Guardrail, GuardrailAt};

use crate::context::entry::{self, SessionEntry};
use crate::run::driver::Driver;

/// Returns the request guardrails that apply to the run now: none if the active agent is a program or a remote agent.
/// Such a definition has none of its own, and those of all agents do not apply to it.
pub(crate) fn rules(driver: &Driver) -> impl Iterator<Item = &Guardrail> {
    let is_external = driver.agent.definition.external_kind().is_some();
    driver.guardrails().filter(move |rule| rule.at == GuardrailAt::Request && !is_external)
}

/// Returns `true` if there are request guardrails, and messages that they have not checked.
pub(crate) fn exist(driver: &Driver) -> bool {
    rules(driver).next().is_some() && messages(driver).next().is_some()
}

/// Returns the messages that the request guardrails of the active agent have not checked: those that callers wrote
/// after the last answer of a model, which the model reads as instructions or requests.
pub(crate) fn messages(driver: &Driver) -> impl Iterator<Item = &SessionEntry> {
    let entries = &driver.state.entries;
    let last_answer = entries.iter().rposition(|entry| entry::is_answer(entry));
    let since_answer = &entries[last_answer.map_or(0, |at| at + 1)..];
    since_answer
        .iter()
        .filter(|entry| entry::is_of_others(entry) && entry.id > driver.agent.checked_id)
}
