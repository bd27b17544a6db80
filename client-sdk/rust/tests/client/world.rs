//! A folder with a database file, an engine or a server on it, and a custom module.

use std::net::SocketAddr;
use std::path::PathBuf;

use abide_client::Abide;
use abide_engine::{Config, Engine};
use abide_schema::{Abort, Context, Module, Seq, reducer, table};
use abide_server::AccessConfig;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A row with a cell of every type.
#[table(name = "samples")]
pub(crate) struct Sample {
    /// Its number.
    #[column(key)]
    pub id: i64,
    /// A text.
    pub name: String,
    /// A real.
    pub weight: Option<f64>,
    /// Bytes.
    pub bytes: Vec<u8>,
    /// The event.
    pub seq: Seq,
}

/// Stores a sample.
#[reducer]
pub(crate) fn keep(
    ctx: &mut Context<'_>,
    name: String,
    weight: Option<f64>,
    bytes: Option<Vec<u8>>,
) -> Result<Sample, Abort> {
    let bytes = bytes.unwrap_or_default();
    let seq = ctx.seq;
    ctx.insert(Sample { id: 0, name, weight, bytes, seq })
}

/// Changes a sample's name.
#[reducer]
pub(crate) fn rename(ctx: &mut Context<'_>, id: i64, name: String) -> Result<Sample, Abort> {
    let mut sample = ctx.get::<Sample>(id)?.expect("the test knows which there are");
    sample.name = name;
    ctx.update(&sample)?;
    Ok(sample)
}

/// Deletes a sample.
#[reducer]
pub(crate) fn forget(ctx: &mut Context<'_>, id: i64) -> Result<(), Abort> {
    ctx.delete::<Sample>(id)
}

fn module() -> Module {
    Module::new("sample")
        .table::<Sample>()
        .reducer(keep::definition())
        .reducer(rename::definition())
        .reducer(forget::definition())
}

fn open_engine(path: &PathBuf) -> Engine {
    let mut modules = abide_reducers::modules();
    modules.push(module());
    Engine::open(path, Config::new(modules)).expect("the file opens")
}

/// A running server.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) engine: Engine,
    stop: oneshot::Sender<()>,
    served: JoinHandle<()>,
}

impl Server {
    /// Stops it gracefully, as SIGTERM does.
    pub(crate) async fn stop(self) {
        self.stop.send(()).expect("it runs");
        self.served.await.expect("it stops");
        let engine = self.engine;
        tokio::task::spawn_blocking(move || engine.close()).await.expect("it closes");
    }
}

/// A temporary folder.
pub(crate) struct World {
    folder: tempfile::TempDir,
}

impl World {
    pub(crate) fn new() -> World {
        World { folder: tempfile::tempdir().expect("a temporary folder") }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("agents.db")
    }

    /// The engine in this process.
    pub(crate) fn embedded(&self) -> Abide {
        let config = abide_client::Config { modules: vec![module()], ..Default::default() };
        Abide::open_with(self.path(), config).expect("the file opens")
    }

    /// A server, at the given address or at any free one.
    pub(crate) async fn serve(&self, at: Option<SocketAddr>, access: AccessConfig) -> Server {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = TcpListener::bind(at.unwrap_or(any)).await.expect("the port is free");
        let address = listener.local_addr().expect("it is bound");
        let engine = open_engine(&self.path());
        let (stop, stopped) = oneshot::channel();
        let serve = abide_server::serve(engine.clone(), listener, access, async {
            let _ = stopped.await;
        });
        let served = tokio::spawn(async move { serve.await.expect("it serves") });
        Server { address, engine, stop, served }
    }
}

/// A client of a server.
pub(crate) async fn connect(server: &Server) -> Abide {
    Abide::connect(&format!("http://{}", server.address)).await.expect("it connects")
}
