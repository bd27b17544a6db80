//! What leaves a run: requests to models, prompts of programs, tasks for remote agents. All of it passes [`ready`], which each
//! purpose names.

use abide_models::RequestPurpose;

use crate::middleware::unchecked;
use crate::run::driver::Driver;
use crate::run::step::{RunFailure, Step, StepError};

/// For what text of a session leaves the run. The test `denied_text_is_in_no_request_of_any_purpose` has a case for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A model continues the conversation, or corrects an answer with the wrong structure.
    Answer,
    /// A model summarises older messages.
    Summary,
    /// A model decides whether a text is allowed.
    Verdict,
    /// An embedding model makes the vector of the last message of the user, to read facts about it.
    Recall,
    /// An embedding model makes the vector of a query that the agent's model wrote.
    Search,
    /// A command-line program works on the conversation.
    Program,
    /// A remote agent works on a task.
    RemoteTask,
}

impl Purpose {
    /// Returns `true` if messages may leave that no request guardrail has checked.
    fn takes_unchecked(self) -> bool {
        match self {
            // The question is whether one of them is allowed.
            Purpose::Verdict => true,
            // It has no message of the session.
            Purpose::Search => true,
            Purpose::Answer
            | Purpose::Summary
            | Purpose::Recall
            | Purpose::Program
            | Purpose::RemoteTask => false,
        }
    }

    /// Returns how scripts and recordings see a request.
    pub(crate) fn request_purpose(self) -> RequestPurpose {
        match self {
            Purpose::Summary => RequestPurpose::Summary,
            _ => RequestPurpose::Answer,
        }
    }
}

/// Waits until text may leave the run: what it depends on is durable.
///
/// # Errors
/// `unchecked_request` if the guardrails have not checked all messages. The loop of a run checks them before it does anything
/// else with them, so this is a defect of the runtime. Nothing leaves then.
pub(crate) async fn ready(driver: &Driver, purpose: Purpose) -> Step {
    if !purpose.takes_unchecked() && unchecked::exist(driver) {
        let why = "a message was not checked by the request guardrails, so nothing was sent";
        return Err(StepError::Failed(RunFailure::new("unchecked_request", why)));
    }
    driver.until_durable().await
}
