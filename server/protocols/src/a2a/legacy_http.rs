//! A2A 0.3 over HTTP+JSON: the paths below `/a2a/{agent}/v1/`. Its JSON is that of the Protocol Buffers of 0.3, and so differs from
//! 0.3 over JSON-RPC: a message has `content`, a file has other names, and the states are those of 1.0. A request is converted to
//! 1.0, and its result back.

use serde_json::{Value as JsonValue, json};

use super::error::{A2aError, Kind};
use super::legacy;
use super::operation::Operation;
use super::params::field;

/// Returns the parameters in the form of 1.0.
pub(super) fn params(operation: Operation, given: &JsonValue) -> JsonValue {
    match operation {
        Operation::SendMessage | Operation::SendStreamingMessage => {
            let message = match field(given, "message") {
                JsonValue::Null => &given["request"],
                message => message,
            };
            json!({"message": message_of(message), "metadata": given["metadata"],
                "configuration": configuration_of(field(given, "configuration"))})
        }
        Operation::CreatePushConfig => {
            // The body is the configuration with its name, or a request that has it.
            let named = match &given["config"] {
                JsonValue::Null => given,
                config => config,
            };
            let mut config = legacy::push_config_of(field(named, "pushNotificationConfig"));
            config["taskId"] = given["taskId"].clone();
            config
        }
        _ => given.clone(),
    }
}

fn message_of(message: &JsonValue) -> JsonValue {
    // What is not an object is refused in the form of 1.0.
    let JsonValue::Object(given) = message else { return message.clone() };
    let mut new = given.clone();
    if let Some(JsonValue::Array(content)) = new.remove("content") {
        new.insert("parts".to_owned(), content.iter().map(part_of).collect());
    }
    new.into()
}

fn part_of(part: &JsonValue) -> JsonValue {
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

fn configuration_of(given: &JsonValue) -> JsonValue {
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
        new["taskPushNotificationConfig"] = legacy::push_config_of(push);
    }
    new
}

/// Returns the result of an operation in the form of 0.3.
pub(super) fn result(operation: Operation, result: &JsonValue) -> JsonValue {
    match operation {
        Operation::SendMessage => json!({"task": task(&result["task"])}),
        Operation::GetTask | Operation::CancelTask => task(result),
        Operation::CreatePushConfig | Operation::GetPushConfig => push_config(result),
        Operation::ListPushConfigs => {
            let configs = result["configs"].as_array().into_iter().flatten();
            json!({"configs": configs.map(push_config).collect::<JsonValue>()})
        }
        Operation::GetExtendedAgentCard => legacy::card(result),
        Operation::DeletePushConfig => json!({}),
        Operation::SendStreamingMessage | Operation::SubscribeToTask | Operation::ListTasks => {
            result.clone()
        }
    }
}

/// Returns an event of a stream in the form of 0.3.
pub(super) fn event(event: &JsonValue) -> JsonValue {
    if event["task"].is_object() {
        return json!({"task": task(&event["task"])});
    }
    let mut new = event.clone();
    if let Some(update) = new.get_mut("statusUpdate") {
        update["final"] = json!(legacy::is_final(&update["status"]));
        update["status"] = status(&update["status"]);
    }
    if let Some(update) = new.get_mut("artifactUpdate") {
        update["artifact"] = artifact(&update["artifact"]);
    }
    new
}

fn task(task: &JsonValue) -> JsonValue {
    let mut new = task.clone();
    new["status"] = status(&task["status"]);
    if let Some(artifacts) = task["artifacts"].as_array() {
        new["artifacts"] = artifacts.iter().map(artifact).collect();
    }
    if let Some(history) = task["history"].as_array() {
        new["history"] = history.iter().map(message).collect();
    }
    new
}

fn status(status: &JsonValue) -> JsonValue {
    let mut new = status.clone();
    if status["state"] == "TASK_STATE_CANCELED" {
        new["state"] = json!("TASK_STATE_CANCELLED");
    }
    if status["message"].is_object() {
        new["message"] = message(&status["message"]);
    }
    new
}

fn message(message: &JsonValue) -> JsonValue {
    let JsonValue::Object(given) = message else { return message.clone() };
    let mut new = given.clone();
    if let Some(JsonValue::Array(parts)) = new.remove("parts") {
        new.insert("content".to_owned(), parts.iter().map(part).collect());
    }
    new.into()
}

fn artifact(artifact: &JsonValue) -> JsonValue {
    let mut new = artifact.clone();
    new["parts"] = artifact["parts"].as_array().into_iter().flatten().map(part).collect();
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
        json!({"file": file})
    };
    let mut new = match part {
        _ if part["text"].is_string() => json!({"text": part["text"]}),
        _ if part["raw"].is_string() => file("fileWithBytes", &part["raw"]),
        _ if part["url"].is_string() => file("fileWithUri", &part["url"]),
        _ if part["data"].is_object() => json!({"data": {"data": part["data"]}}),
        // The data of 0.3 is an object.
        _ => json!({"data": {"data": {"value": part["data"]}}}),
    };
    if part["metadata"].is_object() {
        new["metadata"] = part["metadata"].clone();
    }
    new
}

fn push_config(config: &JsonValue) -> JsonValue {
    let text = |name: &str| config[name].as_str().unwrap_or_default();
    let name = format!("tasks/{}/pushNotificationConfigs/{}", text("taskId"), text("id"));
    let mut of_task = json!({"id": config["id"], "url": config["url"]});
    let scheme = &config["authentication"]["scheme"];
    if scheme.is_string() {
        of_task["authentication"] = json!({"schemes": [scheme]});
    }
    json!({"name": name, "pushNotificationConfig": of_task})
}

/// Returns the body of an error: the name of its type, as the SDKs of 0.3 have it.
pub(super) fn error(error: &A2aError) -> JsonValue {
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
