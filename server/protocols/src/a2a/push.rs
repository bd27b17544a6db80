//! A configuration of push notifications, as a client sends it: a webhook of a run, named by the client. [`super::push_operations`] are
//! the operations on them, and [`super::delivery`] sends the notifications.

use abide_schema::wire::BatchCall;
use abide_server::port::runs;
use serde_json::{Value as JsonValue, json};

use super::error::{A2aError, A2aResult, Kind};
use super::params::{field, required_text, text_field};
use crate::state::ProtocolState;
use crate::webhooks::WebhookSender;

/// A configuration as a client sends it.
pub(super) struct PushConfig {
    pub(super) name: String,
    url: String,
    token: Option<String>,
    scheme: Option<String>,
    credentials: Option<String>,
}

impl PushConfig {
    /// Reads a configuration. One without an id gets this name: a task has one of them.
    pub(super) fn parse(
        given: &JsonValue,
        sender: &dyn WebhookSender,
        name: &str,
    ) -> A2aResult<PushConfig> {
        let url = required_text(given, "url")?;
        sender.check(url).map_err(A2aError::invalid)?;
        let authentication = field(given, "authentication");
        Ok(PushConfig {
            name: text_field(given, "id")?.unwrap_or(name).to_owned(),
            url: url.to_owned(),
            token: owned_text(given, "token")?,
            scheme: owned_text(authentication, "scheme")?,
            credentials: owned_text(authentication, "credentials")?,
        })
    }

    /// Returns the call that stores it. Notifications begin after this event; after the newest one if it is `None`.
    pub(super) fn call(&self, run_id: &str, after: Option<i64>) -> BatchCall {
        let args = json!({"run_id": run_id, "name": self.name, "url": self.url, "token": self.token,
            "scheme": self.scheme, "credentials": self.credentials, "after": after});
        runs::reducer_call("put_webhook", args)
    }
}

fn owned_text(object: &JsonValue, name: &str) -> A2aResult<Option<String>> {
    text_field(object, name).map(|text| text.map(str::to_owned))
}

/// Returns the sender; refused if the server sends no push notifications.
pub(super) fn sender(app: &ProtocolState) -> A2aResult<&dyn WebhookSender> {
    app.webhooks.as_deref().ok_or_else(|| {
        let message = "the agent sends no push notifications";
        A2aError::new(Kind::PushNotificationNotSupported, message)
    })
}
