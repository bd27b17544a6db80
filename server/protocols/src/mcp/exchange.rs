//! A request that is being answered: its caller, the generation of the protocol, and the way to its client.

use std::sync::Arc;

use abide_engine::QueryResult;
use abide_schema::Refusal;
use abide_schema::reducer::Caller;
use abide_server::port::{
    AuthSession, RequestBody, off_the_runtime, rows::JSON_COLUMNS, rows::deny_hidden,
    rows::objects_with,
};
use serde_json::{Map, Value as JsonValue};
use tokio_util::sync::CancellationToken;

use super::message::{Request, to_failure};
use super::sessions::McpSession;
use crate::mcp_handler::{McpCancellation, McpFailure, McpHandler, McpNotifier};
use crate::state::ProtocolState;

/// The version without sessions.
pub(super) const MODERN: &str = "2026-07-28";

/// The versions with sessions, the newest first.
pub(super) const LEGACY: [&str; 3] = ["2025-11-25", "2025-06-18", "2025-03-26"];

/// Returns the version for a client that begins with `initialize`.
pub(super) fn legacy_version(request: &Request) -> &'static str {
    let wanted = request.params.get("protocolVersion").and_then(JsonValue::as_str);
    LEGACY.into_iter().find(|version| Some(*version) == wanted).unwrap_or(LEGACY[0])
}

/// The facts about the client in a request of 2026-07-28.
#[derive(Debug)]
pub(super) struct Modern {
    pub(super) capabilities: JsonValue,
    pub(super) log_level: Option<String>,
}

/// The generation of the protocol.
#[derive(Debug)]
pub(super) enum ProtocolGeneration {
    Modern(Modern),
    /// With the session, if the request names one.
    Legacy(Option<Arc<McpSession>>),
}

impl ProtocolGeneration {
    pub(super) fn log_level(&self, request: &Request) -> Option<&str> {
        match self {
            ProtocolGeneration::Modern(modern) => modern.log_level.as_deref(),
            // Without a wish of the client, the server may choose.
            ProtocolGeneration::Legacy(Some(session)) if request.method == "tools/call" => {
                Some(session.log_level())
            }
            ProtocolGeneration::Legacy(_) => None,
        }
    }
}

/// A request that is being answered.
pub(super) struct McpRequestContext {
    pub(super) app: ProtocolState,
    pub(super) auth: AuthSession,
    pub(super) era: ProtocolGeneration,
    pub(super) notifier: McpNotifier,
    /// Cancelled by the client, explicitly.
    pub(super) cancelled: CancellationToken,
    /// Cancelled by the client, which has closed the connection.
    pub(super) disconnected: CancellationToken,
    /// The idempotency key.
    pub(super) key: Option<String>,
    pub(super) accepts_events: bool,
    pub(super) content: RequestBody,
}

impl McpRequestContext {
    pub(super) fn by(&self) -> &Caller {
        &self.auth.caller
    }

    /// Waits until the client cancels the request. Returns how.
    pub(super) async fn cancellation(&self) -> McpCancellation {
        tokio::select! {
            () = self.cancelled.cancelled() => McpCancellation::Requested,
            () = self.disconnected.cancelled() => McpCancellation::Disconnected,
        }
    }

    pub(super) fn is_modern(&self) -> bool {
        matches!(self.era, ProtocolGeneration::Modern(_))
    }

    pub(super) fn session(&self) -> Option<&Arc<McpSession>> {
        match &self.era {
            ProtocolGeneration::Legacy(session) => session.as_ref(),
            ProtocolGeneration::Modern(_) => None,
        }
    }

    /// Returns the capabilities of the client.
    pub(super) fn capabilities(&self) -> &JsonValue {
        match &self.era {
            ProtocolGeneration::Modern(modern) => &modern.capabilities,
            ProtocolGeneration::Legacy(Some(session)) => session.capabilities(),
            ProtocolGeneration::Legacy(None) => &JsonValue::Null,
        }
    }

    pub(super) fn handler(&self) -> Option<Arc<dyn McpHandler>> {
        self.app.mcp_handler.clone()
    }

    /// Returns a query of the protocol itself.
    pub(super) async fn query(
        &self,
        sql: &str,
        params: &Map<String, JsonValue>,
    ) -> Result<QueryResult, Refusal> {
        self.app.engine.query(self.by(), sql, params, None).await.map_err(deny_hidden)
    }

    /// Returns the rows of such a query over built-in tables as objects.
    pub(super) async fn rows(
        &self,
        sql: &str,
        params: &Map<String, JsonValue>,
    ) -> Result<Vec<Map<String, JsonValue>>, McpFailure> {
        self.rows_with(sql, params, JSON_COLUMNS.to_vec()).await
    }

    /// Returns the rows of such a query as objects, of which these columns are JSON.
    pub(super) async fn rows_with(
        &self,
        sql: &str,
        params: &Map<String, JsonValue>,
        json_columns: Vec<&'static str>,
    ) -> Result<Vec<Map<String, JsonValue>>, McpFailure> {
        let found = self.query(sql, params).await.map_err(to_failure)?;
        off_the_runtime(move || objects_with(&found, &json_columns)).await.map_err(to_failure)
    }
}
