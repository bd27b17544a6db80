//! A2A 0.3 over HTTP+JSON: the paths below `/a2a/{agent}/v1/`. Its JSON is that of the Protocol Buffers of 0.3, and so differs from
//! 0.3 over JSON-RPC: a message has `content`, a file has other names, and the states are those of 1.0. A request is converted to
//! 1.0, and its result back.

use serde_json::{Value as JsonValue, json};

use super::error::{A2aError, Kind};
use super::legacy;
use super::operations::Operation;
use super::params::field;

/// Returns the parameters in the form of 1.0.
pub(super) fn params_from_legacy(operation: Operation, given: &JsonValue) -> JsonValue {
    match operation {
        Operation::SendMessage | Operation::SendStreamingMessage => {
            let message = match field(given, "message") {
                JsonValue::Null => &given["request"],
                message => message,
            };
            json!({"message": message_from_legacy(message), "metadata": given["metadata"],
                "configuration": configuration_from_legacy(field(given, "configuration"))})
        }
        Operation::CreatePushConfig => {
            // The body is the configuration with its name, or a request that has it.
            let named = match &given["config"] {
                JsonValue::Null => given,
                config => config,
            };
            let mut config =
                legacy::push_config_from_legacy(field(named, "pushNotificationConfig"));
            config["taskId"] = given["taskId"].clone();
            config
        }
        _ => given.clone(),
    }
}

fn message_from_legacy(message: &JsonValue) -> JsonValue {
    // What is not an object is refused in the form of 1.0.
    let JsonValue::Object(given) = message else { return message.clone() };
    let mut new = given.clone();
    if let Some(JsonValue::Array(content)) = new.remove("content") {
        new.insert("parts".to_owned(), content.iter().map(part_from_legacy).collect());
    }
    new.into()
}

fn part_from_legacy(part: &JsonValue) -> JsonValue {
    let mut new = json!({"metadata": part["metadata"]});
    if part["text"].is_string() {
        new["text"] = part["text"].clone();
    }
    if part["data"].is_object() {
        new["data"] = part["data"]["data"].clone();
    }
    let file = &part["file"];
    if file.is_object() {
        new["raw"] = field(file, "fileWithBytes").clone();
        new["url"] = field(file, "fileWithUri").clone();
        new["mediaType"] = field(file, "mimeType").clone();
        new["filename"] = file["name"].clone();
    }
    new
}

fn configuration_from_legacy(given: &JsonValue) -> JsonValue {
    if !given.is_object() {
        return given.clone();
    }
    // Protocol Buffers leave false out.
    let mut new = json!({"acceptedOutputModes": field(given, "acceptedOutputModes"),
        "returnImmediately": given["blocking"].as_bool() != Some(true)});
    // They also leave 0 out, and so cannot ask for it.
    if field(given, "historyLength").as_u64().is_some_and(|length| length > 0) {
        new["historyLength"] = field(given, "historyLength").clone();
    }
    let push = field(given, "pushNotification");
    if push.is_object() {
        new["taskPushNotificationConfig"] = legacy::push_config_from_legacy(push);
    }
    new
}

/// Returns the result of an operation in the form of 0.3.
pub(super) fn result_to_legacy(operation: Operation, result: &JsonValue) -> JsonValue {
    match operation {
        Operation::SendMessage => json!({"task": task_to_legacy(&result["task"])}),
        Operation::GetTask | Operation::CancelTask => task_to_legacy(result),
        Operation::CreatePushConfig | Operation::GetPushConfig => push_config_to_legacy(result),
        Operation::ListPushConfigs => {
            let configs = result["configs"].as_array().into_iter().flatten();
            json!({"configs": configs.map(push_config_to_legacy).collect::<JsonValue>()})
        }
        Operation::GetExtendedAgentCard => legacy::card_to_legacy(result),
        Operation::DeletePushConfig => json!({}),
        Operation::SendStreamingMessage | Operation::SubscribeToTask | Operation::ListTasks => {
            result.clone()
        }
    }
}

/// Returns an event of a stream in the form of 0.3.
pub(super) fn event_to_legacy(event: &JsonValue) -> JsonValue {
    if event["task"].is_object() {
        return json!({"task": task_to_legacy(&event["task"])});
    }
    let mut new = event.clone();
    if let Some(update) = new.get_mut("statusUpdate") {
        update["final"] = json!(legacy::is_final(&update["status"]));
        update["status"] = status_to_legacy(&update["status"]);
    }
    if let Some(update) = new.get_mut("artifactUpdate") {
        update["artifact"] = artifact_to_legacy(&update["artifact"]);
    }
    new
}

fn task_to_legacy(task: &JsonValue) -> JsonValue {
    let mut new = task.clone();
    new["status"] = status_to_legacy(&task["status"]);
    if let Some(artifacts) = task["artifacts"].as_array() {
        new["artifacts"] = artifacts.iter().map(artifact_to_legacy).collect();
    }
    if let Some(history) = task["history"].as_array() {
        new["history"] = history.iter().map(message_to_legacy).collect();
    }
    new
}

fn status_to_legacy(status: &JsonValue) -> JsonValue {
    let mut new = status.clone();
    if status["state"] == "TASK_STATE_CANCELED" {
        new["state"] = json!("TASK_STATE_CANCELLED");
    }
    if status["message"].is_object() {
        new["message"] = message_to_legacy(&status["message"]);
    }
    new
}

fn message_to_legacy(message: &JsonValue) -> JsonValue {
    let JsonValue::Object(given) = message else { return message.clone() };
    let mut new = given.clone();
    if let Some(JsonValue::Array(parts)) = new.remove("parts") {
        new.insert("content".to_owned(), parts.iter().map(part_to_legacy).collect());
    }
    new.into()
}

fn artifact_to_legacy(artifact: &JsonValue) -> JsonValue {
    let mut new = artifact.clone();
    new["parts"] = artifact["parts"].as_array().into_iter().flatten().map(part_to_legacy).collect();
    new
}

fn part_to_legacy(part: &JsonValue) -> JsonValue {
    let mut new = if part["text"].is_string() {
        json!({"text": part["text"]})
    } else if part["raw"].is_string() {
        json!({"file": legacy::file_to_legacy(part, "fileWithBytes", &part["raw"])})
    } else if part["url"].is_string() {
        json!({"file": legacy::file_to_legacy(part, "fileWithUri", &part["url"])})
    } else if part["data"].is_object() {
        json!({"data": {"data": part["data"]}})
    } else {
        // The data of 0.3 is an object.
        json!({"data": {"data": {"value": part["data"]}}})
    };
    if part["metadata"].is_object() {
        new["metadata"] = part["metadata"].clone();
    }
    new
}

fn push_config_to_legacy(config: &JsonValue) -> JsonValue {
    let task_id = config["taskId"].as_str().unwrap_or_default();
    let id = config["id"].as_str().unwrap_or_default();
    let name = format!("tasks/{task_id}/pushNotificationConfigs/{id}");
    let mut of_task = json!({"id": config["id"], "url": config["url"]});
    let scheme = &config["authentication"]["scheme"];
    if scheme.is_string() {
        of_task["authentication"] = json!({"schemes": [scheme]});
    }
    json!({"name": name, "pushNotificationConfig": of_task})
}

/// Returns the body of an error: the name of its type, as the SDKs of 0.3 have it.
pub(super) fn error_to_legacy(error: &A2aError) -> JsonValue {
    let name = match error.kind {
        Kind::TaskNotFound => "TaskNotFoundError",
        Kind::TaskNotCancelable => "TaskNotCancelableError",
        Kind::PushNotificationNotSupported => "PushNotificationNotSupportedError",
        Kind::UnsupportedOperation => "UnsupportedOperationError",
        Kind::ContentTypeNotSupported => "ContentTypeNotSupportedError",
        Kind::MethodNotFound => "MethodNotFoundError",
        Kind::InvalidParams => "InvalidParamsError",
        Kind::ParseError | Kind::InvalidRequest | Kind::VersionNotSupported => {
            "InvalidRequestError"
        }
        Kind::Refused(code) => return json!({"type": code.as_str(), "message": error.message}),
    };
    json!({"type": name, "message": error.message})
}
