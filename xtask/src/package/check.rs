//! Uses an installed artefact as a new user does: an agent, the version, the demo, a server, and a call.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value as JsonValue;
use tempfile::TempDir;

use super::release::Release;

/// How an installed program is started.
#[derive(Debug)]
pub(super) struct Installed {
    program: PathBuf,
    /// The arguments before those of `abide`.
    arguments: Vec<OsString>,
    /// The working directory.
    folder: PathBuf,
    /// Whether the process that is started waits for the program, and does not pass signals on.
    is_monitored: bool,
    /// Whether the program can start a shell, as the tool of a new project does.
    has_shell: bool,
}

impl Installed {
    /// A program that is started in a folder.
    pub(super) fn new(program: impl Into<PathBuf>, folder: impl Into<PathBuf>) -> Installed {
        Installed {
            program: program.into(),
            arguments: Vec::new(),
            folder: folder.into(),
            is_monitored: false,
            has_shell: true,
        }
    }

    /// A program in a sandbox, which waits for it.
    pub(super) fn started_by<A: Into<OsString>>(
        program: &str,
        arguments: impl IntoIterator<Item = A>,
        folder: &Path,
        has_shell: bool,
    ) -> Installed {
        let arguments = arguments.into_iter().map(Into::into).collect();
        let folder = folder.to_owned();
        Installed { program: program.into(), arguments, folder, is_monitored: true, has_shell }
    }

    /// Runs a command that must fail. Returns what it prints on stderr.
    pub(super) fn stderr(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = self.command(arguments);
        let ended = command.stdin(Stdio::null()).output();
        let ended = ended.map_err(|why| format!("cannot run {command:?}: {why}"))?;
        if ended.status.success() {
            return Err(format!("{command:?} did not fail"));
        }
        Ok(String::from_utf8_lossy(&ended.stderr).into_owned())
    }

    /// Starts a server with these arguments, and stops it when it listens.
    pub(super) fn start_and_stop(&self, serve: &[&str]) -> Result<(), String> {
        Server::start(&mut self.command(serve))?.stop(self.is_monitored)
    }

    /// Returns the command with these arguments, without the settings of this machine.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).args(arguments).current_dir(&self.folder);
        // Every option has a variable.
        for (name, _) in env::vars_os() {
            if name.to_string_lossy().starts_with("ABIDE_") {
                command.env_remove(name);
            }
        }
        command.env_remove("PYTHONPATH");
        command
    }
}

/// Runs an agent, the version, the demo, a server and a call. Returns how long it took from the start of the installation
/// to the agent that did what was approved; `None` if there is no shell for its tool.
pub(super) fn exercise(
    release: &Release,
    installed: &Installed,
    start: Instant,
) -> Result<Option<Duration>, String> {
    let mut approved = None;
    if installed.has_shell {
        run_first_agent(installed)?;
        approved = Some(start.elapsed());
    }
    let version = output(&mut installed.command(&["--version"]))?;
    if version != format!("abide {}\n", release.version) {
        return Err(format!("--version printed {version:?}"));
    }
    output(&mut installed.command(&["demo", "--conversations", "3"]))?;

    let mut serve =
        installed.command(&["serve", "--listen", "127.0.0.1:0", "--db", "check.db", "--json"]);
    let mut server = Server::start(&mut serve)?;
    let url = server.url();
    output(&mut installed.command(&["health", "--url", &url]))?;
    let call = ["call", "create_session", "agent=support", "id=s1", "--url", &url];
    output(&mut installed.command(&call))?;
    let rows = ["sql", "SELECT id FROM sessions", "--json", "--url", &url];
    let rows = output(&mut installed.command(&rows))?;
    if !rows.contains("\"s1\"") {
        return Err(format!("the session is not stored: {rows}"));
    }
    server.stop(installed.is_monitored)?;
    output(&mut installed.command(&["verify", "check.db"]))?;
    Ok(approved)
}

/// Makes a project, and runs its agent with an approval of its call, as the first commands of a new user do. The agent
/// answers from a script.
fn run_first_agent(installed: &Installed) -> Result<(), String> {
    output(&mut installed.command(&["init", "--provider", "script"]))?;
    let run = ["agent", "run", "default", "Hello", "--id", "first", "--yes"];
    output(&mut installed.command(&run))?;
    let sql = "SELECT status FROM tool_calls WHERE tool_name = 'note'";
    let call = ["sql", sql, "--json", "--db", ".abide/agents.db"];
    let call = output(&mut installed.command(&call))?;
    if call.contains("\"succeeded\"") {
        Ok(())
    } else {
        Err(format!("the call of the agent was not executed: {call}"))
    }
}

/// A server that is stopped with SIGTERM, as by a supervisor, and killed if the check fails.
pub(super) struct Server {
    child: Child,
    listening: String,
}

impl Server {
    /// Starts it, and waits until it listens.
    pub(super) fn start(command: &mut Command) -> Result<Server, String> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|why| format!("cannot start {command:?}: {why}"))?;
        let stdout = child.stdout.take().expect("stdout is piped");
        // From here on the server is stopped in any case.
        let mut server = Server { child, listening: String::new() };
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).map_err(|why| why.to_string())?;
        let greeting: JsonValue =
            serde_json::from_str(&line).map_err(|why| format!("serve printed {line:?}: {why}"))?;
        server.listening = greeting["listening"].as_str().unwrap_or_default().to_owned();
        Ok(server)
    }

    /// Returns its address.
    pub(super) fn url(&self) -> String {
        format!("http://{}", self.listening)
    }

    /// Stops it, and expects that it ends well.
    pub(super) fn stop(&mut self, is_monitored: bool) -> Result<(), String> {
        let id = self.child.id().to_string();
        let id = if is_monitored { innermost(id) } else { id };
        output(Command::new("kill").args(["-TERM", &id]))?;
        let status = self.child.wait().map_err(|why| why.to_string())?;
        if status.success() { Ok(()) } else { Err(format!("after SIGTERM, serve ended: {status}")) }
    }
}

/// Returns the last of the children of a process, each the only one of its parent.
fn innermost(mut id: String) -> String {
    loop {
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        match children.unwrap_or_default().split_whitespace().next() {
            Some(child) => id = child.to_owned(),
            None => return id,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Has no effect after it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command that must succeed. Returns its output.
pub(super) fn output(command: &mut Command) -> Result<String, String> {
    let ended = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let ended = ended.map_err(|why| format!("cannot run {command:?}: {why}"))?;
    if !ended.status.success() {
        return Err(format!("{command:?} failed: {}", ended.status));
    }
    String::from_utf8(ended.stdout).map_err(|_| format!("{command:?} printed no UTF-8"))
}

/// Returns a new folder, which is removed when it is dropped.
pub(super) fn empty_folder() -> Result<TempDir, String> {
    tempfile::tempdir().map_err(|why| format!("no temporary folder: {why}"))
}
