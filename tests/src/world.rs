//! One engine over one file in its own folder, with a virtual clock. The modules are an argument: tests of the built-in
//! reducers use this crate, so it does not depend on them.

#![expect(clippy::unwrap_used, reason = "a failed test reports the line")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use abide_engine::{Budget, Clock, CommittedCall, Config, Engine, Retention};
use abide_schema::reducer::Caller;
use abide_schema::{Micros, Module, Refusal, Row, Seq};
use rusqlite::Connection;
use serde_json::{Map, Value as JsonValue};
use tempfile::TempDir;

/// The start time of every test: 2026-11-21T14:00:00Z.
pub const START: Micros = Micros(1_795_269_600_000_000);

/// The modules of a world, such as `abide_reducers::modules`.
pub type Modules = fn() -> Vec<Module>;

/// The rows of each table.
pub type State = BTreeMap<&'static str, Vec<Row>>;

/// A clock that only tests move.
#[derive(Debug)]
pub struct VirtualClock(AtomicI64);

impl VirtualClock {
    /// Moves it forward.
    pub fn advance_ms(&self, ms: i64) {
        self.0.fetch_add(ms * 1000, Ordering::Relaxed);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Micros {
        Micros(self.0.load(Ordering::Relaxed))
    }
}

/// See the module.
#[derive(Debug)]
pub struct World {
    modules: Modules,
    /// The clock of the engine.
    pub clock: Arc<VirtualClock>,
    /// The folder of the file.
    pub folder: TempDir,
    /// The retention for the next open.
    pub retention: Retention,
    engine: Option<Engine>,
    /// The maximum cost of a live query per commit, if not the default.
    pub live_budget: Option<Budget>,
}

impl World {
    /// Opens a new file.
    #[must_use]
    pub fn new(modules: Modules) -> World {
        let clock = Arc::new(VirtualClock(AtomicI64::new(START.0)));
        World::new_without_engine(modules, &clock).opened()
    }

    /// A new, empty folder.
    #[must_use]
    pub fn new_without_engine(modules: Modules, clock: &Arc<VirtualClock>) -> World {
        World {
            modules,
            clock: Arc::clone(clock),
            folder: folder(),
            retention: Retention::default(),
            engine: None,
            live_budget: None,
        }
    }

    /// Opens the engine.
    #[must_use]
    pub fn opened(mut self) -> World {
        self.open();
        self
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("abide.db")
    }

    /// Returns the time of the clock, in microseconds.
    #[must_use]
    pub fn clock_now(&self) -> i64 {
        self.clock.0.load(Ordering::Relaxed)
    }

    /// Returns the open engine.
    ///
    /// # Panics
    /// The engine is closed.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        self.engine.as_ref().expect("the engine is open")
    }

    /// Returns the configuration of this world, with other modules.
    #[must_use]
    pub fn config(&self, modules: Vec<Module>) -> Config {
        let mut config = Config::new(modules);
        config.clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        config.live_budget = self.live_budget.unwrap_or(config.live_budget);
        config.retention = self.retention;
        config
    }

    /// Opens the file.
    pub fn open(&mut self) {
        self.open_with(self.config((self.modules)()));
    }

    /// Opens the file with a configuration of the test.
    ///
    /// # Panics
    /// The file does not open.
    pub fn open_with(&mut self, config: Config) {
        self.engine = Some(Engine::open(self.path(), config).unwrap());
    }

    /// Closes the engine.
    ///
    /// # Panics
    /// The engine is closed.
    pub fn close(&mut self) {
        self.engine.take().expect("the engine is open").close();
    }

    /// Drops the engine without a checkpoint, as when the process is killed. (Unsynced data is not
    /// lost here.)
    pub fn drop_engine(&mut self) {
        self.engine = None;
    }

    /// Closes the engine and opens the file again.
    pub fn reopen(&mut self) {
        self.close();
        self.open();
    }

    /// A raw connection without our rules.
    ///
    /// # Panics
    /// The engine is open.
    #[must_use]
    pub fn raw(&self) -> Connection {
        assert!(self.engine.is_none(), "close the engine first");
        let connection = Connection::open(self.path()).unwrap();
        connection.pragma_update(None, "foreign_keys", true).unwrap();
        connection
    }

    /// Calls a reducer as the local caller.
    ///
    /// # Errors
    /// The refusal of the call.
    pub async fn call(&self, reducer: &str, args: JsonValue) -> Result<CommittedCall, Refusal> {
        self.engine().call(&Caller::new("local"), reducer, &args, None).await
    }

    /// Moves the clock and processes everything that comes due, also as a consequence.
    ///
    /// # Panics
    /// A deadline cannot be processed.
    pub async fn pass_ms(&self, ms: i64) {
        self.clock.advance_ms(ms);
        let mut before = None;
        while before != Some(self.engine().durable_seq()) {
            before = Some(self.engine().durable_seq());
            self.engine().fire_due().await.unwrap();
        }
    }

    /// Creates an active session.
    ///
    /// # Panics
    /// The call is refused.
    pub async fn session(&self, id: &str) {
        let args = serde_json::json!({"agent": "support", "id": id});
        self.call("create_session", args).await.unwrap();
        self.append_message(id, "hello").await.unwrap();
    }

    /// Claims a run for a driver, and returns the fencing token.
    ///
    /// # Panics
    /// The call is refused.
    pub async fn drive(&self, run: &str) -> i64 {
        let claim = serde_json::json!({"id": run, "driver": "d", "lease_ms": 60_000});
        self.call("claim_run", claim).await.unwrap().seq.0
    }

    /// Appends a message of the user.
    ///
    /// # Errors
    /// The refusal of the call.
    pub async fn append_message(
        &self,
        session_id: &str,
        content: &str,
    ) -> Result<CommittedCall, Refusal> {
        let args = serde_json::json!(
            {"session_id": session_id, "role": "user", "content": content});
        self.call("append_message", args).await
    }

    /// Returns when SQLite has committed all answered calls, so that other programs see them.
    pub async fn commit_rows(&self) {
        self.rows("SELECT 1").await;
    }

    /// Returns the rows of a query.
    ///
    /// # Panics
    /// The query is refused.
    pub async fn rows(&self, sql: &str) -> Vec<Row> {
        self.rows_as_of(sql, None).await
    }

    /// Returns the rows of a query as of a seq.
    ///
    /// # Panics
    /// The query is refused.
    pub async fn rows_as_of(&self, sql: &str, as_of: Option<Seq>) -> Vec<Row> {
        self.engine().query(&Caller::local(), sql, &Map::new(), as_of).await.unwrap().rows
    }

    /// Every table of the modules, with the columns that order its rows. The engine's own tables are not in it:
    /// `events` is compared separately, and `meta`, `change_log` and `request_ids` differ between a file and its
    /// replay (ids of the file, undo images, retention).
    #[must_use]
    pub fn tables(&self) -> Vec<(&'static str, String)> {
        let modules = (self.modules)();
        let specs = modules.iter().flat_map(|module| &module.tables);
        specs
            .map(|spec| {
                let key: Vec<&str> = spec.key.iter().map(|at| spec.columns[*at].name).collect();
                (spec.name, key.join(", "))
            })
            .collect()
    }

    /// Every row of every table of [`World::tables`], and every event.
    pub async fn state(&self, as_of: Option<Seq>) -> State {
        let mut state = State::new();
        for (table, key) in self.tables() {
            let sql = format!("SELECT * FROM {table} ORDER BY {key}");
            state.insert(table, self.rows_as_of(&sql, as_of).await);
        }
        state.insert("events", self.rows_as_of("SELECT * FROM events ORDER BY seq", as_of).await);
        state
    }
}

/// A folder in memory if there is enough: a sync is free there, and these tests do not depend on
/// the disk.
fn folder() -> TempDir {
    let memory = "/dev/shm";
    let room = rustix::fs::statvfs(memory).map_or(0, |fs| fs.f_bavail * fs.f_frsize);
    if room > 1 << 30 { TempDir::new_in(memory).unwrap() } else { TempDir::new().unwrap() }
}

/// Runs a test's future on this thread. Timers do not wait: when all tasks are idle, the runtime's
/// clock jumps to the next one.
///
/// # Panics
/// The runtime does not start.
pub fn run<F: Future>(future: F) -> F::Output {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().unwrap().block_on(future)
}
