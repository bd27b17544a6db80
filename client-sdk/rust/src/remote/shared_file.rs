//! A file that the programs of one user share: the engine that `abide open` finds or starts.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use abide_schema::wire::SUBPROTOCOL;
use abide_schema::{Code, Refusal};
use serde::Deserialize;
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;

use crate::Error;

/// Maximum bytes of the line that `abide open` prints.
const LINE_BYTES: u64 = 16 << 10;

/// A file and the program that opens it.
#[derive(Clone, Debug)]
pub(crate) struct SharedFile {
    /// Absolute, because the program may change its folder.
    pub(crate) path: PathBuf,
    pub(crate) binary: PathBuf,
    /// Whether to start an engine if none runs.
    pub(crate) starts_engine: bool,
}

/// The line that `abide open --json` prints.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Problem { error: Problem },
    Engine(RunningEngine),
}

#[derive(Deserialize)]
struct Problem {
    code: Code,
    detail: String,
    hint: Option<String>,
}

/// How to reach an engine.
#[derive(Deserialize)]
pub(super) struct RunningEngine {
    protocol: String,
    version: String,
    /// The path of its Unix socket.
    pub(super) socket: Option<String>,
    /// Its address, if it has no socket.
    pub(super) url: Option<String>,
    /// The token that its requests need.
    pub(super) token: Option<String>,
}

impl SharedFile {
    /// Finds the engine of the file, and starts it if none runs and it may.
    ///
    /// # Errors
    /// [`Error::EngineNotFound`], [`Error::IncompatibleVersion`], or why the file cannot be opened.
    pub(super) async fn find(&self) -> Result<RunningEngine, Error> {
        let mut command = Command::new(&self.binary);
        command.arg("open").arg(&self.path).arg("--json").stdin(Stdio::null());
        if cfg!(not(unix)) {
            command.arg("--loopback");
        }
        if !self.starts_engine {
            command.arg("--join");
        }
        let binary = self.binary.display().to_string();
        let not_found = |why: std::io::Error| Error::EngineNotFound {
            binary: binary.clone(),
            source: Arc::new(why),
        };
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().map_err(not_found)?;
        let mut line = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            stdout.take(LINE_BYTES).read_to_end(&mut line).await.map_err(not_found)?;
        }
        match serde_json::from_slice(&line) {
            Ok(Line::Engine(engine)) if engine.protocol == SUBPROTOCOL => Ok(engine),
            Ok(Line::Engine(RunningEngine { protocol, version, .. })) => {
                Err(Error::IncompatibleVersion { protocol, version })
            }
            Ok(Line::Problem { error: Problem { code, detail, hint } }) => {
                Err(Refusal { hint, ..Refusal::new(code, detail) }.into())
            }
            Err(_) => {
                let why = "it does not know the command open, or it failed";
                Err(Error::EngineNotFound { binary, source: Arc::new(std::io::Error::other(why)) })
            }
        }
    }
}
