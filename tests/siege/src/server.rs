//! A server process on a file. It keeps its port when it is started again, and does not outlive us.

use std::env;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use serde_json::Value as JsonValue;

use crate::Told;

/// Raises what this process, and so the servers it starts, may open, to the machine's most; tells it.
pub(crate) fn raise_open_files() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let now = if raised.is_ok() { maximum } else { current };
    now.unwrap_or(u64::MAX)
}

/// The `abide` program: it is built beside this one.
fn program() -> Told<PathBuf> {
    let own = env::current_exe().map_err(|why| why.to_string())?;
    let program = own.with_file_name("abide");
    if !program.exists() {
        return Err(format!("{} is not built: cargo build --package abide", program.display()));
    }
    Ok(program)
}

/// The program without anything of the person who runs this.
pub(crate) fn abide() -> Told<Command> {
    let mut command = Command::new(program()?);
    for name in ["ABIDE_URL", "ABIDE_TOKEN", "ABIDE_LOG", "COLUMNS"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    Ok(command)
}

/// Runs a command to its end; what it said, if all went well.
pub(crate) fn output(command: &mut Command) -> Told<String> {
    let ended = command.output().map_err(|why| why.to_string())?;
    if ended.status.success() {
        return Ok(String::from_utf8_lossy(&ended.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    let all = String::from_utf8_lossy(&ended.stdout).into_owned();
    Err(format!("{command:?} ended with {}: {said}{all}", ended.status))
}

/// See the [module](self).
pub(crate) struct Server {
    pub(crate) db: PathBuf,
    pub(crate) address: SocketAddr,
    child: Option<Child>,
    /// How long the last start took, from the process to its readiness.
    pub(crate) started_in: Duration,
}

impl Server {
    /// Starts one on any free port.
    pub(crate) fn start(db: &Path) -> Told<Server> {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut server =
            Server { db: db.to_owned(), address: any, child: None, started_in: Duration::ZERO };
        server.start_again()?;
        Ok(server)
    }

    /// Starts it on the same file and port.
    pub(crate) fn start_again(&mut self) -> Told {
        let mut command = abide()?;
        command.args(["serve", "--json", "--listen", &self.address.to_string(), "--db"]);
        command.arg(&self.db).stdout(Stdio::piped()).stderr(Stdio::inherit());
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
                return Err(format!("the server does not start: {ended}"));
            }
        };
        let listening = greeting["listening"].as_str().ok_or("it tells where it listens")?;
        self.address = listening.parse().map_err(|why| format!("{listening}: {why}"))?;
        self.child = Some(child);
        Ok(())
    }

    /// Where a client connects.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// SIGKILL: it does not get to do anything about it.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// SIGTERM, and its end, which is to be a good one.
    pub(crate) fn stop(&mut self) -> Told {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or("it has an id")?;
        kill_process(pid, Signal::TERM).map_err(|why| why.to_string())?;
        let ended = child.wait().map_err(|why| why.to_string())?;
        if ended.success() { Ok(()) } else { Err(format!("asked to stop, it ended with {ended}")) }
    }

    /// What the system says that its memory is, in bytes: now, and at its most.
    pub(crate) fn memory(&self) -> Told<(u64, u64)> {
        let id = self.child.as_ref().ok_or("the server is not running")?.id();
        let status = fs::read_to_string(format!("/proc/{id}/status"));
        let status = status.map_err(|why| format!("/proc tells nothing of the server: {why}"))?;
        let line = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
            kilobytes.map(|kilobytes: u64| kilobytes << 10).ok_or(format!("no {name} in /proc"))
        };
        Ok((line("VmRSS:")?, line("VmHWM:")?))
    }

    /// `abide verify --replay`, which is to find nothing: how many events.
    pub(crate) fn verify(&self) -> Told<u64> {
        let told = output(abide()?.args(["verify", "--json", "--replay"]).arg(&self.db))?;
        let told: JsonValue =
            serde_json::from_str(&told).map_err(|why| format!("{why}: {told}"))?;
        told["events"].as_u64().ok_or_else(|| format!("verify told {told}"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
