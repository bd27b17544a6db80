//! Leases never overlap, and who lost one is not heard: read off the log, not off the rows.

use std::collections::BTreeMap;

use serde_json::Value as JsonValue;

use super::Finding;

const NAME: &str = "leases never overlap";

/// An event of the log, as far as leases go.
#[derive(Clone, Debug)]
pub struct Step {
    /// Its seq.
    pub seq: i64,
    /// Its time, in microseconds.
    pub at: i64,
    /// The rule.
    pub reducer: String,
    /// What was asked.
    pub arguments: JsonValue,
    /// What came of it.
    pub outcome: JsonValue,
}

/// Walks the log.
///
/// # Errors
/// The first event that takes what another held, or that is heard without holding.
pub fn check(steps: &[Step]) -> Result<(), Finding> {
    // Of each call its holder's token, and until when.
    let mut held: BTreeMap<String, (i64, i64)> = BTreeMap::new();
    for step in steps.iter().filter(|step| step.outcome.get("$refused").is_none()) {
        let Some(call_id) = step.outcome["call_id"].as_str().map(str::to_owned) else { continue };
        let holder = held.get(&call_id).copied();
        let found =
            |what: String| Err(Finding::new(NAME, format!("event {}: {call_id} {what}", step.seq)));
        match step.reducer.as_str() {
            "claim_tool_call" | "claim_next_tool_call" | "request_tool_call" => {
                let (token, until) = (
                    step.outcome["fencing_token"].as_i64(),
                    step.outcome["lease_expires_at"].as_i64(),
                );
                let (Some(token), Some(until)) = (token, until) else { continue };
                if let Some((other, ends)) = holder
                    && ends > step.at
                {
                    return found(format!("is claimed by {token} while {other} holds it"));
                }
                held.insert(call_id, (token, until));
            }
            "heartbeat_tool_call" => {
                if let (Some(holder), Some(until)) =
                    (held.get_mut(&call_id), step.outcome["lease_expires_at"].as_i64())
                {
                    holder.1 = until;
                }
            }
            "complete_tool_call" | "fail_tool_call" | "acknowledge_cancel" => {
                let said = step.arguments["fencing_token"].as_i64();
                if holder.map(|(token, _)| token) != said {
                    return found(format!("was ended by {said:?}, and {holder:?} held it"));
                }
                held.remove(&call_id);
            }
            "lapse_tool_call" | "settle_tool_call" => {
                held.remove(&call_id);
            }
            _ => {}
        }
    }
    Ok(())
}
