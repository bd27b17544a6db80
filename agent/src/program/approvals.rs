//! Permission requests of a command-line program, as ordinary approvals: each is a call of `program_call` that waits for
//! a decision. Users decide on them in the same place as on tool calls.
//!
//! The program and its driver keep running while they wait: the run is not suspended. When the program exits, its
//! open requests are cancelled.

use std::collections::BTreeMap;

use abide_client::arguments::{CancelToolCall, ClaimToolCall, CompleteToolCall, RequestToolCall};
use abide_client::rows::{RunEventKind, ToolCall, ToolCallStatus};
use abide_client::{Abide, Error};
use abide_programs::Decision;
use abide_tools::{Effect, ToolDeclaration};
use serde_json::{Value, json};

use crate::program::output::ApprovalRequest;
use crate::run::driver::Driver;
use crate::run::lease::{fencing_token, millis, run_event};
use crate::run::settings::Settings;
use crate::run::step::{Step, StepError};
use crate::tools::calls::is_for_the_model;

/// The name of the tool that represents permission requests.
const TOOL: &str = "program_call";

/// Returns the declaration to register.
pub(crate) fn declaration() -> ToolDeclaration {
    let schema = json!({"type": "object", "required": ["tool", "input"], "properties": {
        "tool": {"type": "string", "description": "The program's own tool."},
        "input": {"description": "The input of the tool."}}});
    let description =
        "A built-in tool of a command-line program, which the program asks permission to run.";
    let mut declaration = ToolDeclaration::new(TOOL, description, schema);
    declaration.effect = Effect::AtMostOnce;
    declaration.needs_approval = true;
    declaration
}

/// The permission requests of a program.
#[derive(Default)]
pub(crate) struct OpenApprovals {
    /// The open requests: call id by the program's own request id.
    calls: BTreeMap<String, String>,
    /// How many requests the program has made.
    asked: u64,
}

impl OpenApprovals {
    /// Records a request. Returns the id of its call, or an immediate decision if it cannot be recorded. An open request with the
    /// same id is withdrawn: a decision on it would decide on this one.
    pub(crate) async fn ask(
        &mut self,
        driver: &Driver,
        asked: ApprovalRequest,
    ) -> Step<Result<String, Decision>> {
        let ApprovalRequest { request_id, tool, input } = asked;
        self.withdraw(driver, &request_id).await?;
        // Each driver starts a new program, which may reuse the request ids of the previous one. Request ids are
        // also untrusted input. So they are not part of the call id.
        self.asked += 1;
        let call_id = driver
            .run_lease
            .call_id(format_args!("{}.{}", driver.run_lease.fencing_token, self.asked));
        let arguments = json!({"tool": tool, "input": input});
        let request =
            RequestToolCall::new(&call_id, &driver.state.run.session_id, TOOL, arguments.clone())
                .provider_call_id(&request_id)
                .needs_approval(true);
        let status = json!({"status": "waiting_for_approval", "tool_call_id": call_id,
            "tool_name": TOOL, "args": arguments});
        let events = [run_event(RunEventKind::Status, status)];
        let request = driver.run_lease.request(request);
        match driver.record(&events, None, vec![request.into()]).await {
            Ok(()) => {
                self.calls.insert(request_id, call_id.clone());
                Ok(Ok(call_id))
            }
            Err(StepError::Refused(error)) if error.code().is_some_and(is_for_the_model) => {
                Ok(Err(Decision::Deny { message: error.to_string(), interrupt: false }))
            }
            Err(halt) => Err(halt),
        }
    }

    /// Removes a request whose call is decided. Returns whether it was open.
    pub(crate) fn remove(&mut self, request_id: &str, call_id: &str) -> bool {
        let is_open = self.calls.get(request_id).is_some_and(|open| open == call_id);
        if is_open {
            self.calls.remove(request_id);
        }
        is_open
    }

    /// Cancels a request that the program has withdrawn.
    pub(crate) async fn withdraw(&mut self, driver: &Driver, request_id: &str) -> Step {
        match self.calls.remove(request_id) {
            Some(call_id) => take_back(driver, &call_id).await,
            None => Ok(()),
        }
    }

    /// Cancels all open requests, because the program has exited.
    pub(crate) async fn close(&mut self, driver: &Driver) -> Step {
        for call_id in std::mem::take(&mut self.calls).into_values() {
            take_back(driver, &call_id).await?;
        }
        Ok(())
    }
}

/// Cancels the open requests of a program whose driver crashed.
pub(crate) async fn take_back_all(driver: &Driver) -> Step {
    let sql = "SELECT call_id FROM tool_calls WHERE session_id = :sid AND tool_name = :tool AND \
               status IN ('awaiting_approval', 'pending')";
    let query = driver.abide.sql(sql).param("sid", &driver.state.run.session_id);
    let left: Vec<(String,)> = query.param("tool", TOOL).fetch().await?;
    for (call_id,) in left {
        take_back(driver, &call_id).await?;
    }
    Ok(())
}

async fn take_back(driver: &Driver, call_id: &str) -> Step {
    let cancel = CancelToolCall::new(call_id).reason("the program withdrew the request");
    match driver.abide.call(cancel).await {
        // It was decided in the meantime.
        Err(error) if error.code().is_some() => Ok(()),
        cancelled => cancelled.map(drop).map_err(StepError::Refused),
    }
}

/// Waits for the decision.
pub(crate) async fn decision(
    abide: Abide,
    settings: Settings,
    call_id: String,
) -> Result<Decision, Error> {
    let sql = "SELECT * FROM tool_calls WHERE call_id = :id";
    let mut calls = abide.subscribe(sql).param("id", &call_id).await?;
    while calls.try_next().await?.is_some() {
        let now: Vec<ToolCall> = calls.typed_rows()?;
        let Some(call) = now.into_iter().next() else { continue };
        let message = match call.status {
            ToolCallStatus::AwaitingApproval => continue,
            // A task of its own: if the program ends now, the call must not stay claimed.
            ToolCallStatus::Pending => {
                let allowed = tokio::spawn(async move { allow(&abide, &settings, &call_id).await });
                return allowed.await.unwrap_or(Err(Error::Closed));
            }
            ToolCallStatus::Rejected => call.error.unwrap_or_else(|| "rejected".to_owned()),
            status => format!("the call is {status}"),
        };
        return Ok(Decision::Deny { message, interrupt: false });
    }
    Err(Error::Closed)
}

/// Allows the request. This completes the call; the program itself reports the outcome.
async fn allow(abide: &Abide, settings: &Settings, call_id: &str) -> Result<Decision, Error> {
    let claim =
        ClaimToolCall::new(call_id).lease_ms(millis(settings.lease)).worker(&settings.driver);
    let claimed: ToolCall = match abide.call(claim).await {
        Ok(claimed) => claimed.into_inner(),
        // The program withdrew its request after the approval.
        Err(error) if error.code().is_some() => {
            return Ok(Decision::Deny { message: error.to_string(), interrupt: false });
        }
        Err(error) => return Err(error),
    };
    let result = json!({"text": "permission granted", "exit_code": 0});
    abide.call(CompleteToolCall::new(call_id, fencing_token(&claimed), result)).await?;
    let input = match claimed.arguments.value() {
        Value::Object(mut arguments) => arguments.remove("input"),
        _ => None,
    };
    Ok(Decision::Allow { input })
}
