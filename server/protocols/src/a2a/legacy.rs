//! A2A 0.3 over JSON-RPC: its methods, and its form of messages, tasks and cards. A request is converted to 1.0, and its result
//! back, so that both versions are the same operations.

use serde_json::{Map, Value as JsonValue, json};

use super::operation::Operation;
use super::params::field;

/// The version, as cards name it.
pub(super) const VERSION: &str = "0.3.0";

/// Returns the operation with the name of 0.3.
pub(super) fn operation(method: &str) -> Option<Operation> {
    Some(match method {
        "message/send" => Operation::SendMessage,
        "message/stream" => Operation::SendStreamingMessage,
        "tasks/get" => Operation::GetTask,
        "tasks/cancel" => Operation::CancelTask,
        "tasks/resubscribe" => Operation::SubscribeToTask,
        "tasks/pushNotificationConfig/set" => Operation::CreatePushConfig,
        "tasks/pushNotificationConfig/get" => Operation::GetPushConfig,
        "tasks/pushNotificationConfig/list" => Operation::ListPushConfigs,
        "tasks/pushNotificationConfig/delete" => Operation::DeletePushConfig,
        "agent/getAuthenticatedExtendedCard" | "agent/authenticatedExtendedCard" => {
            Operation::GetExtendedAgentCard
        }
        _ => return None,
    })
}

/// Returns the parameters in the form of 1.0.
pub(super) fn params(operation: Operation, given: &JsonValue) -> JsonValue {
    let copied = |pairs: &[(&str, &str)]| -> JsonValue {
        let copies = pairs.iter().map(|(from, to)| ((*to).to_owned(), given[*from].clone()));
        copies.collect::<Map<_, _>>().into()
    };
    match operation {
        Operation::SendMessage | Operation::SendStreamingMessage => {
            json!({"message": message_of(&given["message"]),
                "configuration": configuration_of(&given["configuration"]),
                "metadata": given["metadata"]})
        }
        Operation::CreatePushConfig => {
            let mut config = push_config_of(&given["pushNotificationConfig"]);
            config["taskId"] = given["taskId"].clone();
            config
        }
        Operation::GetPushConfig | Operation::DeletePushConfig => {
            copied(&[("id", "taskId"), ("pushNotificationConfigId", "id")])
        }
        Operation::ListPushConfigs => copied(&[("id", "taskId")]),
        _ => copied(&[("id", "id"), ("historyLength", "historyLength")]),
    }
}

fn message_of(message: &JsonValue) -> JsonValue {
    // A value that is not an object is refused in the form of 1.0.
    let JsonValue::Object(given) = message else { return message.clone() };
    let mut message = given.clone();
    message.remove("kind");
    match given.get("role").and_then(JsonValue::as_str) {
        Some("user") => drop(message.insert("role".to_owned(), json!("ROLE_USER"))),
        Some("agent") => drop(message.insert("role".to_owned(), json!("ROLE_AGENT"))),
        _ => {}
    }
    if let Some(parts) = given.get("parts").and_then(JsonValue::as_array) {
        let parts: JsonValue = parts.iter().map(part_of).collect();
        message.insert("parts".to_owned(), parts);
    }
    message.into()
}

fn part_of(part: &JsonValue) -> JsonValue {
    let mut new = json!({"metadata": part["metadata"]});
    match part["kind"].as_str() {
        Some("text") => new["text"] = part["text"].clone(),
        Some("data") => new["data"] = part["data"].clone(),
        Some("file") => {
            let file = &part["file"];
            new["raw"] = file["bytes"].clone();
            new["url"] = file["uri"].clone();
            new["mediaType"] = file["mimeType"].clone();
            new["filename"] = file["name"].clone();
        }
        // It has no content, and is refused.
        _ => {}
    }
    new
}

fn configuration_of(given: &JsonValue) -> JsonValue {
    if !given.is_object() {
        return given.clone();
    }
    let mut new = json!({"historyLength": given["historyLength"],
        "acceptedOutputModes": given["acceptedOutputModes"]});
    if let Some(blocking) = given["blocking"].as_bool() {
        new["returnImmediately"] = json!(!blocking);
    }
    if given["pushNotificationConfig"].is_object() {
        new["taskPushNotificationConfig"] = push_config_of(&given["pushNotificationConfig"]);
    }
    new
}

/// Returns the configuration of a push notification, from the form of 0.3.
pub(super) fn push_config_of(given: &JsonValue) -> JsonValue {
    let mut new = json!({"id": given["id"], "url": given["url"], "token": given["token"]});
    let authentication = &given["authentication"];
    if authentication.is_object() {
        new["authentication"] = json!({"scheme": authentication["schemes"][0],
            "credentials": authentication["credentials"]});
    }
    new
}

/// Returns the result of an operation in the form of 0.3.
pub(super) fn result(operation: Operation, result: &JsonValue) -> JsonValue {
    match operation {
        Operation::SendMessage => task(&result["task"]),
        Operation::GetTask | Operation::CancelTask => task(result),
        Operation::CreatePushConfig | Operation::GetPushConfig => push_config(result),
        Operation::ListPushConfigs => {
            result["configs"].as_array().into_iter().flatten().map(push_config).collect()
        }
        Operation::DeletePushConfig => JsonValue::Null,
        Operation::GetExtendedAgentCard => card(result),
        Operation::SendStreamingMessage | Operation::SubscribeToTask | Operation::ListTasks => {
            result.clone()
        }
    }
}

/// Returns an event of a stream in the form of 0.3.
pub(super) fn event(event: &JsonValue) -> JsonValue {
    let [all, update, artifact] = ["task", "statusUpdate", "artifactUpdate"].map(|it| &event[it]);
    if all.is_object() {
        return task(all);
    }
    if update.is_object() {
        let is_final = is_final(&update["status"]);
        return json!({"kind": "status-update", "taskId": update["taskId"],
            "contextId": update["contextId"], "status": status(&update["status"]),
            "final": is_final});
    }
    json!({"kind": "artifact-update", "taskId": artifact["taskId"],
        "contextId": artifact["contextId"], "artifact": with_parts(&artifact["artifact"]),
        "append": artifact["append"], "lastChunk": artifact["lastChunk"]})
}

/// Returns `true` if a stream ends with a status of 1.0.
pub(super) fn is_final(status: &JsonValue) -> bool {
    let state = status["state"].as_str().and_then(|state| state.strip_prefix("TASK_STATE_"));
    matches!(state, Some("COMPLETED" | "FAILED" | "CANCELED" | "REJECTED" | "INPUT_REQUIRED"))
}

fn task(task: &JsonValue) -> JsonValue {
    let mut new = json!({"kind": "task", "id": task["id"], "contextId": task["contextId"],
        "status": status(&task["status"])});
    if let Some(artifacts) = task["artifacts"].as_array() {
        new["artifacts"] = artifacts.iter().map(with_parts).collect();
    }
    if let Some(history) = task["history"].as_array() {
        new["history"] = history.iter().map(message).collect();
    }
    new
}

fn status(status: &JsonValue) -> JsonValue {
    let state = status["state"].as_str().unwrap_or_default();
    let state = state.strip_prefix("TASK_STATE_").unwrap_or(state);
    let mut new = json!({"state": state.to_ascii_lowercase().replace('_', "-"),
        "timestamp": status["timestamp"]});
    if status["message"].is_object() {
        new["message"] = message(&status["message"]);
    }
    new
}

fn message(message: &JsonValue) -> JsonValue {
    let mut new = with_parts(message);
    new["kind"] = json!("message");
    let is_of_user = field(message, "role") == "ROLE_USER";
    new["role"] = json!(if is_of_user { "user" } else { "agent" });
    new
}

/// Returns an artifact or a message with its parts in the form of 0.3.
fn with_parts(of: &JsonValue) -> JsonValue {
    let mut new = of.clone();
    new["parts"] = of["parts"].as_array().into_iter().flatten().map(part).collect();
    new
}

fn part(part: &JsonValue) -> JsonValue {
    let file = |member: &str, content: &JsonValue| {
        let mut file = json!({member: content});
        for (from, to) in [("mediaType", "mimeType"), ("filename", "name")] {
            if !part[from].is_null() {
                file[to] = part[from].clone();
            }
        }
        json!({"kind": "file", "file": file})
    };
    let mut new = match part {
        _ if part["text"].is_string() => json!({"kind": "text", "text": part["text"]}),
        _ if part["raw"].is_string() => file("bytes", &part["raw"]),
        _ if part["url"].is_string() => file("uri", &part["url"]),
        _ if part["data"].is_object() => json!({"kind": "data", "data": part["data"]}),
        // The data of 0.3 is an object.
        _ => json!({"kind": "data", "data": {"value": part["data"]}}),
    };
    if part["metadata"].is_object() {
        new["metadata"] = part["metadata"].clone();
    }
    new
}

fn push_config(config: &JsonValue) -> JsonValue {
    let mut of_task = json!({"id": config["id"], "url": config["url"]});
    let scheme = &config["authentication"]["scheme"];
    if scheme.is_string() {
        of_task["authentication"] = json!({"schemes": [scheme]});
    }
    json!({"taskId": config["taskId"], "pushNotificationConfig": of_task})
}

/// Returns the card of an agent in the form of 0.3.
pub(super) fn card(card: &JsonValue) -> JsonValue {
    let url = &card["supportedInterfaces"][0]["url"];
    let capabilities = &card["capabilities"];
    let mut new = json!({
        "protocolVersion": VERSION,
        "name": card["name"],
        "description": card["description"],
        "version": card["version"],
        "url": url,
        "preferredTransport": "JSONRPC",
        "additionalInterfaces": [{"url": url, "transport": "JSONRPC"},
            {"url": url, "transport": "HTTP+JSON"}],
        "capabilities": {"streaming": capabilities["streaming"],
            "pushNotifications": capabilities["pushNotifications"]},
        "supportsAuthenticatedExtendedCard": capabilities["extendedAgentCard"],
        "defaultInputModes": card["defaultInputModes"],
        "defaultOutputModes": card["defaultOutputModes"],
        "skills": card["skills"],
    });
    if card["securitySchemes"].is_object() {
        new["securitySchemes"] = json!({"bearer": {"type": "http", "scheme": "Bearer"}});
        new["security"] = json!([{"bearer": []}]);
    }
    new
}
