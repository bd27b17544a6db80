//! The result of a run: one terminal event from all available facts. Pure.
//!
//! The rule: a run ends with [`ProgramEvent::Final`] if its program gave an answer, reported no failure, and exited
//! with code 0, within its limits and without cancellation. Otherwise it ends with [`ProgramEvent::Error`], which
//! also has the answer if there was one, and the exit status.

use std::time::Duration;

use crate::event::{ErrorKind, Exit, Failure, ProgramEvent, ProgramResult};
use crate::lines::Overflow;

/// Why the driver stopped the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StopReason {
    Cancelled,
    TimedOut(Duration),
    Overflow(Overflow),
}

/// The facts about a run whose process has exited.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunFacts {
    /// The first reason to stop it.
    pub(crate) stop: Option<StopReason>,
    /// Why it could not start, or its output could not be read.
    pub(crate) broken: Option<Failure>,
    /// Whether it was ended after its answer, because it is a server or did not exit: its exit has no meaning.
    pub(crate) dismissed: bool,
    /// Whether it was interrupted.
    pub(crate) interrupted: bool,
    /// The failure that the program reported.
    pub(crate) failure: Option<Failure>,
    /// The last error that the program reported without failing.
    pub(crate) reported: Option<String>,
    /// The last answer.
    pub(crate) answer: Option<ProgramResult>,
    /// How the process ended.
    pub(crate) exit: Option<Exit>,
    /// The end of stderr, without secrets.
    pub(crate) stderr: String,
}

/// Returns the terminal event. Earlier checks take precedence: a cancellation is always reported as `cancelled`; a
/// failure that the program explains is more specific than its exit code; an exit code is more specific than a missing
/// answer.
pub(crate) fn verdict(mut facts: RunFacts) -> ProgramEvent {
    let succeeded = facts.dismissed || facts.exit.is_some_and(Exit::is_success);
    let reported = facts.failure.as_ref().and_then(|failure| failure.answer.clone());
    let failure = if let Some(stop) = facts.stop.take() {
        stopped(stop)
    } else if let Some(broken) = facts.broken.take() {
        broken
    } else if let Some(failure) = facts.failure.take() {
        // Programs report an interrupt as a failure.
        let kind = if facts.interrupted { ErrorKind::Cancelled } else { failure.kind };
        let message = with_report(&failure.message, facts.reported.as_deref());
        Failure { kind, message, ..failure }
    } else if !succeeded {
        crashed(&facts)
    } else if let Some(answer) = facts.answer {
        return ProgramEvent::Final(ProgramResult { exit: facts.exit, ..answer });
    } else {
        silent(&facts)
    };
    // An answer of its own line counts, even if the failure has one too.
    let answer = facts.answer.map(Box::new).or(reported);
    let answer = answer.map(|answer| Box::new(ProgramResult { exit: facts.exit, ..*answer }));
    let exit = facts.exit;
    ProgramEvent::Error(Failure { exit, stderr: facts.stderr, answer, ..failure })
}

fn stopped(stop: StopReason) -> Failure {
    match stop {
        StopReason::Cancelled => Failure::new(ErrorKind::Cancelled, "the run was cancelled"),
        StopReason::TimedOut(timeout) => Failure::new(
            ErrorKind::McpTimeout,
            format!("the program timed out after {} s", timeout.as_secs_f64()),
        ),
        StopReason::Overflow(overflow) => {
            Failure::new(ErrorKind::BudgetExceeded, overflow.to_string())
        }
    }
}

fn crashed(facts: &RunFacts) -> Failure {
    let how = facts.exit.map_or_else(|| "ended without an exit code".to_owned(), exit_text);
    let after = if facts.answer.is_some() { " after it had given an answer" } else { "" };
    let kind = if facts.interrupted { ErrorKind::Cancelled } else { ErrorKind::RuntimeCrash };
    Failure::new(kind, format!("the program {how}{after}{}", detail(facts)))
}

fn silent(facts: &RunFacts) -> Failure {
    let kind = if facts.interrupted { ErrorKind::Cancelled } else { ErrorKind::BadModelOutput };
    Failure::new(
        kind,
        format!("the program exited with code 0 and gave no answer{}", detail(facts)),
    )
}

fn exit_text(exit: Exit) -> String {
    exit.to_string()
}

/// Returns the message of a failure, with the error that the program reported before, unless the message contains it.
fn with_report(message: &str, reported: Option<&str>) -> String {
    match reported.filter(|reported| !message.contains(reported)) {
        Some(reported) => format!("{message}: {reported}"),
        None => message.to_owned(),
    }
}

/// Returns the program's own error message: its last report, else the last line of stderr.
fn detail(facts: &RunFacts) -> String {
    let stderr = facts.stderr.lines().map(str::trim).rfind(|line| !line.is_empty());
    let words = facts.reported.as_deref().or(stderr);
    words.map(|words| format!(": {words}")).unwrap_or_default()
}

#[cfg(test)]
mod tests;
