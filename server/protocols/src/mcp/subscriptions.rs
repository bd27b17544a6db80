//! Notifications about changes: `subscriptions/listen` of 2026-07-28, and the stream of a session before. Each
//! resource is a set of live queries, and so is the list of tools.

use std::collections::BTreeSet;

use abide_engine::{Connection, SubscribeRequest, Update};
use abide_schema::{Code, Refusal};
use serde_json::{Map, Value as JsonValue, json};
use tokio::sync::{oneshot, watch};

use super::exchange::McpRequestContext;
use super::message::{Request, to_failure};
use super::resources::{self, Part};
use crate::limits;
use crate::mcp_handler::{McpFailure, McpItems, McpRevisions};

/// The agents, whose tools change with them.
const AGENTS: &str = "SELECT name, revision, retired_at, hidden FROM agents";

/// The tag of notifications of `subscriptions/listen`.
const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";

/// The notifications that a client subscribes to.
#[derive(Debug, Default)]
struct Wanted {
    tools: bool,
    prompts: bool,
    uris: BTreeSet<String>,
}

/// A change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Changed {
    Tools,
    Prompts,
    Resource(String),
}

impl Changed {
    fn notification(&self) -> (&'static str, JsonValue) {
        match self {
            Changed::Tools => ("notifications/tools/list_changed", json!({})),
            Changed::Prompts => ("notifications/prompts/list_changed", json!({})),
            Changed::Resource(uri) => ("notifications/resources/updated", json!({"uri": uri})),
        }
    }
}

/// Live queries for what a client wants to know.
struct Watcher {
    connection: Connection,
    revisions: Option<(McpRevisions, watch::Receiver<McpRevisions>)>,
    prompts: bool,
    tools: bool,
}

/// The id of the subscription of the list of tools.
const TOOLS_ID: &str = "tools";

impl Watcher {
    async fn new(exchange: &McpRequestContext, wanted: &Wanted) -> Result<Watcher, McpFailure> {
        let mut connection = exchange.app.engine.connect(exchange.by());
        if wanted.tools {
            let none = Map::new();
            let request = SubscribeRequest::new(TOOLS_ID, AGENTS, &none);
            match connection.subscribe(&request).await {
                // A caller that may not see agents has no such tools.
                Err(refusal) if matches!(refusal.code, Code::BadSql | Code::Denied) => {}
                subscribed => subscribed.map_err(to_failure)?,
            }
        }
        for uri in &wanted.uris {
            // The resources of a handler do not say when they change.
            let parts = resources::resource_parts(exchange, uri).unwrap_or_default();
            for (at, Part { sql, params, .. }) in parts.iter().enumerate() {
                let id = format!("{at}:{uri}");
                let request = SubscribeRequest::new(&id, sql, params);
                connection.subscribe(&request).await.map_err(to_failure)?;
            }
        }
        let revisions = exchange.handler().and_then(|handler| handler.revisions());
        let revisions = revisions.map(|mut changes| {
            let now = *changes.borrow_and_update();
            (now, changes)
        });
        let tools = wanted.tools;
        let prompts = wanted.prompts;
        Ok(Watcher { connection, revisions, tools, prompts })
    }

    /// Waits for changes. Cancelling the wait loses nothing.
    async fn next(&mut self) -> Result<BTreeSet<Changed>, Refusal> {
        loop {
            let handler_changed = async {
                match &mut self.revisions {
                    Some((_, changes)) => changes.changed().await.is_ok(),
                    None => std::future::pending().await,
                }
            };
            let changed = tokio::select! {
                update = self.connection.next() => changes_from_update(&update)?,
                alive = handler_changed => self.handler_changes(alive),
            };
            if !changed.is_empty() {
                return Ok(changed);
            }
        }
    }

    /// Returns the lists of the handler that have changed.
    fn handler_changes(&mut self, is_alive: bool) -> BTreeSet<Changed> {
        let mut changed = BTreeSet::new();
        let Some((before, changes)) = &mut self.revisions else { return changed };
        let now = *changes.borrow_and_update();
        if self.tools && now.tools != before.tools {
            changed.insert(Changed::Tools);
        }
        if self.prompts && now.prompts != before.prompts {
            changed.insert(Changed::Prompts);
        }
        *before = now;
        if !is_alive {
            self.revisions = None;
        }
        changed
    }
}

/// Returns the resources that an update changes. The first result of a query is not a change.
fn changes_from_update(update: &Update) -> Result<BTreeSet<Changed>, Refusal> {
    Ok(match update {
        Update::Delta { changes, .. } => {
            changes.iter().map(|it| changed_by_query(&it.id)).collect()
        }
        Update::Rerun { change, .. } => BTreeSet::from([changed_by_query(&change.id)]),
        // The rows in between are unknown.
        Update::Snapshot(part) if part.reset && !part.more => {
            BTreeSet::from([changed_by_query(&part.id)])
        }
        Update::Error { refusal, .. } if refusal.code != Code::ResyncRequired => {
            return Err(refusal.clone());
        }
        Update::Snapshot(_) | Update::Progress { .. } | Update::Error { .. } => BTreeSet::new(),
    })
}

/// Returns what the query with this id watches.
fn changed_by_query(id: &str) -> Changed {
    match id.split_once(':') {
        Some((_, uri)) => Changed::Resource(uri.to_owned()),
        None => Changed::Tools,
    }
}

/// `subscriptions/listen`. Ends when the server stops, or with the stream.
pub(super) async fn listen(
    exchange: &McpRequestContext,
    request: &Request,
) -> Result<JsonValue, McpFailure> {
    if !exchange.accepts_events {
        return Err(McpFailure::invalid("the header Accept does not have text/event-stream"));
    }
    let filter = request.params.get("notifications").and_then(JsonValue::as_object);
    let filter = filter.ok_or_else(|| McpFailure::invalid("notifications must be an object"))?;
    let is_set = |name: &str| filter.get(name) == Some(&json!(true));
    let mut wanted = Wanted {
        tools: is_set("toolsListChanged"),
        prompts: is_set("promptsListChanged"),
        uris: BTreeSet::new(),
    };
    let uris = filter.get("resourceSubscriptions").and_then(JsonValue::as_array);
    if uris.is_some_and(|uris| uris.len() > limits::MCP_SUBSCRIPTIONS) {
        return Err(too_many_subscriptions());
    }
    for uri in uris.into_iter().flatten() {
        let uri = uri.as_str().ok_or_else(|| McpFailure::invalid("a URI must be a string"))?;
        check_uri(exchange, uri)?;
        wanted.uris.insert(uri.to_owned());
    }
    let mut watcher = Watcher::new(exchange, &wanted).await?;
    let mut accepted = Map::new();
    for (name, is_wanted) in
        [("toolsListChanged", wanted.tools), ("promptsListChanged", wanted.prompts)]
    {
        if is_wanted {
            accepted.insert(name.to_owned(), json!(true));
        }
    }
    if !wanted.uris.is_empty() {
        accepted.insert("resourceSubscriptions".to_owned(), json!(wanted.uris));
    }
    let tag = json!({SUBSCRIPTION_ID: request.id});
    let acknowledged = json!({"_meta": tag, "notifications": accepted});
    exchange.notifier.notify("notifications/subscriptions/acknowledged", acknowledged).await;
    let mut invalid = Box::pin(exchange.app.port.until_invalid(exchange.auth.clone()));
    loop {
        let changed = tokio::select! {
            () = exchange.app.port.until_draining() => {
                return Ok(json!({"_meta": tag}));
            }
            refusal = &mut invalid => return Err(to_failure(refusal)),
            changed = watcher.next() => changed.map_err(to_failure)?,
        };
        for change in changed {
            let (method, mut params) = change.notification();
            params["_meta"] = tag.clone();
            exchange.notifier.notify(method, params).await;
        }
    }
}

/// Refuses an address that cannot be that of a resource. Whether the resource exists makes no difference, so that a
/// subscription shows nothing that a read would not.
fn check_uri(exchange: &McpRequestContext, uri: &str) -> Result<(), McpFailure> {
    if uri.len() > limits::MCP_URI_BYTES {
        let message = format!("the URI has more than {} bytes", limits::MCP_URI_BYTES);
        return Err(McpFailure::invalid(message));
    }
    if resources::resource_parts(exchange, uri).is_some() {
        return Ok(());
    }
    let handler = exchange.handler();
    if handler.is_some_and(|it| resources::handler_has(&it.items(McpItems::Resources), uri)) {
        return Ok(());
    }
    let message = "Resource not found".to_owned();
    Err(McpFailure { code: -32602, message, data: Some(json!({"uri": uri})) })
}

fn too_many_subscriptions() -> McpFailure {
    McpFailure::invalid(format!("over {} subscriptions", limits::MCP_SUBSCRIPTIONS))
}

/// `resources/subscribe` and `resources/unsubscribe` of a session.
pub(super) fn subscribe(
    exchange: &McpRequestContext,
    request: &Request,
) -> Result<JsonValue, McpFailure> {
    let session = exchange.session().ok_or_else(|| {
        McpFailure::invalid("a subscription needs a session: begin with initialize")
    })?;
    let uri = request.required_text("uri")?;
    if request.method != "resources/subscribe" {
        session.unsubscribe(uri);
        return Ok(json!({}));
    }
    check_uri(exchange, uri)?;
    if session.subscribe(uri).map_err(to_failure)? {
        Ok(json!({}))
    } else {
        Err(too_many_subscriptions())
    }
}

/// The notifications of a session, until it ends. `watches` is sent when changes are watched.
pub(super) async fn follow_session(exchange: &McpRequestContext, watches: oneshot::Sender<()>) {
    let mut watches = Some(watches);
    let Some(session) = exchange.session().cloned() else { return };
    let mut uris = session.subscriptions();
    let mut invalid = Box::pin(exchange.app.port.until_invalid(exchange.auth.clone()));
    loop {
        let wanted = Wanted { tools: true, prompts: true, uris: uris.borrow_and_update().clone() };
        let watcher = Watcher::new(exchange, &wanted).await;
        let Ok(mut watcher) = watcher else { return };
        if let Some(watches) = watches.take() {
            // The stream may be gone.
            let _ = watches.send(());
        }
        loop {
            let changed = tokio::select! {
                () = exchange.app.port.until_draining() => return,
                () = session.ended().cancelled() => return,
                _ = &mut invalid => return,
                _ = uris.changed() => break,
                changed = watcher.next() => changed,
            };
            let Ok(changed) = changed else { return };
            for change in changed {
                let (method, params) = change.notification();
                exchange.notifier.notify(method, params).await;
            }
        }
    }
}
