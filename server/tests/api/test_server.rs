//! A server on port 0 with an engine on a temporary file.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use abide_engine::buffers::BufferLimits;
use abide_engine::{Clock, Config, Engine};
use abide_protocols::AgentProtocols;
use abide_schema::{Micros, Module};
use abide_server::{AccessConfig, AgentRegistry, Services};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::notes;

/// A manual clock, for deterministic responses.
#[derive(Debug)]
pub(crate) struct ManualClock(AtomicI64);

/// 2026-11-21 14:02:11 UTC, in seconds.
pub(crate) const NOW_S: i64 = 1_795_269_731;

impl ManualClock {
    fn new() -> ManualClock {
        ManualClock(AtomicI64::new(NOW_S * 1_000_000))
    }

    pub(crate) fn pass_s(&self, seconds: i64) {
        self.0.fetch_add(seconds * 1_000_000, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Micros {
        Micros(self.0.load(Ordering::SeqCst))
    }
}

pub(crate) struct TestServer {
    pub(crate) engine: Engine,
    pub(crate) address: SocketAddr,
    pub(crate) clock: Arc<ManualClock>,
    served: JoinHandle<std::io::Result<()>>,
    shutdown: Option<oneshot::Sender<()>>,
    _folder: TempDir,
}

/// The timeline of every server.
pub(crate) const TIMELINE: &str = "71e11e";

impl TestServer {
    /// Starts with access for everyone on this machine.
    pub(crate) async fn open() -> TestServer {
        TestServer::with(AccessConfig::loopback()).await
    }

    pub(crate) async fn with(access: AccessConfig) -> TestServer {
        TestServer::serving(access, vec![notes::module()]).await
    }

    /// Serves these modules.
    pub(crate) async fn serving(access: AccessConfig, modules: Vec<Module>) -> TestServer {
        TestServer::with_agents(access, modules, None).await
    }

    /// Serves these modules, with an agent host.
    pub(crate) async fn with_agents(
        access: AccessConfig,
        modules: Vec<Module>,
        agents: Option<Arc<dyn AgentRegistry>>,
    ) -> TestServer {
        let services = Services { agents, ..Services::default() };
        TestServer::all(access, Config::new(modules), services).await
    }

    /// Serves the built-in modules with these services.
    pub(crate) async fn with_services(access: AccessConfig, services: Services) -> TestServer {
        TestServer::all(access, Config::new(abide_reducers::modules()), services).await
    }

    /// Serves the built-in modules with these protocols.
    pub(crate) async fn with_protocols(
        access: AccessConfig,
        protocols: AgentProtocols,
    ) -> TestServer {
        let services = Services { protocols: Some(Arc::new(protocols)), ..Services::default() };
        TestServer::with_services(access, services).await
    }

    /// Serves with these buffer limits.
    pub(crate) async fn buffering(buffers: BufferLimits) -> TestServer {
        let config = Config { buffers, ..Config::new(abide_reducers::modules()) };
        TestServer::configured(config).await
    }

    /// Starts a server with this configuration, without credentials.
    pub(crate) async fn configured(config: Config) -> TestServer {
        TestServer::all(AccessConfig::loopback(), config, Services::default()).await
    }

    /// Starts a server. Without other protocols it has those of `abide serve`.
    async fn all(access: AccessConfig, config: Config, mut services: Services) -> TestServer {
        services.protocols.get_or_insert_with(|| Arc::new(AgentProtocols::default()));
        let folder = tempfile::tempdir().expect("a temporary folder");
        let clock = Arc::new(ManualClock::new());
        let mut config = Config { clock: Arc::clone(&clock) as Arc<dyn Clock>, ..config };
        config.tuning.timeline = Some(TIMELINE.to_owned());
        let engine = Engine::open(folder.path().join("notes.db"), config).expect("a new file");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it has an address");
        let (shutdown, wanted) = oneshot::channel::<()>();
        let serving = abide_server::serve_with(engine.clone(), listener, access, services, async {
            let _ = wanted.await;
        });
        let served = tokio::spawn(serving);
        TestServer { engine, address, clock, served, shutdown: Some(shutdown), _folder: folder }
    }

    /// Starts the shutdown without waiting for it.
    pub(crate) fn begin_shutdown(&mut self) {
        let _ = self.shutdown.take().expect("once").send(());
    }

    /// Waits for the end of the shutdown.
    pub(crate) async fn ended(self) {
        self.served.await.expect("no panic").expect("no error");
    }
}
