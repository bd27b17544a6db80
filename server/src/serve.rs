//! The accept loop: a bounded number of connections with timeouts, and a graceful shutdown.

use std::future::{Future, ready};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use abide_engine::Engine;
use abide_schema::{Code, Refusal};
use axum::extract::FromRef as _;
use axum::{Router, middleware};
use futures_util::FutureExt as _;
use hyper::Request;
use hyper::body::Incoming;
use hyper::header::UPGRADE;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::either::Either;

use crate::agents::AgentRegistry;
use crate::app_state::AppState;
use crate::arrivals::Arrivals;
use crate::auth::access_config::AccessConfig;
use crate::auth::authenticator::Authenticator;
use crate::auth::refused::RefusedCredentials;
use crate::connections::lifecycle::{ConnectionPermit, Lifecycle, Phase};
use crate::connections::parse_turns::ParseTurns;
use crate::connections::unauthenticated::{UnauthenticatedConnection, UnauthenticatedConnections};
use crate::connections::write_timeout::WriteTimeoutStream;
use crate::drain::Drain;
use crate::listener::{Listener, ServerListener, SharedListener, Socket};
use crate::metrics::MetricsCache;
use crate::port::{Port, Protocols, StartedProtocols};
use crate::problem::Problem;
use crate::public_url::PublicUrl;
use crate::routes;
use crate::tls::{ClientCertificate, FirstContact, Tls};
use crate::{connections::descriptors, cors, limits, unknown_calls};

/// Serves an engine until `shutdown` completes, then finishes requests in progress and returns, after
/// seven seconds at the latest. The engine keeps running: the caller closes it.
///
/// # Errors
/// The listener is not on loopback while `access` has no credentials: the error is of kind
/// `PermissionDenied` and contains the [`Refusal`] with its hint (`error.get_ref()`, downcast).
pub async fn serve(
    engine: Engine,
    listener: TcpListener,
    access: AccessConfig,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    serve_with(engine, listener, access, Services::default(), shutdown).await
}

/// The services that a program adds to the server.
#[derive(Clone, Debug, Default)]
pub struct Services {
    /// The agent host, so that `/agents` accepts definitions.
    pub agents: Option<Arc<dyn AgentRegistry>>,
    /// The protocols for agents that are served besides the routes of the server.
    pub protocols: Option<Arc<dyn Protocols>>,
    /// The address of the server as its clients know it, for example in metadata of OAuth. Without one it is what a client
    /// writes in the header `Host`.
    pub public_url: Option<PublicUrl>,
    /// Lets the program refuse new work before it ends the server.
    pub drain: Drain,
    /// Log records that the program could not write, for `/metrics`.
    pub dropped_log_records: Arc<AtomicU64>,
}

/// Serves the engine with these services.
///
/// # Errors
/// As [`serve`].
pub async fn serve_with(
    engine: Engine,
    listener: impl Into<ServerListener>,
    access: AccessConfig,
    services: Services,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let ServerListener { tcp, tls, local } = listener.into();
    let address = tcp.local_addr()?;
    let requires_token = check_listens(&engine, &access, address)
        .await
        .map_err(|refusal| io::Error::new(io::ErrorKind::PermissionDenied, refusal))?;
    let seq = engine.durable_seq().0;
    let credentials = access.credentials();
    let is_tls = tls.is_some();
    tracing::info!(
        name: "serving",
        %address,
        access = %credentials,
        tls = is_tls,
        requires_token,
        seq,
        "serving"
    );
    let lifecycle = Lifecycle::new(descriptors::raise_connection_limit());
    let local = local.map(|local| {
        let (listener, secret) = local.parts();
        Entrance { listener, tls: None, access: secret.with_credentials_of(&access) }
    });
    let port = Entrance { listener: Listener::Tcp(tcp), tls, access };
    run(engine, port, local, services, &lifecycle, shutdown).await;
    tracing::info!(name: "served", %address, "served");
    Ok(())
}

/// Serves an engine to the programs of this user on this machine, which share it. Ends as [`serve`], and also when no
/// connection was open for two seconds, or for the first ten seconds.
pub async fn serve_shared(
    engine: Engine,
    listener: SharedListener,
    services: Services,
    shutdown: impl Future<Output = ()> + Send + 'static,
) {
    let seq = engine.durable_seq().0;
    let address = listener.address();
    tracing::info!(name: "serving", %address, seq, "serving");
    let lifecycle = Lifecycle::new(descriptors::raise_connection_limit());
    let ends = lifecycle.clone();
    let shutdown = async move {
        tokio::select! {
            () = shutdown => {}
            () = ends.wait_until_unused(limits::FIRST_CONNECTION_TIMEOUT, limits::IDLE_ENGINE_TIMEOUT) => {}
        }
    };
    let (listener, access) = listener.parts();
    let socket = Entrance { listener, tls: None, access };
    run(engine, socket, None, services, &lifecycle, shutdown).await;
    tracing::info!(name: "served", "served");
}

/// A listener, and who has access through it.
struct Entrance {
    listener: Listener,
    tls: Option<Tls>,
    access: AccessConfig,
}

/// A listener, and what it serves.
struct Endpoint {
    listener: Listener,
    tls: Option<Tls>,
    router: Router,
}

/// Serves until the shutdown, and finishes the requests in progress.
async fn run(
    engine: Engine,
    port: Entrance,
    local: Option<Entrance>,
    services: Services,
    lifecycle: &Lifecycle,
    shutdown: impl Future<Output = ()>,
) {
    let engine = engine.for_callers();
    let authenticator = Authenticator::new(port.access, engine.clone());
    let parse_turns = ParseTurns::new(engine.tenants());
    let full = Router::new()
        .fallback(full)
        .layer(middleware::from_fn_with_state(authenticator.clone(), cors::share));
    let app = AppState {
        engine,
        authenticator,
        lifecycle: lifecycle.clone(),
        drain: services.drain,
        parse_turns,
        agents: services.agents,
        protocols: services.protocols,
        public_url: services.public_url,
        has_tls: port.tls.is_some(),
        tls: port.tls.clone(),
        metrics_cache: MetricsCache::default(),
        refused_credentials: RefusedCredentials::default(),
        dropped_log_records: services.dropped_log_records,
    };
    tokio::spawn(unknown_calls::log(app.engine.clone(), lifecycle.clone()));
    let StartedProtocols { routes, background } = match &app.protocols {
        Some(protocols) => protocols.start(Port::from_ref(&app)),
        None => StartedProtocols { routes: Router::new(), background: Box::pin(ready(())) },
    };
    let background = tokio::spawn(background);
    let local = local.map(|Entrance { listener, tls, access }| {
        let authenticator = Authenticator::new(access, app.engine.clone());
        let app = AppState { authenticator, has_tls: tls.is_some(), ..app.clone() };
        Endpoint { listener, tls, router: routes::router(app, routes.clone()) }
    });
    let router = routes::router(app, routes);
    let port = Endpoint { listener: port.listener, tls: port.tls, router };
    let shutdown = shutdown.shared();
    let accept_local = async {
        if let Some(local) = &local {
            accept(local, &full, lifecycle, shutdown.clone()).await;
        }
    };
    let reload = async {
        match &port.tls {
            Some(tls) => tls.reload_on_change().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        ((), ()) = async { tokio::join!(accept(&port, &full, lifecycle, shutdown.clone()), accept_local) } => {}
        () = reload => {}
    }
    // Nobody can connect from here on, and the addresses are free.
    drop((port, local));

    lifecycle.enter_phase(Phase::Draining);
    if let Err(why) = background.await {
        tracing::error!(
            name: "protocols_failed",
            %why,
            "the work of the protocols beside the requests has failed"
        );
    }
    if timeout(limits::SHUTDOWN_GRACE, lifecycle.wait_until_empty()).await.is_err() {
        let left = lifecycle.connections();
        tracing::warn!(
            name: "connections_closed",
            left,
            "connections were closed: they did not finish in time"
        );
        lifecycle.enter_phase(Phase::Over);
        lifecycle.wait_until_empty().await;
    }
}

/// Whether a server of this engine may listen at an address, and if so, whether it requires credentials.
///
/// # Errors
/// `denied` for a non-loopback address while no credentials exist.
pub async fn check_listens(
    engine: &Engine,
    access: &AccessConfig,
    address: SocketAddr,
) -> Result<bool, Refusal> {
    let required =
        Authenticator::new(access.clone(), engine.clone()).requires_credentials().await?;
    AccessConfig::check_listens(address, required)?;
    Ok(required)
}

/// Accepts connections until the shutdown.
async fn accept(
    endpoint: &Endpoint,
    full: &Router,
    lifecycle: &Lifecycle,
    shutdown: impl Future<Output = ()>,
) {
    let context = ConnectionContext {
        tls: endpoint.tls.clone(),
        router: endpoint.router.clone(),
        full: full.clone(),
        rejected: Arc::new(Semaphore::new(limits::REJECTED_CONNECTIONS)),
        lifecycle: lifecycle.clone(),
    };
    let pending_connections = UnauthenticatedConnections::new(lifecycle.max_connections());
    let mut shutdown = pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => return,
            accepted = endpoint.listener.accept() => accepted,
        };
        let (socket, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(why) => {
                if log_failed_accept(&why) {
                    // An immediate retry would spin until some descriptor is closed.
                    tokio::select! {
                        () = &mut shutdown => return,
                        () = tokio::time::sleep(limits::ACCEPT_RETRY) => {}
                    }
                }
                continue;
            }
        };
        if let Some(pending) = pending_connections.enter_now(peer) {
            context.admit(socket, pending);
        } else if let Some(queued) = pending_connections.queue(peer) {
            // A crowded address delays no other: its connections wait in separate tasks.
            let context = context.clone();
            tokio::spawn(async move {
                let pending = tokio::select! {
                    pending = queued.enter() => pending,
                    () = context.lifecycle.wait_for(Phase::Draining) => return,
                };
                context.admit(socket, pending);
            });
        }
    }
}

/// State shared by all connections.
#[derive(Clone)]
struct ConnectionContext {
    tls: Option<Tls>,
    router: Router,
    /// Responds to connections over the limit.
    full: Router,
    rejected: Arc<Semaphore>,
    lifecycle: Lifecycle,
}

impl ConnectionContext {
    /// Serves a connection if there is room, otherwise responds `overloaded`.
    fn admit(&self, socket: Socket, pending: UnauthenticatedConnection) {
        let context = self.clone();
        let pending = Arc::new(pending);
        if let Some(place) = self.lifecycle.enter() {
            let slot = Some(ConnectionSlot { place, pending });
            tokio::spawn(async move { context.serve(socket, &context.router, slot).await });
        } else if let Ok(place) = Arc::clone(&self.rejected).try_acquire_owned() {
            tokio::spawn(async move {
                // A refused connection gets little time.
                let served = context.serve(socket, &context.full, None);
                let _ = timeout(limits::CLOSE_TIMEOUT, served).await;
                drop(place);
            });
        }
    }

    /// Serves a connection, after its handshake if there is TLS. A client without TLS gets an explanation.
    ///
    /// A handshake has the time of an unauthenticated connection, and counts as one.
    async fn serve(&self, socket: Socket, router: &Router, slot: Option<ConnectionSlot>) {
        let (tls, socket) = match (&self.tls, socket) {
            (Some(tls), Either::Left(socket)) => (tls, socket),
            (_, socket) => {
                return connection(socket, router.clone(), None, slot, &self.lifecycle).await;
            }
        };
        let first_contact = tokio::select! {
            first_contact = tls.accept(socket) => first_contact,
            () = wait_until_overdue(slot.as_ref()) => return,
            () = self.lifecycle.wait_for(Phase::Draining) => return,
        };
        match first_contact {
            Ok(FirstContact::Tls(stream, certificate)) => {
                connection(stream, router.clone(), certificate, slot, &self.lifecycle).await;
            }
            Ok(FirstContact::PlainHttp(socket)) => {
                let router = Router::new().fallback(needs_tls);
                connection(socket, router, None, slot, &self.lifecycle).await;
            }
            // Port scanners and clients that do not trust the certificate: not a problem of the server.
            Err(why) => tracing::debug!(%why, "a TLS handshake failed"),
        }
    }
}

/// Logs why a connection was not accepted, unless its peer caused it. Returns `true` if the next one would fail too.
fn log_failed_accept(why: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if matches!(why.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
        return false;
    }
    tracing::error!(
        name: "accept_failed",
        %why,
        "cannot accept connections; the process may be out of file descriptors"
    );
    true
}

/// The resources of an open connection.
struct ConnectionSlot {
    place: ConnectionPermit,
    pending: Arc<UnauthenticatedConnection>,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.place.mark_ended();
    }
}

/// Returns when the time to authenticate is over.
async fn wait_until_overdue(slot: Option<&ConnectionSlot>) {
    match slot {
        Some(slot) => slot.pending.wait_until_overdue().await,
        None => std::future::pending().await,
    }
}

/// Returns when a server that stops need not wait for a connection.
async fn wait_until_overdue_at_stop(slot: Option<&ConnectionSlot>) {
    match slot {
        Some(slot) => slot.pending.wait_until_overdue_at_stop().await,
        None => std::future::pending().await,
    }
}

/// HTTP/1, and HTTP/2 for clients that begin with it, as those of gRPC do.
fn protocols() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::HEAD_TIMEOUT)
        .max_buf_size(limits::HTTP1_BUFFER_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(limits::PING_INTERVAL)
        .keep_alive_timeout(limits::PING_INTERVAL)
        .max_concurrent_streams(limits::STREAMS)
        .initial_stream_window_size(limits::STREAM_BYTES)
        .initial_connection_window_size(limits::CONNECTION_WINDOW_BYTES)
        .max_header_list_size(limits::HEADERS_BYTES)
        .max_send_buf_size(limits::STREAM_BYTES as usize);
    builder
}

/// Serves one connection to its end, or to the shutdown. Each request holds the connection's permit,
/// so that an upgrade, which outlives the connection, keeps it.
async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    certificate: Option<ClientCertificate>,
    slot: Option<ConnectionSlot>,
    lifecycle: &Lifecycle,
) {
    let arrivals = Arc::<Arrivals>::default();
    let io = TokioIo::new(WriteTimeoutStream::new(stream, Arc::clone(&arrivals)));
    let router = TowerToHyperService::new(router);
    let service = service_fn(|mut request: Request<Incoming>| {
        if let Some(ConnectionSlot { place, pending }) = &slot {
            request.extensions_mut().insert(place.clone());
            request.extensions_mut().insert(Arc::clone(pending));
        }
        if let Some(certificate) = &certificate {
            request.extensions_mut().insert(certificate.clone());
        }
        if request.headers().contains_key(UPGRADE) {
            request.extensions_mut().insert(Arc::clone(&arrivals));
        }
        router.call(request)
    });
    let builder = protocols();
    let connection = builder.serve_connection_with_upgrades(io, service);
    let mut connection = pin!(connection);
    let must_finish = async {
        let replaced = async {
            match &slot {
                Some(slot) => slot.place.wait_until_replaced().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = replaced => {}
            () = lifecycle.wait_for(Phase::Draining) => {}
        }
    };
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = wait_until_overdue(slot.as_ref()) => return,
        () = must_finish => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = &mut connection => ended,
                () = lifecycle.wait_for(Phase::Over) => return,
                // It need not answer the frames that end HTTP/2.
                () = wait_until_overdue_at_stop(slot.as_ref()) => return,
            }
        }
    };
    if let Err(why) = ended {
        // Connections often end early.
        tracing::debug!(%why, "a connection ended early");
    }
}

/// Returns the response to a request in plain text where TLS is required.
async fn needs_tls() -> Problem {
    let detail = "this port requires TLS, and the request came in plain text";
    Problem(Refusal::new(Code::BadRequest, detail).hint(
        "write https:// or wss:// in the URL; if the request had a token, create a new one: it was not encrypted",
    ))
}

/// Returns the response when all connections are in use.
async fn full() -> Problem {
    let detail = "the server has reached its connection limit";
    Problem(Refusal::new(Code::Overloaded, detail).hint("try again in a moment"))
}

#[cfg(test)]
mod tests;
