//! A2A 0.3: its methods, and its form of messages, tasks and cards. Requests are converted from the form of 1.0, and results to it.

use serde_json::{Map, Value, json};

/// The header of requests.
pub(super) const VERSION: &str = "0.3";

/// Returns the name of a method; `None` if 0.3 does not have it.
pub(super) fn method(of: &str) -> Option<&'static str> {
    Some(match of {
        "SendMessage" => "message/send",
        "SendStreamingMessage" => "message/stream",
        "GetTask" => "tasks/get",
        "CancelTask" => "tasks/cancel",
        "SubscribeToTask" => "tasks/resubscribe",
        _ => return None,
    })
}

/// Returns the address of the JSON-RPC interface in a card of 0.3.
pub(super) fn interface(card: &Value) -> Option<&str> {
    let mut listed =
        list(card, "supportedInterfaces").iter().filter(|it| it["protocolBinding"] == "JSONRPC");
    if let Some(found) = listed.find(|it| is_legacy(&it["protocolVersion"])) {
        return found["url"].as_str();
    }
    if !is_legacy(&card["protocolVersion"]) {
        return None;
    }
    match card["preferredTransport"].as_str() {
        None | Some("JSONRPC") => card["url"].as_str(),
        Some(_) => {
            let mut others = list(card, "additionalInterfaces").iter();
            others.find(|it| it["transport"] == "JSONRPC")?["url"].as_str()
        }
    }
}

fn is_legacy(version: &Value) -> bool {
    version.as_str().is_some_and(|version| version == "0.3" || version.starts_with("0.3."))
}

/// Returns a list of a card; one that is missing is empty.
fn list<'c>(card: &'c Value, name: &str) -> &'c [Value] {
    card[name].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Returns the parameters of a request.
pub(super) fn convert_params(params: Value) -> Value {
    let Value::Object(mut params) = params else { return params };
    params.remove("tenant");
    if let Some(message) = params.get("message") {
        let message = convert_message(message);
        params.insert("message".to_owned(), message);
    }
    if let Some(configuration) = params.get("configuration") {
        let returns = configuration["returnImmediately"] == true;
        params.insert("configuration".to_owned(), json!({"blocking": !returns}));
    }
    params.into()
}

fn convert_message(message: &Value) -> Value {
    let mut new = message.clone();
    new["kind"] = json!("message");
    new["role"] = json!("user");
    let parts = message["parts"].as_array().into_iter().flatten();
    let parts = parts.map(|part| match part.get("data") {
        Some(data) => json!({"kind": "data", "data": data}),
        None => json!({"kind": "text", "text": part["text"]}),
    });
    new["parts"] = parts.collect();
    new
}

/// Returns a result in the form of 1.0. States keep their names: agents of either version use those of the other, too.
pub(super) fn convert_result(result: &Value) -> Value {
    match result["kind"].as_str() {
        Some("message") => json!({"message": with_parts(result)}),
        Some("status-update") => {
            let mut new = result.clone();
            new["status"] = convert_status(&result["status"]);
            json!({"statusUpdate": new})
        }
        Some("artifact-update") => {
            let mut new = result.clone();
            new["artifact"] = with_parts(&result["artifact"]);
            json!({"artifactUpdate": new})
        }
        Some(kind) if kind != "task" => json!({"unknown": result}),
        _ => {
            let mut new = result.clone();
            new["status"] = convert_status(&result["status"]);
            new["artifacts"] = convert_items(&result["artifacts"], with_parts);
            json!({"task": new})
        }
    }
}

fn convert_status(status: &Value) -> Value {
    let mut new = json!({"state": status["state"], "timestamp": status["timestamp"]});
    if !status["message"].is_null() {
        new["message"] = with_parts(&status["message"]);
    }
    new
}

fn with_parts(of: &Value) -> Value {
    if !of.is_object() {
        return of.clone();
    }
    let mut new = of.clone();
    new["parts"] = convert_items(&of["parts"], convert_part);
    new
}

/// Converts the items of a list. What is not a list stays as it is: the reader must see that it cannot be read.
fn convert_items(list: &Value, convert: impl Fn(&Value) -> Value) -> Value {
    match list {
        Value::Array(items) => items.iter().map(convert).collect(),
        other => other.clone(),
    }
}

fn convert_part(part: &Value) -> Value {
    if !part.is_object() {
        return part.clone();
    }
    let file = &part["file"];
    // Agents of 0.3 with a library of 1.0 have the members of a file in the part itself.
    let pairs = [
        ("text", &part["text"], &Value::Null),
        ("data", &part["data"], &Value::Null),
        ("raw", &file["bytes"], &part["raw"]),
        ("url", &file["uri"], &part["url"]),
        ("mediaType", &file["mimeType"], &part["mediaType"]),
        ("filename", &file["name"], &part["filename"]),
    ];
    let known = pairs.into_iter().filter_map(|(name, value, otherwise)| {
        let value = if value.is_null() { otherwise } else { value };
        (!value.is_null()).then(|| (name.to_owned(), value.clone()))
    });
    known.collect::<Map<_, _>>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_the_form_of_0_3() {
        let message = json!({"messageId": "m", "role": "ROLE_USER", "contextId": "c",
            "parts": [{"text": "Hello."}, {"data": {"n": 1}}]});
        let request = json!({"message": message, "tenant": "t", "configuration":
            {"returnImmediately": true}});
        let expected = json!({"message": {"kind": "message", "messageId": "m", "role": "user",
            "contextId": "c", "parts": [{"kind": "text", "text": "Hello."},
                {"kind": "data", "data": {"n": 1}}]},
            "configuration": {"blocking": false}});
        assert_eq!(convert_params(request), expected);
        assert_eq!(method("SubscribeToTask"), Some("tasks/resubscribe"));
        assert_eq!(method("ListTasks"), None);
    }

    #[test]
    fn results_have_the_form_of_1_0() {
        let file = json!({"kind": "file", "file": {"uri": "http://x/", "name": "a.txt"}});
        let task = json!({"kind": "task", "id": "t", "contextId": "c", "artifacts":
            [{"artifactId": "a", "parts": [{"kind": "text", "text": "x"}, file]}],
            "status": {"state": "input-required", "message":
                {"kind": "message", "parts": [{"kind": "data", "data": {"n": 1}}]}}});
        let task = &convert_result(&task)["task"];
        assert_eq!(task["status"]["state"], "input-required");
        assert_eq!(task["status"]["message"]["parts"], json!([{"data": {"n": 1}}]));
        let parts = json!([{"text": "x"}, {"url": "http://x/", "filename": "a.txt"}]);
        assert_eq!(task["artifacts"][0]["parts"], parts);
        let update = json!({"kind": "status-update", "taskId": "t", "final": true,
            "status": {"state": "completed"}});
        let status = &convert_result(&update)["statusUpdate"]["status"];
        assert_eq!(status["state"], "completed");
        let piece = json!({"kind": "artifact-update", "taskId": "t", "append": true,
            "artifact": {"artifactId": "a", "parts": [{"kind": "text", "text": "y"}]}});
        assert_eq!(
            convert_result(&piece)["artifactUpdate"]["artifact"]["parts"],
            json!([{"text": "y"}])
        );
        let said = json!({"kind": "message", "parts": [{"kind": "text", "text": "Hello."}]});
        assert_eq!(convert_result(&said)["message"]["parts"], json!([{"text": "Hello."}]));
        // What cannot be read is not removed: its reader says what is wrong.
        let odd = json!([{"kind": "hologram"}, {"text": 5}, 7]);
        let piece = |parts: &Value| json!({"artifactId": "a", "parts": parts});
        let update = json!({"kind": "artifact-update", "artifact": piece(&odd)});
        assert_eq!(
            convert_result(&update)["artifactUpdate"]["artifact"]["parts"],
            json!([{}, {"text": 5}, 7])
        );
        let task = json!({"kind": "task", "artifacts": [piece(&json!("x")), 7]});
        assert_eq!(convert_result(&task)["task"]["artifacts"], json!([piece(&json!("x")), 7]));
        let raw = json!({"kind": "file", "raw": "AAAA", "mediaType": "image/png"});
        let said = json!({"kind": "message", "parts": [raw]});
        let parts = json!([{"raw": "AAAA", "mediaType": "image/png"}]);
        assert_eq!(convert_result(&said)["message"]["parts"], parts);
        for odd in [json!({}), json!({"kind": "artifact-update"}), json!({"kind": 7, "status": 7})]
        {
            convert_result(&odd);
        }
    }

    #[test]
    fn a_card_of_0_3_names_the_interface() {
        let cards = [
            (json!({"protocolVersion": "0.3.0", "url": "https://a/"}), Some("https://a/")),
            (
                json!({"protocolVersion": "0.3.0", "url": "https://a/",
                    "preferredTransport": "GRPC",
                    "additionalInterfaces": [{"transport": "JSONRPC", "url": "https://b/"}]}),
                Some("https://b/"),
            ),
            (
                json!({"supportedInterfaces": [{"protocolBinding": "JSONRPC",
                    "protocolVersion": "0.3", "url": "https://c/"}]}),
                Some("https://c/"),
            ),
            (json!({"protocolVersion": "0.2.6", "url": "https://a/"}), None),
            (json!([]), None),
        ];
        for (card, expected) in cards {
            assert_eq!(interface(&card), expected, "{card}");
        }
    }
}
