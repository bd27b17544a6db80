//! A program as a process group with three pipes. It knows signals, and nothing of what is said.

use std::io;
use std::process::{ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

use crate::config::CliConfig;
use crate::environment::Environment;
use crate::event::Exit;

/// A running program. Dropped, it is killed with all that it started.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) stdin: Option<ChildStdin>,
    pub(crate) stdout: Option<ChildStdout>,
    pub(crate) stderr: Option<ChildStderr>,
    /// Its process group, while there is one to signal. The leader's process id is the group's.
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
        // A group of its own: what it starts is signalled with it, and we are not.
        command.process_group(0).kill_on_drop(true);
        if let Some(folder) = &config.working_dir {
            command.current_dir(folder);
        }
        let mut child = command.spawn()?;
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        let group = id.and_then(Pid::from_raw);
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        Ok(Self { child, stdin, stdout, stderr, group })
    }

    /// Signals all of the group. That nobody is left to be signalled is no failure.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            let _ = kill_process_group(group, signal);
        }
    }

    /// Ends what the program left behind, once it has exited itself. A process id is not given out again
    /// while a group still bears it, so this meets either what is left or nobody; called at once after
    /// the program was reaped, before ids could have gone round.
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

/// How a process ended, of what the system says.
pub(crate) fn exit(status: ExitStatus) -> Exit {
    use std::os::unix::process::ExitStatusExt as _;
    Exit { code: status.code(), signal: status.signal() }
}
