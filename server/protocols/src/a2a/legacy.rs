//! A2A 0.3 over JSON-RPC: its methods, and its form of messages, tasks and cards. A request is converted to 1.0, and its result
//! back, so that both versions are the same operations.

use serde_json::{Value as JsonValue, json};

use super::operations::Operation;
use super::params::field;

/// The version, as cards name it.
pub(super) const VERSION: &str = "0.3.0";

/// Returns the operation with the name of 0.3.
pub(super) fn operation_from_name(method: &str) -> Option<Operation> {
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
pub(super) fn params_from_legacy(operation: Operation, given: &JsonValue) -> JsonValue {
    match operation {
        Operation::SendMessage | Operation::SendStreamingMessage => {
            json!({"message": message_from_legacy(&given["message"]),
                "configuration": configuration_from_legacy(&given["configuration"]),
                "metadata": given["metadata"]})
        }
        Operation::CreatePushConfig => {
            let mut config = push_config_from_legacy(&given["pushNotificationConfig"]);
            config["taskId"] = given["taskId"].clone();
            config
        }
        Operation::GetPushConfig | Operation::DeletePushConfig => {
            json!({"taskId": given["id"], "id": given["pushNotificationConfigId"]})
        }
        Operation::ListPushConfigs => json!({"taskId": given["id"]}),
        _ => json!({"id": given["id"], "historyLength": given["historyLength"]}),
    }
}

fn message_from_legacy(message: &JsonValue) -> JsonValue {
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
        let parts: JsonValue = parts.iter().map(part_from_legacy).collect();
        message.insert("parts".to_owned(), parts);
    }
    message.into()
}

fn part_from_legacy(part: &JsonValue) -> JsonValue {
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

fn configuration_from_legacy(given: &JsonValue) -> JsonValue {
    if !given.is_object() {
        return given.clone();
    }
    let mut new = json!({"historyLength": given["historyLength"],
        "acceptedOutputModes": given["acceptedOutputModes"]});
    if let Some(blocking) = given["blocking"].as_bool() {
        new["returnImmediately"] = json!(!blocking);
    }
    if given["pushNotificationConfig"].is_object() {
        new["taskPushNotificationConfig"] =
            push_config_from_legacy(&given["pushNotificationConfig"]);
    }
    new
}

/// Returns the configuration of a push notification, from the form of 0.3.
pub(super) fn push_config_from_legacy(given: &JsonValue) -> JsonValue {
    let mut new = json!({"id": given["id"], "url": given["url"], "token": given["token"]});
    let authentication = &given["authentication"];
    if authentication.is_object() {
        new["authentication"] = json!({"scheme": authentication["schemes"][0],
            "credentials": authentication["credentials"]});
    }
    new
}

/// Returns the result of an operation in the form of 0.3.
pub(super) fn result_to_legacy(operation: Operation, result: &JsonValue) -> JsonValue {
    match operation {
        Operation::SendMessage => task_to_legacy(&result["task"]),
        Operation::GetTask | Operation::CancelTask => task_to_legacy(result),
        Operation::CreatePushConfig | Operation::GetPushConfig => push_config_to_legacy(result),
        Operation::ListPushConfigs => {
            result["configs"].as_array().into_iter().flatten().map(push_config_to_legacy).collect()
        }
        Operation::DeletePushConfig => JsonValue::Null,
        Operation::GetExtendedAgentCard => card_to_legacy(result),
        Operation::SendStreamingMessage | Operation::SubscribeToTask | Operation::ListTasks => {
            result.clone()
        }
    }
}

/// Returns an event of a stream in the form of 0.3.
pub(super) fn event_to_legacy(event: &JsonValue) -> JsonValue {
    let [all, update, artifact] = ["task", "statusUpdate", "artifactUpdate"].map(|it| &event[it]);
    if all.is_object() {
        return task_to_legacy(all);
    }
    if update.is_object() {
        let is_final = is_final(&update["status"]);
        return json!({"kind": "status-update", "taskId": update["taskId"],
            "contextId": update["contextId"], "status": status_to_legacy(&update["status"]),
            "final": is_final});
    }
    json!({"kind": "artifact-update", "taskId": artifact["taskId"],
        "contextId": artifact["contextId"], "artifact": parts_to_legacy(&artifact["artifact"]),
        "append": artifact["append"], "lastChunk": artifact["lastChunk"]})
}

/// Returns `true` if a stream ends with a status of 1.0.
pub(super) fn is_final(status: &JsonValue) -> bool {
    let state = status["state"].as_str().and_then(|state| state.strip_prefix("TASK_STATE_"));
    matches!(state, Some("COMPLETED" | "FAILED" | "CANCELED" | "REJECTED" | "INPUT_REQUIRED"))
}

fn task_to_legacy(task: &JsonValue) -> JsonValue {
    let mut new = json!({"kind": "task", "id": task["id"], "contextId": task["contextId"],
        "status": status_to_legacy(&task["status"])});
    if let Some(artifacts) = task["artifacts"].as_array() {
        new["artifacts"] = artifacts.iter().map(parts_to_legacy).collect();
    }
    if let Some(history) = task["history"].as_array() {
        new["history"] = history.iter().map(message_to_legacy).collect();
    }
    new
}

fn status_to_legacy(status: &JsonValue) -> JsonValue {
    let state = status["state"].as_str().unwrap_or_default();
    let state = state.strip_prefix("TASK_STATE_").unwrap_or(state);
    let mut new = json!({"state": state.to_ascii_lowercase().replace('_', "-"),
        "timestamp": status["timestamp"]});
    if status["message"].is_object() {
        new["message"] = message_to_legacy(&status["message"]);
    }
    new
}

fn message_to_legacy(message: &JsonValue) -> JsonValue {
    let mut new = parts_to_legacy(message);
    new["kind"] = json!("message");
    let is_of_user = field(message, "role") == "ROLE_USER";
    new["role"] = json!(if is_of_user { "user" } else { "agent" });
    new
}

/// Returns an artifact or a message with its parts in the form of 0.3.
fn parts_to_legacy(of: &JsonValue) -> JsonValue {
    let mut new = of.clone();
    new["parts"] = of["parts"].as_array().into_iter().flatten().map(part_to_legacy).collect();
    new
}

fn part_to_legacy(part: &JsonValue) -> JsonValue {
    let mut new = if part["text"].is_string() {
        json!({"kind": "text", "text": part["text"]})
    } else if part["raw"].is_string() {
        json!({"kind": "file", "file": file_to_legacy(part, "bytes", &part["raw"])})
    } else if part["url"].is_string() {
        json!({"kind": "file", "file": file_to_legacy(part, "uri", &part["url"])})
    } else if part["data"].is_object() {
        json!({"kind": "data", "data": part["data"]})
    } else {
        // The data of 0.3 is an object.
        json!({"kind": "data", "data": {"value": part["data"]}})
    };
    if part["metadata"].is_object() {
        new["metadata"] = part["metadata"].clone();
    }
    new
}

/// Returns the file of a part, with its content as the member with this name.
pub(super) fn file_to_legacy(part: &JsonValue, member: &str, content: &JsonValue) -> JsonValue {
    let mut file = json!({member: content});
    for (from, to) in [("mediaType", "mimeType"), ("filename", "name")] {
        if !part[from].is_null() {
            file[to] = part[from].clone();
        }
    }
    file
}

fn push_config_to_legacy(config: &JsonValue) -> JsonValue {
    let mut of_task = json!({"id": config["id"], "url": config["url"]});
    let scheme = &config["authentication"]["scheme"];
    if scheme.is_string() {
        of_task["authentication"] = json!({"schemes": [scheme]});
    }
    json!({"taskId": config["taskId"], "pushNotificationConfig": of_task})
}

/// Returns the card of an agent in the form of 0.3.
pub(super) fn card_to_legacy(card: &JsonValue) -> JsonValue {
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
