//! A file that the programs of one user share: the engine that `abide open` finds or starts.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use abide_schema::wire::SUBPROTOCOL;
use abide_schema::{Code, Refusal};
use serde::Deserialize;
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use tokio::time::sleep;

use super::dial::{Address, Io, Socket};
use crate::Error;
use crate::backend::Backoff;

/// Connection attempts to an engine that ends at the same moment. Each starts the next one.
const TRIES: u32 = 5;

/// Maximum bytes of the line that `abide open` prints.
const LINE_BYTES: u64 = 16 << 10;

/// A file and the program that opens it.
#[derive(Clone, Debug)]
pub(crate) struct SharedFile {
    /// Absolute, because the program may change its folder.
    pub(crate) path: PathBuf,
    pub(crate) binary: PathBuf,
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
struct RunningEngine {
    protocol: String,
    version: String,
    socket: Option<String>,
    url: Option<String>,
    token: Option<String>,
}

impl SharedFile {
    /// Connects to the engine of the file, and starts it if none runs.
    ///
    /// # Errors
    /// [`Error::EngineNotFound`], [`Error::IncompatibleVersion`], or why the file cannot be opened.
    pub(super) async fn connect(&self, address: &Address) -> Result<Socket, Error> {
        let (mut backoff, mut tries) = (Backoff::new(), 1);
        loop {
            let engine = self.find().await?;
            match engine.connect(address).await {
                // It ended after it was found.
                Err(Error::Unreachable { .. }) if tries < TRIES => tries += 1,
                made => return made,
            }
            sleep(backoff.next()).await;
        }
    }

    async fn find(&self) -> Result<RunningEngine, Error> {
        let mut command = Command::new(&self.binary);
        command.arg("open").arg(&self.path).arg("--json").stdin(Stdio::null());
        if cfg!(not(unix)) {
            command.arg("--loopback");
        }
        let binary = self.binary.display().to_string();
        let not_found = |why: std::io::Error| Error::EngineNotFound {
            binary: binary.clone(),
            why: why.to_string().to_lowercase(),
        };
        let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut child = child.map_err(not_found)?;
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
                let why = "it does not know the command open, or it failed".to_owned();
                Err(Error::EngineNotFound { binary, why })
            }
        }
    }
}

impl RunningEngine {
    async fn connect(self, address: &Address) -> Result<Socket, Error> {
        match self {
            RunningEngine { socket: Some(path), .. } => {
                address.handshake_over(connect_socket(&path).await?).await
            }
            RunningEngine { url: Some(url), token, .. } => {
                Address::parse(&url, token.as_deref())?.within(address.scope())?.connect().await
            }
            _ => Err(Error::Protocol { why: "abide open printed no address".to_owned() }),
        }
    }
}

#[cfg(unix)]
async fn connect_socket(path: &str) -> Result<Box<dyn Io>, Error> {
    let stream = tokio::net::UnixStream::connect(path).await;
    stream.map(|stream| Box::new(stream) as Box<dyn Io>).map_err(|why| Error::Unreachable {
        url: path.to_owned(),
        why: why.to_string().to_lowercase(),
    })
}

#[cfg(not(unix))]
async fn connect_socket(path: &str) -> Result<Box<dyn Io>, Error> {
    let why = "this system has no Unix sockets".to_owned();
    Err(Error::Unreachable { url: path.to_owned(), why })
}

/// Time limit of a connection, with the start of an engine. `abide open` waits up to 30 seconds for another process.
pub(super) const OPEN_TIMEOUT: Duration = Duration::from_secs(45);
