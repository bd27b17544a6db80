//! The input of a program's supervisor: its specification, which the environment of the supervisor contains
//! and that of the program does not.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::SandboxLimits;

/// This program. It exists even after the file was replaced.
pub(crate) const OWN_PROGRAM: &str = "/proc/self/exe";

/// The argument that makes a program a supervisor: see [`sandbox_exec`](crate::sandbox_exec).
pub(crate) const COMMAND: &str = "sandbox-exec";

/// The variable with the specification.
pub(crate) const SPEC: &str = "ABIDE_SANDBOX_SPEC";

/// The exit code of a supervisor that could not start its program.
#[cfg(target_os = "linux")]
pub(crate) const NOT_STARTED: u8 = 125;

/// The program that supervises. Its `main` begins with [`sandbox_exec`](crate::sandbox_exec).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launcher {
    program: Option<String>,
}

impl Launcher {
    /// This program.
    #[must_use]
    pub fn this_program() -> Launcher {
        Launcher::at(OWN_PROGRAM)
    }

    /// Returns the program at a path.
    #[must_use]
    pub fn at(program: impl Into<String>) -> Launcher {
        Launcher { program: Some(program.into()) }
    }

    /// No program: no sandbox is available.
    #[must_use]
    pub fn none() -> Launcher {
        Launcher { program: None }
    }

    pub(crate) fn exists(&self) -> bool {
        self.program.is_some()
    }

    /// Returns the command of a supervisor, and the variable with its specification.
    pub(crate) fn command(
        &self,
        spec: &Spec,
        argv: Vec<String>,
    ) -> (Vec<String>, (String, String)) {
        let program = self.program.clone().unwrap_or_default();
        let text = serde_json::to_string(spec).expect("a specification is plain data");
        let own = [program, COMMAND.to_owned()];
        (own.into_iter().chain(argv).collect(), (SPEC.to_owned(), text))
    }
}

/// The specification of a supervised program. The command is in the arguments.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    /// The beginning of lines on stderr that are from the supervisor.
    pub(crate) nonce: String,
    /// The process whose end ends the program.
    pub(crate) parent: u32,
    /// The time between SIGTERM and SIGKILL.
    pub(crate) grace_ms: u64,
    /// Maximum number of processes.
    pub(crate) processes: u64,
    /// The folder that the program changes, besides the temporary one.
    pub(crate) workspace: PathBuf,
    /// Bytes that must stay free on the disks of both.
    pub(crate) free_bytes: u64,
    /// A folder to create, and to remove at the end.
    pub(crate) temporary: PathBuf,
    /// A command that removes what the program leaves behind outside of its process tree.
    pub(crate) at_end: Vec<String>,
    pub(crate) inner: InnerSpec,
}

/// The steps of the process before it becomes the program.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct InnerSpec {
    pub(crate) nonce: String,
    /// The process that must be the parent. The supervisor sets it.
    pub(crate) supervisor: u32,
    pub(crate) folder: WorkingFolder,
    pub(crate) limits: SandboxLimits,
    pub(crate) landlock: Option<LandlockPaths>,
    /// Whether the program may use Unix sockets.
    pub(crate) unix_sockets: bool,
    pub(crate) protected: ProtectedPaths,
}

/// Paths that Landlock permits a process to use.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LandlockPaths {
    /// Paths that it can read and execute.
    pub readable: Vec<PathBuf>,
    /// Paths that it can change.
    pub writable: Vec<PathBuf>,
}

/// Paths that a process cannot use although they are below a folder that it can change.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ProtectedPaths {
    /// Folders that it can read.
    pub read_only: Vec<PathBuf>,
    /// Paths below them that it can change.
    pub writable: Vec<PathBuf>,
    /// Files that it can neither read nor change.
    pub masked: Vec<PathBuf>,
}

impl ProtectedPaths {
    #[cfg(target_os = "linux")]
    pub(crate) fn is_empty(&self) -> bool {
        self.read_only.is_empty() && self.masked.is_empty()
    }
}

/// The working directory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct WorkingFolder {
    pub(crate) root: PathBuf,
    /// Absolute, or relative to the root. A relative one does not leave it.
    pub(crate) below: PathBuf,
}

/// A report of the supervisor, which it writes to stderr as the line `NONCE kind reason`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// The program did not start.
    NotStarted(String),
    /// The program was stopped at a limit.
    Stopped(String),
}

pub(crate) const DID_NOT_START: &str = "not-started";
pub(crate) const WAS_STOPPED: &str = "stopped";

/// Splits the report of a supervisor from the text that its program wrote to stderr.
#[must_use]
pub fn split_report(nonce: &str, stderr: &str) -> (Option<Report>, String) {
    let mut report = None;
    let mut lines = Vec::new();
    for line in stderr.lines() {
        // The program may have left its last line open.
        let Some((before, own)) = line.split_once(nonce) else {
            lines.push(line);
            continue;
        };
        if !before.is_empty() {
            lines.push(before);
        }
        report = match own.trim_start().split_once(' ') {
            Some((DID_NOT_START, why)) => Some(Report::NotStarted(why.to_owned())),
            Some((WAS_STOPPED, why)) => Some(Report::Stopped(why.to_owned())),
            _ => report,
        };
    }
    (report, lines.join("\n"))
}

/// 128 random bits as text.
pub(crate) fn nonce() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(hex::encode(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_not_part_of_the_programs_text() {
        let (report, text) = split_report("abc", "warning\nopen lineabc stopped too much\n");
        assert_eq!(report, Some(Report::Stopped("too much".to_owned())));
        assert_eq!(text, "warning\nopen line");
        assert_eq!(split_report("abc", "stopped x"), (None, "stopped x".to_owned()));
    }
}
