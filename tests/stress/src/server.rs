//! A server process on a file. It keeps its port across restarts, and is killed when this process
//! ends.

use std::env;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use serde_json::Value as JsonValue;

use crate::CheckResult;
use crate::pace::pause;

/// Raises the limit of open files for this process and its children to the maximum; returns it.
pub(crate) fn raise_open_files() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let now = if raised.is_ok() { maximum } else { current };
    now.unwrap_or(u64::MAX)
}

/// The `abide` program, built next to this one.
fn program() -> CheckResult<PathBuf> {
    let own = env::current_exe().map_err(|why| why.to_string())?;
    let program = own.with_file_name("abide");
    if !program.exists() {
        return Err(format!("{} is not built: cargo build --package abide", program.display()));
    }
    Ok(program)
}

/// The program with an environment independent of the user's.
pub(crate) fn abide() -> CheckResult<Command> {
    let mut command = Command::new(program()?);
    for name in ["ABIDE_URL", "ABIDE_TOKEN", "ABIDE_LOG", "ABIDE_LOG_FORMAT", "COLUMNS"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    Ok(command)
}

/// Runs a command to its end; returns its output if it succeeded.
pub(crate) fn output(command: &mut Command) -> CheckResult<String> {
    let ended = command.output().map_err(|why| why.to_string())?;
    if ended.status.success() {
        return Ok(String::from_utf8_lossy(&ended.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
    let all = String::from_utf8_lossy(&ended.stdout).into_owned();
    Err(format!("{command:?} ended with {}: {stderr}{all}", ended.status))
}

/// See the [module](self).
pub(crate) struct Server {
    pub(crate) db: PathBuf,
    pub(crate) address: SocketAddr,
    child: Option<Child>,
    /// Its options in addition to file and address.
    options: Vec<String>,
    /// The duration of the last start, from spawn to readiness.
    pub(crate) started_in: Duration,
}

impl Server {
    /// Starts a server on a free port.
    pub(crate) fn start(db: &Path) -> CheckResult<Server> {
        Server::start_with(db, &[])
    }

    /// Starts a server with these options on a free port.
    pub(crate) fn start_with(db: &Path, options: &[String]) -> CheckResult<Server> {
        let mut server = Server {
            db: db.to_owned(),
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            child: None,
            options: options.to_vec(),
            started_in: Duration::ZERO,
        };
        server.start_again()?;
        Ok(server)
    }

    /// Starts it again on the same file and port.
    pub(crate) fn start_again(&mut self) -> CheckResult {
        let mut command = abide()?;
        command.args(["serve", "--json", "--listen", &self.address.to_string(), "--db"]);
        command.arg(&self.db).args(&self.options).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let begun = Instant::now();
        let mut child = command.spawn().map_err(|why| format!("{command:?}: {why}"))?;
        let stdout = child.stdout.take().ok_or("stdout is piped")?;
        let mut greeting = String::new();
        let read = BufReader::new(stdout).read_line(&mut greeting);
        self.started_in = begun.elapsed();
        let greeting: JsonValue = match read.map(|_| serde_json::from_str(&greeting)) {
            Ok(Ok(greeting)) => greeting,
            _ => {
                let ended = child.wait().map_err(|why| why.to_string())?;
                return Err(format!("the server did not start: {ended}"));
            }
        };
        let listening = greeting["listening"].as_str().ok_or("no `listening` in the greeting")?;
        self.address = listening.parse().map_err(|why| format!("{listening}: {why}"))?;
        self.child = Some(child);
        Ok(())
    }

    /// The URL for clients.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have exited already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// SIGTERM; the server must exit cleanly.
    pub(crate) fn stop(&mut self) -> CheckResult {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        terminate(&child)?;
        let ended = child.wait().map_err(|why| why.to_string())?;
        check_stopped(ended)
    }

    /// SIGTERM; the server must exit cleanly, within this time. Returns how long it took.
    pub(crate) async fn stop_within(&mut self, limit: Duration) -> CheckResult<Duration> {
        let child = self.child.as_mut().ok_or("the server is not running")?;
        let begun = Instant::now();
        terminate(child)?;
        loop {
            if let Some(ended) = child.try_wait().map_err(|why| why.to_string())? {
                self.child = None;
                return check_stopped(ended).map(|()| begun.elapsed());
            }
            if begun.elapsed() > limit {
                return Err(format!("the server still runs {} s after SIGTERM", limit.as_secs()));
            }
            pause(Duration::from_millis(10)).await;
        }
    }

    /// The current and the peak memory in bytes, as the system reports them.
    pub(crate) fn memory(&self) -> CheckResult<(u64, u64)> {
        let id = self.child.as_ref().ok_or("the server is not running")?.id();
        let status = fs::read_to_string(format!("/proc/{id}/status"))
            .map_err(|why| format!("/proc cannot be read for the server: {why}"))?;
        let line = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
            kilobytes.map(|kilobytes: u64| kilobytes << 10).ok_or(format!("no {name} in /proc"))
        };
        Ok((line("VmRSS:")?, line("VmHWM:")?))
    }

    /// Runs `abide verify --replay`, which must succeed; returns the number of events.
    pub(crate) fn verify(&self) -> CheckResult<u64> {
        let report = output(abide()?.args(["verify", "--json", "--replay"]).arg(&self.db))?;
        let report: JsonValue =
            serde_json::from_str(&report).map_err(|why| format!("{why}: {report}"))?;
        report["events"].as_u64().ok_or_else(|| format!("unexpected output of verify: {report}"))
    }
}

fn terminate(child: &Child) -> CheckResult {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or("no process id")?;
    kill_process(pid, Signal::TERM).map_err(|why| why.to_string())
}

fn check_stopped(ended: ExitStatus) -> CheckResult {
    if ended.success() {
        Ok(())
    } else {
        Err(format!("after SIGTERM the server ended with {ended}"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
