//! State shared by the routes of all protocols.

use std::sync::Arc;

use abide_engine::Engine;
use abide_server::port::{ParseTurns, Port};
use axum::extract::FromRef;

use crate::AgentProtocols;
use crate::mcp::McpState;
use crate::mcp_handler::McpHandler;
use crate::signing_key::SigningKey;
use crate::webhooks::WebhookSender;

/// State shared by the routes of all protocols.
#[derive(Clone, Debug)]
pub(crate) struct ProtocolState {
    pub(crate) port: Port,
    pub(crate) engine: Engine,
    /// For large runs that are answered as one text, by scope.
    pub(crate) run_limiter: ParseTurns,
    pub(crate) mcp: Arc<McpState>,
    pub(crate) mcp_handler: Option<Arc<dyn McpHandler>>,
    pub(crate) webhooks: Option<Arc<dyn WebhookSender>>,
    pub(crate) signing_key: Option<SigningKey>,
}

impl ProtocolState {
    pub(crate) fn new(port: Port, protocols: &AgentProtocols) -> ProtocolState {
        let engine = port.engine().clone();
        let AgentProtocols { mcp_handler, webhooks, signing_key } = protocols.clone();
        ProtocolState {
            run_limiter: ParseTurns::new(engine.tenants()),
            mcp: Arc::default(),
            port,
            engine,
            mcp_handler,
            webhooks,
            signing_key,
        }
    }
}

impl FromRef<ProtocolState> for Port {
    fn from_ref(state: &ProtocolState) -> Port {
        state.port.clone()
    }
}
