//! The route table. The routes of protocols are their own.

mod agents;
mod call;
mod describe;
mod explain;
mod live;
mod probe;
pub(crate) mod prompts;
mod reducer_route;
pub(crate) mod response;
pub(crate) mod rows;
pub(crate) mod runs;
mod sessions;
mod sql;

use axum::Router;
use axum::middleware;
use axum::routing::{get, post, put};

use crate::app_state::AppState;
use crate::auth::{access, protected_resource};
use crate::{access_log, cors, metrics, page, problem, request_head, sse, websocket};

/// Returns all routes, with these routes of the protocols.
pub(crate) fn router(app: AppState, routes_of_protocols: Router) -> Router {
    let router = Router::new()
        .route("/v1/call/{reducer}", post(call::call))
        .route("/v1/batch", post(call::batch))
        .route("/v1/sql", post(sql::sql))
        .route("/v1/explain", post(explain::explain))
        .route("/v1/subscribe", get(sse::subscribe))
        .route("/v1/ws", get(websocket::upgrade))
        .route("/v1/schema", get(describe::schema))
        .route("/v1/live", get(live::live))
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
        .route(protected_resource::PATH, get(protected_resource::metadata))
        .route(protected_resource::PATH_OF_MCP, get(protected_resource::metadata))
        .route("/openapi.json", get(describe::openapi))
        .route("/health", get(probe::health))
        .route("/ready", get(probe::ready))
        .route("/metrics", get(metrics::metrics))
        .route("/", get(page::page))
        .with_state(app.clone())
        .merge(routes_of_protocols)
        .fallback(problem::no_route)
        .method_not_allowed_fallback(problem::wrong_method)
        .layer(middleware::from_fn_with_state(app.clone(), access::authenticate_request))
        .layer(middleware::from_fn(request_head::check));
    let router = match &app.protocols {
        Some(protocols) => protocols.wrap(router),
        None => router,
    };
    router
        .layer(middleware::from_fn_with_state(app.authenticator, cors::share))
        .layer(middleware::from_fn(access_log::log_request))
}
