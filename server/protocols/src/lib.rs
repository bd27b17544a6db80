//! Standard protocols for agents. Each is a projection of the events of a run, so a client that reconnects gets the same
//! again, even from another process. Only A2A stores something: the messages of its clients, and their webhooks.
//!
//! It changes when one of the standards changes. The server knows no protocol: it authenticates requests, bounds their
//! bodies and connections, and gives this crate its [port](abide_server::port).
//!
//! `turn` is the part that all of them share: one turn of a run as items. `follow` reads the events, `start` the
//! requests that begin or continue a run, `thread` the requests in a session that the client has named. Then one module per
//! protocol: `responses` Open Responses · `chat` the AI SDK · `ag_ui` AG-UI · `a2a` A2A with its push notifications ·
//! `mcp` the Model Context Protocol.

mod a2a;
mod ag_ui;
mod call;
mod chat;
mod decision;
mod follow;
mod incoming;
mod limits;
mod mcp;
mod mcp_handler;
mod openapi;
mod responses;
mod signing_key;
mod start;
mod state;
mod thread;
mod turn;
mod webhooks;
mod whole;

use std::sync::Arc;

use abide_server::port::{Port, Protocols, StartedProtocols};
use axum::Router;
use axum::middleware;
use axum::routing::{any, get, post};
use serde_json::{Map, Value as JsonValue};

use state::ProtocolState;

pub use mcp_handler::{
    McpCancellation, McpFailure, McpFuture, McpHandler, McpItems, McpNotifier, McpReply,
    McpRequest, McpRevisions,
};
pub use signing_key::SigningKey;
pub use webhooks::{WebhookFuture, WebhookRequest, WebhookSender};

/// The protocols, with the services that a program gives them. Pass it to the server in `Services`.
#[derive(Clone, Debug, Default)]
pub struct AgentProtocols {
    /// Tools, resources and prompts that the program adds to the MCP server.
    pub mcp_handler: Option<Arc<dyn McpHandler>>,
    /// The sender of push notifications. Without one there are none.
    pub webhooks: Option<Arc<dyn WebhookSender>>,
    /// The key that signs cards of agents and push notifications.
    pub signing_key: Option<SigningKey>,
}

impl Protocols for AgentProtocols {
    fn start(&self, port: Port) -> StartedProtocols {
        let state = ProtocolState::new(port, self);
        let background = Box::pin(a2a::deliver(state.clone()));
        StartedProtocols { routes: routes(state), background }
    }

    fn wrap(&self, router: Router) -> Router {
        router.layer(middleware::from_fn(responses::add_error))
    }

    fn openapi_paths(&self) -> Map<String, JsonValue> {
        openapi::paths()
    }
}

fn routes(state: ProtocolState) -> Router {
    Router::new()
        .route("/v1/responses", post(responses::create))
        .route("/v1/responses/{id}", get(responses::retrieve))
        .route("/v1/responses/{id}/cancel", post(responses::cancel))
        .route("/v1/models", get(responses::models))
        .route("/v1/agents/{name}/chat", post(chat::send))
        .route("/v1/agents/{name}/chat/{id}/stream", get(chat::resume))
        .route("/v1/agents/{name}/ag-ui", post(ag_ui::run))
        .route("/.well-known/agent-card.json", get(a2a::list))
        .route("/.well-known/jwks.json", get(a2a::signing_keys))
        .route("/a2a/{agent}", post(a2a::rpc_call))
        .route("/a2a/{agent}/", post(a2a::rpc_call))
        .route("/a2a/{agent}/.well-known/agent-card.json", get(a2a::card))
        .route("/a2a/{agent}/v0.3/.well-known/agent-card.json", get(a2a::legacy_card))
        .route("/lf.a2a.v1.A2AService/{method}", post(a2a::grpc_call))
        .route("/a2a/{agent}/{*operation}", any(a2a::http_call))
        .route("/mcp", post(mcp::post).get(mcp::get).delete(mcp::delete))
        .with_state(state)
}
