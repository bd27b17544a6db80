//! The route table.

mod agents;
mod call;
mod describe;
mod explain;
mod probe;
mod runs;
mod sql;

use abide_engine::Engine;
use abide_schema::reducer::Caller;
use abide_schema::{Code, Refusal};
use axum::Router;
use axum::extract::Extension;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};

use crate::agents::AgentRegistryHandle;
use crate::auth::access;
use crate::auth::authenticator::{AuthSession, Authenticator};
use crate::connections::lifecycle::Lifecycle;
use crate::connections::read_limiter::ReadLimiter;
use crate::{metrics, page, problem, sse, websocket};

/// State shared by all routes.
#[derive(Clone, Debug)]
pub(crate) struct AppState {
    pub(crate) engine: Engine,
    pub(crate) authenticator: Authenticator,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) read_limiter: ReadLimiter,
    pub(crate) agents: AgentRegistryHandle,
}

/// The credential with which a request was admitted.
pub(crate) type SessionExtension = Extension<AuthSession>;

/// The caller, as determined by [`access::guard`].
pub(crate) type CallerExtension = Extension<Caller>;

pub(crate) fn router(app: AppState) -> Router {
    Router::new()
        .route("/v1/call/{reducer}", post(call::call))
        .route("/v1/batch", post(call::batch))
        .route("/v1/sql", post(sql::sql))
        .route("/v1/explain", post(explain::explain))
        .route("/v1/subscribe", get(sse::subscribe))
        .route("/v1/ws", get(websocket::upgrade))
        .route("/v1/schema", get(describe::schema))
        .route("/v1/log/{*what}", get(describe::log))
        .route("/agents", get(agents::list).post(agents::create))
        .route("/agents/{name}", get(agents::get).patch(agents::change))
        .route("/capabilities", get(agents::capabilities))
        .route("/v1/agents/{name}/runs", post(runs::start))
        .route("/v1/runs/{id}", get(runs::get))
        .route("/v1/runs/{id}/abort", post(runs::abort))
        .route("/v1/runs/{id}/events", get(runs::events::events))
        .route("/openapi.json", get(describe::openapi))
        .route("/health", get(probe::health))
        .route("/ready", get(probe::ready))
        .route("/metrics", get(metrics::metrics))
        .route("/", get(page::page))
        .fallback(problem::no_route)
        .method_not_allowed_fallback(problem::wrong_method)
        .layer(middleware::from_fn_with_state(app.clone(), access::guard))
        .with_state(app)
}

/// A JSON text as a response.
pub(crate) fn json(text: String) -> Response {
    ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], text).into_response()
}

/// Maps the refusal of a route's own query. Such a query names only existing tables and columns, so an
/// unknown one is hidden from the caller.
fn hidden(refusal: Refusal) -> Refusal {
    match refusal.code {
        Code::BadSql => {
            Refusal::new(Code::Denied, "a policy hides rows or columns that this route needs")
        }
        _ => refusal,
    }
}

/// The request id from the header.
fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    let Some(key) = headers.get("idempotency-key") else { return Ok(None) };
    key.to_str().map(Some).map_err(|_| {
        Refusal::new(Code::BadRequest, "the header Idempotency-Key is not visible ASCII")
            .hint("use a UUID")
    })
}
