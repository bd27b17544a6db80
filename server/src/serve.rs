//! The accept loop: a bounded number of connections with timeouts, and a graceful shutdown.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use abide_engine::Engine;
use abide_schema::{Code, Refusal};
use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::header::UPGRADE;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::access::Access;
use crate::agents::Agents;
use crate::arrivals::Arrivals;
use crate::life::{Life, Phase, Place};
use crate::newcomers::{Newcomer, Newcomers};
use crate::pass::Gate;
use crate::patience::Patient;
use crate::problem::Problem;
use crate::routes::{self, App};
use crate::turns::Turns;
use crate::{descriptors, limits, reclaim};

/// Serves an engine until `shutdown` completes, then finishes requests in progress and returns, after
/// seven seconds at the latest. The engine keeps running: the caller closes it.
///
/// # Errors
/// The listener is not on loopback while `access` has no credentials: the error is of kind
/// `PermissionDenied` and contains the [`Refusal`] with its hint (`error.get_ref()`, downcast).
pub async fn serve(
    engine: Engine,
    listener: TcpListener,
    access: Access,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    serve_with(engine, listener, access, None, shutdown).await
}

/// The same with an agent host, so that `/agents` accepts definitions.
///
/// # Errors
/// As [`serve`].
pub async fn serve_with(
    engine: Engine,
    listener: TcpListener,
    access: Access,
    agents: Option<Arc<dyn Agents>>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let address = listener.local_addr()?;
    let refused = |refusal| io::Error::new(io::ErrorKind::PermissionDenied, refusal);
    let asks = check_listens(&engine, &access, address).await.map_err(refused)?;
    let gate = Gate::new(access, engine.clone());
    tracing::info!(%address, access = ?gate.access, asks, seq = %engine.durable_seq(), "serving");

    let life = Life::new(descriptors::connections());
    let turns = Turns::new();
    let buffers = engine.buffers().clone();
    let router = routes::router(App { engine, gate, life: life.clone(), turns, agents });
    tokio::select! {
        () = accept(&listener, &router, &life, shutdown) => {}
        never = reclaim::run(&buffers) => match never {},
    }
    drop(listener);

    life.go(Phase::Draining);
    if timeout(limits::GRACE, life.empty()).await.is_err() {
        let left = life.connections();
        tracing::warn!(left, "connections were closed: they did not finish in time");
        life.go(Phase::Over);
        life.empty().await;
    }
    tracing::info!(%address, "served");
    Ok(())
}

/// Whether a server of this engine may listen at an address, and if so, whether it requires credentials.
///
/// # Errors
/// `denied` for a non-loopback address while no credentials exist.
pub async fn check_listens(
    engine: &Engine,
    access: &Access,
    address: SocketAddr,
) -> Result<bool, Refusal> {
    let asks = Gate::new(access.clone(), engine.clone()).asks().await?;
    Access::check(address, asks)?;
    Ok(asks)
}

/// Accepts connections until the shutdown.
async fn accept(
    listener: &TcpListener,
    router: &Router,
    life: &Life,
    shutdown: impl Future<Output = ()>,
) {
    let house = House {
        router: router.clone(),
        full: Router::new().fallback(full),
        turned_away: Arc::new(Semaphore::new(limits::TURNED_AWAY)),
        life: life.clone(),
    };
    let newcomers = Newcomers::new(life.room());
    let mut shutdown = pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => return,
            accepted = listener.accept() => accepted,
        };
        let (socket, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(why) => {
                accept_failed(&why).await;
                continue;
            }
        };
        // Frames are whole messages: waiting to fill a packet only delays them.
        let _ = socket.set_nodelay(true);
        if let Some(newcomer) = newcomers.enter_now(peer.ip()) {
            house.let_in(socket, newcomer);
        } else if let Some(queued) = newcomers.queue(peer.ip()) {
            // A crowded address delays no other: its connections wait in separate tasks.
            let house = house.clone();
            tokio::spawn(async move {
                let newcomer = tokio::select! {
                    newcomer = queued.enter() => newcomer,
                    () = house.life.until(Phase::Draining) => return,
                };
                house.let_in(socket, newcomer);
            });
        }
    }
}

/// What a connection needs to be served.
#[derive(Clone)]
struct House {
    router: Router,
    /// Responds to connections over the limit.
    full: Router,
    turned_away: Arc<Semaphore>,
    life: Life,
}

impl House {
    /// Serves a connection if there is room, otherwise responds `overloaded`.
    fn let_in(&self, socket: TcpStream, newcomer: Newcomer) {
        let (life, newcomer) = (self.life.clone(), Arc::new(newcomer));
        if let Some(place) = life.enter() {
            let (router, seat) = (self.router.clone(), Some(Seat { place, newcomer }));
            tokio::spawn(async move { connection(socket, router, seat, &life).await });
        } else if let Ok(place) = Arc::clone(&self.turned_away).try_acquire_owned() {
            let full = self.full.clone();
            tokio::spawn(async move {
                // A refused connection gets little time.
                let _ = timeout(limits::CLOSING, connection(socket, full, None, &life)).await;
                drop(place);
            });
        }
    }
}

async fn accept_failed(why: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if matches!(why.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
        return; // Caused by the peer.
    }
    tracing::error!(%why, "cannot accept connections; the process may be out of file descriptors");
    // An immediate retry would spin until some descriptor is closed.
    tokio::time::sleep(limits::CLOSING).await;
}

/// The resources of an open connection.
struct Seat {
    place: Place,
    newcomer: Arc<Newcomer>,
}

/// Serves one connection to its end, or to the shutdown. Each request holds the connection's permit,
/// so that an upgrade, which outlives the connection, keeps it.
async fn connection(socket: TcpStream, router: Router, seat: Option<Seat>, life: &Life) {
    let arrivals = Arc::<Arrivals>::default();
    let io = TokioIo::new(Patient::new(socket, Arc::clone(&arrivals)));
    let newcomer = seat.as_ref().map(|seat| Arc::clone(&seat.newcomer));
    let router = TowerToHyperService::new(router);
    let service = service_fn(|mut request: Request<Incoming>| {
        if let Some(Seat { place, newcomer }) = &seat {
            request.extensions_mut().insert(Arc::clone(place));
            request.extensions_mut().insert(Arc::clone(newcomer));
        }
        if request.headers().contains_key(UPGRADE) {
            request.extensions_mut().insert(Arc::clone(&arrivals));
        }
        router.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::HEAD)
        .serve_connection(io, service)
        .with_upgrades();
    let mut connection = pin!(connection);
    let overdue = async {
        match &newcomer {
            Some(newcomer) => newcomer.overdue().await,
            None => std::future::pending().await,
        }
    };
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = overdue => return,
        () = life.until(Phase::Draining) => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = &mut connection => ended,
                () = life.until(Phase::Over) => return,
            }
        }
    };
    if let Err(why) = ended {
        // Connections often end early.
        tracing::debug!(%why, "a connection ended early");
    }
}

/// The response when all connections are in use.
async fn full() -> Problem {
    let detail = "the server has reached its connection limit";
    Problem(Refusal::new(Code::Overloaded, detail).hint("try again in a moment"))
}

#[cfg(test)]
mod tests;
