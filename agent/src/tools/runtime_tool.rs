//! A tool of the runtime itself: what the loop has to know about it, in one trait. The list of them is in `tools/registry.rs`.

use abide_client::arguments::RegisterTool;
use abide_client::rows::ToolCall;
use abide_client::{Code, Error};
use abide_models::ToolSpec;
use abide_tools::{Effect, Failure, ToolDeclaration, ToolOutcome};
use futures_util::future::{self, BoxFuture, FutureExt as _};
use tokio_util::sync::CancellationToken;

use crate::context::entry::CallResult;
use crate::run::driver::Driver;
use crate::run::step::{Step, StepError};

/// A tool that the runtime provides, because its calls change the run that they belong to or read what only the driver knows. Its
/// calls are rows like all others: they are requested, approved, claimed and recorded by the same code.
pub(crate) trait RuntimeTool: Send + Sync {
    /// Returns the tool as it is registered: name, description and parameters. The effect is [`RuntimeTool::effect`].
    fn declaration(&self) -> ToolDeclaration;

    /// Returns the name of the declaration, without building its schema: each call is looked up by it.
    fn name(&self) -> &str;

    /// Returns the registration of the tool.
    fn registration(&self) -> RegisterTool {
        ToolDeclaration { effect: self.effect(), ..self.declaration() }.manifest()
    }

    /// Returns `false` if an agent that does not have the tool can have a tool of the user with its name: a function, an MCP tool.
    /// With `true` the name always means this tool.
    fn is_reserved(&self) -> bool {
        true
    }

    /// Returns why the active agent does not have the tool now, for the model; `None` if it has it.
    fn missing(&self, driver: &Driver) -> Option<&'static str>;

    /// Returns the tool as the model of an agent sees it that has it.
    fn spec(&self, _: &Driver) -> ToolSpec {
        let ToolDeclaration { name, description, parameters, .. } = self.declaration();
        ToolSpec { name, description, parameters }
    }

    /// Returns what a repetition of a call would do. All effects are rows of the same log as the claim of the call, so a claim
    /// need not be durable before the call runs: a crash undoes both.
    fn effect(&self) -> Effect;

    /// Returns when its calls may run, relative to the other calls of an answer.
    fn order(&self) -> CallOrder;

    /// Returns `true` if its calls start runs. The session of such a run has the id of the call.
    fn starts_run(&self) -> bool {
        false
    }

    /// Returns `true` if a call changes the active agent when its result is delivered.
    fn changes_agent(&self) -> bool {
        false
    }

    /// Runs a call. Returns its outcome; `None` if the call has recorded it, or if it waits.
    fn run<'a>(&'a self, call: RunningCall<'a>) -> BoxFuture<'a, Step<Option<ToolOutcome>>>;

    /// Returns what the model gets as the result of a call that has ended. The default is the recorded result. A tool whose result
    /// only the runtime may give checks it here: every worker with the capability can claim a call and record its result.
    fn result_for_model<'a>(
        &'a self,
        _: &'a Driver,
        _: &'a ToolCall,
        result: CallResult,
    ) -> BoxFuture<'a, Step<CallResult>> {
        future::ready(Ok(result)).boxed()
    }
}

/// When a call may run, relative to the other calls of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallOrder {
    /// One after the other, in the order of the answer, before all others: its effect depends on the calls before it.
    InSequence,
    /// Together with other calls.
    Any,
}

/// A claimed call of a tool of the runtime.
#[derive(Clone, Copy)]
pub(crate) struct RunningCall<'a> {
    pub(crate) driver: &'a Driver,
    pub(crate) claimed: &'a ToolCall,
    /// Cancelled when the call has to stop.
    pub(crate) cancel: &'a CancellationToken,
}

/// Returns the outcome of a call whose effect the database has refused; `None` if another worker or driver has the call or the run
/// now: the next step reads their state. Every other refusal is an outcome. Without one the call would stay claimed, and its next
/// attempt would be refused in the same way, without an end and without a trace.
pub(crate) fn refused(error: Error) -> Step<Option<ToolOutcome>> {
    match error.code() {
        None => Err(StepError::Refused(error)),
        Some(Code::LeaseLost) => Ok(None),
        Some(code) => {
            let failure = if code.retryable() { Failure::Unavailable } else { Failure::Denied };
            Ok(Some(ToolOutcome::failed(failure, error.to_string())))
        }
    }
}

#[cfg(test)]
mod tests {
    use abide_client::Refusal;

    use super::*;

    /// Class: a refused effect of the runtime without an outcome. A call of `request_supervisor` whose request was `not_found` stayed
    /// claimed until its lease ended, was claimed again and refused in the same way, for ever.
    #[test]
    fn every_refusal_but_a_lost_lease_is_an_outcome() {
        for code in Code::ALL {
            let error = Error::Refused(Refusal::new(*code, "it is refused"));
            let Ok(outcome) = refused(error) else { panic!("{code} has no outcome") };
            let failure = outcome.and_then(|outcome| outcome.failure);
            let expected = match code {
                Code::LeaseLost => None,
                code if code.retryable() => Some(Failure::Unavailable),
                _ => Some(Failure::Denied),
            };
            assert_eq!(failure, expected, "{code}");
        }
    }
}
