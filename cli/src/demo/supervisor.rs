//! A supervisor: it watches for handoff requests, claims them and answers.

use std::convert::Infallible;

use abide_client::Code;
use abide_client::rows::HandoffRequest;
use serde_json::{Value as JsonValue, json};

use super::context::DemoContext;
use crate::failure::Failure;

/// Answers until it is cancelled.
///
/// # Errors
/// A call is refused for another reason than a lost race for the handoff.
pub(crate) async fn run(context: &DemoContext) -> Result<Infallible, Failure> {
    let client = context.connect().await?;
    let sql = "SELECT * FROM handoff_requests WHERE status = 'pending'";
    let mut pending = client.watch(sql, None).await?;
    loop {
        for handoff in pending.next().await?.inserts::<HandoffRequest>()? {
            let data = handoff.data.as_ref().map(|data| data.value());
            let call_id = data.as_ref().and_then(|data| data["call_id"].as_str());
            // A handoff without an answer in the recording stays open.
            let Some(outcome) = call_id.and_then(|id| context.script.outcome(id)) else { continue };
            match client.call::<JsonValue>("claim_handoff", json!({"id": handoff.id})).await {
                Err(error) if error.code() == Some(Code::Conflict) => continue,
                claimed => claimed?,
            };
            let text = outcome.text.as_deref().unwrap_or_default();
            let answer = json!({"id": handoff.id, "resolution": text});
            client.call::<JsonValue>("resolve_handoff", answer).await?;
        }
    }
}
