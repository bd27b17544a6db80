//! The processes of the workers, one of each SDK: a worker takes as long as a call says, notes that, and ends when its input
//! ends. The worker of the Rust SDK is a command of this program; the others are in `tests/stress/workers/`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use abide_client::{Abide, ToolError};
use serde_json::{Value as JsonValue, json};
use tokio::process::{Child, Command};
use tokio::sync::oneshot;

use super::effects::{Effects, note};
use crate::CheckResult;
use crate::pace::pause;

/// The workers: the names of their tools and of their files.
pub(super) const LANGUAGES: [&str; 3] = ["rust", "typescript", "python"];

/// The command of this program that is a worker: `deploys-worker URL FILE`.
pub(crate) const VERB: &str = "deploys-worker";

/// Calls that a worker runs at a time. The other SDKs' workers have the same.
const CONCURRENCY: usize = 4;

/// Starts all workers.
pub(crate) fn start_all(url: &str, effects: &Effects) -> CheckResult<Vec<Worker>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let scripts = root.join("tests/stress/workers");
    let own = env::current_exe().map_err(|why| why.to_string())?;
    let mut rust = Command::new(own);
    rust.arg(VERB);
    let mut typescript = Command::new("node");
    typescript.arg(scripts.join("worker.mjs"));
    let mut python = Command::new("python");
    python.arg(scripts.join("worker.py"));
    python.env("PYTHONPATH", root.join("client-sdk/python/src"));
    let commands = LANGUAGES.into_iter().zip([rust, typescript, python]);
    commands.map(|(name, command)| Worker::start(name, command, url, effects)).collect()
}

/// The process of a worker. It is killed if this is dropped.
pub(crate) struct Worker {
    name: &'static str,
    child: Child,
}

impl Worker {
    fn start(
        name: &'static str,
        mut command: Command,
        url: &str,
        effects: &Effects,
    ) -> CheckResult<Worker> {
        command.arg(url).arg(effects.file(name)).stdin(Stdio::piped()).kill_on_drop(true);
        let child = command.spawn().map_err(|why| {
            format!("the worker in {name} does not start: {why}; `cargo xtask deploys` installs what it needs")
        })?;
        Ok(Worker { name, child })
    }

    /// Ends its input. It must end without an error.
    pub(crate) async fn stop(mut self) -> CheckResult {
        drop(self.child.stdin.take());
        let ended = self.child.wait().await.map_err(|why| why.to_string())?;
        if ended.success() {
            Ok(())
        } else {
            Err(format!("the worker in {} ended with {ended}", self.name))
        }
    }
}

/// The worker of the Rust SDK.
pub(crate) async fn serve(words: &[String]) -> CheckResult {
    let [url, file] = words else { return Err(format!("{VERB} URL FILE")) };
    let file = PathBuf::from(file);
    let (stop, stopped) = oneshot::channel::<()>();
    thread::spawn(move || {
        // An error ends it, too.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        drop(stop);
    });
    let abide = Abide::connect(url).await.map_err(|why| format!("{why:#}"))?;
    let run = move |arguments: JsonValue| run(file.clone(), arguments);
    let worker = abide.worker().name("rust").concurrency(CONCURRENCY).tool("rust", run);
    let served = worker.serve(async { drop(stopped.await) }).await;
    abide.close().await;
    served.map_err(|why| format!("{why:#}"))
}

async fn run(file: PathBuf, arguments: JsonValue) -> Result<JsonValue, ToolError> {
    let call_id = arguments["call"].as_str().unwrap_or_default();
    let ms = arguments["ms"].as_u64().unwrap_or_default();
    note(&file, "began", call_id).map_err(ToolError::new)?;
    pause(Duration::from_millis(ms)).await;
    note(&file, "done", call_id).map_err(ToolError::new)?;
    Ok(json!({"done": call_id}))
}
