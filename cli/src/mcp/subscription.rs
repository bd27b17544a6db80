//! A subscription of a client of 2026-07-28, across restarts of its server.

use serde_json::{Value as JsonValue, json};

/// A request `subscriptions/listen`.
#[derive(Debug, Default)]
pub(super) struct Subscription {
    is_acknowledged: bool,
}

impl Subscription {
    /// The subscription that a request asks for.
    pub(super) fn from_request(request: &JsonValue) -> Option<Subscription> {
        (request["method"] == "subscriptions/listen").then(Subscription::default)
    }

    /// The messages for the client after a message of the server. The second acknowledgement follows a lost connection: anything
    /// may have changed, and the client is notified of that instead.
    pub(super) fn translate(&mut self, message: JsonValue) -> Vec<JsonValue> {
        if message["method"] != "notifications/subscriptions/acknowledged" {
            return vec![message];
        }
        if !std::mem::replace(&mut self.is_acknowledged, true) {
            return vec![message];
        }
        let meta = &message["params"]["_meta"];
        let accepted = &message["params"]["notifications"];
        let mut all = Vec::new();
        for (name, method) in [
            ("toolsListChanged", "notifications/tools/list_changed"),
            ("promptsListChanged", "notifications/prompts/list_changed"),
        ] {
            if accepted[name] == true {
                all.push(change_notification(method, json!({"_meta": meta})));
            }
        }
        for uri in accepted["resourceSubscriptions"].as_array().into_iter().flatten() {
            let params = json!({"_meta": meta, "uri": uri});
            all.push(change_notification("notifications/resources/updated", params));
        }
        all
    }
}

/// A notification of a change.
pub(super) fn change_notification(method: &str, params: JsonValue) -> JsonValue {
    json!({"jsonrpc": "2.0", "method": method, "params": params})
}
