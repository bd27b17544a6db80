//! The port of protocols: what a crate of protocols uses of the server, and what the server uses of it. The program
//! that composes both passes the protocols in [`Services`](crate::Services).
//!
//! *Invariant:* the server knows no protocol. It only decides for all of them what concerns security: which paths are
//! open (`OPEN` in `auth/access.rs`), which headers a request has once (`single`), and which headers a page of a
//! browser may read (`cors`).

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use abide_engine::Engine;
use abide_schema::Refusal;
use abide_schema::reducer::Caller;
use axum::Router;
use axum::extract::FromRef;
use axum::http::{HeaderMap, Uri};
use serde_json::{Map, Value as JsonValue};

use crate::app_state::AppState;
use crate::connections::lifecycle::Phase;

pub use crate::app_state::{CallerExtension, SessionExtension};
pub use crate::auth::access::is_loopback_host;
pub use crate::auth::authenticator::AuthSession;
pub use crate::body::{BodyError, RequestBody, RequestBytes};
pub use crate::connections::lifecycle::ConnectionPermit;
pub use crate::connections::parse_turns::{ParseTurn, ParseTurns, begin};
pub use crate::limits::PING_INTERVAL;
pub use crate::problem::{PROBLEM_JSON, Problem, note};
pub use crate::query_string::invalid_query_string;
pub use crate::routes::response::{json as json_response, off_the_runtime};
pub use crate::routes::runs::path;
pub use crate::single::idempotency_key;

/// Headers and parameters that a request has at most once.
pub mod single {
    pub use crate::single::{A2A_VERSION, IDEMPOTENCY_KEY, header, parameter};
}

/// Texts of responses, counted for their caller until they are sent.
pub mod unsent {
    pub use crate::unsent::{committed_response, reserve, response};
}

/// Rows of the built-in tables, as JSON objects.
pub mod rows {
    pub use crate::routes::rows::{JSON_COLUMNS, Object, deny_hidden, objects, objects_with};
}

/// Runs, as the REST routes read and change them.
pub mod runs {
    pub use crate::routes::runs::{find, reducer_call};
}

/// Prompts, as the REST routes read them.
pub mod prompts {
    pub use crate::routes::prompts::{LATEST, find, find_page, render_text};
}

/// Parts of descriptions for `GET /openapi.json`.
pub mod openapi {
    pub use crate::openapi::elements::{answers, idempotency_key};
}

/// Protocols that a program adds to the server.
pub trait Protocols: fmt::Debug + Send + Sync {
    /// Starts the protocols for a server.
    fn start(&self, port: Port) -> StartedProtocols;

    /// Adds middleware around all routes of the server. Requests without valid credentials reach it, and no route.
    fn wrap(&self, router: Router) -> Router {
        router
    }

    /// Returns the descriptions of the routes in OpenAPI, by path.
    fn openapi_paths(&self) -> Map<String, JsonValue>;
}

/// Protocols that serve an engine.
pub struct StartedProtocols {
    /// The routes. The server authenticates their requests.
    pub routes: Router,
    /// Work that runs beside the requests and ends when the server stops ([`Port::until_draining`]).
    pub background: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl fmt::Debug for StartedProtocols {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StartedProtocols").field("routes", &self.routes).finish_non_exhaustive()
    }
}

/// A running server, as protocols use it. Clones share it.
#[derive(Clone, Debug)]
pub struct Port(AppState);

impl Port {
    /// Returns the engine.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// Returns `true` if requests need credentials.
    ///
    /// # Errors
    /// The credentials cannot be looked up.
    pub async fn requires_credentials(&self) -> Result<bool, Refusal> {
        self.0.authenticator.requires_credentials().await
    }

    /// Checks again whether a caller is still admitted. Cheap if nothing has changed.
    ///
    /// # Errors
    /// `unauthenticated` or `denied` if it is not.
    pub async fn check(&self, session: &mut AuthSession) -> Result<(), Refusal> {
        self.0.authenticator.check(session).await
    }

    /// Waits until the credential is no longer valid, and returns the refusal.
    pub async fn until_invalid(&self, session: AuthSession) -> Refusal {
        self.0.authenticator.until_invalid(session).await
    }

    /// Waits until the server begins to stop. Requests in progress have some seconds to finish.
    pub async fn until_draining(&self) {
        self.0.lifecycle.wait_for(Phase::Draining).await;
    }

    /// Waits for the turn in which a message of this size is parsed; `None` for a small message, which needs none.
    pub async fn parse_turn(&self, by: &Caller, bytes: usize) -> Option<ParseTurn> {
        self.0.parse_turns.acquire(by, bytes).await
    }

    /// Returns the turns in which large messages are parsed, for a body that is parsed after it was extracted.
    pub(crate) fn parse_turns(&self) -> &ParseTurns {
        &self.0.parse_turns
    }

    /// Admits a call before its body is parsed: waits for its turn, which ends after the first poll of the call
    /// ([`begin`]).
    ///
    /// # Errors
    /// `overloaded` if too many bytes of the caller are queued already.
    pub async fn admit_call(
        &self,
        by: &Caller,
        bytes: usize,
    ) -> Result<Option<ParseTurn>, Refusal> {
        self.0.admit_call(by, bytes).await
    }

    /// Returns the public URL of the server: the configured one, or else the one that the client has used.
    #[must_use]
    pub fn base_url(&self, uri: &Uri, headers: &HeaderMap) -> String {
        self.0.base_url(uri, headers)
    }
}

impl FromRef<AppState> for Port {
    fn from_ref(app: &AppState) -> Port {
        Port(app.clone())
    }
}
