//! The network between clients and server: a proxy that delays, stalls and cuts connections, and
//! goes down for a while.
//!
//! A stream cannot lose bytes in its middle. A lost packet is simulated by its effect: no more data
//! arrives, and after a while the connection is closed.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use abide_sim::random::Random;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use crate::CheckResult;
use crate::pace::pause;

/// One of this many chunks is delayed.
const LATE: usize = 12;
/// After one of this many chunks the connection is cut.
const CUT: usize = 500;
/// After one of this many chunks the connection stalls for a while and is then cut.
const STALL: usize = 700;
/// The chunk size: small, so that messages are split.
const PIECE_BYTES: usize = 4 << 10;

/// See the [module](self). Clones share one proxy.
#[derive(Clone, Debug)]
pub(crate) struct Proxy {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    address: SocketAddr,
    server: SocketAddr,
    random: Mutex<Random>,
    is_down: AtomicBool,
    is_calm: AtomicBool,
    cut: AtomicU64,
    stalled: AtomicU64,
}

/// The fate of a chunk.
enum ProxyAction {
    Passed,
    Late(Duration),
    Stalled(Duration),
    Cut,
}

impl Proxy {
    /// Starts a proxy in front of a server, which keeps its port.
    pub(crate) async fn start(server: SocketAddr, seed: u64) -> CheckResult<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(|why| why.to_string())?;
        let address = listener.local_addr().map_err(|why| why.to_string())?;
        let inner = Inner {
            address,
            server,
            random: Mutex::new(Random::new(seed)),
            is_down: AtomicBool::new(false),
            is_calm: AtomicBool::new(false),
            cut: AtomicU64::new(0),
            stalled: AtomicU64::new(0),
        };
        let proxy = Proxy { inner: Arc::new(inner) };
        let accepting = proxy.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                // While it is down, new connections are closed at once.
                if !accepting.inner.is_down.load(Ordering::Relaxed) {
                    tokio::spawn(accepting.clone().pass(client));
                }
            }
        });
        Ok(proxy)
    }

    /// The URL for clients.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.inner.address)
    }

    /// Goes down or comes back.
    pub(crate) fn set_down(&self, is_down: bool) {
        self.inner.is_down.store(is_down, Ordering::Relaxed);
    }

    /// Forwards everything without faults from now on.
    pub(crate) fn stop_faults(&self) {
        self.set_down(false);
        self.inner.is_calm.store(true, Ordering::Relaxed);
    }

    /// The number of connections that were cut and stalled.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.inner.cut.load(Ordering::Relaxed), self.inner.stalled.load(Ordering::Relaxed))
    }

    async fn pass(self, client: TcpStream) {
        let Ok(server) = TcpStream::connect(self.inner.server).await else { return };
        let (_, _) = (client.set_nodelay(true), server.set_nodelay(true));
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        // Both directions end with the first.
        tokio::select! {
            () = self.pump(from_client, to_server) => {}
            () = self.pump(from_server, to_client) => {}
        }
    }

    async fn pump(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let Ok(length @ 1..) = from.read(&mut piece).await else { return };
            match self.fate() {
                ProxyAction::Passed => {}
                ProxyAction::Late(time) => pause(time).await,
                ProxyAction::Stalled(time) => {
                    self.inner.stalled.fetch_add(1, Ordering::Relaxed);
                    return pause(time).await;
                }
                ProxyAction::Cut => {
                    self.inner.cut.fetch_add(1, Ordering::Relaxed);
                    return;
                }
            }
            if to.write_all(&piece[..length]).await.is_err() {
                return;
            }
        }
    }

    fn fate(&self) -> ProxyAction {
        if self.inner.is_calm.load(Ordering::Relaxed) {
            return ProxyAction::Passed;
        }
        if self.inner.is_down.load(Ordering::Relaxed) {
            return ProxyAction::Cut;
        }
        let mut random = self.inner.random.lock().unwrap_or_else(PoisonError::into_inner);
        let ms = |max: usize, random: &mut Random| Duration::from_millis(random.below(max) as u64);
        if random.one_in(CUT) {
            ProxyAction::Cut
        } else if random.one_in(STALL) {
            ProxyAction::Stalled(ms(3_000, &mut random))
        } else if random.one_in(LATE) {
            ProxyAction::Late(ms(60, &mut random))
        } else {
            ProxyAction::Passed
        }
    }
}
