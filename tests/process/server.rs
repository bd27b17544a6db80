//! A server process on a file. It keeps its port across restarts.

use std::path::{Path, PathBuf};

use abide_client::Abide;
use rusqlite::{Connection, OpenFlags};
use serde_json::Value as JsonValue;
use tempfile::TempDir;

use crate::program::{ExitedProcess, Process, abide, run};

/// A server, and the folder of its file.
#[derive(Debug)]
pub(crate) struct Server {
    db: PathBuf,
    /// Its own folder; `None` if the test owns it.
    _folder: Option<TempDir>,
    address: String,
    /// Its options in addition to file and port.
    options: Vec<String>,
    process: Option<Process>,
}

impl Server {
    /// A server on a new file.
    pub(crate) fn start() -> Server {
        Server::start_in(tempfile::tempdir().unwrap())
    }

    /// A server on the file `abide.db` of a folder that is removed with it.
    pub(crate) fn start_in(folder: TempDir) -> Server {
        let server = Server::start_on(&folder.path().join("abide.db"));
        Server { _folder: Some(folder), ..server }
    }

    /// A server on a file in another owner's folder.
    pub(crate) fn start_on(db: &Path) -> Server {
        Server::start_with(db, &[])
    }

    /// A server with these options on a file in another owner's folder.
    pub(crate) fn start_with(db: &Path, options: &[String]) -> Server {
        let (process, address) = serve(db, "127.0.0.1:0", options);
        let db = db.to_owned();
        let options = options.to_vec();
        Server { db, _folder: None, address, options, process: Some(process) }
    }

    /// Restarts it with these options.
    pub(crate) fn restart_with(&mut self, options: &[&str]) {
        self.stop();
        self.options = options.iter().map(|option| (*option).to_owned()).collect();
        self.start_again();
    }

    pub(crate) fn folder(&self) -> &Path {
        self.db.parent().unwrap()
    }

    /// A path in its folder.
    pub(crate) fn sibling(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    pub(crate) fn db(&self) -> PathBuf {
        self.db.clone()
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) async fn client(&self) -> Abide {
        Abide::connect(&self.url()).await.unwrap()
    }

    /// Runs a command against it to its end.
    pub(crate) fn run(&self, args: &[&str]) -> ExitedProcess {
        run(args.iter().copied().chain(["--url", &self.url()]))
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.process.as_ref().expect("it runs").id()
    }

    /// Whether it has not ended.
    pub(crate) fn is_running(&mut self) -> bool {
        self.process.as_mut().unwrap().is_running()
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.process.take().unwrap().kill();
    }

    /// SIGTERM.
    pub(crate) fn terminate(&self) {
        self.process.as_ref().unwrap().terminate();
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn ended(&mut self) -> ExitedProcess {
        self.process.take().unwrap().ended()
    }

    /// SIGTERM; it must exit cleanly.
    #[track_caller]
    pub(crate) fn stop(&mut self) {
        self.terminate();
        let ended = self.ended();
        let unexpected: Vec<&str> =
            ended.stderr.lines().filter(|line| !is_for_operators(line)).collect();
        assert_eq!((ended.code, unexpected), (Some(0), Vec::new()), "{ended:?}");
    }

    /// On the same file and port as before.
    pub(crate) fn start_again(&mut self) {
        assert!(self.process.is_none(), "the server is running");
        self.process = Some(serve(&self.db(), &self.address, &self.options).0);
    }

    /// The file as any SQLite program may open it, once it has what was acknowledged before: such
    /// a program sees a call when SQLite commits it, milliseconds after its answer. `abide verify`
    /// waits for that commit.
    #[track_caller]
    pub(crate) fn raw(&self) -> Connection {
        self.verify();
        Connection::open_with_flags(self.db(), OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap()
    }

    /// `abide verify`, which must succeed; returns the number of events.
    #[track_caller]
    pub(crate) fn verify(&self) -> i64 {
        let db = self.db();
        let output = run(["verify", "--json", db.to_str().unwrap()]).json();
        assert_eq!(output["verified"], true);
        output["events"].as_i64().unwrap()
    }
}

/// Returns `true` for a record that tells an operator of what a test has done on purpose.
fn is_for_operators(line: &str) -> bool {
    let record: JsonValue = serde_json::from_str(line).unwrap_or_default();
    let named = ["call_unknown", "credentials_refused", "run_failed", "slow_sync", "tool_stopped"];
    record["event"].as_str().is_some_and(|event| named.contains(&event))
}

fn serve(db: &Path, listen: &str, options: &[String]) -> (Process, String) {
    let mut command = abide();
    command.args(["serve", "--json", "--listen", listen, "--db"]).arg(db).args(options);
    let process = Process::spawn(&mut command);
    let greeting: JsonValue = serde_json::from_str(&process.line()).unwrap();
    (process, greeting["listening"].as_str().unwrap().to_owned())
}
