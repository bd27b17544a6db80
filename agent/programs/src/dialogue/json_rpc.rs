//! JSON-RPC 2.0 messages, one per line. Codex omits the field `jsonrpc`, so it is not required.

use std::collections::VecDeque;

use serde_json::{Value, json};

use crate::event::{ErrorKind, Failure};
use crate::parser::{has_error, reason};

/// The error code of a method that is not offered.
pub(super) const NOT_OFFERED: i64 = -32601;

/// The error code of a request that is not valid.
pub(super) const INVALID: i64 = -32600;

/// A message of the program.
pub(super) enum Incoming<'a> {
    Answer { id: &'a Value, result: Result<&'a Value, &'a Value> },
    Request { id: &'a Value, method: &'a str, params: &'a Value },
    Notification { method: &'a str, params: &'a Value },
}

impl Incoming<'_> {
    /// Returns the message of a line; `None` if the object is not a message. An empty method or error is absent, and so
    /// is the id of a request that is null.
    pub(super) fn from_message(message: &Value) -> Option<Incoming<'_>> {
        let id = &message["id"];
        let params = &message["params"];
        match message["method"].as_str().filter(|method| !method.is_empty()) {
            Some(method) if !id.is_null() => Some(Incoming::Request { id, method, params }),
            Some(method) => Some(Incoming::Notification { method, params }),
            None if has_error(message) => {
                Some(Incoming::Answer { id, result: Err(&message["error"]) })
            }
            None if message.get("result").is_some() => {
                Some(Incoming::Answer { id, result: Ok(&message["result"]) })
            }
            None if !message["error"].is_null() => {
                Some(Incoming::Answer { id, result: Err(&message["error"]) })
            }
            None => None,
        }
    }
}

/// Messages to write.
#[derive(Debug, Default)]
pub(super) struct Outgoing(VecDeque<String>);

impl Outgoing {
    pub(super) fn push(&mut self, text: String) {
        self.0.push_back(text);
    }

    pub(super) fn next(&mut self) -> Option<String> {
        self.0.pop_front()
    }
}

pub(super) fn request(id: u64, method: &str, params: Value) -> String {
    line(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
}

pub(super) fn notification(method: &str, params: Value) -> String {
    line(&json!({"jsonrpc": "2.0", "method": method, "params": params}))
}

pub(super) fn response(id: &Value, result: Value) -> String {
    line(&json!({"jsonrpc": "2.0", "id": id, "result": result}))
}

pub(super) fn error_response(id: &Value, code: i64, message: &str) -> String {
    line(&json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}))
}

fn line(message: &Value) -> String {
    format!("{message}\n")
}

/// Returns the failure of a request, with what was asked for.
pub(super) fn request_failure(what: &str, error: &Value) -> Failure {
    let message = reason(error, "no reason is given");
    // Some programs put the reason there.
    let data = &error["data"];
    let details = data["details"]
        .as_str()
        .or_else(|| data["message"].as_str())
        .filter(|details| !message.contains(details))
        .map(|details| format!(": {details}"))
        .unwrap_or_default();
    Failure::new(ErrorKind::RuntimeCrash, format!("{what} failed: {message}{details}"))
}
