//! The server of the demo: a separate process, which can be killed.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use abide_schema::{Code, Refusal};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::failure::Failure;
use crate::own_program::own_program;

/// A server process.
#[derive(Debug)]
pub(crate) struct Server {
    db: PathBuf,
    /// Its address, which it keeps after a restart.
    address: String,
    process: Child,
}

/// The first line of `abide serve --json`.
#[derive(Deserialize)]
struct Greeting {
    listening: String,
}

impl Server {
    /// Starts `abide serve` on a file and a free port.
    ///
    /// # Errors
    /// It does not start; stderr has the reason.
    pub(crate) async fn start(db: &Path) -> Result<Server, Failure> {
        let (process, address) = spawn(db, "127.0.0.1:0").await?;
        Ok(Server { db: db.to_owned(), address, process })
    }

    /// The URL for clients.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Kills it with SIGKILL, without a chance to clean up.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) async fn kill(&mut self) -> Result<(), Failure> {
        self.process.kill().await.map_err(|why| process_refusal("killed", &why).into())
    }

    /// Restarts it with the same file and port.
    ///
    /// # Errors
    /// It does not start.
    pub(crate) async fn start_again(&mut self) -> Result<(), Failure> {
        (self.process, _) = spawn(&self.db, &self.address).await?;
        Ok(())
    }

    /// Waits until it ends unexpectedly.
    pub(crate) async fn wait_until_died(&mut self) -> Failure {
        match self.process.wait().await {
            Ok(status) => process_refusal("kept alive", &status).into(),
            Err(why) => process_refusal("watched", &why).into(),
        }
    }

    /// Stops it gracefully.
    ///
    /// # Errors
    /// It ends with an error.
    pub(crate) async fn stop(mut self) -> Result<(), Failure> {
        let id = self.process.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(id) = id {
            kill_process(id, Signal::TERM).map_err(|why| process_refusal("stopped", &why))?;
        }
        let status = self.process.wait().await.map_err(|why| process_refusal("stopped", &why))?;
        if status.success() {
            Ok(())
        } else {
            Err(process_refusal("stopped gracefully", &status).into())
        }
    }
}

async fn spawn(db: &Path, listen: &str) -> Result<(Child, String), Failure> {
    let program = own_program().map_err(|why| process_refusal("found", &why))?;
    let mut command = Command::new(program);
    // The configuration is that of the user's own server, and so is the token.
    let variables = std::env::vars_os().map(|(name, _)| name);
    for name in variables.filter(|name| is_of_option(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    let mut process = command
        .args(["serve", "--json", "--config", "/dev/null", "--listen", listen, "--db"])
        .arg(db)
        .env_remove("CREDENTIALS_DIRECTORY")
        // Workers are killed on purpose: their calls with an unknown outcome are part of the report.
        .env("ABIDE_LOG", std::env::var_os("ABIDE_LOG").unwrap_or_else(|| "error".into()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|why| process_refusal("started", &why))?;
    let mut line = String::new();
    if let Some(stdout) = process.stdout.take() {
        let read = BufReader::new(stdout).read_line(&mut line).await;
        read.map_err(|why| process_refusal("started", &why))?;
    }
    let greeting: Greeting = serde_json::from_str(&line).map_err(|_| {
        Refusal::new(Code::Internal, "the server process ended before it listened")
            .hint("its error is above, on stderr")
    })?;
    Ok((process, greeting.listening))
}

/// Whether a variable can be that of an option.
fn is_of_option(name: &str) -> bool {
    name.starts_with("ABIDE_")
        && !["ABIDE_LOG", "ABIDE_LOG_FORMAT"].contains(&name)
        && !name.starts_with("ABIDE_TEST_")
}

fn process_refusal(what: &str, why: &dyn std::fmt::Display) -> Refusal {
    Refusal::new(Code::Internal, format!("the server process could not be {what}: {why}"))
}
