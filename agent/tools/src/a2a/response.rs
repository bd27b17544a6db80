//! A response of JSON-RPC: its result, or the agent's error.

use abide_json_integers as integers;
use reqwest::Url;
use serde_json::Value;

use super::failure::A2aFailure;
use super::legacy;

/// A result, and the text that it came as.
#[derive(Clone, Debug, PartialEq)]
pub struct A2aEvent {
    /// The text.
    pub raw: String,
    /// The member `result`.
    pub result: Value,
}

/// The id of each request: it is the only one on its connection.
pub(super) const REQUEST_ID: i64 = 1;

/// Returns the host of an address, for messages.
pub(super) fn host(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// The version of the protocol that an agent uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProtocolVersion {
    V1_0,
    V0_3,
}

/// Returns the result in a response of JSON-RPC, in the form of 1.0.
pub(super) fn result_of(
    url: &Url,
    text: String,
    version: ProtocolVersion,
) -> Result<A2aEvent, A2aFailure> {
    let host = host(url);
    if let Err(found) = integers::check(&text) {
        let why = format!("the response of {host} cannot be stored: {found}");
        return Err(A2aFailure::Unreadable(why));
    }
    let mut response: Value = serde_json::from_str(&integers::readable(text.as_bytes()))
        .map_err(|_| A2aFailure::Unreadable(format!("{host} did not respond with JSON-RPC")))?;
    if let Err(found) = integers::check_depth(&response) {
        let why = format!("the response of {host} cannot be stored: the JSON {found}");
        return Err(A2aFailure::Unreadable(why));
    }
    // Each request has this id. An error of an agent that could not read the request has none.
    let id = response.get("id").unwrap_or(&Value::Null);
    if *id != REQUEST_ID && !(id.is_null() && response.get("error").is_some()) {
        let why = format!("the response of {host} is not that of the request");
        return Err(A2aFailure::Unreadable(why));
    }
    if let Some(error) = response.get("error").filter(|error| !error.is_null()) {
        let code = error["code"].as_i64().unwrap_or_default();
        let message = error["message"].as_str().unwrap_or("no reason");
        return Err(A2aFailure::Refused { host, code, message: message.to_owned() });
    }
    match response.get_mut("result").map(Value::take) {
        Some(result @ Value::Object(_)) => {
            let result = match version {
                ProtocolVersion::V1_0 => result,
                ProtocolVersion::V0_3 => legacy::convert_result(&result),
            };
            Ok(A2aEvent { raw: text, result })
        }
        _ => Err(A2aFailure::Unreadable(format!("the response of {host} has no result"))),
    }
}
