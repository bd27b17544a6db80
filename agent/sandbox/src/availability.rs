//! Which backends work on this machine, and why others do not.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};

use super::config::BackendName;
use super::docker::client_variables;
use crate::environment::Environment;
use crate::supervision::{
    InnerSpec, LandlockPaths, Launcher, OWN_PROGRAM, Spec, WorkingFolder, nonce,
};

/// Whether a backend works.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Availability {
    /// It works; a note about its strength.
    Available(String),
    /// It does not work; the reason.
    Unavailable(String),
}

/// How long a program may take to show that it works.
const PATIENCE: Duration = Duration::from_secs(3);

impl Availability {
    /// Tries a backend.
    #[must_use]
    pub fn probe(
        name: BackendName,
        launcher: &Launcher,
        environment: &Environment,
    ) -> Availability {
        if !cfg!(target_os = "linux") {
            return Availability::Unavailable("sandboxes need Linux".to_owned());
        }
        if !launcher.exists() {
            let why =
                "no program that supervises sandboxed programs is named (in Rust, a Launcher is)";
            return Availability::Unavailable(why.to_owned());
        }
        if !Path::new(OWN_PROGRAM).exists() {
            let why = "/proc is not mounted: the supervisor of sandboxed programs needs it";
            return Availability::Unavailable(why.to_owned());
        }
        match name {
            BackendName::Local => Availability::Available(local(launcher, environment)),
            BackendName::Bubblewrap => bubblewrap(environment),
            BackendName::Docker => docker(environment),
        }
    }

    /// Returns the reason, if it does not work.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        match self {
            Availability::Available(_) => None,
            Availability::Unavailable(reason) => Some(reason),
        }
    }
}

/// Returns all backends, as `GET /capabilities` lists them.
#[must_use]
pub fn available_backends(launcher: &Launcher, environment: &Environment) -> Vec<Value> {
    let found = std::thread::scope(|scope| {
        let tries = BackendName::ALL.map(|name| {
            (name, scope.spawn(move || Availability::probe(name, launcher, environment)))
        });
        tries.map(|(name, tried)| (name, tried.join()))
    });
    let lines = found.into_iter().map(|(name, availability)| match availability {
        Ok(Availability::Available(note)) => {
            json!({"name": name.as_str(), "available": true, "note": note})
        }
        Ok(Availability::Unavailable(reason)) => {
            json!({"name": name.as_str(), "available": false, "reason": reason})
        }
        Err(_) => json!({"name": name.as_str(), "available": false, "reason": "unknown"}),
    });
    lines.collect()
}

/// Returns the strength of `local` on this machine, in words.
fn local(launcher: &Launcher, environment: &Environment) -> String {
    if has_own_processes(launcher, environment) {
        landlock()
    } else {
        format!("{}; {NO_OWN_PROCESSES}", landlock())
    }
}

/// What separates tenants badly in `local` on this machine.
pub(super) fn weaknesses(launcher: &Launcher, environment: &Environment) -> Vec<&'static str> {
    let own = (!has_own_processes(launcher, environment)).then_some(NO_OWN_PROCESSES);
    let root = rustix::process::geteuid().is_root().then_some(AS_ROOT);
    own.into_iter().chain(root).collect()
}

const AS_ROOT: &str = "the server runs as root, and so do the programs; run it as another user";

const NO_OWN_PROCESSES: &str = "no namespace of processes: programs see the commands of others";

/// Returns `true` if the processes of `local` have a namespace of their own: then a program has a low id.
fn has_own_processes(launcher: &Launcher, environment: &Environment) -> bool {
    let Ok(id) = nonce() else { return false };
    let inner = InnerSpec {
        nonce: id.clone(),
        folder: WorkingFolder { root: PathBuf::from("/"), below: PathBuf::from(".") },
        landlock: Some(LandlockPaths {
            readable: vec![PathBuf::from("/")],
            writable: vec![PathBuf::from("/dev/null")],
        }),
        ..InnerSpec::default()
    };
    let spec = Spec {
        temporary: std::env::temp_dir().join(format!("abide-sandbox-{id}")),
        nonce: id,
        parent: std::process::id(),
        grace_ms: 0,
        processes: inner.limits.processes,
        workspace: PathBuf::from("/"),
        free_bytes: 0,
        at_end: Vec::new(),
        inner,
    };
    let argv = ["sh", "-c", "echo $$"].map(str::to_owned).to_vec();
    let (argv, variable) = launcher.command(&spec, argv);
    let mut command = Command::new(argv.first().map_or("", String::as_str));
    command.args(argv.iter().skip(1));
    let answer = try_command(command, environment, Some(variable)).ok();
    answer.and_then(|id| id.parse().ok()).is_some_and(|id: u32| id <= HIGHEST_ID)
}

/// More than the processes that a program has when it starts.
const HIGHEST_ID: u32 = 9;

#[cfg(target_os = "linux")]
fn landlock() -> String {
    super::landlocked::support()
}

#[cfg(not(target_os = "linux"))]
fn landlock() -> String {
    String::new()
}

fn bubblewrap(environment: &Environment) -> Availability {
    let mut command = Command::new("bwrap");
    command.args(["--ro-bind", "/", "/", "--unshare-all", "--die-with-parent", "true"]);
    match try_command(command, environment, None) {
        Ok(_) => Availability::Available("namespaces".to_owned()),
        Err(why) => Availability::Unavailable(why),
    }
}

fn docker(environment: &Environment) -> Availability {
    let mut command = Command::new("docker");
    command.args(["version", "--format", "{{.Server.Version}}"]);
    match try_command(command, environment, None) {
        Ok(version) => Availability::Available(format!("server {version}")),
        Err(why) => Availability::Unavailable(why),
    }
}

/// Runs a short command; returns its first line of output.
fn try_command(
    mut command: Command,
    environment: &Environment,
    variable: Option<(String, String)>,
) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.env_clear().envs(client_variables(environment)).envs(variable);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|why| match (why.kind(), name.as_str()) {
        (io::ErrorKind::NotFound, "bwrap") => {
            "there is no program bwrap: install it, for example with  apt install bubblewrap"
                .to_owned()
        }
        (io::ErrorKind::NotFound, name) => format!("there is no program {name}: install it"),
        _ => format!("cannot start {name}: {why}"),
    })?;
    let begin = Instant::now();
    // The output of these commands fits into a pipe.
    while child.try_wait().map_err(|why| why.to_string())?.is_none() {
        if begin.elapsed() > PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("{name} did not respond within {} s", PATIENCE.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().map_err(|why| why.to_string())?;
    if output.status.success() {
        Ok(first_line(&output.stdout))
    } else {
        Err(format!("{name} failed: {}", first_line(&output.stderr)))
    }
}

/// Returns the first line that is not blank; an empty text if there is none.
fn first_line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_owned()
}
