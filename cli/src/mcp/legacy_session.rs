//! The session of a client of 2025-11-25 or before. A restarted server has forgotten its subscriptions;
//! then the proxy opens a new session with the same subscriptions; the client does not notice.

use std::collections::BTreeMap;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value as JsonValue, json};

use super::endpoint::{Endpoint, SESSION_ID, SendError};
use super::subscription::change_notification;

/// The header with the version of the protocol.
pub(super) const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");

/// A session, once the client has started it.
#[derive(Clone, Debug, Default)]
pub(super) struct LegacySession {
    /// Counts the sessions, so that only one of several failed requests starts the next one.
    pub(super) number: u64,
    id: Option<String>,
    version: Option<String>,
    /// The request of the client that has started it.
    initialize: JsonValue,
    /// Requests that a new session must get, by what they set.
    settings: BTreeMap<String, JsonValue>,
}

impl LegacySession {
    /// The session that a server has started with its answer to `initialize`.
    pub(super) fn start(&mut self, id: Option<String>, initialize: &JsonValue, answer: &JsonValue) {
        self.number += 1;
        self.id = id;
        let version = &answer["result"]["protocolVersion"];
        self.version = version.as_str().map(str::to_owned);
        self.initialize = initialize.clone();
    }

    pub(super) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let session = (HeaderName::from_static(SESSION_ID), &self.id);
        for (name, value) in [session, (VERSION, &self.version)] {
            if let Some(Ok(value)) = value.as_ref().map(|value| HeaderValue::from_str(value)) {
                headers.insert(name, value);
            }
        }
        headers
    }

    pub(super) fn has_begun(&self) -> bool {
        self.id.is_some()
    }

    /// Keeps a request that was answered, if a new session must get it.
    pub(super) fn note_answered(&mut self, request: &JsonValue) {
        let uri = request["params"]["uri"].as_str().unwrap_or_default();
        match request["method"].as_str() {
            Some("resources/subscribe") => {
                self.settings.insert(format!("uri {uri}"), request.clone());
            }
            Some("resources/unsubscribe") => {
                self.settings.remove(&format!("uri {uri}"));
            }
            Some("logging/setLevel") => {
                self.settings.insert("level".to_owned(), request.clone());
            }
            _ => {}
        }
    }

    /// Notifications of changes that are possible while there was no session.
    pub(super) fn missed_notifications(&self) -> Vec<JsonValue> {
        let subscribed = self.settings.values().filter(|it| it["method"] == "resources/subscribe");
        let resources = subscribed.map(|request| {
            change_notification(
                "notifications/resources/updated",
                json!({"uri": request["params"]["uri"]}),
            )
        });
        resources
            .chain([change_notification("notifications/tools/list_changed", json!({}))])
            .collect()
    }

    /// Starts the session again.
    pub(super) async fn renew(&mut self, endpoint: &Endpoint) -> Result<(), SendError> {
        let mut answer = endpoint.post(&self.initialize, HeaderMap::new()).await?;
        let message = answer
            .next()
            .await?
            .ok_or_else(|| SendError::Lost("the server started no session".to_owned()))?;
        let initialize = self.initialize.clone();
        self.start(answer.session, &initialize, &message);
        let begun = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        endpoint.post(&begun, self.headers()).await?;
        for request in self.settings.values() {
            endpoint.post(request, self.headers()).await?.next().await?;
        }
        Ok(())
    }
}
