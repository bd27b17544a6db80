//! The route table.

mod agents;
mod call;
mod describe;
mod explain;
mod idempotency_key;
mod incoming;
mod probe;
mod prompts;
mod protocols;
mod reducer_route;
mod response;
mod rows;
mod runs;
mod sessions;
mod sql;

use axum::Router;
use axum::middleware;
use axum::routing::{any, get, post, put};

use crate::app_state::AppState;
use crate::auth::{access, protected_resource};
pub(crate) use crate::routes::protocols::a2a::deliver;
pub(crate) use crate::routes::protocols::mcp::McpState;
use crate::routes::protocols::{a2a, ag_ui, chat, mcp, responses};
use crate::{cors, metrics, page, problem, sse, websocket};

pub(crate) fn router(app: AppState) -> Router {
    Router::new()
        .route("/v1/call/{reducer}", post(call::call))
        .route("/v1/batch", post(call::batch))
        .route("/v1/sql", post(sql::sql))
        .route("/v1/explain", post(explain::explain))
        .route("/v1/subscribe", get(sse::subscribe))
        .route("/v1/ws", get(websocket::upgrade))
        .route("/v1/schema", get(describe::schema))
        .route("/agents", get(agents::list).post(agents::create))
        .route("/agents/{name}", get(agents::get).patch(agents::change).delete(agents::retire))
        .route("/capabilities", get(agents::capabilities))
        .route("/v1/agents/{name}/runs", post(runs::start))
        .route("/v1/agents/{name}/invoke", post(runs::invoke::invoke))
        .route("/v1/runs/{id}", get(runs::get))
        .route("/v1/runs/{id}/checkpoints", get(sessions::checkpoints))
        .route("/v1/sessions", get(sessions::resource::list).post(sessions::resource::create))
        .route("/v1/sessions/{id}", get(sessions::resource::get).patch(sessions::resource::change))
        .route("/v1/sessions/{id}/messages", get(sessions::resource::messages))
        .route("/v1/sessions/{id}/state", get(sessions::get))
        .route("/v1/sessions/{id}/abort", post(sessions::abort))
        .route("/v1/runs/{id}/abort", post(runs::abort))
        .route("/v1/runs/{id}/pause", post(runs::pause::pause))
        .route("/v1/runs/{id}/resume", post(runs::pause::resume))
        .route("/v1/runs/{id}/export", post(runs::snapshots::export))
        .route("/v1/imports", post(runs::snapshots::import))
        .route("/v1/sessions/{id}/fork", post(sessions::fork))
        .route("/v1/runs/{id}/events", get(runs::events::events))
        .route("/v1/prompts", get(prompts::list))
        .route("/v1/prompts/{name}", get(prompts::get).put(prompts::put))
        .route("/v1/prompts/{name}/render", post(prompts::render))
        .route("/v1/prompts/{name}/labels/{label}", put(prompts::label).delete(prompts::unlabel))
        .route("/v1/responses", post(responses::create))
        .route("/v1/responses/{id}", get(responses::retrieve))
        .route("/v1/responses/{id}/cancel", post(responses::cancel))
        .route("/v1/agents/{name}/chat", post(chat::send))
        .route("/v1/agents/{name}/chat/{id}/stream", get(chat::resume))
        .route("/v1/agents/{name}/ag-ui", post(ag_ui::run))
        .route("/v1/models", get(responses::models))
        .route("/.well-known/agent-card.json", get(a2a::list))
        .route("/.well-known/jwks.json", get(a2a::signing_keys))
        .route("/a2a/{agent}", post(a2a::rpc_call))
        .route("/a2a/{agent}/", post(a2a::rpc_call))
        .route("/a2a/{agent}/.well-known/agent-card.json", get(a2a::card))
        .route("/a2a/{agent}/v0.3/.well-known/agent-card.json", get(a2a::legacy_card))
        .route("/lf.a2a.v1.A2AService/{method}", post(a2a::grpc_call))
        .route("/a2a/{agent}/{*operation}", any(a2a::http_call))
        .route("/mcp", post(mcp::post).get(mcp::get).delete(mcp::delete))
        .route(protected_resource::PATH, get(protected_resource::metadata))
        .route(protected_resource::PATH_OF_MCP, get(protected_resource::metadata))
        .route("/openapi.json", get(describe::openapi))
        .route("/health", get(probe::health))
        .route("/ready", get(probe::ready))
        .route("/metrics", get(metrics::metrics))
        .route("/", get(page::page))
        .fallback(problem::no_route)
        .method_not_allowed_fallback(problem::wrong_method)
        .layer(middleware::from_fn_with_state(app.clone(), access::authenticate_request))
        .layer(middleware::from_fn(responses::add_error))
        .layer(middleware::from_fn_with_state(app.authenticator.clone(), cors::share))
        .with_state(app)
}
