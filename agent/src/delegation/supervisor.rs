//! The tool `request_supervisor`: the model asks for a supervisor, and the answer is the result of its call. The call and the
//! session wait without a driver, so nothing is lost if the process ends meanwhile.

use abide_client::Code;
use abide_client::arguments::{RegisterTool, RequestSupervisorHandoff};
use abide_client::rows::{ToolCall, ToolCallStatus};
use abide_definitions::agent_tool::{self, REQUEST_SUPERVISOR};
use abide_tools::{Effect, Failure, ToolDeclaration, ToolOutcome};
use futures_util::future::{BoxFuture, FutureExt as _};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::context::entry::{CallResult, CallStatus};
use crate::run::driver::Driver;
use crate::run::lease::fencing_token;
use crate::run::step::{Step, StepError};
use crate::tools::runtime_tool::{CallOrder, RunningCall, RuntimeTool, refused};

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// What the supervisor has to decide or to do, with all the information that is needed for it.
    #[schemars(length(min = 1, max = 4000))]
    reason: String,
}

/// The tool `request_supervisor`.
pub(crate) struct RequestSupervisor;

impl RuntimeTool for RequestSupervisor {
    fn declaration(&self) -> ToolDeclaration {
        let schema = schemars::schema_for!(Arguments).to_value();
        let description = "Asks a supervisor, a person who is responsible for this work, and waits for the answer.";
        ToolDeclaration::new(REQUEST_SUPERVISOR, description, schema)
    }

    fn name(&self) -> &str {
        REQUEST_SUPERVISOR
    }

    fn registration(&self) -> RegisterTool {
        agent_tool::registration(self.declaration())
    }

    fn is_reserved(&self) -> bool {
        false
    }

    fn missing(&self, driver: &Driver) -> Option<&'static str> {
        driver.agent.definition.supervisor.is_none().then_some("this agent has no supervisor")
    }

    // A call that has asked waits without a worker, so a repeated call has not asked yet.
    fn effect(&self) -> Effect {
        Effect::Idempotent
    }

    fn order(&self) -> CallOrder {
        CallOrder::InSequence
    }

    fn run<'a>(&'a self, call: RunningCall<'a>) -> BoxFuture<'a, Step<Option<ToolOutcome>>> {
        run(call).boxed()
    }

    fn result_for_model<'a>(
        &'a self,
        driver: &'a Driver,
        call: &'a ToolCall,
        result: CallResult,
    ) -> BoxFuture<'a, Step<CallResult>> {
        result_for_model(driver, call, result).boxed()
    }
}

/// Returns `true` if a call waits for the answer of a supervisor: nobody can approve or settle it.
pub(crate) fn waits(call: &ToolCall) -> bool {
    call.tool_name == REQUEST_SUPERVISOR
        && call.status == ToolCallStatus::AwaitingApproval
        && call.attempt > 0
}

/// Hands the session off for a call. Returns the outcome of a call that has failed, or that has to try again; `None` if it waits.
async fn run(call: RunningCall<'_>) -> Step<Option<ToolOutcome>> {
    let RunningCall { driver, claimed, .. } = call;
    if let Some(outcome) = driver.shared.recorded_outcomes.get(&claimed.call_id) {
        return Ok(Some(outcome.clone()));
    }
    let Some(supervisor) = &driver.agent.definition.supervisor else {
        let why = "this agent has no supervisor";
        return Ok(Some(ToolOutcome::failed(Failure::Denied, why)));
    };
    let arguments: Arguments = match serde_json::from_value(claimed.arguments.value()) {
        Ok(arguments) => arguments,
        Err(why) => return Ok(Some(ToolOutcome::failed(Failure::Arguments, why.to_string()))),
    };
    let data = json!({"run_id": driver.state.run.id, "agent": driver.agent.definition.name,
        "tool_call_id": claimed.call_id});
    let request = RequestSupervisorHandoff {
        data: Some(data),
        escalate_after_ms: supervisor.escalate_after_seconds.map(to_millis),
        escalate_to: supervisor.escalate_to.clone(),
        expires_after_ms: supervisor.expires_after_seconds.map(to_millis),
        call_id: Some(claimed.call_id.clone()),
        call_fencing_token: Some(fencing_token(claimed)),
        ..RequestSupervisorHandoff::new(
            &claimed.session_id,
            arguments.reason,
            &supervisor.capability,
        )
    };
    match driver.record(&[], None, vec![request.into()]).await {
        // Another handoff of the session is open. The call asks when it has ended.
        Err(StepError::Refused(error)) if error.code() == Some(Code::Conflict) => {
            Ok(Some(ToolOutcome::failed(Failure::Unavailable, error.to_string())))
        }
        Err(StepError::Refused(error)) => refused(error),
        recorded => recorded.map(|()| None),
    }
}

/// Replaces a result that no supervisor has given: a worker of the tenant can claim the call before its driver, and complete it.
async fn result_for_model(
    driver: &Driver,
    call: &ToolCall,
    result: CallResult,
) -> Step<CallResult> {
    if call.status == ToolCallStatus::Cancelled && call.attempt > 0 {
        let why = "The request was withdrawn: no supervisor has answered it.";
        return Ok(CallResult::without_success(CallStatus::Cancelled, why));
    }
    if call.status != ToolCallStatus::Succeeded
        || driver.shared.recorded_outcomes.contains_key(&call.call_id)
    {
        return Ok(result);
    }
    let sql = "SELECT 1 FROM handoff_calls c JOIN handoff_requests h ON h.id = c.handoff_id \
               WHERE c.call_id = :id AND h.status = 'resolved'";
    let query = driver.shared.abide.sql(sql).param("id", &call.call_id);
    let answers: Vec<(i64,)> = query.fetch().await.map_err(StepError::Refused)?;
    Ok(if answers.is_empty() { CallResult::error("no supervisor has answered") } else { result })
}

fn to_millis(seconds: i64) -> i64 {
    seconds.saturating_mul(1_000)
}
