//! The identity of a running program beyond the life of the process that started it. A process that starts again can
//! end a program that its predecessor left behind, and no other one: process ids are reused, so the identity also
//! has the start time.
//!
//! It works on Linux, which shows start times in `/proc`. On other systems programs have no identity.

use std::fs;
use std::io;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// A program's process group, as the leader of the group started it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// The process id of the leader, which is also the id of its group.
    pub pid: i32,
    /// When the leader started, in clock ticks since the system booted.
    pub started: u64,
    /// The session of the leader.
    pub session: i32,
    /// The id of the boot: after another boot, no process is left.
    pub boot: String,
}

/// Delay between two looks at processes that were asked to end.
const LOOK: Duration = Duration::from_millis(10);

/// How long a killed process may take to disappear.
const DEATH: Duration = Duration::from_secs(5);

impl ProcessIdentity {
    /// Returns the identity of a process that leads its group; `None` if the system does not show it.
    pub(crate) fn read(pid: Pid) -> Option<ProcessIdentity> {
        let pid = pid.as_raw_nonzero().get();
        let found = Stat::read(pid)?;
        let started = found.started;
        let session = found.session;
        Some(ProcessIdentity { pid, started, session, boot: boot()? })
    }

    /// Ends the process group if it is still there: SIGTERM, and SIGKILL after the grace period. Returns whether there
    /// was a process to end, when none is left.
    ///
    /// # Errors
    /// A process cannot be signalled, or does not disappear.
    pub async fn end(&self, grace: Duration) -> io::Result<bool> {
        let begin = Instant::now();
        let mut signalled = None;
        let mut found = false;
        loop {
            let members = self.members();
            if members.is_empty() {
                return Ok(found);
            }
            found = true;
            let waited = begin.elapsed();
            let signal = if waited < grace { Signal::TERM } else { Signal::KILL };
            if waited > grace.saturating_add(DEATH) {
                let why = format!("processes of group {} do not end", self.pid);
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            // SIGTERM is sent once; SIGKILL also reaches processes that were started in the meantime.
            if signalled != Some(Signal::TERM) || signal == Signal::KILL {
                for member in &members {
                    member.signal(signal)?;
                }
                signalled = Some(signal);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Returns the living processes of the group. If another process has the leader's id by now, the group is gone: an
    /// id is not reused while a group has it.
    fn members(&self) -> Vec<Stat> {
        let is_reused = Stat::read(self.pid).is_some_and(|leader| leader.started != self.started);
        if is_reused || boot().as_ref() != Some(&self.boot) {
            return Vec::new();
        }
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter_map(Stat::read).filter(|it| self.contains(it)).collect()
    }

    fn contains(&self, process: &Stat) -> bool {
        process.group == self.pid
            && process.session == self.session
            && process.started >= self.started
            && process.is_alive
    }
}

/// A process, as the system shows it.
#[derive(Debug)]
struct Stat {
    pid: i32,
    group: i32,
    session: i32,
    started: u64,
    /// Whether it is not a zombie.
    is_alive: bool,
}

impl Stat {
    fn read(pid: i32) -> Option<Stat> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Stat::parse(pid, &text)
    }

    /// Parses the line: the process id, the name in parentheses, which can contain anything, and numbers.
    fn parse(pid: i32, text: &str) -> Option<Stat> {
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        Some(Stat {
            pid,
            group: fields.get(2)?.parse().ok()?,
            session: fields.get(3)?.parse().ok()?,
            started: fields.get(19)?.parse().ok()?,
            is_alive: !["Z", "X"].contains(fields.first()?),
        })
    }

    /// Sends a signal, unless the process has ended.
    #[cfg(target_os = "linux")]
    fn signal(&self, signal: Signal) -> io::Result<()> {
        use rustix::io::Errno;
        use rustix::process::{PidfdFlags, kill_process, pidfd_open, pidfd_send_signal};
        let Some(pid) = Pid::from_raw(self.pid) else { return Ok(()) };
        let sent = match pidfd_open(pid, PidfdFlags::empty()) {
            // The descriptor refers to one process. If that is not the one that was found, it has ended.
            Ok(process) => match Stat::read(self.pid) {
                Some(now) if now.started == self.started => pidfd_send_signal(process, signal),
                _ => Ok(()),
            },
            // An older kernel, or a sandbox that blocks the system call.
            Err(Errno::NOSYS | Errno::PERM) => kill_process(pid, signal),
            Err(error) => Err(error),
        };
        match sent {
            Err(Errno::SRCH) | Ok(()) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn signal(&self, _signal: Signal) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the id of the current boot.
fn boot() -> Option<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_is_not_a_field() {
        let line = "42 (a) S 9 (b)) S 1 42 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 777 0 0";
        let found = Stat::parse(42, line).expect("the line is valid");
        let output = (found.pid, found.group, found.session, found.started, found.is_alive);
        assert_eq!(output, (42, 42, 7, 777, true));
        assert!(Stat::parse(42, "42 (a) S").is_none());
    }
}
