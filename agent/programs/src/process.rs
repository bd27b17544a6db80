//! A program as a process group with three pipes. It handles signals and is independent of the pipes' content.

use std::io;
use std::process::{ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

use crate::config::CliConfig;
use crate::environment::Environment;
use crate::event::Exit;
use crate::process_identity::ProcessIdentity;

/// A running program. Dropping it kills its process group.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) stdin: Option<ChildStdin>,
    pub(crate) stdout: Option<ChildStdout>,
    pub(crate) stderr: Option<ChildStderr>,
    /// Its process group, while there is one. The group's id is the process id of its leader.
    group: Option<Pid>,
}

impl Process {
    pub(crate) fn spawn(
        command: &[String],
        config: &CliConfig,
        environment: &Environment,
    ) -> io::Result<Self> {
        let Some((program, arguments)) = command.split_first() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the command is empty"));
        };
        let mut command = Command::new(program);
        command.args(arguments).env_clear().envs(&environment.variables);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A separate group, so that signals reach the program's child processes, but not this process.
        command.process_group(0).kill_on_drop(true);
        if let Some(folder) = &config.working_dir {
            command.current_dir(folder);
        }
        let mut child = command.spawn()?;
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        let group = id.and_then(Pid::from_raw);
        let stdin = child.stdin.take();
        let stdout = child.stdout.take();
        let stderr = child.stderr.take();
        Ok(Self { child, stdin, stdout, stderr, group })
    }

    /// Its identity, for a process that may have to end it later.
    pub(crate) fn identity(&self) -> Option<ProcessIdentity> {
        self.group.and_then(ProcessIdentity::read)
    }

    /// Sends a signal to the group. It is not an error if no process is left.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            let _ = kill_process_group(group, signal);
        }
    }

    /// Kills remaining child processes after the program has exited. A process id is not reused while a group has
    /// it, so this reaches either the group or no process. It is called immediately after the program was reaped,
    /// before ids can wrap around.
    pub(crate) fn sweep(&mut self) {
        self.signal(Signal::KILL);
        self.group = None;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.sweep();
    }
}

/// Returns the exit status of a process.
pub(crate) fn exit(status: ExitStatus) -> Exit {
    use std::os::unix::process::ExitStatusExt as _;
    Exit { code: status.code(), signal: status.signal() }
}
