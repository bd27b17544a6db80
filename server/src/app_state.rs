//! State shared by all routes, and the result of a request's authentication.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use abide_engine::Engine;
use abide_schema::Refusal;
use abide_schema::reducer::Caller;
use axum::extract::Extension;
use axum::http::{HeaderMap, Uri};

use crate::agents::AgentRegistryHandle;
use crate::auth::authenticator::{AuthSession, Authenticator};
use crate::auth::refused::RefusedCredentials;
use crate::connections::lifecycle::Lifecycle;
use crate::connections::parse_turns::{ParseTurn, ParseTurns};
use crate::drain::Drain;
use crate::metrics::MetricsCache;
use crate::port::Protocols;
use crate::public_url::{self, PublicUrl};
use crate::tls::Tls;

/// State shared by all routes.
#[derive(Clone, Debug)]
pub(crate) struct AppState {
    pub(crate) engine: Engine,
    pub(crate) authenticator: Authenticator,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) drain: Drain,
    pub(crate) parse_turns: ParseTurns,
    pub(crate) agents: AgentRegistryHandle,
    pub(crate) public_url: Option<PublicUrl>,
    /// Whether clients connect with TLS.
    pub(crate) has_tls: bool,
    /// The certificate of the port, also for clients of the private socket.
    pub(crate) tls: Option<Tls>,
    pub(crate) protocols: Option<Arc<dyn Protocols>>,
    pub(crate) metrics_cache: MetricsCache,
    pub(crate) refused_credentials: RefusedCredentials,
    pub(crate) dropped_log_records: Arc<AtomicU64>,
}

impl AppState {
    /// Admits a call over HTTP before its body is parsed: waits for its turn, which ends after the first poll of the call
    /// ([`begin`](crate::connections::parse_turns::begin)).
    ///
    /// The other parts of an admission (`websocket/admission.rs`) belong to others here: the body counts its
    /// own bytes, the response counts the answer, and a connection has as many requests as HTTP allows. A WebSocket, whose
    /// refusals need the id of the message, parses first and lets the engine refuse.
    ///
    /// # Errors
    /// `overloaded` if too many bytes of the caller are queued already.
    pub(crate) async fn admit_call(
        &self,
        by: &Caller,
        bytes: usize,
    ) -> Result<Option<ParseTurn>, Refusal> {
        let turn = self.parse_turns.acquire(by, bytes).await;
        self.engine.check_room(by, bytes)?;
        Ok(turn)
    }

    /// Returns the address of this server as the client knows it.
    pub(crate) fn base_url(&self, uri: &Uri, headers: &HeaderMap) -> String {
        public_url::base_url(self.public_url.as_ref(), self.has_tls, uri, headers)
    }
}

/// The credential with which a request was admitted.
pub type SessionExtension = Extension<AuthSession>;

/// The caller of a request.
pub type CallerExtension = Extension<Caller>;
