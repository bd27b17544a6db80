//! Leases never overlap, and a former holder's report is refused. Checked on the log, not on the
//! rows.

use std::collections::BTreeMap;

use serde_json::Value as JsonValue;

use super::Finding;

const NAME: &str = "leases never overlap";

/// An event of the log, reduced to what leases need.
#[derive(Clone, Debug)]
pub struct Step {
    /// Its seq.
    pub seq: i64,
    /// Its time, in microseconds.
    pub at: i64,
    /// The reducer.
    pub reducer: String,
    /// The arguments.
    pub arguments: JsonValue,
    /// The outcome.
    pub outcome: JsonValue,
}

/// Checks the log.
///
/// # Errors
/// The first event that claims a held call, or ends a call without holding it.
pub fn check(steps: &[Step]) -> Result<(), Finding> {
    // The token of each call's holder, and the end of its lease.
    let mut held: BTreeMap<String, (i64, i64)> = BTreeMap::new();
    for step in steps.iter().filter(|step| step.outcome.get("$refused").is_none()) {
        let Some(call_id) = step.outcome["call_id"].as_str().map(str::to_owned) else { continue };
        let holder = held.get(&call_id).copied();
        let found =
            |what: String| Err(Finding::new(NAME, format!("event {}: {call_id} {what}", step.seq)));
        match step.reducer.as_str() {
            "claim_tool_call" | "claim_next_tool_call" | "request_tool_call" => {
                let token = step.outcome["fencing_token"].as_i64();
                let until = step.outcome["lease_expires_at"].as_i64();
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
                let own_token = step.arguments["fencing_token"].as_i64();
                if holder.map(|(token, _)| token) != own_token {
                    return found(format!("was ended by {own_token:?} while {holder:?} held it"));
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
