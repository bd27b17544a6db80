//! What a foreign program asks to be let do, as an approval like any other: a call of `program_call` that waits for
//! somebody's decision. Who decides on calls decides on these, at the same place.
//!
//! The program waits while it is alive, and so does its driver: the run does not rest meanwhile. What it asked is
//! taken back when it is gone.

use std::collections::BTreeMap;

use abide_client::{Abide, Error, NewToolCall, ToolCall, ToolCallStatus};
use abide_programs::Decision;
use abide_tools::{Effect, ToolDeclaration};
use serde_json::{Value, json};

use crate::call::is_for_the_model;
use crate::drive::{Driver, Halt, Step};
use crate::heard::Asked;
use crate::runtime::Settings;

/// The tool whose calls these are.
const TOOL: &str = "program_call";

/// As it is registered.
pub(crate) fn declaration() -> ToolDeclaration {
    let schema = json!({"type": "object", "required": ["tool", "input"], "properties": {
        "tool": {"type": "string", "description": "The program's own tool."},
        "input": {"description": "What it is to be called with."}}});
    let description = "A tool of a foreign program's own, which the program asks to be let run.";
    let mut declaration = ToolDeclaration::new(TOOL, description, schema);
    declaration.effect = Effect::AtMostOnce;
    declaration.needs_approval = true;
    declaration
}

/// The questions of a program.
#[derive(Default)]
pub(crate) struct Open {
    /// Those that are open: by the program's own number the call's id.
    calls: BTreeMap<String, String>,
    /// How many it has asked.
    asked: u64,
}

impl Open {
    /// Puts a question on record; the id of its call, or what is answered at once because it cannot be.
    pub(crate) async fn ask(
        &mut self,
        driver: &Driver,
        asked: Asked,
    ) -> Step<Result<String, Decision>> {
        let Asked { request_id, tool, input } = asked;
        // Each driver begins a program of its own, whose numbers may be those of the last one. They are the program's
        // words, so they are no part of an id.
        self.asked += 1;
        let call_id =
            driver.hold.call_id(format_args!("{}.{}", driver.hold.fencing_token, self.asked));
        let arguments = json!({"tool": tool, "input": input});
        let request = NewToolCall {
            call_id: call_id.clone(),
            session_id: driver.run.session_id.clone(),
            tool_name: TOOL.to_owned(),
            arguments: arguments.clone(),
            provider_call_id: Some(request_id.clone()),
            claim_lease_ms: None,
            needs_approval: Some(true),
        };
        let told = json!({"kind": "status", "data": {"status": "waiting_for_approval",
            "tool_call_id": call_id, "tool_name": TOOL, "args": arguments}});
        let request = driver.hold.request(&request);
        match driver.record(&[told], None, vec![request]).await {
            Ok(()) => {
                self.calls.insert(request_id, call_id.clone());
                Ok(Ok(call_id))
            }
            Err(Halt::Refused(error)) if error.code().is_some_and(is_for_the_model) => {
                Ok(Err(Decision::Deny { message: error.to_string(), interrupt: false }))
            }
            Err(halt) => Err(halt),
        }
    }

    /// A question is answered.
    pub(crate) fn answered(&mut self, request_id: &str) {
        self.calls.remove(request_id);
    }

    /// The program does not ask that any more.
    pub(crate) async fn withdraw(&mut self, driver: &Driver, request_id: &str) -> Step {
        match self.calls.remove(request_id) {
            Some(call_id) => take_back(driver, &call_id).await,
            None => Ok(()),
        }
    }

    /// The program is gone.
    pub(crate) async fn close(self, driver: &Driver) -> Step {
        for call_id in self.calls.into_values() {
            take_back(driver, &call_id).await?;
        }
        Ok(())
    }
}

/// Takes back what a program had asked whose driver vanished.
pub(crate) async fn take_back_all(driver: &Driver) -> Step {
    let sql = "SELECT call_id FROM tool_calls WHERE session_id = :sid AND tool_name = :tool AND \
               status IN ('awaiting_approval', 'pending')";
    let query = driver.abide.sql(sql).param("sid", &driver.run.session_id);
    let left: Vec<(String,)> = query.param("tool", TOOL).fetch().await?;
    for (call_id,) in left {
        take_back(driver, &call_id).await?;
    }
    Ok(())
}

async fn take_back(driver: &Driver, call_id: &str) -> Step {
    let cancel = driver.abide.cancel_tool_call(call_id);
    match cancel.reason("the program does not ask any more").await {
        // It was decided meanwhile.
        Err(error) if error.code().is_some() => Ok(()),
        cancelled => cancelled.map(drop).map_err(Halt::Refused),
    }
}

/// Waits until somebody has decided.
pub(crate) async fn decision(
    abide: Abide,
    settings: Settings,
    call_id: String,
) -> Result<Decision, Error> {
    let sql = "SELECT * FROM tool_calls WHERE call_id = :id";
    let mut calls = abide.subscribe(sql).param("id", &call_id).await?;
    while calls.next().await.is_some() {
        let now: Vec<ToolCall> = calls.typed_rows()?;
        let Some(call) = now.into_iter().next() else { continue };
        let message = match call.status {
            ToolCallStatus::AwaitingApproval => continue,
            ToolCallStatus::Pending => return allow(&abide, &settings, &call_id).await,
            ToolCallStatus::Rejected => call.error.unwrap_or_else(|| "rejected".to_owned()),
            status => format!("the call is {status}"),
        };
        return Ok(Decision::Deny { message, interrupt: false });
    }
    Err(calls.error().cloned().unwrap_or(Error::Closed))
}

/// The program is let do it: with that the call is done, what comes of it is the program's to tell.
async fn allow(abide: &Abide, settings: &Settings, call_id: &str) -> Result<Decision, Error> {
    let claim = abide.claim_tool_call(call_id).lease(settings.lease).worker(&settings.driver);
    let claimed: ToolCall = claim.await?.into_inner();
    let result = json!({"text": "the program may", "exit_code": 0});
    abide.complete_tool_call(&claimed, result).await?;
    let input = match claimed.arguments.value() {
        Value::Object(mut arguments) => arguments.remove("input"),
        _ => None,
    };
    Ok(Decision::Allow { input })
}
