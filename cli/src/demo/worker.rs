//! A worker: it watches for pending tool calls of all sessions, and executes those that it claims.

use std::convert::Infallible;

use abide_client::rows::ToolCall;
use abide_client::{Code, Error};
use serde_json::{Value as JsonValue, json};

use super::context::{Client, DemoContext};
use crate::failure::Failure;

/// Works until it is cancelled.
///
/// # Errors
/// A call is refused for another reason than a lost race for the claim.
pub(crate) async fn run(context: &DemoContext, name: &str) -> Result<Infallible, Failure> {
    let client = context.connect().await?;
    let sql = "SELECT * FROM tool_calls WHERE status = 'pending'";
    let mut pending = client.watch(sql, None).await?;
    loop {
        for call in pending.next().await?.inserts::<ToolCall>()? {
            execute_call(context, &client, name, &call.call_id).await?;
        }
    }
}

async fn execute_call(
    context: &DemoContext,
    client: &Client<'_>,
    name: &str,
    call_id: &str,
) -> Result<(), Error> {
    // A call without a recorded result stays pending.
    let Some(outcome) = context.script.outcome(call_id) else { return Ok(()) };
    let claim = json!({"call_id": call_id, "worker": name});
    let claimed: ToolCall = match client.call("claim_tool_call", claim).await {
        Err(error) if error.code() == Some(Code::Conflict) => {
            context.ledger.update_counts(|counts| counts.races_lost += 1);
            return Ok(());
        }
        claimed => claimed?,
    };
    // A real worker would execute the tool here. This one records the execution.
    context.ledger.record_execution(call_id);
    let (reducer, field) =
        if outcome.failed { ("fail_tool_call", "error") } else { ("complete_tool_call", "result") };
    let mut done = json!({"call_id": call_id, "fencing_token": claimed.fencing_token});
    done[field] = match &outcome.text {
        None if outcome.failed => "".into(),
        text => json!(text),
    };
    client.call::<JsonValue>(reducer, done).await?;
    Ok(())
}
