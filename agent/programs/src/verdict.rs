//! How a run ended: one terminal event out of all that is known of it. Pure.
//!
//! One rule: a run is a [`ProgramEvent::Final`] if its program gave an answer, said of no failure, and
//! exited with 0, within its limits and uncancelled. Anything else is a [`ProgramEvent::Error`], and what
//! is known beside its cause goes with it: the answer if there was one, and how the process ended.

use std::time::Duration;

use crate::event::{Answer, ErrorKind, Exit, Failure, ProgramEvent};
use crate::lines::Overflow;

/// Why we ended it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Cancelled,
    TimedOut(Duration),
    Overflow(Overflow),
}

/// All that is known of a run when its process is gone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// The first reason for which we ended it.
    pub(crate) stop: Option<Stop>,
    /// Why it could not start, or its output not be read.
    pub(crate) broken: Option<Failure>,
    /// Somebody asked the program to leave off.
    pub(crate) interrupted: bool,
    /// The failure that the program told of.
    pub(crate) failure: Option<Failure>,
    /// The error that the program told of last and did not call the end.
    pub(crate) reported: Option<String>,
    /// The first answer that it gave.
    pub(crate) answer: Option<Answer>,
    /// How the process ended.
    pub(crate) exit: Option<Exit>,
    /// The tail of its stderr, without secrets.
    pub(crate) stderr: String,
}

/// The terminal event. What is looked at first wins: whoever cancels wants to hear `cancelled`; a failure
/// that the program explains says more than its exit code; an exit code says more than a missing answer.
pub(crate) fn verdict(mut facts: Facts) -> ProgramEvent {
    let succeeded = facts.exit.is_some_and(Exit::is_success);
    let failure = if let Some(stop) = facts.stop.take() {
        stopped(stop)
    } else if let Some(broken) = facts.broken.take() {
        broken
    } else if let Some(failure) = facts.failure.take() {
        // Who is interrupted reports it as a failure; it is none.
        let kind = if facts.interrupted { ErrorKind::Cancelled } else { failure.kind };
        Failure { kind, ..failure }
    } else if !succeeded {
        crashed(&facts)
    } else if let Some(answer) = facts.answer {
        return ProgramEvent::Final(Answer { exit: facts.exit, ..answer });
    } else {
        silent(&facts)
    };
    // The first answer counts, also beside a failure that brought a last word of its own.
    let answer = facts.answer.map(Box::new).or(failure.answer);
    let answer = answer.map(|answer| Box::new(Answer { exit: facts.exit, ..*answer }));
    let exit = facts.exit;
    ProgramEvent::Error(Failure { exit, stderr: facts.stderr, answer, ..failure })
}

fn stopped(stop: Stop) -> Failure {
    match stop {
        Stop::Cancelled => Failure::new(ErrorKind::Cancelled, "the run was cancelled"),
        Stop::TimedOut(timeout) => Failure::new(
            ErrorKind::McpTimeout,
            format!("the program was not done after {} s", timeout.as_secs_f64()),
        ),
        Stop::Overflow(overflow) => Failure::new(ErrorKind::BudgetExceeded, overflow.to_string()),
    }
}

fn crashed(facts: &Facts) -> Failure {
    let how = facts.exit.map_or_else(|| "is gone without an exit code".to_owned(), told);
    let after = if facts.answer.is_some() { " after it had given an answer" } else { "" };
    let kind = if facts.interrupted { ErrorKind::Cancelled } else { ErrorKind::RuntimeCrash };
    Failure::new(kind, format!("the program {how}{after}{}", said(facts)))
}

fn silent(facts: &Facts) -> Failure {
    let kind = if facts.interrupted { ErrorKind::Cancelled } else { ErrorKind::BadModelOutput };
    Failure::new(kind, format!("the program exited with code 0 and gave no answer{}", said(facts)))
}

fn told(exit: Exit) -> String {
    exit.to_string()
}

/// What the program itself said was wrong: its last report, else the last line of its stderr.
fn said(facts: &Facts) -> String {
    let stderr = facts.stderr.lines().map(str::trim).rfind(|line| !line.is_empty());
    let words = facts.reported.as_deref().or(stderr);
    words.map(|words| format!(": {words}")).unwrap_or_default()
}

#[cfg(test)]
mod tests;
