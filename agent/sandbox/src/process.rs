//! Processes of tools and MCP servers. Each has its own process group, so that its child processes end with it, and
//! only the configured environment.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::supervision::{Report, split_report};

/// Number of bytes at the end of stderr that are kept.
const TAIL_BYTES: usize = 16 << 10;

/// How a program is started.
#[derive(Clone)]
pub struct Launch {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// The working directory; the default is this process's.
    pub folder: Option<PathBuf>,
    /// All environment variables of the program.
    pub environment: BTreeMap<String, String>,
    /// The id of the supervisor, if the program is one: it ends its process tree itself, and reports on stderr.
    pub supervised: Option<String>,
}

impl Launch {
    /// Starts the program with pipes for all three streams.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn spawn(&self) -> io::Result<(Child, ProcessGroup)> {
        let (program, arguments) = self.argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env_clear()
            .envs(&self.environment)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        let child = command.spawn()?;
        let leader = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        Ok((child, ProcessGroup { leader, is_supervised: self.supervised.is_some() }))
    }
}

/// A process group. Dropping it kills the remaining processes, or has the supervisor end them.
pub struct ProcessGroup {
    leader: Option<Pid>,
    is_supervised: bool,
}

/// How much longer than the grace period a supervisor may take to end its processes.
const SUPERVISOR: Duration = Duration::from_secs(5);

impl ProcessGroup {
    /// Sends SIGTERM to the group.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Returns how long to wait after [`ProcessGroup::terminate`] before [`ProcessGroup::kill`].
    #[must_use]
    pub fn patience(&self, grace: Duration) -> Duration {
        if self.is_supervised { grace + SUPERVISOR } else { grace }
    }

    /// Sends SIGKILL to the group. A supervisor is asked to end: without it, nothing would end what has left the
    /// group.
    pub fn kill(&self) {
        self.signal(if self.is_supervised { Signal::TERM } else { Signal::KILL });
    }

    fn signal(&self, signal: Signal) {
        if let Some(leader) = self.leader {
            // The group may already be gone, which is fine.
            let _ = kill_process_group(leader, signal);
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Why a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By itself.
    Exited,
    /// At its deadline.
    TimedOut,
    /// It was cancelled.
    Cancelled,
    /// Its output was too large.
    TooLarge,
}

/// Maximum time to read output after the program has exited. Its own output is in the pipe by then, so this limits
/// only the output of a surviving child process that holds the pipe.
const DRAIN: Duration = Duration::from_millis(500);

/// When a program is stopped.
pub struct StopRules<'a> {
    /// When it has timed out.
    pub deadline: Instant,
    /// The time between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// Stops it when cancelled.
    pub cancel: &'a CancellationToken,
}

impl StopRules<'_> {
    /// Waits for the program to end, or stops it. `read` reads the output; `false` means that it is too large, which
    /// stops the program, too. Returns the reason and the exit code.
    pub async fn watch(
        &self,
        child: &mut Child,
        group: &ProcessGroup,
        read: impl Future<Output = bool>,
    ) -> (End, i32) {
        let mut read = pin!(read);
        let mut fits = None;
        let end = loop {
            tokio::select! {
                it_fits = &mut read, if fits.is_none() => {
                    fits = Some(it_fits);
                    if !it_fits {
                        break End::TooLarge;
                    }
                }
                _ = child.wait() => break End::Exited,
                () = sleep_until(self.deadline) => break End::TimedOut,
                () = self.cancel.cancelled() => break End::Cancelled,
            }
        };
        if end != End::Exited {
            group.terminate();
            let over = Instant::now() + group.patience(self.grace);
            loop {
                tokio::select! {
                    _ = child.wait() => break,
                    () = sleep_until(over) => break,
                    // The program may have to flush its output before it handles the signal.
                    it_fits = &mut read, if fits.is_none() => fits = Some(it_fits),
                }
            }
        }
        group.kill();
        // A killed process ends as soon as the kernel has processed the signal.
        let status = timeout(self.grace.max(DRAIN), child.wait()).await;
        if fits.is_none() {
            fits = timeout(DRAIN, &mut read).await.ok();
        }
        let end = if fits == Some(false) && end == End::Exited { End::TooLarge } else { end };
        (end, status.ok().and_then(Result::ok).map_or(1, exit_code))
    }
}

/// Returns the exit code, or 128 plus the signal number, as in shells.
#[must_use]
pub fn exit_code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1)
}

/// The end of a program's output, limited in size.
#[derive(Clone, Default)]
pub struct OutputTail {
    kept: Arc<Mutex<KeptOutput>>,
    /// The id of the supervisor that writes to the same stream.
    supervisor: Option<String>,
}

#[derive(Default)]
struct KeptOutput {
    bytes: VecDeque<u8>,
    /// Total number of bytes.
    all: usize,
}

impl OutputTail {
    /// Creates an empty tail for a launched program.
    #[must_use]
    pub fn new(launch: &Launch) -> OutputTail {
        OutputTail { supervisor: launch.supervised.clone(), ..OutputTail::default() }
    }

    /// Returns the report of the supervisor.
    #[must_use]
    pub fn report(&self) -> Option<Report> {
        split_report(self.supervisor.as_deref()?, &self.raw().0).0
    }

    /// Reads to the end.
    pub async fn drain(&self, mut from: impl AsyncRead + Unpin) {
        let mut buffer = [0; 8 << 10];
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            self.push(&buffer[..read]);
        }
    }

    fn push(&self, bytes: &[u8]) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.all += bytes.len();
        kept.bytes.extend(bytes);
        let over = kept.bytes.len().saturating_sub(TAIL_BYTES);
        kept.bytes.drain(..over);
    }

    /// Returns the text, and the number of omitted bytes before it. Invalid UTF-8 is replaced.
    #[must_use]
    pub fn text(&self) -> (String, usize) {
        let (text, dropped) = self.raw();
        match &self.supervisor {
            Some(supervisor) => (split_report(supervisor, &text).1, dropped),
            None => (text, dropped),
        }
    }

    fn raw(&self) -> (String, usize) {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = kept.bytes.iter().copied().collect();
        let dropped = kept.all - bytes.len();
        // Skip a character that was cut.
        let from = if dropped > 0 {
            bytes.iter().position(|byte| byte & 0xC0 != 0x80).unwrap_or(bytes.len())
        } else {
            0
        };
        (String::from_utf8_lossy(&bytes[from..]).trim_end().to_owned(), dropped + from)
    }

    /// Returns a suffix for an error message: `; stderr: …`, or nothing.
    #[must_use]
    pub fn as_suffix(&self) -> String {
        match self.text() {
            (text, _) if text.is_empty() => String::new(),
            (text, 0) => format!("; stderr:\n{text}"),
            (text, dropped) => format!("; stderr, without its first {dropped} bytes:\n{text}"),
        }
    }
}
