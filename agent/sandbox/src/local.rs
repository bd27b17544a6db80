//! The backend `local`: a process of the same user and the same machine. Landlock limits the files that it reaches and
//! the processes that it can signal, and mounts of its own protect files of the workspace.

use std::path::{Path, PathBuf};

use super::backend::{IsolatedCommand, SandboxBackend, SandboxJob};
use super::config::BackendName;
use crate::supervision::{LandlockPaths, ProtectedPaths};

/// Paths that programs need: the system, its configuration, and information about the machine.
const SYSTEM: [&str; 13] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc",
    "/opt",
    "/nix",
    "/proc",
    "/sys/devices/system/cpu",
    "/sys/fs/cgroup",
    "/run/systemd/resolve",
];

/// Devices without a state.
const DEVICES: [&str; 6] =
    ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];

#[derive(Debug)]
pub(super) struct Local;

impl SandboxBackend for Local {
    fn name(&self) -> BackendName {
        BackendName::Local
    }

    fn isolate(&self, job: &SandboxJob) -> Result<IsolatedCommand, String> {
        let mut readable: Vec<PathBuf> = SYSTEM.iter().map(PathBuf::from).collect();
        readable.extend(job.readable.iter().cloned());
        readable.extend(program_file(job));
        let mut writable: Vec<PathBuf> = DEVICES.iter().map(PathBuf::from).collect();
        writable.push(job.workspace.clone());
        writable.push(job.temporary.clone());
        writable.extend(job.writable.iter().cloned());
        if job.folder.is_absolute() {
            readable.push(job.folder.clone());
        }
        let protected = ProtectedPaths {
            read_only: job.hidden.iter().map(|hidden| job.workspace.join(hidden)).collect(),
            writable: job.writable.clone(),
            masked: job.masked.clone(),
        };
        Ok(IsolatedCommand {
            argv: job.argv.clone(),
            environment: job.environment.clone(),
            landlock: Some(LandlockPaths { readable, writable }),
            protected,
            at_end: Vec::new(),
        })
    }
}

/// Returns the file of a program that the configuration names by its path.
fn program_file(job: &SandboxJob) -> Option<PathBuf> {
    let program = Path::new(job.argv.first()?);
    program.is_absolute().then(|| program.to_owned())
}

/// Returns the system paths of another root, for backends that build their own.
pub(super) fn system_paths() -> impl Iterator<Item = &'static str> {
    SYSTEM.into_iter().filter(|path| *path != "/proc" && !path.starts_with("/sys"))
}
